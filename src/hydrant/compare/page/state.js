// What the reader has chosen, shared by all figures; and how runs and groups are told.

const STATE = { hidden: new Set(), shown: DATA.runs.map(() => true), listeners: [] };
const GROUP_OF = new Map(DATA.groups.flatMap((group, place) => group.runs.map((name) => [name, place])));
const IS_MAX = DATA.mode === "max", IS_SEARCH = DATA.runs.some(({ trial }) => trial !== null);

function whenChanged(listener) {
  STATE.listeners.push(listener);
}

function changed() {
  for (const listener of STATE.listeners) listener();
}

function groupOf(run) {
  return GROUP_OF.get(run.name) ?? 0;
}

/** The runs that the filter lets through and whose group is not switched off, with their places. */
function shownRuns() {
  return DATA.runs
    .map((run, place) => ({ run, place, group: groupOf(run) }))
    .filter(({ place, group }) => STATE.shown[place] && !STATE.hidden.has(group));
}

function isCounted(run) {
  return run.state === "finished" && run.final !== null;
}

/** The classes of a line and of an area in the colour of a group; dashes tell those beyond ten apart. */
function strokeOf(place) {
  const dash = Math.floor(place / 10) % 4;
  return `c${place % 10}${dash ? ` d${dash}` : ""}`;
}

function fillOf(place) {
  return `f${place % 10}`;
}

function runTip(run) {
  const labels = Object.entries(run.labels).map(([key, value]) => `${key}=${value}`).join("  ");
  return `${labels || run.name}\n${DATA.metric} ${number(run.final)}  (${run.state})`;
}

/** Whether a row of texts matches a filter: words that must occur, key=value, key>number, key<number; "_" is a blank in a key. */
function matches(filter, row) {
  return filter.trim().toLowerCase().split(/\s+/).every((word) => {
    const [, key, sign, wanted] = word.match(/^([^=<>]+)(>=|<=|=|<|>)(.+)$/) || [];
    if (!key) return Object.values(row).some((value) => String(value).toLowerCase().includes(word));
    const name = Object.keys(row).find((known) => [known, known.replaceAll(" ", "_")].some((text) => text.toLowerCase() === key));
    if (name === undefined || row[name] === null) return false;
    if (sign === "=" && String(row[name]).toLowerCase() === wanted) return true;
    const own = Number(row[name]), limit = Number(wanted);
    if (sign === "=") return own === limit;
    return sign.startsWith(">") ? (sign.length > 1 ? own >= limit : own > limit) : sign.length > 1 ? own <= limit : own < limit;
  });
}
