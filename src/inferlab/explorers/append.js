// What does remembering save? The same tokens, with and without a memory of those before.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { flops, number, seconds, whole } from "./lib/format.js";
import { choice } from "./lib/controls.js";
import { player } from "./lib/player.js";

const STYLE = `
.append svg { margin-top: 0.8rem; }
.append .name { font-weight: 650; }
.append .cell { stroke: var(--rule); fill: none; }
.append .busy { fill: var(--compute); stroke: var(--compute); }
.append .kept { fill: var(--kv); stroke: var(--kv); }
.append .lost { fill: var(--wait); stroke: var(--wait); opacity: 0.35; }
.append table { border-collapse: collapse; width: 100%; margin-top: 0.6rem; font-size: 0.875rem; }
.append :is(th, td) { text-align: right; padding: 0.3rem 0 0.3rem 0.6rem; border-bottom: 1px solid var(--rule);
  font-weight: 400; white-space: nowrap; }
.append :is(th, td):first-child { text-align: left; padding-left: 0; color: var(--soft); white-space: normal; }
.append td b { font-weight: 650; }
`;

// `cases`: { key, label, words, without, with }, the last two cumulative lists, one entry a token,
// of { flops, seconds }.
export function render({ model, el }) {
  const cases = model.get("cases");
  const count = cases[0].without.length;
  let one = cases[0];
  let t = 1;
  let width = 0;
  const board = h("div");
  const body = h("tbody");

  function draw() {
    const at = t * count; // tokens written, with the share of the one under way
    const done = Math.min(count, Math.floor(at + 1e-9));
    const part = at - done;
    const now = Math.max(1, part > 1e-6 ? done + 1 : done); // the token under way, or the last
    const sum = (list) => (done ? list[done - 1] : { flops: 0, seconds: 0 });
    const [without, cached] = [sum(one.without), sum(one.with)];
    const again = (done * (done + 1)) / 2;
    const ratio = (a, b) => (b ? `${number(a / b)}×` : "–");
    const line = (title, a, b, format) => h("tr", {}, h("th", { scope: "row" }, title), h("td", {}, format(a)),
      h("td", {}, format(b)), h("td", {}, h("b", {}, ratio(a, b))));
    replace(body, line("positions computed", again, done, whole), line("operations", without.flops, cached.flops, flops),
      line("time at least", without.seconds, cached.seconds, seconds));
    if (!width) return;
    const columns = width < 480 ? Math.ceil(count / 2) : count;
    const lines = Math.ceil(count / columns);
    const pitch = (width - 2) / columns;
    const tall = Math.min(22, pitch);
    const block = (top, title, kind) => [
      s("text", { class: "name", x: 1, y: top }, title),
      Array.from({ length: count }, (_, i) => {
        const [x, y] = [1 + (i % columns) * pitch, top + 10 + Math.floor(i / columns) * (tall + 3)];
        let look = "cell";
        if (kind === "without" && i < now) {
          // Every position is computed again, one after the other, for each new token.
          look += part > 1e-6 ? (i < part * now ? " busy" : " lost") : i < done ? " busy" : "";
        } else if (kind === "with" && i < now) look += i === now - 1 && (part > 1e-6 || t >= 1) ? " busy" : " kept";
        return s("rect", { class: look, x, y, width: Math.max(1, pitch - 2), height: tall, rx: 2 });
      })];
    const step = 34 + lines * (tall + 3);
    replace(board, picture(width, 2 * step + 4, `Token ${now}: without a cache ${now} positions are computed, with one only 1`,
      block(14, "Forget: compute everything again", "without"),
      block(14 + step, "Remember: compute one, read the rest", "with")));
  }

  const pace = player({ seconds: 12, label: "Token of the answer", rest: 1,
    stops: Array.from({ length: count }, (_, i) => (i + 1) / count),
    format: (now) => `token ${Math.max(1, Math.ceil(now * count - 1e-9))} of ${count}`,
    draw: (now) => { t = now; draw(); } });
  const pick = choice({ label: "Time of", value: one.key, options: cases.map(({ key, label }) => [key, label]),
    onchange: (key) => { one = cases.find((each) => each.key === key); draw(); } });
  el.append(h("style", {}, STYLE), h("div", { class: "append" }, pick.node, board, pace.node,
    h("table", {}, h("thead", {}, h("tr", {}, ["", "forgotten", "remembered", "ratio"].map((title) =>
      h("th", { scope: "col" }, title)))), body)));
  onWidth(board, (wide) => { width = wide; draw(); });
}
