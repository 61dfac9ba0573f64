// Every class and layer: a grid of maps on one scale; a click on one opens it.
import {colorize, heat, paint, unpack} from "./stage.js";
import {mountTools} from "./tools.js";
import {placeWords} from "./gradcam.js";
import {fixed, percent, short} from "./words.js";

const SIDE = 128, SHOWN = ["classes", "difference", "layers", "methods"];

export function mount(root, app) {
  const {t} = app;
  root.innerHTML = `
    <p class="hl-intro" id="hl-intro"></p>
    <p class="hl-say" id="hl-say" aria-live="polite"></p>
    <div class="hl-row hl-bar-row"><div class="hl-switch hl-many" role="group" aria-label="${t("show")}">${SHOWN.map(name => `<button data-show="${name}">${t(`show.${name}`)}</button>`).join("")}</div>
      <label id="hl-other-label">${t("difference.other")} <select id="hl-other">${app.model.classes.map((name, k) => `<option value="${app.escape(name)}">${app.className(k)}</option>`).join("")}</select></label></div>
    <div class="hl-grid" role="group"></div>
    <div class="hl-tools"></div>`;
  const grid = root.querySelector(".hl-grid"), other = root.querySelector("#hl-other");
  const tools = mountTools(root.querySelector(".hl-tools"), app, ["legend", "colors", "opacity", "smooth"], `
    <label>${t("method")} <select id="hl-method">${Object.entries(app.start.methods).map(([name, title]) => `<option value="${name}">${app.escape(title)}</option>`).join("")}</select></label>`);
  root.querySelector("#hl-method").onchange = event => app.set({method: event.target.value});
  root.querySelector(".hl-many").onclick = event => event.target.dataset.show && app.set({show: event.target.dataset.show});
  other.onchange = () => app.set({other: other.value});
  let answer, maps;

  // What a tile stands for: its words, and the state that a click on it opens.
  const meaning = tile => ({
    classes: () => ({title: app.className(tile.name), note: percent(answer.probabilities[tile.name]), open: {target: app.model.classes[tile.name]}, on: tile.name === answer.target}),
    layers: () => ({title: app.layerLabel(tile.name), note: `${unpacked(tile).shape[1]} × ${unpacked(tile).shape[0]}`, open: {layer: tile.name}, on: tile.name === answer.layer}),
    methods: () => ({title: app.start.methods[tile.name], note: "", open: {method: tile.name}, on: tile.name === answer.method}),
    difference: () => tile.name === "difference"
      ? {title: t.plain("difference.title", pair()), note: "", open: null, on: false}
      : {title: app.className(tile.name === "target" ? answer.target : answer.other), note: percent(answer.probabilities[tile.name === "target" ? answer.target : answer.other]), open: {target: app.model.classes[tile.name === "target" ? answer.target : answer.other]}, on: tile.name === "target"},
  })[answer.show]();
  const unpacked = tile => maps[answer.tiles.indexOf(tile)];
  const pair = () => ({target: app.className(answer.target), other: app.className(answer.other)});

  function show(next) {
    answer = next;
    maps = answer.tiles.map(tile => unpack(tile.raw));
    root.querySelector("#hl-intro").innerHTML = t(`intro.${answer.show}`);
    for (const button of root.querySelectorAll("[data-show]")) button.setAttribute("aria-pressed", button.dataset.show === answer.show);
    root.querySelector("#hl-other-label").hidden = answer.show !== "difference";
    if (answer.show === "difference" && answer.tiles.length) other.value = app.model.classes[answer.other];
    root.querySelector("#hl-method").value = answer.method;
    root.querySelector("#hl-method").parentElement.hidden = answer.show === "methods";
    while (grid.children.length > answer.tiles.length) grid.lastChild.remove();
    while (grid.children.length < answer.tiles.length) grid.insertAdjacentHTML("beforeend", `<button class="hl-tile"><canvas role="img"></canvas><span><b></b> <small></small></span></button>`);
    grid.style.setProperty("--count", answer.tiles.length);
    grid.className = `hl-grid ${answer.show}`;
    answer.tiles.forEach((tile, k) => {
      const {title, note, open, on} = meaning(tile), button = grid.children[k];
      button.querySelector("b").textContent = title;
      button.querySelector("small").textContent = note;
      button.setAttribute("aria-pressed", on);
      button.onclick = open && (() => app.set({...open, ...(answer.show === "classes" ? {} : {tab: "gradcam"})}));
      button.disabled = !open;
    });
    root.querySelector("#hl-say").innerHTML = say();
    display();
  }

  function display() {
    tools.update();
    if (!answer) return;
    const {smooth, opacity} = app.state;
    // Maps of one layer and method share one scale; maps of several layers or methods have none in common.
    const shared = ["classes", "difference"].includes(answer.show) ? Math.max(0, ...answer.tiles.map(tile => Math.max(tile.high, answer.show === "difference" ? -tile.low : 0))) : null;
    answer.tiles.forEach((tile, k) => {
      const {shape: [h, w], values} = maps[k], signed = tile.name === "difference", canvas = grid.children[k].querySelector("canvas");
      const painted = heat(values, h, w, SIDE, SIDE, {smooth, peak: shared, normalization: signed ? "signed" : "max"});
      const table = signed ? app.tables.RdBu_r : app.table;
      paint(canvas, colorize(painted, SIDE, SIDE, table, {pixels: app.pixels, size: answer.size, opacity: signed ? 1 : tile.high > 0 ? opacity : 0}));
      const {title} = meaning(tile);
      canvas.setAttribute("aria-label", tile.high > 0 ? t.plain("alt.tile", {title, place: placeWords(app, tile)}) : t.plain("alt.tile.blank", {title}));
    });
    if (shared !== null) tools.legend("0", short(shared)); else tools.legend("0", t.plain("legend.own"));
  }

  function say() {
    const {tiles} = answer, layer = app.layerLabel(answer.layer), target = app.className(answer.target);
    if (!tiles.length) return t("say.nomap", {layer, shape: app.model.layers.find(row => row.name === answer.layer)?.shape.join(" × ")});
    const blank = tiles.filter(tile => tile.high <= 0).length;
    if (answer.show === "classes") {
      const best = tiles.reduce((a, b) => a.high >= b.high ? a : b);
      return t("say.classes", {layer, best: app.className(best.name), high: short(best.high)}) + (blank ? " " + t("say.classes.blank", {blank}) : "");
    }
    if (answer.show === "difference") return t("say.difference", {...pair(), layer, place: placeWords(app, tiles[2])});
    if (answer.show === "methods") return t("say.methods", {layer, target, agreement: fixed(answer.agreement), odd: app.start.methods[answer.odd], value: fixed(answer.odd_agreement)});
    const first = tiles.find(tile => tile.high > 0), last = tiles.findLast(tile => tile.high > 0);
    return first ? t("say.layers", {target, first: app.layerLabel(first.name), last: app.layerLabel(last.name), a: percent(first.above_half), b: percent(last.above_half)}) + (blank ? " " + t("say.layers.blank", {blank}) : "") : t("say.layers.none", {target});
  }

  return {show, display, request: () => ({show: app.state.show, other: app.state.other})};
}
