// The frame of a plot: its axes with ticks and names.

const MARGIN = { left: 72, right: 16, top: 12, bottom: 44 };

/** Draws the axes and returns the scales of a plot of this size. `x` and `y`: {domain, log, name}. */
function frame(svg, width, height, x, y) {
  const scale = (axis, range) => (axis.log && axis.domain[0] > 0 ? logScale : linearScale)(axis.domain, range);
  const levels = labelled(scale(y, [0, 1]).ticks(Math.max(Math.floor(height / 60), 3)));
  const inner = { left: Math.max(MARGIN.left, widest(levels.map(([, text]) => text)) + 30), right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const xs = scale(x, [inner.left, inner.right]), ys = scale(y, [inner.bottom, inner.top]);
  for (const [tick, text] of levels) {
    svg.append(s("line", { x1: inner.left, x2: inner.right, y1: ys(tick), y2: ys(tick), class: "grid" }));
    svg.append(s("text", { x: inner.left - 8, y: ys(tick) + 4, class: "soft end" }, text));
  }
  for (const [tick, text] of labelled(xs.ticks(Math.max(Math.floor(width / 110), 3)))) {
    svg.append(s("line", { x1: xs(tick), x2: xs(tick), y1: inner.bottom, y2: inner.bottom + 5, class: "axis" }));
    svg.append(s("text", { x: xs(tick), y: inner.bottom + 18, class: "soft middle" }, text));
  }
  svg.append(s("line", { x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom, class: "axis" }));
  svg.append(s("text", { x: (inner.left + inner.right) / 2, y: height - 8, class: "soft middle" }, x.name));
  const middle = (inner.top + inner.bottom) / 2;
  svg.append(s("text", { x: 12, y: middle, class: "soft middle", transform: `rotate(-90 12 ${middle})` }, y.name));
  return { xs, ys, inner };
}

/** A bar of colours from the bottom to the top, or from left to right if it is wide. `colourAt`: of a share of its length. */
function colourBar(id, box, colourAt) {
  const along = box.width > box.height ? { x1: 0, x2: 1, y1: 0, y2: 0 } : { x1: 0, x2: 0, y1: 1, y2: 0 };
  const stops = [...Array(9).keys()].map((n) => s("stop", { offset: n / 8, "stop-color": colourAt(n / 8) }));
  return s("g", { class: "colours" }, s("linearGradient", { id, ...along }, stops), s("rect", { ...box, rx: 2, style: `fill:url(#${id})` }));
}

/** The path through points, with gaps where a value is missing or is not positive on a logarithmic scale. */
function pathOf(points, xs, ys) {
  let text = "", pen = "M";
  for (const [x, y] of points) {
    if (x === null || y === null || (ys.isLog && y <= 0) || (xs.isLog && x <= 0)) {
      pen = "M";
      continue;
    }
    text += `${pen}${xs(x).toFixed(1)} ${ys(y).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

/** A domain for one axis. A logarithmic one starts at the smallest positive value. */
function domainOf(values, log) {
  if (!log) return padded(extent(values));
  const [low, high] = extent(values.filter((value) => value > 0));
  return [low / 1.1, high * 1.1];
}

function emptyFigure(svg, width, text) {
  svg.append(s("text", { x: width / 2, y: 40, class: "soft middle" }, text));
  return { height: 80, description: text };
}

const MAX_INSIDE = 12;

/** A legend inside of a plot, at the right: at the bottom, or at the top. */
function legendInside(svg, { inner }, names, isBottom) {
  const shown = names.slice(0, MAX_INSIDE), room = (inner.right - inner.left) / 2;
  const left = inner.right - 36 - Math.min(widest(shown.map(short)), room);
  shown.forEach((name, place) => {
    const y = isBottom ? inner.bottom - 14 - 17 * (shown.length - 1 - place) : inner.top + 14 + 17 * place;
    svg.append(s("line", { x1: left, x2: left + 24, y1: y - 4, y2: y - 4, class: `line ${strokeOf(place)}` }), s("text", { x: left + 30, y, class: "halo" }, cut(short(name), room)));
  });
}
