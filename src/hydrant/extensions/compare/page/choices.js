// What the reader has chosen, kept in the address of the page: a link or a reload shows the same.

const ADDRESS = new URLSearchParams();

/** One of some texts. A value that is none of them, as in an old link, counts as the default. */
function oneOf(options, first = options[0]) {
  return { options, first };
}

/**
 * An object with these choices, whose values are kept in the address as `name.field`. A default is a boolean, a number,
 * a text, `oneOf`, or a list or object.
 */
function choicesOf(name, defaults) {
  const chosen = {};
  for (const [field, given] of Object.entries(defaults)) {
    const options = given?.options, first = options ? given.first : given, key = name ? `${name}.${field}` : field;
    Object.defineProperty(chosen, field, {
      enumerable: true,
      get: () => parsed(ADDRESS.get(key), first, options),
      set: (value) => {
        if (JSON.stringify(value) === JSON.stringify(first)) ADDRESS.delete(key);
        else ADDRESS.set(key, typeof value === "string" ? value : JSON.stringify(value));
        keepAddress();
      },
    });
  }
  return chosen;
}

function parsed(text, first, options) {
  if (text === null || (options && !options.includes(text))) return first;
  if (typeof first === "string" || options) return text;
  try {
    const value = JSON.parse(text), kind = (one) => (Array.isArray(one) ? "list" : one === null ? "null" : typeof one);
    return kind(value) === kind(first) ? value : first;
  } catch {
    return first;
  }
}

function readAddress() {
  const text = location.hash.slice(1);
  for (const key of [...ADDRESS.keys()]) ADDRESS.delete(key);
  if (text.includes("=")) new URLSearchParams(text).forEach((value, key) => ADDRESS.set(key, value));
}

let isWritten = true;

function keepAddress() {
  if (!isWritten) return;
  isWritten = false;
  setTimeout(() => {
    isWritten = true;
    history.replaceState(null, "", address());
  }, 100); // browsers refuse many changes in a short time
}

function address() {
  return ADDRESS.size ? `#${ADDRESS}` : location.pathname + location.search;
}

/** The choices that concern the whole page. */
const CHOSEN = choicesOf("", { filter: "", hidden: [], brushes: {}, sort: "", descending: false, run: "", beside: "", differing: true });
