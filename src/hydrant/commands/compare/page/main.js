// The page, from top to bottom.

function warningsSection() {
  if (!DATA.warnings.length) return;
  const shown = section("warnings", "Warnings", h("ul", {}, DATA.warnings.map(({ about, text }) => h("li", {}, h("b", {}, about), `: ${text}`))));
  shown.classList.add("warnings");
}

function certainty({ num, low, high }) {
  if (low === null) return `${counted(num)}, ${num === 1 ? "too few for an interval" : "all equal"}`;
  return `${100 * DATA.confidence} % interval ${interval(low, high)}, ${counted(num)}`;
}

function evidence({ low, high, p, num_pairs }) {
  if (p === null) return `n = ${num_pairs}, no test`;
  return `${100 * DATA.confidence} % interval ${interval(low, high)}, p ${pValue(p)}, ${num_pairs} pairs; this p-value is optimistic: the same results picked and tested the two`;
}

function winnerSection() {
  const shown = section("winner", "Best");
  shown.classList.add("winner");
  const best = DATA.groups.find((group) => group.name === DATA.winner);
  if (!best) return shown.append(h("p", { class: "value" }, `No run has finished with a finite ${DATA.metric}.`));
  const second = DATA.groups.find((group) => group.name === DATA.runner_up), lead = DATA.lead;
  shown.append(h("div", { class: "name" }, best.name), h("div", { class: "value" }, `${DATA.metric} ${number(best.mean)} (${certainty(best)})`));
  if (best.shortfall) shown.append(h("p", { class: "note" }, `No group is complete, including this one: ${best.shortfall}.`));
  if (second) shown.append(h("div", { class: "value" }, `Second: ${second.name}, ${number(second.mean)} (${certainty(second)})`));
  if (lead && lead.mean !== null) shown.append(h("p", { class: "note" }, `Best − second: ${signed(lead.mean)} (${evidence(lead)}).`));
  for (const group of DATA.groups.filter(({ name }) => DATA.passed_over.includes(name))) shown.append(h("p", { class: "note" }, `Not counted as best: ${group.name}, ${number(group.mean)}, because ${group.shortfall}.`));
}

function runsSection() {
  runTable(section("runs", "Runs"));
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
for (const draw of [warningsSection, winnerSection, groupsSection, runsSection, curvesSection, schedulesSection, scatterSection, historySection, heatmapSection, parallelSection, importanceSection, profileSection, noiseSection, againstSection, sensitivitySection, tuningSection, scalingSection]) draw();
document.documentElement.dataset.drawn = String(Math.round(performance.now()));
