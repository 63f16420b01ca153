// The life of one request, out of the events that an engine notes.

// What the events of a request say: stretches of waiting, chunks of the prompt, moments of tokens;
// what it holds in memory; and which state it has been in, since when.
export function fold(events) {
  const life = { waits: [], chunks: [], tokens: [], cached: null, held: 0, read: [], written: 0,
    preempted: 0, state: "waiting", since: 0, end: null };
  for (const { time_s: time, began_s: began, kind, tokens: count = 0 } of events) {
    if (kind === "scheduled") {
      life.waits.push({ from: life.since, to: time });
      life.cached ??= count;
      Object.assign(life, { held: count, read: [], written: 0, state: "prefill", since: time });
    } else if (kind === "chunk") {
      life.chunks.push({ from: began ?? life.since, to: time, tokens: count });
      life.read.push(count);
      life.since = time;
    } else if (kind === "token") {
      life.tokens.push(time);
      life.written += 1;
      Object.assign(life, { state: "decode", since: time });
    } else if (kind === "preempted") {
      Object.assign(life, { held: 0, read: [], written: 0, state: "waiting", since: time });
      life.preempted += 1;
    } else if (kind === "finished") {
      Object.assign(life, { state: "done", end: time });
    }
  }
  return life;
}
