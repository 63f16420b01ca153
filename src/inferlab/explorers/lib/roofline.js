// A roofline plot: the roof of two numbers, and work that stands under it.

import { byteRate, flopRate, number, whole } from "./format.js";
import { picture, replace, s } from "./dom.js";
import { axisX, axisY, log } from "./plot.js";

const [LOW, HIGH] = [0.5, 1e5]; // FLOP/B; work beyond stands at the edge

// Returns { node, show({ peak, bandwidth, prefill, decode, rings }) } for a picture `width` wide.
// `prefill` and `decode` are placements; `rings` are parts of work: [{ part, name, colour }].
export function rooflinePlot(width) {
  const height = Math.round(Math.min(400, Math.max(280, width * 0.56)));
  const [left, right, top, bottom] = [width < 480 ? 48 : 64, width - 16, 26, height - 46];
  const x = log([LOW, HIGH], [left, right]);
  const [axes, roof, dots] = [s("g"), s("g"), s("g")];
  const name = s("text", { "text-anchor": "middle" }, "prefill");
  const block = s("g", { class: "mark" },
    s("rect", { class: "glyph", x: -15, y: -7, width: 30, height: 14, rx: 3 }), name);
  const ticks = s("g", { class: "mark" },
    s("rect", { class: "halo", x: -16, y: -10, width: 32, height: 20, rx: 4 }),
    [-12, -6, 0, 6, 12].map((at) =>
      s("rect", { class: "glyph", x: at - 1.5, y: -8, width: 3, height: 16 })),
    s("text", { x: 20, y: 5 }, "decode"));
  const node = picture(width, height, "", axes, roof, dots, ticks, block);
  let ceiling = null;

  function show({ peak, bandwidth, prefill, decode, rings }) {
    const ridge = peak / bandwidth;
    // Two fixed windows, so that a change of chip moves the roof and not the axis.
    const [floor, least] = peak < 3e13 ? [1e9, 1e14] : [1e11, 1e16];
    const highest = Math.max(least, 10 ** Math.ceil(Math.log10(peak * 1.7)));
    const y = log([floor, highest], [bottom, top]);
    if (highest !== ceiling) drawAxes(y);
    ceiling = highest;

    const at = (intensity, speed) =>
      [x(Math.min(HIGH, Math.max(LOW, intensity))), y(Math.max(floor, speed))];
    const stand = (work) => at(work.flops / work.bytes, work.flops / work.seconds);
    const apart = ([ax, ay], [bx, by]) => Math.hypot(ax - bx, ay - by);
    const marks = [stand(prefill), stand(decode)];
    drawRoof({ peak, bandwidth, ridge, at, start: Math.max(LOW, floor / bandwidth),
      taken: [...marks, ...rings.map(({ part }) => stand(part))] });
    for (const [mark, [mx, my], { bound }] of [[block, marks[0], prefill], [ticks, marks[1], decode]]) {
      mark.style.transform = `translate(${mx}px, ${my}px)`;
      mark.classList.toggle("waits-for-bytes", bound === "memory");
    }
    name.setAttribute("y", apart(...marks) < 90 ? -15 : 25);
    replace(dots, rings.filter(({ part }) => part.flops > 0 && part.bytes > 0).map(
      ({ part, name, colour }) => {
        const [cx, cy] = stand(part);
        const crowded = marks.some((mark) => apart(mark, [cx, cy]) < 60);
        return s("g", { class: `dot ${colour}` }, s("circle", { cx, cy, r: 5 }),
          crowded ? null : s("text", { x: cx + 9, y: cy + 16 }, name));
      }));
    node.setAttribute("aria-label",
      `Roofline: ${flopRate(peak)} and ${byteRate(bandwidth)} meet at ${number(ridge, 4)} FLOP/B; `
      + `prefill stands at ${number(prefill.intensity)} and decode at ${number(decode.intensity)} FLOP/B.`);
  }

  function drawAxes(y) {
    replace(axes,
      axisX(x, bottom, { top, ticks: [1, 10, 100, 1e3, 1e4, 1e5],
        format: (value) => (value < 1000 ? whole(value) : `${value / 1000}k`),
        title: "operations per byte moved (FLOP/B)" }),
      axisY(y, left, { right, format: (value) => flopRate(value).replace("FLOP/s", "").trim(),
        title: "attainable FLOP/s" }));
  }

  function drawRoof({ peak, bandwidth, ridge, at, start, taken }) {
    const [x0, y0] = at(start, bandwidth * start);
    const [xr, yr] = at(ridge, peak);
    const slope = (Math.atan2(yr - y0, xr - x0) * 180) / Math.PI;
    // The bandwidth is written along the slope where nothing stands yet.
    const clear = ([px, py]) => Math.min(...taken.map(([tx, ty]) => Math.hypot(tx - px, ty - py)));
    const spot = [0.5, 0.3, 0.7].map((share) => [x0 + share * (xr - x0), y0 + share * (yr - y0)])
      .reduce((best, other) => (clear(other) > clear(best) + 12 ? other : best));
    const along = `translate(${spot}) rotate(${slope})`;
    replace(roof,
      s("rect", { class: "bytes shade", x: left, y: top, width: xr - left, height: bottom - top }),
      s("rect", { class: "compute shade", x: xr, y: top, width: right - xr, height: bottom - top }),
      s("line", { class: "ridge", x1: xr, x2: xr, y1: yr, y2: bottom }),
      s("path", { class: "bytes line", d: `M${x0} ${y0}L${xr} ${yr}` }),
      s("path", { class: "compute line", d: `M${xr} ${yr}H${right}` }),
      s("text", { class: "bytes name", transform: along, y: -13, "text-anchor": "middle" },
        byteRate(bandwidth)),
      s("text", { class: "compute name", x: right - 4, y: yr - 9, "text-anchor": "end" }, flopRate(peak)),
      s("text", { class: "ridge-name", x: xr + 6, y: bottom - 8 }, `ridge ${number(ridge, 4)}`));
  }

  return { node, show };
}

export const ROOFLINE_CSS = `
.roofline .shade { opacity: 0.07; }
.roofline .ridge { stroke: var(--soft); stroke-dasharray: 3 4; }
.roofline .ridge-name { fill: var(--soft); font-size: 12px; }
.roofline .name { font-weight: 650; }
.roofline .glyph { fill: var(--compute); }
.roofline .waits-for-bytes .glyph { fill: var(--bytes); }
.roofline .halo { fill: var(--paper); }
.roofline .mark { transition: transform 0.25s ease-out; }
.roofline .mark text, .roofline .dot text { font-weight: 650; paint-order: stroke; stroke: var(--paper);
  stroke-width: 4px; stroke-linejoin: round; }
.roofline .mark text { fill: var(--ink); }
.roofline .dot circle { fill: var(--paper); stroke: currentColor; stroke-width: 2.5; }
.roofline .dot text { font-size: 12px; font-weight: 500; }
@media (prefers-reduced-motion: reduce) { .roofline .mark { transition: none; } }
`;
