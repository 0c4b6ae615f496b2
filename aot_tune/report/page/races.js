"use strict";
// The table of races: strips with times over the winner's and quartiles, and all of a race in an opened row.

const MARKS = ["kernel", "vendor", "baseline"];

class Races {
  constructor(table, data) {
    this.table = table;
    this.data = data;
    const [from, to] = this.range();
    this.from = from;
    this.to = to;
    this.drawn = new Map();
    table.addEventListener("shown", () => this.draw());
    table.tBodies[0].addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row && !row.classList.contains("detail") && !getSelection().toString()) this.toggle(row);
    });
    for (const row of table.tBodies[0].rows) {
      row.tabIndex = 0;
      row.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && event.target === row) this.toggle(row);
      });
    }
  }

  // The range contains most runners. The others are drawn at the edge.
  range() {
    const least = [], most = [];
    for (const problem of this.data.problems) {
      const [winner, runners] = [this.winnersTime(problem), problem[7]];
      if (!winner || !runners.length) continue;
      const ratios = runners.map((runner) => runner[1] / winner);
      least.push(Math.min(...ratios));
      most.push(Math.max(...ratios));
    }
    least.sort((a, b) => a - b);
    most.sort((a, b) => a - b);
    const low = least.length ? least[Math.floor(0.03 * least.length)] : 1;
    const high = most.length ? most[Math.floor(0.9 * (most.length - 1))] : 2;
    return [Math.min(0.96, Math.max(0.3, low * 0.97)), Math.min(Math.max(1.25, high * 1.08), 24)];
  }

  winnersTime(problem) {
    const runner = problem[7].find((one) => one[0] === problem[4]) || problem[7][0];
    return runner ? runner[1] : 0;
  }

  whose(name) {
    return MARKS.includes(this.data.whose[name]) ? this.data.whose[name] : "kernel";
  }

  draw() {
    const head = this.table.tHead.querySelector("th.strip");
    const narrow = !head.offsetWidth;
    const cell = [...this.table.tBodies[0].rows].find((row) => !row.hidden && !row.classList.contains("detail"));
    const width = Math.floor((narrow ? cell ? cell.querySelector(".strip").clientWidth : 0 : head.clientWidth) - 20);
    if (width < 60) return;
    const scale = logScale(this.from, this.to, 10, width - 14);
    if (!narrow) this.axis(head, scale, width);
    for (const row of this.table.tBodies[0].rows) {
      if (row.hidden || row.classList.contains("detail") || this.drawn.get(row) === width) continue;
      this.strip(row, scale, width);
      this.drawn.set(row, width);
    }
  }

  ticks(scale) {
    const wanted = [1, 2, 4, 0.5, 8, 16, 1.5, 3, 1.2, 6, 12, 24, 1.1, 0.8, 0.9, 0.3, 1.05];
    return apart(wanted.filter((tick) => tick >= this.from && tick <= this.to), scale, 32);
  }

  axis(head, scale, width) {
    const old = head.querySelector("svg");
    if (old) old.remove();
    const svg = make("svg", { width, height: 18, "aria-hidden": "true" }, head);
    for (const tick of this.ticks(scale)) {
      make("line", { x1: scale(tick), x2: scale(tick), y1: 14, y2: 18, class: "axis" }, svg);
      make("text", { x: scale(tick), y: 11, "text-anchor": "middle" }, svg, tick + "×");
    }
  }

  strip(row, scale, width) {
    const problem = this.data.problems[row.dataset.i], cell = row.querySelector(".strip"), winner = this.winnersTime(problem);
    cell.textContent = "";
    const svg = make("svg", { width, height: 22, role: "img", "aria-label": "times over the winner's" }, cell);
    for (const tick of this.ticks(scale)) {
      const at = scale(tick);
      make("line", { x1: at, x2: at, y1: 0, y2: 22, class: tick === 1 ? "one" : "grid" }, svg);
    }
    for (const runner of [...problem[7]].reverse()) this.mark(svg, problem, runner, winner, scale, width);
  }

  mark(svg, problem, [name, ns, low, high, samples, raced], winner, scale, width) {
    const whose = this.whose(name), inside = (x) => Math.min(Math.max(x, 4), width - 5);
    const at = scale(ns / winner), x = inside(at), y = 11, group = make("g", { class: whose }, svg);
    const [a, b] = [inside(scale(low / winner)), inside(scale(high / winner))];
    if (b - a > 1 && at === x) make("line", { x1: a, x2: b, y1: y, y2: y, class: "whisker" }, group);
    const mark = "mark" + (raced ? "" : " screened");
    if (at > x + 1) make("path", { d: `M${x - 4} ${y - 4}L${x + 4} ${y}L${x - 4} ${y + 4}Z`, class: mark }, group);
    else if (at < x - 1) make("path", { d: `M${x + 4} ${y - 4}L${x - 4} ${y}L${x + 4} ${y + 4}Z`, class: mark }, group);
    else if (whose === "kernel") make("circle", { cx: x, cy: y, r: 3.6, class: mark }, group);
    else if (whose === "vendor") make("rect", { x: x - 3.3, y: y - 3.3, width: 6.6, height: 6.6, class: mark }, group);
    else make("path", { d: `M${x} ${y - 4.6}L${x + 4.6} ${y}L${x} ${y + 4.6}L${x - 4.6} ${y}Z`, class: mark }, group);
    if (name === problem[3]) make("circle", { cx: x, cy: y, r: 7, class: "ring" }, group);
    make("rect", { x: x - 6, y: 1, width: 12, height: 20, class: "hit" }, group);
    const note = `${raced ? "raced" : "screened only"}, ${samples} samples${name === problem[3] ? "; dispatch picks it" : ""}`;
    tell(group, `${this.data.names[name]}\n${told(ns)} (${told(low)} to ${told(high)}), ${(ns / winner).toFixed(3)} × the winner's\n${note}`);
  }

  toggle(row) {
    const next = row.nextElementSibling;
    if (next && next.classList.contains("detail")) {
      next.remove();
      row.classList.remove("open");
      return;
    }
    row.classList.add("open");
    const detail = html("tr", { class: "detail" });
    row.after(detail);
    const cell = html("td", { colspan: String(row.cells.length) }, detail);
    this.detail(cell, this.data.problems[row.dataset.i], row);
  }

  detail(cell, problem, row) {
    const table = html("table", {}, cell), winner = this.winnersTime(problem);
    const head = html("tr", {}, html("thead", {}, table));
    for (const text of ["", "what ran", "median", "quartiles", "× winner’s", "samples"]) html("th", {}, head, text);
    const body = html("tbody", {}, table);
    for (const [name, ns, low, high, samples, raced] of problem[7]) {
      const line = html("tr", {}, body);
      html("i", { class: "key " + this.whose(name) }, html("td", {}, line));
      html("td", { class: "name" }, line, this.data.names[name] + (name === problem[3] ? " (dispatch picks it)" : ""));
      html("td", { class: "n" }, line, told(ns));
      html("td", { class: "n" }, line, `${told(low)} to ${told(high)}`);
      html("td", { class: "n" }, line, (ns / winner).toFixed(3));
      html("td", { class: "n" }, line, `${samples}${raced ? "" : ", screened"}`);
    }
    const heads = this.table.tHead.rows[0].cells;
    const facts = [...row.cells].map((one, i) => [heads[i], one]).filter(([one]) => one.classList.contains("more"));
    html("p", {}, cell, facts.map(([one, own]) => `${one.textContent}: ${own.textContent.trim()}`).join("  ·  "));
  }
}
