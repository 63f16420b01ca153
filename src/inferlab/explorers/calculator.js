// The Calculator: one model on some chips, and what limits it. Everything shown is worked out by
// lib/theory.js from the catalogs in `model`; this file is only about showing it.

import { bytes, byteRate, dollars, flopRate, flops, number, seconds, whole } from "./lib/format.js";
import { OWN, bits, chipOptions, formatOptions, ownChip } from "./lib/chips.js";
import { field, pick, slider } from "./lib/controls.js";
import { calm, h, onWidth, picture, replace, s } from "./lib/dom.js";
import { axisX, linear } from "./lib/plot.js";
import { ROOFLINE_CSS, rooflinePlot } from "./lib/roofline.js";
import { activationFormat, arithmetic, bytesPerElement, footprint, kvBytes, report,
  sequencesThatFit } from "./lib/theory.js";

const TOKENS = [1, 16, 64, 128, 256, 512, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 100000,
  128000, 256000, 512000, 1000000];
const USERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const CHIPS = [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 72];
const KV_FORMATS = ["fp8", "int8", "q8_0", "q4_0"];
const MATRICES = ["projections", "ffn", "logits"];
const CACHE = ["attention", "kv_write"];

const tokens = (count) =>
  count === 0 ? "nothing yet" : `${whole(count)} token${count === 1 ? "" : "s"}`;
const users = (count) => `${whole(count)} user${count === 1 ? "" : "s"}`;
const waitsFor = ({ bound }, memory = "bytes") => (bound === "compute" ? "compute" : memory);

// Some parts of a pass as one.
function together(pass, names) {
  const sum = (of) => names.reduce((total, name) => total + pass.parts[name][of], 0);
  return { flops: sum("flops"), bytes: sum("bytes"), seconds: sum("seconds") };
}

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
  catalog.chips[OWN] = ownChip(state);
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
      options: chipOptions(catalog) }),
    prompt: slider({ label: "Prompt", values: TOKENS, value: 2000, format: tokens,
      // The cache holds the prompt until the reader says otherwise.
      onchange: (prompt) => change(last.context === last.prompt
        ? { prompt, context: prompt } : { prompt }) }),
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
      " and its KV cache in ", unbroken(kvDtype.node, ","), " on ", unbroken(count.node, " × "),
      unbroken(chip.node, ".")),
    h("div", { class: "controls" }, prompt.node, context.node, batch.node, price.node), own);

  return { node, show({ state, chip }) {
    own.hidden = state.chip !== OWN;
    dtype.offer(formatOptions(catalog, chip));
    kvDtype.offer([["", activationFormat(catalog, state.dtype)], ...KV_FORMATS.map(
      (name) => [name, bits(catalog, name), null, name])]);
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

// The verdict: whether it fits, and if not, what one press would change.

function verdict(catalog, change) {
  const node = h("div", { class: "verdict", "aria-live": "polite", tabindex: -1 });
  // The button that was pressed goes away: hand the focus to what it changed.
  const press = (values) => () => {
    change(values);
    node.focus({ preventScroll: true });
  };
  return { node, show(answer) {
    const { fits, state, shape, chip, capacity, weight_bytes, longest } = answer;
    const [need, room] = [answer.footprint, answer.users];
    const count = state.chips === 1 ? `one ${chip.name}` : `${state.chips} × ${chip.name}`;
    const beyond = longest <= shape.max_context ? null : h("p", { class: "soft" },
      `${shape.name} was made for ${tokens(shape.max_context)}; beyond them this is arithmetic only.`);
    const say = (finding, ...rest) => h("p", {}, h("strong", {}, finding), " ", rest);
    if (fits === null) {
      replace(node, say("Its memory is up to you.", `It needs ${bytes(need)}.`), beyond);
    } else if (fits) {
      replace(node, say("It fits.", `${bytes(need)} of ${bytes(capacity)} are taken; `,
        h("strong", {}, users(room)), ` with ${tokens(longest)} each would fill it.`), beyond);
    } else {
      const much = weight_bytes > capacity ? `The weights alone take ${bytes(weight_bytes)}`
        : `Weights and caches take ${bytes(need)}`;
      const fixes = remedies(catalog, state, room).map(([label, values]) =>
        h("button", { type: "button", onclick: press(values) }, label));
      replace(node, say("It does not fit.", `${much}; ${count} holds ${bytes(capacity)}. `,
        "The speeds below are what the chip's two numbers would allow."),
      h("p", { class: "fixes" }, fixes.length ? "Make it fit: " : "", fixes), beyond);
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
  const tile = (colour, name, [value, unit], note) => h("div", { class: colour }, h("dt", {}, name),
    h("dd", { class: "value" }, value, h("small", {}, unit ?? "")), h("dd", { class: "note" }, note));
  const split = (text) => text.split("\u00a0");
  return { node, show({ state, ttft, tpot, prefill, decode, dollars_out, dollars_in }) {
    const { batch, prompt } = state;
    replace(node,
      tile(waitsFor(decode), "Tokens per second", [number(decode.tokens_per_second, 4)],
        batch > 1 ? `at most; ${number(1 / tpot)} for each of ${users(batch)}` : "at most, for the one user"),
      tile(waitsFor(prefill), "First token (TTFT)", split(seconds(ttft)),
        `one prompt of ${tokens(prompt)}, no queue`),
      tile(waitsFor(decode), "Each one after (TPOT)", split(seconds(tpot)), `one step for ${users(batch)}`),
      tile("soft", "A million tokens", [dollars(dollars_out)], `written; ${dollars(dollars_in)} read`));
  } };
}

// A figure whose caption asks a question and answers it, and that is drawn anew for each width.
function panel(name, question, ...below) {
  const [caption, canvas] = [h("figcaption"), h("div")];
  let [width, draw] = [0, () => {}];
  onWidth(canvas, (now) => {
    width = now;
    draw(width);
  });
  return {
    node: h("figure", { class: name }, caption, canvas, below),
    say: (...answer) => replace(caption, h("strong", {}, question, " "), ...answer),
    paint(next) {
      draw = (now) => replace(canvas, next(now));
      if (width) draw(width);
    },
  };
}

// Memory: weights, then each user's cache, against what the chips hold.

function memory() {
  const { node, say, paint } = panel("memory", "Does it fit?");
  return { node, show({ state, capacity, footprint: need, weight_bytes, kv_bytes_per_user, chip }) {
    const kv = need - weight_bytes;
    say(h("b", { class: "bytes" }, `Weights ${bytes(weight_bytes)}`), " + ",
      h("b", { class: "kv" }, `KV cache ${bytes(kv)}`),
      capacity === null ? "" : ` against ${bytes(capacity)}`);
    paint((width) => {
      const x = linear([0, Math.max(need, capacity ?? 0) * 1.02], [0, width]);
      const [y, height] = [4, 34];
      const bar = (colour, from, to, rx) => s("rect",
        { class: colour, x: x(from), y, width: Math.max(1.5, x(to) - x(from)), height, rx });
      const label = (at, text) =>
        s("text", { class: "tick", x: at, y: y + height + 18, "text-anchor": "end" }, text);
      const lanes = state.batch <= 64 && x(kv_bytes_per_user) >= 4 ? state.batch - 1 : 0;
      const alt = `Weights ${bytes(weight_bytes)} and KV cache ${bytes(kv)}`
        + (capacity === null ? "." : ` against a capacity of ${bytes(capacity)}.`);
      return picture(width, 62, alt,
        capacity === null ? null : bar("room", 0, capacity, 4),
        bar("bytes", 0, weight_bytes, 4),
        bar("kv", weight_bytes, need, 2),
        each(lanes, (i) => line("lane", x(weight_bytes + i * kv_bytes_per_user), y, y + height)),
        capacity === null || need <= capacity ? null : [
          s("rect", { class: "over", x: x(capacity), y: y - 3, width: x(need - capacity), height: height + 6 }),
          x(need - capacity) > 110 ? label(x(need), `${bytes(need - capacity)} too much`) : null],
        capacity === null ? null : each(state.chips, (i) => {
          const [end, last] = [x(i * chip.memory_bytes), i === state.chips];
          return [line(last ? "wall" : "wall inner", end, y - 4, y + height + 5),
            last || state.chips <= 3
              ? label(end, `${i} chip${i > 1 ? "s" : ""}, ${bytes(i * chip.memory_bytes)}`) : null];
        }));
    });
  } };
}

const each = (count, make) => Array.from({ length: count }, (_, i) => make(i + 1));
const line = (name, x, y1, y2) => s("line", { class: name, x1: x, x2: x, y1, y2 });

// The roofline: where a prefill and a decode step stand under the roof of these chips.

function roofline() {
  const { node, say, paint } = panel("roofline", "What does it wait for?", h("p", { class: "soft" },
    "Rings: a decode step's weights, which all users share, and its KV cache, which nobody shares. "
    + "More users push the first to the right, never the second."));
  let [plot, drawn] = [null, 0];
  const side = (placed) => [`${number(placed.intensity)}\u00a0FLOP/B, for `, h("b",
    { class: waitsFor(placed) }, placed.bound === "compute" ? "arithmetic" : "bytes")];
  return { node, show({ peak, bandwidth, prefill, decode }) {
    say("Prefill, at ", side(prefill), "; decode, at ", side(decode), ".");
    const rings = [
      { part: together(decode, MATRICES), name: "its weights", colour: "bytes" },
      { part: decode.parts.attention, name: "its KV cache", colour: "kv" },
    ];
    paint((width) => {
      if (width !== drawn) [plot, drawn] = [rooflinePlot(width), width];
      plot.show({ peak, bandwidth, prefill, decode, rings });
      return plot.node;
    });
  } };
}

// What one user sees: the prompt as one wide block, then a tick for each token.

function timeline() {
  const { node, say, paint } = panel("timeline", "What does a user see?");
  return { node, show({ ttft, tpot, prefill, decode }) {
    const shares = [
      ["weights", together(decode, MATRICES).seconds, waitsFor(decode.parts.ffn)],
      ["KV cache", together(decode, CACHE).seconds, waitsFor(decode.parts.attention, "kv")],
      ["activations", decode.parts.activations.seconds, "wait"],
    ].filter(([, time]) => time > 0.005 * tpot);
    say("The first token after ", h("b", {}, seconds(ttft)), ", then one every ", h("b", {}, seconds(tpot)),
      " (", shares.map(([name, time, colour], i) =>
        [i ? " + " : "", h("b", { class: colour }, `${name} ${seconds(time)}`)]), ").");
    paint((width) => {
      const end = Math.max(1.35 * ttft, ttft + 12 * tpot);
      const x = linear([0, end], [0, width - 14]);
      const box = (name, from, to) =>
        s("rect", { class: name, x: x(from), y: 4, width: Math.max(1.5, x(to) - x(from)), height: 34, rx: 3 });
      const word = (name, from, to, text) => x(to) - x(from) < 90 ? null
        : s("text", { class: name, x: x((from + to) / 2), y: 26, "text-anchor": "middle" }, text);
      const tick = (i) => s("rect",
        { class: waitsFor(decode), x: x(ttft + i * tpot) - 1.25, y: 4, width: 2.5, height: 34 });
      const marks = x.ticks(width < 480 ? 3 : 6).filter((t) => t > 0 && x(t) < width - 24);
      return picture(width, 74,
        `Timeline: a first token after ${seconds(ttft)}, then one every ${seconds(tpot)}.`,
        axisX(x, 44, { ticks: marks, format: seconds }), s("text", { class: "tick", y: 62 }, "Enter"),
        box(waitsFor(prefill), 0, ttft), word("on", 0, ttft, "prefill"),
        x(tpot) >= 3 ? each(Math.floor((end - ttft) / tpot + 1e-9), tick)
          : [box(`${waitsFor(decode)} blur`, ttft, end), word("in", ttft, end, "decode")]);
    });
  } };
}

// Each equation, with the numbers in it.

function equations(catalog) {
  const list = h("dl", { class: "equations" });
  const node = h("section", {}, h("strong", { class: "head" }, "Where do the numbers come from?"), list);
  const [blue, green, orange, plain] = ["bytes", "kv", "compute", "plain"].map(
    (colour) => (text) => h("b", { class: colour }, text));
  const row = (name, result, ...formula) => h("div", {}, h("dt", {}, name),
    h("dd", {}, formula, " = ", h("strong", {}, result)));

  // A pass takes its arithmetic where that is slower, and its bytes where they are.
  function time(pass, { peak, bandwidth }) {
    const sum = (names, bound, of) => names.map((name) => pass.parts[name])
      .reduce((total, part) => total + (part.bound === bound ? part[of] : 0), 0);
    const worked = sum(Object.keys(pass.parts), "compute", "flops");
    const moved = [[MATRICES, blue, "weights"], [CACHE, green, "KV"], [["activations"], plain, "activations"]]
      .map(([names, colour, what]) => [sum(names, "memory", "bytes"), colour, what])
      .filter(([size]) => size > 0);
    return [
      worked ? [orange(flops(worked, 4)), " ÷ ", flopRate(peak)] : "",
      worked && moved.length ? " + " : "",
      moved.length ? ["(", moved.map(([size, colour, what], i) =>
        [i ? " + " : "", colour(`${bytes(size, 4)} ${what}`)]), ") ÷ ", byteRate(bandwidth)] : "",
    ];
  }

  // What a token leaves in the cache, by the model's own sizes.
  function kept({ latent, layers, kv_heads, head_dim }, kvFormat) {
    const values = latent
      ? `${layers} layers × (${latent.kv_rank} + ${latent.rope_dim}) latent values`
      : `2 × ${layers} layers × ${kv_heads} KV heads × ${head_dim} wide`;
    return `${values} × ${number(bytesPerElement(catalog, kvFormat), 4)} B`;
  }

  return { node, show(answer) {
    const { state, shape, chip, longest, capacity, peak, bandwidth, prefill, decode } = answer;
    const { chips, batch, price, dtype } = state;
    const [weights, cache] = [answer.weight_bytes, answer.kv_bytes_per_user];
    const speed = number(decode.tokens_per_second, 4);
    const windowed = !shape.windowed_layers || longest <= shape.window ? ""
      : `, but ${shape.windowed_layers} of ${shape.layers} layers keep the last ${whole(shape.window)} only`;
    replace(list,
      row("Weights", blue(bytes(weights, 4)),
        `${whole(shape.params)} × ${number(bytesPerElement(catalog, dtype), 4)} B`),
      row("KV cache, a token", green(`${whole(answer.kv_bytes_per_token)} B`), kept(shape, answer.kvFormat)),
      row("KV cache, a user", green(bytes(cache, 4)),
        `${tokens(longest)} × ${whole(answer.kv_bytes_per_token)} B`, windowed),
      capacity === null ? null : row("Users that fit", whole(answer.users),
        `(${chips > 1 ? `${chips} × ` : ""}${bytes(chip.memory_bytes)} − `, blue(bytes(weights)), ") ÷ ",
        green(bytes(cache))),
      row("Ridge", `${number(answer.ridge, 4)} FLOP/B`, orange(flopRate(peak)), " ÷ ", blue(byteRate(bandwidth))),
      row("Prefill, operations", orange(flops(prefill.flops, 5)),
        `matrices ${flops(together(prefill, MATRICES).flops, 4)} + `,
        `attention ${flops(prefill.parts.attention.flops, 4)}`),
      row("First token (TTFT)", seconds(answer.ttft), time(prefill, answer)),
      row("Each token after (TPOT)", seconds(answer.tpot), time(decode, answer)),
      row("Tokens per second", speed, `${users(batch)} ÷ ${seconds(answer.tpot, 4)}`),
      row("A million tokens", dollars(answer.dollars_out),
        `${dollars(price)} × ${chips} chip${chips === 1 ? "" : "s"} ÷ 3,600 s ÷ ${speed} tok/s × 10⁶`));
  } };
}

// The same question for the command line, and where all of this is wrong.

function command(catalog, change, model) {
  const { count, median, best } = model.get("published");
  const [says, code] = [h("p", { class: "soft" }), h("code")];
  const node = h("div", { class: "last" },
    h("p", {}, h("strong", {}, "Where this is wrong: "), "it is a limit, not a forecast, since launches, "
      + "scheduling and the talk between chips cost nothing here; of "
      + `${count} published speeds for one user the best reaches ${number(best, 2)} of it, `
      + `the median ${number(median, 2)}.`),
    says, h("pre", { tabindex: 0 }, code));
  return { node, show({ state, chip }) {
    const own = state.chip === OWN;
    says.textContent = own ? "A terminal measures the numbers of your machine:" : "The same from a terminal:";
    const options = [
      ["model", state.model, true],
      ["device", state.chip, true],
      ["prompt", state.prompt, true],
      ["context", state.context, state.context !== state.prompt],
      ["batch", state.batch, state.batch !== 1],
      ["dtype", state.dtype, state.dtype !== chip.default_dtype],
      ["kv-dtype", state.kvDtype, state.kvDtype !== null],
      ["chips", state.chips, state.chips !== 1],
    ].filter(([, , needed]) => needed).map(([name, value]) => ` --${name} ${value}`);
    code.textContent = own ? "inferlab device" : `inferlab explain${options.join("")}`;
  } };
}

const CSS = `${ROOFLINE_CSS}
.calculator { display: grid; gap: 1.75rem; scroll-margin-top: 4rem; }
.calculator > *, figure { min-width: 0; margin: 0; }
.question { display: grid; gap: 1.1rem; padding: 1.1rem 1.25rem 1rem; border: 1px solid var(--rule); border-radius: 12px;
  background: var(--panel); }
.sentence { margin: 0; font-size: 1.25rem; line-height: 1.75; }
.unbroken { white-space: nowrap; }
.question .controls { grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
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
`;
