// Why one token after another? What comes out of a pass is what goes into the next.

import { h, s, replace, picture, onWidth } from "./lib/dom.js";
import { bytes, percent } from "./lib/format.js";
import { player } from "./lib/player.js";

const STYLE = `
.loop .token { fill: var(--panel); stroke: var(--rule); stroke-width: 1; }
.loop .token.new { stroke: var(--soft); }
.loop .token[data-in] { fill: var(--ink); stroke: var(--ink); }
.loop text[data-in] { fill: var(--paper); }
.loop .box { fill: var(--panel); stroke: var(--soft); stroke-width: 1.2; }
.loop .way { fill: none; stroke: var(--soft); stroke-width: 1.4; }
.loop .name { font-weight: 650; }
.loop .layer { opacity: 0.2; } .loop .layer.read { opacity: 1; }
.loop .share { fill: var(--soft); opacity: 0.35; }
.loop .share.won { fill: var(--ink); opacity: 0.85; }
.caption { margin: 0.6rem 0 0; min-height: 3em; }
@container (max-width: 480px) { .caption { min-height: 4.5em; } }
`;

// A token as a reader sees it: without its leading space, line breaks by a sign.
const seen = (text) => text.replaceAll("\n", "⏎").trim() || "␣";

const measure = (() => {
  const pen = document.createElement("canvas").getContext("2d");
  return (text, font) => {
    pen.font = font;
    return pen.measureText(text).width;
  };
})();

const ease = (t) => t * t * (3 - 2 * t);
const between = (t, from, to) => Math.min(1, Math.max(0, (t - from) / (to - from)));

export function render({ model, el }) {
  const prompt = model.get("prompt").map(seen);
  const steps = model.get("steps"); // [{ text, candidates: [[text, probability], …] }]
  const heavy = model.get("bytes_per_pass");
  const words = [...prompt, ...steps.map((step) => seen(step.text))];
  const board = h("div");
  const caption = h("p", { class: "caption" });
  let parts;
  let at = 0; // steps done, with the share of the one under way

  function build(width) {
    const font = `13px ${getComputedStyle(board).fontFamily}`;
    // Tokens in lines, as text flows.
    const boxes = [];
    let x = 1;
    let line = 0;
    for (const word of words) {
      const w = Math.ceil(measure(word, font)) + 14;
      if (x + w > width - 1 && x > 1) [x, line] = [1, line + 1];
      boxes.push({ x, y: 8 + 34 * line, w, h: 26 });
      x += w + 4;
    }
    const below = 8 + 34 * (line + 1);
    const machine = { x: 1, y: below + 42, w: Math.round(width * 0.36), h: 112 };
    const list = { x: Math.round(width * 0.5), y: machine.y + 14 };
    const token = (box, word, kind = "") => {
      const node = s("g", {}, s("rect", { class: `token ${kind}`, x: 0, y: 0, width: box.w, height: box.h, rx: 6 }),
        s("text", { x: box.w / 2, y: 17.5, "text-anchor": "middle" }, word));
      node.place = (px, py) => node.setAttribute("transform", `translate(${px.toFixed(1)} ${py.toFixed(1)})`);
      node.place(box.x, box.y);
      node.mark = (on) => [...node.children].forEach((child) => child.toggleAttribute("data-in", on));
      return node;
    };
    const rows = boxes.map((box, i) => token(box, words[i], i >= prompt.length ? "new" : ""));
    const thick = 5;
    const count = 12;
    const layers = Array.from({ length: count }, (_, i) => s("rect", { class: "bytes layer", rx: 1.5,
      x: machine.x + 14, width: machine.w - 28, height: thick - 1.5, y: machine.y + 34 + i * (thick + 1) }));
    const head = { orient: "auto", markerWidth: 8, markerHeight: 8, refX: 6, refY: 4 };
    const tip = s("marker", { id: "tip", ...head }, s("path", { d: "M0 0L7 4L0 8", fill: "var(--soft)" }));
    const into = s("path", { class: "way", "marker-end": "url(#tip)" });
    const out = s("path", { class: "way", "marker-end": "url(#tip)",
      d: `M${machine.x + machine.w + 4} ${machine.y + machine.h / 2}H${list.x - 10}` });
    const back = s("path", { class: "way", "marker-end": "url(#tip)" });
    const odds = s("g");
    parts = { boxes, rows, machine, list, layers, into, out, back, odds, width, below };
    replace(board, picture(width, machine.y + machine.h + 4, `Tokens go through ${model.get("model")} and come back`,
      s("defs", {}, tip), into, out, back,
      s("rect", { class: "box", x: machine.x, y: machine.y, width: machine.w, height: machine.h, rx: 8 }),
      s("text", { class: "name", x: machine.x + machine.w / 2, y: machine.y + 22, "text-anchor": "middle" },
        width < 480 ? "model" : model.get("model")),
      layers, odds, rows));
    paint();
  }

  function paint() {
    const { boxes, rows, machine, list, layers, into, out, back, odds, width, below } = parts;
    const step = Math.min(steps.length - 1, Math.floor(at + 1e-9));
    const phase = at >= steps.length ? 1 : at - step;
    const over = at >= steps.length;
    const next = prompt.length + step;
    const inputs = step === 0 ? [0, prompt.length - 1] : [next - 1, next - 1];
    rows.forEach((row, i) => {
      const there = i < next || (i === next && phase > 0.72);
      row.setAttribute("visibility", there ? "visible" : "hidden");
      row.mark(!over && phase < 0.6 && i >= inputs[0] && i <= inputs[1]);
      row.place(boxes[i].x, boxes[i].y);
    });
    // Into the model, from under the tokens of this pass.
    const last = boxes[inputs[1]];
    const from = Math.min(width - 20, last.x + last.w / 2);
    const door = machine.x + machine.w / 2;
    const turn = below + 14;
    into.setAttribute("d", `M${from} ${last.y + last.h + 3}V${turn}H${door}V${machine.y - 3}`);
    into.setAttribute("opacity", phase < 0.6 ? 1 : 0.3);
    out.setAttribute("opacity", between(phase, 0.45, 0.55));
    const read = between(phase, 0.08, 0.55) * layers.length;
    layers.forEach((layer, i) => layer.classList.toggle("read", over || i < read));
    // What it says, and which token is taken.
    const candidates = steps[step].candidates.length ? steps[step].candidates : [[steps[step].text, null]];
    const tall = 24;
    const top = list.y + Math.max(0, (4 - candidates.length) * tall) / 2;
    const room = width - list.x - 4;
    const heard = between(phase, 0.55, 0.7);
    const chosen = Math.max(0, candidates.findIndex(([text]) => text === steps[step].text));
    const label = Math.min(90, room * 0.45);
    replace(odds, candidates.slice(0, 4).map(([text, p], i) => {
      const y = top + i * tall;
      const won = i === chosen;
      return s("g", { opacity: heard },
        s("text", { class: won ? "name" : "", x: list.x + label - 8, y: y + 13, "text-anchor": "end" }, seen(text)),
        p === null ? null : [
          s("rect", { class: `share ${won ? "won" : ""}`, x: list.x + label, y: y + 2, height: 15, width: Math.max(1, p * (room - label - 44)) }),
          s("text", { class: "tick", x: list.x + label + Math.max(1, p * (room - label - 44)) + 6, y: y + 13 }, percent(p))]);
    }));
    // The new token goes back to the end of the text.
    const seat = boxes[next];
    const start = { x: list.x + 10, y: top + chosen * tall - 5 };
    const gone = ease(between(phase, 0.72, 0.95));
    rows[next].place(start.x + (seat.x - start.x) * gone, start.y + (seat.y - start.y) * gone);
    const lane = Math.max(list.x + 30, Math.min(width - 12, seat.x + seat.w / 2));
    back.setAttribute("d", `M${lane} ${list.y - 6}V${below + 24}H${seat.x + seat.w / 2}V${seat.y + seat.h + 5}`);
    back.setAttribute("opacity", heard);
    caption.textContent = say(step, phase, over);
  }

  function say(step, phase, over) {
    const passes = over ? steps.length : step + (phase >= 0.55 ? 1 : 0);
    const bill = passes ? `${passes} ${passes === 1 ? "pass" : "passes"}, ${bytes(passes * heavy)} of weights read.` : "";
    if (over) return `${bill} ${steps.length} tokens needed ${steps.length} passes: no pass can start before the one ahead has chosen its token.`;
    if (phase < 0.55) {
      return step === 0 ? `All ${prompt.length} tokens of the prompt go in together. ${bill}`
        : `Only the newest token goes in; what the model computed for the others is kept. ${bill}`;
    }
    return `The pass ends in a probability for every token it knows; one is taken, “${seen(steps[step].text)}”. ${bill}`;
  }

  const film = player({
    seconds: 2.2 * steps.length,
    label: "Passes through the model",
    stops: Array.from({ length: 2 * steps.length + 1 }, (_, i) => (i % 2 ? (i - 1) / 2 + 0.7 : i / 2) / steps.length),
    format: (t) => `${(t * steps.length).toFixed(1)} passes`,
    draw(t) {
      at = t * steps.length;
      if (parts) paint();
    },
  });
  el.classList.add("loop");
  el.append(h("style", {}, STYLE), board, caption, film.node);
  onWidth(board, build);
}
