// The page, from top to bottom.

function warningsSection() {
  if (!DATA.warnings.length) return;
  const shown = section("warnings", "Warnings", h("ul", {}, DATA.warnings.map(({ about, text }) => h("li", {}, h("b", {}, about), `: ${text}`))));
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

chooseTheme();
const counts = new Map();
for (const { state } of DATA.runs) counts.set(state, (counts.get(state) || 0) + 1);
const better = IS_MAX ? "higher" : "lower";
document.getElementById("states").textContent =
  `${[...counts].map(([state, count]) => `${count} ${state}`).join(", ")} · ${DATA.metric} ${DATA.moment}; ${better} is better`;
const figures = [curvesSection, schedulesSection, scatterSection, historySection, heatmapSection, parallelSection, importanceSection];
const asked = [profileSection, noiseSection, () => drawSection("against"), sensitivitySection, tuningSection, scalingSection];
const comparing = [groupsSection, runsSection, ...figures, ...asked], alone = [curvesSection, runsSection, schedulesSection, ...asked];
for (const draw of [verdictSection, warningsSection, ...(DATA.runs.length === 1 ? alone : comparing)]) draw();
document.documentElement.dataset.drawn = String(Math.round(performance.now()));
