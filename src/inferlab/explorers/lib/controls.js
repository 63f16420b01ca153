// Labelled controls for keyboard and touch. Each returns { node, value, set(value) }.

import { h } from "./dom.js";

let count = 0;
const fresh = () => `c${++count}`; // ids live in the shadow tree of one explorer

// A slider over listed `values`, or from `min` to `max` by `step`; `format` makes its reading.
export function slider({ label, values, min, max, step = 1, value, format = String, onchange }) {
  const id = fresh();
  const at = (position) => (values ? values[position] : position);
  const nearest = (wanted) => {
    if (!values) return wanted;
    const gaps = values.map((v) => Math.abs(Math.log((v || 0.5) / (wanted || 0.5))));
    return gaps.indexOf(Math.min(...gaps));
  };
  const reading = h("output", { for: id });
  const range = values ? { min: 0, max: values.length - 1, step: 1 } : { min, max, step };
  const input = h("input", { type: "range", id, ...range });
  const control = {
    node: h("div", { class: "control slider" }, h("label", { for: id }, label), reading, input),
    input,
    value,
    set(wanted) {
      input.value = nearest(wanted);
      show(wanted); // which may lie between the listed ones
    },
  };
  function show(current) {
    control.value = current;
    reading.textContent = format(current);
    input.setAttribute("aria-valuetext", format(current));
    const share = (input.value - input.min) / (input.max - input.min || 1);
    input.style.setProperty("--share", `${100 * share}%`);
  }
  input.addEventListener("input", () => {
    show(at(Number(input.value)));
    onchange?.(control.value);
  });
  control.set(value);
  return control;
}

// `options`: [value, text] or [value, text, group], groups in order of appearance.
export function select({ label, options, value, onchange }) {
  const id = fresh();
  const input = h("select", { id });
  const control = {
    node: h("div", { class: "control select" }, h("label", { for: id }, label), input),
    input,
    value,
    set(wanted) {
      input.value = wanted;
      control.value = input.value;
    },
    offer(list) {
      const groups = new Map();
      input.replaceChildren();
      for (const [key, text, group] of list) {
        if (group && !groups.has(group)) {
          groups.set(group, h("optgroup", { label: group }));
          input.append(groups.get(group));
        }
        (groups.get(group) ?? input).append(h("option", { value: key }, text));
      }
    },
  };
  input.addEventListener("change", () => {
    control.value = input.value;
    onchange?.(control.value);
  });
  control.offer(options);
  control.set(value);
  return control;
}

// A word in a sentence that opens a list: the list lies, unseen, over the word. Options may carry a
// shorter text for the sentence: [value, text, group, short].
export function pick({ label, options, value, onchange }) {
  const word = h("span", { class: "word" });
  const list = select({ label, options, value, onchange: (chosen) => {
    name();
    onchange?.(chosen);
  } });
  let offered = options;
  const name = () => {
    const chosen = offered.find(([key]) => String(key) === list.value);
    word.textContent = chosen?.[3] ?? chosen?.[1] ?? "";
  };
  list.input.setAttribute("aria-label", label);
  name();
  return {
    node: h("span", { class: "pick" }, word, list.input),
    input: list.input,
    get value() { return list.value; },
    set(wanted) { list.set(wanted); name(); },
    offer(options) { list.offer((offered = options)); },
  };
}

// A few choices side by side, as radio buttons. `options`: [value, text].
export function choice({ label, options, value, onchange }) {
  const name = fresh();
  const inputs = options.map(([key]) => h("input", { type: "radio", name, value: key, id: fresh() }));
  const control = {
    node: h("fieldset", { class: "control choice" }, h("legend", {}, label),
      h("div", {}, options.map(([, text], i) =>
        [inputs[i], h("label", { for: inputs[i].id }, text)]))),
    value,
    set(wanted) {
      for (const input of inputs) input.checked = input.value === String(wanted);
      control.value = wanted;
    },
  };
  inputs.forEach((input, i) => input.addEventListener("change", () => {
    control.value = options[i][0];
    onchange?.(control.value);
  }));
  control.set(value);
  return control;
}

// A number to type. Values outside [min, max] or not numbers leave the last good one in force, and
// the control says so.
export function field({ label, value, min = 0, max = Infinity, step = "any", unit = "", onchange }) {
  const id = fresh();
  const input = h("input", { type: "number", id, min, max: Number.isFinite(max) ? max : null, step,
    inputmode: "decimal" });
  const wrong = h("span", { class: "wrong", role: "status" });
  const asked = Number.isFinite(max) ? `from ${min} to ${max.toLocaleString("en")}` : `${min} or more`;
  const control = {
    node: h("div", { class: "control field" }, h("label", { for: id }, label), input,
      unit ? h("span", { class: "unit" }, unit) : null, wrong),
    input,
    value,
    set(wanted) {
      input.value = wanted;
      control.value = wanted;
      input.removeAttribute("aria-invalid");
      wrong.textContent = "";
    },
  };
  input.addEventListener("input", () => {
    const typed = input.valueAsNumber;
    const good = Number.isFinite(typed) && typed >= min && typed <= max;
    input.setAttribute("aria-invalid", String(!good));
    wrong.textContent = good ? "" : `It must be ${asked}. ${control.value} still counts.`;
    if (good) onchange?.((control.value = typed));
  });
  control.set(value);
  return control;
}

export function button({ label, onclick }) {
  return h("button", { type: "button", onclick }, label);
}
