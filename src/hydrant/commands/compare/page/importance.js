// The importance of each key for the result.

function importanceSection() {
  const importance = DATA.importance;
  if (!importance) return;
  drawSection("importance", (shown) => {
    if (importance.fit < 0) return;
    shown.append(h("p", { class: "note" }, "The line is the standard deviation over the shuffles. The bar of the seed shows the size of the noise."));
    figure(shown, { name: "importance", label: "Importance of the keys", legend: false, draw: (svg, width) => drawBars(svg, width, importance.keys) });
  });
}

function drawBars(svg, width, rows) {
  const room = widest(rows.map(([key]) => key)) + 20, height = rows.length * 28 + 44;
  const xs = linearScale([0, Math.max(...rows.map(([, mean, std]) => mean + std), 1e-9)], [room, width - 60]);
  for (const [tick, text] of labelled(xs.ticks(Math.floor(width / 140)))) {
    svg.append(s("line", { x1: xs(tick), x2: xs(tick), y1: 4, y2: height - 40, class: "grid" }), s("text", { x: xs(tick), y: height - 24, class: "soft middle" }, text));
  }
  svg.append(s("text", { x: (room + width) / 2, y: height - 6, class: "soft middle" }, "loss of R²"));
  rows.forEach(([key, mean, std], n) => {
    const y = 8 + 28 * n, tip = `${key}: ${number(mean, 3)} ± ${number(std, 2)}`;
    svg.append(s("text", { x: room - 10, y: y + 14, class: "end" }, key));
    svg.append(s("rect", { x: xs(0), y, width: Math.max(xs(Math.max(mean, 0)) - xs(0), 1), height: 18, rx: 3, class: "bar", "data-tip": tip }));
    svg.append(s("line", { x1: xs(Math.max(mean - std, 0)), x2: xs(mean + std), y1: y + 9, y2: y + 9, class: "cursor" }));
    svg.append(s("text", { x: xs(mean + std) + 8, y: y + 14, class: "soft" }, number(mean, 2)));
  });
  return { height, description: rows.map(([key, mean]) => `${key} ${number(mean, 2)}`).join(", ") };
}
