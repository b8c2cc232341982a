// Elements and formatted numbers.

function isMissing(value) {
  return value === null || value === undefined;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (isMissing(value) || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (!isMissing(child)) element.append(child);
  }
  return element;
}

/** An HTML element: h("td", {class: "number"}, "0.97"). */
function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function s(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** A number with four significant digits, or `digits`; "–" for a missing one. */
function number(value, digits = 4) {
  if (isMissing(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(Number.isInteger(value) ? value : Number(value.toPrecision(digits)));
  if (size < 1e-4 || size >= Math.max(1e6, 10 ** digits)) return value.toExponential(digits - 1).replace(/\.?0*e\+?/, "e");
  if (size >= 1e4 || Number.isInteger(value)) return value.toLocaleString("en-US", { maximumFractionDigits: Math.max(digits - 1 - Math.floor(Math.log10(size)), 0) });
  return String(Number(value.toPrecision(digits)));
}

/** A number of updates or samples, with all its digits. */
function countText(value) {
  return number(value, Number.isInteger(value) ? 15 : 4);
}

/** How many significant digits show a difference between values of a size: at least four. */
function digitsFor(size, difference) {
  const digits = 1 + Math.ceil(Math.log10(size) - Math.log10(difference) - 1e-9);
  return Number.isFinite(digits) ? Math.min(Math.max(digits, 4), 15) : 4;
}

/** The ticks of an axis with their texts, which differ. */
function labelled(ticks) {
  const step = Math.min(...ticks.slice(1).map((tick, n) => tick - ticks[n]));
  const digits = ticks.length > 1 ? digitsFor(Math.max(...ticks.map(Math.abs)), step) : 12;
  return ticks.map((tick) => [tick, number(tick, digits)]);
}

/** How many significant digits tell values apart that are shown together. The half that lies closest together decides. */
function digitsOf(values) {
  const known = values.filter(Number.isFinite).sort((a, b) => a - b);
  const distinct = known.filter((value, n) => n === 0 || value - known[n - 1] > 1e-8 * Math.max(Math.abs(value), Math.abs(known[n - 1])));
  const ranges = distinct.slice(Math.floor(distinct.length / 2)).map((high, n) => [distinct[n], high]);
  const [low, high] = ranges.sort((a, b) => a[1] - a[0] - (b[1] - b[0]))[0] || [0, 0];
  return digitsFor(Math.max(Math.abs(low), Math.abs(high)), high - low);
}

/** A name with long numbers rounded to four digits, such as optimizer.lr=0.0046105216840724075. */
function short(text) {
  return text.replace(/\d*\.\d{5,}(e[+-]?\d+)?/gi, (long) => String(Number(Number(long).toPrecision(4))));
}

/** Labels as one text: key=value key=value. */
function joined(labels, separator = " ") {
  return Object.entries(labels).map(([key, value]) => `${key}=${value}`).join(separator);
}

function interval(low, high, digits = 4) {
  return isMissing(low) ? "–" : `${number(low, digits)} to ${number(high, digits)}`;
}

let numChoices = 0;

/** A labelled <select>; `options` are texts or [value, text]. */
function choice(text, options, chosen, onchange) {
  const id = `choice-${numChoices++}-${text.toLowerCase()}`;
  const select = h("select", { id, onchange: () => onchange(select.value) });
  for (const option of options) {
    const [value, shown] = Array.isArray(option) ? option : [option, option];
    select.append(h("option", { value, selected: value === chosen }, shown));
  }
  return h("span", { class: "choice" }, h("label", { for: id }, text), select);
}

const RULER = document.createElement("canvas").getContext("2d");
RULER.font = "650 12px system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"; // as in figure.css

/** The width of a text in a figure. */
function textWidth(text) {
  return RULER.measureText(text).width;
}

/** The width of the widest text. */
function widest(texts) {
  return Math.max(0, ...texts.map(textWidth));
}

/** A text cut to a width. */
function cut(text, width) {
  if (textWidth(text) <= width) return text;
  let length = text.length;
  while (length > 1 && textWidth(`${text.slice(0, length)}…`) > width) length--;
  return `${text.slice(0, length)}…`;
}

/** A duration in words: 40 s, 3 min, 1 h 20 min, 2 days 3 h. */
function duration(seconds) {
  if (isMissing(seconds)) return "–";
  if (seconds < 60) return `${Math.ceil(seconds)} s`;
  const minutes = Math.round(seconds / 60), hours = Math.floor(minutes / 60);
  if (minutes < 60) return `${minutes} min`;
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

/** Adds a section with a heading to the page, and a link to it. */
function section(id, title, ...children) {
  document.getElementById("nav").append(h("a", { href: `#${id}`, onclick: (event) => goTo(event, id) }, title));
  const element = h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...children);
  document.getElementById("main").append(element);
  return element;
}

/** Shows a part of the page. The address keeps the choices of the reader, so it cannot name the part too. */
function goTo(event, id) {
  event.preventDefault();
  const target = document.getElementById(id);
  target.scrollIntoView();
  target.setAttribute("tabindex", "-1");
  target.focus({ preventScroll: true });
}
