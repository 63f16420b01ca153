// The life of one request: from its events to two drawings, and to numbers that explain themselves.

import { h, s, replace, picture } from "./dom.js";
import { bytes, byteRate, number, percent, seconds, whole } from "./format.js";

const tokens = (count) => `${whole(count)} token${count === 1 ? "" : "s"}`;

// The numbers of a request: its account once that has come, until then what the events tell.
export function measure(life, account) {
  const count = life.tokens.length;
  const [first, last] = [life.tokens[0], life.tokens.at(-1)];
  const tpot = account?.tpot_s ?? (count > 1 ? (last - first) / (count - 1) : null);
  const total = (list) => list.reduce((sum, each) => sum + each.tokens, 0);
  const cached = account?.cached_tokens ?? life.cached;
  return {
    count, tpot, last, cached, chunks: life.chunks.length, preempted: life.preempted,
    prompt: account?.prompt_tokens ?? (count ? (life.cached ?? 0) + total(life.chunks) : null),
    queue: account?.queue_s ?? (life.waits[0] ? life.waits[0].to : null),
    ttft: account?.ttft_s ?? first ?? null,
    speed: account?.tokens_per_second ?? (tpot ? 1 / tpot : null),
    moved: account?.bytes_per_token ?? null,
    weights: account?.weight_bytes_per_token ?? null,
    past: account?.kv_read_bytes_per_token ?? null,
    achieved: account?.achieved_bytes_per_second ?? null,
    bandwidth: account?.bandwidth ?? null,
    share: account?.fraction_of_bandwidth ?? null,
    rows: account?.rows ?? null,
    done: Boolean(account),
  };
}

// The tiles. `value` is what they show, null where there is nothing to show; `why` explains it.
export const NUMBERS = [
  { key: "queue", name: "waited",
    value: (m) => m.queue === null ? null : seconds(m.queue, 2),
    why: () => "From the arrival of your request until the engine took it into a step. It is long when others are "
      + "served first or when their conversations fill the memory." },
  { key: "ttft", name: "first token",
    value: (m) => m.ttft === null ? null : seconds(m.ttft),
    why: (m, felt) => "TTFT, time to first token: waiting, then reading the prompt."
      + (m.prompt === null ? "" : ` ${tokens(m.prompt - (m.cached ?? 0))} were read in ${whole(m.chunks)} `
        + `piece${m.chunks === 1 ? "" : "s"}, each in one pass through the model.`)
      + (felt ? ` Your browser saw it ${seconds(felt)} after Enter.` : "") },
  { key: "tpot", name: "each token after",
    value: (m) => m.tpot === null ? null : seconds(m.tpot),
    why: (m) => "TPOT, time per output token: the time from the first token to the last, divided by the "
      + `${m.count > 1 ? `${tokens(m.count - 1)} that came` : "tokens that come"} after the first. Each is a pass of its own.` },
  { key: "speed", name: "speed",
    value: (m) => m.speed === null ? null : `${number(m.speed)}\u00a0tokens/s`,
    why: (m) => `1 ÷ TPOT${m.tpot ? ` = 1 ÷ ${seconds(m.tpot)}` : ""}: the pace once the answer runs. The wait for the first token is not in it.` },
  { key: "moved", name: "bytes a token",
    value: (m) => m.moved === null ? null : bytes(m.moved),
    why: (m) => m.moved === null
      ? "What memory hands over for one token of your answer. It is counted when the answer is complete."
      : `What memory hands over for one token: ${bytes(m.weights)} of weights${m.rows > 1.005
        ? `, your part of trips that ${number(m.rows)} requests shared,` : ""} and ${bytes(m.past)} of keys and `
        + "values, the memory of your conversation." },
  { key: "share", name: "of the bandwidth",
    value: (m) => m.share === null ? null : percent(m.share),
    why: (m) => m.share === null
      ? (m.done ? "There is no decode step to measure, or this machine's bandwidth is not known."
        : "How near the answer came to the fastest that this machine's memory allows. It is counted at the end.")
      : `${bytes(m.moved)} ÷ ${seconds(m.tpot)} = ${byteRate(m.achieved)}. This machine's memory was measured at `
        + `${byteRate(m.bandwidth)}: no answer can be faster than that.${m.rows > 1.005 ? " Others used the rest." : ""}` },
  { key: "cached", name: "prompt from cache",
    value: (m) => m.cached === null ? null : m.prompt === null ? whole(m.cached) : `${whole(m.cached)} of ${whole(m.prompt)}`,
    why: (m) => "Prompt tokens whose keys and values the server still had, from an earlier turn or from somebody whose "
      + `prompt began the same way. ${m.cached ? "They were not computed again." : "Ask again in this chat, and most of your prompt will be there."}` },
  { key: "rows", name: "in the same steps",
    value: (m) => m.rows === null ? null : m.rows > 1.005 ? `${number(m.rows)} requests` : "you alone",
    why: () => "How many requests took part in your decode steps, on average. All of them share each trip of the "
      + "weights, so company costs little and saves much." },
];

const SPANS = [0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600];
const HIGH = { wait: 14, block: 44, memory: 16 };

// Draw the time of a request into `track` and its tokens into `memory`. `now` is the moment to draw
// while it runs; `room` is how many tokens the answer may have.
export function draw(life, { track, memory, now, room, width }) {
  const end = life.end ?? now;
  const span = life.end === null ? SPANS.find((each) => each >= 1.04 * now) ?? 1.04 * now : Math.max(end, 1e-3);
  const x = (time) => (Math.min(time, span) / span) * (width - 4) + 2;
  const bar = (kind, from, to, high, extra = "") => s("rect", { class: `${kind} ${extra}`, x: x(from).toFixed(1),
    y: HIGH.block - high, width: Math.max(1, x(to) - x(from) - 1).toFixed(1), height: high, rx: Math.min(3, high / 5) });
  const tick = (time) => `M${(x(time) - 1).toFixed(1)} 0V${HIGH.block}`;
  const open = end > 0 && (life.state === "waiting" || life.state === "prefill");
  const most = width < 400 ? 4 : 5;
  const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1200].find((each) => span / each <= most) ?? span / 4;
  const marks = Array.from({ length: Math.floor(span / step + 1e-9) + 1 }, (_, i) => i * step);
  replace(track, picture(width, HIGH.block + 22, describe(life),
    marks.map((time) => s("text", { class: "tick", x: x(time).toFixed(1), y: HIGH.block + 17,
      "text-anchor": time === 0 ? "start" : x(time) > width - 24 ? "end" : "middle" }, time ? seconds(time, 3) : "Enter")),
    s("path", { class: "rule", d: `M2 ${HIGH.block + 1}H${width - 2}` }),
    life.waits.map(({ from, to }) => bar("wait", from, to, HIGH.wait)),
    life.chunks.map(({ from, to }) => bar("compute", from, to, HIGH.block)),
    open ? bar(life.state === "waiting" ? "wait" : "compute", life.since, Math.max(end, life.since),
      life.state === "waiting" ? HIGH.wait : HIGH.block, "open") : null,
    s("path", { class: "bytes ticks", d: [...life.chunks.map(({ to }) => to), ...life.tokens].map(tick).join("") })));

  const read = life.read.reduce((sum, count) => sum + count, 0);
  const total = life.held + read + life.written;
  const space = Math.max(1, life.end === null ? life.held + read + Math.max(room, life.written) : total);
  let at = 0;
  const piece = (kind, count) => {
    const from = (at / space) * (width - 4) + 2;
    at += count;
    const wide = (count / space) * (width - 4);
    return s("rect", { class: kind, x: from.toFixed(1), y: 0, width: Math.max(0, wide - Math.min(1, wide / 4)).toFixed(1),
      height: HIGH.memory, rx: 2 });
  };
  replace(memory, picture(width, HIGH.memory, `${tokens(life.held)} from the cache, ${tokens(read)} read, ${tokens(life.written)} written`,
    s("rect", { class: "empty", x: 2, y: 0, width: width - 4, height: HIGH.memory, rx: 2 }),
    life.held ? piece("kv", life.held) : null, life.read.map((count) => piece("compute", count)),
    life.written ? piece("bytes", life.written) : null));
}

// The legend's words, and the sentence that the picture is for those who cannot see it.
export function words(life) {
  const read = life.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
  const waited = life.waits.reduce((sum, wait) => sum + wait.to - wait.from, 0);
  const inside = life.read.reduce((sum, count) => sum + count, 0);
  return {
    wait: life.waits.length ? seconds(waited, 2) : "",
    prefill: read ? `${tokens(read)}${life.chunks.length > 1 ? ` in ${life.chunks.length} chunks` : ""}` : "",
    decode: life.tokens.length ? `${tokens(life.tokens.length)}, a tick each` : "a tick a token",
    memory: life.held + inside + life.written
      ? [[life.held, "from the cache", "kv"], [inside, "read now", "compute"], [life.written, "written", "bytes"]]
        .filter(([count]) => count) : [],
  };
}

function describe(life) {
  const said = words(life);
  return [said.wait && `Waiting ${said.wait}`, said.prefill && `prefill of ${said.prefill}`,
    life.tokens.length && `${tokens(life.tokens.length)} written`].filter(Boolean).join(", ") || "Nothing has happened yet";
}

// TTFT + (N − 1) × TPOT: the answer's whole time, by what the two mean.
export function sum(m) {
  if (!m.done || m.ttft === null || m.tpot === null) return [];
  return [h("span", { class: "compute" }, seconds(m.ttft)), " + ", `${whole(m.count - 1)} × `,
    h("span", { class: "bytes" }, seconds(m.tpot)), ` = ${seconds(m.ttft + (m.count - 1) * m.tpot)}`];
}
