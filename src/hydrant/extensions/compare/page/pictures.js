// The pictures that the runs have drawn, side by side.

const MAX_PICTURES = 60;

/** The pictures of a run with a name, in their order; all of them without a name. */
function picturesOf(place, name = null) {
  return (DATA.pictures?.runs[place] || []).filter((picture) => name === null || picture.name === name);
}

function picturesSection() {
  const names = [...new Set((DATA.pictures?.runs || []).flat().map(({ name }) => name))];
  if (!names.length) return;
  const latest = "the latest", numbers = [...new Set(DATA.pictures.runs.flat().map(({ after }) => after))].filter((after) => after !== null).sort((a, b) => a - b);
  const options = [latest, ...numbers.map(String)], chosen = choicesOf("pictures", { name: oneOf(names), after: oneOf(options) });
  const list = h("ul", { class: "pictures" }), hint = h("p", { class: "hint" });
  const show = () => {
    const cards = shownRuns().flatMap(({ run, place }) => {
      const found = picturesOf(place, chosen.name), picture = chosen.after === latest ? found[found.length - 1] : found.find(({ after }) => String(after) === chosen.after);
      return picture ? [pictureCard(picture, run)] : [];
    });
    list.replaceChildren(...cards.slice(0, MAX_PICTURES));
    hint.textContent = [
      cards.length > MAX_PICTURES ? `The first ${MAX_PICTURES} of ${cards.length} runs; the filter chooses others.` : cards.length ? "" : "No visible run has such a picture.",
      DATA.pictures.left_out ? `${DATA.pictures.left_out} pictures are too large for this file.` : "",
    ].filter(Boolean).join(" ");
  };
  const pick = (field) => (value) => { chosen[field] = value; show(); };
  section("pictures", "Pictures", h("p", { class: "note" }, "What the runs have drawn, side by side."),
    h("div", { class: "controls" }, choice("Picture", names, chosen.name, pick("name")), options.length > 2 ? choice("After update", options, chosen.after, pick("after")) : null), list, hint);
  whenChanged(show, list);
  show();
}

function pictureCard({ name, after, source }, run) {
  const title = `${labelOf(run)}${after === null ? "" : `, after ${countText(after)} updates`}`;
  return h("li", {}, h("a", { href: "#", onclick: (event) => { event.preventDefault(); openRun(run.name); } },
    h("img", { src: source, alt: `${name} of ${title}`, loading: "lazy" })), h("span", {}, title));
}
