// What does one token drag across the bus? It sinks through the layers, and each fetches its weights.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { bytes, flops, number, seconds } from "./lib/format.js";
import { choice } from "./lib/controls.js";
import { player } from "./lib/player.js";

const STYLE = `
.sink svg { margin-top: 0.8rem; }
.sink .name { font-weight: 650; }
.sink .layer { fill: var(--panel); stroke: var(--rule); }
.sink .layer.now { stroke: var(--bytes); stroke-width: 2; }
.sink .layer.done { fill: var(--panel); stroke: var(--soft); }
.sink .stock { opacity: 0.25; } .sink .stock.left { opacity: 1; }
.sink .token { fill: var(--ink); }
.sink .way { stroke: var(--rule); stroke-width: 2; }
.caption { margin: 0.6rem 0 0; min-height: 4.5em; }
@container (max-width: 480px) { .caption { min-height: 7.5em; } }
`;
const DRAWN = 20; // layers drawn at most; a deeper model is drawn several to a box

// `cases`: { key, label, layers, stops: [{ name, bytes, flops, seconds }] }, from the table of
// embeddings to the vocabulary, each stop with what it alone moves, computes and takes.
export function render({ model, el }) {
  const cases = model.get("cases");
  let one = cases[0];
  let t = 1;
  let width = 0;
  const board = h("div");
  const caption = h("p", { class: "caption" });
  const sum = (list, field) => list.reduce((total, stop) => total + stop[field], 0);

  function draw() {
    const stops = one.stops;
    const total = sum(stops, "seconds");
    // In time, so that a stop of many bytes holds the token for long.
    let index = 0;
    let clock = t * total;
    while (index < stops.length - 1 && clock > stops[index].seconds * (1 + 1e-9)) clock -= stops[index++].seconds;
    const part = Math.min(1, clock / (stops[index].seconds || 1));
    const before = stops.slice(0, index);
    const moved = sum(before, "bytes") + part * stops[index].bytes;
    const computed = sum(before, "flops") + part * stops[index].flops;
    replace(caption, h("strong", {}, t >= 1 ? "One token: " : `${stops[index].name}: `),
      h("span", { class: "bytes" }, `${bytes(moved)} fetched`), ", ",
      h("span", { class: "compute" }, `${flops(computed)} done`), `, ${seconds(t * total)} gone. `,
      t >= 1 ? `The next one fetches all of it again.`
        : `${number((100 * moved) / sum(stops, "bytes"), 2)}\u00a0% of a token's bytes.`);
    if (!width) return;
    const boxes = Math.min(DRAWN, one.layers);
    const tall = 13;
    const top = 40;
    const [left, wide] = [width * 0.5, width * 0.42];
    const y = (i) => top + i * (tall + 3); // 0: embedding, 1..boxes, boxes + 1: head
    // Stop `index` in boxes: 0, then layers spread over the boxes, then the head.
    const depth = index === 0 ? part * 0.5
      : index === stops.length - 1 ? boxes + 1 : 1 + ((index - 1 + part) / one.layers) * boxes;
    const box = Math.min(boxes + 1, Math.floor(depth));
    const stack = Array.from({ length: boxes + 2 }, (_, i) => s("rect", {
      class: `layer${i === box && t < 1 ? " now" : i < depth || t >= 1 ? " done" : ""}`,
      x: left, y: y(i), width: wide, height: tall, rx: 3 }));
    const memory = { x: 1, w: width * 0.22 };
    const fraction = moved / sum(stops, "bytes");
    const slabs = Array.from({ length: boxes + 2 }, (_, i) => s("rect", {
      class: `bytes stock${(i + 1) / (boxes + 2) > fraction + 1e-9 ? " left" : ""}`,
      x: memory.x, y: y(i), width: memory.w, height: tall, rx: 3 }));
    const flow = 4;
    const at = y(box) + tall / 2;
    const from = memory.x + memory.w + 4;
    const cargo = t < 1 && t > 0 ? Array.from({ length: flow }, (_, i) => {
      const along = (i / flow + 40 * t) % 1;
      return s("rect", { class: "bytes", x: from + along * (left - from - 12), y: at - 5, width: 9, height: 10, rx: 2 });
    }) : [];
    const end = y(boxes + 1) + tall;
    const place = t >= 1 ? end + 12 : y(0) + (depth / (boxes + 1)) * (y(boxes + 1) - y(0)) + tall / 2;
    const label = (i, text) => s("text", { class: "tick", x: left + wide / 2, y: y(i) + 10.5, "text-anchor": "middle" }, text);
    replace(board, picture(width, end + 26, `A token passes ${one.layers} layers; ${bytes(sum(stops, "bytes"))} cross the bus`,
      s("text", { class: "bytes name", x: memory.x, y: 22 }, "memory"),
      s("text", { class: "name", x: left, y: 22 }, "chip"),
      s("line", { class: "way", x1: from, x2: left - 4, y1: at, y2: at }), slabs, stack, cargo,
      label(0, "its row of the table"), label(boxes + 1, "the vocabulary"),
      label(Math.ceil(boxes / 2), `${one.layers} layers`),
      s("circle", { class: "token", cx: left - 10, cy: place, r: 6 })));
  }

  const pace = player({ seconds: 9, label: "The token's way", rest: 1,
    stops: Array.from({ length: 11 }, (_, i) => i / 10),
    format: (now) => `${Math.round(100 * now)} % of the time`, draw: (now) => { t = now; draw(); } });
  const pick = choice({ label: "Model and chip", value: one.key, options: cases.map(({ key, label }) => [key, label]),
    onchange: (key) => { one = cases.find((each) => each.key === key); draw(); } });
  el.append(h("style", {}, STYLE), h("div", { class: "sink" }, pick.node, board, caption, pace.node));
  onWidth(board, (wide) => { width = wide; draw(); });
}
