// Closes the script that inferlab.explorers writes: `key`, `explorer` and `css` stand above it.
// An output may be on the page twice (Jupyter's "new view"): every copy is mounted once.
for (const host of document.querySelectorAll(`[data-explorer="${key}"]`)) {
  if (host.shadowRoot) continue;
  const root = host.attachShadow({ mode: "open" });
  root.innerHTML = `<style>${css}</style><div class="live"></div><div class="still"><slot></slot></div>`;
  const data = JSON.parse(host.querySelector('script[type="application/json"]').textContent);
  explorer.render({ model: { get: (name) => data[name] }, el: root.querySelector(".live") });
}
