// Play, pause and scrub. `draw(t)` paints the state at t in [0, 1] and must do so in any order.

import { calm, h } from "./dom.js";

// Starts by itself when it comes into view, once, unless a hand was there first, and never for
// readers who ask for less motion: they see the state at `rest` and can scrub. Arrow keys move the
// scrubber, from stop to stop where `stops` lists moments, and space plays or pauses. `seconds` may
// be a function: a change of pace.
export function player({ seconds, draw, label, rest = 1, loop = false, autoplay = true, format, stops }) {
  let t = 0;
  let frame = 0;
  let before = 0;
  let waits = autoplay && !calm();
  const toggle = h("button", { type: "button", class: "play", onclick: () => {
    waits = false;
    if (frame) pause();
    else play();
  } });
  const scrub = h("input", { type: "range", min: 0, max: 1000, step: 1, "aria-label": label });
  const node = h("div", { class: "player" }, toggle, scrub);
  const read = format ?? ((now) => `${Math.round(100 * now)} %`);

  function paint(now) {
    t = now;
    scrub.value = Math.round(1000 * t);
    scrub.style.setProperty("--share", `${100 * t}%`);
    scrub.setAttribute("aria-valuetext", read(t));
    draw(t);
  }
  function state(playing) {
    node.dataset.playing = playing;
    toggle.textContent = playing ? "❚❚" : t >= 1 ? "↻" : "▶";
    toggle.setAttribute("aria-label", playing ? "Pause" : t >= 1 ? "Play again" : "Play");
  }
  function tick(now) {
    const length = typeof seconds === "function" ? seconds() : seconds;
    let next = t + (before ? Math.min(now - before, 100) / 1000 / length : 0);
    before = now;
    if (next >= 1 && loop) next -= 1;
    paint(Math.min(next, 1));
    if (t >= 1) pause();
    else frame = requestAnimationFrame(tick);
  }
  function play() {
    if (t >= 1) paint(0);
    before = 0;
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(tick);
    state(true);
  }
  function pause() {
    cancelAnimationFrame(frame);
    frame = 0;
    state(false);
  }
  function seek(now) {
    pause();
    paint(Math.min(1, Math.max(0, now)));
    state(false);
  }
  scrub.addEventListener("input", () => {
    waits = false;
    seek(scrub.value / 1000);
  });
  scrub.addEventListener("keydown", (event) => {
    waits = false;
    const onward = { ArrowRight: true, ArrowUp: true, ArrowLeft: false, ArrowDown: false }[event.key];
    if (event.key === " ") toggle.click();
    else if (stops && onward !== undefined) {
      const ahead = onward ? stops.find((s) => s > t + 1e-6) : stops.findLast((s) => s < t - 1e-6);
      seek(ahead ?? Number(onward));
    } else if (event.key === "Home" || event.key === "End") seek(Number(event.key === "End"));
    else return;
    event.preventDefault();
  });

  seek(waits ? 0 : rest);
  if (waits) {
    new IntersectionObserver(([entry], observer) => {
      if (entry.isIntersecting && waits) {
        waits = false;
        play();
      } else if (!entry.isIntersecting && loop) pause();
      if (!waits && !loop) observer.disconnect();
    }, { threshold: 0.5 }).observe(node);
  }
  return { node, play, pause, seek, get t() { return t; } };
}
