// The page: a conversation, what is typed, and which request's life is shown beside it.

import { calm, h, onWidth, replace } from "./dom.js";
import { fold } from "./fold.js";
import { seconds, whole } from "./format.js";
import { NUMBERS, draw, measure, sum, words } from "./life.js";
import { complete, headers, reach, Trouble } from "./stream.js";

const at = (id) => document.getElementById(id);
const [talk, input, form] = [at("talk"), at("input"), at("composer")];

let model = null; // the served model's name
let turns = []; // { role, content } of this conversation
let running = null; // the turn that is being answered
let shown = null; // the turn whose life stands beside the conversation
let width = 0; // of the drawings

// ---- theme ---------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");

function paint() {
  const theme = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  at("theme").setAttribute("aria-pressed", theme === "dark");
  return theme;
}

at("theme").addEventListener("click", () => {
  const theme = paint() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* nothing may be stored here */ }
  paint();
});
dark.addEventListener("change", paint);
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* then the system's theme it is */ }
paint();

// ---- the life of a request -----------------------------------------------------------------------

const tiles = NUMBERS.map(({ key, name }) => {
  const value = h("b", {}, "–");
  const hint = h("span", { id: `why-${key}`, hidden: true });
  const node = h("button", { type: "button", class: "tile", "aria-describedby": hint.id },
    h("span", { class: "name" }, name), value, hint);
  for (const event of ["pointerenter", "focus", "click"]) node.addEventListener(event, () => explain(key));
  return { key, node, value, hint };
});
at("numbers").append(...tiles.map(({ node }) => node));

let explained = null;

function explain(key) {
  explained = key;
  for (const tile of tiles) tile.node.classList.toggle("chosen", tile.key === key);
  at("why").textContent = tiles.find((tile) => tile.key === key).hint.textContent;
}

// How long after its arrival the server is, as far as the page can tell.
const clock = (turn) => (performance.now() - turn.sent) / 1000 - turn.late;

function show(turn) {
  shown = turn;
  const life = turn ? fold(turn.events) : fold([]);
  if (turn?.over) life.end ??= turn.over;
  const m = measure(life, turn?.account);
  const said = words(life);
  at("stage").textContent = stage(turn, life);
  at("said-wait").textContent = said.wait;
  at("said-prefill").textContent = said.prefill;
  at("said-decode").textContent = said.decode;
  replace(at("said-memory"), said.memory.length
    ? said.memory.map(([count, what, kind], i) => [i ? ", " : "", h("b", { class: kind }, whole(count)), ` ${what}`])
    : ["none yet"]);
  replace(at("sum"), sum(m));
  NUMBERS.forEach(({ value, why }, i) => {
    const text = value(m) ?? "–";
    if (tiles[i].value.textContent !== text) tiles[i].value.textContent = text;
    const because = why(m, turn?.felt);
    if (tiles[i].hint.textContent !== because) tiles[i].hint.textContent = because;
  });
  if (explained) explain(explained);
  for (const each of talk.querySelectorAll(".life")) each.setAttribute("aria-pressed", turn !== null && each === turn.button);
  if (width) {
    const now = turn ? Math.max(0, clock(turn)) : 0;
    draw(life, { track: at("track"), memory: at("memory"), now, width, room: turn?.room ?? 1 });
  }
}

function stage(turn, life) {
  if (!turn) return "It begins when you press Enter.";
  if (turn.trouble && !life.tokens.length) return "It ended before its first token.";
  if (turn.over) return turn.stopped ? "You stopped it. The server has given its memory back." : `Complete: ${seconds(life.tokens.at(-1) ?? life.end)} to the last token.`;
  if (life.state === "waiting") return life.preempted ? "Waiting again: memory ran out, and others went on first." : "Waiting for a place in the batch.";
  if (life.state === "prefill") return "Prefill: the model reads your prompt. The screen stays empty.";
  return "Decode: one pass through the model for each token.";
}

// Between two events time passes, and the drawing shows it; with reduced motion only events do. Ten
// times a second is enough: the page may share its cores with the engine that it watches.
let painted = 0;

function animate(time) {
  if (!running) return;
  if (shown === running && time - painted >= 100) {
    painted = time;
    show(running);
  }
  requestAnimationFrame(animate);
}

onWidth(at("track"), (wide) => { width = wide; show(shown); });

at("trace").addEventListener("click", async () => {
  try {
    const response = await reach("/v1/trace?format=chrome", { headers: headers(at("key").value) });
    const link = h("a", { href: URL.createObjectURL(await response.blob()), download: "trace.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } catch (error) {
    complain(error);
  }
});

// ---- the conversation ----------------------------------------------------------------------------

function complain(error) {
  at("error").hidden = false;
  at("error").textContent = error.message;
  if (error.ask) {
    at("ask-key").hidden = false;
    at("key").focus();
  }
}

function calmDown() {
  at("error").hidden = true;
  at("error").textContent = "";
}

const announce = (text) => { at("announce").textContent = text; };

// Follow the answer, unless the reader has scrolled up to read something else.
let pinned = true;
const follow = () => { if (pinned) talk.scrollTop = talk.scrollHeight; };
talk.addEventListener("scroll", () => { pinned = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 60; });
new ResizeObserver(follow).observe(talk);

function busy(yes) {
  const leaving = document.activeElement === at("stop");
  at("send").hidden = yes;
  at("stop").hidden = !yes;
  talk.setAttribute("aria-busy", yes);
  if (leaving) input.focus();
}

function settings() {
  const system = at("system").value.trim();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...turns];
  return { model, messages, temperature: Number(at("temperature").value), max_tokens: Number(at("max-tokens").value) };
}

async function send() {
  const question = input.value.trim();
  if (!question || running) return;
  for (const id of ["temperature", "max-tokens"]) {
    if (!at(id).reportValidity()) {
      at(id).closest("details").open = true;
      at(id).focus();
      return;
    }
  }
  calmDown();
  if (!model) await greet();
  if (!model || running) return;
  at("welcome")?.remove();
  const text = h("p", { class: "text" });
  const button = h("button", { type: "button", class: "life quiet", "aria-pressed": "false", hidden: true });
  const asked = h("article", { class: "you", "aria-label": "You" }, h("p", { class: "text" }, question));
  const answer = h("article", { class: "model", "aria-label": "The model" }, text, h("p", { class: "end soft" }, button));
  const turn = { question, text, button, asked, answer, events: [], account: null, over: 0, late: 0, felt: null, stopped: false,
    trouble: null, sent: performance.now(), abort: new AbortController(), room: Number(at("max-tokens").value) };
  button.addEventListener("click", () => show(turn));
  turns.push({ role: "user", content: question });
  const request = settings();
  input.value = "";
  grow();
  running = turn;
  busy(true);
  announce("Waiting for the answer.");
  talk.append(asked, answer);
  pinned = true;
  follow();
  show(turn);
  if (!calm()) requestAnimationFrame(animate);
  try {
    for await (const piece of complete(request, { key: at("key").value, signal: turn.abort.signal })) take(turn, piece);
  } catch (error) {
    if (error.name !== "AbortError") turn.trouble = error;
  }
  finish(turn);
}

function take(turn, { text, events, account }) {
  if (events.length) {
    turn.events.push(...events);
    // The page's clock started at Enter, the server's when the request arrived: the way there is between.
    const lag = (performance.now() - turn.sent) / 1000 - events.at(-1).time_s;
    turn.late = turn.events.length === events.length ? lag : Math.min(turn.late, lag);
  }
  if (text) {
    turn.felt ??= (performance.now() - turn.sent) / 1000;
    turn.text.append(text);
    follow();
  }
  if (account) turn.account = account;
  if (calm() && shown === turn) show(turn);
}

function finish(turn) {
  turn.over = Math.max(clock(turn), turn.events.at(-1)?.time_s ?? 0);
  const content = turn.text.textContent;
  const times = turn.events.filter(({ kind }) => kind === "token").map(({ time_s: time }) => time);
  const own = running === turn; // a new chat may have begun
  if (own) {
    running = null;
    busy(false);
  }
  turn.button.hidden = false;
  turn.button.textContent = `${whole(times.length)} token${times.length === 1 ? "" : "s"} in ${seconds(times.at(-1) ?? turn.over)}`;
  turn.button.setAttribute("aria-label", `${turn.button.textContent}: show the life of this request`);
  const why = turn.stopped ? "Stopped." : turn.account?.finish_reason === "length" ? "It has reached the most tokens that it may have." : "";
  if (why) turn.button.after(` ${why}`);
  if (!own) return;
  if (content) turns.push({ role: "assistant", content });
  else turns.pop();
  if (turn.trouble) {
    if (!content) for (const node of [turn.asked, turn.answer]) node.remove();
    else turn.button.after(" Cut off.");
    input.value ||= turn.question; // nothing that was typed is lost
    grow();
    announce("");
    complain(turn.trouble);
    if (!turn.trouble.ask) input.focus();
  } else {
    if (!content) {
      turn.answer.classList.add("empty");
      if (turn.stopped) input.value ||= turn.question;
    }
    announce(`${content || "There was no answer."} ${why}`);
  }
  show(turn);
  follow();
}

function stop() {
  if (!running) return;
  running.stopped = true;
  running.abort.abort();
}

function fresh() {
  const left = running;
  running = null;
  left?.abort.abort();
  busy(false);
  turns = [];
  replace(talk, h("p", { class: "soft" }, "A new conversation. The model remembers nothing of the last one; the server may still hold its cache."));
  calmDown();
  announce("New chat.");
  show(null);
  input.focus();
}

function grow() {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, innerHeight / 3)}px`;
}

form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
input.addEventListener("input", grow);
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
at("key").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  input.focus();
  calmDown();
  if (input.value.trim()) send();
  else greet();
});
at("stop").addEventListener("click", stop);
at("new").addEventListener("click", fresh);

// Which model answers here. Without an answer the first message will say what is wrong.
async function greet() {
  try {
    const response = await reach("/v1/models", { headers: headers(at("key").value) });
    model = (await response.json()).data[0].id;
    at("model").textContent = model;
    at("ask-key").hidden = true;
    document.title = `Press Enter: ${model}`;
  } catch (error) {
    if (error instanceof Trouble) complain(error);
    else throw error;
  }
}

await greet();
if (!at("ask-key").hidden) at("key").focus();
else input.focus();
