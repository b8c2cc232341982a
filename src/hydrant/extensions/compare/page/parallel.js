// Parallel coordinates: one line per run through its value on the axis of each key, coloured by its result.

function parallelSection() {
  if (DATA.keys.filter((key) => !["seed", "fold_seed", "fold"].includes(key)).length < 2) return;
  const shown = section("parallel", "Parallel coordinates", h("p", { class: "note" }, `One line per finished run, coloured by its ${DATA.metric}. Point at a line to see it alone, click on it to see its config. Drag along an axis to show only the runs in a range, in all figures; a click on the axis shows all again.`));
  figure(shown, { name: "parallel", label: "Parallel coordinates", legend: false, draw: drawParallel });
}

/** The axis of a key: numbers by size (logarithmic if they span a factor of 100), other values at equal distances. */
function keyAxis(key, range) {
  const labels = numericOrder(labelsOf(key)), values = labels.map(Number);
  if (!values.every(Number.isFinite) || labels.length < 2) {
    const step = (range[1] - range[0]) / Math.max(labels.length - 1, 1);
    const at = (text) => (labels.length < 2 ? (range[0] + range[1]) / 2 : range[0] + step * labels.indexOf(text));
    return { at, ticks: labels.map((text) => [text, at(text)]), invert: null };
  }
  const [low, high] = extent(values), isLog = low > 0 && high / low >= 100;
  const scale = (isLog ? logScale : linearScale)([low, high], range);
  const ticks = values.length <= 8 ? values : scale.ticks(5);
  return { at: (text) => scale(Number(text)), invert: scale.invert, ticks: labelled(ticks).map(([value, text]) => [text, scale(value)]) };
}

const BAR = 12; // the width of the bar with the colours

/** The axes, each in a lane that no line crosses, so that its labels are legible. */
function parallelAxes(width, range, [low, high]) {
  const result = linearScale([low, high], range);
  const axes = [...varyingKeys().map((key) => ({ title: key, ...keyAxis(key, range), of: (run) => run.labels[key] })),
    { title: DATA.metric, at: result, invert: result.invert, isResult: true, ticks: labelled(result.ticks(5)).map(([tick, text]) => [text, result(tick)]), of: (run) => run.final }];
  const size = width / axes.length;
  return axes.map((axis, n) => {
    const room = Math.min(widest(axis.ticks.map(([text]) => text)) + (axis.isResult ? BAR + 8 : 10), size * 0.75);
    return { ...axis, left: (n + 0.5) * size - room / 2, right: (n + 0.5) * size + room / 2 };
  });
}

function drawParallel(svg, width) {
  const height = 336, range = [height - 24, 60];
  const runs = shownRuns().map(({ run }) => run).filter(isCounted), all = DATA.runs.filter(isCounted);
  if (!all.length) return emptyFigure(svg, width, "No visible run has a result");
  const [low, high] = extent((Object.keys(brushes()).length ? all : runs).map((run) => run.final)); // axes stay while they are brushed
  const colourOf = (value) => rampColour(0.08 + (0.8 * (IS_MAX ? value - low : high - value)) / (high - low || 1));
  const axes = parallelAxes(width, range, [low, high]), lines = s("g", {});
  svg.append(lines);
  for (const run of [...runs].sort((a, b) => (IS_MAX ? a.final - b.final : b.final - a.final))) {
    const y = ({ at, of }) => at(of(run)).toFixed(1);
    const path = axes.slice(1).map((axis, n) => `M${axes[n].right} ${y(axes[n])}L${axis.left} ${y(axis)}`).join("");
    lines.append(s("path", { d: path, class: "line", style: `stroke:${colourOf(run.final)}`, "data-tip": runTip(run), "data-run": run.name }));
  }
  lines.addEventListener("mouseover", ({ target }) => { for (const line of lines.children) line.classList.toggle("faint", line !== target); });
  lines.addEventListener("mouseout", () => { for (const line of lines.children) line.classList.remove("faint"); });
  drawTitles(svg, width, axes.map(({ title }) => title));
  for (const { ticks, left, right } of axes.slice(0, -1)) {
    for (const x of left > axes[0].left ? [left, right] : [right]) svg.append(s("line", { x1: x, x2: x, y1: range[0], y2: range[1], class: "axis" }));
    for (const [text, y] of ticks) svg.append(s("text", { x: (left + right) / 2, y: y + 4, class: "middle label", "data-tip": text }, cut(text, right - left - 4)));
  }
  const { ticks, left } = axes[axes.length - 1], box = { x: left, y: range[1], width: BAR, height: range[0] - range[1] };
  svg.append(colourBar("parallel-colours", box, (share) => colourOf(low + share * (high - low))));
  for (const [text, y] of ticks) svg.append(s("text", { x: left + BAR + 6, y: y + 4, class: "label" }, text));
  for (const axis of axes) {
    const part = brushedPart(axis);
    if (part) svg.append(s("rect", { x: axis.left - 4, width: axis.right - axis.left + 8, y: part[0], height: Math.max(part[1] - part[0], 2), class: "brush" }));
  }
  return { height, description: `${runs.length} runs over ${axes.length} axes`, ...brushReactions(svg, axes, range) };
}

/** The titles above the axes. If there is too little room, every second one is a line higher. */
function drawTitles(svg, width, titles) {
  const size = width / titles.length, isTight = widest(titles) > size - 10;
  titles.forEach((title, n) => {
    const isEdge = n === 0 || n === titles.length - 1, [x, kind] = !isTight || !isEdge ? [(n + 0.5) * size, "middle"] : n ? [width - 2, "end"] : [2, ""];
    const text = cut(title, !isTight ? size : isEdge ? 1.5 * size - 10 : 2 * size - 10);
    svg.append(s("text", { x, y: isTight && n % 2 ? 18 : 36, class: `strong ${kind}`, "data-tip": title }, text));
  });
}
