// The filter of the table of runs. No access to the page.

const COMPARISONS = {
  "=": (value, wanted) => String(value).toLowerCase() === wanted || asNumber(value) === Number(wanted),
  "<": (value, wanted) => asNumber(value) < Number(wanted),
  ">": (value, wanted) => asNumber(value) > Number(wanted),
  "<=": (value, wanted) => asNumber(value) <= Number(wanted),
  ">=": (value, wanted) => asNumber(value) >= Number(wanted),
};

/** The number that a value is or spells; NaN for others. */
function asNumber(value) {
  return value === null || String(value).trim() === "" ? NaN : Number(value);
}

/**
 * The conditions of a filter (functions of a row), and the words that are none, with the reason. A word is a text in a
 * row, key=value, key>number or key<number; "_" is a space in a key. `rows`: the values of all runs by column.
 */
function readFilter(filter, rows) {
  const conditions = [], problems = [];
  for (const word of filter.trim().toLowerCase().split(/\s+/)) {
    const [, key, sign, wanted] = word.match(/^([^=<>]*)([=<>]+)(.*)$/) || [];
    const title = Object.keys(rows[0]).find((name) => [name, name.replaceAll(" ", "_")].some((text) => text.toLowerCase() === key));
    const problem = sign && problemOf({ key, sign, wanted, title }, rows);
    if (problem) problems.push(`${word} (${problem})`);
    else if (sign) conditions.push((row) => COMPARISONS[sign](row[title], wanted));
    else conditions.push((row) => Object.values(row).some((value) => String(value).toLowerCase().includes(word)));
  }
  return { conditions, problems };
}

function problemOf({ key, sign, wanted, title }, rows) {
  if (!(sign in COMPARISONS)) return "write =, <, >, <= or >=";
  if (!key) return "a column is missing";
  if (title === undefined) {
    const similar = Object.keys(rows[0]).filter((name) => name.toLowerCase().includes(key));
    return `no column ${key}${similar.length ? `; ${similar.join(" or ")}?` : ""}`;
  }
  if (!wanted) return "a value is missing";
  if (sign === "=") return "";
  if (Number.isNaN(Number(wanted))) return `${wanted} is not a number`;
  return rows.some((row) => !Number.isNaN(asNumber(row[title]))) ? "" : `${title} has no numbers`;
}
