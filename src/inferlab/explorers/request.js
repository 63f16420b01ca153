// Where does the time of a request go? One recorded request, played back at the speed it ran.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { bytes, flops, number, seconds, whole } from "./lib/format.js";
import { linear, axisX } from "./lib/plot.js";
import { choice } from "./lib/controls.js";
import { player } from "./lib/player.js";

const STYLE = `
.screen { border: 1px solid var(--rule); border-radius: 0.8rem; padding: 0.9rem 1.1rem; background: var(--panel); }
.screen p { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
.screen .who { display: block; font-size: 0.8125rem; color: var(--soft); }
.screen .you { margin-bottom: 0.7rem; }
.screen .unsaid { visibility: hidden; }
.screen .fresh { box-shadow: inset 0 -0.55em color-mix(in srgb, var(--bytes) 40%, transparent); }
.caption { margin: 0.6rem 0 0; min-height: 3em; }
.request svg { margin-top: 0.9rem; font-size: 13px; }
.request .name { font-weight: 650; }
.request tspan.soft { fill: var(--soft); }
.request .ahead { opacity: 0.22; }
.request .area { fill: currentColor; fill-opacity: 0.22; }
.request .playhead { stroke: var(--ink); stroke-width: 1.5; }
.below { display: flex; flex-wrap: wrap; gap: 0.4rem 1.5rem; align-items: center; }
.below .player { flex: 1 1 15rem; } .below .choice { display: flex; gap: 0.6rem; align-items: center; }
.below .choice legend { float: left; } .below .choice > div { flex-wrap: nowrap; }
@container (max-width: 480px) { .caption { min-height: 4.5em; } }
`;

// Totals at every moment: straight within a pass, since a pass spends its bytes evenly.
function running(passes, key) {
  let sum = 0;
  return passes.map((pass) => ({ from: pass.from, to: pass.to, before: sum, after: (sum += pass[key]) }));
}

function total(steps, now) {
  const step = steps.findLast((one) => one.from <= now);
  if (!step) return 0;
  const share = Math.min(1, (now - step.from) / (step.to - step.from));
  return step.before + share * (step.after - step.before);
}

export function render({ model, el }) {
  const passes = model.get("passes"); // [{ from, to, tokens, text, bytes, flops }], the first is prefill
  const end = passes.at(-1).to;
  const first = passes[0];
  const decodes = passes.length - 1;
  const work = { flops: running(passes, "flops"), bytes: running(passes, "bytes") };
  const colour = { compute: "compute", memory: "bytes" };
  const tail = 0.06; // a breath after the last token, so that the end can be read
  const span = end * (1 + tail);

  const pieces = passes.map((pass) => h("span", {}, pass.text));
  const screen = h("div", { class: "screen" },
    h("p", { class: "you" }, h("span", { class: "who" }, "You press Enter on"), model.get("prompt")),
    h("p", { class: "model" }, h("span", { class: "who" }, `${model.get("model")} answers`), pieces));
  const track = h("div");
  const caption = h("p", { class: "caption" });

  let parts; // what a change of width rebuilds and a change of time paints
  let now = 0;

  function build(width) {
    const left = 2;
    const x = linear([0, end], [left, width - 3]);
    const rows = { track: 26, flops: 96, bytes: 170 };
    const high = { track: 34, flops: 40, bytes: 40 };
    const bottom = rows.bytes + high.bytes;
    const block = s("rect", { class: colour[first.bound], x: x(0), y: rows.track, width: 0, height: high.track, rx: 3 });
    const ticks = passes.slice(1).map((pass) =>
      s("rect", { class: colour[pass.bound], x: x(pass.to) - 2.5, y: rows.track, width: 2.5, height: high.track, rx: 1 }));
    const areas = ["flops", "bytes"].map((key) => {
      const most = work[key].at(-1).after;
      const y = linear([0, most], [rows[key] + high[key], rows[key]]);
      const clip = s("rect", { x: 0, y: 0, width: 0, height: bottom + 10 });
      const corners = work[key].flatMap((step) => [[step.from, step.before], [step.to, step.after]]);
      const line = corners.map(([t, v]) => `${x(t).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
      const shape = () => s("g", { class: key === "flops" ? "compute" : "bytes" },
        s("polygon", { class: "area", points: `${x(0)},${y(0)} ${line} ${x(end)},${y(0)}` }),
        s("polyline", { class: "line", points: line }));
      const id = `past-${key}`;
      const ghost = shape();
      ghost.classList.add("ahead");
      const past = shape();
      past.setAttribute("clip-path", `url(#${id})`);
      const value = s("tspan", { class: `name ${key === "flops" ? "compute" : "bytes"}` });
      const label = s("text", { x: left, y: rows[key] - 8 }, value,
        s("tspan", { class: "soft" }, key === "flops" ? "  of arithmetic" : "  read from memory"));
      return { key, clip, value, node: [s("clipPath", { id }, clip), ghost, past, label,
        s("line", { class: "rule", x1: left, x2: x(end), y1: y(0), y2: y(0) })] };
    });
    const ghosts = s("g", { class: "ahead" },
      s("rect", { class: colour[first.bound], x: x(0), y: rows.track, width: x(first.to) - x(0) - 2, height: high.track, rx: 3 }),
      ticks.map((tick) => tick.cloneNode()));
    const playhead = s("line", { class: "playhead", y1: rows.track - 5, y2: bottom });
    const prompt = `prefill: ${first.tokens} tokens`;
    const heading = [
      s("text", { class: `${colour[first.bound]} name`, x: left, y: 15 }, prompt),
      s("text", { class: "bytes name", x: Math.max(x(first.to) + 2, 7.4 * prompt.length), y: 15 },
        "decode: a tick a token")];
    const time = axisX(x, bottom, { ticks: x.ticks(width < 500 ? 4 : 8), top: rows.track,
      format: (t) => (t ? `${number(t)}\u00a0s` : "Enter") });
    time.querySelector("text").setAttribute("text-anchor", "start");
    parts = { x, block, ticks, areas, playhead };
    replace(track, picture(width, bottom + 26, model.get("alt") ?? "Timeline of the request",
      time, ghosts, block, ticks, areas.map((area) => area.node), playhead, heading));
    paint();
  }

  function paint() {
    const { x, block, ticks, areas, playhead } = parts;
    block.setAttribute("width", Math.max(0, x(Math.min(now, first.to)) - x(0) - (now >= first.to ? 2 : 0)));
    ticks.forEach((tick, i) => tick.setAttribute("visibility", passes[i + 1].to <= now ? "visible" : "hidden"));
    for (const { key, clip, value } of areas) {
      clip.setAttribute("width", x(Math.min(now, end)) + 2);
      value.textContent = (key === "flops" ? flops : bytes)(total(work[key], now));
    }
    const head = x(Math.min(now, end));
    playhead.setAttribute("x1", head);
    playhead.setAttribute("x2", head);
    playhead.setAttribute("visibility", now > end ? "hidden" : "visible");
    const latest = passes.findLastIndex((pass) => pass.to <= now);
    pieces.forEach((piece, i) => {
      piece.className = i > latest ? "unsaid" : i === latest && now <= end ? "fresh" : "";
    });
    caption.textContent = say(latest);
  }

  function say(latest) {
    if (latest < 0) {
      return `Prefill: all ${first.tokens} tokens of the prompt go through the model in one pass, together. `
        + "The screen stays empty.";
    }
    if (latest < decodes) {
      return `Decode: token ${latest + 1} of ${passes.length} is on the screen. For the next one `
        + `the model reads ${bytes(passes[latest + 1].bytes)} from memory again.`;
    }
    const share = (key) => `${whole((100 * first[key]) / work[key].at(-1).after)} %`;
    return `Prefill took ${seconds(first.to)}: ${share("flops")} of all the arithmetic, for `
      + `${share("bytes")} of the bytes. Each of the ${decodes} tokens after it took about `
      + `${seconds((end - first.to) / decodes, 2)} and paid for a pass of its own.`;
  }

  const pace = choice({ label: "Speed", value: "1", options: [["1", "as it ran"], ["4", "4× slower"]] });
  const film = player({
    seconds: () => span * Number(pace.value),
    label: "Time since Enter",
    stops: [0, ...passes.map((pass) => (pass.to + 1e-9) / span), 1],
    format: (t) => `${seconds(Math.min(t * span, end))} after Enter`,
    draw(t) {
      now = t * span;
      if (parts) paint();
    },
  });
  el.classList.add("request");
  el.append(h("style", {}, STYLE), screen, track, caption,
    h("div", { class: "below" }, film.node, pace.node));
  onWidth(track, build);
}
