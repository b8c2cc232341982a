// The history of a study: the values of its trials in their order, and the best so far.

function historySection() {
  if (!IS_SEARCH) return;
  const shown = section("history", "History of the study", h("p", { class: "note" },
    `The best ${DATA.metric} of every trial, in the order in which the trials started. The dashed line is the best value so far. Hollow marks are pruned trials.`));
  figure(shown, { name: "history", label: "History of the study", legend: false, draw: drawHistory });
}

function drawHistory(svg, width) {
  const trials = shownRuns().map(({ run }) => run).filter(({ trial, best }) => trial !== null && best !== null).sort((a, b) => a.trial - b.trial);
  if (!trials.length) return emptyFigure(svg, width, "No visible trial has a value");
  const height = Math.min(Math.max(width * 0.4, 260), 380), last = trials[trials.length - 1].trial;
  const plot = frame(svg, width, height, { domain: padded([0, last]), name: "trial" }, { domain: padded(extent(trials.map(({ best }) => best))), name: DATA.metric });
  const steps = [];
  let best = null;
  for (const run of trials.filter(isCounted)) {
    if (best !== null && (IS_MAX ? run.best <= best : run.best >= best)) continue;
    if (best !== null) steps.push([run.trial, best]);
    best = run.best;
    steps.push([run.trial, best]);
  }
  if (best !== null) steps.push([last, best]);
  svg.append(s("path", { d: pathOf(steps, plot.xs, plot.ys), class: "mark" }));
  for (const run of trials) {
    const kind = isCounted(run) ? "dot f0" : "hollow c0";
    svg.append(s("circle", { cx: plot.xs(run.trial), cy: plot.ys(run.best), r: 4, class: kind, "data-tip": `trial ${run.trial}\n${runTip(run)}`, "data-run": run.name }));
  }
  const num = trials.filter(isCounted).length;
  return { height, description: `${trials.length} trials, ${num} of them finished${best === null ? "" : `, the best ${number(best, DIGITS)}`}` };
}
