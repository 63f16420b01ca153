// inferlab.theory.kernels in JavaScript: operations and the fewest bytes of single kernels.
// Formulas are explained there; tests compare the two.

import { activationFormat, bytesPerElement } from "./theory.js";

const element = (catalog, dtype) => bytesPerElement(catalog, activationFormat(catalog, dtype));

export const vectorAdd = (catalog, size, dtype) =>
  ({ flops: size, bytes: 3 * size * element(catalog, dtype) });

export const matmul = (catalog, rows, inner, columns, dtype) => ({
  flops: 2 * rows * inner * columns,
  bytes: rows * (inner + columns) * element(catalog, dtype)
    + inner * columns * bytesPerElement(catalog, dtype),
});

export const decodeAttention = (catalog, context, heads, size, dtype) =>
  ({ flops: 4 * heads * context * size, bytes: 2 * context * size * element(catalog, dtype) });
