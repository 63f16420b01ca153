// How many scores does attention compute? The grid fills row by row, and the text grows.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { number, percent, whole } from "./lib/format.js";
import { slider } from "./lib/controls.js";
import { player } from "./lib/player.js";

const STYLE = `
.grid { display: grid; grid-template-columns: minmax(0, 17rem) 1fr; gap: 1rem 1.6rem; align-items: center; margin-top: 0.8rem; }
@container (max-width: 480px) { .grid { grid-template-columns: 1fr; } }
.score { fill: var(--compute); } .never { fill: var(--wait); opacity: 0.22; } .todo { fill: none; stroke: var(--rule); }
.facts { margin: 0; display: grid; gap: 0.55rem; }
.facts dt { font-size: 0.8125rem; color: var(--soft); } .facts dd { margin: 0; font-size: 1.25rem; font-weight: 650; }
.caption { margin: 0.6rem 0 0; min-height: 3em; }
@container (max-width: 480px) { .caption { min-height: 4.5em; } }
`;
const DRAWN = 24; // cells along a side, at most: a longer text is drawn coarser

// `model`: { name, heads, layers }; `texts`: { tokens, share } of a prefill that grows with the square.
export function render({ model, el }) {
  const shape = model.get("shape");
  const texts = model.get("texts");
  let one = texts.find((text) => text.tokens === model.get("start"));
  let t = 1;
  const board = h("div");
  const facts = h("dl", { class: "facts" });
  const caption = h("p", { class: "caption" });

  function draw() {
    const n = one.tokens;
    const side = Math.min(n, DRAWN);
    const read = Math.max(1, Math.round(t * n)); // tokens that have computed their scores
    const rows = (read / n) * side;
    const size = 260;
    const pitch = size / side;
    const cells = [];
    for (let i = 0; i < side; i++) for (let j = 0; j < side; j++) {
      const look = j > i ? "never" : i < rows - 1e-9 ? "score" : "todo";
      cells.push(s("rect", { class: look, x: j * pitch, y: i * pitch, width: pitch - 1, height: pitch - 1 }));
    }
    replace(board, picture(size, size, `${whole(n)} tokens: ${whole((n * (n + 1)) / 2)} scores in a head`, cells));
    const scores = (read * (read + 1)) / 2;
    const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
    replace(facts, fact("one head of one layer", whole(scores)),
      fact(`all ${whole(shape.heads * shape.layers)} heads of ${shape.name}`, number(scores * shape.heads * shape.layers, 3)),
      fact("share of a prefill's operations", percent(one.share)));
    const last = read === n;
    replace(caption, last
      ? `${whole(n)} tokens, each with itself and those before it: half of a square of ${whole(n * n)}.`
      : `Token ${whole(read)} looks at itself and at ${whole(read - 1)} before it.`,
      n > DRAWN ? ` Each cell stands for ${number(n / DRAWN)} × ${number(n / DRAWN)} scores.` : "");
  }

  const length = slider({ label: "Tokens of the text", values: texts.map((text) => text.tokens), value: one.tokens,
    format: whole, onchange: (n) => { one = texts.find((text) => text.tokens === n); pace.seek(1); } });
  const pace = player({ seconds: 5, label: "Tokens that have looked back", rest: 1,
    format: (now) => `${percent(now)} of the tokens`, draw: (now) => { t = now; draw(); } });
  el.append(h("style", {}, STYLE), length.node, h("div", { class: "grid" }, board, facts), caption, pace.node);
  onWidth(board, draw);
}
