// The time to the target: performance profiles and the AlgoPerf score.

function profileSection() {
  if (!DATA.target) return;
  const units = Object.keys(DATA.profiles), chosen = choicesOf("profile", { unit: oneOf(units) }), names = Object.keys(DATA.profiles.updates.scores);
  drawSection("target", (shown) => {
    shown.append(h("p", { class: "note" },
      `The fraction of workloads on which a submission takes at most so many times as long as the fastest one. The score is the area under the curve from 1 to 4, divided by 3 (AlgoPerf). The time of a submission on a workload is the median, over the ${DATA.repetitions}, of its fastest trial.`));
    const redraw = figure(shown, {
      name: "profile", label: "Performance profiles", legend: false,
      controls: [choice("In", units, chosen.unit, (value) => { chosen.unit = value; redraw(); })],
      draw: (svg, width) => drawProfiles(svg, width, chosen.unit, names),
    });
  });
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
