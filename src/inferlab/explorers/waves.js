// A few wide cores or many: one matrix product, tile by tile, on a CPU and on a GPU.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { number, percent, seconds, whole } from "./lib/format.js";
import { choice, slider } from "./lib/controls.js";
import { player } from "./lib/player.js";

const STYLE = `
.waves .sum { margin: 0.7rem 0 0; min-height: 3em; }
.waves .name { font-weight: 650; }
.waves .idle { fill: var(--rule); }
.waves .made { opacity: 0.8; }
.waves .frame { fill: none; stroke: var(--soft); }
.waves tspan.soft { fill: var(--soft); }
.caption { margin: 0.6rem 0 0; min-height: 3em; }
@container (max-width: 480px) { .waves .sum, .caption { min-height: 4.5em; } }
`;

const many = (count, thing) => `${whole(count)} ${thing}${count === 1 ? "" : "s"}`;

export function render({ model, el }) {
  const ways = model.get("ways"); // [{ key, label, chips: [{ name, core, cores, lanes, …, jobs }] }]
  const tile = model.get("tile");
  let way = ways[0];
  let width = 0;
  let rows = [];
  let share = 0; // of the slower chip's time

  const sum = h("p", { class: "sum" });
  const board = h("div");
  const caption = h("p", { class: "caption" });
  const side = slider({ label: "Side of the matrices", values: model.get("sides"), value: model.get("start"),
    format: whole, onchange: rebuild });
  const what = choice({ label: "What multiplies", value: way.key, options: ways.map((each) => [each.key, each.label]),
    onchange(key) {
      way = ways.find((each) => each.key === key);
      rebuild();
    } });

  const jobOf = (chip) => chip.jobs.find((job) => job.side === side.value);
  const end = () => Math.max(...way.chips.map((chip) => jobOf(chip).seconds));
  const box = (x, y, w, tall) => `M${x.toFixed(2)} ${y.toFixed(2)}h${w.toFixed(2)}v${tall.toFixed(2)}h${(-w).toFixed(2)}z`;

  // One chip: its cores, drawn to the scale of their lanes, and the result that they fill.
  function row(chip, y) {
    const job = jobOf(chip);
    const narrow = width < 480;
    const [lane, thick] = narrow ? [0.5, 2] : [0.8, 2.6];
    const square = narrow ? 104 : 150;
    const across = chip.abreast * lane;
    const bars = chip.lanes / chip.abreast;
    const tall = bars * (thick + 1) - 1;
    const columns = Math.floor((width - square - 24) / (across + 3));
    const top = y + 34;
    const lanes = (x, at) => Array.from({ length: bars }, (_, i) => box(x, at + i * (thick + 1), across, thick)).join("");
    const units = (x, at) => {
      const edge = Math.sqrt(chip.units);
      const [w, high] = [(across - edge + 1) / edge, (tall - edge + 1) / edge];
      return Array.from({ length: chip.units }, (_, i) =>
        box(x + (i % edge) * (w + 1), at + Math.floor(i / edge) * (high + 1), w, high)).join("");
    };
    const draw = way.key === "lanes" ? lanes : units;
    const cores = Array.from({ length: chip.cores }, (_, i) =>
      draw(1 + (i % columns) * (across + 3), top + Math.floor(i / columns) * (tall + 3)));
    const edge = Math.round(job.side / tile);
    const [left, pitch] = [width - square - 2, square / edge];
    const gap = Math.min(1, pitch / 6);
    const cells = Array.from({ length: job.tiles }, (_, i) =>
      box(left + (i % edge) * pitch, top + Math.floor(i / edge) * pitch, pitch - gap, pitch - gap));
    const lit = s("path", { class: "compute" });
    const made = s("path", { class: "compute made" });
    const making = s("path", { class: "compute" });
    const status = s("text", { class: "tick", x: 1, y: y + 24 });
    const inside = way.key === "lanes" ? ` × ${chip.lanes} lanes`
      : chip.units === 1 ? ", a matrix unit each" : `, ${chip.units} matrix units each`;
    return {
      chip,
      job,
      bottom: top + Math.max(square, Math.ceil(chip.cores / columns) * (tall + 3)),
      node: [
        s("text", { x: 1, y: y + 7 }, s("tspan", { class: "name" }, chip.name),
          s("tspan", { class: "soft" }, `  ${many(chip.cores, chip.core)}${inside}`)),
        s("text", { class: "tick", x: width - 1, y: y + 24, "text-anchor": "end" }, "result"),
        status, s("path", { class: "idle", d: cores.join("") }), lit,
        s("rect", { class: "frame", x: left - 2, y: top - 2, width: square + 4, height: square + 4, rx: 3 }), made, making],
      paint(now) {
        const over = now >= job.seconds * (1 - 1e-9);
        const wave = over ? job.waves : Math.floor(now / job.wave_s + 1e-9);
        const finished = Math.min(job.tiles, wave * chip.cores);
        const working = over ? 0 : Math.min(chip.cores, job.tiles - finished);
        lit.setAttribute("d", cores.slice(0, working).join(""));
        made.setAttribute("d", cells.slice(0, finished).join(""));
        making.setAttribute("d", cells.slice(finished, finished + working).join(""));
        making.setAttribute("opacity", (0.12 + 0.5 * (now / job.wave_s - wave)).toFixed(2));
        status.textContent = over ? `done in ${many(job.waves, "wave")} and ${seconds(job.seconds)}`
          : `wave ${wave + 1} of ${job.waves}: ${whole(working)} of ${many(chip.cores, chip.core)} at work`;
        return finished;
      },
    };
  }

  function rebuild() {
    if (width) build();
  }

  function build() {
    rows = [];
    let y = 8;
    for (const chip of way.chips) {
      rows.push(row(chip, y));
      y = rows.at(-1).bottom + 22;
    }
    const [, gpu] = rows;
    replace(board, picture(width, y - 18, `A product of matrices in tiles on ${rows.map((each) => each.chip.name).join(" and ")}`,
      rows.map((each) => each.node)));
    replace(sum, h("b", {}, `${many(gpu.job.tiles, "tile")} of ${tile} × ${tile}`), ` ÷ ${many(gpu.chip.cores, gpu.chip.core)} = `
      + `${number(gpu.job.tiles / gpu.chip.cores)}, so ${gpu.chip.name} takes `, h("b", { class: "compute" }, many(gpu.job.waves, "wave")),
      ` and has work for ${percent(gpu.job.busy)} of its ${gpu.chip.core}s' time.`);
    paint();
  }

  function paint() {
    const now = share * end();
    const finished = rows.map((each) => each.paint(now));
    const [cpu, gpu] = rows;
    caption.textContent = share < 1
      ? `After ${seconds(now)}: ${gpu.chip.name} has made ${whole(finished[1])} of ${many(gpu.job.tiles, "tile")}, ${cpu.chip.name} ${whole(finished[0])}.`
      : `${gpu.chip.name} took ${seconds(gpu.job.seconds)}, ${cpu.chip.name} ${seconds(cpu.job.seconds)}, `
        + `${number(cpu.job.seconds / gpu.job.seconds, 2)} times as long, if neither ever waits for memory.`;
  }

  const film = player({
    seconds: 16,
    label: "Time within the product",
    stops: Array.from({ length: 41 }, (_, i) => i / 40),
    format: (t) => `${seconds(t * end())} into the product`,
    draw(t) {
      share = t;
      if (rows.length) paint();
    },
  });
  el.classList.add("waves");
  el.append(h("style", {}, STYLE), h("div", { class: "controls" }, side.node, what.node), sum, board, caption, film.node);
  onWidth(board, (now) => {
    width = now;
    build();
  });
}
