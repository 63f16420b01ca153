// The Calculator: one model on some chips, and what limits it. Everything shown is worked out by
// lib/theory.js from the catalogs in `model`; this file is only about showing it.

import { bytes, byteRate, dollars, flopRate, flops, number, seconds, whole } from "./lib/format.js";
import { field, pick, slider } from "./lib/controls.js";
import { calm, h, onWidth, picture, replace, s } from "./lib/dom.js";
import { axisX, axisY, linear, log } from "./lib/plot.js";
import { activationFormat, arithmetic, bytesPerElement, footprint, kvBytes, report,
  sequencesThatFit } from "./lib/theory.js";

const TOKENS = [1, 16, 64, 128, 256, 512, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 100000, 128000,
  256000, 512000, 1000000];
const USERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const CHIPS = [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 72];
const OWN = "own";
const KV_FORMATS = ["fp8", "int8", "q8_0", "q4_0"];
const MATRICES = ["projections", "ffn", "logits"];

export function render({ model, el }) {
  const given = model.get("catalog");
  const catalog = { ...given, chips: { ...given.chips, [OWN]: {} } };
  const state = { ...model.get("start"), ...(model.get("link") ? fromHash(catalog) : {}) };
  const change = (values) => {
    Object.assign(state, values);
    settle(catalog, state);
    update();
    if (model.get("link")) toHash(state, model.get("start"));
  };
  const views = [question, verdict, tiles, memory, roofline, timeline, equations, command].map(
    (view) => view(catalog, change, model));
  const update = () => {
    const answer = calculate(catalog, state);
    for (const view of views) view.show(answer);
  };
  el.append(h("style", {}, CSS), h("div", { class: "calculator" }, views.map((view) => view.node)));
  settle(catalog, state);
  update();
  // A link in the text beside it may carry a setting.
  if (model.get("link")) addEventListener("hashchange", () => {
    if (!location.hash.startsWith("#calculator?")) return;
    change({ ...model.get("start"), ...fromHash(catalog) });
    el.querySelector(".calculator").scrollIntoView({ behavior: calm() ? "instant" : "smooth" });
  });
}

// Everything that the views show, from the state of the controls.
export function calculate(catalog, state) {
  const shape = catalog.models[state.model];
  const chip = catalog.chips[state.chip];
  const { chips, dtype, kvDtype, prompt, context, batch, price } = state;
  const answer = report(catalog, state);
  const longest = Math.max(prompt, context);
  const kvFormat = kvDtype ?? activationFormat(catalog, dtype);
  const perHour = price * chips;
  return {
    ...answer,
    state, shape, chip, kvFormat, longest,
    peak: chip.flops[arithmetic(catalog, chip, dtype)] * chips,
    bandwidth: chip.bandwidth * chips,
    capacity: chip.memory_bytes === null ? null : chip.memory_bytes * chips,
    kv_bytes_per_user: kvBytes(catalog, shape, longest, kvFormat),
    footprint: footprint(catalog, shape, longest, batch, dtype, kvDtype),
    users: sequencesThatFit(catalog, shape, chip, longest, { dtype, kvDtype, chips }),
    ttft: answer.prefill.seconds,
    tpot: answer.decode.seconds,
    dollars_out: (perHour / 3600 / answer.decode.tokens_per_second) * 1e6,
    dollars_in: ((perHour / 3600) * answer.prefill.seconds / prompt) * 1e6,
  };
}

// The reader's own machine is three numbers of theirs; and a chip that has no units for the
// chosen format falls back to its own 16 bits.
function settle(catalog, state) {
  const speed = state.ownSpeed * 1e12;
  catalog.chips[OWN] = { name: "your machine", default_dtype: "bf16", memory_bytes: state.ownMemory * 1e9,
    bandwidth: state.ownBandwidth * 1e9, flops: { fp32: speed, bf16: speed, fp16: speed } };
  const chip = catalog.chips[state.chip];
  if (!arithmetic(catalog, chip, state.dtype)) state.dtype = chip.default_dtype;
}

// The address: only what differs from the start is written down.

function toHash(state, start) {
  const changed = Object.entries(state).filter(([key, value]) => value !== start[key]);
  const hash = changed.length ? `#calculator?${new URLSearchParams(changed.map(
    ([key, value]) => [key, value ?? ""]))}` : "#calculator";
  try {
    history.replaceState(history.state, "", hash);
  } catch { /* a sandboxed frame keeps its address */ }
}

function fromHash(catalog) {
  const [, query] = location.hash.split("#calculator?");
  const given = new URLSearchParams(query ?? "");
  const state = {};
  const known = { model: catalog.models, chip: catalog.chips, dtype: catalog.formats,
    kvDtype: { ...catalog.formats, "": null } };
  const counts = new Map([["chips", 1], ["prompt", 1], ["batch", 1], ["context", 0]]);
  const amounts = new Set(["price", "ownBandwidth", "ownSpeed", "ownMemory"]);
  for (const [key, value] of given) {
    if (Object.hasOwn(known, key) && Object.hasOwn(known[key], value)) state[key] = value || null;
    const least = counts.get(key) ?? (amounts.has(key) ? 0.001 : NaN);
    const amount = counts.has(key) ? Math.round(Number(value)) : Number(value);
    if (value !== "" && amount >= least && amount <= 1e7) state[key] = amount;
  }
  return state;
}

// The question: a sentence whose words open lists, and four sliders beneath it.

function question(catalog, change) {
  const shapes = Object.entries(catalog.models).sort(([, a], [, b]) => a.params - b.params);
  const size = (shape) => shape.params < 1e9 ? "Under 1 billion parameters"
    : shape.params < 10e9 ? "1 to 10 billion" : shape.params < 100e9 ? "10 to 100 billion"
      : "Over 100 billion";
  const kind = (chip) => /HBM/.test(chip.memory_type) ? "HBM: data-centre accelerators"
    : /GDDR/.test(chip.memory_type) ? "GDDR: cards" : "DDR: CPUs";
  const chips = Object.entries(catalog.chips).filter(([key]) => key !== OWN)
    .sort(([, a], [, b]) => kind(b).localeCompare(kind(a)) || b.year - a.year);
  const bits = (name) => `${name}: ${number(8 * bytesPerElement(catalog, name))} bits`;

  const controls = {
    model: pick({ label: "Model", onchange: (model) => change({ model }),
      options: shapes.map(([key, shape]) => [key, shape.name, size(shape)]) }),
    dtype: pick({ label: "Format of the weights", options: [],
      onchange: (dtype) => change({ dtype }) }),
    kvDtype: pick({ label: "Format of keys and values", options: [],
      onchange: (kvDtype) => change({ kvDtype: kvDtype || null }) }),
    chips: pick({ label: "Number of chips", options: CHIPS.map((n) => [n, String(n)]),
      onchange: (n) => change({ chips: Number(n) }) }),
    chip: pick({ label: "Chip", onchange: (chip) => change({ chip }),
      options: [[OWN, "Your machine: two numbers", "Yours", "your machine"],
        ...chips.map(([key, chip]) => [key, `${chip.name}, ${chip.year}`, kind(chip), chip.name])] }),
    prompt: slider({ label: "Prompt", values: TOKENS, value: 2000, format: tokens,
      // The cache holds the prompt until the reader says otherwise.
      onchange: (prompt) => change(last.context === last.prompt ? { prompt, context: prompt } : { prompt }) }),
    context: slider({ label: "Context, cached", values: [0, ...TOKENS], value: 2000,
      format: tokens, onchange: (context) => change({ context }) }),
    batch: slider({ label: "Users at once", values: USERS, value: 1, format: whole,
      onchange: (batch) => change({ batch }) }),
    price: field({ label: "Price of one chip", value: 2, unit: "$ an hour", step: 0.1, max: 1000,
      onchange: (price) => change({ price }) }),
    ownBandwidth: field({ label: "Your bytes", value: 1, unit: "GB/s", min: 0.1, max: 1e6,
      onchange: (ownBandwidth) => change({ ownBandwidth }) }),
    ownSpeed: field({ label: "Your arithmetic", value: 1, unit: "TFLOP/s", min: 0.001, max: 1e6,
      onchange: (ownSpeed) => change({ ownSpeed }) }),
    ownMemory: field({ label: "Your memory", value: 1, unit: "GB", min: 0.1, max: 1e6,
      onchange: (ownMemory) => change({ ownMemory }) }),
  };
  let last = {};
  const unbroken = (...parts) => h("span", { class: "unbroken" }, parts);
  const { model, dtype, kvDtype, chips: count, chip, prompt, context, batch, price } = controls;
  const own = h("div", { class: "controls own" }, controls.ownBandwidth.node, controls.ownSpeed.node,
    controls.ownMemory.node);
  const node = h("div", { class: "question" },
    h("p", { class: "sentence" }, "Run ", model.node, " with weights in ", dtype.node,
      " and its KV cache in ", unbroken(kvDtype.node, ","), " on ", unbroken(count.node, " × "), unbroken(chip.node, ".")),
    h("div", { class: "controls" }, prompt.node, context.node, batch.node, price.node), own);

  return { node, show({ state, chip }) {
    own.hidden = state.chip !== OWN;
    dtype.offer(Object.keys(catalog.formats)
      .filter((name) => name !== "fp64" && arithmetic(catalog, chip, name))
      .map((name) => [name, bits(name), null, name]));
    kvDtype.offer([["", activationFormat(catalog, state.dtype)], ...KV_FORMATS.map(
      (name) => [name, bits(name), null, name])]);
    if (!CHIPS.includes(state.chips)) {
      count.offer([...CHIPS, state.chips].sort((a, b) => a - b).map((n) => [n, String(n)]));
    }
    for (const [name, control] of Object.entries(controls)) {
      if (control.value === state[name]) continue; // leave what is being typed as it is
      control.set(state[name] ?? "");
    }
    last = { ...state };
  } };
}

const tokens = (count) => count === 0 ? "nothing yet" : `${whole(count)} token${count === 1 ? "" : "s"}`;
const users = (count) => `${whole(count)} user${count === 1 ? "" : "s"}`;

// The verdict: whether it fits, and if not, what one press would change.

function verdict(catalog, change) {
  const node = h("div", { class: "verdict", "aria-live": "polite", tabindex: -1 });
  // The button that was pressed goes away: hand the focus to what it changed.
  const press = (values) => () => {
    change(values);
    node.focus({ preventScroll: true });
  };
  return { node, show({ fits, state, shape, chip, capacity, footprint: need, weight_bytes, users: room, longest }) {
    const count = state.chips === 1 ? `one ${chip.name}` : `${state.chips} × ${chip.name}`;
    const beyond = longest > shape.max_context
      ? h("p", { class: "soft" }, `${shape.name} was made for ${whole(shape.max_context)} tokens; beyond them this is arithmetic only.`)
      : null;
    if (fits === null) {
      replace(node, h("p", {}, h("strong", {}, "Its memory is up to you. "), `It needs ${bytes(need)}.`), beyond);
    } else if (fits) {
      replace(node, h("p", {}, h("strong", {}, "It fits. "),
        `${bytes(need)} of ${bytes(capacity)} are taken; `,
        h("strong", {}, users(room)), ` with ${tokens(longest)} each would fill it.`), beyond);
    } else {
      const fixes = remedies(catalog, state, room);
      replace(node, h("p", {}, h("strong", {}, "It does not fit. "),
        weight_bytes > capacity
          ? `The weights alone take ${bytes(weight_bytes)}; ${count} holds ${bytes(capacity)}. `
          : `Weights and caches take ${bytes(need)}; ${count} holds ${bytes(capacity)}. `,
        "The speeds below are what the chip's two numbers would allow."),
      h("p", { class: "fixes" }, fixes.length ? "Make it fit: " : "", fixes.map(([label, values]) =>
        h("button", { type: "button", onclick: press(values) }, label))), beyond);
    }
  } };
}

// The nearest settings that fit: more chips, smaller weights, fewer users.
function remedies(catalog, state, room) {
  const shape = catalog.models[state.model];
  const chip = catalog.chips[state.chip];
  const longest = Math.max(state.prompt, state.context);
  const holds = (values) => {
    const { dtype, kvDtype, batch, chips } = { ...state, ...values };
    return footprint(catalog, shape, longest, batch, dtype, kvDtype) <= chip.memory_bytes * chips;
  };
  const more = CHIPS.find((chips) => chips > state.chips && holds({ chips }));
  const smaller = ["fp8", "q8_0", "q4_0"].find((dtype) => arithmetic(catalog, chip, dtype)
    && bytesPerElement(catalog, dtype) < bytesPerElement(catalog, state.dtype) && holds({ dtype }));
  const fewer = [...USERS].reverse().find((batch) => batch < state.batch && batch <= room);
  return [
    more && [`${more} chips`, { chips: more }],
    smaller && [`weights in ${smaller}`, { dtype: smaller }],
    fewer && [users(fewer), { batch: fewer }],
  ].filter(Boolean);
}

// The four answers.

function tiles() {
  const node = h("dl", { class: "tiles" });
  const tile = (name, value, unit, note, colour) => h("div", { class: colour },
    h("dt", {}, name), h("dd", { class: "value" }, value, h("small", {}, unit)), h("dd", { class: "note" }, note));
  const split = (text) => text.split("\u00a0");
  return { node, show({ state, ttft, tpot, prefill, decode, dollars_out, dollars_in }) {
    const colour = (bound) => (bound === "compute" ? "compute" : "bytes");
    replace(node,
      tile("Tokens per second", number(decode.tokens_per_second, 4), "",
        state.batch > 1 ? `at most; ${number(1 / tpot, 3)} for each of ${whole(state.batch)} users` : "at most, for the one user",
        colour(decode.bound)),
      tile("First token (TTFT)", ...split(seconds(ttft)), `one prompt of ${tokens(state.prompt)}, no queue`, colour(prefill.bound)),
      tile("Each one after (TPOT)", ...split(seconds(tpot)), `one step for ${users(state.batch)}`, colour(decode.bound)),
      tile("A million tokens", dollars(dollars_out), "", `written; ${dollars(dollars_in)} read`, "soft"));
  } };
}

// Memory: weights, then each user's cache, against what the chips hold.

function memory() {
  const canvas = h("div", {});
  const caption = h("figcaption", {});
  let draw = () => {};
  const node = h("figure", { class: "memory" }, caption, canvas);
  onWidth(canvas, () => draw());
  return { node, show({ state, capacity, footprint: need, weight_bytes, kv_bytes_per_user, chip }) {
    const kv = need - weight_bytes;
    replace(caption, h("strong", {}, "Does it fit? "), h("b", { class: "bytes" }, `Weights ${bytes(weight_bytes)}`), " + ",
      h("b", { class: "kv" }, `KV cache ${bytes(kv)}`),
      capacity === null ? "" : ` against ${bytes(capacity)}`);
    draw = () => {
      const width = canvas.clientWidth;
      if (!width) return;
      const x = linear([0, Math.max(need, capacity ?? 0) * 1.02], [0, width]);
      const y = 4;
      const height = 34;
      const lanes = state.batch <= 64 && x(kv_bytes_per_user) >= 4
        ? Array.from({ length: state.batch - 1 }, (_, i) => x(weight_bytes + (i + 1) * kv_bytes_per_user)) : [];
      const walls = capacity === null ? []
        : Array.from({ length: state.chips }, (_, i) => x((i + 1) * chip.memory_bytes));
      const label = (at, text, anchor = "middle") => s("text", { x: at, y: y + height + 18, class: "tick", "text-anchor": anchor }, text);
      replace(canvas, picture(width, 62, `Weights ${bytes(weight_bytes)} and KV cache ${bytes(kv)}`
        + (capacity === null ? "." : ` against a capacity of ${bytes(capacity)}.`),
      capacity === null ? null
        : s("rect", { class: "room", x: 0.5, y, width: x(capacity) - 1, height, rx: 4 }),
      s("rect", { class: "bytes", x: 0, y, width: Math.max(1, x(weight_bytes)), height, rx: 4 }),
      s("rect", { class: "kv", x: x(weight_bytes) + 1.5, y, width: Math.max(2, x(kv) - 1.5), height, rx: 2 }),
      lanes.map((at) => s("line", { class: "lane", x1: at, x2: at, y1: y, y2: y + height })),
      need > capacity && capacity !== null
        ? [s("rect", { class: "over", x: x(capacity), y: y - 3, width: x(need) - x(capacity), height: height + 6 }),
          x(need) - x(capacity) > 110 ? label(x(need), `${bytes(need - capacity)} too much`, "end") : null] : null,
      walls.map((at, i) => s("line", { class: i === walls.length - 1 ? "wall" : "wall inner", x1: at, x2: at, y1: y - 4, y2: y + height + 5 })),
      walls.length && walls.length <= 8
        ? walls.map((at, i) => (walls.length <= 3 || i === walls.length - 1
          ? label(at, `${i + 1} chip${i ? "s" : ""}, ${bytes((i + 1) * chip.memory_bytes)}`, "end") : null)) : null));
    };
    draw();
  } };
}

// The roofline: where a prefill and a decode step stand under the roof of these chips.

function roofline() {
  const canvas = h("div", {});
  const caption = h("figcaption", {});
  const rings = h("p", { class: "soft" }, "Rings: a decode step's weights, which all users share, and "
    + "its KV cache, which nobody shares. More users push the first to the right, never the second.");
  const node = h("figure", { class: "roofline" }, caption, canvas, rings);
  let plot = null;
  let answer = null;
  onWidth(canvas, (width) => {
    plot = frame(width);
    replace(canvas, plot.node);
    if (answer) plot.show(answer);
  });
  return { node, show(next) {
    answer = next;
    const { prefill, decode } = answer;
    const side = ({ intensity, bound }) => [`${number(intensity, 3)}\u00a0FLOP/B, for `,
      bound === "compute" ? h("b", { class: "compute" }, "arithmetic") : h("b", { class: "bytes" }, "bytes")];
    replace(caption, h("strong", {}, "What does it wait for? "), "Prefill, at ", side(prefill), "; decode, at ", side(decode), ".");
    plot?.show(answer);
  } };
}

function frame(width) {
  const small = width < 480;
  const height = Math.round(Math.min(400, Math.max(280, width * 0.56)));
  const left = small ? 48 : 64;
  const [right, top, bottom] = [width - 16, 26, height - 46];
  const [low, high] = [0.5, 1e5];
  const x = log([low, high], [left, right]);
  const roof = s("g", {});
  const dots = s("g", {});
  const block = s("g", { class: "mark" }, s("rect", { class: "glyph", x: -15, y: -7, width: 30, height: 14, rx: 3 }),
    s("text", { y: 25, "text-anchor": "middle" }, "prefill"));
  const ticks = s("g", { class: "mark" },
    s("rect", { class: "halo", x: -16, y: -10, width: 32, height: 20, rx: 4 }),
    [-12, -6, 0, 6, 12].map((at) => s("rect", { class: "glyph", x: at - 1.5, y: -8, width: 3, height: 16 })),
    s("text", { x: 20, y: 5 }, "decode"));
  const axes = s("g", {});
  const node = picture(width, height, "", axes, roof, dots, ticks, block);
  let ceiling = null;
  return { node, show({ prefill, decode, peak, bandwidth, ridge }) {
    // Two fixed windows, so that a change of chip moves the roof and not the axis.
    const [floor, least] = peak < 3e13 ? [1e9, 1e14] : [1e11, 1e16];
    const wanted = Math.max(least, 10 ** Math.ceil(Math.log10(peak * 1.7)));
    const y = log([floor, wanted], [bottom, top]);
    node.setAttribute("aria-label", `Roofline: ${flopRate(peak)} and ${byteRate(bandwidth)} meet at ${number(ridge, 4)} FLOP/B;`
      + ` prefill stands at ${number(prefill.intensity)} and decode at ${number(decode.intensity)} FLOP/B.`);
    if (wanted !== ceiling) {
      ceiling = wanted;
      const rate = (value) => flopRate(value).replace("FLOP/s", "").trim();
      replace(axes,
        axisX(x, bottom, { top, ticks: [1, 10, 100, 1e3, 1e4, 1e5].filter((v) => v <= high), format: (v) => (v < 1000 ? whole(v) : `${v / 1000}k`),
          title: "operations per byte moved (FLOP/B)" }),
        axisY(y, left, { right, format: rate, title: "attainable FLOP/s" }));
    }
    const inside = (value) => Math.min(high, Math.max(low, value));
    const start = Math.max(low, floor / bandwidth);
    const at = (intensity, speed) => [x(inside(intensity)), y(Math.max(floor, speed))];
    const [x0, y0] = at(start, bandwidth * start);
    const [xr, yr] = at(ridge, peak);
    const slope = (Math.atan2(yr - y0, xr - x0) * 180) / Math.PI;
    const spots = [prefill, decode, decode.parts.attention].map(
      ({ intensity, flops, seconds: time }) => at(intensity, flops / time));
    const clear = ([px, py]) => Math.min(...spots.map(([sx, sy]) => Math.hypot(sx - px, sy - py)));
    const along = [0.5, 0.3, 0.7].map((share) => start * (ridge / start) ** share)
      .map((intensity) => at(intensity, bandwidth * intensity));
    const middle = along.reduce((best, spot) => (clear(spot) > clear(best) + 12 ? spot : best));
    replace(roof,
      s("rect", { class: "bytes shade", x: left, y: top, width: xr - left, height: bottom - top }),
      s("rect", { class: "compute shade", x: xr, y: top, width: right - xr, height: bottom - top }),
      s("line", { class: "ridge", x1: xr, x2: xr, y1: yr, y2: bottom }),
      s("path", { class: "bytes line", d: `M${x0} ${y0}L${xr} ${yr}` }),
      s("path", { class: "compute line", d: `M${xr} ${yr}H${right}` }),
      s("text", { class: "bytes name", transform: `translate(${middle}) rotate(${slope})`, y: -13, "text-anchor": "middle" },
        byteRate(bandwidth)),
      s("text", { class: "compute name", x: right - 4, y: yr - 9, "text-anchor": "end" }, flopRate(peak)),
      s("text", { class: "ridge-name", x: xr + 6, y: bottom - 8 }, `ridge ${number(ridge, 4)}`));
    const put = (mark, { intensity, flops, seconds: time, bound }) => {
      const [mx, my] = at(intensity, flops / time);
      mark.classList.toggle("waits-for-bytes", bound === "memory");
      mark.style.transform = `translate(${mx}px, ${my}px)`;
    };
    put(block, prefill);
    put(ticks, decode);
    block.querySelector("text").setAttribute("y", Math.hypot(spots[0][0] - spots[1][0], spots[0][1] - spots[1][1]) < 90 ? -15 : 25);
    const matrices = together(decode, MATRICES);
    const attention = decode.parts.attention;
    const dot = (part, name, colour) => {
      if (!part.bytes || !part.flops) return null;
      const [dx, dy] = at(part.flops / part.bytes, part.flops / part.seconds);
      const near = spots.slice(0, 2).some(([mx, my]) => Math.hypot(dx - mx, dy - my) < 60);
      return s("g", { class: `dot ${colour}` }, s("circle", { cx: dx, cy: dy, r: 5 }),
        near ? null : s("text", { x: dx + 9, y: dy + 16 }, name));
    };
    replace(dots, dot(matrices, "its weights", "bytes"), dot(attention, "its KV cache", "kv"));
  } };
}

function together(pass, names) {
  const sum = (of) => names.reduce((total, name) => total + pass.parts[name][of], 0);
  return { flops: sum("flops"), bytes: sum("bytes"), seconds: sum("seconds") };
}

// What one user sees: the prompt as one wide block, then a tick a token; and what is in a tick.

function timeline() {
  const canvas = h("div", {});
  const caption = h("figcaption", {});
  const node = h("figure", { class: "timeline" }, caption, canvas);
  let draw = () => {};
  onWidth(canvas, () => draw());
  return { node, show({ ttft, tpot, prefill, decode }) {
    const shares = [
      ["weights", together(decode, MATRICES).seconds, decode.parts.ffn.bound === "compute" ? "compute" : "bytes"],
      ["KV cache", together(decode, ["attention", "kv_write"]).seconds, decode.parts.attention.bound === "compute" ? "compute" : "kv"],
      ["activations", decode.parts.activations.seconds, "wait"],
    ];
    replace(caption, h("strong", {}, "What does a user see? "), "The first token after ", h("b", {}, seconds(ttft)), ", then one every ", h("b", {}, seconds(tpot)),
      " (", shares.filter(([, time]) => time > 0.005 * tpot).map(([name, time, colour], i) =>
        [i ? " + " : "", h("b", { class: colour }, `${name} ${seconds(time)}`)]), ").");
    draw = () => {
      const width = canvas.clientWidth;
      if (!width) return;
      const colour = ({ bound }) => (bound === "compute" ? "compute" : "bytes");
      const total = Math.max(1.35 * ttft, ttft + 12 * tpot);
      const x = linear([0, total], [0, width - 14]);
      const gap = x(tpot);
      const count = Math.floor((total - ttft) / tpot);
      const ticks = gap >= 3
        ? Array.from({ length: count }, (_, i) => s("rect", { class: colour(decode), x: x(ttft + (i + 1) * tpot) - 1.25, y: 4, width: 2.5, height: 34 }))
        : [s("rect", { class: `${colour(decode)} blur`, x: x(ttft), y: 4, width: x(total) - x(ttft), height: 34 }),
          x(total) - x(ttft) > 70 ? s("text", { class: "in", x: (x(ttft) + x(total)) / 2, y: 26, "text-anchor": "middle" }, "decode") : null];
      const marks = x.ticks(width < 480 ? 3 : 6);
      replace(canvas, picture(width, 74, `Timeline: a first token after ${seconds(ttft)}, then one every ${seconds(tpot)}.`,
        axisX(x, 44, { ticks: marks.filter((t) => t > 0 && x(t) < width - 24), format: seconds }),
        s("text", { class: "tick", y: 62 }, "Enter"),
        s("rect", { class: colour(prefill), x: 0, y: 4, width: Math.max(1.5, x(ttft)), height: 34, rx: 3 }),
        x(ttft) > 90 ? s("text", { class: "on", x: x(ttft) / 2, y: 26, "text-anchor": "middle" }, "prefill") : null, ticks));
    };
    draw();
  } };
}

// Each equation, with the numbers in it.

function equations(catalog) {
  const list = h("dl", { class: "equations" });
  const node = h("section", {}, h("strong", { class: "head" }, "Where do the numbers come from?"), list);
  const mark = (colour) => (text) => h("b", { class: colour }, text);
  const [blue, green, orange, plain] = ["bytes", "kv", "compute", "plain"].map(mark);
  const row = (name, formula, result) => h("div", {}, h("dt", {}, name),
    h("dd", {}, formula, " = ", h("strong", {}, result)));

  // A pass takes its arithmetic where that is slower, and its bytes where they are.
  function time(pass, peak, bandwidth) {
    const worked = Object.values(pass.parts).filter((part) => part.bound === "compute")
      .reduce((total, part) => total + part.flops, 0);
    const moved = (names) => names.filter((name) => pass.parts[name].bound === "memory")
      .reduce((total, name) => total + pass.parts[name].bytes, 0);
    const terms = [[moved(MATRICES), blue, "weights"], [moved(["attention", "kv_write"]), green, "KV"],
      [moved(["activations"]), plain, "activations"]].filter(([size]) => size > 0);
    return [
      worked ? [orange(flops(worked, 4)), " ÷ ", flopRate(peak)] : "",
      worked && terms.length ? " + " : "",
      terms.length ? ["(", terms.map(([size, colour, name], i) => [i ? " + " : "", colour(`${bytes(size, 4)} ${name}`)]),
        ") ÷ ", byteRate(bandwidth)] : "",
    ];
  }

  return { node, show({ state, shape, chip, kvFormat, longest, weight_bytes, kv_bytes_per_token, kv_bytes_per_user,
    capacity, users: room, ridge, peak, bandwidth, prefill, decode, ttft, tpot, dollars_out }) {
    const { chips, batch, price, dtype } = state;
    const times = chips === 1 ? "" : `${chips} × `;
    const element = `${number(bytesPerElement(catalog, kvFormat), 4)} B`;
    const kept = shape.latent
      ? `${shape.layers} layers × (${shape.latent.kv_rank} + ${shape.latent.rope_dim}) latent values × ${element}`
      : `2 × ${shape.layers} layers × ${shape.kv_heads} KV heads × ${shape.head_dim} wide × ${element}`;
    const windowed = shape.windowed_layers && longest > shape.window;
    replace(list,
      row("Weights", [whole(shape.params), " × ", `${number(bytesPerElement(catalog, dtype), 4)} B`], blue(bytes(weight_bytes, 4))),
      row("KV cache, a token", kept, green(`${whole(kv_bytes_per_token)} B`)),
      row("KV cache, a user", [`${tokens(longest)} × ${whole(kv_bytes_per_token)} B`,
        windowed ? `, but ${shape.windowed_layers} of ${shape.layers} layers keep the last ${whole(shape.window)} only` : ""],
      green(bytes(kv_bytes_per_user, 4))),
      capacity === null ? null : row("Users that fit", [`(${times}${bytes(chip.memory_bytes)} − `, blue(bytes(weight_bytes)), ") ÷ ",
        green(bytes(kv_bytes_per_user))], whole(room)),
      row("Ridge", [orange(flopRate(peak)), " ÷ ", blue(byteRate(bandwidth))], `${number(ridge, 4)} FLOP/B`),
      row("Prefill, operations", [`matrices ${flops(together(prefill, MATRICES).flops, 4)} + attention ${flops(prefill.parts.attention.flops, 4)}`],
        orange(flops(prefill.flops, 5))),
      row("First token (TTFT)", time(prefill, peak, bandwidth), seconds(ttft)),
      row("Each token after (TPOT)", time(decode, peak, bandwidth), seconds(tpot)),
      row("Tokens per second", [`${users(batch)} ÷ ${seconds(tpot, 4)}`], number(decode.tokens_per_second, 4)),
      row("A million tokens", [`${dollars(price)} × ${chips} chip${chips === 1 ? "" : "s"} ÷ 3,600 s ÷ ${number(decode.tokens_per_second, 4)} tok/s × 10⁶`],
        dollars(dollars_out)));
  } };
}

// The same question for the command line, and where all of this is wrong.

function command(catalog, change, model) {
  const { count, median, best } = model.get("published");
  const code = h("code", {});
  const says = h("p", { class: "soft" });
  const node = h("div", { class: "last" },
    h("p", { class: "wrong" }, h("strong", {}, "Where this is wrong: "),
      "it is a limit, not a forecast, since launches, scheduling and the talk between chips cost nothing here; "
      + `of ${count} published speeds for one user the best reaches ${number(best, 2)} of it, the median ${number(median, 2)}.`),
    says, h("pre", { tabindex: 0 }, code));
  return { node, show({ state }) {
    const { model, chip, chips, dtype, kvDtype, prompt, context, batch } = state;
    says.textContent = chip === OWN ? "A terminal measures the two numbers of your machine:"
      : "The same from a terminal:";
    if (chip === OWN) {
      code.textContent = "inferlab device";
      return;
    }
    const options = [["model", model], ["device", chip], ["prompt", prompt], context !== prompt && ["context", context],
      batch !== 1 && ["batch", batch], dtype !== catalog.chips[chip].default_dtype && ["dtype", dtype], kvDtype && ["kv-dtype", kvDtype], chips !== 1 && ["chips", chips]];
    code.textContent = "inferlab explain " + options.filter(Boolean).map(([name, value]) => `--${name} ${value}`).join(" ");
  } };
}

const CSS = `
.calculator { display: grid; gap: 1.75rem; scroll-margin-top: 4rem; }
.calculator > *, figure { min-width: 0; margin: 0; }
.question { display: grid; gap: 1.1rem; padding: 1.1rem 1.25rem 1rem; border: 1px solid var(--rule); border-radius: 12px;
  background: var(--panel); }
.sentence { margin: 0; font-size: 1.25rem; line-height: 1.75; }
.unbroken { white-space: nowrap; }
.question select, .question input[type="number"] { background-color: var(--paper); }
.verdict:focus { outline: none; }
.verdict { padding-left: 0.9rem; border-left: 4px solid var(--ink); }
.verdict p { margin: 0 0 0.35rem; }
.verdict p:last-child { margin: 0; }
.fixes { display: flex; flex-wrap: wrap; gap: 0.5rem; align-items: center; }
.fixes button { border-color: var(--bytes); color: var(--bytes); font-weight: 650; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 0.5rem 1.25rem; margin: 0; }
.tiles > div { border-top: 3px solid currentColor; padding-top: 0.5rem; min-width: 0; }
.tiles dt { color: var(--soft); font-size: 0.8125rem; line-height: 1.3; }
.tiles dd { margin: 0; }
.tiles .value { font-size: 1.9rem; font-weight: 700; letter-spacing: -0.02em; line-height: 1.2; white-space: nowrap; }
.tiles .value small { font-size: 0.55em; font-weight: 600; letter-spacing: 0; margin-left: 0.25em; }
.tiles .note { color: var(--soft); font-size: 0.8125rem; line-height: 1.35; }
.tiles .soft .value { color: var(--ink); }
figcaption { margin-bottom: 0.6rem; }
figcaption strong, .head { display: block; font-size: 1.05rem; }
.head { margin-bottom: 0.6rem; }
figure > p { margin: 0.4rem 0 0; font-size: 0.875rem; }
.memory .room { fill: none; stroke: var(--soft); }
.memory .lane { stroke: var(--paper); stroke-width: 1; }
.memory .wall { stroke: var(--ink); stroke-width: 2; }
.memory .inner { stroke-width: 1; opacity: 0.6; }
.memory .over { fill: var(--paper); opacity: 0.62; }
.roofline .shade { opacity: 0.07; }
.roofline .ridge { stroke: var(--soft); stroke-dasharray: 3 4; }
.roofline .ridge-name { fill: var(--soft); font-size: 12px; }
.roofline .name { font-weight: 650; }
.roofline .glyph { fill: var(--compute); }
.roofline .waits-for-bytes .glyph { fill: var(--bytes); }
.roofline .halo { fill: var(--paper); }
.roofline .mark { transition: transform 0.25s ease-out; }
.roofline .mark text, .roofline .dot text { font-weight: 650; paint-order: stroke; stroke: var(--paper); stroke-width: 4px;
  stroke-linejoin: round; }
.roofline .mark text { fill: var(--ink); }
.roofline .dot circle { fill: var(--paper); stroke: currentColor; stroke-width: 2.5; }
.roofline .dot text { font-size: 12px; font-weight: 500; }
.timeline .on { fill: var(--paper); font-weight: 650; }
.timeline .blur { opacity: 0.3; }
.timeline .in { font-weight: 650; }
.equations { margin: 0; border-top: 1px solid var(--rule); font-size: 0.875rem; }
.equations > div { display: grid; grid-template-columns: 11rem 1fr; gap: 0.1rem 1rem; padding: 0.5rem 0;
  border-bottom: 1px solid var(--rule); }
.equations dt { color: var(--soft); }
.equations dd { margin: 0; }
.equations b { font-weight: 600; }
.equations .plain { font-weight: 400; }
.last p { margin: 0 0 0.6rem; }
.last pre { margin: 0; padding: 0.75rem 1rem; background: var(--panel); border-radius: 8px; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: 0.8125rem; line-height: 1.6; }
.last code { font-family: var(--mono, ui-monospace, Menlo, Consolas, monospace); }
@container (max-width: 560px) {
  .question { padding: 0.9rem 0.9rem 0.8rem; }
  .sentence { font-size: 1.1rem; }
  .tiles { grid-template-columns: 1fr 1fr; row-gap: 1.1rem; }
  .tiles .value { font-size: 1.6rem; }
  .equations > div { grid-template-columns: 1fr; }
}
@media (prefers-reduced-motion: reduce) { .roofline .mark { transition: none; } }
`;
