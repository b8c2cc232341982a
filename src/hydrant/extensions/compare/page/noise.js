// The noise over seeds.

function noiseSection() {
  const { noise } = DATA.verdicts, scatter = Object.entries(noise.groups).filter(([, { degrees }]) => degrees > 0);
  if (scatter.length > 1) scatter.push(["pooled", noise.pooled]);
  drawSection("noise", (shown) => {
    if (scatter.length) figure(shown, { name: "noise", label: "Standard deviation over seeds", legend: false, draw: (svg, width) => drawSpreads(svg, width, scatter) });
  });
}

/** Standard deviations with their intervals, one row each. */
function drawSpreads(svg, width, rows) {
  const shown = rows.length > MAX_ROWS ? [...rows.slice(0, MAX_ROWS - 1), rows[rows.length - 1]] : rows;
  const room = Math.min(widest(shown.map(([name]) => short(name))) + 20, width * 0.55), height = shown.length * 22 + 48;
  const xs = linearScale([0, (Math.max(0, ...shown.map(([, { std, high }]) => Math.min(high ?? std, 4 * std))) || 1) * 1.05], [room, width - 20]);
  for (const [tick, text] of labelled(xs.ticks(Math.max(Math.floor((width - room) / 110), 3)))) {
    svg.append(s("line", { x1: xs(tick), x2: xs(tick), y1: 4, y2: height - 40, class: "grid" }), s("text", { x: xs(tick), y: height - 24, class: "soft middle" }, text));
  }
  svg.append(s("text", { x: (room + width - 20) / 2, y: height - 6, class: "soft middle" }, `standard deviation of ${DATA.metric}`));
  shown.forEach(([name, { std, low, high, num }], n) => {
    const y = 15 + 22 * n, end = Math.min(xs(high ?? std), width - 8), tip = `${name}\n${number(std)}  (${interval(low, high)}), ${num} results`;
    svg.append(s("text", { x: room - 10, y: y + 4, class: "end" }, cut(short(name), room - 16)));
    if (high !== null) svg.append(s("line", { x1: xs(low), x2: end, y1: y, y2: y, class: "cursor", "data-tip": tip }));
    svg.append(s("circle", { cx: xs(std), cy: y, r: 5, class: `dot ${fillOf(name === "pooled" ? 1 : 0)}`, "data-tip": tip }));
  });
  return { height, description: shown.map(([name, { std }]) => `${name} ${number(std)}`).slice(-6).join(", ") };
}
