// Numbers as a reader says them. A no-break space stands between number and unit.

const NBSP = "\u00a0";

// Three significant digits, grouped: 0.341, 24.3, 2,000.
export function number(value, digits = 3) {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "–";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  const places = Math.max(0, digits - 1 - size);
  if (size >= digits) return whole(value);
  return value.toLocaleString("en", { minimumFractionDigits: 0, maximumFractionDigits: places });
}

export function whole(value) {
  return Math.round(value).toLocaleString("en");
}

const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

function scaled(value, unit, digits) {
  const [size, prefix] = PREFIXES.find(([size]) => Math.abs(value) >= size * 0.99995) ?? [1, ""];
  return `${number(value / size, digits)}${NBSP}${prefix}${unit}`;
}

export const bytes = (value, digits = 3) => scaled(value, "B", digits);
export const flops = (value, digits = 3) => scaled(value, "FLOP", digits);
export const flopRate = (value, digits = 3) => scaled(value, "FLOP/s", digits);
export const byteRate = (value, digits = 3) => scaled(value, "B/s", digits);

// 0.34 µs, 29.9 ms, 1.2 s, 3.1 min.
export function seconds(value, digits = 3) {
  if (!Number.isFinite(value)) return "∞";
  if (value >= 120) return `${number(value / 60, digits)}${NBSP}min`;
  if (value >= 0.9995) return `${number(value, digits)}${NBSP}s`;
  if (value >= 0.9995e-3) return `${number(value * 1e3, digits)}${NBSP}ms`;
  return `${number(value * 1e6, digits)}${NBSP}µs`;
}

export function dollars(value) {
  if (!Number.isFinite(value)) return "∞";
  return "$" + value.toLocaleString("en", value < 0.1
    ? { maximumSignificantDigits: 2 }
    : { minimumFractionDigits: 2, maximumFractionDigits: value < 100 ? 2 : 0 });
}

export const percent = (share, digits = 2) => `${number(100 * share, digits)}${NBSP}%`;
