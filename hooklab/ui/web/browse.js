// Browse: 10,000 test images, what a network makes of them, and where the other one disagrees.
import {fromBase64, paint, picture} from "./stage.js";
import {percent} from "./words.js";

const FILTERS = {truth: null, predicted: null, outcome: "any", low: 0, high: 1, versus: "any", sort: "sure", sheet: 0};
const BYTES = 32 * 32 * 3;

export function mount(root, app) {
  const {t} = app, classes = app.model.classes.map((_, k) => app.className(k));
  const select = (key, options) => `<label>${t(`browse.${key}`)} <select data-filter="${key}">${options.map(([value, text]) => `<option value="${value}">${text}</option>`).join("")}</select></label>`;
  const anyClass = [["", t("browse.any")], ...app.model.classes.map((name, k) => [name, app.escape(classes[k])])];
  root.innerHTML = `
    <p class="hl-intro">${t("intro.browse")}</p>
    <p class="hl-say" id="hl-say" aria-live="polite"></p>
    <div class="hl-browse">
      <div>
        <table class="hl-matrix" role="grid" aria-label="${t("browse.matrix")}">
          <thead><tr><td><span>${t("browse.corner")}</span></td>${classes.map((name, k) => `<th scope="col" tabindex="-1" data-predicted="${k}"><span>${app.escape(name)}</span></th>`).join("")}</tr></thead>
          <tbody>${classes.map((name, row) => `<tr><th scope="row" tabindex="-1" data-truth="${row}">${app.escape(name)}</th>${classes.map((_, column) => `<td tabindex="-1" data-truth="${row}" data-predicted="${column}"></td>`).join("")}</tr>`).join("")}</tbody>
        </table>
        <p class="hl-soft" id="hl-cell">${t("browse.matrix.hint")}</p>
        <div class="hl-histogram" role="img"></div>
        <div class="hl-span">
          <label><span>${t("browse.low")}</span><input type="range" data-filter="low" min="0" max="1" step="0.05"><output></output></label>
          <label><span>${t("browse.high")}</span><input type="range" data-filter="high" min="0" max="1" step="0.05"><output></output></label>
        </div>
      </div>
      <div>
        <div class="hl-tools hl-filters">
          ${select("truth", anyClass)}${select("predicted", anyClass)}
          ${select("outcome", ["any", "right", "wrong"].map(name => [name, t(`browse.outcome.${name}`)]))}
          ${select("versus", ["any", "disagree", "only_this", "only_other", "neither"].map(name => [name, ""]))}
          ${select("sort", ["sure", "unsure", "index"].map(name => [name, t(`browse.sort.${name}`)]))}
          <button id="hl-reset">${t("browse.reset")}</button>
        </div>
        <div class="hl-found" role="group" aria-label="${t("browse.found")}"></div>
        <div class="hl-pager"><button data-turn="-1" aria-label="${t("browse.previous")}">◀</button><span></span><button data-turn="1" aria-label="${t("browse.next")}">▶</button></div>
      </div>
    </div>`;
  const find = selector => root.querySelector(selector);
  const matrix = find(".hl-matrix"), grid = find(".hl-found"), pager = find(".hl-pager span");
  let found = null, asked = "", sent = "", number = 0;

  const filters = () => Object.fromEntries(Object.keys(FILTERS).map(key => [key, app.state[key]]));
  const set = changes => app.set({sheet: 0, ...changes});

  // ---- what one can change

  for (const control of root.querySelectorAll("[data-filter]")) {
    const key = control.dataset.filter;
    if (control.type !== "range") control.onchange = () => set({[key]: control.value || null});
    else {
      control.oninput = () => control.parentElement.querySelector("output").textContent = percent(Number(control.value));
      control.onchange = () => {
        const value = Number(control.value), {low, high} = app.state;
        set(key === "low" ? {low: value, high: Math.max(value, high)} : {low: Math.min(value, low), high: value});
      };
    }
  }
  find("#hl-reset").onclick = () => app.set(FILTERS);
  find(".hl-pager").onclick = event => {
    const turn = Number(event.target.dataset.turn), sheet = found ? found.sheet + turn : 0;
    if (turn && found && sheet >= 0 && sheet < found.sheets) app.set({sheet});
  };

  // A click on the cell, row or column that is already chosen takes the choice back.
  const nameOf = text => text === undefined ? null : app.model.classes[text];
  const choose = cell => {
    const truth = nameOf(cell.dataset.truth), predicted = nameOf(cell.dataset.predicted), {state} = app;
    const again = state.truth === truth && state.predicted === predicted;
    set(again ? {truth: null, predicted: null} : {truth, predicted, outcome: state.outcome === "wrong" && truth === predicted && truth ? "any" : state.outcome});
  };
  matrix.onclick = event => { const cell = event.target.closest("[tabindex]"); if (cell) choose(cell); };
  const wordsOf = cell => {
    if (!found) return "";
    const {truth, predicted} = cell.dataset, row = truth && classes[truth], column = predicted && classes[predicted];
    const sum = found.matrix.reduce((total, counts, k) => total + (truth === undefined || k === Number(truth) ? predicted === undefined ? counts.reduce((a, b) => a + b) : counts[predicted] : 0), 0);
    const key = truth === undefined ? "browse.column" : predicted === undefined ? "browse.row" : truth === predicted ? "browse.cell.right" : "browse.cell";
    return t.plain(key, {truth: row, predicted: column, count: count(sum)});
  };
  const explain = event => {
    const cell = event.target.closest?.("[tabindex]");
    find("#hl-cell").textContent = cell ? wordsOf(cell) : t.plain("browse.matrix.hint");
  };
  for (const type of ["pointerover", "focusin"]) matrix.addEventListener(type, explain);
  for (const type of ["pointerleave", "focusout"]) matrix.addEventListener(type, () => find("#hl-cell").textContent = t.plain("browse.matrix.hint"));
  const across = 11; // ten classes and their head
  roam(matrix, () => [...matrix.querySelectorAll("thead td, [tabindex]")], () => across, choose);

  const open = tile => app.set({index: Number(tile.dataset.index), pixels: null, upload: null, target: null, tab: "gradcam"});
  grid.onclick = event => { const tile = event.target.closest("[data-index]"); if (tile) open(tile); };
  const tiles = () => [...grid.querySelectorAll("button:not(.none)")];
  roam(grid, tiles, () => Math.max(1, tiles().findIndex(tile => tile.offsetTop > grid.firstChild.offsetTop)));

  // ---- what the server found

  function request() {
    sent = JSON.stringify(filters());
    return filters();
  }

  function show(answer) {
    number++; // an answer to an older question, still on its way, comes too late
    asked = sent;
    put(answer.browse);
    display(); // the filters may have changed meanwhile
  }

  // Called when the state changed without a question from the page: a change of the filters asks here, and runs no model.
  async function display() {
    const now = JSON.stringify(filters());
    if (now === asked) return;
    asked = now;
    const mine = ++number;
    root.setAttribute("aria-busy", "true");
    try {
      const answer = await app.ask({view: "browse.find", model: app.state.model, ...filters()});
      if (mine === number) put(answer);
    } catch (error) { if (mine === number) app.tell(error.message, "error"); }
    if (mine === number) root.removeAttribute("aria-busy");
  }

  function put(answer) {
    found = answer;
    const {state} = app, title = app.model.title, other = found.other ? app.start.models[found.other].title : "";
    for (const control of root.querySelectorAll("[data-filter]")) {
      const key = control.dataset.filter;
      control.value = state[key] ?? "";
      const output = control.parentElement.querySelector("output");
      if (output) output.textContent = percent(state[key]);
      for (const option of key === "outcome" ? control.options : []) option.textContent = `${t.plain(`browse.outcome.${option.value}`)} (${count(found.outcomes[option.value])})`;
      if (key === "versus") {
        control.parentElement.hidden = !found.versus;
        for (const option of found.versus ? control.options : []) option.textContent = `${t.plain(`browse.versus.${option.value}`, {model: title, other})} (${count(found.versus[option.value])})`;
      }
    }
    find("#hl-reset").disabled = Object.entries(FILTERS).every(([key, value]) => state[key] === value);
    paintMatrix();
    paintHistogram();
    paintTiles(other);
    find("#hl-say").innerHTML = sentence(title, other);
    const first = found.sheet * found.per_sheet, last = first + found.images.index.length;
    pager.textContent = found.count ? t.plain("browse.page", {first: first + 1, last, count: count(found.count), low: percent(Math.min(...found.images.probability)), high: percent(Math.max(...found.images.probability))}) : t.plain("browse.none");
    find("[data-turn='-1']").setAttribute("aria-disabled", found.sheet === 0);
    find("[data-turn='1']").setAttribute("aria-disabled", found.sheet === found.sheets - 1);
  }

  function paintMatrix() {
    const {truth, predicted} = app.state;
    // The square root, so that ten mistakes can still be told from none; mistakes and right answers have a scale each.
    const most = right => Math.max(1, ...found.matrix.map((row, k) => Math.max(...row.filter((_, j) => (j === k) === right))));
    const scale = {true: most(true), false: most(false)};
    for (const cell of matrix.querySelectorAll("[tabindex]")) {
      const row = cell.dataset.truth, column = cell.dataset.predicted, chosen = nameOf(row) === truth && nameOf(column) === predicted;
      cell.setAttribute("aria-label", wordsOf(cell));
      cell.setAttribute("aria-selected", chosen);
      const inside = (truth || predicted) && (!truth || row === undefined || nameOf(row) === truth) && (!predicted || column === undefined || nameOf(column) === predicted);
      cell.classList.toggle("dim", Boolean((truth || predicted) && !inside));
      if (cell.tagName === "TH") continue;
      const value = found.matrix[row][column];
      cell.textContent = value || "·";
      cell.classList.toggle("right", row === column);
      cell.style.setProperty("--share", Math.sqrt(value / scale[row === column]).toFixed(3));
    }
  }

  function paintHistogram() {
    const {right, wrong} = found.histogram, box = find(".hl-histogram"), tallest = Math.max(1, ...right.map((n, k) => Math.sqrt(n + wrong[k])));
    const {low, high} = app.state, bins = right.length;
    box.innerHTML = right.map((n, k) => {
      const all = n + wrong[k], height = 100 * Math.sqrt(all) / tallest, inside = (k + 1) / bins > low && k / bins < high + (high === 1 ? 1 : 0);
      return `<i class="${inside ? "" : "dim"}" title="${t.plain("browse.bin", {low: Math.round(100 * k / bins), high: Math.round(100 * (k + 1) / bins), right: count(n), wrong: count(wrong[k])})}" style="--height:${height.toFixed(1)}%;--wrong:${all ? (100 * wrong[k] / all).toFixed(1) : 0}%"></i>`;
    }).join("");
    const total = [...right, ...wrong].reduce((a, b) => a + b, 0), sure = right.at(-1) + wrong.at(-1);
    box.setAttribute("aria-label", t.plain("browse.histogram", {count: count(total), sure: count(sure), right: percent(sure ? right.at(-1) / sure : 0)}));
  }

  function paintTiles(other) {
    const {index, label, predicted, probability, pixels, other: theirs, other_probability: theirs_p} = found.images;
    const bytes = fromBase64(pixels), focused = grid.contains(document.activeElement);
    while (grid.children.length < found.per_sheet) grid.insertAdjacentHTML("beforeend", `<button tabindex="-1"><canvas></canvas><i></i><span></span></button>`);
    [...grid.children].forEach((tile, k) => {
      tile.classList.toggle("none", k >= index.length);
      tile.tabIndex = k ? -1 : 0;
      if (k >= index.length) return;
      const values = {index: index[k], truth: classes[label[k]], predicted: classes[predicted[k]], p: percent(probability[k])};
      const words = [t.plain(label[k] === predicted[k] ? "browse.tile.right" : "browse.tile.wrong", values)];
      if (theirs) words.push(t.plain("browse.tile.other", {other, predicted: classes[theirs[k]], p: percent(theirs_p[k])}));
      tile.dataset.index = index[k];
      tile.title = words.join(" ");
      tile.setAttribute("aria-label", tile.title);
      tile.classList.toggle("wrong", label[k] !== predicted[k]);
      tile.style.setProperty("--p", `${(100 * probability[k]).toFixed(1)}%`);
      tile.lastChild.textContent = classes[predicted[k]];
      paint(tile.firstChild, picture(bytes.subarray(k * BYTES, (k + 1) * BYTES), [32, 32]));
    });
    if (focused && document.activeElement.matches?.(".none")) grid.firstChild.focus();
  }

  function sentence(title, other) {
    const {truth, predicted, outcome, low, high, versus} = app.state, say = [];
    const word = name => classes[app.model.classes.indexOf(name)];
    const values = {model: title, other, count: count(found.count), right: count(found.right), truth: word(truth), predicted: word(predicted), p: percent(found.count ? found.right / found.count : 0)};
    if (truth && predicted) say.push(t(truth === predicted ? "say.browse.cell.right" : "say.browse.cell", values));
    else say.push(t(`say.browse.${outcome}.${truth ? "truth" : predicted ? "predicted" : "all"}`, values));
    if (low > 0 || high < 1) say.push(t("say.browse.span", {low: percent(low), high: percent(high)}));
    if (versus !== "any" && other) say.push(t(`say.browse.${versus}`, values));
    if (!(truth && predicted)) {
      let most = [0, 0, 0];
      found.matrix.forEach((row, a) => row.forEach((n, b) => {
        const fits = (!truth || app.model.classes[a] === truth) && (!predicted || app.model.classes[b] === predicted);
        if (a !== b && fits && n > most[0]) most = [n, a, b];
      }));
      if (most[0]) say.push(t("say.browse.most", {count: count(most[0]), truth: classes[most[1]], predicted: classes[most[2]]}));
    }
    return say.join(" ");
  }
  const count = n => n.toLocaleString(document.documentElement.lang);

  return {show, display, request};
}

// One stop for the Tab key; the arrows, Home and End move inside; Enter and the space bar act as a click does.
function roam(root, items, columns, act) {
  root.addEventListener("focusin", event => {
    for (const item of items()) if (item.tabIndex === 0 && item !== event.target) item.tabIndex = -1;
    const item = event.target.closest("[tabindex]");
    if (item) item.tabIndex = 0;
  });
  const first = () => items().find(item => item.hasAttribute("tabindex"));
  if (first()) first().tabIndex = 0;
  root.addEventListener("keydown", event => {
    const all = items(), at = all.indexOf(event.target.closest("[tabindex]"));
    if (act && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); event.stopPropagation(); return act(all[at]); }
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + columns(), ArrowUp: at - columns(), Home: 0, End: all.length - 1}[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault(), event.stopPropagation();
    if (all[to]?.hasAttribute("tabindex")) all[to].focus();
    else if (event.key === "Home") first().focus();
  });
}
