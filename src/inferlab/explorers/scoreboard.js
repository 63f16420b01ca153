// How near to the roof have others come?

import { h, s, picture, replace, onWidth } from "./lib/dom.js";
import { percent, seconds } from "./lib/format.js";
import { choice, select } from "./lib/controls.js";
import { axisX, axisY, linear, log } from "./lib/plot.js";

const STYLE = `
.board { position: relative; margin-top: 0.8rem; cursor: crosshair; }
.point { fill: currentColor; fill-opacity: 0.28; stroke: currentColor; stroke-width: 1.4; }
.point.chosen { fill-opacity: 1; stroke: var(--ink); stroke-width: 2.5; }
.roof { stroke: var(--ink); stroke-width: 2.5; }
.said { min-height: 7.4em; margin: 0.6rem 0 0; border-left: 3px solid var(--rule); padding-left: 0.8rem; }
.said p { margin: 0; } .said .source { font-size: 0.8125rem; color: var(--soft); overflow-wrap: anywhere; }
@container (max-width: 480px) { .said { min-height: 11em; } }
`;
const REACH = 30; // a pointer this near to a point means it
const NAMES = { decode: "Decode, one user", prefill: "First token" };

// `rows`: { kind, title, detail, source, bound_s, seconds, fraction }
export function render({ model, el }) {
  const rows = model.get("rows");
  let kind = "decode";
  let chosen = null;
  let places = [];
  const board = h("div", { class: "board" });
  const said = h("div", { class: "said", "aria-live": "polite" });
  const list = select({ label: "Measurement", options: [["", ""]], value: "",
    onchange: (key) => choose(rows[Number(key)]) });
  const kinds = choice({ label: "What was measured", value: kind,
    options: Object.entries(NAMES), onchange: (wanted) => { kind = wanted; offer(); } });
  const shown = () => rows.filter((row) => row.kind === kind);

  function offer() {
    const mine = shown();
    list.offer(mine.map((row) => [rows.indexOf(row), `${row.title}: ${percent(row.fraction)}`, row.engine]));
    choose(mine.reduce((best, row) => (row.fraction > best.fraction ? row : best)));
  }

  function choose(row) {
    chosen = row;
    list.set(rows.indexOf(row));
    replace(said, h("p", {}, h("strong", {}, row.title), `, ${row.engine}`),
      h("p", {}, `${row.detail}. Took ${seconds(row.seconds)}; at least ${seconds(row.bound_s)}: `,
        h("strong", {}, `${percent(row.fraction)} of the roof`)),
      h("p", { class: "source" }, row.source));
    for (const { node, row: each } of places) node.classList.toggle("chosen", each === row);
    draw(board.clientWidth);
  }

  function draw(width) {
    if (!(width >= 200)) return;
    const height = Math.min(420, Math.max(300, width * 0.55));
    const [left, right, top, bottom] = [44, width - 8, 34, height - 48];
    const mine = shown();
    const bounds = mine.map((row) => row.bound_s);
    const low = 10 ** Math.floor(Math.log10(Math.min(...bounds)));
    const x = log([low, Math.max(...bounds) * 1.3], [left, right]);
    const y = linear([0, 1], [bottom, top]);
    places = mine.map((row) => {
      const at = [x(row.bound_s), y(row.fraction)];
      const node = s("circle", { class: `point ${kind === "decode" ? "bytes" : "compute"}`,
        cx: at[0], cy: at[1], r: 5.5 });
      if (row === chosen) node.classList.add("chosen");
      return { row, at, node };
    });
    const last = places.filter(({ row }) => row === chosen).map(({ node }) => node);
    replace(board, picture(width, height,
      `${mine.length} published measurements, each below the roof; the best reaches ${percent(Math.max(...mine.map((r) => r.fraction)))}`,
      axisX(x, bottom, { format: (v) => seconds(v), top, title: kind === "decode"
        ? "least time of a token" : "least time to the first token" }),
      axisY(y, left, { ticks: [0, 0.25, 0.5, 0.75, 1], format: (v) => `${100 * v}`, right,
        title: "% of the roof" }),
      s("line", { class: "roof", x1: left, x2: right, y1: y(1), y2: y(1) }),
      s("text", { x: right, y: y(1) - 9, "text-anchor": "end" }, "the roof"),
      places.map(({ node }) => node), last));
  }

  function near(event) {
    const box = board.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const away = ({ at }) => Math.hypot(at[0] - px, at[1] - py);
    const best = places.reduce((a, b) => (away(a) <= away(b) ? a : b));
    if (away(best) < REACH && best.row !== chosen) choose(best.row);
  }
  board.addEventListener("pointermove", near);
  board.addEventListener("pointerdown", near);

  el.append(h("style", {}, STYLE), h("div", { class: "controls" }, kinds.node, list.node), board, said);
  offer();
  onWidth(board, draw);
}
