// The choices of the reader, shared by all figures, and the appearance of runs and groups.

const STATE = { hidden: new Set(), shown: DATA.runs.map(() => true), listeners: [] };
const GROUP_OF = new Map(DATA.groups.flatMap((group, place) => group.runs.map((name) => [name, place])));
const IS_MAX = DATA.mode === "max", IS_SEARCH = DATA.runs.some(({ trial }) => trial !== null);

function whenChanged(listener) {
  STATE.listeners.push(listener);
}

function changed() {
  for (const listener of STATE.listeners) listener();
}

/** The position of the group of a run; behind all groups for a run that is in none. */
function groupOf(run) {
  return GROUP_OF.get(run.name) ?? DATA.groups.length;
}

/** The runs that match the filter and whose group is visible, with their positions. */
function shownRuns() {
  return DATA.runs
    .map((run, place) => ({ run, place, group: groupOf(run) }))
    .filter(({ place, group }) => STATE.shown[place] && !STATE.hidden.has(group));
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

function runTip(run) {
  return `${joined(run.labels, "  ") || run.name}\n${DATA.metric} ${number(run.final)}  (${run.state})`;
}
