// Everything at once: who waits, reads and writes in each step, and who holds which block of memory.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { seconds, whole } from "./lib/format.js";
import { linear, axisX } from "./lib/plot.js";
import { fold } from "./lib/fold.js";
import { player } from "./lib/player.js";

const STYLE = `
.trace svg { margin-top: 0.4rem; }
.trace .yours { font-weight: 700; }
.trace .ahead { opacity: 0.2; }
.trace .ticks { fill: none; stroke: currentColor; stroke-width: 1.6; }
.trace .playhead { stroke: var(--ink); stroke-width: 1.5; }
.trace .band { fill: var(--panel); }
.trace .block { stroke: var(--rule); fill: none; }
.trace .mine { fill: var(--kv); stroke: var(--kv); }
.trace .theirs { fill: color-mix(in srgb, var(--kv) 22%, transparent); stroke: color-mix(in srgb, var(--kv) 45%, transparent); }
.trace .kept { stroke: var(--kv); stroke-dasharray: 3 2.5; }
.trace .on { fill: var(--paper); font-weight: 700; }
.trace .caption { margin: 0.8rem 0 0.3rem; min-height: 4.5em; }
.trace .key { font-size: 0.875rem; margin: 0.35rem 0 0; color: var(--soft); display: flex; flex-wrap: wrap; gap: 0 1rem; }
.trace .key svg { display: inline-block; width: 14px; height: 14px; margin: 0 0.4em 0 0; vertical-align: -2px; }
@container (max-width: 480px) { .trace .caption { min-height: 7.5em; } }
`;

const list = (names) => names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
const tokens = (count) => `${whole(count)} token${count === 1 ? "" : "s"}`;

// What each step did, in a sentence or two. `names` by id; `you` is the id of one of them.
export function tell(step, names, you) {
  const name = (id) => names.get(id);
  const verb = (ids, one, many) => `${list(ids.map(name))} ${ids.length === 1 && ids[0] !== you ? one : many}`;
  const said = [];
  for (const id of step.preempted) said.push(`${name(id)} must give all blocks back and wait: memory is full`);
  for (const [id, cached] of step.scheduled) {
    said.push(cached ? `${verb([id], "enters", "enter")} and ${id === you ? "find" : "finds"} ${tokens(cached)} in memory already`
      : verb([id], "enters", "enter"));
  }
  if (step.decode.length) said.push(verb(step.decode, "writes a token", step.decode.length === 1 ? "write a token" : "write a token each"));
  for (const [id, count] of step.chunks) said.push(`${verb([id], "reads", "read")} ${tokens(count)}`);
  return said.map((text) => `${text[0].toUpperCase()}${text.slice(1)}.`).join(" ");
}

// `requests`: as engine/trace.py tells them, each with a `name`; `steps`: { from, to, decode, chunks,
// scheduled, preempted, holders, kept }; `you` is the name of one request, `block` a block's tokens.
export function render({ model, el }) {
  const [requests, steps, yours] = [model.get("requests"), model.get("steps"), model.get("you")];
  const names = new Map(requests.map((one) => [one.id, one.name]));
  const you = requests.find((one) => one.name === yours).id;
  const lives = requests.map((one) => ({ ...one, ...fold(one.events) }));
  const end = steps.at(-1).to;
  const blocks = steps[0].holders.length;
  const board = h("div");
  const grid = h("div");
  const caption = h("p", { class: "caption" });
  let now = end;
  let parts = null;

  function build(width) {
    const left = 38;
    const x = linear([0, end], [left, width - 6]);
    const pitch = 27;
    const high = 20;
    const bottom = requests.length * pitch + 2;
    const row = (one, i) => {
      const y = i * pitch + 3;
      const at = (time) => x(one.arrived_s + time);
      const bar = (kind, { from, to }, tall) => s("rect", { class: kind, x: at(from).toFixed(1), y: y + high - tall,
        width: Math.max(0.8, at(to) - at(from) - 0.8).toFixed(1), height: tall, rx: 2 });
      const ticks = one.tokens.map((time) => `M${at(time).toFixed(1)} ${y}v${high}`).join("");
      return s("g", {}, one.waits.map((wait) => bar("wait", wait, 7)), one.chunks.map((chunk) => bar("compute", chunk, high)),
        s("path", { class: "ticks bytes", d: ticks }));
    };
    const lines = () => lives.map(row);
    const clip = s("rect", { x: 0, y: 0, width: 0, height: bottom });
    const id = "past";
    const head = s("line", { class: "playhead", y1: 0, y2: bottom });
    const band = s("rect", { class: "band", y: 0, height: bottom });
    const labels = lives.map((one, i) => s("text", { class: one.id === you ? "yours" : "", x: 0, y: i * pitch + 18 }, one.name));
    const time = axisX(x, bottom, { ticks: x.ticks(width < 500 ? 4 : 8), format: (t) => (t ? seconds(t) : "0") });
    replace(board, picture(width, bottom + 24, model.get("alt") ?? "Requests in time: waiting, prefill, decode",
      band, labels, time, s("clipPath", { id }, clip), s("g", { class: "ahead" }, lines()),
      s("g", { "clip-path": `url(#${id})` }, lines()), head));
    parts = { x, clip, head, band, width };
    paint();
  }

  function cells(step) {
    const { width } = parts;
    const columns = Math.min(blocks, 11);
    const pitch = width / columns;
    const tall = 24;
    const lines = Math.ceil(blocks / columns);
    const kept = new Set(step?.kept ?? []);
    const drawn = Array.from({ length: blocks }, (_, i) => {
      const holders = step?.holders[i] ?? [];
      const [x, y] = [(i % columns) * pitch + 1, Math.floor(i / columns) * (tall + 4) + 1];
      const mine = holders.includes(you);
      const look = mine ? "mine" : holders.length ? "theirs" : kept.has(i) ? "kept" : "";
      const others = holders.filter((id) => id !== you).map((id) => names.get(id)[0]).join("");
      const text = mine ? (others ? `+${others}` : "") : others;
      return [s("rect", { class: `block ${look}`, x, y, width: pitch - 3, height: tall, rx: 3 }),
        text ? s("text", { class: mine ? "on" : "", x: x + (pitch - 3) / 2, y: y + 17, "text-anchor": "middle" }, text) : null];
    });
    const used = step ? step.holders.filter((one) => one.length).length : 0;
    replace(grid, picture(width, lines * (tall + 4), `${used} of ${blocks} blocks are held`, drawn));
  }

  function paint() {
    const { x, clip, head, band } = parts;
    const step = steps.findLast((one) => one.to <= now + 1e-9);
    const next = steps.find((one) => one.from <= now && now < one.to - 1e-9);
    clip.setAttribute("width", Math.max(0, x(Math.min(now, end))));
    for (const side of ["x1", "x2"]) head.setAttribute(side, x(Math.min(now, end)));
    const shown = next ?? steps.at(-1);
    band.setAttribute("x", x(shown.from));
    band.setAttribute("width", Math.max(0, x(shown.to) - x(shown.from)));
    cells(next ?? step);
    const used = shown.holders.filter((one) => one.length).length;
    caption.textContent = now >= end - 1e-9
      ? `All answers are complete after ${seconds(end)} and ${whole(steps.length)} steps. No block is held, and ${
        whole(shown.kept.length)} of ${whole(blocks)} can still be found by whoever begins with the same words.`
      : next ? `Step ${whole(steps.indexOf(next) + 1)}, at ${seconds(now, 3)}. ${tell(next, names, you)} ${used} of ${whole(blocks)} blocks are held.`
        : `At ${seconds(now, 3)} nobody is there.`;
  }

  const film = player({ seconds: 20, label: "Time", stops: [0, ...steps.map((step) => (step.to + 1e-9) / end)].map((t) => Math.min(1, t)),
    format: (t) => seconds(t * end), draw(t) { now = t * end; if (parts) paint(); } });
  const swatch = (look) => s("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, s("rect", { class: `block ${look}`, x: 1, y: 1, width: 12, height: 12, rx: 3 }));
  el.append(h("style", {}, STYLE), h("div", { class: "trace" }, board, film.node, caption,
    h("p", { class: "key" }, h("span", {}, `${whole(blocks)} blocks of ${whole(model.get("block"))} tokens: `),
      [["mine", `held by ${yours}`], ["theirs", "by others"], ["kept", "free, to be found again"], ["", "empty"]].map(([look, text]) =>
        h("span", {}, swatch(look), text))), grid));
  onWidth(board, build);
}
