// The groups over seeds or folds: their means with intervals, as a figure and as a table.

/** The runs of a group without a result, by state. */
function withoutResult(group) {
  return Object.entries(group.states).filter(([state]) => state !== "finished").map(([state, count]) => `${count} ${state}`).join(", ");
}

/** A number of runs of a group in words. */
function counted(num) {
  return DATA.repetitions === "folds" ? `${num} fold${num === 1 ? "" : "s"}` : `n = ${num}`;
}

function groupsSection() {
  const order = DATA.groups.map((group, place) => ({ group, place }));
  const score = ({ group }) => (group.mean === null ? -Infinity : IS_MAX ? group.mean : -group.mean);
  order.sort((a, b) => score(b) - score(a));
  drawSection("groups", (shown) => {
    shown.append(h("p", { class: "note" }, `The figure shows the mean of ${DATA.metric} ${DATA.moment} with its ${100 * DATA.confidence} % confidence interval (${DATA.interval}). Small marks are single runs.`));
    figure(shown, { name: "groups", label: "Means and intervals of the groups", legend: false, draw: (svg, width) => drawGroups(svg, width, order) });
  });
}

const MAX_ROWS = 60;

function drawGroups(svg, width, order) {
  const visible = order.filter(({ place }) => !isHidden(place)), rows = visible.slice(0, MAX_ROWS);
  const nameWidth = widest(rows.map(({ group }) => short(group.name))) + 20, isNarrow = nameWidth > width * 0.45;
  const room = isNarrow ? 16 : nameWidth, tall = isNarrow ? 42 : 26; // on a narrow screen, the name is below its bar
  const side = width > 560 ? 130 : 16, height = rows.length * tall + 50;
  const runs = new Map(DATA.runs.map((run) => [run.name, run]));
  const finals = ({ group }) => group.runs.map((name) => runs.get(name)).filter(isCounted);
  const values = rows.flatMap((row) => [row.group.low, row.group.high, ...finals(row).map((run) => run.final)]);
  const inner = { left: room, right: width - side, bottom: height - 40 };
  const xs = linearScale(padded(extent(values)), [inner.left, inner.right]);
  for (const [tick, text] of labelled(xs.ticks(Math.max(Math.floor((inner.right - inner.left) / 100), 3)))) {
    svg.append(s("line", { x1: xs(tick), x2: xs(tick), y1: 4, y2: inner.bottom, class: "grid" }), s("text", { x: xs(tick), y: inner.bottom + 16, class: "soft middle" }, text));
  }
  svg.append(s("text", { x: (inner.left + inner.right) / 2, y: height - 6, class: "soft middle" }, visible.length > rows.length ? `${DATA.metric} of the best ${rows.length} of ${visible.length} groups` : DATA.metric));
  rows.forEach((row, n) => {
    const { group, place } = row, y = 18 + tall * n;
    const at = isNarrow ? { x: room, y: y + 21 } : { x: room - 12, y: y + 4 }, kind = `${isNarrow ? "" : "end"}${group.name === DATA.verdict.winner ? " strong" : ""}`;
    svg.append(s("text", { ...at, class: kind, "data-tip": group.name }, cut(short(group.name), isNarrow ? width - 2 * room : room - 14)));
    for (const run of finals(row)) svg.append(s("line", { x1: xs(run.final), x2: xs(run.final), y1: y - 6, y2: y + 6, class: `${strokeOf(place % 10)} thin`, "data-tip": runTip(run), "data-run": run.name }));
    const tip = `${group.name}\nmean ${number(group.mean, DIGITS)}\n${100 * DATA.confidence} % interval ${interval(group.low, group.high, DIGITS)}\n${counted(group.num)} of ${group.num_seeds}`;
    if (group.low !== null) svg.append(s("line", { x1: xs(group.low), x2: xs(group.high), y1: y, y2: y, class: `whisker ${strokeOf(place % 10)}`, "data-tip": tip }));
    if (group.mean !== null) svg.append(s("circle", { cx: xs(group.mean), cy: y, r: 5, class: `dot ${fillOf(place)}`, "data-tip": tip }));
    const note = [counted(group.num), withoutResult(group)].filter(Boolean).join(", ");
    if (side > 16) svg.append(s("text", { x: inner.right + 10, y: y + 4, class: "soft" }, cut(note, side - 14)));
  });
  return { height, description: DATA.verdict.winner ? `best is ${DATA.verdict.winner}` : DATA.verdict.sentence };
}
