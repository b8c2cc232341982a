// The curves: means with intervals, or every run, over updates, samples or seconds.

/** The x values of a curve in a unit; null where they are unknown. */
function xValues(unit, updates, samplesPerUpdate, clock) {
  if (unit === "updates") return updates;
  if (unit === "samples") return updates.map((u) => (samplesPerUpdate === null ? null : u * samplesPerUpdate));
  return Array.isArray(clock) ? clock : updates.map((u) => (clock ? interpolate(clock.u, clock.s, u) : null));
}

/** The curves of a metric: {x, y, low, high, place (of the group), name}. */
function groupCurves(metric, unit) {
  return DATA.curves.groups[metric].flatMap((curve, place) => {
    if (!curve || isHidden(place)) return [];
    const x = xValues(unit, curve.u, curve.samples_per_update, curve.s);
    return [{ x, y: curve.v, low: curve.low, high: curve.high, place, name: short(DATA.groups[place].name) }];
  });
}

function runCurves(metric, unit) {
  return shownRuns().flatMap(({ run, place, group }) => {
    const curve = DATA.curves.runs[metric][place];
    if (!curve) return [];
    const x = xValues(unit, curve.u, DATA.curves.samples_per_update[place], DATA.curves.clocks[place]);
    const name = joined(run.labels) || run.name;
    return [{ x, y: curve.v, place: group, name, run: run.name }];
  });
}

function curvesSection() {
  const { metrics } = DATA.curves, areAlone = DATA.groups.every((group) => group.num === 0), isOneRun = DATA.runs.length === 1;
  const chosen = choicesOf("curves", {
    metric: oneOf(metrics), more: [], unit: oneOf(UNITS), show: oneOf(["groups", "runs"], areAlone ? "runs" : "groups"),
    log: false, whole: false, smoothing: 0, x: [], heights: {},
  });
  const shown = section("curves", "Curves", h("p", { class: "note" },
    isOneRun ? "" : "The mean over the seeds of a group with a result, and its 95 % interval at each point (Student's t); or every run. ",
    "Seconds count training and compilation, but not evaluation and saving. The curves begin where they differ visibly, or at the start. Drag over a part to enlarge it; a double click shows all again.",
    DATA.curves.is_thinned ? ` Curves with more than ${DATA.curves.limit} points are reduced to the minimum and maximum of each interval.` : ""));
  const pick = (name) => (value) => { chosen[name] = value; redraw(); };
  const smoothing = h("output", {}, String(chosen.smoothing));
  const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: chosen.smoothing, "aria-label": "Smoothing", oninput: () => { smoothing.textContent = slider.value; pick("smoothing")(Number(slider.value)); } });
  const check = (name) => h("input", { type: "checkbox", checked: chosen[name], onchange: (event) => pick(name)(event.target.checked) });
  const all = h("button", { type: "button", hidden: true, onclick: () => zoom(null) }, "Show all");
  const zoom = (part) => {
    if (part && ![...(part.x ? [part.x] : []), ...Object.values(part.heights)].every(isRange)) return;
    if (part?.x || !part) chosen.x = part ? part.x : [];
    chosen.heights = part ? { ...chosen.heights, ...part.heights } : {};
    redraw();
  };
  const redraw = figure(shown, {
    name: "curves", label: "Curves",
    keys: "Left and right move the cursor, plus and minus zoom, Escape shows all.",
    controls: [
      choice("Metric", metrics, chosen.metric, pick("metric")), moreMetrics(metrics, chosen, pick("more")),
      choice("Over", UNITS, chosen.unit, (value) => { chosen.x = []; pick("unit")(value); }),
      ...(isOneRun ? [] : [choice("Show", [["groups", "means and intervals"], ["runs", "every run"]], chosen.show, pick("show"))]),
      h("label", { title: "Time-weighted exponential moving average, as in W&B" }, "Smoothing", slider, smoothing), h("label", {}, check("log"), "Logarithmic"),
      h("label", {}, check("whole"), "From the start"), all,
    ],
    draw: (svg, width) => {
      all.hidden = !isZoomed(chosen);
      return drawCurves(svg, width, chosen, zoom);
    },
  });
}

/** A list of metrics that are shown too. */
function moreMetrics(metrics, chosen, pick) {
  const name = h("summary", {});
  const show = () => { name.textContent = chosen.more.length ? `and ${chosen.more.length} more` : "and more"; };
  const box = (metric) => h("label", {}, h("input", {
    type: "checkbox", checked: chosen.more.includes(metric),
    onchange: (event) => { pick(event.target.checked ? [...chosen.more, metric] : chosen.more.filter((other) => other !== metric)); show(); },
  }), metric);
  show();
  return metrics.length > 1 ? h("details", { class: "menu" }, name, h("div", { role: "group", "aria-label": "More metrics" }, metrics.map(box))) : null;
}

function isZoomed({ x, heights }) {
  return isRange(x) || Object.values(heights).some(isRange);
}

/** Whether a value is a range that is wide enough to draw: its ends differ by more than rounding. */
function isRange(value) {
  return Array.isArray(value) && value.length === 2 && value.every(Number.isFinite) && Number.isFinite(value[1] - value[0]) && value[1] - value[0] > 1e-6 * Math.max(...value.map(Math.abs));
}

function drawCurves(svg, width, chosen, zoom) {
  const { metric, unit, show, log, whole, x: zoomed, heights } = chosen, each = show === "runs";
  const metrics = [metric, ...chosen.more.filter((other) => other !== metric && DATA.curves.metrics.includes(other))];
  const columns = metrics.length > 1 && width >= 760 ? 2 : 1, wide = width / columns;
  const tall = metrics.length === 1 ? Math.min(Math.max(width * 0.42, 280), 460) : Math.min(Math.max(wide * 0.5, 220), 340);
  const raw = metrics.map((name) => (each ? runCurves : groupCurves)(name, unit));
  const full = extent(raw.flat().flatMap(({ x }) => [x[0], x[x.length - 1]]));
  const smoothing = Math.min(Math.max(chosen.smoothing, 0), 0.99), soften = (x, y) => smoothed(x, y, smoothing, full[1] - full[0]);
  const curves = raw.map((lines) => lines.map((line) => ({ ...line, y: soften(line.x, line.y), low: line.low && soften(line.x, line.low), high: line.high && soften(line.x, line.high) })));
  svg.dataset.points = raw.flat().reduce((sum, { y }) => sum + y.length, 0);
  if (!raw.flat().length) return emptyFigure(svg, width, `No visible run has ${metrics.join(" or ")}`);
  const scaled = (value) => (!log ? value : value > 0 ? Math.log(value) : null);
  const first = curves.find((lines) => lines.length).map(({ x, y }) => ({ x, y: y.map(scaled) }));
  const from = whole ? full[0] : beginning(first), asked = isRange(zoomed) ? [Math.max(zoomed[0], full[0]), Math.min(zoomed[1], full[1])] : [];
  const isPart = isRange(asked), range = isPart ? asked : [from, full[1]];
  const panels = metrics.map((name, n) => {
    const box = { x: (n % columns) * wide, y: Math.floor(n / columns) * tall, width: wide, height: tall };
    return drawPanel(svg, box, { metric: name, unit, lines: curves[n], range, heights: isRange(heights[name]) ? heights[name] : null, log, each, id: `curves-clip-${n}` });
  });
  const part = isPart ? `, ${countText(range[0])} to ${countText(range[1])}` : from > full[0] ? `, from ${countText(from)}` : "";
  return {
    height: Math.ceil(metrics.length / columns) * tall,
    description: `${metrics.join(", ")} over ${unit}, ${curves[0].length} ${each || DATA.runs.length === 1 ? "run" : "group"}${curves[0].length === 1 ? "" : "s"}${part}`,
    ...panelReactions(svg, panels, { unit, each, zoom, isZoomed: isZoomed(chosen) }),
  };
}

/** Whether a curve has one point, as those of a test do. Without a line, it is drawn as a point. */
function isPoint({ x, y }) {
  return y.length === 1 && y[0] !== null && x[0] !== null;
}

/** A point with its interval. The points of several groups stand side by side. */
function pointOf({ x, y, low, high, place, name, run }, { xs, ys }, metric, digits) {
  const at = xs(x[0]) + (place - (DATA.groups.length - 1) / 2) * Math.min(12, 240 / DATA.groups.length);
  const tip = `${name}\n${metric} ${number(y[0], digits)}${low ? `\n${interval(low[0], high[0], digits)}` : ""}`;
  const whisker = low && low[0] !== null ? [s("line", { x1: at, x2: at, y1: ys(low[0]), y2: ys(high[0]), class: `whisker ${strokeOf(place)}` })] : [];
  return [...whisker, s("circle", { cx: at, cy: ys(y[0]), r: 5, class: `dot ${fillOf(place)}`, "data-tip": tip, "data-run": run })];
}

/** The area between two curves, with gaps where there is no interval. */
function bandOf(x, low, high, { xs, ys }) {
  const pieces = [[]];
  x.forEach((at, n) => {
    if (at === null || low[n] === null || high[n] === null || (ys.isLog && high[n] <= 0)) pieces.push([]);
    else pieces[pieces.length - 1].push(n);
  });
  return pieces.filter((piece) => piece.length > 1).map((piece) => {
    const upper = piece.map((n) => `${xs(x[n]).toFixed(1)} ${ys(high[n]).toFixed(1)}`);
    const floor = (value) => (ys.isLog ? Math.max(value, 1e-30) : value); // far below the frame
    const lower = piece.reverse().map((n) => `${xs(x[n]).toFixed(1)} ${ys(floor(low[n])).toFixed(1)}`);
    return `M${upper.join("L")}L${lower.join("L")}Z`;
  }).join("");
}
