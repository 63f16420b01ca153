// What does remembering cost? Conversations grow, memory fills, and every token gets dearer.
// Everything shown is worked out by lib/theory.js from the catalogs.

import { bytes, number, percent, seconds, whole } from "./lib/format.js";
import { OWN, chipOptions } from "./lib/chips.js";
import { pick, slider } from "./lib/controls.js";
import { h, onWidth, picture, replace, s } from "./lib/dom.js";
import { axisX, axisY, linear } from "./lib/plot.js";
import { player } from "./lib/player.js";
import { activationFormat, bytesPerElement, decodeStep, kvBytes, kvBytesPerToken, place, sequencesThatFit,
  weightBytes } from "./lib/theory.js";

const USERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const CHIPS = [1, 2, 4, 8, 16];
const KV_FORMATS = ["bf16", "fp8", "q8_0", "q4_0"];
const MOST = 131072; // tokens, at the right end

const STYLE = `
.kvm .sentence { margin: 0 0 0.8rem; font-size: 1.125rem; line-height: 1.75; }
.kvm .name { font-weight: 650; }
.kvm .room { fill: none; stroke: var(--soft); stroke-width: 1.2; }
.kvm .lane { stroke: var(--paper); stroke-width: 1; }
.kvm .over { fill: none; stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 4 3; }
.kvm .limit { stroke: var(--ink); stroke-width: 2; }
.kvm .dim { opacity: 0.4; }
.caption { margin: 0.6rem 0 0; min-height: 4.5em; }
@container (max-width: 480px) { .caption { min-height: 8em; } }
`;

// The numbers of one moment: `context` tokens in each of `users` caches.
export function calculate(catalog, { model, chip: key, chips, kvDtype, users }, context) {
  const shape = catalog.models[model];
  const chip = catalog.chips[key];
  const dtype = chip.default_dtype;
  const kvFormat = kvDtype ?? activationFormat(catalog, dtype);
  const options = { dtype, kvDtype: kvFormat };
  const step = (length) => place(catalog, decodeStep(catalog, shape, length, users, options), chip, dtype, chips).seconds;
  const weights = weightBytes(catalog, shape, dtype);
  const cache = kvBytes(catalog, shape, context, kvFormat);
  return {
    shape, chip, dtype, weights, cache,
    perToken: kvBytesPerToken(catalog, shape, kvFormat),
    caches: users * cache,
    capacity: chip.memory_bytes * chips,
    fit: context ? sequencesThatFit(catalog, shape, chip, context, { ...options, chips }) : Infinity,
    tpot: step(context),
    empty: step(0),
  };
}

export function render({ model, el }) {
  const catalog = model.get("catalog");
  const state = { ...model.get("start") };
  let t = 1;
  let width = 0;
  const board = h("div");
  const caption = h("p", { class: "caption" });
  const change = (values) => { Object.assign(state, values); draw(); };

  function draw() {
    const reach = MOST; // no model is stopped at its own context: the question is the memory
    const context = Math.round(t * reach);
    const now = calculate(catalog, state, context);
    const end = calculate(catalog, state, reach);
    const total = now.weights + now.caches;
    const full = total > now.capacity;
    const words = [
      h("strong", {}, context ? `${whole(context)} tokens each: ` : "Nothing said yet: "),
      h("span", { class: "kv" }, `${bytes(now.cache)} a user`),
      ` (${bytes(now.perToken)} a token`, now.shape.windowed_layers ? ", windows aside" : "", "). ",
      h("span", { class: "kv" }, bytes(now.caches)), " of caches beside ",
      h("span", { class: "bytes" }, bytes(now.weights)), " of weights ",
      full ? h("strong", {}, "do not fit") : "fit", ` into ${bytes(now.capacity)}. `,
      context && now.fit > 0 ? `There is room for ${whole(now.fit)} such user${now.fit === 1 ? "" : "s"}. ` : "",
      `A token takes ${seconds(now.tpot)} at least`,
      context ? `, ${percent(now.tpot / now.empty - 1)} more than with empty caches.` : "."];
    replace(caption, words);
    if (!width) return;

    const [left, right] = [1, width - 1];
    const most = Math.max(now.capacity * 1.15, Math.min(end.weights + end.caches, now.capacity * 2));
    const x = linear([0, most], [left, right]);
    const upTo = (value) => Math.min(right, x(value));
    const lanes = state.users <= 64 ? Array.from({ length: state.users - 1 }, (_, i) =>
      now.weights + (i + 1) * now.cache).filter((at) => x(at) < right) : [];
    const tank = [
      s("text", { class: "name", x: left, y: 16 }, "Memory"),
      s("rect", { class: "bytes", x: left, y: 26, width: upTo(now.weights) - left, height: 40 }),
      s("rect", { class: `kv${full ? " dim" : ""}`, x: upTo(now.weights), y: 26,
        width: upTo(total) - upTo(now.weights), height: 40 }),
      now.cache ? lanes.map((at) => s("line", { class: "lane", x1: x(at), x2: x(at), y1: 26, y2: 66 })) : null,
      s("rect", { class: "room", x: left, y: 26, width: x(now.capacity) - left, height: 40 }),
      s("line", { class: "limit", x1: x(now.capacity), x2: x(now.capacity), y1: 20, y2: 72 }),
      s("text", { class: "tick", x: x(now.capacity) - 4, y: 16, "text-anchor": "end" }, bytes(now.capacity)),
      s("text", { class: "tick", x: left, y: 84 }, "weights, then a cache for each user")];

    const [from, to, top, bottom] = [58, width - 30, 136, 300];
    const along = linear([0, reach], [from, to]);
    const high = Math.max(end.caches, end.weights) * 1.08;
    const up = linear([0, high], [bottom, top]);
    const many = 48;
    const curve = Array.from({ length: many + 1 }, (_, i) => {
      const at = (i / many) * reach;
      return [at, state.users * kvBytes(catalog, now.shape, at, state.kvDtype ?? activationFormat(catalog, now.dtype))];
    });
    const line = (points) => points.map(([a, b]) => `${along(a)},${up(b)}`).join(" ");
    const seen = [...curve.filter(([at]) => at < context), [context, now.caches]];
    const chart = [
      axisX(along, bottom, { ticks: width < 480 ? [0, 65536, 131072] : [0, 32768, 65536, 98304, 131072],
        format: (v) => whole(v), title: "tokens in each conversation" }),
      axisY(up, from, { ticks: up.ticks(3), format: (v) => bytes(v), right: to, title: "all caches" }),
      s("polyline", { class: "line kv dim", points: line(curve) }),
      s("polyline", { class: "line kv", points: line(seen) }),
      s("line", { class: "line bytes", x1: from, x2: to, y1: up(now.weights), y2: up(now.weights) }),
      s("text", { class: "bytes", x: to, y: up(now.weights) - 6, "text-anchor": "end" }, "the weights"),
      s("circle", { class: "kv", cx: along(context), cy: up(now.caches), r: 5 })];
    replace(board, picture(width, bottom + 44, "Memory, and the caches as conversations grow", tank, chart));
  }

  const shapes = Object.entries(catalog.models).sort(([, a], [, b]) => a.params - b.params);
  const sentence = h("p", { class: "sentence" },
    pick({ label: "Model", value: state.model, options: shapes.map(([key, each]) => [key, each.name]),
      onchange: (key) => change({ model: key }) }).node, " on ",
    pick({ label: "Chips", value: String(state.chips), options: CHIPS.map((n) => [String(n), String(n)]),
      onchange: (chips) => change({ chips: Number(chips) }) }).node, "\u00a0×\u00a0",
    pick({ label: "Chip", value: state.chip, options: chipOptions(catalog).filter(([key]) =>
      key !== OWN && catalog.chips[key].memory_bytes), onchange: (chip) => change({ chip }) }).node,
    ", keys and values in ",
    pick({ label: "Format of the cache", value: state.kvDtype ?? "bf16", options: KV_FORMATS.map((name) =>
      [name, `${name}: ${number(8 * bytesPerElement(catalog, name))} bits`, null, name]),
    onchange: (kvDtype) => change({ kvDtype }) }).node, ".");
  const users = slider({ label: "Users at the same time", values: USERS, value: state.users, format: whole,
    onchange: (count) => change({ users: count }) });
  const grow = player({ seconds: 7, label: "Tokens in each conversation", rest: model.get("rest") / MOST,
    format: (now) => `${whole(now * MOST)} tokens`, draw: (now) => { t = now; draw(); } });
  el.append(h("style", {}, STYLE), h("div", { class: "kvm" }, sentence,
    h("div", { class: "controls" }, users.node), board, caption, grow.node));
  onWidth(board, (wide) => { width = wide; draw(); });
}
