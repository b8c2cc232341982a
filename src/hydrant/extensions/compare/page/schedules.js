// The schedules: one small plot for each, with the names of its groups.

function schedulesSection() {
  const names = Object.keys(DATA.curves.schedules);
  if (!names.length) return;
  const chosen = choicesOf("schedules", { metric: oneOf(names) });
  const shown = section("schedules", "Schedules", h("p", { class: "note" }, "As logged. Equal schedules are drawn once. Each plot has its own vertical axis."));
  const redraw = figure(shown, {
    name: "schedules", label: "Schedules", legend: false,
    controls: [choice("Field", names, chosen.metric, (value) => { chosen.metric = value; redraw(); })],
    draw: (svg, width) => drawSchedules(svg, width, chosen.metric),
  });
}

function drawSchedules(svg, width, metric) {
  const distinct = new Map();
  DATA.curves.schedules[metric].forEach((curves, place) => {
    for (const { u, v } of isHidden(place) ? [] : curves) {
      const key = JSON.stringify([u, v]), { name } = DATA.groups[place];
      if (distinct.has(key)) distinct.get(key).names.push(name);
      else distinct.set(key, { x: u, y: v, place, names: [name] });
    }
  });
  const panels = [...distinct.values()].slice(0, 24);
  if (!panels.length) return emptyFigure(svg, width, `No group has ${metric}`);
  const columns = Math.max(Math.min(Math.floor(width / 250), panels.length), 1), size = width / columns, tall = 170;
  const range = extent(panels.flatMap(({ x }) => x));
  panels.forEach(({ x, y, place, names }, n) => {
    const panel = s("g", { transform: `translate(${(n % columns) * size} ${Math.floor(n / columns) * (tall + 34) + 20})` });
    svg.append(panel);
    const title = names.length > 1 ? `${names[0]} + ${names.length - 1} more` : names[0];
    panel.append(s("text", { x: 12, y: -4, class: "strong", "data-tip": names.join("\n") }, cut(short(title), size - 24)));
    const plot = frame(panel, size, tall, { domain: range, name: "updates" }, { domain: domainOf(y, false), name: "" });
    panel.append(s("path", { d: pathOf(x.map((at, k) => [at, y[k]]), plot.xs, plot.ys), class: `line ${strokeOf(place % 10)}` }));
    if (x.length === 1) panel.append(s("circle", { cx: plot.xs(x[0]), cy: plot.ys(y[0]), r: 4, class: `dot ${fillOf(place % 10)}` }));
  });
  return { height: Math.ceil(panels.length / columns) * (tall + 34), description: `${panels.length} different schedules of ${metric}` };
}
