"use strict";
// Regret by number of variants, and the distribution of regret over held-out calls.

const FLOOR = 0.0005;

function kindKeys(parent, data, kinds) {
  if (kinds.length === 1 && !data.kinds[kinds[0]]) return;
  const keys = html("div", { class: "keys" }, parent);
  for (const kind of kinds) {
    const key = html("span", {}, keys);
    html("i", { style: `color: var(--k${kind % 6})` }, key);
    html("span", {}, key, data.kinds[kind] || "all calls");
  }
}

function regretTicks(from, to) {
  return [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1000].filter((t) => t >= from && t <= to);
}

function regretText(value) {
  return (100 * value >= 1 ? String(Math.round(100 * value)) : String(+(100 * value).toPrecision(1))) + " %";
}

function drawCurves(parent, data, width) {
  const curves = data.curves.filter((curve) => curve.regret.length);
  kindKeys(parent, data, [...new Set(curves.map((curve) => curve.kind))]);
  const height = 260, left = 56, bottom = height - 40, right = width - 12;
  const svg = make("svg", { width, height, role: "img", "aria-label": "mean regret by number of variants" }, parent);
  const most = Math.max(2, ...curves.map((curve) => curve.regret.length));
  const top = Math.max(0.01, ...curves.flatMap((curve) => curve.regret)) * 1.3;
  const x = linearScale(1, most, left + 8, right - 6), y = logScale(FLOOR, top, bottom, 10);
  const ticks = regretTicks(FLOOR, top);
  for (const tick of apart([0.01, 0.1, 1, 10, 0.001, ...ticks].filter((t) => ticks.includes(t)), y, 22)) {
    make("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "grid" }, svg);
    make("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, svg, regretText(tick));
  }
  const step = Math.max(1, Math.ceil(((most - 1) * 26) / (right - left)));
  for (let n = 1; n <= most; n += step) make("text", { x: x(n), y: bottom + 16, "text-anchor": "middle" }, svg, n);
  make("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }, svg);
  make("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, svg, "variants kept");
  make("text", { transform: `translate(11 ${(bottom + 10) / 2}) rotate(-90)`, "text-anchor": "middle" }, svg, "mean regret");
  for (const curve of curves) {
    const group = make("g", { style: `color: var(--k${curve.kind % 6})`, "data-curve": curve.kind }, svg);
    const place = (regret) => y(Math.max(regret, FLOOR));
    curve.regret.slice(1).forEach((regret, i) => {
      const partly = curve.served[i] < 1 ? " partly" : "";
      make("line", { x1: x(i + 1), y1: place(curve.regret[i]), x2: x(i + 2), y2: place(regret), class: "line" + partly }, group);
    });
    curve.regret.forEach((regret, i) => {
      const dot = make("circle", { cx: x(i + 1), cy: place(regret), r: 3.5, class: curve.served[i] < 1 ? "dot partly" : "dot", "data-regret": regret }, group);
      const added = i < curve.variants.length ? `\n${i ? "added" : "first"}: ${data.names[curve.variants[i]]}` : "";
      tell(dot, `${data.kinds[curve.kind] || "all calls"}\n${i + 1} kept: ${percent(regret, 2)} mean regret${curve.served[i] < 1 ? ` on the ${percent(curve.served[i], 0)} of calls that they serve` : ""}${added}`);
    });
  }
}

// The held-out regrets by kind, each with its problem.
function heldOut(data) {
  const found = new Map();
  const add = (kind, regret, what) => {
    if (!found.has(kind)) found.set(kind, []);
    found.get(kind).push([regret, what]);
  };
  for (const [problem, kind, , , picked, , regret, held] of data.points) {
    if (held && regret !== null) add(kind, regret, `${problem}\n${data.names[picked]}`);
  }
  if (!data.points.length) {
    for (const [problem, kind, , , , , held] of data.problems) if (held !== null) add(kind, held, problem);
  }
  for (const values of found.values()) values.sort((a, b) => a[0] - b[0]);
  return new Map([...found].sort((a, b) => a[0] - b[0]));
}

// For each regret, the share of calls that lose more.
function drawHeld(parent, data, width) {
  const kinds = heldOut(data);
  kindKeys(parent, data, [...kinds.keys()]);
  sizeKeys(html("div", { class: "keys" }, parent), "regret ");
  const height = 260, left = 56, bottom = height - 40, right = width - 14;
  const svg = make("svg", { width, height, role: "img", "aria-label": "share of held-out calls that lose more" }, parent);
  const above = (values, regret) => values.filter(([one]) => one > regret).length / values.length;
  const all = [...kinds.values()], worst = Math.max(0.02, ...all.map((values) => values[values.length - 1][0])) * 1.1;
  const highest = Math.max(0.05, ...all.map((values) => above(values, FLOOR))) * 1.1;
  const x = logScale(FLOOR, worst, left + 8, right - 6), y = linearScale(0, highest, bottom, 10);
  const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.25].find((one) => highest / one <= 5) || 0.25;
  for (let tick = 0; tick <= highest; tick += step) {
    make("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "grid" }, svg);
    make("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, svg, Math.round(100 * tick) + " %");
  }
  const ticks = regretTicks(FLOOR, worst);
  for (const tick of apart([0.01, 0.1, 1, 0.001, ...ticks].filter((t) => ticks.includes(t)), x, 44)) {
    make("line", { x1: x(tick), x2: x(tick), y1: 10, y2: bottom, class: "grid" }, svg);
    make("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, svg, regretText(tick));
  }
  make("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }, svg);
  make("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, svg, "regret of what dispatch picks");
  make("text", { transform: `translate(11 ${(bottom + 10) / 2}) rotate(-90)`, "text-anchor": "middle" }, svg, "calls that lose more");
  for (const [kind, values] of kinds) {
    const group = make("g", { style: `color: var(--k${kind % 6})`, "data-held": kind }, svg);
    let path = `M${x(FLOOR).toFixed(1)} ${y(above(values, FLOOR)).toFixed(1)}`;
    values.forEach(([regret, what], i) => {
      if (regret <= FLOOR) return;
      const more = (values.length - 1 - i) / values.length, [px, py] = [x(regret), y(more)];
      path += `H${px.toFixed(1)}V${py.toFixed(1)}`;
      const dot = make("circle", { cx: px, cy: py, r: 3, class: "dot held", "data-regret": regret, style: `fill: var(--${sizeOf(regret)})` }, group);
      tell(dot, `${what}\nregret ${percent(regret, 2)}; ${percent(more, 1)} of the calls lose more`);
    });
    group.prepend(make("path", { d: path, class: "line" }));
  }
}
