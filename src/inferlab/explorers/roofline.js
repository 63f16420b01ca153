// The roofline: what a chip lets work of any intensity do. One piece of work climbs by itself, a
// matrix that meets ever more rows at once; the reader moves the others, and draws one of their own.

import { byteRate, flopRate, number, percent, whole } from "./lib/format.js";
import { OWN, chipOptions, formatOptions, ownChip } from "./lib/chips.js";
import { field, pick, slider } from "./lib/controls.js";
import { h, onWidth, picture, replace, s } from "./lib/dom.js";
import { decodeAttention, matmul, vectorAdd } from "./lib/kernels.js";
import { player } from "./lib/player.js";
import { ROOFLINE_CSS, roofFrame } from "./lib/roofline.js";
import { arithmetic, place } from "./lib/theory.js";

const [LOW, HIGH] = [0.05, 1e4]; // FLOP/B
const LIST = 1 << 24; // numbers in each list that is added
const [CONTEXT, HEAD] = [4096, 128]; // keys that a token looks at, and their length
const SIDE = 8192; // of the matrix that meets rows
const MOST_ROWS = 12; // as a power of two
const HEADS = [1, 2, 4, 8, 16];
const SIDES = Array.from({ length: 11 }, (_, i) => 2 ** (i + 4));
const OWN_WORK = Array.from({ length: 61 }, (_, i) => Number((10 ** (i / 15 - 1)).toPrecision(2)));

const DRAG = ": drag it in the picture";
const rowsAt = (t) => Math.round(2 ** (MOST_ROWS * t));
const rowsOf = (count) => (count === 1 ? "1 row" : `${whole(count)} rows`);

// Every kernel's place under the roof, from the state of the controls.
export function calculate(catalog, state) {
  const chip = state.chip === OWN ? ownChip(state) : catalog.chips[state.chip];
  const { dtype, rows, heads, side, own } = state;
  const work = {
    add: vectorAdd(catalog, LIST, dtype),
    attention: decodeAttention(catalog, CONTEXT, heads, HEAD, dtype),
    matrix: matmul(catalog, rows, SIDE, SIDE, dtype),
    product: matmul(catalog, side, side, side, dtype),
    own: { flops: own, bytes: 1 },
  };
  const peak = chip.flops[arithmetic(catalog, chip, dtype)];
  return {
    chip, dtype, peak, bandwidth: chip.bandwidth, ridge: peak / chip.bandwidth,
    kernels: Object.fromEntries(Object.entries(work).map(
      ([key, each]) => [key, place(catalog, each, chip, dtype)])),
    others: otherRoofs(chip, peak),
  };
}

// The flat roofs of the chip's other formats, those of equal height under one name.
function otherRoofs(chip, peak) {
  const found = new Map();
  for (const [name, each] of Object.entries(chip.flops)) {
    if (name.startsWith("fp64") || Math.abs(each / peak - 1) < 0.02) continue;
    const same = [...found.keys()].find((other) => Math.abs(each / other - 1) < 0.02);
    found.set(same ?? each, [...(found.get(same) ?? []), name]);
  }
  return [...found].map(([each, names]) => ({ peak: each, name: names.join(", ") }));
}

export function render({ model, el }) {
  const catalog = model.get("catalog");
  const state = { ...model.get("start") };
  let [width, plot] = [0, null];
  const change = (values) => {
    Object.assign(state, values);
    update();
  };

  const controls = {
    chip: pick({ label: "Chip", options: chipOptions(catalog), value: state.chip,
      onchange: (chip) => change({ chip }) }),
    dtype: pick({ label: "Format", options: [], value: state.dtype,
      onchange: (dtype) => change({ dtype }) }),
    heads: slider({ label: "Query heads that share its keys", values: HEADS, value: state.heads,
      format: whole, onchange: (heads) => change({ heads }) }),
    side: slider({ label: "Side of the matrices", values: SIDES, value: state.side, format: whole,
      onchange: (side) => change({ side }) }),
    own: slider({ label: "Operations per byte", values: OWN_WORK, value: state.own, format: number,
      onchange: (own) => change({ own }) }),
    ownBandwidth: field({ label: "Your bytes", value: state.ownBandwidth, unit: "GB/s", min: 0.1,
      max: 1e6, onchange: (ownBandwidth) => change({ ownBandwidth }) }),
    ownSpeed: field({ label: "Your arithmetic", value: state.ownSpeed, unit: "TFLOP/s", min: 0.001,
      max: 1e6, onchange: (ownSpeed) => change({ ownSpeed }) }),
  };
  const yours = h("div", { class: "controls" }, controls.ownBandwidth.node, controls.ownSpeed.node);
  const [ridge, found, canvas] = [h("span"), h("p", { class: "found" }), h("div", { class: "canvas" })];
  const kernels = [
    ["matrix", "A matrix meets rows", "matrix", null],
    ["product", "A square matrix product", "product", controls.side],
    ["attention", "One token's attention", "attention", controls.heads],
    ["add", "Two lists are added", "lists", null],
    ["own", "Your own work", "yours", controls.own],
  ].map(([key, title, short, control]) => {
    const [reading, glyph] = [h("p", { class: "reading" }), h("i", { class: `glyph ${key}` })];
    return { key, title, short, reading, glyph,
      node: h("li", {}, h("p", { class: "title" }, glyph, title, key === "own" ? DRAG : ""), reading, control?.node ?? null) };
  });

  function update() {
    const chip = state.chip === OWN ? ownChip(state) : catalog.chips[state.chip];
    if (!arithmetic(catalog, chip, state.dtype)) state.dtype = chip.default_dtype;
    controls.dtype.offer(formatOptions(catalog, chip));
    controls.dtype.set(state.dtype);
    yours.hidden = state.chip !== OWN;
    const answer = calculate(catalog, state);
    replace(ridge, " It does ", h("b", { class: "compute" }, flopRate(answer.peak)), " and moves ",
      h("b", { class: "bytes" }, byteRate(answer.bandwidth)), ", so its ridge is at ",
      h("b", {}, `${number(answer.ridge, 4)}\u00a0FLOP/B`), ".");
    const { matrix } = answer.kernels;
    replace(found, h("b", {}, `${rowsOf(state.rows)}: ${number(matrix.intensity)}\u00a0FLOP/B. `),
      matrix.bound === "memory"
        ? ["The matrix is still on its way while the multipliers wait; ",
          h("b", { class: "compute" }, `${percent(matrix.attainable / answer.peak)} busy`), "."]
        : ["The multipliers are busy, and the ", h("b", { class: "bytes" }, "bus waits"), ": it needs ",
          `${percent(answer.ridge / matrix.intensity)} of the time.`]);
    for (const { key, reading, glyph } of kernels) {
      const placed = answer.kernels[key];
      const compute = placed.bound === "compute";
      glyph.classList.toggle("of-compute", compute);
      replace(reading, `${number(placed.intensity)}\u00a0FLOP/B, waits for `,
        h("b", { class: compute ? "compute" : "bytes" }, compute ? "arithmetic" : "bytes"),
        compute ? "" : `: ${percent(placed.attainable / answer.peak)} of the peak`);
    }
    if (plot) plot.show(answer);
  }

  const film = player({
    seconds: 12,
    label: "Rows that the matrix meets at once",
    stops: Array.from({ length: MOST_ROWS + 1 }, (_, i) => i / MOST_ROWS),
    format: (t) => rowsOf(rowsAt(t)),
    draw: (t) => change({ rows: rowsAt(t) }),
  });
  el.classList.add("roofline", "roofs");
  el.append(h("style", {}, ROOFLINE_CSS, CSS),
    h("p", { class: "sentence" }, "On ", controls.chip.node, " in ", controls.dtype.node, ".", ridge),
    yours, canvas,
    h("p", { class: "drag" }, "Rows that the matrix meets at once:"), film.node, found,
    h("ul", { class: "kernels" }, kernels.map(({ node }) => node)));
  onWidth(canvas, (now) => {
    width = now;
    plot = drawing(width, kernels, (own) => {
      change({ own });
      controls.own.set(own);
    });
    replace(canvas, plot.node);
    update();
  });
}

// The picture, laid out for one width. `draw(own)` is told where the reader puts their own work.
function drawing(width, kernels, draw) {
  const frame = roofFrame(width, [LOW, HIGH]);
  const marks = Object.fromEntries(kernels.map(({ key, short }) => {
    const big = key === "matrix";
    const glyph = key === "own"
      ? [s("circle", { class: "ring", r: 8 })]
      : [s("rect", { class: "glyph tick", x: -2, y: big ? -13 : -9, width: 4, height: big ? 26 : 18, rx: 1 }),
        s("rect", { class: "glyph square", x: big ? -9 : -6, y: big ? -9 : -6, width: big ? 18 : 12,
          height: big ? 18 : 12, rx: 2 })];
    const text = s("text", {}, short);
    const leader = s("line", { class: "leader" });
    return [key, { short, text, leader, node: s("g", { class: `mark ${key}` }, glyph) }];
  }));
  const all = Object.values(marks);
  const node = picture(width, frame.height, "", frame.layers, all.map(({ leader }) => leader),
    all.map(({ text }) => s("g", { class: "label" }, text)), all.map(({ node: mark }) => mark).reverse());

  // A finger or a mouse anywhere in the picture takes the reader's own work along.
  const follow = (event) => {
    const box = node.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    draw(Number(Math.min(HIGH, Math.max(0.1, frame.x.invert(at))).toPrecision(2)));
  };
  node.addEventListener("pointerdown", (event) => {
    node.setPointerCapture(event.pointerId);
    marks.own.node.classList.add("held");
    follow(event);
  });
  node.addEventListener("pointermove", (event) => {
    if (node.hasPointerCapture(event.pointerId)) follow(event);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    node.addEventListener(end, () => marks.own.node.classList.remove("held"));
  }

  return { node, show({ dtype, peak, bandwidth, ridge, kernels: placed, others }) {
    const { floor, at } = frame.scale(Math.max(peak, ...others.map((other) => other.peak)));
    const stand = (key) => at(placed[key].intensity, placed[key].attainable);
    frame.draw({ peak, bandwidth, floor, at, others, label: dtype, taken: Object.keys(marks).map(stand) });
    for (const [key, { node: mark }] of Object.entries(marks)) {
      const [mx, my] = stand(key);
      mark.style.transform = `translate(${mx}px, ${my}px)`;
      mark.classList.toggle("waits-for-bytes", placed[key].bound === "memory");
    }
    label(marks, stand, frame, others.map((other) => [other.name, at(HIGH, other.peak)[1]]));
    const where = kernels.map(({ key, title }) => `${title}: ${number(placed[key].intensity)}`);
    node.setAttribute("aria-label", `Roofline: ${flopRate(peak)} and a ridge at ${number(ridge, 4)} FLOP/B. `
      + `Operations per byte: ${where.join("; ")}.`);
  } };
}

// Names stand under the roof, each below its mark and clear of those already there.
function label(marks, stand, { left, right, bottom }, roofs) {
  const boxes = roofs.map(([name, y]) => ({ x: right - 7 * name.length, y: y - 4, wide: 7 * name.length }));
  const places = Object.entries(marks).map(([key, mark]) => [mark, stand(key)]).sort(([, [a]], [, [b]]) => a - b);
  for (const [{ short, text, leader }, [mx, my]] of places) {
    const wide = 8.2 * short.length;
    const x = Math.min(right - wide, Math.max(left + 4, mx + 8));
    let y = my + 24;
    const clashes = () => boxes.some((box) => x < box.x + box.wide + 6 && box.x < x + wide + 6
      && Math.abs(y - box.y) < 16);
    while (clashes() && y < bottom - 24) y += 4;
    boxes.push({ x, y, wide });
    text.setAttribute("x", x);
    text.setAttribute("y", y);
    for (const [name, value] of Object.entries({ x1: mx, y1: my, x2: Math.max(mx, x + 2), y2: y - 10 })) {
      leader.setAttribute(name, value);
    }
  }
}

const CSS = `
.roofs .sentence { margin: 0 0 0.6rem; font-size: 1.15rem; line-height: 1.7; }
.roofs .sentence b { font-weight: 650; white-space: nowrap; }
.roofs svg { touch-action: pan-y; cursor: ew-resize; user-select: none; -webkit-user-select: none; }
.roofs .tick { visibility: hidden; }
.roofs .axis .tick, .roofs .ghost .tick { visibility: visible; }
.roofs .waits-for-bytes .tick { visibility: visible; }
.roofs .waits-for-bytes .square { visibility: hidden; }
.roofs .ring { fill: var(--paper); stroke: var(--compute); stroke-width: 3; }
.roofs .waits-for-bytes .ring { stroke: var(--bytes); }
.roofs .held { transition: none; }
.roofs .leader { stroke: var(--soft); stroke-width: 1; opacity: 0.5; }
.roofs .label text { font-weight: 600; paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
.drag { margin: 0.6rem 0 0; font-size: 0.875rem; color: var(--soft); }
.found { margin: 0.6rem 0 0; min-height: 3em; }
.found b { font-weight: 650; }
.kernels { align-items: start; list-style: none; margin: 0.8rem 0 0; padding: 0; display: grid; gap: 0.9rem 1.8rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
.kernels li { border-top: 1px solid var(--rule); padding-top: 0.55rem; min-width: 0; }
.kernels p { margin: 0; }
.kernels .title { font-weight: 650; }
.kernels .reading { font-size: 0.875rem; color: var(--soft); }
.kernels .reading b { font-weight: 650; }
.kernels i { display: inline-block; width: 4px; height: 0.95em; margin: 0 0.7em 0 4px; vertical-align: -0.1em;
  border-radius: 1px; background: var(--bytes); }
.kernels i.of-compute { width: 0.8em; height: 0.8em; margin: 0 calc(0.7em - 4px) 0 0; background: var(--compute); }
.kernels i.own, .kernels i.own.of-compute { width: 0.85em; height: 0.85em; margin: 0 calc(0.7em - 4px) 0 0; border-radius: 50%;
  background: none; border: 3px solid var(--bytes); box-sizing: border-box; }
.kernels i.own.of-compute { border-color: var(--compute); }
.kernels .control { margin-top: 0.3rem; }
`;
