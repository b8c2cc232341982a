// Results over the learning rate, one line for each optimizer, and the basins below them on the same axis.

function sensitivitySection() {
  const { sensitivity } = DATA.verdicts;
  if (!sensitivity) return;
  const lines = sensitivity.lines, values = lines.flatMap(({ means }) => means).filter((value) => value !== null);
  const [low, high] = extent(values), chosen = choicesOf("sensitivity", { log: low > 0 && high > 20 * low });
  const log = h("input", { type: "checkbox", checked: chosen.log, onchange: (event) => { chosen.log = event.target.checked; redraw(); } });
  let redraw;
  drawSection("sensitivity", (shown) => {
    redraw = figure(shown, { name: "sensitivity", label: "Results over the learning rate", legend: false, controls: [h("label", {}, log, "Logarithmic results")], draw: (svg, width) => drawSensitivity(svg, width, lines, chosen.log) });
  });
}

const ROW = 18;

function drawSensitivity(svg, width, lines, log) {
  const strips = lines.map((line, place) => ({ ...line, place })).filter(({ basin }) => basin);
  const upper = Math.min(Math.max(width * 0.4, 280), 420), height = upper + strips.length * ROW + (strips.length ? 22 : 0);
  const rates = extent(lines.flatMap(({ lrs }) => lrs)), ys = domainOf(lines.flatMap(({ means }) => means), log);
  const plot = frame(svg, width, upper, { domain: [rates[0] / 1.3, rates[1] * 1.3], log: true, name: "learning rate" }, { domain: ys, log, name: DATA.metric });
  const clip = s("clipPath", { id: "sensitivity-clip" }, s("rect", { x: plot.inner.left, y: plot.inner.top, width: plot.inner.right - plot.inner.left, height: plot.inner.bottom - plot.inner.top }));
  const layer = s("g", { "clip-path": "url(#sensitivity-clip)" }), opacity = Math.min(0.16, 0.6 / lines.length), digits = digitsOf(lines.flatMap(({ means }) => means));
  svg.append(clip, layer);
  lines.forEach(({ lrs, lows, highs }, place) => layer.append(s("path", { d: bandOf(lrs, lows, highs, plot), class: `band ${fillOf(place)}`, opacity })));
  lines.forEach(({ name, lrs, means, nums, failed }, place) => {
    layer.append(s("path", { d: pathOf(lrs.map((lr, n) => [lr, means[n]]), plot.xs, plot.ys), class: `line ${strokeOf(place)}` }));
    lrs.forEach((lr, n) => {
      const tip = `${name}, lr ${lr}\n${DATA.metric} ${number(means[n], digits)} (n = ${nums[n]})${failed[n] ? `\n${failed[n]} failed` : ""}`;
      if (means[n] !== null) layer.append(s("circle", { cx: plot.xs(lr), cy: plot.ys(means[n]), r: 3.5, class: `dot ${fillOf(place)}`, "data-tip": tip }));
      if (failed[n]) svg.append(s("text", { x: plot.xs(lr), y: IS_MAX ? plot.inner.top + 8 + (place % 4) * 9 : plot.inner.bottom - 4 - (place % 4) * 9, class: `middle ${fillOf(place)}`, "data-tip": tip }, "×"));
    });
  });
  legendInside(svg, plot, lines.map(({ name }) => name), IS_MAX);
  strips.forEach(({ name, place, basin }, n) => {
    const y = upper + 16 + n * ROW, ends = [plot.xs(basin.low), plot.xs(basin.high)], tip = `${name}: basin ${basin.low.toPrecision(2)} to ${basin.high.toPrecision(2)}, a factor of ${number(basin.factor, 3)}`;
    svg.append(s("line", { x1: plot.inner.left, x2: plot.inner.right, y1: y, y2: y, class: "grid" }), s("line", { x1: ends[0], x2: Math.max(ends[1], ends[0] + 1), y1: y, y2: y, class: `line wide ${strokeOf(place)}`, "data-tip": tip }));
    svg.append(s("circle", { cx: plot.xs(basin.best_lr), cy: y, r: 4, class: `dot ${fillOf(place)}`, "data-tip": tip }));
    const isLeft = ends[0] - plot.inner.left > plot.inner.right - ends[1];
    svg.append(s("text", { x: isLeft ? ends[0] - 12 : ends[1] + 12, y: y + 4, class: isLeft ? "halo end" : "halo" }, cut(`${short(name)}  ${basin.is_low_open || basin.is_high_open ? "≥ " : ""}×${number(basin.factor, 3)}`, width / 2)));
  });
  return { height, description: `${lines.length} lines over ${number(rates[0])} to ${number(rates[1])}${strips.length ? `; basins ${strips.map(({ name, basin }) => `${name} ×${number(basin.factor, 3)}`).join(", ")}` : ""}` };
}
