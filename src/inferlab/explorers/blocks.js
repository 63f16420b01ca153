// Where does the cache live? Blocks of a real pool, step by step: taken, shared, let go, found again.

import { h, onWidth, picture, replace, s } from "./lib/dom.js";
import { whole } from "./lib/format.js";
import { player } from "./lib/player.js";

const STYLE = `
.pool .block { fill: none; stroke: var(--rule); stroke-width: 1; }
.pool .held { fill: color-mix(in srgb, var(--kv) 16%, transparent); stroke: var(--kv); stroke-width: 1.5; }
.pool .shared { fill: color-mix(in srgb, var(--kv) 34%, transparent); stroke: var(--kv); stroke-width: 2.5; }
.pool .kept { fill: none; stroke: var(--kv); stroke-dasharray: 5 4; stroke-width: 1.3; }
.pool .fresh { fill: none; stroke: var(--bytes); stroke-width: 3; }
.pool .faint { fill: var(--soft); }
.pool .who { font-weight: 700; }
.pool .happened { margin: 0.7rem 0 0; min-height: 4.5em; }
.pool .counts { margin: 0.3rem 0 0; }
.pool table { border-collapse: collapse; margin-top: 0.6rem; width: 100%; }
.pool :is(th, td) { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0; border-bottom: 1px solid var(--rule);
  font-weight: 400; vertical-align: top; }
.pool th { white-space: nowrap; width: 1%; font-weight: 700; }
.pool td:last-child { color: var(--soft); }
.pool tbody tr { height: 2em; }
@container (max-width: 480px) { .pool .happened { min-height: 7.5em; } .pool tbody tr { height: 3.4em; } }
`;

const list = (names) => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`);

// What stands after step `at`: numbers of blocks by their state, those that changed hands in it, and
// what happened, in sentences.
export function view({ steps, size }, at) {
  const step = steps[at];
  const before = at ? steps[at - 1].blocks : step.blocks.map(() => ({ holders: [] }));
  const where = (test) => step.blocks.flatMap((block, i) => (test(block, i) ? [i] : []));
  const happened = [];
  for (const name of step.preempted) {
    happened.push(`No block is left for the next token of an older one: ${name} is preempted and gives all its blocks back.`);
  }
  for (const name of step.came) happened.push(`${name} comes.`);
  for (const [name, found] of step.scheduled) {
    happened.push(found ? `${name} finds its first ${found} tokens in ${whole(found / size)} block${found === size ? "" : "s"}, and computes the rest.`
      : `${name} finds nothing and computes its prompt.`);
  }
  for (const name of step.waiting) happened.push(`${name} waits.`);
  for (const name of step.finished) happened.push(`${name} is done. Its full blocks are free, but kept.`);
  const writing = Object.keys(step.tables).filter((name) => !step.scheduled.some(([other]) => other === name));
  if (writing.length) happened.push(`${list(writing)} write${writing.length === 1 ? "s" : ""} a token${writing.length === 1 ? "" : " each"}.`);
  if (!happened.length) happened.push("Nobody is here.");
  return {
    held: where((block) => block.holders.length > 0),
    shared: where((block) => block.holders.length > 1),
    kept: where((block) => block.kept),
    empty: where((block) => !block.kept && !block.holders.length),
    fresh: where((block, i) => block.holders.length > before[i].holders.length
      || block.holders.some((name) => !before[i].holders.includes(name))),
    happened,
  };
}

// `text` in two lines of `room` letters at most.
function fold(text, room) {
  const lines = [""];
  for (const word of text) {
    const shown = word.replaceAll("\n", "↵");
    if ((lines.at(-1) + shown).trim().length > room && lines.at(-1)) lines.push(shown);
    else lines[lines.length - 1] += shown;
  }
  return lines.slice(0, 2).map((line, i) => {
    const cut = line.trim().length > room || (i === 1 && lines.length > 2);
    return cut ? `${line.trim().slice(0, room - 1)}…` : line.trim();
  });
}

export function render({ model, el }) {
  const film = { size: model.get("size"), steps: model.get("steps") };
  const requests = model.get("requests"); // name: { prompt, answer }
  const count = film.steps.length;
  const names = Object.keys(requests);
  const board = h("div");
  const happened = h("p", { class: "happened" });
  const counts = h("p", { class: "counts" });
  const body = h("tbody");
  let at = count - 1;
  let width = 0;

  function draw() {
    const step = film.steps[at];
    const seen = view(film, at);
    replace(happened, h("strong", {}, `Step ${at + 1}. `), seen.happened.join(" "));
    replace(counts, h("span", { class: "kv" }, `${seen.held.length} of ${step.blocks.length} blocks are held`),
      `, ${seen.shared.length} of them more than once; ${seen.kept.length} free ones can be found again.`);
    replace(body, names.map((name) => {
      const table = step.tables[name];
      const state = step.waiting.includes(name) ? "waits" : film.steps.slice(0, at + 1).some((one) => one.finished.includes(name))
        ? "done" : "not here yet";
      return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, table ? `blocks ${table.join(", ")}` : state),
        h("td", {}, requests[name].prompt));
    }));
    if (!width) return;
    const columns = Math.max(3, Math.min(6, Math.floor(width / 112)));
    const pitch = (width - 2) / columns;
    const [wide, tall] = [pitch - 6, 62];
    const room = Math.floor((wide - 12) / 6.9);
    const cells = step.blocks.map((block, i) => {
      const [x, y] = [1 + (i % columns) * pitch, 2 + Math.floor(i / columns) * (tall + 8)];
      const look = block.holders.length > 1 ? "shared" : block.holders.length ? "held" : block.kept ? "kept" : "";
      const lines = fold(block.text, room);
      return s("g", { transform: `translate(${x} ${y})` },
        s("rect", { class: `block ${look}`, width: wide, height: tall, rx: 6 }),
        seen.fresh.includes(i) ? s("rect", { class: "fresh", width: wide, height: tall, rx: 6 }) : null,
        s("text", { class: "tick", x: 7, y: 17 }, i),
        s("text", { class: "who", x: wide - 7, y: 17, "text-anchor": "end" }, block.holders.join(" ")),
        lines.map((line, n) => s("text", { class: block.kept ? "faint" : "", x: 7, y: 36 + 16 * n, "font-size": 12 }, line)));
    });
    const deep = Math.ceil(step.blocks.length / columns) * (tall + 8);
    replace(board, picture(width, deep, `Step ${at + 1}: ${seen.held.length} blocks held, ${seen.kept.length} kept, ${seen.empty.length} empty`, cells));
  }

  const pace = player({ seconds: count * 0.9, label: "Step", 
    rest: model.get("rest") === count - 1 ? 1 : (model.get("rest") + 0.5) / count,
    stops: film.steps.map((_, i) => (i + 0.5) / count), format: (t) => `step ${Math.min(count, Math.floor(t * count) + 1)} of ${count}`,
    draw: (t) => { at = Math.min(count - 1, Math.floor(t * count + 1e-9)); draw(); } });
  el.append(h("style", {}, STYLE), h("div", { class: "pool" }, board, happened, counts, pace.node,
    h("table", {}, body)));
  onWidth(board, (wide) => { width = wide; draw(); });
}
