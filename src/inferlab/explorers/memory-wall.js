// How wide is the memory wall? Arithmetic and bandwidth, chip after chip, counted as you like.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { byteRate, flopRate, number } from "./lib/format.js";
import { axisY, linear, log } from "./lib/plot.js";
import { choice } from "./lib/controls.js";
import { player } from "./lib/player.js";

const STYLE = `
.wall svg { margin-top: 0.8rem; }
.wall .name { font-weight: 650; }
.wall .gap { stroke: var(--wait); stroke-width: 6; opacity: 0.45; }
.wall .later { opacity: 0.35; }
.caption { margin: 0.6rem 0 0; min-height: 3em; }
@container (max-width: 480px) { .caption { min-height: 6em; } }
`;
const times = (value) => `${number(value)}×`;

// `countings`: { key, label, points: [{ name, year, dtype, flops, bandwidth, compute, moved }] },
// growth since the first chip in `compute` and `moved`.
export function render({ model, el }) {
  const countings = model.get("countings");
  let one = countings.find((c) => c.key === model.get("start"));
  let at = countings[0].points.length - 1; // chips seen, with the share of the next
  let width = 0;
  const board = h("div");
  const caption = h("p", { class: "caption" });
  const high = Math.max(...countings.flatMap((c) => c.points.map((p) => p.compute)));

  function draw() {
    if (!width) return;
    const points = one.points;
    const [left, right, top, bottom] = [54, width - (width < 480 ? 46 : 132), 34, 290];
    const x = linear([0, points.length - 1], [left + 14, right]);
    const y = log([0.8, high * 1.4], [bottom, top]);
    const done = Math.floor(at + 1e-9);
    const part = at - done;
    const mix = (a, b) => a * (b / a) ** part; // straight on a logarithmic axis
    const upTo = (field) => {
      const seen = points.slice(0, done + 1).map((p, i) => [i, p[field]]);
      if (part > 1e-6) seen.push([at, mix(points[done][field], points[done + 1][field])]);
      return seen;
    };
    const line = (field, colour) => {
      const seen = upTo(field);
      return [s("polyline", { class: `line ${colour}`, points: seen.map(([i, v]) => `${x(i)},${y(v)}`).join(" ") }),
        seen.slice(0, done + 1).map(([i, v]) => s("circle", { class: colour, cx: x(i), cy: y(v), r: 4 }))];
    };
    const ends = ["compute", "moved"].map((field) => upTo(field).at(-1));
    const ys = ends.map(([, v]) => y(v));
    const close = Math.abs(ys[0] - ys[1]) < 34;
    const up = ys[0] <= ys[1] ? [-10, 14] : [14, -10];
    const words = ["compute", "bytes"].map((colour, i) => s("text", { class: `${colour} name`,
      x: x(ends[i][0]) + 9, y: ys[i] + (close ? up[i] : 4) },
      width < 480 ? times(ends[i][1]) : `${["compute", "bandwidth"][i]} ${times(ends[i][1])}`));
    const marks = points.map((p, i) => s("g", { class: i <= done ? "" : "later" },
      s("text", { class: "tick", x: x(i), y: bottom + 18, "text-anchor": "middle" }, p.name),
      s("text", { class: "tick", x: x(i), y: bottom + 34, "text-anchor": "middle" },
        i && points[i - 1].year === p.year ? "" : p.year)));
    const ticks = y.ticks().filter((v) => v <= high * 1.4);
    replace(board, picture(width, bottom + 42, `Growth since ${points[0].name}, counted in ${one.label}`,
      axisY(y, left, { ticks, format: times, right, title: `times what ${points[0].name} had` }), marks,
      s("line", { class: "gap", x1: x(ends[0][0]), x2: x(ends[0][0]), y1: ys[0], y2: ys[1] }),
      line("moved", "bytes"), line("compute", "compute"), words));
    const now = points[done];
    const gap = now.compute / now.moved;
    replace(caption, h("strong", {}, `${now.name}, ${now.year}: `),
      h("span", { class: "compute" }, `${flopRate(now.flops)} in ${now.dtype}, ${times(now.compute)}`), "; ",
      h("span", { class: "bytes" }, `${byteRate(now.bandwidth)}, ${times(now.moved)}`), ". ",
      gap >= 1.005 ? `Arithmetic has gained ${times(gap)} on the bus.`
        : gap > 0.995 ? "Neither has gained on the other." : `The bus has gained ${times(1 / gap)} on arithmetic.`);
  }

  const last = countings[0].points.length - 1;
  const pace = player({ seconds: 7, label: "Generation of chips", rest: 1,
    stops: Array.from({ length: last + 1 }, (_, i) => i / last),
    format: (t) => one.points[Math.floor(t * last + 1e-9)].name,
    draw: (t) => { at = t * last; draw(); } });
  const counted = choice({ label: "Count arithmetic in", value: one.key,
    options: countings.map(({ key, label }) => [key, label]),
    onchange: (key) => { one = countings.find((c) => c.key === key); draw(); } });
  el.append(h("style", {}, STYLE), h("div", { class: "wall" }, counted.node, board, caption, pace.node));
  onWidth(board, (wide) => { width = wide; draw(); });
}
