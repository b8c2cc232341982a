// The page, from top to bottom.

function warningsSection() {
  const texts = [...DATA.warnings.map(({ about, text }) => [h("b", {}, about), `: ${text}`])];
  if (!texts.length) return;
  const shown = section("warnings", "Warnings", h("ul", {}, texts.map((parts) => h("li", {}, parts))));
  shown.classList.add("warnings");
}

function verdictSection() {
  const shown = drawSection("verdict");
  shown.classList.add("verdict");
  shown.classList.toggle("decided", DATA.verdict.status === "decided");
  shown.querySelector("p").className = "sentence";
}

function runsSection() {
  runTable(section("runs", DATA.runs.length === 1 ? "Facts" : "Runs"));
}

function chooseTheme() {
  const select = document.getElementById("theme");
  const show = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
    select.value = theme;
  };
  const stored = (access) => { try { return access(); } catch { return null; } }; // a page from a file may have no storage
  show(stored(() => localStorage.getItem("hydrant-theme")) || "");
  select.addEventListener("change", () => {
    show(select.value);
    stored(() => localStorage.setItem("hydrant-theme", select.value));
  });
}

function showTitle() {
  const counts = new Map();
  for (const { state } of DATA.runs) counts.set(state, (counts.get(state) || 0) + 1);
  const num = DATA.runs.length, title = `${DATA.metric} of ${num} run${num === 1 ? "" : "s"}`;
  document.title = document.getElementById("title").textContent = title;
  document.getElementById("states").textContent =
    `${[...counts].map(([state, count]) => `${count} ${state}`).join(", ")} · ${DATA.metric} ${DATA.moment}; ${IS_MAX ? "higher" : "lower"} is better`;
}

/** Draws everything from the data and the choices of the reader. Focus and scroll positions stay. */
function render() {
  const place = placeOfReader();
  STATE.listeners = [];
  WAITING.clear();
  document.getElementById("nav").replaceChildren();
  document.getElementById("main").replaceChildren();
  showTitle();
  const figures = [curvesSection, schedulesSection, scatterSection, historySection, heatmapSection, parallelSection];
  const asked = [profileSection, noiseSection, () => drawSection("against"), sensitivitySection, tuningSection];
  const comparing = [() => drawSection("effects"), groupsSection, runsSection, ...figures, picturesSection, ...asked], alone = [curvesSection, runsSection, schedulesSection, picturesSection, ...asked];
  for (const draw of [verdictSection, warningsSection, progressSection, ...(DATA.runs.length === 1 ? alone : comparing)]) draw();
  showRun();
  goToPlace(place);
  if (!WAITING.size) document.documentElement.dataset.drawn = String(Math.round(performance.now()));
  document.documentElement.dataset.painted ||= String(Math.round(performance.now()));
}

const nameOf = (element) => element.id || element.getAttribute("aria-label") || element.labels?.[0]?.textContent || element.textContent;

/** What has the focus, and how far everything is scrolled, as plain data. */
function placeOfReader() {
  const main = document.getElementById("main"), focused = document.activeElement;
  const where = main.contains(focused) && focused !== main && { section: focused.closest("section").id, tag: focused.tagName, name: nameOf(focused), range: focused.type === "search" ? [focused.selectionStart, focused.selectionEnd] : null };
  const scrolled = [...main.querySelectorAll(".scroll")].map((region) => [region.getAttribute("aria-label"), region.scrollLeft, region.scrollTop]);
  return { where, scrolled, top: scrollY, down: RUN.scrollTop };
}

function goToPlace({ where, scrolled, top, down }) {
  const main = document.getElementById("main");
  for (const [label, left, low] of scrolled) main.querySelector(`.scroll[aria-label="${CSS.escape(label)}"]`)?.scrollTo(left, low);
  const found = where && [...main.querySelectorAll(`#${where.section} ${where.tag}`)].find((element) => nameOf(element) === where.name);
  if (found) found.focus({ preventScroll: true });
  if (found && where.range) found.setSelectionRange(...where.range);
  if (scrollY !== top) scrollTo(0, top);
  RUN.scrollTop = down;
}

/** Decodes parts of the data and uses them. */
async function useParts(parts) {
  const texts = Object.entries(parts);
  const contents = await Promise.all(texts.map(([, text]) => decoded(text)));
  useData(Object.fromEntries(texts.map(([name], place) => [name, contents[place]])));
}

async function begin() {
  chooseTheme();
  readAddress();
  const place = history.state;
  showFollowing(); // before the scroll, because it is a line at the top
  await useParts(JSON.parse(document.getElementById("data").textContent));
  render();
  if (place) goToPlace(place);
  const part = location.hash.slice(1);
  if (part && !part.includes("=")) document.getElementById(part)?.scrollIntoView();
  document.querySelector(".skip").addEventListener("click", (event) => goTo(event, "main"));
  addEventListener("hashchange", () => { readAddress(); render(); });
  followRuns();
}

begin();
