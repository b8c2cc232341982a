// The table of runs, which can be sorted and filtered, and small tables.

/** The columns of the table of runs without the empty ones: {title, value(run), isNumber, show(value)}. */
function runColumns() {
  const numeric = (title, value, show = number) => ({ title, value, isNumber: true, show: (shown) => show(shown) });
  const result = (value) => number(value, DIGITS);
  const text = (title, value) => ({ title, value, isNumber: false, show: (shown) => shown });
  const isNumeric = (key) => DATA.runs.every((run) => run.labels[key] === "-" || run.labels[key].trim() !== "" && Number.isFinite(Number(run.labels[key])));
  const keys = DATA.keys.map((key) => isNumeric(key)
    ? { title: key, value: (run) => run.labels[key] === "-" ? null : Number(run.labels[key]), isNumber: true, show: (value) => value === null ? "–" : String(value) }
    : text(key, (run) => run.labels[key]));
  const figures = Object.entries(DATA.figure_titles).map(([name, title]) => numeric(title, (run) => run.figures[name]));
  const times = DATA.target ? UNITS.map((unit) => numeric(`${unit} to target`, (run) => run.to_target[unit], countText)) : [];
  const state = { title: "state", value: (run) => run.state, show: (value) => h("span", { class: `state ${value.replace(" ", "-")}` }, value) };
  const after = DATA.moment === "after the last update" ? [] : [numeric("measured after", (run) => run.measured_at, countText)];
  const columns = [
    ...keys, state, numeric("updates", (run) => run.num_updates, countText), ...after, numeric(DATA.metric, (run) => run.final, result),
    numeric("best", (run) => run.best, result), ...times, ...figures,
  ].filter(({ value }) => DATA.runs.some((run) => !isMissing(value(run))));
  const error = text("error", (run) => run.error);
  const name = { ...text("run", (run) => run.name), show: runLink };
  return [...columns, name, ...(DATA.runs.some((run) => run.error) ? [error] : [])];
}

/** The order of two values; `sign` is -1 for a descending one. Missing values come last in both directions. */
function compared(a, b, sign) {
  const isEmpty = (value) => isMissing(value) || value === "";
  if (isEmpty(a) || isEmpty(b)) return Number(isEmpty(a)) - Number(isEmpty(b));
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

const MAX_ROWS_SHOWN = 500;

function runTable(parent) {
  const columns = runColumns(), body = h("tbody", {}), count = h("span", { class: "hint", role: "status" });
  const rows = DATA.runs.map((run, place) => ({ run, place, texts: Object.fromEntries(columns.map(({ title, value }) => [title, value(run)])), element: null }));
  const all = h("button", { type: "button", hidden: true, onclick: () => show(Infinity) });
  const heads = columns.map((column) => h("th", { scope: "col", class: column.isNumber ? "number" : null, "aria-sort": "none" },
    h("button", { type: "button", onclick: () => sortBy(column) }, column.title)));

  function sortBy(column) {
    CHOSEN.descending = CHOSEN.sort === column.title && !CHOSEN.descending;
    CHOSEN.sort = column.title;
    sort();
    show();
  }

  function sort() {
    const { sort: title, descending } = CHOSEN;
    heads.forEach((head, place) => head.setAttribute("aria-sort", columns[place].title !== title ? "none" : descending ? "descending" : "ascending"));
    rows.sort((a, b) => compared(a.texts[title], b.texts[title], descending ? -1 : 1) || a.place - b.place);
  }

  /** The element of a row, made when it is first shown. */
  function element(row) {
    row.element ||= h("tr", { onclick: () => openRun(row.run.name) }, columns.map(({ title, value, show: shown, isNumber }) =>
      h("td", { class: isNumber ? "number" : title === "error" ? "error" : null }, shown(value(row.run)))));
    return row.element;
  }

  function show(limit = MAX_ROWS_SHOWN) {
    const matching = rows.filter(({ place }) => STATE.shown[place]);
    body.replaceChildren(...matching.slice(0, limit).map(element));
    count.textContent = `${matching.length} of ${rows.length} runs`;
    all.hidden = matching.length <= limit;
    all.textContent = `Show all ${matching.length} rows`;
  }

  const update = filterControls(parent, rows.map(({ texts }) => texts), count, show);
  parent.append(
    scrollable("Table of runs", h("table", { id: "runs-table" }, captioned(rows.length > 1 ? "Runs and the keys in which they differ. Click on a heading to sort, and on a run to see its config." : "The results and the speed of the run. Click on it to see its config."), h("thead", {}, h("tr", {}, heads)), body)), all,
  );
  sort();
  update();
}

/** Adds the filter and the brushes to a section. Returns the function that applies them to the rows of the runs. */
function filterControls(parent, rows, count, show) {
  const unused = h("p", { class: "problem", role: "status" }), brushes = h("ul", { class: "chips", "aria-label": "Ranges chosen in the parallel coordinates" });
  const filter = h("input", {
    type: "search", id: "filter", "aria-describedby": "filter-hint", placeholder: "adamw  seed=0  updates/s>100", value: CHOSEN.filter,
    oninput: () => { CHOSEN.filter = filter.value; changeFilter(); },
  });
  if (rows.length > 1) parent.append(
    h("div", { class: "controls" }, h("label", { for: "filter" }, "Filter runs"), filter, count), brushes, unused,
    h("p", { class: "hint", id: "filter-hint" }, "Words that occur in a row, column=value, column>number or column<number. Write _ for a space in the name of a column (compile_s>10). The filter applies to single runs in all figures. Means and intervals of groups always include all their runs."),
  );
  const update = () => {
    const { conditions, problems } = readFilter(filter.value, rows);
    rows.forEach((texts, place) => { STATE.shown[place] = conditions.every((holds) => holds(texts)) && isBrushed(DATA.runs[place]); });
    filter.setAttribute("aria-invalid", problems.length > 0);
    unused.textContent = problems.length ? `Not used: ${problems.join(", ")}` : "";
    brushes.replaceChildren(...brushChips());
    show();
  };
  changeFilter = () => { update(); changed(); };
  return update;
}

/** Applies the filter and the brushes to everything. */
let changeFilter = () => {};

/** Adds a section of the comparison with its sentences, a figure by `drawFigure`, and its tables. */
function drawSection(name, drawFigure = () => {}) {
  const found = DATA.sections.find((shown) => shown.name === name);
  if (!found) return null;
  const shown = section(name, found.title, found.sentences.map((text) => h("p", { class: "note" }, text)));
  drawFigure(shown);
  for (const table of found.tables.filter(({ rows }) => rows.length)) shown.append(scrollable(`Table of ${table.name}`, plainTable(table)));
  return shown;
}

/** A table without its empty columns, with numbers aligned to the right and the best rows first. */
function plainTable({ name, caption, titles, rows, num_labels: numLabels, best, ranks }) {
  const kind = (place) => (place >= numLabels ? "number" : null);
  const places = [...titles.keys()].filter((place) => place < numLabels || rows.some((cells) => cells[place] !== "-"));
  const order = [...rows.keys()].sort((a, b) => compared(ranks[a], ranks[b], 1) || a - b);
  const text = (cells, place) => (cells[place] === "-" ? "–" : place < numLabels ? short(cells[place]) : cells[place]);
  return h("table", { id: `${name}-table` }, captioned(caption),
    h("thead", {}, h("tr", {}, places.map((place) => h("th", { scope: "col", class: kind(place) }, titles[place])))),
    h("tbody", {}, order.map((row) => h("tr", { class: best.includes(row) ? "best" : null }, places.map((place) =>
      place === 0 ? h("th", { scope: "row" }, text(rows[row], place)) : h("td", { class: kind(place) }, text(rows[row], place)))))));
}

/** A caption that stays where it is while the table scrolls. */
function captioned(text) {
  return h("caption", {}, h("span", {}, text));
}

/** A region in which a table scrolls. Shadows and a line of text show that it has more columns. */
function scrollable(label, table) {
  const region = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label, onscroll: () => mark() }, table);
  const hint = h("p", { class: "hint" }, "Scroll sideways for more columns."), frame = h("div", { class: "scroll-frame" }, region);
  const mark = () => {
    const hidden = region.scrollWidth - region.clientWidth;
    hint.hidden = hidden < 2;
    frame.classList.toggle("more-left", region.scrollLeft > 1);
    frame.classList.toggle("more-right", region.scrollLeft < hidden - 1);
  };
  const observer = new ResizeObserver(mark);
  for (const element of [region, table]) observer.observe(element);
  return h("div", {}, hint, frame);
}
