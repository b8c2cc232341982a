// The heat map: the mean result for each combination of two keys, and the missing and failed runs.

const MAX_VALUES = 12, NUM_BINS = 8;

function heatmapSection() {
  const keys = varyingKeys();
  if (keys.length < 2) return;
  const ordered = [...DATA.by.filter((key) => keys.includes(key)), ...keys.filter((key) => !DATA.by.includes(key))];
  const chosen = choicesOf("heatmap", { rows: oneOf(keys, ordered[0]), columns: oneOf(keys, ordered[1]) });
  const shown = section("heatmap", "Two keys", h("p", { class: "note" }, `The mean of ${DATA.metric} over the runs in a cell. ${IS_SEARCH ? "" : "Hatched cells have no run. "}A cell without a result shows the states of its runs. A key with more than ${MAX_VALUES} numbers is divided into ${NUM_BINS} ranges.`));
  const pick = (name) => (value) => { chosen[name] = value; redraw(); };
  const redraw = figure(shown, {
    name: "heatmap", label: "Heat map of two keys", legend: false,
    controls: [choice("Rows", keys, chosen.rows, pick("rows")), choice("Columns", keys, chosen.columns, pick("columns"))],
    draw: (svg, width) => drawHeatmap(svg, width, chosen),
  });
}

function varyingKeys() {
  return DATA.keys.filter((key) => labelsOf(key).length > 1);
}

function labelsOf(key) {
  return [...new Set(DATA.runs.map((run) => run.labels[key]))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
}

function drawHeatmap(svg, width, { rows, columns }) {
  const down = binsOf(rows), across = binsOf(columns);
  const room = Math.min(widest([...down.map(({ title }) => title), rows]) + 20, width * 0.3);
  const size = { width: (width - room - 8) / across.length, height: Math.min(Math.max(36, 300 / down.length), 56) };
  const top = 44, bottom = top + down.length * size.height, height = bottom + 28;
  const visible = new Set(shownRuns().map(({ run }) => run));
  const cells = down.map((row) => across.map((column) => {
    const all = DATA.runs.filter((run) => row.has(run.labels[rows]) && column.has(run.labels[columns]));
    const runs = all.filter((run) => visible.has(run)), counted = runs.filter(isCounted);
    return { runs, counted, exists: all.some((run) => run.state !== "missing"), mean: counted.length ? counted.reduce((sum, run) => sum + run.final, 0) / counted.length : null };
  }));
  const [low, high] = extent(cells.flat().map(({ mean }) => mean));
  const digits = digitsOf(cells.flat().map(({ mean }) => mean)), share = (mean) => (IS_MAX ? (mean - low) / (high - low || 1) : (high - mean) / (high - low || 1));
  svg.append(s("pattern", { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { width: 8, height: 8, class: "back" }), s("line", { x1: 0, x2: 0, y1: 0, y2: 8, class: "hatch" })));
  svg.append(s("text", { x: room + (width - room) / 2, y: 14, class: "soft middle" }, columns), s("text", { x: room - 10, y: 32, class: "soft end" }, rows));
  across.forEach(({ title }, n) => svg.append(s("text", { x: room + (n + 0.5) * size.width, y: 34, class: "middle", "data-tip": title }, cut(title, size.width - 4))));
  cells.forEach((line, r) => {
    const y = top + r * size.height, middle = y + size.height / 2 + 4;
    svg.append(s("text", { x: room - 10, y: middle, class: "end", "data-tip": down[r].title }, cut(down[r].title, room - 12)));
    line.forEach((cell, n) => {
      const x = room + n * size.width, { mean, exists, counted, runs } = cell;
      const result = exists && !runs.length ? "filtered out" : `${mean === null ? "" : `mean ${number(mean, digits)}, `}${counted.length} of ${runs.length} runs have a result`;
      const tip = `${rows}=${down[r].title}  ${columns}=${across[n].title}\n${result}`;
      const colour = mean !== null ? rampColour(share(mean)) : exists || IS_SEARCH ? "var(--grid)" : "url(#hatch)";
      svg.append(s("rect", { x, y, width: size.width, height: size.height, rx: 4, class: "cell", style: `fill:${colour}`, "data-tip": tip }));
      const text = mean !== null ? number(mean, digits) : exists || IS_SEARCH ? [...new Set(runs.map((run) => run.state))].join(", ") : "no run";
      const ink = mean !== null ? { style: `fill:${inkOn(share(mean))};pointer-events:none` } : { style: "pointer-events:none" };
      if (size.width > 44) svg.append(s("text", { x: x + size.width / 2, y: middle, class: "middle", ...ink }, text));
    });
  });
  if (cells.flat().some(({ mean }) => mean !== null)) {
    svg.append(colourBar("heatmap-colours", { x: room + 60, y: bottom + 10, width: 120, height: 12 }, (at) => rampColour(share(low + at * (high - low)))));
    svg.append(s("text", { x: room + 54, y: bottom + 20, class: "soft end" }, number(low, digits)), s("text", { x: room + 186, y: bottom + 20, class: "soft" }, number(high, digits)));
  }
  const missing = cells.flat().filter(({ exists }) => !exists).length, hidden = cells.flat().filter(({ exists, runs }) => exists && !runs.length).length;
  return { height, description: `${rows} by ${columns}, ${cells.flat().length} cells, ${missing} without a run${hidden ? `, ${hidden} filtered out` : ""}` };
}

/** The rows or columns of a key: {title, has(label)} for each value, or for ranges of many numbers. */
function binsOf(key) {
  const labels = numericOrder(labelsOf(key)), values = labels.map(Number);
  if (labels.length <= MAX_VALUES || !values.every(Number.isFinite)) return labels.map((text) => ({ title: short(text), has: (label) => label === text }));
  const [low, high] = extent(values), isLog = low > 0 && high / low >= 100;
  const scale = (isLog ? logScale : linearScale)([low, high], [0, NUM_BINS]);
  const place = (label) => Math.min(Math.floor(scale(Number(label))), NUM_BINS - 1);
  const edge = (n) => number(scale.invert(n), 3);
  return [...Array(NUM_BINS).keys()].map((n) => ({ title: `${edge(n)} to ${edge(n + 1)}`, has: (label) => place(label) === n }));
}

/** Labels sorted by size if all are numbers. */
function numericOrder(labels) {
  return labels.every((text) => Number.isFinite(Number(text))) ? [...labels].sort((a, b) => a - b) : labels;
}
