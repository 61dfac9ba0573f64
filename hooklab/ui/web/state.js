// The whole state of the page, a row each: all of it is in the address, so a link shows what its sender saw.
//   start  the value that is left out of the address
//   valid  whether a value from the address may stay (given it, the app and the state); what only the server can
//          check, it checks, and tells
//   asks   a change needs a new answer from the server; without it, the browser only repaints

const oneOf = (...names) => value => names.includes(value);
const between = (low, high) => value => typeof value === "number" && value >= low && value <= high;
const whole = (low, high) => value => Number.isInteger(value) && value >= low && value <= high;
const anything = () => true;
const className = (value, app, state) => value === null || app.start.models[state.model].classes.includes(value);

export const TABS = ["gradcam", "features", "classes", "evidence", "hooks", "lessons", "networks", "browse", "about"];

export const STATE = {
  index: {start: 1218, valid: anything, asks: true},
  model: {start: null, valid: (value, app) => value in app.start.models, asks: true},
  layer: {start: null, valid: anything, asks: true},
  target: {start: null, valid: anything, asks: true},
  method: {start: "gradcam", valid: anything, asks: true},
  tab: {start: "gradcam", valid: oneOf(...TABS), asks: true},
  lang: {start: null, valid: oneOf(null, "en", "zh")},
  present: {start: false, valid: oneOf(true, false)},
  colors: {start: "inferno", valid: (value, app) => value in app.tables},
  opacity: {start: 0.55, valid: between(0, 1)},
  smooth: {start: true, valid: oneOf(true, false)},
  normalization: {start: "max", valid: oneOf("max", "min-max", "signed")},
  // features
  order: {start: "contribution", valid: oneOf("index", "mean", "contribution")},
  scale: {start: "each", valid: oneOf("each", "common")},
  channel: {start: null, valid: value => value === null || whole(0, 9999)(value)},
  // classes
  show: {start: "classes", valid: oneOf("classes", "difference", "layers", "methods"), asks: true},
  other: {start: null, valid: className, asks: true},
  // hooks
  edits: {start: null, valid: value => value === null || typeof value === "string", asks: true},
  watch: {start: "layer", valid: oneOf("none", "layer", "all"), asks: true},
  left: {start: 0, valid: whole(0, 9), asks: true},
  forget: {start: false, valid: oneOf(true, false)},
  result: {start: "run", valid: oneOf("run", "channels")},
  // lessons
  lesson: {start: "a", valid: oneOf(..."abcdefghij"), asks: true},
  numbers: {start: null, valid: value => value === null || typeof value === "string", asks: true},
  // evidence
  test: {start: "erase", valid: oneOf("erase", "sanity", "stability", "split")},
  percent: {start: 20, valid: between(0, 100)},
  which: {start: "hottest", valid: oneOf("hottest", "coldest")},
  baseline: {start: "blur", valid: oneOf("blur", "grey")},
  // networks
  other_layer: {start: null, valid: anything, asks: true},
  // browse
  truth: {start: null, valid: className},
  predicted: {start: null, valid: className},
  outcome: {start: "any", valid: oneOf("any", "right", "wrong")},
  low: {start: 0, valid: between(0, 1)},
  high: {start: 1, valid: (value, app, state) => between(state.low, 1)(value)},
  versus: {start: "any", valid: oneOf("any", "disagree", "only_this", "only_other", "neither")},
  sort: {start: "sure", valid: oneOf("sure", "unsure", "index")},
  sheet: {start: 0, valid: whole(0, 9999)}, // Gradio takes "page" for one of its own
};

export const startState = app => ({...Object.fromEntries(Object.entries(STATE).map(([key, row]) => [key, row.start])), index: app.start.index, model: Object.keys(app.start.models)[0]});

// The state that an address holds, and a note for each value in it that is not valid.
export function readAddress(app, search) {
  const fresh = startState(app), state = {...fresh}, notes = [];
  for (const [key, text] of new URLSearchParams(search)) if (key in STATE) state[key] = parse(text, fresh[key]);
  for (const [key, {valid}] of Object.entries(STATE)) {
    if (valid(state[key], app, state)) continue;
    notes.push(["address", {field: key, value: String(state[key])}]);
    state[key] = fresh[key];
  }
  return {state, notes};
}

// The address of a state; what others put into the query (a theme, say) stays.
export function addressOf(app, state, search) {
  const query = new URLSearchParams([...new URLSearchParams(search)].filter(([key]) => !(key in STATE)));
  const fresh = startState(app);
  for (const key of Object.keys(STATE)) {
    const value = state[key], always = key === "index" || key === "model"; // links outlive another default
    if (value !== null && value !== undefined && (always || value !== fresh[key])) query.set(key, value);
  }
  return `?${query}`.replace(/%(3A|2C|7E)/g, decodeURIComponent); // ":", "," and "~" need no escape, and read better
}

function parse(text, like) {
  if (/^(true|false)$/i.test(text)) return text.toLowerCase() === "true";
  if (typeof like === "boolean") return text === "1" ? true : text === "0" ? false : text;
  return /^-?\d+(\.\d+)?(e\d+)?$/.test(text) ? Number(text) : text;
}
