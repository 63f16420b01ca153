// A roofline plot: the roof of two numbers, and work that stands under it.

import { byteRate, flopRate, number, whole } from "./format.js";
import { picture, replace, s } from "./dom.js";
import { axisX, axisY, log } from "./plot.js";

// Axes and roof of a picture `width` wide, for intensities from `low` to `high` FLOP/B.
// Returns { width, height, left, right, bottom, layers, x, scale(peak), draw(roofs) }: `scale` fits
// the vertical axis to a peak and gives at(intensity, speed), clipped to the picture; `draw` puts
// the roof there under its `label`, and the flat roofs of `others`: [{ name, peak }].
export function roofFrame(width, [low, high], { title = "attainable FLOP/s" } = {}) {
  const height = Math.round(Math.min(400, Math.max(280, width * 0.56)));
  const [left, right, top, bottom] = [width < 480 ? 48 : 64, width - 16, 26, height - 46];
  const x = log([low, high], [left, right]);
  const [axes, roof] = [s("g"), s("g")];
  let ceiling = null;

  function scale(peak) {
    // Two fixed windows, so that a change of chip moves the roof and not the axis.
    const [floor, least] = peak < 3e13 ? [1e9, 1e14] : [1e11, 1e16];
    const highest = Math.max(least, 10 ** Math.ceil(Math.log10(peak * 1.7)));
    const y = log([floor, highest], [bottom, top]);
    if (highest !== ceiling) drawAxes(y);
    ceiling = highest;
    const at = (intensity, speed) =>
      [x(Math.min(high, Math.max(low, intensity))), y(Math.max(floor, speed))];
    return { floor, at };
  }

  function drawAxes(y) {
    const ticks = [0.1, 1, 10, 100, 1e3, 1e4, 1e5].filter((value) => value >= low && value <= high);
    replace(axes,
      axisX(x, bottom, { top, ticks,
        format: (value) => (value < 1 ? number(value) : value < 1000 ? whole(value) : `${value / 1000}k`),
        title: "operations per byte moved (FLOP/B)" }),
      axisY(y, left, { right, title,
        format: (value) => flopRate(value).replace("FLOP/s", "").trim() }));
  }

  // The bandwidth is written along the slope where nothing of `taken` stands yet.
  function draw({ peak, bandwidth, floor, at, taken, others = [], label = flopRate(peak) }) {
    const ridge = peak / bandwidth;
    const start = Math.max(low, floor / bandwidth);
    const [x0, y0] = at(start, bandwidth * start);
    const [xr, yr] = at(ridge, peak);
    const slope = (Math.atan2(yr - y0, xr - x0) * 180) / Math.PI;
    const clear = ([px, py]) => Math.min(...taken.map(([tx, ty]) => Math.hypot(tx - px, ty - py)));
    const spot = [0.5, 0.3, 0.7].map((share) => [x0 + share * (xr - x0), y0 + share * (yr - y0)])
      .reduce((best, other) => (clear(other) > clear(best) + 12 ? other : best));
    const along = `translate(${spot}) rotate(${slope})`;
    const ghosts = others.map(({ name, peak: other }) => {
      const [xo, yo] = at(other / bandwidth, other);
      return s("g", { class: "ghost" },
        other > peak ? s("path", { d: `M${xr} ${yr}L${xo} ${yo}H${right}` }) : s("path", { d: `M${xo} ${yo}H${right}` }),
        s("text", { class: "tick", x: right - 4, y: yo - 4, "text-anchor": "end" }, name));
    });
    replace(roof,
      s("rect", { class: "bytes shade", x: left, y: top, width: xr - left, height: bottom - top }),
      s("rect", { class: "compute shade", x: xr, y: top, width: right - xr, height: bottom - top }),
      ghosts,
      s("line", { class: "ridge", x1: xr, x2: xr, y1: yr, y2: bottom }),
      s("path", { class: "bytes line", d: `M${x0} ${y0}L${xr} ${yr}` }),
      s("path", { class: "compute line", d: `M${xr} ${yr}H${right}` }),
      s("text", { class: "bytes name", transform: along, y: -13, "text-anchor": "middle" },
        byteRate(bandwidth)),
      s("text", { class: "compute name", x: right - 4, y: yr - (others.length ? 4 : 9), "text-anchor": "end" },
        label),
      s("text", { class: "ridge-name", x: xr + 6, y: bottom - 8 }, `ridge ${number(ridge, 4)}`));
  }

  return { width, height, left, right, bottom, layers: [axes, roof], x, scale, draw };
}

// The Calculator's plot: { node, show({ peak, bandwidth, prefill, decode, rings }) }, `width` wide.
// `prefill` and `decode` are placements; `rings` are parts of work: [{ part, name, colour }].
export function rooflinePlot(width) {
  const frame = roofFrame(width, [0.5, 1e5]); // work beyond stands at the edge
  const dots = s("g");
  const name = s("text", { "text-anchor": "middle" }, "prefill");
  const block = s("g", { class: "mark" },
    s("rect", { class: "glyph", x: -15, y: -7, width: 30, height: 14, rx: 3 }), name);
  const ticks = s("g", { class: "mark" },
    s("rect", { class: "halo", x: -16, y: -10, width: 32, height: 20, rx: 4 }),
    [-12, -6, 0, 6, 12].map((at) =>
      s("rect", { class: "glyph", x: at - 1.5, y: -8, width: 3, height: 16 })),
    s("text", { x: 20, y: 5 }, "decode"));
  const node = picture(width, frame.height, "", frame.layers, dots, ticks, block);

  function show({ peak, bandwidth, prefill, decode, rings }) {
    const { floor, at } = frame.scale(peak);
    const stand = (work) => at(work.flops / work.bytes, work.flops / work.seconds);
    const apart = ([ax, ay], [bx, by]) => Math.hypot(ax - bx, ay - by);
    const marks = [stand(prefill), stand(decode)];
    frame.draw({ peak, bandwidth, floor, at,
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
      `Roofline: ${flopRate(peak)} and ${byteRate(bandwidth)} meet at ${number(peak / bandwidth, 4)} FLOP/B; `
      + `prefill stands at ${number(prefill.intensity)} and decode at ${number(decode.intensity)} FLOP/B.`);
  }

  return { node, show };
}

export const ROOFLINE_CSS = `
.roofline .shade { opacity: 0.07; }
.roofline .ridge { stroke: var(--soft); stroke-dasharray: 3 4; }
.roofline .ridge-name { fill: var(--soft); font-size: 12px; }
.roofline .name { font-weight: 650; }
.roofline .ghost path { fill: none; stroke: var(--compute); stroke-width: 1.2; stroke-dasharray: 2 4; opacity: 0.75; }
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
