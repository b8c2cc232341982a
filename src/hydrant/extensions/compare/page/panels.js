// The panels of the curves: one for each metric, with a common horizontal axis, a common cursor and zoom.

const MAX_TIP_LINES = 14, MAX_DOTS = 80, MAX_ALL_DOTS = 1500, NEAR = 24, DRAGGED = 6, FLAT = 20;

/** Draws the lines of a metric into a box. `range`: from the start to the end of the horizontal axis. */
function drawPanel(svg, box, { metric, unit, lines, range, heights, log, each, id }) {
  const scaled = (value) => (!log ? value : value > 0 ? Math.log(value) : null);
  const shownValues = ({ x, y }) => y.filter((value, n) => x[n] >= range[0] && x[n] <= range[1] && scaled(value) !== null);
  const values = lines.flatMap((line) => [...shownValues(line), ...(isPoint(line) && line.low ? [line.low[0], line.high[0]] : [])]);
  const panel = s("g", { transform: `translate(${box.x} ${box.y})` });
  svg.append(panel);
  if (!lines.length) {
    emptyFigure(panel, box.width, `No visible run has ${metric}`);
    return { box, metric, lines };
  }
  const isLog = log && (!heights || heights[0] > 0), ys = { domain: heights || domainOf(values, log), log: isLog, name: metric };
  const plot = frame(panel, box.width, box.height, { domain: range[0] < range[1] ? range : padded([range[0], range[0]]), name: unit }, ys);
  const { left, right, top, bottom } = plot.inner;
  const layer = s("g", { "clip-path": `url(#${id})` });
  panel.append(s("clipPath", { id }, s("rect", { x: left, y: top, width: right - left, height: bottom - top })), layer);
  const bands = lines.filter((line) => line.low), opacity = Math.min(0.16, 0.4 / bands.length); // many of them must not hide each other
  for (const { x, low, high, place } of bands) layer.append(s("path", { d: bandOf(x, low, high, plot), class: `band ${fillOf(place)}`, opacity }));
  const points = lines.filter(isPoint), digits = digitsOf(points.map(({ y }) => y[0]));
  for (const line of points) layer.append(...pointOf(line, plot, metric, digits));
  const paths = lines.map((line) => isPoint(line) ? null : s("path", { d: pathOf(line.x.map((at, n) => [at, line.y[n]]), plot.xs, plot.ys), class: `line ${strokeOf(line.place)}${each ? " thin" : ""}` }));
  layer.append(...paths.filter(Boolean), ...dotsOf(lines, range, plot));
  const cursor = s("line", { y1: top, y2: bottom, class: "cursor", visibility: "hidden" });
  const selection = s("rect", { class: "selection", visibility: "hidden" });
  panel.append(cursor, selection);
  return { box, metric, lines, plot, range, paths, cursor, selection, stops: null };
}

/** The points of the lines that have few of them there, such as those of evaluations. Each line is one path. */
function dotsOf(lines, range, { xs, ys }) {
  const all = lines.filter((line) => !isPoint(line)).map((line) => {
    const places = [...line.x.keys()].filter((n) => line.x[n] >= range[0] && line.x[n] <= range[1] && line.y[n] !== null && !(ys.isLog && line.y[n] <= 0));
    return { line, places };
  }).filter(({ places }) => places.length <= MAX_DOTS);
  if (all.reduce((sum, { places }) => sum + places.length, 0) > MAX_ALL_DOTS) return [];
  return all.map(({ line, places }) => s("path", { d: places.map((n) => `M${xs(line.x[n]).toFixed(1)} ${ys(line.y[n]).toFixed(1)}h0`).join(""), class: `points ${strokeOf(line.place)}` }));
}

/** The horizontal places at which a panel has points, in their order. */
function stopsOf(panel) {
  panel.stops ||= [...new Set(panel.lines.flatMap(({ x, y }) => x.filter((at, n) => at !== null && y[n] !== null)))]
    .filter((at) => at >= panel.range[0] && at <= panel.range[1]).sort((a, b) => a - b);
  return panel.stops;
}

function nearestStop(stops, at) {
  let low = 0, high = stops.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (stops[middle] <= at) low = middle; else high = middle;
  }
  return Math.abs(stops[high] - at) < Math.abs(stops[low] - at) ? high : low;
}

/** What panels do with the pointer and the keys. `zoom({x, heights})`: shows a part; `zoom(null)`: shows all. */
function panelReactions(svg, panels, { unit, each, zoom, isZoomed }) {
  const usable = panels.filter(({ plot }) => plot);
  let drag = null, hasDragged = false, place = null, near = null, timer = 0;
  const inside = ({ x, y }) => usable.find(({ box, plot: { inner } }) => x - box.x >= inner.left && x - box.x <= inner.right && y >= box.y && y <= box.y + box.height);

  const hide = () => {
    for (const { cursor } of usable) cursor.setAttribute("visibility", "hidden");
    near?.path.classList.remove("near");
    near = null;
  };

  /** Shows the values at a place where there are points, the best first, and marks the line at a height. */
  const show = (panel, number_, height) => {
    const at = stopsOf(panel)[number_];
    hide();
    for (const { cursor, plot } of usable) {
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, plot.xs(at));
      if (at >= plot.xs.invert(plot.inner.left) - 1e-9) cursor.setAttribute("visibility", "visible");
    }
    const values = panel.lines.map((line, n) => ({ line, path: panel.paths[n], value: interpolate(line.x, line.y, at) })).filter(({ value }) => value !== null);
    values.sort((a, b) => (DATA.curves.modes[panel.metric] === "max" ? b.value - a.value : a.value - b.value));
    const distance = ({ value }) => Math.abs(panel.plot.ys(value) - height);
    const closest = height === null || !values.length ? null : values.reduce((one, other) => (distance(other) < distance(one) ? other : one));
    if (closest?.path && distance(closest) <= NEAR) near = closest;
    near?.path.classList.add("near");
    const rows = values.slice(0, MAX_TIP_LINES), more = values.length - rows.length;
    if (near && !rows.includes(near)) rows.push(near);
    const digits = digitsOf(values.map(({ value }) => value));
    return [`${panel.metric}, ${unit} ${countText(at)}`, ...rows.map((row) => `${number(row.value, digits).padEnd(9)} ${row.line.name}${row === near ? "  ◂" : ""}`), ...(more > 0 ? [`and ${more} more`] : [])].join("\n");
  };

  const part = ({ panel, from, to }) => {
    const { plot, box } = panel, clamp = (value, low, high) => Math.min(Math.max(value, low), high), { left, right, top, bottom } = plot.inner;
    const xs = [from.x, to.x].map((x) => clamp(x - box.x, left, right)).sort((a, b) => a - b);
    const ys = [from.y, to.y].map((y) => clamp(y - box.y, top, bottom)).sort((a, b) => a - b);
    const isWide = xs[1] - xs[0] > FLAT, isTall = ys[1] - ys[0] > FLAT || !isWide;
    return { xs: isWide ? xs : [left, right], ys: isTall ? ys : [top, bottom], isWide, isTall };
  };

  return {
    move: (at, event) => {
      if (drag) {
        drag.to = at;
        hasDragged ||= Math.hypot(at.x - drag.from.x, at.y - drag.from.y) > DRAGGED;
        const { xs, ys } = part(drag), box = { x: xs[0], y: ys[0], width: xs[1] - xs[0], height: ys[1] - ys[0], visibility: hasDragged ? "visible" : "hidden" };
        for (const [name, value] of Object.entries(box)) drag.panel.selection.setAttribute(name, value);
        showTip("");
        return true;
      }
      const panel = inside(at);
      if (!panel || !stopsOf(panel).length) { hide(); return false; }
      place = nearestStop(stopsOf(panel), panel.plot.xs.invert(at.x - panel.box.x));
      showTip(show(panel, place, at.y - panel.box.y), event);
      return true;
    },
    leave: hide,
    press: (at) => {
      const panel = inside(at);
      hasDragged = false;
      if (panel) drag = { panel, from: at, to: at };
      return Boolean(panel);
    },
    release: () => {
      const done = drag;
      drag = null;
      done?.panel.selection.setAttribute("visibility", "hidden");
      if (!done || !hasDragged) return;
      const { xs, ys, isWide, isTall } = part(done), { plot, metric } = done.panel;
      zoom({ x: isWide ? xs.map(plot.xs.invert) : null, heights: isTall ? { [metric]: [plot.ys.invert(ys[1]), plot.ys.invert(ys[0])] } : {} });
    },
    double: () => { clearTimeout(timer); zoom(null); },
    run: () => {
      if (hasDragged || !near || !each) return null;
      if (!isZoomed) return near.line.run;
      const { run } = near.line; // a double click shows all
      clearTimeout(timer);
      timer = setTimeout(() => openRun(run), 300);
      return null;
    },
    key: (key) => {
      const panel = usable[0], stops = panel ? stopsOf(panel) : [];
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[key];
      if (key === "Escape" && drag) {
        drag.panel.selection.setAttribute("visibility", "hidden");
        drag = null;
        return true;
      }
      if (key === "Escape" && isZoomed) { zoom(null); return true; }
      if (!stops.length) return false;
      if (step !== undefined) {
        place = Math.min(Math.max(place === null ? (step > 0 ? 0 : stops.length - 1) : place + step, 0), stops.length - 1);
        const text = show(panel, place, null), box = svg.getBoundingClientRect();
        showTip(text, { clientX: box.left + panel.box.x + panel.plot.xs(stops[place]), clientY: box.top + panel.box.y + 20 }, true);
        return true;
      }
      if (!["+", "=", "-"].includes(key)) return false;
      const [low, high] = panel.range, middle = place === null ? (low + high) / 2 : stops[place], half = (high - low) * (key === "-" ? 1 : 0.25);
      const [first, last] = [stops[0], stops[stops.length - 1]], isAll = middle - half <= first && middle + half >= last;
      zoom(isAll ? null : { x: [middle - half, middle + half], heights: {} });
      return true;
    },
  };
}
