// Scales and axes for SVG plots: values in, picture units out.

import { s } from "./dom.js";

export function linear([low, high], [from, to]) {
  const scale = (value) => from + ((value - low) / (high - low)) * (to - from);
  scale.ticks = (wanted = 5) => {
    const raw = (high - low) / wanted;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
    const first = Math.ceil(low / step - 1e-9);
    const last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
  };
  return scale;
}

export function log([low, high], [from, to]) {
  const bottom = Math.log10(low);
  const span = Math.log10(high) - bottom;
  const scale = (value) => from + ((Math.log10(value) - bottom) / span) * (to - from);
  scale.invert = (at) => 10 ** (bottom + ((at - from) / (to - from)) * span);
  scale.ticks = () => {
    const first = Math.ceil(bottom - 1e-9);
    const last = Math.floor(bottom + span + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
  };
  return scale;
}

// Horizontal axis at height y, from scale(x) of its ticks; `title` names quantity and unit.
export function axisX(scale, y, { ticks = scale.ticks(), format = String, title, top } = {}) {
  const marks = ticks.map((value) => s("g", { transform: `translate(${scale(value)} ${y})` },
    s("line", { class: "grid", y2: top === undefined ? 5 : top - y }),
    s("text", { class: "tick", y: 18, "text-anchor": "middle" }, format(value))));
  const middle = (scale(ticks[0]) + scale(ticks.at(-1))) / 2;
  return s("g", { class: "axis" }, marks,
    title ? s("text", { class: "title", x: middle, y: y + 38, "text-anchor": "middle" }, title) : null);
}

export function axisY(scale, x, { ticks = scale.ticks(), format = String, title, right } = {}) {
  const marks = ticks.map((value) => s("g", { transform: `translate(${x} ${scale(value)})` },
    s("line", { class: "grid", x2: right === undefined ? -5 : right - x }),
    s("text", { class: "tick", x: -8, y: 4, "text-anchor": "end" }, format(value))));
  const top = Math.min(...ticks.map(scale));
  return s("g", { class: "axis" }, marks,
    title ? s("text", { class: "title", x, y: top - 14, "text-anchor": "start" }, title) : null);
}
