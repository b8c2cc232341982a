// One run, alone or beside another one: facts, config and pictures.

const RUN = document.getElementById("run");

function openRun(name) {
  if (!PLACE_OF.has(name)) return;
  CHOSEN.run = name;
  showRun();
}

function closeRun() {
  CHOSEN.run = CHOSEN.beside = "";
  RUN.close();
}

RUN.addEventListener("close", () => { CHOSEN.run = CHOSEN.beside = ""; });
RUN.addEventListener("click", (event) => { if (event.target === RUN) closeRun(); }); // beside the dialog

/** Shows the run that the address names, if any. */
function showRun() {
  showTip("");
  const place = PLACE_OF.get(CHOSEN.run);
  if (place === undefined) return RUN.open ? RUN.close() : undefined;
  const top = RUN.scrollTop, focused = RUN.contains(document.activeElement) ? document.activeElement.id : "";
  const other = PLACE_OF.get(CHOSEN.beside), run = DATA.runs[place];
  RUN.replaceChildren(
    h("div", { class: "head" }, h("h2", { id: "run-title" }, run.name), h("button", { type: "button", id: "run-close", "aria-label": "Close", onclick: closeRun }, "×")),
    h("p", { class: "note" }, h("span", { class: `state ${run.state.replace(" ", "-")}` }, run.state), run.error ? `  ${run.error}` : ""),
    besideControl(run), configTable(place, other), picturesBeside(place, other),
  );
  if (!RUN.open) RUN.showModal();
  RUN.scrollTop = top;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** The choice of the run beside this one. */
function besideControl(run) {
  if (DATA.runs.length < 2) return null;
  const others = DATA.runs.filter(({ name }) => name !== run.name);
  const select = h("select", { id: "run-beside", onchange: () => { CHOSEN.beside = select.value; showRun(); } },
    h("option", { value: "" }, "no other run"), others.map((other) => h("option", { value: other.name, selected: other.name === CHOSEN.beside }, `${short(labelOf(other))}${labelOf(other) === other.name ? "" : `  (${other.name})`}`)));
  return h("div", { class: "controls" }, h("label", { for: "run-beside" }, "Beside"), select,
    h("label", {}, h("input", { type: "checkbox", id: "run-differing", checked: CHOSEN.differing, onchange: (event) => { CHOSEN.differing = event.target.checked; showRun(); } }), "Only what differs"));
}

/** The facts and the config of a run by name, as texts. */
function textsOf(place) {
  const run = DATA.runs[place], { common, runs } = DATA.details, facts = {
    state: run.state, updates: `${countText(run.num_updates)}${run.total_updates ? ` of ${countText(run.total_updates)}` : ""}`, [DATA.metric]: number(run.final, DIGITS), [`best ${DATA.metric}`]: number(run.best, DIGITS),
    ...Object.fromEntries(Object.entries(DATA.figure_titles).map(([name, title]) => [title, number(run.figures[name])])),
  };
  return { facts, config: { ...common, ...runs[place] } };
}

/** The rows of a table. Beside another run, only the rows that differ, if the reader chose so; alone, the keys in which any runs differ. */
function configTable(place, other) {
  const one = textsOf(place), two = other === undefined ? null : textsOf(other), onlyDiffering = CHOSEN.differing && DATA.runs.length > 1;
  const differing = new Set(DATA.details.runs.flatMap((values) => Object.keys(values)));
  const isShown = (kind, key) => {
    if ([one, two].every((texts) => !texts || isMissing(texts[kind][key]) || texts[kind][key] === "–")) return false;
    return !onlyDiffering || (two ? one[kind][key] !== two[kind][key] : kind === "facts" || differing.has(key));
  };
  const text = (texts, kind, key) => (isMissing(texts[kind][key]) ? "–" : texts[kind][key]);
  const rows = ["facts", "config"].flatMap((kind) => Object.keys(one[kind]).filter((key) => isShown(kind, key)).map((key) =>
    h("tr", { class: two && text(one, kind, key) !== text(two, kind, key) ? "differs" : null }, h("th", { scope: "row" }, key), [one, two].filter(Boolean).map((texts) => h("td", {}, text(texts, kind, key))))));
  const names = [DATA.runs[place], ...(two ? [DATA.runs[other]] : [])].map(({ name }) => name);
  const caption = two ? (onlyDiffering ? "Results, and the keys in which the two differ." : "Results and all keys of the config.") : onlyDiffering ? "Results, and the keys in which any runs differ." : "Results and all keys of the config.";
  return scrollable("Config", h("table", { id: "config-table" }, captioned(caption),
    h("thead", {}, h("tr", {}, ["key", ...names].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)));
}

/** The latest picture of each name, of one run or of two side by side. */
function picturesBeside(place, other) {
  const places = [place, other].filter((one) => one !== undefined), names = [...new Set(places.flatMap((one) => picturesOf(one).map(({ name }) => name)))];
  const card = (one, name) => {
    const picture = picturesOf(one, name).at(-1), run = DATA.runs[one];
    return picture ? pictureCard(picture, run) : h("li", {}, h("span", {}, `${labelOf(run)} has no picture ${name}.`));
  };
  return names.length ? h("div", {}, h("h3", {}, "Pictures"), names.map((name) => h("ul", { class: "pictures beside", "aria-label": name }, places.map((one) => card(one, name))))) : null;
}
