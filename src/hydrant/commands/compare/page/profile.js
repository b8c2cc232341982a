// The time to the target: performance profiles and the AlgoPerf score.

function profileSection() {
  if (!DATA.target) return;
  const chosen = { unit: "updates" }, units = Object.keys(DATA.profiles), names = Object.keys(DATA.profiles.updates.scores);
  const shown = section("profile", `Time to ${DATA.target}`, h("p", { class: "note" },
    `The fraction of workloads on which a submission takes at most so many times as long as the fastest one. The score is the area under the curve from 1 to 4, divided by 3 (AlgoPerf). The time of a submission on a workload is the median, over the ${DATA.repetitions}, of its fastest trial.`));
  const redraw = figure(shown, {
    name: "profile", label: "Performance profiles", legend: false,
    controls: [choice("In", units, chosen.unit, (value) => { chosen.unit = value; redraw(); })],
    draw: (svg, width) => drawProfiles(svg, width, chosen.unit, names),
  });
  const scores = (unit) => DATA.profiles[unit].scores;
  const rows = [...names].sort((a, b) => scores("updates")[b] - scores("updates")[a]).map((name) => ({ cells: [name, ...units.map((unit) => scores(unit)[name].toFixed(4))] }));
  const reached = DATA.runs.filter((run) => run.to_target.updates !== null).length;
  const times = DATA.groups.map((group) => ({ cells: [group.name, `${group.reached} of ${group.num_runs}`, ...TARGET_UNITS.map((unit) => number(group.to_target[unit]))] }));
  shown.append(scrollable("Times to the target", plainTable(`The time at which the runs of a group first reached the target: the median over the ${DATA.repetitions}; – if half of them did not reach it.`, ["group", "reached", ...TARGET_UNITS], times, 1, { id: "times-table" })));
  shown.append(scrollable("AlgoPerf scores", plainTable(`AlgoPerf score in each unit; ${reached} of ${DATA.runs.length} runs reach the target.`, ["submission", ...units], rows, 1, { id: "scores-table" })));
}

function drawProfiles(svg, width, unit, names) {
  const { taus, ratios, scores } = DATA.profiles[unit], height = Math.min(Math.max(width * 0.38, 260), 380);
  const plot = frame(svg, width, height, { domain: [1, taus[taus.length - 1]], name: `${unit} relative to the fastest` }, { domain: [0, 1.04], name: "fraction of workloads" });
  names.forEach((name, place) => {
    let path = "";
    ratios[name].forEach((share, n) => { path += `${n ? `H${plot.xs(taus[n]).toFixed(1)}V` : `M${plot.xs(1)} `}${plot.ys(share).toFixed(1)}`; });
    svg.append(s("path", { d: path, class: `line ${strokeOf(place)}`, "data-tip": `${name}\nscore ${scores[name].toFixed(4)}` }));
  });
  legendInside(svg, plot, names, true);
  return { height, description: `${names.length} submissions by ${unit}` };
}
