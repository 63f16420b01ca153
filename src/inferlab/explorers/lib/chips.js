// Lists to choose a chip and a format from, and the reader's own machine as a chip.

import { number } from "./format.js";
import { arithmetic, bytesPerElement } from "./theory.js";

export const OWN = "own";

// The reader's machine by the numbers they typed: GB/s, TFLOP/s and GB.
export function ownChip({ ownBandwidth, ownSpeed, ownMemory }) {
  const speed = ownSpeed * 1e12;
  return {
    name: "your machine",
    default_dtype: "bf16",
    memory_bytes: ownMemory === undefined ? null : ownMemory * 1e9,
    bandwidth: ownBandwidth * 1e9,
    flops: { fp32: speed, bf16: speed, fp16: speed },
  };
}

export function chipOptions(catalog) {
  const kind = (chip) => /HBM/.test(chip.memory_type) ? "HBM: data-centre accelerators"
    : /GDDR/.test(chip.memory_type) ? "GDDR: cards" : "DDR: CPUs";
  const chips = Object.entries(catalog.chips).filter(([key]) => key !== OWN)
    .sort(([, a], [, b]) => kind(b).localeCompare(kind(a)) || b.year - a.year);
  return [[OWN, "Your machine: two numbers", "Yours", "your machine"],
    ...chips.map(([key, chip]) => [key, `${chip.name}, ${chip.year}`, kind(chip), chip.name])];
}

// The formats that weights may have on `chip`.
export function formatOptions(catalog, chip) {
  return Object.keys(catalog.formats)
    .filter((name) => name !== "fp64" && arithmetic(catalog, chip, name))
    .map((name) => [name, bits(catalog, name), null, name]);
}

export const bits = (catalog, name) => `${name}: ${number(8 * bytesPerElement(catalog, name))} bits`;
