// Same word, inference: one dot product, or two hundred matrices on top of each other.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { bytes, flops, number, whole } from "./lib/format.js";
import { axisX, log } from "./lib/plot.js";
import { player } from "./lib/player.js";

const STYLE = `
.shallow svg { margin-top: 0.4rem; }
.shallow .name { font-weight: 650; }
.shallow .done { fill: var(--compute); } .shallow .todo { fill: var(--wait); opacity: 0.25; }
.caption { margin: 0.6rem 0 0; min-height: 3em; }
@container (max-width: 480px) { .caption { min-height: 4.5em; } }
`;

// `models`: { name, flops, bytes, steps, what }: operations and bytes of one answer, and how many
// products (or rounds of comparisons) follow each other.
export function render({ model, el }) {
  const models = model.get("models");
  const board = h("div");
  const caption = h("p", { class: "caption" });
  const low = Math.min(...models.map((each) => each.flops)) / 3;
  const high = Math.max(...models.map((each) => each.flops)) * 2;
  let t = 1;
  let width = 0;

  function draw() {
    const reached = low * (high / low) ** t; // operations done so far, a factor a moment
    const done = models.filter((each) => each.flops <= reached * (1 + 1e-9));
    const last = done.at(-1);
    replace(caption, last
      ? [h("strong", {}, `${last.name}: `), `${last.what}; `,
        h("span", { class: "compute" }, flops(last.flops)), " over ",
        h("span", { class: "bytes" }, bytes(last.bytes)), `, ${number(last.flops / last.bytes)} operations a byte.`]
      : "All begin at the same moment.");
    if (!width) return;
    const [left, right] = [2, width - 8];
    const x = log([low, high], [left, right]);
    const tall = 58;
    const row = (each, i) => {
      const y = 8 + i * tall;
      const shown = Math.min(each.steps, 60);
      const pitch = Math.min(9, (right - left) / 60);
      const share = Math.log(Math.max(reached, low) / low) / Math.log(each.flops / low);
      return [s("text", { class: "name", x: left, y: y + 10 }, each.name),
        s("text", { class: "tick", x: right, y: y + 10, "text-anchor": "end" }, flops(each.flops)),
        Array.from({ length: shown }, (_, k) => s("rect", { class: (k + 1) / shown <= share + 1e-9 ? "done" : "todo",
          x: left + k * pitch, y: y + 18, width: pitch - 2, height: 10, rx: 1 })),
        s("rect", { class: "compute", x: left, y: y + 33, height: 8, width: Math.max(0, x(Math.min(reached, each.flops)) - left) })];
    };
    const bottom = 8 + models.length * tall;
    replace(board, picture(width, bottom + 44, "Operations of one answer of each model",
      axisX(x, bottom, { ticks: x.ticks().filter((_, i) => width > 480 || i % 3 === 0), format: (v) => flops(v),
        title: "operations of one answer" }), models.map(row)));
  }

  const pace = player({ seconds: 8, label: "Operations done", rest: 1,
    stops: models.map((each) => Math.log(each.flops / low) / Math.log(high / low) + 1e-6).sort((a, b) => a - b).concat(1),
    format: (now) => `${whole(low * (high / low) ** now)} operations`, draw: (now) => { t = now; draw(); } });
  el.append(h("style", {}, STYLE), h("div", { class: "shallow" }, board, caption, pace.node));
  onWidth(board, (wide) => { width = wide; draw(); });
}
