// Elements in one line each. `h("p", { class: "note" }, "text", child)`, `s` for SVG.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style" && typeof value === "object") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// A picture: an <svg> that scales to its column and says what it shows.
export function picture(width, height, alt, ...children) {
  const attributes = { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": alt };
  return s("svg", attributes, ...children);
}

export function replace(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child != null));
  return node;
}

// The width that is left to `node`, now and whenever it changes: what a drawing lays itself out by.
// Widths too narrow for any drawing occur while a page is being laid out.
export function onWidth(node, draw) {
  let last = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width >= 200 && width !== last) draw((last = width));
  }).observe(node);
}

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
