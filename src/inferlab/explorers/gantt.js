// Who shares the trip? Requests as lines, passes as marks: the batch as a Gantt chart, by settings.
// The schedule is that of theory/queueing.py and theory/batching.py; tests compare them.

import { h, onWidth, picture, replace, s } from "./lib/dom.js";
import { number, seconds, whole } from "./lib/format.js";
import { choice, slider } from "./lib/controls.js";
import { player } from "./lib/player.js";
import { axisX, linear } from "./lib/plot.js";

const BATCHES = [1, 2, 3, 4, 6, 8, 12, 16];
const STEP_TOKENS = [32, 64, 128, 256, 512, 1024, 2048, 4096];

const STYLE = `
.gantt .lane { stroke: var(--rule); stroke-width: 1; }
.gantt rect.wait { opacity: 0.45; }
.gantt .ahead { opacity: 0.25; }
.gantt .playhead { stroke: var(--ink); stroke-width: 1.5; }
.gantt .now, .gantt .sum { margin: 0.6rem 0 0; min-height: 3em; }
.gantt .choices { display: flex; flex-wrap: wrap; gap: 0.8rem 1.6rem; margin-bottom: 0.8rem; }
.gantt .off > input { opacity: 0.4; }
@container (max-width: 480px) { .gantt .now, .gantt .sum { min-height: 4.5em; } }
`;

// Seconds of a pass out of a table [[size, seconds], ...]: straight lines between its points.
function price(table, size) {
  const at = table.findIndex(([known]) => known >= size);
  if (at === 0) return table[0][1];
  if (table.length === 1) return (table[0][1] * size) / table[0][0];
  const high = at < 0 ? table.length - 1 : at;
  const [[x0, y0], [x1, y1]] = [table[high - 1], table[high]];
  return y0 + ((y1 - y0) / (x1 - x0)) * (size - x0);
}

// Play `jobs` ({ arrived, prompt, output }) through a server. Returns { requests, steps, busy, rows,
// wasted }: each request has `started`, `pieces` (when its tokens came) and `chunks` (from, to); each
// step `from`, `to`, `rows`, `read` (tokens of prompts), `waiting`.
export function simulate(jobs, { decode, prefill, per_context: perContext }, { mode, maxBatch, stepTokens }) {
  const requests = jobs.map((job) => ({ ...job, started: null, pieces: [], chunks: [], left: job.prompt }));
  const queue = requests.toSorted((a, b) => a.arrived - b.arrived); // stable: first come, first served
  const out = { requests, steps: [], busy: 0, rows: 0, wasted: 0 };
  let now = 0;
  let active = [];

  function step(rows, seats, reading) {
    const context = rows.reduce((sum, one) => sum + one.prompt + one.pieces.length - 1, 0)
      + reading.reduce((sum, [one]) => sum + one.prompt - one.left, 0);
    const from = now;
    now += context * perContext + (seats ? price(decode, seats) : 0);
    for (const [one, size] of reading) {
      one.started ??= from;
      const began = now;
      now += price(prefill, size);
      one.chunks.push([began, now]);
      one.left -= size;
    }
    for (const one of rows) one.pieces.push(now);
    for (const [one] of reading) if (!one.left) one.pieces.push(now);
    out.steps.push({ from, to: now, rows: rows.length, read: reading.reduce((sum, [, size]) => sum + size, 0),
      waiting: requests.filter((one) => one.arrived <= from && one.started === null).length });
    out.busy += now - from;
    out.rows += rows.length;
    out.wasted += seats - rows.length;
  }

  const over = (one) => one.pieces.length >= one.output;
  while (queue.length || active.length) {
    if (!active.length && queue[0].arrived > now) now = queue[0].arrived;
    const arrived = () => queue.length && queue[0].arrived <= now;
    if (mode === "static") {
      const here = queue.filter((one) => one.arrived <= now).length;
      const batch = queue.splice(0, Math.min(here, maxBatch));
      step([], 0, batch.map((one) => [one, one.left]));
      while (!batch.every(over)) step(batch.filter((one) => !over(one)), batch.length, []);
    } else {
      const rows = active.filter((one) => !one.left);
      const reading = [];
      let budget = stepTokens - rows.length;
      const take = (one) => {
        const size = Math.min(one.left, budget);
        reading.push([one, size]);
        budget -= size;
      };
      for (const one of active) if (one.left && budget) take(one);
      while (budget && active.length < maxBatch && arrived()) {
        active.push(queue.shift());
        take(active.at(-1));
      }
      step(rows, rows.length, reading);
      active = active.filter((one) => !over(one));
    }
  }
  return out;
}

// What a run adds up to.
export function summary({ requests, steps, wasted }) {
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const gaps = requests.flatMap(({ pieces }) => pieces.slice(1).map((at, i) => at - pieces[i]));
  return { end: steps.at(-1).to, steps: steps.length, wasted, gap: Math.max(0, ...gaps),
    ttft: mean(requests.map((one) => one.pieces[0] - one.arrived)) };
}

export function render({ model, el }) {
  const loads = model.get("loads"); // { key, label, jobs }
  const machines = model.get("machines"); // { key, label, decode, prefill, per_context }
  const state = { ...model.get("start") };
  const board = h("div");
  const moment = h("p", { class: "now" });
  const sum = h("p", { class: "sum" });
  const stops = [];
  let run = null;
  let end = 1; // of the time axis: both schedules fit on it
  let now = 0;
  let width = 0;
  let paint = () => {};
  const find = (list, key) => list.find((one) => one.key === key);

  function play(mode) {
    return simulate(find(loads, state.load).jobs, find(machines, state.machine), { ...state, mode });
  }

  function change(values) {
    Object.assign(state, values);
    const both = { static: play("static"), continuous: play("continuous") };
    run = both[state.mode];
    end = 1.02 * Math.max(...Object.values(both).map((one) => one.steps.at(-1).to));
    stops.splice(0, Infinity, 0, ...run.steps.map((step) => step.to / end), 1);
    tokens.node.classList.toggle("off", state.mode === "static");
    tokens.input.disabled = state.mode === "static";
    const found = summary(run);
    replace(sum, h("strong", {}, `${seconds(found.end)} for all, in ${whole(found.steps)} steps`),
      `. The first token comes after `, h("span", { class: "wait" }, seconds(found.ttft)),
      ` on average; the longest gap between two tokens is `, h("span", { class: "bytes" }, seconds(found.gap)), ". ",
      state.mode === "static" ? `${whole(found.wasted)} rows were computed for answers already over.`
        : "No row is computed for an answer that is over.");
    draw();
    film?.seek(film.t);
  }

  function draw() {
    if (!width) return;
    const count = run.requests.length;
    const tall = width < 480 ? 14 : 18;
    const [left, right, top] = [26, width - 6, 4];
    const bottom = top + count * (tall + 4);
    const x = linear([0, end], [left, right]);
    const marks = () => run.requests.map((one, i) => {
      const y = top + i * (tall + 4);
      const bar = (colour, from, to) => (to > from ? s("rect", { class: colour, x: x(from), y,
        width: Math.max(0.8, x(to) - x(from)), height: tall }) : null);
      // All ticks of an answer are one path: hundreds of them stay light, and thin where they crowd.
      const pitch = (x(one.pieces.at(-1)) - x(one.pieces[0])) / Math.max(1, one.pieces.length - 1);
      const ticks = one.pieces.slice(1).map((at) => `M${(x(at) - 0.5).toFixed(1)} ${y}v${tall}`).join("");
      return [bar("wait", one.arrived, one.started),
        one.chunks.map(([from, to]) => bar("compute", from, to)),
        ticks ? s("path", { class: "bytes line", d: ticks, style: `stroke-width:${Math.min(1.2, 0.5 * pitch)}` }) : null];
    });
    const names = run.requests.map((_, i) => [
      s("line", { class: "lane", x1: left, x2: right, y1: top + i * (tall + 4) + tall + 2, y2: top + i * (tall + 4) + tall + 2 }),
      s("text", { class: "tick", x: left - 7, y: top + i * (tall + 4) + tall - 3, "text-anchor": "end" }, i + 1)]);
    const window_ = s("rect", { x: left, y: 0, width: 0, height: bottom });
    const playhead = s("line", { class: "playhead", y1: 0, y2: bottom });
    const time = axisX(x, bottom, { ticks: x.ticks(width < 500 ? 3 : 6).filter((at) => x(at) < right - 24),
      format: (at) => (at ? seconds(at) : "0") });
    replace(board, picture(width, bottom + 24, "Requests, one a line: waiting, reading and writing",
      s("defs", {}, s("clipPath", { id: "past" }, window_)), names, s("g", { class: "ahead" }, marks()),
      s("g", { "clip-path": "url(#past)" }, marks()), time, playhead));
    paint = () => {
      const at = x(Math.min(now, end));
      window_.setAttribute("width", Math.max(0, at - left));
      playhead.setAttribute("x1", at);
      playhead.setAttribute("x2", at);
      const place = run.steps.findIndex((step) => step.to > now + 1e-12);
      const step = run.steps[place];
      replace(moment, h("strong", {}, seconds(now)), ": ", !step ? "all is quiet." : step.from > now ? "nobody is here."
        : [`step ${whole(place + 1)}. `, h("span", { class: "bytes" }, step.rows === 1 ? "1 answer gets a token"
          : `${whole(step.rows)} answers get a token`), step.read ? [", ", h("span", { class: "compute" },
          `${whole(step.read)} token${step.read === 1 ? "" : "s"} of prompts are read`)] : "", ", ",
        h("span", { class: "wait" }, `${whole(step.waiting)} wait`), "."]);
    };
    paint();
  }

  const mode = choice({ label: "Schedule", value: state.mode, options: [["static", "static"], ["continuous", "continuous"]],
    onchange: (key) => change({ mode: key }) });
  const load = choice({ label: "Requests", value: state.load, options: loads.map((one) => [one.key, one.label]),
    onchange: (key) => change({ load: key }) });
  const machine = choice({ label: "Machine", value: state.machine, options: machines.map((one) => [one.key, one.label]),
    onchange: (key) => change({ machine: key }) });
  const batch = slider({ label: "Answers at a time (max_batch)", values: BATCHES, value: state.maxBatch, format: number,
    onchange: (maxBatch) => change({ maxBatch }) });
  const tokens = slider({ label: "Tokens in a step (step_tokens)", values: STEP_TOKENS, value: state.stepTokens, format: whole,
    onchange: (stepTokens) => change({ stepTokens }) });
  let film = null;
  change({});
  film = player({ seconds: 10, label: "Time", stops, format: (t) => seconds(t * end),
    draw: (t) => { now = t * end; paint(); } });
  el.append(h("style", {}, STYLE), h("div", { class: "gantt" },
    h("div", { class: "choices" }, mode.node, load.node, machines.length > 1 ? machine.node : null),
    h("div", { class: "controls" }, batch.node, tokens.node), h("div", { style: "height:0.9rem" }), board, moment,
    film.node, sum));
  onWidth(board, (wide) => { width = wide; draw(); });
}
