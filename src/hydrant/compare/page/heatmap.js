// Two keys against each other: the mean result of the runs in each cell; what is missing, and what failed.

function heatmapSection() {
  const keys = DATA.keys.filter((key) => new Set(DATA.runs.map((run) => run.labels[key])).size > 1);
  if (keys.length < 2) return;
  const own = [...DATA.by.filter((key) => keys.includes(key)), ...keys.filter((key) => !DATA.by.includes(key))];
  const chosen = { rows: own[0], columns: own[1] };
  const shown = section("heatmap", "Two keys", h("p", { class: "note" }, `Mean of ${DATA.metric} over the runs in a cell. Hatched: no run was made; “failed”: none has a result.`));
  let redraw = () => {};
  const pick = (name) => (value) => { chosen[name] = value; redraw(); };
  redraw = figure(shown, {
    name: "heatmap", label: "Heat map of two keys", legend: false,
    controls: [choice("Rows", keys, chosen.rows, pick("rows")), choice("Columns", keys, chosen.columns, pick("columns"))],
    draw: (svg, width) => drawHeatmap(svg, width, chosen),
  });
}

function labelsOf(key) {
  return [...new Set(DATA.runs.map((run) => run.labels[key]))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
}

function drawHeatmap(svg, width, { rows, columns }) {
  const down = numericOrder(labelsOf(rows)), across = numericOrder(labelsOf(columns));
  const room = Math.min(widest([...down, rows]) + 20, width * 0.3);
  const size = { width: (width - room - 8) / across.length, height: Math.min(Math.max(36, 300 / down.length), 56) };
  const top = 44, height = top + down.length * size.height + 8;
  const cells = down.map((row) => across.map((column) => {
    const runs = shownRuns().map(({ run }) => run).filter((run) => run.labels[rows] === row && run.labels[columns] === column);
    const counted = runs.filter(isCounted);
    return { runs, counted, made: runs.filter((run) => run.state !== "missing").length, mean: counted.length ? counted.reduce((sum, run) => sum + run.final, 0) / counted.length : null };
  }));
  const [low, high] = extent(cells.flat().map(({ mean }) => mean));
  const share = (mean) => (IS_MAX ? (mean - low) / (high - low || 1) : (high - mean) / (high - low || 1));
  svg.append(s("pattern", { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { width: 8, height: 8, class: "back" }), s("line", { x1: 0, x2: 0, y1: 0, y2: 8, class: "hatch" })));
  svg.append(s("text", { x: room + (width - room) / 2, y: 14, class: "soft middle" }, columns), s("text", { x: room - 10, y: 32, class: "soft end" }, rows));
  across.forEach((text, n) => svg.append(s("text", { x: room + (n + 0.5) * size.width, y: 34, class: "middle" }, text)));
  cells.forEach((line, r) => {
    const y = top + r * size.height, middle = y + size.height / 2 + 4;
    svg.append(s("text", { x: room - 10, y: middle, class: "end" }, down[r]));
    line.forEach((cell, n) => {
      const x = room + n * size.width, { mean, made, counted, runs } = cell;
      const tip = `${rows}=${down[r]}  ${columns}=${across[n]}\n${mean === null ? "" : `mean ${number(mean)}, `}${counted.length} of ${runs.length} runs have a result`;
      const colour = mean !== null ? rampColour(share(mean)) : made ? "var(--grid)" : "url(#hatch)";
      svg.append(s("rect", { x, y, width: size.width, height: size.height, rx: 4, class: "cell", style: `fill:${colour}`, "data-tip": tip }));
      const text = mean !== null ? number(mean) : made ? [...new Set(runs.map((run) => run.state))].join(", ") : "no run";
      const ink = mean !== null ? { style: `fill:${inkOn(share(mean))};pointer-events:none` } : { style: "pointer-events:none" };
      if (size.width > 44) svg.append(s("text", { x: x + size.width / 2, y: middle, class: "middle", ...ink }, text));
    });
  });
  const missing = cells.flat().filter(({ made }) => !made).length;
  return { height, told: `${rows} by ${columns}, ${cells.flat().length} cells, ${missing} without a run` };
}

/** Labels by size where all are numbers. */
function numericOrder(labels) {
  return labels.every((text) => Number.isFinite(Number(text))) ? [...labels].sort((a, b) => a - b) : labels;
}
