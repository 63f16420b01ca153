// What does a matrix product load? Each program slides along a row of A and a column of B.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { bytes, number, whole } from "./lib/format.js";
import { log } from "./lib/plot.js";
import { choice } from "./lib/controls.js";
import { player } from "./lib/player.js";

const STYLE = `
.tiles svg { margin-top: 0.8rem; }
.tiles .name { font-weight: 650; }
.tiles .sheet { fill: var(--panel); stroke: var(--soft); }
.tiles .piece { stroke: var(--ink); stroke-width: 1.5; }
.tiles .made { opacity: 0.55; }
.tiles .faint { opacity: 0.25; }
.tiles .line-up { stroke: var(--rule); }
.caption { margin: 0.6rem 0 0; min-height: 4.5em; }
@container (max-width: 480px) { .caption { min-height: 7.5em; } }
`;

export function render({ model, el }) {
  const side = model.get("side");
  const depth = model.get("depth");
  const tiles = model.get("tiles"); // [{ side, programs, steps, bytes, intensity, … }]
  const find = (wanted) => tiles.find((each) => each.side === wanted);
  let tile = find(model.get("start"));
  let width = 0;
  let parts = null;
  let share = 0; // of the whole product

  const board = h("div");
  const caption = h("p", { class: "caption" });
  const size = choice({ label: "Side of a tile", value: tile.side, options: tiles.map((each) => [each.side, whole(each.side)]),
    onchange(wanted) {
      tile = find(wanted);
      if (width) build();
    } });

  function build() {
    const narrow = width < 560;
    const sheet = narrow ? Math.floor((width - 12) / 2) : 190;
    const scale = sheet / side;
    const [x, y] = [sheet + 10, sheet + 10]; // of the result
    const place = (rect, left, top, w, high) => {
      for (const [key, value] of Object.entries({ x: left, y: top, width: w, height: high })) rect.setAttribute(key, value);
    };
    const across = Math.ceil(side / tile.side);
    const edge = tile.side * scale;
    const strips = (vertical) => Array.from({ length: across }, (_, i) => s("rect", { class: "bytes",
      x: vertical ? x + i * edge : 1, y: vertical ? 1 : y + i * edge, width: vertical ? edge : sheet, height: vertical ? sheet : edge }));
    const [rowsOfA, columnsOfB] = [strips(false), strips(true)];
    const [pieceA, pieceB] = [s("rect", { class: "bytes piece" }), s("rect", { class: "bytes piece" })];
    const made = s("path", { class: "compute made" });
    const making = s("rect", { class: "compute piece" });
    const frame = (left, top) => s("rect", { class: "sheet", x: left, y: top, width: sheet, height: sheet });
    const says = [0, 1, 2].map((i) => s("text", { x: 1, y: 20 + 20 * i }));
    const label = (text, left, top, anchor) => s("text", { class: "name", x: left, y: top, "text-anchor": anchor }, text);

    // Loads of every tile side, on one logarithmic scale, between each number once and no tiles.
    const chart = narrow ? { x: 1, y: y + sheet + 44, w: width - 2 } : { x: x + sheet + 42, y: 22, w: width - x - sheet - 44 };
    const from = chart.x + 84;
    const length = log([model.get("fewest_bytes") / 1.6, model.get("untiled_bytes")], [from, chart.x + chart.w - 70]);
    const lines = [["no tiles", model.get("untiled_bytes")], ...tiles.map((each) => [`${each.side} × ${each.side}`, each.bytes, each]),
      ["each once", model.get("fewest_bytes")]];
    const grown = s("rect", { class: "bytes", height: 16 });
    const bars = lines.map(([name, value, each], i) => {
      const top = chart.y + 14 + 30 * i;
      if (each === tile) place(grown, from, top, 0, 16);
      return [
        s("text", { class: each === tile ? "name" : "tick", x: chart.x, y: top + 13 }, name),
        s("rect", { class: `bytes ${each === tile ? "faint" : "made"}`, x: from, y: top, width: length(value) - from, height: 16 }),
        each === tile ? grown : null,
        s("text", { class: "tick", x: length(value) + 6, y: top + 13 }, bytes(value))];
    });
    const height = Math.max(y + sheet + 20, chart.y + 14 + 30 * lines.length) + 4;
    parts = { sheet, scale, x, y, edge, across, rowsOfA, columnsOfB, pieceA, pieceB, made, making, says, place, grown, length, from };
    replace(board, picture(width, height, `A product of ${side} × ${side} matrices in tiles of ${tile.side} × ${tile.side}`,
      frame(1, y), frame(x, 1), frame(x, y), rowsOfA, columnsOfB, made, pieceA, pieceB, making, says,
      label("A", sheet - 6, y - 8, "end"), label("B", x - 8, 16, "end"),
      s("text", { class: "tick", x: x + sheet, y: y + sheet + 17, "text-anchor": "end" }, "A times B"),
      s("text", { class: "tick", x: chart.x, y: chart.y }, "loaded from memory (log scale)"), bars));
    paint();
  }

  function paint() {
    const { sheet, scale, x, y, edge, across, rowsOfA, columnsOfB, pieceA, pieceB, made, making, says, place, grown, length, from } = parts;
    const total = tile.programs * tile.steps;
    const done = Math.min(total, Math.floor(share * total + 1e-9)); // loads of pieces that are over
    const over = done === total;
    const program = Math.floor(done / tile.steps);
    const step = done % tile.steps;
    const [row, column] = [Math.floor(program / across), program % across];

    // Strips darken each time that they are loaded.
    const shade = (times) => (0.75 * times) / across;
    rowsOfA.forEach((strip, i) => strip.setAttribute("opacity", shade(i < row || over ? across : i === row ? column : 0)));
    columnsOfB.forEach((strip, i) => strip.setAttribute("opacity", shade(over ? across : row + (i < column ? 1 : 0))));
    const cells = Array.from({ length: program }, (_, i) =>
      `M${x + (i % across) * edge} ${y + Math.floor(i / across) * edge}h${edge - 1}v${edge - 1}h${1 - edge}z`);
    made.setAttribute("d", cells.join(""));
    for (const rect of [pieceA, pieceB, making]) rect.setAttribute("visibility", over ? "hidden" : "visible");
    if (!over) {
      const [start, deep] = [step * depth * scale, Math.min(depth, sheet / scale - step * depth) * scale];
      place(pieceA, 1 + start, y + row * edge, deep, edge);
      place(pieceB, x + column * edge, 1 + start, edge, deep);
      place(making, x + column * edge, y + row * edge, edge, edge);
      making.setAttribute("fill-opacity", 0.1 + (0.6 * step) / tile.steps);
    }
    const loaded = (tile.bytes * done) / total;
    grown.setAttribute("width", loaded ? Math.max(0, length(Math.max(loaded, model.get("fewest_bytes") / 1.6)) - from) : 0);
    says[0].textContent = over ? `all ${whole(tile.programs)} programs` : `program ${whole(program + 1)} of ${whole(tile.programs)}`;
    says[1].textContent = over ? "are done" : `step ${step + 1} of ${tile.steps}`;
    says[2].textContent = `loaded ${bytes(loaded)}`;
    caption.textContent = over
      ? `Every row of A was loaded ${times(across)}, once for each column of tiles, and every column of B as often. `
        + `That is ${bytes(tile.bytes)}, ${number(tile.intensity)} operations for each byte. The sums of a tile take ${kib(tile.sums_bytes)} `
        + `of the ${kib(model.get("register_bytes"))} of registers in an SM.`
      : `The program loads a piece of A and a piece of B, ${kib(tile.piece_bytes)}, multiplies them, and adds to its tile. `
        + `Loaded before: this strip of A ${times(column)}, this strip of B ${times(row)}.`;
  }

  const times = (count) => (count === 0 ? "never" : count === 1 ? "once" : count === 2 ? "twice" : `${count} times`);
  const kib = (value) => `${number(value / 1024)}\u00a0KiB`;

  const film = player({
    seconds: () => 6 + 2 * Math.log2(tile.programs),
    label: "Progress of the product",
    stops: Array.from({ length: 33 }, (_, i) => i / 32),
    draw(t) {
      share = t;
      if (parts) paint();
    },
  });
  el.classList.add("tiles");
  el.append(h("style", {}, STYLE), size.node, board, caption, film.node);
  onWidth(board, (now) => {
    width = now;
    build();
  });
}
