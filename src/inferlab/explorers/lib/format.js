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

// Round first, so that 999.9 kB becomes 1 MB and not 1,000 kB.
function scaled(value, unit, digits) {
  const rounded = Number.isFinite(value) ? Number(value.toPrecision(digits)) : value;
  const [size, prefix] = PREFIXES.find(([size]) => Math.abs(rounded) >= size) ?? [1, ""];
  return `${number(rounded / size, digits)}${NBSP}${prefix}${unit}`;
}

export const bytes = (value, digits = 3) => scaled(value, "B", digits);
export const flops = (value, digits = 3) => scaled(value, "FLOP", digits);
export const flopRate = (value, digits = 3) => scaled(value, "FLOP/s", digits);
export const byteRate = (value, digits = 3) => scaled(value, "B/s", digits);

// 0.34 µs, 29.9 ms, 1.2 s, 3.1 min, 5 h.
export function seconds(value, digits = 3) {
  if (!Number.isFinite(value)) return "∞";
  const rounded = Number(value.toPrecision(digits));
  if (rounded >= 7200) return `${number(rounded / 3600, 3)}${NBSP}h`;
  if (rounded >= 120) return `${number(rounded / 60, 3)}${NBSP}min`;
  if (rounded >= 1) return `${number(rounded, digits)}${NBSP}s`;
  if (rounded >= 1e-3) return `${number(rounded * 1e3, digits)}${NBSP}ms`;
  return `${number(rounded * 1e6, digits)}${NBSP}µs`;
}

export function dollars(value) {
  if (!Number.isFinite(value)) return "∞";
  return "$" + value.toLocaleString("en", value < 0.1
    ? { maximumSignificantDigits: 2 } : value < 100
      ? { minimumFractionDigits: 2, maximumFractionDigits: 2 } : { maximumFractionDigits: 0 });
}

export const percent = (share, digits = 2) => `${number(100 * share, digits)}${NBSP}%`;
