// The data, the choices of the reader that all figures share, and the appearance of runs and groups.

const UNITS = ["updates", "samples", "seconds"];
let DATA = {}, GROUP_OF = new Map(), PLACE_OF = new Map(), IS_MAX = false, IS_SEARCH = false, DIGITS = 4; // DIGITS: of results

const STATE = { parts: {}, shown: [], listeners: [] };

/** A part of the data, decoded: JSON in gzip in base64. */
async function decoded(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** Uses new data, by the names of its parts. Parts that are not given stay as they are. */
function useData(parts) {
  Object.assign(STATE.parts, parts);
  DATA = { ...STATE.parts, ...STATE.parts.comparison };
  GROUP_OF = new Map(DATA.groups.flatMap((group, place) => group.runs.map((name) => [name, place])));
  PLACE_OF = new Map(DATA.runs.map((run, place) => [run.name, place]));
  IS_MAX = DATA.mode === "max";
  IS_SEARCH = DATA.runs.some(({ trial }) => trial !== null);
  DIGITS = digitsOf(DATA.runs.flatMap(({ final, best }) => [final, best]).filter((value) => !isMissing(value)));
  STATE.shown = DATA.runs.map(() => true);
}

/** Calls a function when the reader's choices change. `element`: what it draws into. */
function whenChanged(listener, element) {
  STATE.listeners.push({ listener, element });
}

function changed() {
  for (const { listener, element } of STATE.listeners) drawSoon(listener, element);
}

const DRAWN_AT_ONCE = 100, WAITING = new Map(); // runs; functions that draw, by what they draw into

/** Draws at once if there are few runs or the element is on the screen; else when the browser has time. */
function drawSoon(draw, element) {
  const box = element.getBoundingClientRect(), isVisible = box.top < innerHeight && box.bottom > 0;
  if (DATA.runs.length <= DRAWN_AT_ONCE || isVisible) {
    WAITING.delete(element);
    return draw();
  }
  if (!WAITING.size) setTimeout(drawNext, 30);
  WAITING.set(element, draw);
}

function drawNext() {
  const [next] = WAITING;
  if (!next) return;
  WAITING.delete(next[0]);
  if (next[0].isConnected) next[1]();
  if (WAITING.size) setTimeout(drawNext, 0); else document.documentElement.dataset.drawn = String(Math.round(performance.now()));
}

/** The position of the group of a run; behind all groups for a run that is in none. */
function groupOf(run) {
  return GROUP_OF.get(run.name) ?? DATA.groups.length;
}

function isHidden(place) {
  return place < DATA.groups.length && CHOSEN.hidden.includes(DATA.groups[place].name);
}

/** The runs that match the filter and whose group is visible, with their positions. */
function shownRuns() {
  const hidden = new Set([...DATA.groups.keys()].filter(isHidden));
  return DATA.runs
    .map((run, place) => ({ run, place, group: groupOf(run) }))
    .filter(({ place, group }) => STATE.shown[place] && !hidden.has(group));
}

function isCounted(run) {
  return run.state === "finished" && run.final !== null;
}

/** The classes of lines and areas in the colour of a group. Dashes distinguish the groups after the tenth. */
function strokeOf(place) {
  const dash = Math.floor(place / 10) % 4;
  return `c${place % 10}${dash ? ` d${dash}` : ""}`;
}

function fillOf(place) {
  return `f${place % 10}`;
}

function labelOf(run) {
  return joined(run.labels, "  ") || run.name;
}

function runTip(run) {
  return `${labelOf(run)}\n${DATA.metric} ${number(run.final, DIGITS)}  (${run.state})`;
}
