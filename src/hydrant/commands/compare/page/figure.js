// A figure: its controls, its drawing, the legend of the groups, the tips of its marks, and its files.

const TIP = document.getElementById("tip");

function showTip(text, event) {
  TIP.hidden = !text;
  if (!text) return;
  TIP.textContent = text;
  const box = TIP.getBoundingClientRect(), left = event.clientX + 14, top = event.clientY + 14;
  TIP.style.left = `${Math.max(4, left + box.width > innerWidth - 8 ? event.clientX - box.width - 14 : left)}px`;
  TIP.style.top = `${Math.max(4, top + box.height > innerHeight - 8 ? event.clientY - box.height - 14 : top)}px`;
}

/**
 * Adds a figure to a section and returns the function that redraws it. `draw(svg, width)` fills an empty <svg> and
 * returns its height and a description for screen readers. It is called when the width or the reader's choices change.
 */
function figure(parent, { name, label, controls = [], legend = true, draw }) {
  const svg = s("svg", { role: "img", "aria-label": label, focusable: "false" });
  const entries = legend ? h("ul", { class: "legend", "aria-label": `Groups in ${label}` }) : null;
  const save = (kind) => h("button", { type: "button", "aria-label": `Save ${label} as ${kind}`, onclick: () => saveFigure(svg, name, kind) }, kind);
  const bar = controls.length && h("div", { class: "controls" }, controls);
  const holder = h("figure", { "data-figure": name }, bar || null, svg, entries, h("div", { class: "save" }, save("SVG"), save("PNG")));
  parent.append(holder);

  const redraw = () => {
    const width = Math.max(Math.floor(holder.clientWidth), 280);
    svg.replaceChildren();
    svg.onmousemove = svg.onmouseleave = null;
    const { height, description } = draw(svg, width);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("aria-label", description ? `${label}: ${description}` : label);
    svg.dataset.legend = legend ? "groups" : "";
    if (entries) showLegend(entries);
  };
  svg.addEventListener("mousemove", (event) => {
    const mark = event.target.closest("[data-tip]");
    if (mark) showTip(mark.dataset.tip, event); else if (!svg.onmousemove) showTip("", event);
  });
  svg.addEventListener("mouseleave", (event) => showTip("", event));
  let width = 0;
  new ResizeObserver(() => {
    if (Math.abs(holder.clientWidth - width) < 2) return;
    width = holder.clientWidth;
    redraw();
  }).observe(holder);
  whenChanged(redraw);
  width = holder.clientWidth;
  redraw();
  return redraw;
}

const MAX_ENTRIES = 40;

function showLegend(list) {
  const entry = (group, place) => h("li", {}, h("button", {
    type: "button", "aria-pressed": String(!STATE.hidden.has(place)), title: "Show or hide in all figures",
    onclick: () => {
      if (!STATE.hidden.delete(place)) STATE.hidden.add(place);
      changed();
      list.children[place].firstChild.focus();
    },
  }, sample(place), short(group.name)));
  list.replaceChildren(...DATA.groups.slice(0, MAX_ENTRIES).map(entry));
  if (DATA.groups.length > MAX_ENTRIES) list.append(h("li", { class: "hint" }, `and ${DATA.groups.length - MAX_ENTRIES} more groups`));
}

function sample(place) {
  return s("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" }, s("line", { x1: 0, x2: 24, y1: 5, y2: 5, class: `line ${strokeOf(place)}` }));
}

/** The figure as an independent picture, with its legend, its styles, and the current colours instead of variables. */
function standalone(svg) {
  const copy = svg.cloneNode(true), width = Number(svg.getAttribute("width"));
  let height = Number(svg.getAttribute("height"));
  if (svg.dataset.legend) {
    let x = 8, y = height + 16;
    DATA.groups.slice(0, MAX_ENTRIES).forEach((group, place) => {
      if (STATE.hidden.has(place)) return;
      const entryWidth = 46 + textWidth(short(group.name));
      if (x + entryWidth > width && x > 8) [x, y] = [8, y + 18];
      copy.append(s("line", { x1: x, x2: x + 24, y1: y - 4, y2: y - 4, class: `line ${strokeOf(place)}` }), s("text", { x: x + 30, y }, short(group.name)));
      x += entryWidth;
    });
    height = y + 10;
  }
  const probe = document.body.appendChild(h("span", {}));
  const colour = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  copy.prepend(s("style", {}, document.getElementById("figure-style").textContent), s("rect", { width, height, fill: "var(--card)" }));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  copy.setAttribute("height", height);
  const text = new XMLSerializer().serializeToString(copy).replace(/var\((--[\w-]+)\)/g, (_, name) => colour(name));
  probe.remove();
  return { text, width, height };
}

function saveFigure(svg, name, kind) {
  const { text, width, height } = standalone(svg);
  const drawing = new Blob([text], { type: "image/svg+xml" });
  if (kind === "SVG") return download(drawing, `${name}.svg`);
  const image = new Image(), url = URL.createObjectURL(drawing);
  image.onload = () => {
    const canvas = h("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    URL.revokeObjectURL(url);
    canvas.toBlob((blob) => download(blob, `${name}.png`), "image/png");
  };
  image.src = url;
}

function download(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
