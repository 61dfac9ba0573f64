// What does the layer see? Every channel in one picture; a click enlarges one and says what it adds to the map.
import {silenced} from "./edits.js";
import {colorize, heat, paint, range, unpack} from "./stage.js";
import {mountTools} from "./tools.js";
import {short, percent} from "./words.js";

export function mount(root, app) {
  const {t} = app;
  root.innerHTML = `
    <p class="hl-intro">${t("intro.features")}</p>
    <p class="hl-say" id="hl-say" aria-live="polite"></p>
    <div class="hl-features">
      <div class="hl-sheet" role="group" aria-label="${t("channels")}"></div>
      <div class="hl-card hl-channel" id="hl-channel">
        <div class="hl-two"><figure><div class="hl-frame"><canvas role="img" id="hl-big"></canvas></div><figcaption><b></b></figcaption></figure>
        <figure><div class="hl-frame"><canvas role="img" id="hl-on"></canvas></div><figcaption><b>${t("channel.overlay")}</b></figcaption></figure></div>
        <dl id="hl-facts"></dl><div id="hl-actions" class="hl-row"><button id="hl-silence">${t("hooks.silence")}</button></div>
      </div>
    </div>
    <div class="hl-tools"></div>`;
  const tools = mountTools(root.querySelector(".hl-tools"), app, ["legend", "order", "scale", "colors", "opacity", "smooth"]);
  const sheet = root.querySelector(".hl-sheet"), silence = root.querySelector("#hl-silence");
  silence.onclick = () => app.set({tab: "hooks", edits: silenced(app.state.edits, answer.layer, Number(silence.dataset.channel)), left: 0, result: "run"});
  sheet.onclick = event => {
    const tile = event.target.closest("[data-channel]");
    if (tile) app.set({channel: Number(tile.dataset.channel)}, {replace: true});
  };
  sheet.onkeydown = event => {
    const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns()}[event.key];
    const next = by && sheet.children[[...sheet.children].indexOf(document.activeElement) + by];
    if (!by) return;
    event.preventDefault(), event.stopPropagation();
    if (next) next.focus(), next.click();
  };
  const columns = () => Math.max(1, [...sheet.children].findIndex(tile => tile.offsetTop > sheet.firstChild.offsetTop));
  let answer, maps, statistics;

  function show(next) {
    answer = next;
    const {shape, values} = unpack(answer.features.maps);
    const [C, h, w] = shape.length === 3 ? shape : [shape[0], 1, 1];
    maps = {C, h, w, of: k => values.subarray(k * h * w, (k + 1) * h * w), range: range(values)};
    statistics = Array.from({length: C}, (_, k) => {
      const map = maps.of(k), [low, high] = range(map), mean = map.reduce((a, b) => a + b, 0) / map.length;
      const weight = answer.features.weights?.[k] ?? null;
      return {k, low, high, mean, weight, contribution: weight === null ? 0 : weight * mean, zero: map.filter(v => v <= 0).length / map.length};
    });
    while (sheet.children.length > C) sheet.lastChild.remove();
    while (sheet.children.length < C) sheet.insertAdjacentHTML("beforeend", "<button><canvas></canvas></button>");
    sheet.style.setProperty("--columns", C > 1 ? Math.min(Math.max(8, Math.ceil(Math.sqrt(2 * C))), 32) : 1);
    display();
  }

  function display() {
    tools.update();
    if (!answer) return;
    const {order, scale} = app.state, {C, h, w} = maps;
    const rank = {index: s => s.k, mean: s => -s.mean, contribution: s => -s.contribution}[order];
    const ordered = [...statistics].sort((a, b) => rank(a) - rank(b) || a.k - b.k);
    const chosen = statistics[app.state.channel] ?? ordered[0];
    const common = scale === "common" || h * w === 1;
    ordered.forEach((s, at) => {
      const tile = sheet.children[at];
      tile.dataset.channel = s.k;
      tile.setAttribute("aria-pressed", s === chosen);
      tile.setAttribute("aria-label", t.plain("channel.row", {k: s.k, mean: short(s.mean)}));
      tile.title = tile.getAttribute("aria-label");
      paint(tile.firstChild, colorize(stretch(maps.of(s.k), common ? maps.range : [s.low, s.high]), h, w, app.table));
    });
    tools.legend(short(Math.min(common ? maps.range[0] : chosen.low, 0)), short(common ? maps.range[1] : chosen.high));
    enlarge(chosen, common ? maps.range : [chosen.low, chosen.high]);
    const live = statistics.filter(s => s.high > 0).length, layer = app.layerLabel(answer.layer);
    const helping = statistics.filter(s => s.contribution > 0).length;
    root.querySelector("#hl-say").innerHTML = t("say.features", {layer, count: C, size: `${h} × ${w}`, live}) + (answer.features.weights ? " " + t("say.helping", {helping, class: app.className(answer.target)}) : "");
  }

  function enlarge(s, [low, high]) {
    const {h, w} = maps, {smooth, opacity} = app.state, side = 256;
    const stretched = stretch(maps.of(s.k), [low, high]);
    const big = heat(stretched, h, w, side, side, {smooth, peak: 1});
    const canvas = root.querySelector("#hl-big"), on = root.querySelector("#hl-on");
    paint(canvas, colorize(big, side, side, app.table));
    paint(on, colorize(big, side, side, app.table, {pixels: app.pixels, size: answer.size, opacity}));
    canvas.setAttribute("aria-label", t.plain("alt.channel", {k: s.k, low: short(s.low), high: short(s.high)}));
    on.setAttribute("aria-label", t.plain("alt.channel.overlay", {k: s.k}));
    silence.dataset.channel = s.k;
    root.querySelector("#hl-channel figcaption b").textContent = t.plain("channel.name", {k: s.k});
    const rows = [["range", `${short(s.low)} … ${short(s.high)}`], ["mean", short(s.mean)], ["sparsity", percent(s.zero)]];
    if (s.weight !== null) rows.push(["weight", short(s.weight)], ["contribution", short(s.contribution)]);
    root.querySelector("#hl-facts").innerHTML = rows.map(([name, value]) => `<div title="${t(`fact.${name}.hint`)}"><dt>${t(`fact.${name}`)}</dt><dd>${value}</dd></div>`).join("");
  }
  return {show, display};
}

// To [0, 1]; maps without negative values start at 0, so that "no response" is the table's first colour.
function stretch(map, [low, high]) {
  const from = Math.min(low, 0);
  return map.map(v => high > from ? Math.min(Math.max((v - from) / (high - from), 0), 1) : 0);
}
