// How fast can it possibly be? A counter climbs to the wall, and three attacks move the wall.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { byteRate, bytes, number, percent } from "./lib/format.js";
import { axisX, log } from "./lib/plot.js";
import { choice } from "./lib/controls.js";
import { player } from "./lib/player.js";

const STYLE = `
.ceiling .controls { grid-template-columns: repeat(auto-fit, minmax(min(100%, 12.5rem), 1fr)); }
.ceiling .sum { margin: 1rem 0 0; font-size: 1.0625rem; }
.ceiling .sum b { font-weight: 650; }
.ceiling .wall { stroke: var(--ink); stroke-width: 4; }
.ceiling .old { stroke: var(--wait); stroke-width: 2; stroke-dasharray: 4 4; }
.ceiling .stage { stroke: var(--paper); stroke-width: 2; }
.ceiling .name { font-weight: 650; }
.caption { margin: 0.6rem 0 0; min-height: 3em; }
@container (max-width: 480px) { .caption { min-height: 6em; } }
`;

// `walls`: { chips, dtype, users, bandwidth, bytes, user, total }, the limits in tokens a second;
// `stages`: { share, name }, how near to its limit others have come.
export function render({ model, el }) {
  const walls = model.get("walls");
  const stages = model.get("stages");
  const state = { ...model.get("start") };
  const same = (a, b) => a.chips === b.chips && a.dtype === b.dtype && a.users === b.users;
  const find = (wanted) => walls.find((wall) => same(wall, wanted));
  const first = find(state);
  const low = Math.min(...walls.map((w) => w.user)) * stages[0].share * 0.6;
  const high = Math.max(...walls.map((w) => w.total)) * 1.5;
  const stageAt = (now) => Math.min(stages.length - 1, Math.floor(now * stages.length + 1e-9));
  const board = h("div");
  const sum = h("p", { class: "sum" });
  const caption = h("p", { class: "caption" });
  let t = 1;
  let width = 0;

  const rows = [["each user", "user", "bytes"], ["all together", "total", "compute"]];

  function draw() {
    const wall = find(state);
    replace(sum, h("span", { class: "bytes" }, byteRate(wall.bandwidth)), " ÷ ",
      h("span", { class: "bytes" }, `${bytes(wall.bytes)} a step`), " = at most ",
      h("b", {}, `${number(wall.user)} tokens/s`), " a user",
      wall.users > 1 ? [", ", h("b", {}, `${number(wall.total)} tokens/s`), " together"] : "");
    if (!width) return;
    const [left, right] = [8, width - 14];
    const x = log([low, high], [left, right]);
    const seen = wall.users > 1 ? rows : rows.slice(0, 1);
    const at = t * stages.length; // from stage to stage, each as long as the next
    const index = stageAt(t);
    const before = index ? stages[index - 1].share : 0.02;
    const share = t >= 1 ? 1 : before + (stages[index].share - before) * Math.min(1, at - index);
    const bar = ([name, field, colour], i) => {
      const y = 26 + 74 * i;
      const limit = wall[field];
      const now = Math.max(low, share * limit);
      const started = first[field] !== limit;
      return [s("text", { class: "name", x: left, y }, name),
        s("rect", { class: colour, x: left, y: y + 8, width: Math.max(0, x(now) - left), height: 26 }),
        stages.filter((stage) => stage.share < share - 1e-9 && stage.share * limit > low).map((stage) => s("line", {
          class: "stage", x1: x(stage.share * limit), x2: x(stage.share * limit), y1: y + 8, y2: y + 34 })),
        started ? s("line", { class: "old", x1: x(first[field]), x2: x(first[field]), y1: y + 2, y2: y + 40 }) : null,
        s("line", { class: "wall", x1: x(limit), x2: x(limit), y1: y + 1, y2: y + 41 }),
        s("text", { x: Math.min(x(limit), right - 40), y: y + 57, "text-anchor": "middle", class: "tick" },
          `${number(limit)}`)];
    };
    const bottom = 26 + 74 * seen.length;
    replace(board, picture(width, bottom + 44, "Tokens a second against the limit",
      axisX(x, bottom, { format: (v) => number(v), title: "tokens a second" }), seen.map(bar)));
    const stage = stages[index];
    replace(caption, t >= 1
      ? [h("strong", {}, "The wall. "), "Better kernels end here. What is left is to move it: more bandwidth, fewer bytes, or a trip that more users share."]
      : [h("strong", {}, `${percent(stage.share)}: `), stage.name]);
  }

  const set = (field) => (value) => { state[field] = value; draw(); };
  const options = (field) => [...new Set(walls.map((wall) => wall[field]))];
  const controls = [["chips", "Chips that share each matrix"], ["dtype", "Weights stored in"], ["users", "Users who share the trip"]]
    .map(([field, label]) => choice({ label, value: state[field],
      options: options(field).map((value) => [value, String(value)]), onchange: set(field) }));
  const pace = player({ seconds: 8, label: "How good the engine is", rest: 1,
    stops: stages.map((_, i) => i / stages.length).slice(1).concat(1),
    format: (now) => (now >= 1 ? "the wall" : percent(stages[stageAt(now)].share)), draw: (now) => { t = now; draw(); } });
  el.append(h("style", {}, STYLE), h("div", { class: "ceiling" },
    h("div", { class: "controls" }, controls.map((c) => c.node)), sum, board, caption, pace.node));
  onWidth(board, (wide) => { width = wide; draw(); });
}
