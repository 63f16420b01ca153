// Who pays for the trip? A pass of many tokens and a pass of one fetch the same weights.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { flops, number, percent, whole } from "./lib/format.js";
import { linear, axisX } from "./lib/plot.js";
import { choice, slider } from "./lib/controls.js";
import { player } from "./lib/player.js";

const ms = (time) => `${number(1e3 * time)}\u00a0ms`;
const tokens = (n) => (n === 1 ? "1 token" : `${whole(n)} tokens`);

const STYLE = `
.trip .sum { margin: 0.7rem 0 0; }
.trip .sum b { font-weight: 650; }
.trip .name { font-weight: 650; }
.trip tspan.soft { fill: var(--soft); }
.trip .box { fill: var(--panel); stroke: var(--soft); stroke-width: 1.2; }
.trip .lane { stroke: currentColor; stroke-width: 2; opacity: 0.35; }
.trip .left { opacity: 0.2; }
.trip .mark { stroke: var(--ink); stroke-dasharray: 3 3; }
.caption { margin: 0.6rem 0 0; min-height: 3em; }
@container (max-width: 480px) { .caption { min-height: 6em; } }
`;

export function render({ model, el }) {
  const formats = model.get("formats"); // [{ key, label, bytes_per_weight, ridge, passes: [...] }]
  const layers = model.get("layers");
  const stops = formats[0].passes.map((pass) => pass.tokens);
  let format = formats[0];
  let width = 0;
  let parts;
  let share = 0; // of the larger pass
  const passOf = (n) => format.passes.find((pass) => pass.tokens === n);
  const slow = model.get("slow");

  const sum = h("p", { class: "sum" });
  const board = h("div");
  const caption = h("p", { class: "caption" });

  const many = slider({ label: "Tokens in the pass", values: stops, value: model.get("start"),
    format: whole, onchange: rebuild });
  const weights = choice({ label: "Weights stored in", value: format.key,
    options: formats.map((each) => [each.key, each.label]),
    onchange(key) {
      format = formats.find((each) => each.key === key);
      rebuild();
    } });

  // One row: memory, bus, and the tokens of the pass, as ticks that close up into a block.
  function row(y, title) {
    const narrow = width < 480;
    const high = 74;
    const memory = narrow ? 62 : 96;
    const block = { x: Math.round(width * (narrow ? 0.5 : 0.56)), y: y + 14 };
    block.w = width - block.x - 3;
    const bus = linear([0, 1], [memory, block.x - 8]);
    const id = `y${y}`;
    const slabs = Math.min(layers, narrow ? 10 : 16);
    const pitch = (memory - 20) / slabs;
    const stock = Array.from({ length: slabs }, (_, i) => s("rect", { class: "bytes",
      x: 10 + i * pitch, y: y + 44, width: pitch - 1, height: 32 }));
    const cargo = Array.from({ length: 6 }, () => s("rect", { class: "bytes", y: y + 44, width: 10, height: 14, rx: 2 }));
    const lanes = [-12, 0, 12].map((dy) => s("line", { class: "lane bytes", x1: memory, x2: block.x - 8,
      y1: y + 51 + dy, y2: y + 51 + dy }));
    const kept = s("path", { class: "compute" });
    const ghost = s("path", { class: "compute left" });
    const done = s("path", { class: "compute", "clip-path": `url(#done${id})` });
    const level = s("rect", { x: 0, width, y: block.y + high, height: 0 });
    const text = s("text", { x: 1, y: y + 4 }, title);
    const busy = s("text", { class: "tick", x: bus(0.5), y: y + 82, "text-anchor": "middle" });
    const node = [
      s("clipPath", { id: `bus${id}` }, s("rect", { x: memory, y, width: block.x - 8 - memory, height: 100 })),
      s("clipPath", { id: `done${id}` }, level),
      s("rect", { class: "box", x: 1, y: y + 14, width: memory - 1, height: high, rx: 6 }),
      s("text", { class: "tick", x: memory / 2, y: y + 34, "text-anchor": "middle" }, narrow ? "weights" : `${layers} layers`),
      stock.map((slab) => { const gone = slab.cloneNode(); gone.classList.add("left"); return gone; }), stock,
      lanes, s("g", { "clip-path": `url(#bus${id})` }, cargo), kept, ghost, done, text, busy];
    return {
      node,
      // `count` tokens ride in this pass; `before` ones stand there from earlier passes.
      tokens(count, before = 0) {
        const columns = 64;
        const rows = Math.max(1, Math.ceil((before + count) / columns));
        const w = block.w / columns;
        const tall = high / rows;
        const gap = Math.min(1.2, w * 0.3);
        const cell = (i) => `M${(block.x + Math.floor(i / rows) * w).toFixed(2)} `
          + `${(block.y + (i % rows) * tall).toFixed(2)}h${(w - gap).toFixed(2)}`
          + `v${(tall - (rows > 1 ? gap : 0)).toFixed(2)}h${(gap - w).toFixed(2)}z`;
        const cells = Array.from({ length: before + count }, (_, i) => cell(i));
        kept.setAttribute("d", cells.slice(0, before).join(""));
        for (const path of [ghost, done]) path.setAttribute("d", cells.slice(before).join(""));
      },
      // `progress` through the layers; the bus carries for `load` of the time.
      paint(progress, phase, load) {
        level.setAttribute("y", block.y + high * (1 - progress));
        level.setAttribute("height", high * progress);
        stock.forEach((slab, i) => slab.setAttribute("visibility", i >= slabs * (1 - progress) - 1e-9 ? "hidden" : "visible"));
        const flight = Math.max(1, Math.round(cargo.length * load));
        const moving = progress > 0 && progress < 1;
        cargo.forEach((packet, i) => {
          packet.setAttribute("x", bus(((phase + i / flight) % 1) * 1.1) - 10);
          packet.setAttribute("visibility", moving && i < flight ? "visible" : "hidden");
        });
      },
      say(text) { busy.textContent = text; },
    };
  }

  function rebuild() {
    if (width) build();
  }

  function build() {
    const pass = passOf(many.value);
    const lone = passOf(1);
    const narrow = width < 480;
    const crowd = row(16, [s("tspan", { class: "name" }, "Prefill"),
      s("tspan", { class: "soft" }, `  ${tokens(pass.tokens)}, one trip of the weights`)]);
    const single = row(124, [s("tspan", { class: "name" }, "Decode"),
      s("tspan", { class: "soft" }, "  1 token, one trip of the weights")]);
    crowd.tokens(pass.tokens);
    const load = (one) => [Math.min(1, one.memory_s / one.seconds), Math.min(1, one.compute_s / one.seconds)];
    for (const [each, one] of [[crowd, pass], [single, lone]]) {
      const [carrying, working] = load(one);
      each.say(narrow ? `bus ${percent(carrying)}` : `bus busy ${percent(carrying)}, arithmetic ${percent(working)}`);
    }

    const last = format.passes.at(-1);
    const longest = Math.max(...formats.map((each) => Math.max(each.passes.at(-1).compute_s, each.passes.at(-1).memory_s)));
    const x = linear([0, 1e3 * longest], [2, width - 4]);
    const bars = { compute: 250, bytes: 296 };
    const clock = x.ticks(narrow ? 4 : 8);
    const bar = (key, time, what) => [
      s("rect", { class: key, x: x(0), y: bars[key], width: Math.max(1.5, x(1e3 * time) - x(0)), height: 18 }),
      s("text", { x: x(0), y: bars[key] - 7 }, s("tspan", { class: `${key} name` }, ms(time)), s("tspan", { class: "soft" }, what))];
    const axis = axisX(x, bars.bytes + 18, { ticks: clock, top: bars.compute,
      format: (t) => (t === clock.at(-1) ? ms(t / 1e3) : number(t)) });
    const labels = axis.querySelectorAll("text"); // those at the edges stay inside
    labels[0].setAttribute("text-anchor", "start");
    if (x(clock.at(-1)) > width - 24) labels[labels.length - 1].setAttribute("text-anchor", "end");
    const level = x(1e3 * pass.memory_s);
    parts = { pass, lone, crowd, single };
    replace(board, picture(width, bars.bytes + 40, `A pass of ${tokens(pass.tokens)} beside a pass of one`,
      crowd.node, single.node, axis,
      bar("compute", pass.compute_s, `  of arithmetic: ${flops(pass.flops)}`),
      bar("bytes", pass.memory_s, `  of bytes${narrow ? "" : ": the weights, whoever rides along"}`),
      s("line", { class: "mark", x1: level, x2: level, y1: bars.compute - 2, y2: bars.compute + 22 })));
    const intensity = (2 * pass.tokens) / format.bytes_per_weight;
    replace(sum, h("b", { class: "compute" }, `${tokens(pass.tokens)} × 2 FLOP`), " ÷ ",
      h("b", { class: "bytes" }, `${number(format.bytes_per_weight)} bytes per weight`), " = ",
      h("b", {}, `${number(intensity)} FLOP per byte`),
      ` of weights. ${model.get("chip")} turns over at ${number(format.ridge)}: `
      + (intensity < format.ridge ? "the bytes take longer." : "the arithmetic takes longer."));
    paint();
  }

  function paint() {
    const { pass, lone, crowd, single } = parts;
    const now = share * pass.seconds;
    const phase = (time) => (time / lone.seconds) * 9;
    crowd.paint(share, phase(now), pass.memory_s / pass.seconds);
    const trips = now / lone.seconds;
    const finished = Math.floor(trips + 1e-9);
    const over = share >= 1; // then decode stands still too, between two of its passes
    single.tokens(over ? 0 : 1, finished);
    single.paint(over ? 1 : trips - finished, phase(now), lone.memory_s / lone.seconds);
    const alone = ms(lone.seconds);
    caption.textContent = share < 1
      ? `${ms(now)}: layer ${Math.min(layers, 1 + Math.floor(share * layers))} of ${layers} meets ${tokens(pass.tokens)}. `
        + `Decode has finished ${tokens(finished)}.`
      : `The pass of ${tokens(pass.tokens)} took ${ms(pass.seconds)}, ${ms(pass.seconds / pass.tokens)} a token. `
        + `A pass of one takes ${alone}, and all of it is that token's.`;
  }

  const film = player({
    seconds: () => passOf(many.value).seconds * slow,
    label: "Time within the pass",
    stops: Array.from({ length: 21 }, (_, i) => i / 20),
    format: (t) => `${ms(t * passOf(many.value).seconds)} into the pass`,
    draw(t) {
      share = t;
      if (parts) paint();
    },
  });
  el.classList.add("trip");
  el.append(h("style", {}, STYLE), h("div", { class: "controls" }, many.node, formats.length > 1 ? weights.node : null),
    sum, board, caption, film.node);
  onWidth(board, (now) => {
    width = now;
    build();
  });
}
