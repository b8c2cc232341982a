// A figure as a file.

/** The figure as an independent picture, with its legend, its styles, and the current colours instead of variables. */
function standalone(svg) {
  const copy = svg.cloneNode(true), width = Number(svg.getAttribute("width"));
  let height = Number(svg.getAttribute("height"));
  if (svg.dataset.legend) {
    let x = 8, y = height + 16;
    DATA.groups.slice(0, MAX_ENTRIES).forEach((group, place) => {
      if (isHidden(place)) return;
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
