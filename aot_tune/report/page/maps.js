"use strict";
// What dispatch picks over two dims, with surveyed and tuned shapes.

const COLOURS = 12;

class DispatchMaps {
  constructor(parent, data) {
    this.parent = parent;
    this.data = data;
    this.kind = data.maps[0].kind;
    this.layout = data.maps[0].layout;
    this.pair = 0;
    this.shows = { held: true, learned: false, tuned: true };
  }

  get own() {
    return this.data.maps.filter((one) => one.kind === this.kind && one.layout === this.layout);
  }

  get layouts() {
    return [...new Set(this.data.maps.filter((one) => one.kind === this.kind).map((one) => one.layout))];
  }

  // Orders of axes, as in the text of a problem: b:10.
  layoutOf(problem) {
    return problem.split(" ").filter((word) => /^\w+:\d+$/.test(word)).join(" ");
  }

  told(layout) {
    const words = layout.split(" ").map((one) => one.replace(/^(\w+):10$/, "$1 column-major ($&)").replace(/^(\w+):(\d+)$/, "$1 stored as $2"));
    return layout ? words.join(", ") : "all row-major";
  }

  draw(width) {
    this.parent.textContent = "";
    this.controls();
    const map = this.own[this.pair];
    const box = html("div", { class: "mapped" }, this.parent);
    const place = html("div", {}, box), list = html("ul", { class: "swatches" }, box);
    const room = width > 780 ? width - 17 * 16 - 20 : width;
    const order = this.order();
    this.cells(place, map, Math.min(room, 820), order);
    this.swatches(list, map, order);
  }

  // Variants of a kind by their area on all of its maps, so that colours and letters are the same on each map.
  order() {
    const counts = new Map();
    for (const map of this.own) for (const row of map.picks) for (const pick of row) {
      if (pick >= 0) counts.set(pick, (counts.get(pick) || 0) + 1);
    }
    return [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || a - b);
  }

  controls() {
    const row = html("div", { class: "controls" }, this.parent);
    const kinds = [...new Set(this.data.maps.map((one) => one.kind))];
    if (kinds.length > 1) {
      const select = html("select", { "aria-label": "Kind of calls" }, row);
      for (const kind of kinds) {
        const option = html("option", { value: kind }, select, this.data.kinds[kind] || "all calls");
        option.selected = kind === this.kind;
      }
      select.addEventListener("change", () => {
        this.kind = Number(select.value);
        this.layout = this.layouts[0];
        this.pair = 0;
        this.redraw();
      });
    } else if (this.data.kinds[this.kind]) html("b", {}, row, this.data.kinds[this.kind]);
    if (this.layouts.length > 1) {
      const select = html("select", { "aria-label": "Layout" }, row);
      for (const layout of this.layouts) html("option", { value: layout }, select, this.told(layout)).selected = layout === this.layout;
      select.addEventListener("change", () => { this.layout = select.value; this.pair = 0; this.redraw(); });
    } else html("span", {}, row, this.told(this.layout));
    if (this.own.length > 1) {
      const select = html("select", { "aria-label": "Dims" }, row);
      this.own.forEach((map, i) => {
        const option = html("option", { value: i }, select, map.y ? `${map.y} over ${map.x}` : map.x);
        option.selected = i === this.pair;
      });
      select.addEventListener("change", () => { this.pair = Number(select.value); this.redraw(); });
    }
    const kindsOf = [["held", "held-out shapes"], ["learned", "shapes learned from"], ["tuned", "tuned problems"]];
    for (const [name, text] of kindsOf) {
      if (name !== "tuned" && !this.data.points.length) continue;
      const label = html("label", {}, row), box = html("input", { type: "checkbox" }, label);
      box.checked = this.shows[name];
      label.append(text);
      box.addEventListener("change", () => { this.shows[name] = box.checked; this.redraw(); });
    }
  }

  redraw() {
    this.draw(inner(this.parent));
  }

  edges(values, scaleFrom, scaleTo) {
    if (values.length === 1) return { edges: [scaleFrom, scaleTo], scale: () => (scaleFrom + scaleTo) / 2 };
    const logs = values.map((value) => Math.log(value));
    const marks = [logs[0] - (logs[1] - logs[0]) / 2];
    for (let i = 1; i < logs.length; i++) marks.push((logs[i - 1] + logs[i]) / 2);
    marks.push(logs[logs.length - 1] + (logs[logs.length - 1] - logs[logs.length - 2]) / 2);
    const place = linearScale(marks[0], marks[marks.length - 1], scaleFrom, scaleTo);
    return { edges: marks.map(place), scale: (value) => place(Math.min(Math.max(Math.log(Math.max(value, 1)), marks[0]), marks[marks.length - 1])) };
  }

  cells(parent, map, width, order) {
    const height = map.y ? Math.max(260, Math.min(460, Math.round(width * 0.62))) : 130;
    const left = map.y ? 62 : 14, bottom = height - 42, right = width - 10;
    const svg = make("svg", { width, height, role: "img", "aria-label": "what dispatch picks" }, parent);
    const xs = this.edges(map.xs, left, right), ys = this.edges(map.ys, bottom, 8);
    map.picks.forEach((row, j) => {
      for (let i = 0, next; i < row.length; i = next) {
        for (next = i + 1; next < row.length && row[next] === row[i]; next++);
        const [x, y] = [xs.edges[i], ys.edges[j + 1]];
        const cell = make("rect", {
          x: x.toFixed(1), y: y.toFixed(1), width: (xs.edges[next] - x + 0.6).toFixed(1), height: (ys.edges[j] - y + 0.6).toFixed(1),
          class: "cell", "data-cells": next - i, "data-pick": row[i],
          fill: row[i] < 0 ? "var(--none)" : `var(--m${order.indexOf(row[i]) % COLOURS})`,
        }, svg);
        const span = next - i > 1 ? `${map.xs[i]} to ${map.xs[next - 1]}` : map.xs[i];
        tell(cell, `${map.x} ${span}${map.y ? `, ${map.y} ${map.ys[j]}` : ""}\n${row[i] < 0 ? "no such call" : this.data.names[row[i]]}`);
      }
    });
    this.axes(svg, map, xs, ys, { left, right, bottom, height });
    this.points(svg, map, xs, ys);
    this.letters(svg, map, xs, ys, order);
  }

  axes(svg, map, xs, ys, { left, right, bottom, height }) {
    const ticks = (from, to) => {
      const found = [];
      for (let n = 1; n <= to; n *= 2) if (n >= from) found.push(n);
      return [...found.filter((_, i) => i % 4 === 0), ...found.filter((_, i) => i % 2 === 0), ...found];
    };
    for (const tick of apart([...new Set(ticks(map.xs[0], map.xs[map.xs.length - 1]))], xs.scale, 36)) {
      make("line", { x1: xs.scale(tick), x2: xs.scale(tick), y1: bottom, y2: bottom + 4, class: "axis" }, svg);
      make("text", { x: xs.scale(tick), y: bottom + 16, "text-anchor": "middle" }, svg, extent(tick));
    }
    make("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle", class: "ink" }, svg, map.x);
    if (!map.y) return;
    for (const tick of apart([...new Set(ticks(map.ys[0], map.ys[map.ys.length - 1]))], ys.scale, 18)) {
      make("line", { x1: left - 4, x2: left, y1: ys.scale(tick), y2: ys.scale(tick), class: "axis" }, svg);
      make("text", { x: left - 7, y: ys.scale(tick) + 4, "text-anchor": "end" }, svg, extent(tick));
    }
    make("text", { transform: `translate(11 ${(bottom + 8) / 2}) rotate(-90)`, "text-anchor": "middle", class: "ink" }, svg, map.y);
  }

  // Put a letter into the widest run of each variant's largest row.
  letters(svg, map, xs, ys, order) {
    const best = new Map();
    map.picks.forEach((row, j) => {
      for (let i = 0, next; i < row.length; i = next) {
        for (next = i + 1; next < row.length && row[next] === row[i]; next++);
        let up = j, down = j;
        const mid = (i + next - 1) >> 1;
        while (up + 1 < map.picks.length && map.picks[up + 1][mid] === row[i]) up++;
        while (down > 0 && map.picks[down - 1][mid] === row[i]) down--;
        const wide = xs.edges[next] - xs.edges[i], tall = ys.edges[down] - ys.edges[up + 1];
        const room = Math.min(wide, 2 * tall) + 0.01 * wide;
        if (row[i] >= 0 && wide > 13 && tall > 13 && room > ((best.get(row[i]) || {}).room || 0)) {
          best.set(row[i], { room, x: (xs.edges[i] + xs.edges[next]) / 2, y: (ys.edges[down] + ys.edges[up + 1]) / 2 });
        }
      }
    });
    for (const [pick, { x, y }] of best) make("text", { x, y: y + 4, class: "letter" }, svg, this.letter(order.indexOf(pick)));
  }

  letter(place) {
    return String.fromCharCode(65 + (place % 26)) + (place >= 26 ? Math.floor(place / 26) : "");
  }

  points(svg, map, xs, ys) {
    const { dims, names } = this.data, [x, y] = [dims.indexOf(map.x), dims.indexOf(map.y)];
    const at = (extents) => [xs.scale(extents[x]), map.y ? ys.scale(extents[y]) : ys.scale(0)];
    if (this.shows.tuned) for (const [problem, kind, extents, picked] of this.data.problems) {
      if (kind !== this.kind || this.layoutOf(problem) !== this.layout) continue;
      const [px, py] = at(extents);
      tell(make("rect", { x: px - 3.5, y: py - 3.5, width: 7, height: 7, class: "tuned", "pointer-events": "all" }, svg),
        `${problem}\ntuned; dispatch picks ${names[picked]}`);
    }
    for (const [problem, kind, extents, best, picked, ns, regret, held] of this.data.points) {
      if (kind !== this.kind || this.layoutOf(problem) !== this.layout || !this.shows[held ? "held" : "learned"]) continue;
      const [px, py] = at(extents);
      const fill = regret === null ? "none" : `var(--${sizeOf(regret)})`;
      const point = make("circle", held ? { cx: px, cy: py, r: 3.6, class: "point", style: `fill: ${fill}` } : { cx: px, cy: py, r: 2.2, class: "learned" }, svg);
      const picks = best === picked ? "picked, and the best there" : `picked; best is ${names[best]}`;
      tell(point, `${problem}\n${names[picked]} ${picks}\nbest time ${told(ns)}, regret ${percent(regret, 1)}${held ? "; held out" : ""}`);
    }
  }

  swatches(list, map, order) {
    const counts = new Map();
    let all = 0;
    for (const row of map.picks) for (const pick of row) if (pick >= 0) { counts.set(pick, (counts.get(pick) || 0) + 1); all++; }
    for (const pick of order) {
      if (!counts.has(pick)) continue;
      const item = html("li", {}, list), place = order.indexOf(pick);
      html("b", { style: `background: var(--m${place % COLOURS})` }, item, this.letter(place));
      html("span", {}, item, this.data.names[pick]);
      html("em", {}, item, percent(counts.get(pick) / all, 0));
    }
    const fixed = Object.entries(map.at).map(([dim, n]) => `${dim}=${n}`).join(", ");
    if (fixed) html("li", { class: "about" }, list, `The map is at ${fixed}, ${this.told(this.layout)}. Points of other extents stand on it too.`);
    if (this.data.points.length) {
      sizeKeys(html("li", { class: "about" }, list), "held out, regret ");
    }
  }
}
