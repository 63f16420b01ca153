// Where do 30 ms go? One token of decode: its arithmetic and its bytes, each at its own speed.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { bytes, byteRate, flops, flopRate, number, percent, whole } from "./lib/format.js";
import { linear, axisX } from "./lib/plot.js";
import { choice, select } from "./lib/controls.js";
import { player } from "./lib/player.js";

const ms = (time) => `${number(1e3 * time)}\u00a0ms`; // one unit, so that the two can be compared

const STYLE = `
.thirty svg { margin: 0.8rem 0 0; }
.thirty .name { font-weight: 650; }
.thirty .box { fill: var(--panel); stroke: var(--soft); stroke-width: 1.2; }
.thirty .lane { stroke: currentColor; stroke-width: 2; opacity: 0.35; }
.thirty .idle { fill: var(--wait); opacity: 0.28; }
.thirty .left { opacity: 0.2; }
.thirty .seat { fill: none; stroke: var(--compute); stroke-width: 1; opacity: 0.55; }
.thirty tspan.soft { fill: var(--soft); }
.thirty .waiting { font-size: 12px; }
.caption { margin: 0.6rem 0 0; min-height: 3em; }
.below { display: flex; flex-wrap: wrap; gap: 0.4rem 1.5rem; align-items: center; }
.below .player { flex: 1 1 15rem; } .below .choice { display: flex; gap: 0.6rem; align-items: center; }
.below .choice > div { flex-wrap: nowrap; }
@container (max-width: 480px) { .caption { min-height: 6em; } }
`;

export function render({ model, el }) {
  const cases = model.get("cases"); // [{ key, model, chip, dtype, peak, bandwidth, flops, bytes, … }]
  const slabs = 24; // the model's bytes are drawn as so many packets
  let one = cases.find((c) => c.key === model.get("start")) ?? cases[0];
  let width = 0;
  let parts;
  let share = 0; // of the whole step

  const board = h("div");
  const caption = h("p", { class: "caption" });

  function build() {
    const step = Math.max(one.compute_s, one.memory_s);
    const right = width - 4;
    const narrow = width < 480;
    const middle = 50;
    const boxes = narrow ? 92 : 132;
    const memory = { x: 1, w: boxes };
    const chip = { x: right - boxes, w: boxes };
    const from = memory.x + memory.w;
    const bus = linear([0, 1], [from, chip.x]);
    const x = linear([0, step], [2, right]);

    // The bus: packets leave memory one after another and the chip uses each as it arrives.
    const label = (where, first, second, colour) => [
      s("text", { class: "name", x: where.x + where.w / 2, y: 26, "text-anchor": "middle" }, first),
      s("text", { class: `${colour} name`, x: where.x + where.w / 2, y: 85, "text-anchor": "middle" }, second)];
    const tall = 28;
    const column = (memory.w - 20) / slabs;
    const stock = Array.from({ length: slabs }, (_, i) => s("rect", { class: "bytes", y: 38,
      x: memory.x + 10 + i * column, width: column - 1, height: tall }));
    const cargo = Array.from({ length: 5 }, () => s("rect", { class: "bytes", y: middle - 7, width: 16, height: 14, rx: 2 }));
    const core = s("rect", { class: "compute", x: chip.x + 10, y: 38, width: chip.w - 20, height: tall, rx: 2 });
    const lanes = [-12, 0, 12].map((dy) => s("line", { class: "lane bytes", x1: from, x2: chip.x, y1: middle + dy, y2: middle + dy }));
    const clip = s("clipPath", { id: "bus" }, s("rect", { x: from, y: 0, width: chip.x - from, height: 2 * middle }));
    const machine = [clip,
      s("rect", { class: "box", x: memory.x, y: 6, width: memory.w, height: 88, rx: 6 }),
      s("rect", { class: "box", x: chip.x, y: 6, width: chip.w, height: 88, rx: 6 }),
      stock.map((slab) => { const gone = slab.cloneNode(); gone.classList.add("left"); return gone; }),
      stock, lanes, s("g", { "clip-path": "url(#bus)" }, cargo), core,
      label(memory, "memory", bytes(one.bytes), "bytes"), label(chip, "chip", flops(one.flops), "compute"),
      s("text", { class: "tick", x: bus(0.5), y: middle - 20, "text-anchor": "middle" }, byteRate(one.bandwidth))];

    // Two meters on one clock.
    const rows = { compute: 2 * middle + 26, bytes: 2 * middle + 78 };
    const bar = 20;
    const meter = (key, length, title) => {
      const fill = s("rect", { class: key, x: x(0), y: rows[key], height: bar, width: 0 });
      return { fill, length, node: [
        s("rect", { class: `${key} left`, x: x(0), y: rows[key], height: bar, width: Math.max(2, x(length) - x(0)) }),
        fill, s("text", { x: x(0), y: rows[key] - 7 }, title)] };
    };
    const says = (key, what, rate, time) => [
      s("tspan", { class: `${key} name` }, ms(time)),
      s("tspan", { class: "soft" }, narrow ? `  = ${what} ÷ ${rate}` : `  to do it:  ${what} ÷ ${rate}`)];
    const compute = meter("compute", one.compute_s, says("compute", flops(one.flops), flopRate(one.peak), one.compute_s));
    const memoryBar = meter("bytes", one.memory_s, says("bytes", bytes(one.bytes), byteRate(one.bandwidth), one.memory_s));
    const idle = s("rect", { class: "idle", y: rows.compute, height: bar, width: 0 });
    const waiting = s("text", { class: "waiting", x: x(one.compute_s) + 10, y: rows.compute + 14 }, "waiting for bytes");
    const floor = rows.bytes + bar;
    const clock = linear([0, step * 1e3], [2, right]);
    const ticks = clock.ticks(narrow ? 4 : 8);
    const axis = axisX(clock, floor, { ticks, top: rows.compute,
      format: (t) => (t === ticks.at(-1) ? ms(t / 1e3) : number(t)) });

    // The tokens whose arithmetic would have fitted into the same time.
    const seats = Math.floor(step / one.compute_s);
    const top = floor + 56;
    const across = Math.min(seats, Math.floor((right - 2) / (narrow ? 11 : 14)));
    const pitch = Math.min(14, (right - 2) / across);
    const place = (i) => ({ x: 2 + (i % across) * pitch, y: top + Math.floor(i / across) * pitch, width: pitch - 4, height: pitch - 4 });
    const room = Array.from({ length: seats }, (_, i) => s("rect", { class: i ? "seat" : "compute", ...place(i) }));
    const heading = s("text", { x: 2, y: top - 10 },
      s("tspan", { class: "compute name" }, whole(seats)),
      s("tspan", { class: "soft" }, narrow
        ? "  tokens of arithmetic would fit; you get 1"
        : "  tokens whose arithmetic would fit into this time; you get the filled one"));
    const height = top + Math.ceil(seats / across) * pitch + 2;
    parts = { step, x, bus, stock, cargo, core, compute, memoryBar, idle, waiting, room };
    replace(board, picture(width, height, `One token of ${one.model} on ${one.chip}`,
      machine, axis, compute.node, idle, waiting, memoryBar.node, room, heading));
    paint();
  }

  function paint() {
    const { step, x, bus, stock, cargo, core, compute, memoryBar, idle, waiting, room } = parts;
    const now = share * step;
    for (const { fill, length } of [compute, memoryBar]) {
      fill.setAttribute("width", now > 0 ? Math.max(2, x(Math.min(now, length)) - x(0)) : 0);
    }
    const waited = Math.max(0, now - one.compute_s);
    idle.setAttribute("x", Math.max(x(one.compute_s), x(0) + 2));
    idle.setAttribute("width", waited ? Math.max(0, x(now) - Math.max(x(one.compute_s), x(0) + 2)) : 0);
    waiting.setAttribute("visibility", x(now) > x(one.compute_s) + 130 ? "visible" : "hidden");
    const moved = Math.min(1, now / one.memory_s);
    stock.forEach((slab, i) => slab.setAttribute("visibility", i >= stock.length * (1 - moved) ? "hidden" : "visible"));
    const moving = moved > 0 && moved < 1;
    cargo.forEach((packet, i) => {
      const way = (moved * stock.length * 1.5 + i / cargo.length) % 1;
      packet.setAttribute("x", bus(way * 1.15) - 16);
      packet.setAttribute("visibility", moving ? "visible" : "hidden");
    });
    // The core glows for the share of time that its arithmetic takes.
    core.setAttribute("opacity", moving ? 0.12 + 0.6 * (one.compute_s / step) : moved >= 1 ? 1 : 0.08);
    const fits = now / one.compute_s;
    room.forEach((seat, i) => { if (i) seat.setAttribute("visibility", i + 1 <= fits + 1e-6 ? "visible" : "hidden"); });
    caption.textContent = say(now);
  }

  function say(now) {
    if (now < one.compute_s) return "Arithmetic and bytes start together.";
    if (share < 1) {
      return `After ${ms(now)}: the arithmetic would have been over at ${ms(one.compute_s)}, `
        + `but only ${percent(Math.min(1, now / one.memory_s))} of the bytes have arrived.`;
    }
    const home = one.fits === false ? " If they fitted into its memory, which they do not." : "";
    return `${one.model} in ${one.dtype} on ${one.chip}: the arithmetic needs ${percent(one.compute_s / parts.step)} `
      + `of the time that the bytes need. The slower meter sets the pace, ${number(1 / parts.step)} tokens `
      + `a second at the very best.${home}`;
  }

  const list = cases.map((c) => [c.key, c.label]);
  const pick = (key) => {
    one = cases.find((c) => c.key === key);
    name();
    if (width) build();
  };
  const chips = list.length > 4 ? select({ label: "Model and chip", options: list, value: one.key, onchange: pick })
    : choice({ label: "Model and chip", options: list, value: one.key, onchange: pick });
  // Each case has its own two speeds, as many times slower than the chip: they are named afresh.
  const pace = choice({ label: "Slow motion", value: "0", options: [["0", ""], ["1", ""]] });
  const name = () => pace.node.querySelectorAll("div label").forEach((label, i) => {
    label.textContent = `${whole(one.paces[i])}×`;
  });
  name();
  const film = player({
    seconds: () => Math.max(one.compute_s, one.memory_s) * one.paces[pace.value],
    label: "Time within the step",
    stops: Array.from({ length: 21 }, (_, i) => i / 20),
    format: (t) => `${ms(t * Math.max(one.compute_s, one.memory_s))} into the step`,
    draw(t) {
      share = t;
      if (parts) paint();
    },
  });
  el.classList.add("thirty");
  el.append(h("style", {}, STYLE), chips.node, board, caption,
    h("div", { class: "below" }, film.node, pace.node));
  onWidth(board, (now) => {
    width = now;
    build();
  });
}
