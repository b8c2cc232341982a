// Brushes: ranges on the axes of the parallel coordinates. Only runs within all of them are shown.

/** The brushes by their axes: [low, high] for numbers, else a list of labels. An old or wrong address may have others. */
function brushes() {
  const isBrush = (value) => Array.isArray(value) && value.length && (value.every((one) => typeof one === "string") || (value.length === 2 && value.every(Number.isFinite)));
  return Object.fromEntries(Object.entries(CHOSEN.brushes).filter(([, value]) => isBrush(value)));
}

/** Whether a run is within all brushes. */
function isBrushed(run) {
  return Object.entries(brushes()).every(([key, brush]) => {
    if (key !== DATA.metric && !DATA.keys.includes(key)) return true;
    const value = key === DATA.metric ? run.final : run.labels[key];
    if (typeof brush[0] !== "number") return brush.includes(value);
    return value !== null && value !== "-" && Number(value) >= brush[0] && Number(value) <= brush[1];
  });
}

function setBrush(key, brush) {
  const { [key]: _, ...others } = brushes();
  CHOSEN.brushes = brush ? { ...others, [key]: brush } : others;
  changeFilter();
}

/** Entries that name the brushes; a click removes one. */
function brushChips() {
  return Object.entries(brushes()).map(([key, brush]) => {
    const text = typeof brush[0] === "number" ? interval(...brush, digitsOf(brush)) : brush.map(short).join(", ");
    return h("li", {}, h("button", { type: "button", "aria-label": `Remove the range of ${key}: ${text}`, onclick: () => setBrush(key, null) }, `${key} ${text}  ×`));
  });
}

/** The brush of a part of an axis: a range of numbers, or the labels in it; null if nothing is in it. */
function brushOf(axis, from, to) {
  const [top, bottom] = [Math.min(from, to), Math.max(from, to)];
  if (axis.invert) return [axis.invert(bottom), axis.invert(top)].sort((a, b) => a - b);
  const labels = axis.ticks.filter(([, y]) => y >= top && y <= bottom).map(([text]) => text);
  return labels.length ? labels : null;
}

const HALF_STEP = 9;

/** The part of an axis that its brush covers, in the drawing; null without a brush. */
function brushedPart(axis) {
  const brush = brushes()[axis.title];
  if (!brush) return null;
  const places = brush.map((value) => axis.at(String(value))).filter(Number.isFinite), room = axis.invert ? 0 : HALF_STEP;
  return places.length ? [Math.min(...places) - room, Math.max(...places) + room] : null;
}

/** What the axes do with the pointer: a drag sets a brush, a click on an axis removes it. */
function brushReactions(svg, axes, range) {
  let drag = null;
  const within = ({ x, y }) => y >= range[1] - 12 && y <= range[0] + 12 && axes.find(({ left, right }) => x >= left - 6 && x <= right + 6);
  const mark = s("rect", { class: "selection", visibility: "hidden" });
  svg.append(mark);
  const clamp = (y) => Math.min(Math.max(y, range[1]), range[0]);
  return {
    move: (at) => {
      svg.classList.toggle("brushable", Boolean(drag || within(at)));
      if (!drag) return false;
      const ys = [clamp(drag.from), clamp(at.y)].sort((a, b) => a - b);
      for (const [name, value] of Object.entries({ x: drag.axis.left - 4, width: drag.axis.right - drag.axis.left + 8, y: ys[0], height: ys[1] - ys[0], visibility: "visible" })) mark.setAttribute(name, value);
      return true;
    },
    press: (at) => {
      const axis = within(at);
      if (axis) drag = { axis, from: at.y };
      return Boolean(axis);
    },
    release: (at) => {
      const done = drag;
      drag = null;
      if (!done) return;
      mark.setAttribute("visibility", "hidden");
      const isClick = Math.abs(at.y - done.from) < DRAGGED;
      setBrush(done.axis.title, isClick ? null : brushOf(done.axis, clamp(done.from), clamp(at.y)));
    },
    double: () => { CHOSEN.brushes = {}; changeFilter(); },
  };
}
