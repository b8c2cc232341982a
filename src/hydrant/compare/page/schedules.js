// Schedules side by side: a small picture of each, with the groups that have it.

const NO_SCHEDULE = /grad_norm|loss_scale|num_skipped/;

function schedulesSection() {
  const names = DATA.curves.metrics.filter((metric) => metric.startsWith("optim/") && !NO_SCHEDULE.test(metric));
  if (!names.length) return;
  const chosen = { metric: names.includes("optim/lr") ? "optim/lr" : names[0] };
  const shown = section("schedules", "Schedules", h("p", { class: "note" }, "As the runs logged them; equal ones are drawn once, each on a vertical axis of its own."));
  let redraw = () => {};
  redraw = figure(shown, {
    name: "schedules", label: "Schedules", legend: false,
    controls: [choice("Field", names, chosen.metric, (value) => { chosen.metric = value; redraw(); })],
    draw: (svg, width) => drawSchedules(svg, width, chosen.metric),
  });
}

function drawSchedules(svg, width, metric) {
  const found = new Map();
  for (const curve of groupCurves(metric, "updates")) {
    const key = JSON.stringify([curve.x, curve.y]);
    if (found.has(key)) found.get(key).names.push(curve.name);
    else found.set(key, { ...curve, names: [curve.name] });
  }
  const panels = [...found.values()].slice(0, 24);
  if (!panels.length) return emptyFigure(svg, width, `No group has ${metric}`);
  const columns = Math.max(Math.min(Math.floor(width / 250), panels.length), 1), size = width / columns, tall = 170;
  const range = extent(panels.flatMap(({ x }) => x));
  panels.forEach(({ x, y, place, names }, n) => {
    const panel = s("g", { transform: `translate(${(n % columns) * size} ${Math.floor(n / columns) * (tall + 34) + 20})` });
    svg.append(panel);
    const title = names.length > 1 ? `${names[0]} + ${names.length - 1} more` : names[0];
    panel.append(s("text", { x: 12, y: -4, class: "strong", "data-tip": names.join("\n") }, cut(title, size - 24)));
    const plot = frame(panel, size, tall, { domain: range, name: "updates" }, { domain: domainOf(y, false), name: "" });
    panel.append(s("path", { d: pathOf(x.map((at, k) => [at, y[k]]), plot.xs, plot.ys), class: `line ${strokeOf(place % 10)}` }));
  });
  return { height: Math.ceil(panels.length / columns) * (tall + 34), told: `${panels.length} different courses of ${metric}` };
}
