"use strict";
// What pages do beyond being read: they keep a theme, sort and filter tables, and give frames the height of their content.
(() => {
  const root = document.documentElement;
  const stored = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
                   set: (value) => { try { localStorage.setItem("theme", value); } catch { /* private windows keep none */ } } };
  const show = (theme) => { if (theme === "light" || theme === "dark") root.dataset.theme = theme; else delete root.dataset.theme; };
  show(stored.get());
  const framed = window.parent !== window;
  if (framed) root.classList.add("framed");

  function themeButton() {
    const button = document.createElement("button");
    const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    const label = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Use ${dark() ? "light" : "dark"} colours`); };
    button.className = "theme"; button.type = "button"; label();
    button.addEventListener("click", () => {
      const theme = dark() ? "light" : "dark";
      stored.set(theme); show(theme); label();
      document.querySelectorAll("iframe").forEach((frame) => frame.contentWindow.postMessage({ theme }, "*"));
    });
    document.querySelector("header nav").append(button);
  }

  const key = (cell) => {
    const number = Number(cell.dataset.v ?? parseFloat(cell.textContent.replace(/\s/g, "")));
    return Number.isNaN(number) ? cell.textContent : number;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

  function sortable(section) {
    const body = section.querySelector("tbody");
    section.querySelectorAll("thead th").forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button"; button.append(...head.childNodes); head.append(button);
      button.addEventListener("click", () => {
        const words = head.classList.contains("w");
        const up = head.ariaSort ? head.ariaSort === "descending" : words;
        section.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const of = (row) => words ? row.cells[column].textContent : key(row.cells[column]);
        const rows = [...body.rows].map((row) => [of(row), row]);
        rows.sort((a, b) => (up ? 1 : -1) * compare(a[0], b[0]));
        body.append(...rows.map((pair) => pair[1]));
      });
    });
    const filter = section.querySelector(".filter");
    if (!filter) return;
    const input = filter.querySelector("input"), told = filter.querySelector("output"), rows = [...body.rows];
    const texts = rows.map((row) => row.textContent.toLowerCase());
    filter.hidden = false;
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      rows.forEach((row, at) => { const fits = words.every((word) => texts[at].includes(word)); row.hidden = !fits; left += fits; });
      told.textContent = words.length ? `${left} of ${rows.length}` : "";
    });
  }

  const tell = () => window.parent.postMessage({ height: document.body.scrollHeight }, "*");
  addEventListener("message", (event) => {
    if (event.source === window.parent && framed && event.data.theme) show(event.data.theme);
    const height = Number(event.data.height);
    if (height > 0) document.querySelectorAll("iframe").forEach((frame) => { if (frame.contentWindow === event.source) frame.style.height = `${height + 2}px`; });
  });
  addEventListener("DOMContentLoaded", () => {
    themeButton();
    document.querySelectorAll("section.sortable").forEach(sortable);
    if (framed) { tell(); addEventListener("resize", tell); }
  });
})();
