// The result of every run over its cost, with the Pareto front.

function scatterSection() {
  const units = [...DATA.objectives.map(({ metric }) => metric).filter((metric) => metric !== DATA.metric), ...UNITS, ...Object.keys(DATA.profiles).map((unit) => `${unit} to the target`)];
  const chosen = choicesOf("scatter", { unit: oneOf(units, units[0] === UNITS[0] ? "seconds" : units[0]) });
  const shown = section("scatter", "Result and time", h("p", { class: "note" }, "Every finished run. The dashed line joins the runs that no other run beats in both values (the Pareto front). Over another objective of a study, the best values of each trial are shown."));
  const redraw = figure(shown, {
    name: "scatter", label: "Result over time",
    controls: [choice("Over", units, chosen.unit, (value) => { chosen.unit = value; redraw(); })],
    draw: (svg, width) => drawScatter(svg, width, chosen.unit),
  });
}

/** The cost of a run in a unit; null if it is unknown or the run did not reach the target. */
function costOf(run, place, unit) {
  if (unit in run.objectives) return run.objectives[unit];
  if (unit.endsWith("to the target")) return run.to_target[unit.split(" ")[0]];
  return xValues(unit, [run.num_updates], DATA.curves.samples_per_update[place], DATA.curves.clocks[place])[0];
}

function drawScatter(svg, width, unit) {
  const objective = DATA.objectives.find(({ metric }) => metric === unit);
  const points = shownRuns().filter(({ run }) => isCounted(run))
    .map(({ run, place, group }) => ({ run, group, x: costOf(run, place, unit), y: objective ? run.best : run.final }))
    .filter(({ x }) => !isMissing(x));
  if (!points.length) return emptyFigure(svg, width, "No visible run has both values");
  const height = Math.min(Math.max(width * 0.45, 280), 420);
  const plot = frame(svg, width, height, { domain: padded(extent(points.map(({ x }) => x))), name: unit }, { domain: padded(extent(points.map(({ y }) => y))), name: DATA.metric });
  const front = paretoFront(points, IS_MAX, objective !== undefined && objective.mode === "max");
  svg.append(s("path", { d: pathOf(front.flatMap(({ x, y }, n) => (n ? [[x, front[n - 1].y], [x, y]] : [[x, y]])), plot.xs, plot.ys), class: "mark" }));
  for (const { run, group, x, y } of points) {
    const isFront = front.some((point) => point.run === run);
    svg.append(s("circle", { cx: plot.xs(x), cy: plot.ys(y), r: isFront ? 6 : 4, class: `dot ${fillOf(group)}`, "data-tip": `${runTip(run)}\n${number(x)} ${unit}`, "data-run": run.name }));
  }
  return { height, description: `${points.length} runs, ${front.length} on the Pareto front` };
}
