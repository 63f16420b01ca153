// What is in the catalog, sorted by whatever you ask for?

import { h, replace } from "./lib/dom.js";

const STYLE = `
.tools { display: flex; flex-wrap: wrap; gap: 0.5rem 1rem; align-items: baseline; margin-bottom: 0.6rem; }
.tools label { font-size: 0.875rem; color: var(--soft); display: flex; gap: 0.5rem; align-items: baseline; }
.tools input { font: inherit; color: var(--ink); background: var(--paper); border: 1px solid var(--soft);
  border-radius: 0.45rem; min-height: 2.5rem; padding: 0.2rem 0.65rem; width: 12rem; max-width: 60cqw; }
.frame { overflow-x: auto; max-height: 34rem; overflow-y: auto; border-bottom: 1px solid var(--rule); }
table { border-collapse: collapse; font-size: 0.8125rem; line-height: 1.4; width: 100%; }
caption { text-align: left; color: var(--soft); padding-bottom: 0.4rem; }
thead th { position: sticky; top: 0; background: var(--paper); z-index: 1; padding: 0; vertical-align: bottom; text-align: left;
  border-bottom: 1px solid var(--soft); }
thead button { border: 0; background: none; padding: 0.3rem 0.8rem 0.3rem 0; min-height: 2.5rem; font-size: 0.8125rem;
  font-weight: 600; color: var(--soft); white-space: nowrap; width: 100%; text-align: inherit; border-radius: 0; }
thead [aria-sort] button { color: var(--ink); }
thead button::after { content: "\\2195"; margin-left: 0.25em; opacity: 0.45; }
thead [aria-sort="ascending"] button::after { content: "\\2191"; opacity: 1; }
thead [aria-sort="descending"] button::after { content: "\\2193"; opacity: 1; }
td, tbody th { padding: 0.4rem 0.8rem 0.4rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: baseline; font-weight: 400; }
tbody th { font-weight: 600; white-space: nowrap; }
table .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.long { min-width: 46rem; font-size: 0.75rem; color: var(--soft); overflow-wrap: anywhere; }
`;

// `columns`: { key, title, kind } with kind "name", "text", "number" or "long"; a number's cell is
// [value, text], and null where nothing is known, which sorts last either way.
export function render({ model, el }) {
  const columns = model.get("columns");
  const rows = model.get("rows");
  let sorted = model.get("sort"); // [key, "ascending" or "descending"]
  const status = h("output", { class: "soft" });
  const search = h("input", { type: "search", oninput: () => draw() });
  const head = h("tr");
  const body = h("tbody");
  const table = h("table", {}, h("caption", {}, model.get("caption")), h("thead", {}, head), body);
  const kind = (column) => ({ number: "number", long: "long" })[column.kind];
  const text = (cell) => (Array.isArray(cell) ? cell[1] : cell ?? "–");
  const value = (cell) => (Array.isArray(cell) ? cell[0] : cell);

  function compare(a, b) {
    const [key, order] = sorted;
    const [left, right] = [value(a[key]), value(b[key])];
    if (left == null || right == null) return (left == null) - (right == null);
    const found = typeof left === "number" ? left - right : left.localeCompare(right, "en");
    return order === "ascending" ? found : -found;
  }

  function sort(column) {
    const first = column.kind === "number" ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    sorted = [column.key, sorted[0] === column.key && sorted[1] === first ? other : first];
    draw();
  }

  function draw() {
    const wanted = search.value.toLowerCase();
    const shown = rows
      .filter((row) => columns.some(({ key }) => String(text(row[key])).toLowerCase().includes(wanted)))
      .sort(compare);
    columns.forEach(({ key }, i) => {
      if (key === sorted[0]) head.children[i].setAttribute("aria-sort", sorted[1]);
      else head.children[i].removeAttribute("aria-sort");
    });
    replace(body, shown.map((row) => h("tr", {}, columns.map((column) =>
      h(column.kind === "name" ? "th" : "td", {
        class: kind(column), scope: column.kind === "name" ? "row" : null,
      }, text(row[column.key]))))));
    status.textContent = `${shown.length} of ${rows.length}`;
  }

  replace(head, columns.map((column) => h("th", { scope: "col", class: kind(column) },
    h("button", { type: "button", onclick: () => sort(column) }, column.title))));
  el.append(h("style", {}, STYLE),
    h("div", { class: "tools" }, h("label", {}, "Find", search), status),
    h("div", { class: "frame", tabindex: 0, role: "region", "aria-label": model.get("caption") }, table));
  draw();
}
