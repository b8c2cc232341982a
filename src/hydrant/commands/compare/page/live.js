// A live page: parts of the data that `hydrant watch` sends when runs change.

const EVENTS = document.getElementById("data").dataset.events, MAX_WAIT = 10_000, LOG_MS = 2000;

let source = null, arrived = {}, waitingSince = 0;

/** An address of the server, with its token. */
function addressOf(path, fields = {}) {
  const query = new URLSearchParams({ ...fields, ...Object.fromEntries(new URLSearchParams(location.search)) });
  return `${path}?${query}`;
}

function showConnection(text, isBad) {
  const shown = document.getElementById("live");
  shown.hidden = !text;
  shown.textContent = text;
  shown.className = isBad ? "problem" : "on";
}

function connect() {
  if (!EVENTS || source || document.hidden) return;
  source = new EventSource(addressOf(EVENTS, { since: STATE.version || "" }));
  source.onopen = () => showConnection("Live");
  source.onerror = () => {
    showConnection("Not connected to hydrant watch. The page shows what it has, and tries again.", true);
    if (source.readyState !== EventSource.CLOSED) return;
    source = null;
    setTimeout(connect, 3000);
  };
  source.onmessage = (event) => {
    const { version, parts } = JSON.parse(event.data);
    STATE.version = version;
    arrived = { ...arrived, ...parts };
    showArrived();
  };
}

/** A hidden page is not updated: a browser allows few connections to a server, over all its tabs. */
function connectIfVisible() {
  if (!document.hidden) return connect();
  source?.close();
  source = null;
}

/** Whether the reader is doing something that new data would disturb. */
const BUSY = { pointer: false, select: false, composing: false };

function watchReader() {
  const set = (name, value) => () => { BUSY[name] = value; };
  addEventListener("pointerdown", (event) => { BUSY.pointer = true; BUSY.select = event.target.tagName === "SELECT"; });
  for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, set("pointer", false));
  for (const name of ["change", "pointermove", "focusout"]) addEventListener(name, set("select", false));
  addEventListener("compositionstart", set("composing", true));
  addEventListener("compositionend", set("composing", false));
  document.addEventListener("visibilitychange", connectIfVisible);
  if (EVENTS) setInterval(followLog, LOG_MS);
}

let isShowing = false;

function isReaderBusy() {
  return Object.values(BUSY).some(Boolean) || !getSelection().isCollapsed;
}

/** Draws with the data that have arrived. Data that arrive after a failure are drawn again. */
async function showArrived() {
  if (isShowing || !Object.keys(arrived).length) return;
  waitingSince ||= performance.now();
  if (isReaderBusy() && performance.now() - waitingSince < MAX_WAIT) return setTimeout(showArrived, 300);
  isShowing = true;
  const parts = arrived;
  [arrived, waitingSince] = [{}, 0];
  try {
    await useParts(parts);
    render();
  } finally {
    isShowing = false;
    setTimeout(showArrived, 0);
  }
}
