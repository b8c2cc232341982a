// Parallel coordinates: one line per run through its value on the axis of each key, coloured by its result.

function parallelSection() {
  if (DATA.keys.filter((key) => key !== "seed").length < 2) return;
  const shown = section("parallel", "Parallel coordinates", h("p", { class: "note" }, `One line per finished run, coloured by its ${DATA.metric}. Point at a line to see it alone.`));
  figure(shown, { name: "parallel", label: "Parallel coordinates", legend: false, draw: drawParallel });
}

/** The axis of a key: numbers by size (logarithmic if they span a factor of 100), other values at equal distances. */
function keyAxis(key, range) {
  const labels = numericOrder(labelsOf(key)), values = labels.map(Number);
  if (!values.every(Number.isFinite) || labels.length < 2) {
    const step = (range[1] - range[0]) / Math.max(labels.length - 1, 1);
    const at = (text) => (labels.length < 2 ? (range[0] + range[1]) / 2 : range[0] + step * labels.indexOf(text));
    return { at, ticks: labels.map((text) => [text, at(text)]) };
  }
  const [low, high] = extent(values), isLog = low > 0 && high / low >= 100;
  const scale = (isLog ? logScale : linearScale)([low, high], range);
  const ticks = values.length <= 8 ? values : scale.ticks(5);
  return { at: (text) => scale(Number(text)), ticks: ticks.map((value) => [number(value), scale(value)]) };
}

function drawParallel(svg, width) {
  const height = 336, range = [height - 24, 60];
  const runs = shownRuns().map(({ run }) => run).filter(isCounted);
  if (!runs.length) return emptyFigure(svg, width, "No visible run has a result");
  const [low, high] = extent(runs.map((run) => run.final));
  const result = linearScale([low, high], range), share = (run) => (IS_MAX ? run.final - low : high - run.final) / (high - low || 1);
  const axes = [...varyingKeys().map((key) => ({ title: key, ...keyAxis(key, range), of: (run) => run.labels[key] })),
    { title: DATA.metric, at: result, ticks: result.ticks(5).map((tick) => [number(tick), result(tick)]), of: (run) => run.final }];
  const x = (n) => 70 + (n * (width - 150)) / (axes.length - 1);
  const distance = x(1) - x(0), isTight = widest(axes.map(({ title }) => title)) > distance - 10; // then every second title is one line higher
  const lines = s("g", {});
  svg.append(lines);
  for (const run of [...runs].sort((a, b) => share(a) - share(b))) {
    const path = axes.map((axis, n) => `${x(n).toFixed(1)} ${axis.at(axis.of(run)).toFixed(1)}`).join("L");
    lines.append(s("path", { d: `M${path}`, class: "line", style: `stroke:${rampColour(0.08 + 0.8 * share(run))}`, "data-tip": runTip(run) }));
  }
  lines.addEventListener("mouseover", ({ target }) => { for (const line of lines.children) line.classList.toggle("faint", line !== target); });
  lines.addEventListener("mouseout", () => { for (const line of lines.children) line.classList.remove("faint"); });
  axes.forEach(({ title, ticks }, n) => {
    svg.append(s("line", { x1: x(n), x2: x(n), y1: range[0], y2: range[1], class: "axis" }), s("text", { x: x(n), y: isTight && n % 2 ? 18 : 36, class: "strong middle", "data-tip": title }, cut(title, isTight ? Math.min(2 * distance - 10, 136) : distance)));
    for (const [text, y] of ticks) svg.append(s("text", { x: x(n) + 7, y: y + 4, class: "halo" }, text));
  });
  return { height, description: `${runs.length} runs over ${axes.length} axes` };
}
