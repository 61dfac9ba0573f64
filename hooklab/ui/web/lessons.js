// Lessons: a list of small programs; the chosen one with its controls, its live result and the code that gave it.
import {mountCode} from "./code.js";
import {RESULTS} from "./lesson-results.js";

const LETTERS = Object.keys(RESULTS);

export function mount(root, app) {
  const {t} = app;
  root.innerHTML = `
    <p class="hl-intro">${t("intro.lessons")}</p>
    <div class="hl-lessons">
      <nav class="hl-lesson-list" aria-label="${t("lessons.list")}">${LETTERS.map(letter => `<button data-lesson="${letter}"><i>${letter}</i><span>${t(`lesson.${letter}.title`)}</span></button>`).join("")}</nav>
      <article class="hl-card hl-lesson">
        <h2 id="hl-lesson-title"></h2><p id="hl-lesson-text"></p>
        <form class="hl-controls" id="hl-controls"></form><p class="hl-wrong" id="hl-wrong" role="alert"></p>
        <div id="hl-result"></div>
        <p class="hl-say" id="hl-say" aria-live="polite"></p>
        <p class="hl-lesson-note" id="hl-lesson-note"></p>
      </article>
      <section class="hl-card hl-code" id="hl-lesson-code"></section>
    </div>`;
  const find = selector => root.querySelector(selector);
  const code = mountCode(find("#hl-lesson-code"), app, () => `lesson_${answer.lessons.lesson}`);
  const remembered = {}; // the numbers of each lesson, so that a look at another does not lose them
  let answer, result, shown;

  find(".hl-lesson-list").onclick = event => {
    const letter = event.target.closest("[data-lesson]")?.dataset.lesson;
    if (letter && letter !== answer?.lessons.lesson) app.set({lesson: letter, numbers: remembered[letter] ?? null});
  };
  const controls = find("#hl-controls");
  controls.onsubmit = event => event.preventDefault();
  controls.oninput = event => {
    const input = event.target.closest("[name]");
    if (input) change(input.name, input.value);
  };

  // A value that a control holds; what is out of range is said here and asked nowhere.
  function change(name, value) {
    const parameter = answer.lessons.parameters.find(row => row.name === name), {low, high, kind} = parameter;
    const number = Number(value), field = t.plain(`parameter.${name}`, {}, name);
    const good = kind === "choice" || kind === "pixels" || (value.trim() !== "" && number >= low && number <= high && (kind === "number" || Number.isInteger(number)));
    find("#hl-wrong").innerHTML = good ? "" : t(`error.${kind}`, {field, value, low, high});
    controls.elements[name]?.setAttribute("aria-invalid", !good);
    if (good) app.set({numbers: encode({...answer.lessons.values, [name]: value})}, {replace: true});
  }

  function encode(values) {
    const changed = answer.lessons.parameters.filter(p => String(values[p.name]) !== String(p.default));
    return changed.map(p => `${p.name}:${values[p.name]}`).join(",") || null;
  }

  function control({name, kind, low, high, choices}) {
    const label = t(`parameter.${name}`, {}, name);
    if (kind === "choice") return `<label>${label} <select name="${name}">${choices.map(value => `<option value="${value}">${t(`option.${value.replaceAll(" ", "-")}`, {}, value)}</option>`).join("")}</select></label>`;
    if (kind === "pixels") return "";
    return `<label title="${low} … ${high}">${label} <input type="number" name="${name}" min="${low}" max="${high}" step="${kind === "integer" ? 1 : "any"}" required></label>`;
  }

  function show(next) {
    answer = next;
    const {lesson, parameters, values} = answer.lessons;
    const opened = lesson !== shown;
    if (opened) {
      shown = lesson;
      for (const button of root.querySelectorAll("[data-lesson]")) {
        const on = button.dataset.lesson === lesson, list = button.parentElement;
        if (on) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
        if (on && list.scrollWidth > list.clientWidth) list.scrollLeft = button.offsetLeft - list.offsetLeft - 40;
      }
      find("#hl-lesson-title").innerHTML = t(`lesson.${lesson}.title`);
      find("#hl-lesson-text").innerHTML = t(`lesson.${lesson}.text`);
      controls.innerHTML = parameters.map(control).join("");
      controls.hidden = !controls.children.length;
      find("#hl-wrong").innerHTML = "";
      result?.stop?.();
      find("#hl-result").innerHTML = "";
      result = RESULTS[lesson](find("#hl-result"), app, change);
    }
    for (const {name} of parameters) {
      const input = controls.elements[name];
      if (input && input !== document.activeElement) input.value = values[name];
    }
    remembered[lesson] = encode(values);
    if (lesson !== app.state.lesson || remembered[lesson] !== app.state.numbers) { // what fell back must not stay in the address
      Object.assign(app.state, {lesson, numbers: remembered[lesson]});
      history.replaceState(null, "", app.address());
    }
    say(result.show(answer.lessons, answer));
    code.show(answer.lessons.code);
    if (opened) { // a network comes first where there is one: scroll on to the lesson's own function
      const line = answer.lessons.code.split("\n").findIndex(text => /^def (grad_cam|layer_features)/.test(text)), pre = find("pre");
      pre.scrollTop = Math.max(0, line) * parseFloat(getComputedStyle(pre).lineHeight);
    }
  }

  function say([sentence, note = {}]) {
    find("#hl-say").innerHTML = sentence;
    find("#hl-lesson-note").innerHTML = t(`lesson.${shown}.note`, note, "");
  }

  return {
    show,
    display: () => answer && result.show(answer.lessons, answer),
    // "w:1,change:both" -> {w: "1", change: "both"}; the server knows what each must be.
    request: () => ({lesson: app.state.lesson, numbers: Object.fromEntries((app.state.numbers ?? "").split(",").filter(Boolean).map(pair => {
      const at = pair.indexOf(":");
      return at < 0 ? [pair, ""] : [pair.slice(0, at), pair.slice(at + 1)];
    }))}),
  };
}
