// Two networks on one image: the same class, one map each.
import {colorize, heat, paint, unpack} from "./stage.js";
import {placeWords, sentence} from "./gradcam.js";
import {mountTools} from "./tools.js";
import {percent} from "./words.js";

const SIDE = 256;

export function mount(root, app) {
  const {t} = app;
  root.innerHTML = `
    <p class="hl-intro">${t("intro.networks")}</p>
    <p class="hl-say" id="hl-say" aria-live="polite"></p>
    <div class="hl-networks"></div>
    <div class="hl-tools"></div>`;
  const tools = mountTools(root.querySelector(".hl-tools"), app, ["colors", "opacity", "smooth", "normalization"], `
    <span class="hl-space"></span><button id="hl-next">${t("networks.next")}</button><button id="hl-all">${t("networks.all")}</button>`);
  const box = root.querySelector(".hl-networks");
  root.querySelector("#hl-all").onclick = () => app.set({tab: "browse", versus: "disagree", truth: null, predicted: null, outcome: "any", low: 0, high: 1, sheet: 0});
  root.querySelector("#hl-next").onclick = async () => {
    try {
      const {index} = await app.ask({view: "networks.next", index: app.state.index ?? 0});
      app.set({index, pixels: null, upload: null, target: null});
    } catch (error) { app.tell(error.message, "error"); }
  };
  let answer, maps;

  function card(name) {
    const model = app.start.models[name], {accuracy} = model.card;
    const options = model.layers.map(layer => `<option value="${app.escape(layer.name)}">${app.escape(app.layerLabel(layer.name, model))}${layer.spatial ? "" : ` · ${t("layer.nomap")}`}</option>`);
    const element = document.createElement("section");
    element.className = "hl-card";
    element.dataset.model = name;
    element.innerHTML = `
      <div class="hl-row"><h2>${app.escape(model.title)}</h2>${accuracy ? `<span class="hl-soft" title="${t.plain("accuracy", {p: percent(accuracy)})}">${percent(accuracy)}</span>` : ""}<span class="hl-space"></span>
        <label>${t("layer")} <select>${options.join("")}</select></label>
        <button class="hl-look" title="${t.plain("networks.look.hint", {model: model.title})}">${t("networks.look")}</button></div>
      <div class="hl-two">${["heatmap", "overlay"].map(panel => `<figure><div class="hl-frame" data-panel="${panel}"><canvas role="img"></canvas></div><figcaption><b>${t(`panel.${panel}`)}</b></figcaption></figure>`).join("")}</div>
      <p class="hl-verdict"></p>
      <div class="hl-top"></div>`;
    const chosen = () => name === app.state.model;
    element.querySelector("select").onchange = event => app.set({[chosen() ? "layer" : "other_layer"]: event.target.value});
    element.querySelector(".hl-look").onclick = () => {
      const {layer, other_layer} = app.state;
      app.set({tab: "gradcam", ...(chosen() ? {} : {model: name, layer: other_layer, other_layer: layer})});
    };
    return element;
  }

  function show(next) {
    answer = next;
    // In the same places, whichever is chosen: nothing changes sides.
    const names = Object.keys(app.start.models).filter(name => answer.networks.some(found => found.model === name));
    if ([...box.children].map(child => child.dataset.model).join() !== names.join()) box.replaceChildren(...names.map(card));
    maps = Object.fromEntries(answer.networks.map(found => [found.model, found.map && {...found.map, ...unpack(found.map.raw)}]));
    const other = answer.networks.find(found => found.model !== answer.model);
    if (app.state.other_layer && other && other.layer !== app.state.other_layer) { // what fell back must not stay in the address
      app.state = {...app.state, other_layer: null};
      history.replaceState(null, "", app.address());
    }
    for (const found of answer.networks) {
      const element = box.querySelector(`[data-model="${found.model}"]`), model = app.start.models[found.model];
      element.classList.toggle("chosen", found.model === answer.model);
      element.querySelector("select").value = found.layer;
      element.querySelector(".hl-verdict").innerHTML = sentence(app, {...answer, ...found}, model);
      const order = found.probabilities.map((p, k) => [p, k]).sort((a, b) => b[0] - a[0]).slice(0, 3);
      element.querySelector(".hl-top").innerHTML = order.map(([p, k]) => `<span>${app.className(k)}</span><span class="hl-bar"><i style="width:${(100 * p).toFixed(1)}%"></i></span><span class="hl-number">${percent(p)}</span>`).join("");
    }
    root.querySelector("#hl-say").innerHTML = comparison();
    display();
  }

  function display() {
    tools.update();
    if (!answer) return;
    const {smooth, normalization, opacity} = app.state, target = app.className(answer.target);
    for (const [name, map] of Object.entries(maps)) {
      const element = box.querySelector(`[data-model="${name}"]`), [heatmap, overlay] = element.querySelectorAll("canvas");
      const [h, w] = map ? map.shape : [1, 1], painted = heat(map ? map.values : new Float32Array(1), h, w, SIDE, SIDE, {smooth, normalization});
      element.classList.toggle("nomap", !map);
      paint(heatmap, colorize(painted, SIDE, SIDE, app.table));
      paint(overlay, colorize(painted, SIDE, SIDE, app.table, {pixels: app.pixels, size: answer.size, opacity: map && (!map.blank || normalization === "signed") ? opacity : 0}));
      for (const [canvas, key] of [[heatmap, "alt.heatmap"], [overlay, "alt.overlay"]])
        canvas.setAttribute("aria-label", `${app.start.models[name].title}: ${t.plain(!map ? "alt.nomap" : map.blank ? "alt.blank" : key, {class: target, place: placeWords(app, map)})}`);
    }
  }

  function comparison() {
    const [mine, other] = answer.networks, title = found => app.start.models[found.model].title;
    if (!other) return t("say.networks.one");
    const facts = {
      model: title(mine), other: title(other), class: app.className(mine.predicted), their: app.className(other.predicted),
      p: percent(mine.probabilities[mine.predicted]), q: percent(other.probabilities[other.predicted]), target: app.className(answer.target),
      truth: answer.label === null ? "" : app.className(answer.label), overlap: answer.overlap === null ? "" : percent(answer.overlap),
    };
    const agree = mine.predicted === other.predicted, right = [mine, other].filter(found => found.predicted === answer.label);
    const say = [t(agree ? "say.networks.agree" : "say.networks.disagree", facts)];
    if (answer.label !== null) {
      if (agree) say.push(t(right.length ? "say.networks.both" : "say.networks.neither", facts));
      else say.push(t(right.length ? "say.networks.right" : "say.networks.neither", {...facts, model: right.length ? title(right[0]) : ""}));
    }
    if (answer.overlap !== null) say.push(t("say.networks.overlap", facts));
    return say.join(" ");
  }
  return {show, display, request: () => ({other_layer: app.state.other_layer})};
}
