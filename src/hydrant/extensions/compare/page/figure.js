// A figure: its controls, its drawing, the legend of the groups, and the tips of its marks.

const TIP = document.getElementById("tip"), HEIGHTS = new Map();

/** Shows a text beside a place on the screen; "" hides it. `isRead`: screen readers say it. */
function showTip(text, { clientX, clientY } = {}, isRead = false) {
  TIP.hidden = !text;
  TIP.setAttribute("aria-live", isRead ? "polite" : "off");
  if (!text) return;
  TIP.textContent = text;
  const box = TIP.getBoundingClientRect(), left = clientX + 14, top = clientY + 14;
  TIP.style.left = `${Math.max(4, left + box.width > innerWidth - 8 ? clientX - box.width - 14 : left)}px`;
  TIP.style.top = `${Math.max(4, top + box.height > innerHeight - 8 ? clientY - box.height - 14 : top)}px`;
}

/** The place of the pointer in the units of a drawing. */
function placeIn(svg, { clientX, clientY }) {
  const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
  return { x: (clientX - box.left) * scale, y: (clientY - box.top) * scale };
}

/**
 * Adds a figure to a section and returns the function that redraws it. `draw(svg, width)` fills an empty <svg> and
 * returns its height, a description for screen readers, and how it follows the pointer and the keys: {move, leave,
 * press, release, double, key}. It is called when the width or the reader's choices change. A click on a mark of a run
 * opens the run. `keys`: what the keys do, if it follows them.
 */
function figure(parent, { name, label, controls = [], legend = true, keys = "", draw }) {
  const svg = s("svg", { role: "img", "aria-label": label, focusable: "false", height: HEIGHTS.get(name) || 300 });
  const entries = legend ? h("ul", { class: "legend", "aria-label": `Groups in ${label}` }) : null;
  const save = (kind) => h("button", { type: "button", "aria-label": `Save ${label} as ${kind}`, onclick: () => saveFigure(svg, name, kind) }, kind);
  const bar = controls.length && h("div", { class: "controls" }, controls);
  const stage = h("div", keys ? { class: "stage", tabindex: 0, role: "group", "aria-label": `${label}. ${keys}` } : { class: "stage" }, svg);
  const holder = h("figure", { "data-figure": name }, bar || null, stage, entries, h("div", { class: "save" }, save("SVG"), save("PNG")));
  parent.append(holder);
  let reactions = {}, width = 0;

  const redraw = () => {
    if (holder.clientWidth) width = holder.clientWidth;
    const room = Math.max(Math.floor(width), 280);
    svg.replaceChildren();
    const { height, description, ...others } = draw(svg, room);
    reactions = others;
    svg.setAttribute("viewBox", `0 0 ${room} ${height}`);
    svg.setAttribute("width", room);
    svg.setAttribute("height", height);
    HEIGHTS.set(name, height);
    svg.setAttribute("aria-label", description ? `${label}: ${description}` : label);
    svg.dataset.legend = legend ? "groups" : "";
    if (entries) showLegend(entries);
  };
  follow(svg, stage, (kind, ...given) => reactions[kind]?.(...given));
  const observer = new ResizeObserver(() => {
    if (!holder.isConnected) return observer.disconnect(); // it is of data that have been replaced
    if (Math.abs(holder.clientWidth - width) >= 2) drawSoon(redraw, holder);
  });
  observer.observe(holder);
  whenChanged(redraw, holder);
  width = holder.clientWidth;
  drawSoon(redraw, holder);
  return redraw;
}

/** Calls the reactions of a drawing to the pointer and to keys, shows tips, and opens runs. */
function follow(svg, stage, react) {
  svg.addEventListener("pointermove", (event) => {
    const mark = event.target.closest("[data-tip]"), isFollowed = react("move", placeIn(svg, event), event);
    if (mark) showTip(mark.dataset.tip, event); else if (!isFollowed) showTip("");
  });
  svg.addEventListener("pointerleave", () => { react("leave"); showTip(""); });
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !react("press", placeIn(svg, event), event)) return;
    event.preventDefault(); // no text is selected
    stage.focus({ preventScroll: true });
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointerup", (event) => react("release", placeIn(svg, event), event));
  svg.addEventListener("dblclick", () => react("double"));
  svg.addEventListener("click", (event) => {
    const run = event.target.closest("[data-run]")?.dataset.run ?? react("run", placeIn(svg, event), event);
    if (run) openRun(run);
  });
  stage.addEventListener("keydown", (event) => {
    if (event.target === stage && !event.ctrlKey && !event.metaKey && !event.altKey && react("key", event.key)) event.preventDefault();
  });
  stage.addEventListener("blur", () => { react("leave"); showTip(""); });
}

const MAX_ENTRIES = 40;

function showLegend(list) {
  const entry = (group, place) => h("li", {}, h("button", {
    type: "button", "aria-pressed": String(!isHidden(place)), title: "Show or hide in all figures",
    onclick: () => {
      CHOSEN.hidden = isHidden(place) ? CHOSEN.hidden.filter((name) => name !== group.name) : [...CHOSEN.hidden, group.name];
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
