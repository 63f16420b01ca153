// When does the square matter? The share of a prefill's operations that attention takes, by length.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { percent, whole } from "./lib/format.js";
import { pick, slider } from "./lib/controls.js";
import { axisX, axisY, linear, log } from "./lib/plot.js";

const STYLE = `
.share .sentence { margin: 0 0 0.6rem; font-size: 1.125rem; }
.share .other { stroke: var(--wait); opacity: 0.3; stroke-width: 1.2; fill: none; }
.share .mark { stroke: var(--ink); stroke-dasharray: 3 4; }
.caption { margin: 0.6rem 0 0; min-height: 3em; }
@container (max-width: 480px) { .caption { min-height: 4.5em; } }
`;

// `tokens`: lengths; `models`: { key, name, shares, half }, a share for each length.
export function render({ model, el }) {
  const tokens = model.get("tokens");
  const models = model.get("models");
  let one = models.find((each) => each.key === model.get("start"));
  let at = tokens.indexOf(model.get("length"));
  let width = 0;
  const board = h("div");
  const caption = h("p", { class: "caption" });

  function draw() {
    const share = one.shares[at];
    replace(caption, h("strong", {}, `${one.name}, ${whole(tokens[at])} tokens: `),
      h("span", { class: "compute" }, `${percent(share)} of the operations`), " grow with the square of the length. ",
      one.half ? `Half of them would at ${whole(one.half)} tokens.` : "Its layers do not all see the whole text.");
    if (!width) return;
    const [left, right, top, bottom] = [44, width - 18, 34, 270];
    const x = log([tokens[0], tokens.at(-1)], [left, right]);
    const y = linear([0, 1], [bottom, top]);
    const path = (each) => each.shares.map((v, i) => `${x(tokens[i])},${y(v)}`).join(" ");
    const wide = width >= 480;
    const marks = tokens.filter((n) => Number.isInteger(Math.log2(n) / (wide ? 2 : 4)));
    replace(board, picture(width, bottom + 44, `Share of attention for ${one.name} against the length of the text`,
      axisX(x, bottom, { ticks: marks, format: whole, title: "tokens of the prompt" }),
      axisY(y, left, { ticks: [0, 0.25, 0.5, 0.75, 1], format: (v) => `${100 * v}`, right, title: "% of a prefill's operations" }),
      models.filter((each) => each !== one).map((each) => s("polyline", { class: "other", points: path(each) })),
      s("polyline", { class: "line compute", points: path(one) }),
      s("line", { class: "mark", x1: x(tokens[at]), x2: x(tokens[at]), y1: top, y2: bottom }),
      s("circle", { class: "compute", cx: x(tokens[at]), cy: y(share), r: 5.5 }),
      s("text", { x: x(tokens[at]) + (x(tokens[at]) > right - 70 ? -9 : 9), y: Math.max(top + 12, y(share) - 10),
        "text-anchor": x(tokens[at]) > right - 70 ? "end" : "start" }, percent(share))));
  }

  const sentence = h("p", { class: "sentence" }, "Attention in ",
    pick({ label: "Model", value: one.key, options: models.map((each) => [each.key, each.name]),
      onchange: (key) => { one = models.find((each) => each.key === key); draw(); } }).node, ":");
  const length = slider({ label: "Tokens of the prompt", values: tokens, value: tokens[at], format: whole,
    onchange: (n) => { at = tokens.indexOf(n); draw(); } });
  el.append(h("style", {}, STYLE), h("div", { class: "share" }, sentence,
    h("div", { class: "controls" }, length.node), board, caption));
  onWidth(board, (wide) => { width = wide; draw(); });
}
