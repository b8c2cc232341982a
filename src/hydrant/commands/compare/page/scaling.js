// Scaling: the loss over a size with the fitted power law, and the check of its prediction.

function scalingSection() {
  const { scaling } = DATA.verdicts;
  if (!scaling) return;
  drawSection("scaling", (shown) => {
    if (scaling.methods.some(({ sizes }) => sizes.length)) figure(shown, { name: "scaling", label: `Loss over ${scaling.size}`, legend: false, draw: (svg, width) => drawScaling(svg, width, scaling) });
  });
}

function drawScaling(svg, width, { size, methods }) {
  const height = Math.min(Math.max(width * 0.45, 280), 440);
  const laws = methods.map(({ fit }) => fit).filter(Boolean);
  const xs = extent([...methods.flatMap(({ sizes }) => sizes), ...laws.flatMap(({ sizes }) => sizes)]);
  const losses = [...methods.flatMap(({ losses }) => losses), ...laws.flatMap(({ values, low }) => [...values, ...(low || []).filter((value) => value > 0)])];
  const plot = frame(svg, width, height, { domain: [xs[0] / 1.15, xs[1] * 1.15], log: true, name: size }, { domain: domainOf(losses, true), log: true, name: DATA.metric });
  const digits = digitsOf(methods.flatMap(({ losses }) => losses));
  methods.forEach(({ name, sizes, losses, fit, check }, place) => {
    if (fit) {
      if (fit.low) svg.append(s("path", { d: bandOf(fit.sizes, fit.low, fit.high, plot), class: `band ${fillOf(place)}`, opacity: 0.14 }));
      svg.append(s("path", { d: pathOf(fit.sizes.map((at, n) => [at, fit.values[n]]), plot.xs, plot.ys), class: `line ${strokeOf(place)}` }));
    }
    sizes.forEach((at, n) => svg.append(s("circle", { cx: plot.xs(at), cy: plot.ys(losses[n]), r: 5, class: `dot ${fillOf(place)}`, "data-tip": `${name}\n${DATA.metric} ${number(losses[n], digits)} at ${number(at)}` })));
    if (!check) return;
    const x = plot.xs(check.size) + 9, tip = `${name}: predicted by the smaller sizes ${number(check.predicted, digits)} (${interval(check.low, check.high, digits)}), measured ${number(check.measured, digits)}`;
    if (check.low !== null) svg.append(s("line", { x1: x, x2: x, y1: plot.ys(Math.max(check.low, 1e-12)), y2: plot.ys(check.high), class: `line ${strokeOf(place)}`, "data-tip": tip }));
    svg.append(s("text", { x, y: plot.ys(check.predicted) + 5, class: `middle ${fillOf(place)}`, "data-tip": tip }, "×"));
  });
  legendInside(svg, plot, methods.map(({ name }) => name), false);
  return { height, description: `${methods.length} methods over ${size}; ${laws.length} laws` };
}
