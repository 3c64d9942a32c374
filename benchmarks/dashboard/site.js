"use strict";
// Pages can be read without this script. It keeps the chosen theme, sorts and filters tables, and fits frames to their content.
(() => {
  const FEW = 8;  // rows up to which a table has no filter
  const UNITS = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, B: 1, kB: 1e3, MB: 1e6, GB: 1e9 };
  const root = document.documentElement;
  const framed = window !== window.parent;
  // Pages of cases show sources in frames. In a frame of another site, such as the documentation, pages use the theme of that site.
  const embedded = root.classList.contains("source") ? window.parent !== window.top : framed;
  root.classList.toggle("framed", framed);
  root.classList.toggle("embedded", embedded);

  const stored = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
                   set: (value) => { try { localStorage.setItem("theme", value); } catch { /* private windows keep none */ } } };
  const send = (frame) => { if (root.dataset.theme) frame.contentWindow.postMessage({ theme: root.dataset.theme }, "*"); };
  const show = (theme) => {
    if (theme !== "light" && theme !== "dark") return;
    root.dataset.theme = theme;
    document.querySelectorAll("iframe").forEach(send);
  };
  if (!embedded) show(stored.get());

  function themeButton() {
    const button = document.createElement("button");
    const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const label = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Use ${dark() ? "light" : "dark"} colours`); };
    button.className = "theme"; button.type = "button"; label();
    button.addEventListener("click", () => { show(dark() ? "light" : "dark"); stored.set(root.dataset.theme); label(); });
    document.querySelector("header nav").append(button);
  }

  // The number that a cell starts with, in the unit that follows; cells without a number are the least.
  function value(cell) {
    const [, number, unit] = /([-−]?[\d.]+)([^\d.]*)/.exec(cell.textContent.replace(/\s/g, "")) ?? [null, "-Infinity", ""];
    return Number(number.replace("−", "-")) * (UNITS[unit] ?? 1);
  }
  const inOrder = (a, b) => typeof a === "number" ? a - b || 0 : a.localeCompare(b, "en", { numeric: true });

  function makeSortable(frame) {
    const table = frame.querySelector("table"), body = table.tBodies[0], words = table.classList.contains("w2") ? 2 : 1;
    table.querySelectorAll("thead th").forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button"; button.append(...head.childNodes); head.append(button);
      const key = (row) => column < words ? row.cells[column].textContent : value(row.cells[column]);
      button.addEventListener("click", () => {
        const up = head.ariaSort ? head.ariaSort === "descending" : column < words;
        table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [key(row), row]);
        rows.sort((a, b) => (up ? 1 : -1) * inOrder(a[0], b[0]));
        body.append(...rows.map((pair) => pair[1]));
      });
    });
    if (body.rows.length > FEW) frame.before(filter([...body.rows]));
  }

  // A field that hides the rows without all its words.
  function filter(rows) {
    const field = document.createElement("p"), input = document.createElement("input"), label = document.createElement("label");
    const output = document.createElement("output"), texts = rows.map((row) => row.textContent.toLowerCase());
    field.className = "filter"; input.type = "search"; input.autocomplete = "off"; output.ariaLive = "polite";
    label.append("Filter ", input); field.append(label, " ", output);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach((row, at) => { row.hidden = !words.every((word) => texts[at].includes(word)); });
      output.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
    });
    return field;
  }

  const tell = () => window.parent.postMessage({ height: document.body.scrollHeight }, "*");
  addEventListener("message", (event) => {
    if (framed && event.source === window.parent) show(event.data.theme);
    const frame = [...document.querySelectorAll("iframe")].find((frame) => frame.contentWindow === event.source);
    if (frame && event.data.height > 0) { frame.style.height = `${event.data.height + 2}px`; send(frame); }
  });
  addEventListener("DOMContentLoaded", () => {
    if (!framed) themeButton();
    document.querySelectorAll(".sortable").forEach(makeSortable);
    if (framed) { tell(); addEventListener("resize", tell); }
  });
})();
