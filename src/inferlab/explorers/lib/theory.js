// inferlab.theory's costs and roofline in JavaScript, over the shapes, chips and formats that
// inferlab.explorers.catalog hands over (their fields keep Python's names). Formulas and their
// reasons are explained in theory/costs.py and theory/roofline.py; tests compare the two.

// What a pass reads and computes, part by part.

export function forward(catalog, shape, tokens, { context = 0, batch = 1, dtype = "bf16",
  kvDtype = null, latent = "absorbed" } = {}) {
  const rows = tokens * batch;
  const kv = bytesPerElement(catalog, kvDtype ?? activationFormat(catalog, dtype));
  const element = bytesPerElement(catalog, activationFormat(catalog, dtype));
  const weights = weightBytesByPart(catalog, shape, dtype, rows);
  const experts = shape.experts;
  const routed = experts ? shape.expert.matrices * experts.active * experts.layers : 0;
  return cost({
    projections: part(2 * rows * shape.projections.matrices, weights.projections),
    ffn: part(2 * rows * (shape.ffn.matrices + routed), weights.ffn),
    attention: part(batch * attentionFlops(shape, tokens, context, latent),
      batch * kvElements(shape, context) * kv),
    kv_write: part(0, rows * shape.kv_width * shape.layers * kv),
    activations: part(0, rows * 2 * shape.hidden * shape.layers * element),
    logits: part(2 * batch * shape.head.matrices, weights.logits),
  });
}

export const prefill = (catalog, shape, tokens, options = {}) =>
  forward(catalog, shape, tokens, { latent: "expanded", ...options });

export const decodeStep = (catalog, shape, context, batch = 1, options = {}) =>
  forward(catalog, shape, 1, { ...options, context, batch });

const part = (flops, bytes) => ({ flops, bytes });

function cost(parts) {
  const sum = (field) => Object.values(parts).reduce((total, each) => total + each[field], 0);
  return { parts, flops: sum("flops"), bytes: sum("bytes") };
}

function attentionFlops(shape, tokens, context, latent) {
  let pairs = pairsOf(tokens, context, Infinity) * shape.full_layers;
  if (shape.windowed_layers) {
    pairs += pairsOf(tokens, context, shape.window) * shape.windowed_layers;
  }
  const mla = shape.latent;
  if (mla && latent === "absorbed") {
    return 2 * pairs * shape.heads * (2 * mla.kv_rank + mla.rope_dim);
  }
  const unpack = mla
    ? mla.kv_rank * shape.heads * (mla.nope_dim + mla.value_dim) * shape.layers : 0;
  return 2 * pairs * (shape.query_width + shape.value_width) + 2 * context * unpack;
}

// (query, key) pairs of one causal layer: the first queries see one key more each, the rest `limit`.
function pairsOf(tokens, context, window) {
  const limit = Math.min(window, context + tokens);
  const growing = Math.max(0, Math.min(tokens, limit - context));
  return growing * context + (growing * (growing + 1)) / 2 + (tokens - growing) * limit;
}

// What is stored.

function kvElements(shape, context) {
  const seen = shape.window ? Math.min(context, shape.window) : context;
  return shape.kv_width * (shape.full_layers * context + shape.windowed_layers * seen);
}

export const kvBytes = (catalog, shape, context, kvDtype) =>
  kvElements(shape, context) * bytesPerElement(catalog, kvDtype);

export const kvBytesPerToken = (catalog, shape, kvDtype) =>
  shape.kv_width * shape.layers * bytesPerElement(catalog, kvDtype);

export function weightBytes(catalog, shape, dtype) {
  const experts = shape.experts;
  let vectors = shape.projections.vectors + shape.ffn.vectors + shape.head.vectors;
  if (experts) vectors += shape.expert.vectors * experts.count * experts.layers;
  return (shape.params - vectors) * bytesPerElement(catalog, dtype)
    + vectors * bytesPerElement(catalog, activationFormat(catalog, dtype));
}

export function weightBytesByPart(catalog, shape, dtype, rows) {
  const matrix = bytesPerElement(catalog, dtype);
  const vector = bytesPerElement(catalog, activationFormat(catalog, dtype));
  const size = (weights) => weights.matrices * matrix + weights.vectors * vector;
  const experts = shape.experts;
  return {
    projections: size(shape.projections),
    ffn: size(shape.ffn)
      + (experts ? size(shape.expert) * experts.layers * distinctExperts(experts, rows) : 0),
    logits: size(shape.head) + shape.learned_positions * shape.hidden * matrix,
  };
}

export function streamedWeightBytes(catalog, shape, dtype, batch) {
  return Object.values(weightBytesByPart(catalog, shape, dtype, batch)).reduce((a, b) => a + b);
}

export function distinctExperts({ count, active }, tokens) {
  return tokens === 1 ? active : count * (1 - (1 - active / count) ** tokens);
}

export function bytesPerElement(catalog, dtype) {
  const { block, block_bytes } = catalog.formats[dtype];
  return block_bytes / block;
}

export function activationFormat(catalog, dtype) {
  return bytesPerElement(catalog, dtype) < 2 ? "bf16" : dtype;
}

// What a chip makes of it.

// The format in which `chip` multiplies weights stored as `dtype`, or undefined if in none.
export function arithmetic(catalog, chip, dtype) {
  if (dtype in chip.flops) return dtype;
  return catalog.formats[dtype].arithmetic.find((candidate) => candidate in chip.flops);
}

export function place(catalog, work, chip, dtype, chips = 1) {
  const peak = chip.flops[arithmetic(catalog, chip, dtype)] * chips;
  const bandwidth = chip.bandwidth * chips;
  const compute = work.flops / peak;
  const memory = work.bytes / bandwidth;
  const parts = Object.fromEntries(Object.entries(work.parts ?? {}).map(
    ([name, each]) => [name, place(catalog, each, chip, dtype, chips)]));
  const intensity = work.bytes ? work.flops / work.bytes : work.flops ? Infinity : 0;
  return {
    flops: work.flops,
    bytes: work.bytes,
    intensity,
    ridge: peak / bandwidth,
    bound: compute > memory ? "compute" : "memory",
    attainable: Math.min(peak, bandwidth * intensity),
    seconds: work.parts
      ? Object.values(parts).reduce((total, each) => total + each.seconds, 0)
      : Math.max(compute, memory),
    parts,
  };
}

// Bytes of all weights and of `batch` caches of `context` tokens: what has to fit.
export function footprint(catalog, shape, context, batch, dtype, kvDtype) {
  const kv = kvDtype ?? activationFormat(catalog, dtype);
  return weightBytes(catalog, shape, dtype) + batch * kvBytes(catalog, shape, context, kv);
}

// null where the chip's memory is not known.
export function fits(catalog, shape, chip, context, batch, { dtype, kvDtype, chips = 1 }) {
  if (chip.memory_bytes === null) return null;
  return footprint(catalog, shape, context, batch, dtype, kvDtype) <= chip.memory_bytes * chips;
}

export function sequencesThatFit(catalog, shape, chip, context, { dtype, kvDtype, chips = 1 }) {
  if (chip.memory_bytes === null) return null;
  const room = chip.memory_bytes * chips - weightBytes(catalog, shape, dtype);
  const kv = kvBytes(catalog, shape, context, kvDtype ?? activationFormat(catalog, dtype));
  return Math.max(0, Math.floor(room / kv));
}

// What `inferlab explain --json` prints: prefill of one prompt, one decode step of the batch.
export function report(catalog, { model, chip: chipKey, chips = 1, dtype, kvDtype = null, prompt,
  context = prompt, batch = 1 }) {
  const shape = catalog.models[model];
  const chip = catalog.chips[chipKey];
  const options = { dtype: dtype ?? chip.default_dtype, kvDtype };
  const placed = (work) => place(catalog, work, chip, options.dtype, chips);
  const first = placed(prefill(catalog, shape, prompt, options));
  const step = placed(decodeStep(catalog, shape, context, batch, options));
  const longest = Math.max(prompt, context);
  return {
    ridge: first.ridge,
    weight_bytes: weightBytes(catalog, shape, options.dtype),
    kv_bytes_per_token: kvBytesPerToken(catalog, shape,
      kvDtype ?? activationFormat(catalog, options.dtype)),
    fits: fits(catalog, shape, chip, longest, batch, { ...options, chips }),
    prefill: first,
    decode: { ...step, tokens_per_second: batch / step.seconds },
  };
}
