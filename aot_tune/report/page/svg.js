"use strict";
// What all charts share: elements, scales, axes, texts of amounts, and the tooltip.

function make(tag, attributes, parent, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

function html(tag, attributes, parent, text) {
  const element = document.createElement(tag);
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

function told(ns) {
  for (const [unit, size] of [["ns", 1], ["us", 1e3], ["ms", 1e6]]) {
    if (ns < 1000 * size) return (ns / size).toFixed(unit === "ns" ? 0 : 2) + " " + unit;
  }
  return (ns / 1e9).toFixed(2) + " s";
}

function percent(share, digits = 1) {
  return share === null ? "not known" : (100 * share).toFixed(digits) + " %";
}

function bytes(count) {
  if (count >= 1e6) return (count / 1e6).toFixed(1) + " MB";
  return count >= 1e3 ? (count / 1e3).toFixed(1) + " kB" : count.toFixed(0) + " B";
}

function seconds(count) {
  if (count >= 120) return (count / 60).toFixed(1) + " min";
  return count.toFixed(count >= 10 ? 0 : 1) + " s";
}

// Of what size a regret is, as on maps and in tables.
function sizeOf(regret) {
  return regret > 0.1 ? "bad" : regret > 0.02 ? "fair" : "good";
}

function sizeKeys(parent, what) {
  for (const [size, text] of [["good", `${what}up to 2 %`], ["fair", "up to 10 %"], ["bad", "over 10 %"]]) {
    html("span", { class: "lost " + size }, parent, text);
  }
}

function extent(count) {
  if (count >= 1024 && count % 1024 === 0) return count / 1024 + "k";
  return String(count);
}

function logScale(from, to, left, right) {
  const a = Math.log(from), b = Math.log(to) - a || 1;
  return (value) => left + ((Math.log(value) - a) / b) * (right - left);
}

function linearScale(from, to, left, right) {
  return (value) => left + ((value - from) / (to - from || 1)) * (right - left);
}

// From values in order of preference, those that leave `gap` pixels between each other.
function apart(values, scale, gap) {
  const kept = [];
  for (const value of values) {
    if (kept.every((other) => Math.abs(scale(other) - scale(value)) >= gap)) kept.push(value);
  }
  return kept;
}

const tip = document.querySelector(".tip");

function tell(element, text) {
  element.setAttribute("data-tip", text);
  return element;
}

function showTip(target, x, y) {
  tip.textContent = target.getAttribute("data-tip");
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, x + 14), innerWidth - box.width - 8);
  const top = y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18;
  tip.style.left = left + "px";
  tip.style.top = Math.max(8, top) + "px";
}

for (const kind of ["pointermove", "pointerdown"]) {
  document.addEventListener(kind, (event) => {
    const target = event.target.closest && event.target.closest("[data-tip]");
    if (target) showTip(target, event.clientX, event.clientY);
    else tip.hidden = true;
  }, { passive: true });
}
document.addEventListener("focusin", (event) => {
  if (!event.target.matches("svg [data-tip]")) return;
  const box = event.target.getBoundingClientRect();
  showTip(event.target, box.right, box.top);
});
document.addEventListener("focusout", () => { tip.hidden = true; });
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true, capture: true });

// Horizontal bars with their amounts.
function drawBars(parent, bars, text, width) {
  const long = Math.max(...bars.map((bar) => bar.label.length));
  const label = Math.min(Math.ceil(6.4 * long) + 12, width * 0.5), row = 22, most = Math.max(...bars.map((b) => b.amount));
  const right = width - 74, svg = make("svg", { width, height: bars.length * row, role: "img" }, parent);
  const scale = linearScale(0, most, label, Math.max(right, label + 20));
  bars.forEach((bar, i) => {
    const y = i * row, fits = Math.floor((label - 12) / 6.4);
    const name = bar.label.length > fits ? bar.label.slice(0, fits - 1) + "…" : bar.label;
    make("text", { x: label - 8, y: y + 15, "text-anchor": "end", class: "ink" }, svg, name);
    const rect = make("rect", { x: label, y: y + 4, width: Math.max(scale(bar.amount) - label, 1.5), height: row - 9, rx: 2, class: "bar" }, svg);
    tell(rect, `${bar.label}: ${text(bar.amount)}${bar.count > 1 ? ` in ${bar.count} variants` : ""}`);
    make("text", { x: scale(bar.amount) + 6, y: y + 15 }, svg, text(bar.amount));
  });
}
