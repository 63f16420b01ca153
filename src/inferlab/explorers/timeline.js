// What does a person feel? Enter, a pause, a stream: of a recorded request, or of numbers to choose.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { number, seconds, whole } from "./lib/format.js";
import { linear, axisX } from "./lib/plot.js";
import { choice, slider } from "./lib/controls.js";
import { player } from "./lib/player.js";

const QUEUE = [0, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40]; // seconds
const PREFILL = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10];
const TPOT = [0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.35, 0.5, 1];
const TOKENS = [1, 2, 3, 5, 10, 20, 30, 40, 50, 60];

const STYLE = `
.felt .screen { border: 1px solid var(--rule); border-radius: 0.8rem; padding: 0.9rem 1.1rem; background: var(--panel); }
.felt .screen p { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
.felt .who { display: block; font-size: 0.8125rem; color: var(--soft); }
.felt .you { margin-bottom: 0.7rem; }
.felt .answer { min-height: 3em; }
.felt .unsaid { visibility: hidden; }
.felt .fresh { box-shadow: inset 0 -0.55em color-mix(in srgb, var(--bytes) 40%, transparent); }
.felt .controls { margin: 1rem 0 0; }
.felt .sum { margin: 1rem 0 0; min-height: 3em; }
.felt .verdict { margin: 0.3rem 0 0; min-height: 3em; }
.felt svg { margin-top: 0.9rem; }
.felt .ahead { opacity: 0.22; }
.felt .span { stroke: var(--ink); stroke-width: 1.5; fill: none; }
.felt .playhead { stroke: var(--ink); stroke-width: 1.5; }
@container (max-width: 480px) { .felt .sum, .felt .verdict { min-height: 4.5em; } }
`;

// One answer: `pieces` are the times after Enter at which each token came, as theory/latency.py has
// them; the promises are those of `promise`, in seconds.
export function calculate({ queue, prefill, tpot, tokens, pieces = null }, promise) {
  const first = queue + prefill;
  const times = pieces ?? Array.from({ length: tokens }, (_, i) => first + i * tpot);
  const [start, end] = [times[0], times.at(-1)];
  const pace = times.length > 1 ? (end - start) / (times.length - 1) : null;
  return {
    pieces: times,
    ttft: start,
    tpot: pace,
    e2e: end,
    ttft_kept: start <= promise.ttft,
    tpot_kept: pace === null || pace <= promise.tpot,
  };
}

export function render({ model, el }) {
  const recorded = model.get("recorded"); // { model, prompt, pieces: [{ t, text }] }
  const promise = model.get("promise");
  const state = { source: "yours", ...model.get("start") };
  const own = () => state.source === "yours";
  const felt = () => calculate(own() ? state : {
    queue: 0, prefill: recorded.pieces[0].t, pieces: recorded.pieces.map((piece) => piece.t) }, promise);
  let answer = felt();
  let now = 0;
  let parts = null;
  const stops = []; // of the player: its moments change with the answer
  let spans = [];
  const text = h("span");
  const who = h("span", { class: "who" });
  const sum = h("p", { class: "sum" });
  const verdict = h("p", { class: "verdict" });
  const track = h("div");
  const tail = 1.06; // a breath after the last token

  function change(values) {
    Object.assign(state, values);
    source.set(state.source);
    answer = felt();
    write();
    if (parts) build(parts.width);
    film.seek(film.t); // stops playing: a new film has begun
  }

  function write() {
    const words = recorded.pieces.map((piece) => piece.text);
    const length = answer.e2e * tail;
    stops.splice(0, Infinity, 0, ...answer.pieces.map((t) => (t + 1e-9) / length), 1);
    spans = answer.pieces.map((_, i) => h("span", {}, words[i % words.length]));
    replace(text, spans);
    replace(who, own() ? "The answer, at your pace" : `${recorded.model} answered`);
    const { ttft, tpot, e2e, pieces } = answer;
    const wait = own() && state.queue
      ? [h("span", { class: "wait" }, `${seconds(state.queue)} in the queue`), " + ",
        h("span", { class: "compute" }, `${seconds(state.prefill)} of prefill`)]
      : [h("span", { class: "compute" }, `${seconds(ttft)} of prefill`)];
    replace(sum, h("strong", {}, `TTFT ${seconds(ttft)}`), " = ", wait, ". ", tpot === null
      ? "One token has no gap after it: there is no TPOT, and it is not zero. "
      : [h("strong", {}, `TPOT ${seconds(tpot)}`), `, ${number(1 / tpot)} tokens a second. `],
    "All of it takes TTFT", tpot === null ? "" : [` + ${whole(pieces.length - 1)} × `,
      h("span", { class: "bytes" }, seconds(tpot))], " = ", h("strong", {}, seconds(e2e)), ".");
    const broken = [!answer.ttft_kept && "the first token", !answer.tpot_kept && "the pace"].filter(Boolean);
    replace(verdict, `Promised: a first token within ${seconds(promise.ttft)}, then ${seconds(promise.tpot)} a token. `,
      h("strong", {}, broken.length ? `Broken by ${broken.join(" and ")}: nothing of this answer is goodput.`
        : "Kept: this request counts."));
  }

  function build(width) {
    const { ttft, e2e, pieces } = answer;
    const [left, right] = [2, width - 4];
    const x = linear([0, e2e], [left, right]);
    const [top, high] = [6, 36];
    const queued = own() ? state.queue : 0;
    const bar = (colour, from, to) => s("rect", { class: colour, x: x(from), y: top,
      width: Math.max(0, x(to) - x(from)), height: high, rx: 3 });
    const tick = (at) => s("rect", { class: "bytes", x: Math.max(left, x(at) - 2.5), y: top, width: 2.5,
      height: high, rx: 1 });
    const blocks = [["wait", 0, queued], ["compute", queued, ttft]];
    const ghosts = s("g", { class: "ahead" }, blocks.map((one) => bar(...one)), pieces.map(tick));
    const live = blocks.map((one) => bar(...one));
    const ticks = pieces.map(tick);
    const span = (name, to, y) => {
      const end = x(to);
      const room = end > 8.5 * name.length;
      return [s("path", { class: "span", d: `M${left} ${y - 5}v5H${end}v-5` }),
        s("text", { x: room ? end : left, y: y + 16, "text-anchor": room ? "end" : "start" }, name)];
    };
    const playhead = s("line", { class: "playhead", y1: 0, y2: top + high + 5 });
    const bottom = top + high + 72;
    const marks = x.ticks(width < 500 ? 3 : 6);
    const time = axisX(x, bottom, { ticks: marks.filter((at) => x(at) < right - 18),
      format: (at) => (at ? `${number(at)}\u00a0s` : "Enter") });
    time.querySelector("text").setAttribute("text-anchor", "start");
    parts = { width, x, blocks, live, ticks, playhead };
    replace(track, picture(width, bottom + 26, `A pause of ${seconds(ttft)}, then ${pieces.length} tokens until ${seconds(e2e)}`,
      ghosts, live, ticks, span("TTFT: the pause", ttft, top + high + 12),
      span("E2E: all of it", e2e, top + high + 42), time, playhead));
    paint();
  }

  function paint() {
    const { x, blocks, live, ticks, playhead } = parts;
    live.forEach((bar, i) => {
      const [, from, to] = blocks[i];
      bar.setAttribute("width", Math.max(0, x(Math.min(now, to)) - x(from)));
    });
    ticks.forEach((one, i) => one.setAttribute("visibility", answer.pieces[i] <= now ? "visible" : "hidden"));
    const at = x(Math.min(now, answer.e2e));
    playhead.setAttribute("x1", at);
    playhead.setAttribute("x2", at);
    playhead.setAttribute("visibility", now > answer.e2e ? "hidden" : "visible");
    const latest = answer.pieces.findLastIndex((t) => t <= now);
    spans.forEach((one, i) => {
      one.className = i > latest ? "unsaid" : i === latest && now <= answer.e2e ? "fresh" : "";
    });
  }

  const source = choice({ label: "Whose times", value: state.source, options: [
    ["yours", "the sliders'"], ["recorded", "a recorded request's"]], onchange: (key) => change({ source: key }) });
  const set = (field) => (value) => change({ source: "yours", [field]: value });
  const sliders = [
    slider({ label: "Others before you", values: QUEUE, value: state.queue, format: (v) => (v ? seconds(v) : "nobody"), onchange: set("queue") }),
    slider({ label: "Reading the prompt", values: PREFILL, value: state.prefill, format: (v) => seconds(v), onchange: set("prefill") }),
    slider({ label: "Time per token (TPOT)", values: TPOT, value: state.tpot, format: (v) => seconds(v), onchange: set("tpot") }),
    slider({ label: "Tokens of the answer", values: TOKENS, value: state.tokens, format: whole, onchange: set("tokens") })];
  const film = player({
    seconds: () => answer.e2e * tail,
    label: "Time since Enter",
    stops,
    format: (t) => `${seconds(Math.min(t * tail, 1) * answer.e2e)} after Enter`,
    draw(t) {
      now = t * tail * answer.e2e;
      if (parts) paint();
    },
  });
  write();
  el.append(h("style", {}, STYLE), h("div", { class: "felt" },
    h("div", { class: "screen" },
      h("p", { class: "you" }, h("span", { class: "who" }, "You press Enter on"), recorded.prompt),
      h("p", { class: "answer" }, who, text)),
    track, film.node, sum, verdict, h("div", { class: "controls" }, source.node, sliders.map((one) => one.node))));
  onWidth(track, build);
}
