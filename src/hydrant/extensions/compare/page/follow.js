// A page that `hydrant compare --follow` writes again while runs train: it loads itself again, as the reader left it.

const RELOAD_SECONDS = Number(document.getElementById("data").dataset.reload);

/** Whether the reader is doing something that a reload would disturb. */
const BUSY = { pointer: false, select: false, composing: false }, TYPING_MS = 2000;

let typed = -Infinity; // when the reader last changed a field

function isReaderBusy() {
  return performance.now() - typed < TYPING_MS || Object.values(BUSY).some(Boolean) || !getSelection().isCollapsed;
}

function showFollowing() {
  const shown = document.getElementById("live");
  shown.hidden = !RELOAD_SECONDS;
  shown.className = "on";
  shown.textContent = `Live: this page loads itself again every ${Math.round(RELOAD_SECONDS)} s while it is visible.`;
}

/** Called when everything is drawn: the place of the reader is taken from what is there. */
function followRuns() {
  if (!RELOAD_SECONDS) return;
  const set = (name, value) => () => { BUSY[name] = value; };
  addEventListener("pointerdown", (event) => { BUSY.pointer = true; BUSY.select = event.target.tagName === "SELECT"; });
  for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, set("pointer", false));
  for (const name of ["change", "pointermove", "focusout"]) addEventListener(name, set("select", false));
  addEventListener("input", () => { typed = performance.now(); });
  addEventListener("compositionstart", set("composing", true));
  addEventListener("compositionend", set("composing", false));
  setTimeout(reloadWhenIdle, 1000 * RELOAD_SECONDS);
}

function reloadWhenIdle() {
  if (document.hidden || isReaderBusy()) return setTimeout(reloadWhenIdle, 300);
  history.scrollRestoration = "manual"; // else the browser scrolls too, when it likes
  history.replaceState(placeOfReader(), "", address());
  location.reload();
}
