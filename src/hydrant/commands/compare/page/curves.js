// The curves: means with intervals, or every run, over updates, samples, seconds or cost.

const UNITS = ["updates", "samples", "seconds", ...(DATA.price_per_hour ? ["cost"] : [])];

/** The x values of a curve in a unit; null where they are unknown. */
function xValues(unit, updates, samplesPerUpdate, clock) {
  if (unit === "updates") return updates;
  if (unit === "samples") return updates.map((u) => (samplesPerUpdate === null ? null : u * samplesPerUpdate));
  const seconds = Array.isArray(clock) ? clock : updates.map((u) => (clock ? interpolate(clock.u, clock.s, u) : null));
  return unit === "seconds" ? seconds : seconds.map((time) => (time === null ? null : (time / 3600) * DATA.price_per_hour));
}

/** The curves of a metric: {x, y, low, high, place (of the group), name}. */
function groupCurves(metric, unit) {
  return DATA.curves.groups[metric].flatMap((curve, place) => {
    if (!curve || STATE.hidden.has(place)) return [];
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
    return [{ x, y: curve.v, place: group, name }];
  });
}

function curvesSection() {
  const chosen = { metric: DATA.curves.metrics[0], unit: "updates", each: DATA.groups.every((group) => group.num === 0), log: false, whole: false, smoothing: 0 };
  const shown = section("curves", "Curves", h("p", { class: "note" },
    "The mean over the runs of a group with a result, and its 95 % interval at each point (Student's t); or every run. Seconds count training and compilation, but not evaluation and saving. The curves begin where they differ visibly, or at the start.",
    DATA.curves.is_thinned ? ` Curves with more than ${DATA.curves.limit} points are reduced to the minimum and maximum of each interval.` : ""));
  const pick = (name) => (value) => { chosen[name] = value; redraw(); };
  const smoothing = h("output", {}, "0");
  const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, "aria-label": "Smoothing", oninput: () => { smoothing.textContent = slider.value; pick("smoothing")(Number(slider.value)); } });
  const check = (name) => h("input", { type: "checkbox", onchange: (event) => pick(name)(event.target.checked) });
  const redraw = figure(shown, {
    name: "curves", label: "Curves",
    controls: [
      choice("Metric", DATA.curves.metrics, chosen.metric, pick("metric")), choice("Over", UNITS, chosen.unit, pick("unit")),
      choice("Show", [["groups", "means and intervals"], ["runs", "every run"]], chosen.each ? "runs" : "groups", (value) => pick("each")(value === "runs")),
      h("label", { title: "Time-weighted exponential moving average, as in W&B" }, "Smoothing", slider, smoothing), h("label", {}, check("log"), "Logarithmic"),
      h("label", {}, check("whole"), "From the start"),
    ],
    draw: (svg, width) => drawCurves(svg, width, chosen),
  });
}

function drawCurves(svg, width, { metric, unit, each, log, whole, smoothing }) {
  const raw = each ? runCurves(metric, unit) : groupCurves(metric, unit);
  const range = extent(raw.flatMap(({ x }) => [x[0], x[x.length - 1]]));
  const soften = (x, y) => smoothed(x, y, smoothing, range[1] - range[0]);
  const lines = raw.map((line) => ({ ...line, y: soften(line.x, line.y), low: line.low && soften(line.x, line.low), high: line.high && soften(line.x, line.high) }));
  const height = Math.min(Math.max(width * 0.42, 280), 460);
  svg.dataset.points = raw.reduce((sum, { y }) => sum + y.length, 0);
  if (!lines.length) return emptyFigure(svg, width, `No visible run has ${metric}`);
  const scaled = (value) => (!log ? value : value > 0 ? Math.log(value) : null);
  const from = whole ? range[0] : beginning(lines.map(({ x, y }) => ({ x, y: y.map(scaled) })));
  const shownValues = ({ x, y }) => y.filter((value, n) => x[n] >= from && scaled(value) !== null);
  const ys = domainOf(lines.flatMap((line) => [...shownValues(line), ...(isPoint(line) && line.low ? [line.low[0], line.high[0]] : [])]), log);
  const plot = frame(svg, width, height, { domain: from < range[1] ? [from, range[1]] : padded([from, from]), name: unit }, { domain: ys, log, name: metric });
  const clip = s("clipPath", { id: "curves-clip" }, s("rect", { x: plot.inner.left, y: plot.inner.top, width: plot.inner.right - plot.inner.left, height: plot.inner.bottom - plot.inner.top }));
  const layer = s("g", { "clip-path": "url(#curves-clip)" });
  svg.append(clip, layer);
  const bands = lines.filter((line) => line.low), opacity = Math.min(0.16, 0.4 / bands.length); // many of them must not hide each other
  for (const { x, low, high, place } of bands) layer.append(s("path", { d: bandOf(x, low, high, plot), class: `band ${fillOf(place)}`, opacity }));
  for (const line of lines.filter(isPoint)) layer.append(...pointOf(line, plot, metric));
  for (const { x, y, place } of lines.filter((line) => !isPoint(line))) layer.append(s("path", { d: pathOf(x.map((at, n) => [at, y[n]]), plot.xs, plot.ys), class: `line ${strokeOf(place)}${each ? " thin" : ""}` }));
  followCursor(svg, plot, lines, { metric, unit, height });
  return { height, description: `${metric} over ${unit}, ${lines.length} ${each ? "runs" : "groups"}${from > range[0] ? `, from ${number(from)}` : ""}` };
}

/** Whether a curve has one point, as those of a test do. Without a line, it is drawn as a point. */
function isPoint({ x, y }) {
  return y.length === 1 && y[0] !== null && x[0] !== null;
}

/** A point with its interval. The points of several groups stand side by side. */
function pointOf({ x, y, low, high, place, name }, { xs, ys }, metric) {
  const at = xs(x[0]) + (place - (DATA.groups.length - 1) / 2) * Math.min(12, 240 / DATA.groups.length);
  const tip = `${name}\n${metric} ${number(y[0])}${low ? `\n${interval(low[0], high[0])}` : ""}`;
  const whisker = low && low[0] !== null ? [s("line", { x1: at, x2: at, y1: ys(low[0]), y2: ys(high[0]), class: `whisker ${strokeOf(place)}` })] : [];
  return [...whisker, s("circle", { cx: at, cy: ys(y[0]), r: 5, class: `dot ${fillOf(place)}`, "data-tip": tip })];
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

const MAX_TIP_LINES = 14;

/** Shows a line at the pointer and the values there, the best first. */
function followCursor(svg, { xs, inner }, lines, { metric, unit }) {
  const cursor = s("line", { y1: inner.top, y2: inner.bottom, class: "cursor", visibility: "hidden" });
  svg.append(cursor);
  svg.onmousemove = (event) => {
    const box = svg.getBoundingClientRect(), place = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    if (place < inner.left || place > inner.right) return svg.onmouseleave();
    const at = xs.invert(place);
    const values = lines.map((line) => ({ name: line.name, value: interpolate(line.x, line.y, at) })).filter(({ value }) => value !== null);
    values.sort((a, b) => (DATA.curves.modes[metric] === "max" ? b.value - a.value : a.value - b.value));
    cursor.setAttribute("x1", place);
    cursor.setAttribute("x2", place);
    cursor.setAttribute("visibility", "visible");
    const rows = values.slice(0, MAX_TIP_LINES).map(({ name, value }) => `${number(value).padEnd(9)} ${name}`);
    showTip([`${metric}, ${unit} ${number(at, 3)}`, ...rows, ...(values.length > MAX_TIP_LINES ? [`and ${values.length - MAX_TIP_LINES} more`] : [])].join("\n"), event);
  };
  svg.onmouseleave = () => cursor.setAttribute("visibility", "hidden");
}
