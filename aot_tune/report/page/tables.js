"use strict";
// Tables: sorting by a column, filtering by words, and only a few rows at first.

function valueOf(cell) {
  const value = cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent.trim();
  if (value === "" || value === "–") return null;
  const number = Number(value);
  return Number.isNaN(number) ? value : number;
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

class SortedTable {
  constructor(table) {
    this.table = table;
    this.body = table.tBodies[0];
    this.rows = [...this.body.rows];
    this.wrapper = table.closest(".table");
    this.limit = this.wrapper ? Number(this.wrapper.dataset.rows) : Infinity;
    this.input = this.wrapper && this.wrapper.querySelector(".filter");
    this.only = this.wrapper && this.wrapper.querySelector(".only");
    this.count = this.wrapper && this.wrapper.querySelector(".count");
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (head.hasAttribute("data-fixed")) return;
      head.tabIndex = 0;
      head.addEventListener("click", () => this.sort(head, column));
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.sort(head, column); }
      });
    });
    if (this.input) this.input.addEventListener("input", () => this.show());
    if (this.only) this.only.addEventListener("change", () => this.show());
    this.show();
  }

  sort(head, column) {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of this.table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const keys = new Map(this.rows.map((row) => [row, valueOf(row.cells[column])]));
    this.rows.sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      return x === null || y === null ? compare(x, y) : (up ? 1 : -1) * compare(x, y);
    });
    this.close();
    this.body.append(...this.rows);
    this.show();
  }

  close() {
    for (const detail of this.body.querySelectorAll("tr.detail")) detail.remove();
    for (const row of this.rows) row.classList.remove("open");
  }

  show() {
    this.close();
    const words = this.input ? this.input.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    const only = this.only ? this.only.value : "";
    let fit = 0;
    for (const row of this.rows) {
      const text = words.length ? row.textContent.toLowerCase() : "";
      const fits = words.every((word) => text.includes(word)) && (!only || only in row.dataset);
      fit += fits;
      row.hidden = !fits || fit > this.limit;
    }
    if (this.count) {
      this.count.textContent = fit === this.rows.length && fit <= this.limit ? "" :
        `${Math.min(fit, this.limit)} of ${fit}${fit < this.rows.length ? `, ${this.rows.length} in all` : ""}`;
      this.more(fit);
    }
    this.table.dispatchEvent(new Event("shown"));
  }

  more(fit) {
    let button = this.wrapper.querySelector(".showall");
    if (!button) {
      button = html("button", { type: "button", class: "showall" }, this.wrapper);
      button.addEventListener("click", () => { this.limit = Infinity; this.show(); });
    }
    button.hidden = fit <= this.limit;
    button.textContent = `Show all ${fit}`;
  }
}
