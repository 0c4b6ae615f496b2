"use strict";
// The page: its theme, the current section, copying, and charts that are drawn when they come into view.

function inner(element) {
  const style = getComputedStyle(element);
  return Math.floor(element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
}

function stored(value) {
  try {
    if (value === undefined) return localStorage.getItem("theme");
    localStorage.setItem("theme", value);
  } catch (error) { // a file that is opened from disk may have no storage
    return null;
  }
  return value;
}

function useTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

const DATA = new Map();
for (const script of document.querySelectorAll("script[data-for]")) DATA.set(script.dataset.for, script);

function dataFor(name) {
  const found = DATA.get(name);
  if (found instanceof Element) DATA.set(name, JSON.parse(found.textContent));
  return DATA.get(name);
}

function drawChart(chart) {
  const width = inner(chart), kind = chart.dataset.chart, section = chart.closest("section");
  if (width < 80 || chart.drawnAt === width) return;
  chart.drawnAt = width;
  const data = dataFor(kind === "spent" ? "spent" : section.id);
  if (kind === "map") {
    chart.maps = chart.maps || new DispatchMaps(chart, data);
    chart.maps.draw(width);
    return;
  }
  chart.textContent = "";
  if (kind === "curves") drawCurves(chart, data, width);
  else if (kind === "held") drawHeld(chart, data, width);
  else if (kind === "sizes") drawBars(chart, data.sizes, bytes, width);
  else if (kind === "seconds") drawBars(chart, data.seconds, seconds, width);
  else for (const title in data) {
    html("p", { class: "quiet" }, chart, title);
    drawBars(chart, data[title], seconds, width);
  }
}

useTheme(stored());
document.querySelector(".theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  useTheme(stored(now === "dark" ? "light" : "dark") || (now === "dark" ? "light" : "dark"));
});

const targets = document.querySelector(".targets");
function showTargets() { document.body.classList.toggle("every", !targets || !targets.value); }
if (targets) targets.addEventListener("change", showTargets);
showTargets();

// What an address names is shown, also if it is folded.
function unfold() {
  const section = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  const fold = section && section.querySelector(":scope > .fold");
  if (!fold) return;
  fold.open = true;
  section.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();

document.querySelector(".jump").addEventListener("change", (event) => { location.hash = event.target.value; });

document.addEventListener("click", async (event) => {
  if (!event.target.matches(".copy")) return;
  const code = event.target.previousElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
    event.target.textContent = "copied";
  } catch (error) { // no clipboard for pages from disk in some browsers: select it instead
    getSelection().selectAllChildren(code);
    event.target.textContent = "selected";
  }
  setTimeout(() => { event.target.textContent = "copy"; }, 1500);
});

for (const table of document.querySelectorAll("table.sortable")) {
  if (table.dataset.table === "races") table.races = new Races(table, dataFor(table.closest("section").id));
  table.sorted = new SortedTable(table);
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) drawChart(entry.target);
}, { rootMargin: "500px" });
const charts = document.querySelectorAll(".chart");
for (const chart of charts) seen.observe(chart);

let waiting = 0;
new ResizeObserver(() => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => {
    for (const chart of charts) if (chart.drawnAt) drawChart(chart);
    for (const table of document.querySelectorAll("table.races")) table.races.draw();
  });
}).observe(document.querySelector("main"));
addEventListener("beforeprint", () => { for (const chart of charts) drawChart(chart); });

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const jump = document.querySelector(".jump");
function whereOneIs() {
  let here = "overview";
  for (const section of document.querySelectorAll("main > section")) if (section.getBoundingClientRect().top < 120) here = section.id;
  for (const [id, link] of links) link.classList.toggle("here", id === here);
  jump.value = here;
}
addEventListener("scroll", () => requestAnimationFrame(whereOneIs), { passive: true });
whereOneIs();
