// While runs train: how far they are, and the time that is left.

function progressSection() {
  const { progress } = DATA;
  if (!progress || (!progress.running.length && !progress.num_waiting)) return;
  const { running, num_runs: numRuns, num_ended: numEnded, num_waiting: numWaiting } = progress;
  const times = running.map((run) => run.seconds_left), isKnown = running.length && !numWaiting && !times.some(isMissing);
  const parts = [
    `${numEnded} of ${numRuns} runs have ended, ${running.length} run${numWaiting ? `, ${numWaiting} wait` : ""}`,
    isKnown ? `about ${duration(Math.max(...times))} left` : "",
  ].filter(Boolean);
  const shares = running.map((run) => (run.total_updates ? run.num_updates / run.total_updates : 0));
  const share = (numEnded + shares.reduce((sum, one) => sum + one, 0)) / Math.max(numRuns, 1);
  const shown = section("progress", "Progress", h("p", {}, `${parts.join("; ")}.`), bar(share, "All runs"));
  if (!running.length) return;
  const columns = [
    ["updates", (run) => `${countText(run.num_updates)}${run.total_updates ? ` of ${countText(run.total_updates)}` : ""}`],
    ["train/loss", (run) => number(run.loss)], ["time left", (run) => duration(run.seconds_left)],
  ].filter(([, value]) => running.some((run) => value(run) !== "–"));
  shown.append(scrollable("Table of running runs", h("table", { id: "progress-table" }, captioned("Runs that train now."),
    h("thead", {}, h("tr", {}, ["run", "", ...columns.map(([title]) => title)].map((title, n) => h("th", { scope: "col", class: n > 1 ? "number" : null }, title)))),
    h("tbody", {}, running.map((run, n) => h("tr", {}, h("th", { scope: "row" }, runLink(run.name)), h("td", {}, bar(shares[n], run.name)), columns.map(([, value]) => h("td", { class: "number" }, value(run)))))))));
}

function bar(share, name) {
  return h("progress", { value: Math.min(share, 1), max: 1, "aria-label": `Progress of ${name}` }, `${Math.round(100 * share)} %`);
}

/** The name of a run, which opens it if the page has its results. */
function runLink(name) {
  if (!PLACE_OF.has(name)) return name;
  return h("button", { type: "button", class: "link", "aria-haspopup": "dialog", onclick: (event) => { event.stopPropagation(); openRun(name); } }, name);
}
