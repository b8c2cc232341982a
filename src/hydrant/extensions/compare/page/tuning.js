// Tuning under equal budgets: the expected best of n trials of each method.

function tuningSection() {
  const { tuning } = DATA.verdicts;
  if (!tuning) return;
  drawSection("tuning", (shown) => figure(shown, { name: "tuning", label: "Expected best of n trials", legend: false, draw: (svg, width) => drawTuning(svg, width, tuning) }));
}

function drawTuning(svg, width, { methods, budget }) {
  const height = Math.min(Math.max(width * 0.4, 280), 420), counts = [...Array(budget).keys()].map((n) => n + 1);
  const ends = methods.flatMap(({ curve }) => [...curve.expected, ...(curve.low || []).slice(1), ...(curve.high || []).slice(1)]);
  const plot = frame(svg, width, height, { domain: [1, Math.max(budget, 2)], name: "trials" }, { domain: padded(extent(ends)), name: `expected best ${DATA.metric}` });
  const opacity = Math.min(0.16, 0.6 / methods.length), digits = digitsOf(methods.flatMap(({ curve }) => curve.expected));
  methods.forEach(({ curve }, place) => curve.low && svg.append(s("path", { d: bandOf(counts.slice(1), curve.low.slice(1), curve.high.slice(1), plot), class: `band ${fillOf(place)}`, opacity })));
  methods.forEach(({ name, curve }, place) => {
    svg.append(s("path", { d: pathOf(counts.map((n) => [n, curve.expected[n - 1]]), plot.xs, plot.ys), class: `line ${strokeOf(place)}`, "data-tip": name }));
    for (const n of counts) svg.append(s("circle", { cx: plot.xs(n), cy: plot.ys(curve.expected[n - 1]), r: 3, class: `dot ${fillOf(place)}`, "data-tip": `${name}\nbest of ${n}: ${number(curve.expected[n - 1], digits)}${curve.low ? ` (${interval(curve.low[n - 1], curve.high[n - 1], digits)})` : ""}` }));
  });
  legendInside(svg, plot, methods.map(({ name }) => name), IS_MAX);
  return { height, description: `${methods.length} methods, up to ${budget} trials` };
}
