// Making elements, and writing numbers.

const DATA = JSON.parse(document.getElementById("data").textContent);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
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

/** A number as a person reads it: four significant digits, "–" where there is none. */
function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  if (size >= 1e4 || Number.isInteger(value)) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

function pValue(value) {
  if (value === null || value === undefined) return "–";
  return value < 0.001 ? "< 0.001" : value.toFixed(3);
}

function interval(low, high) {
  return low === null || low === undefined ? "–" : `${number(low)} to ${number(high)}`;
}

/** A labelled <select>; `options` are texts or [value, text]. */
function choice(text, options, chosen, onchange) {
  const select = h("select", { onchange: () => onchange(select.value) });
  for (const option of options) {
    const [value, shown] = Array.isArray(option) ? option : [option, option];
    select.append(h("option", { value, selected: value === chosen }, shown));
  }
  return h("label", {}, text, select);
}

/** A section of the page with its heading, and a link to it. */
function section(id, title, ...children) {
  document.getElementById("nav").append(h("a", { href: `#${id}` }, title));
  const made = h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), ...children);
  document.getElementById("main").append(made);
  return made;
}
