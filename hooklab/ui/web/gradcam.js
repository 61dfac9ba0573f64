// Where does it look? The input, the heatmap and the overlay, with the sentence that says what they show.
import {bilinear, colorize, heat, nearest, paint, range, unpack} from "./stage.js";
import {mountTools} from "./tools.js";
import {percent, short} from "./words.js";

const SIDE = 384; // canvas pixels: 12 for each of the input's 32

export function mount(root, app) {
  const {t} = app;
  const panel = name => `<figure><div class="hl-frame" data-panel="${name}"><canvas role="img" class="${name === "input" ? "hl-pixels" : ""}"></canvas><i class="hl-cross" hidden></i></div><figcaption><b>${t(`panel.${name}`)}</b><span></span></figcaption></figure>`;
  root.innerHTML = `
    <p class="hl-intro">${t("intro.gradcam")}</p>
    <p class="hl-say" id="hl-say" aria-live="polite"></p>
    <div class="hl-three">${["input", "heatmap", "overlay"].map(panel).join("")}</div>
    <p class="hl-probe" id="hl-probe"></p>
    <div class="hl-tools"></div>`;
  const tools = mountTools(root.querySelector(".hl-tools"), app, ["legend", "colors", "opacity", "smooth", "normalization"], `
    <label>${t("method")} <select id="hl-method">${Object.entries(app.start.methods).map(([name, title]) => `<option value="${name}">${app.escape(title)}</option>`).join("")}</select></label>
    <span class="hl-space"></span>
    <button id="hl-png">PNG</button><button id="hl-npz">npz</button>`);
  root.querySelector("#hl-method").onchange = event => app.set({method: event.target.value});
  root.querySelector("#hl-png").onclick = () => app.download("png");
  root.querySelector("#hl-npz").onclick = () => app.download("npz");
  const canvas = name => root.querySelector(`[data-panel=${name}] canvas`);
  const caption = name => root.querySelector(`[data-panel=${name}]`).parentElement.querySelector("figcaption span");
  let answer, map, painted;

  function show(next) {
    answer = next;
    map = answer.map && {...answer.map, ...unpack(answer.map.raw)};
    root.querySelector("#hl-method").value = answer.method;
    root.querySelector("#hl-say").innerHTML = sentence(app, answer);
    app.paintInput(canvas("input"));
    canvas("input").setAttribute("aria-label", answer.index === null ? t.plain("alt.own") : t.plain("alt.input", {index: answer.index, class: app.className(answer.label)}));
    caption("input").textContent = `${answer.size[1]} × ${answer.size[0]}`;
    caption("heatmap").textContent = map ? t.plain("panel.grid", {w: map.shape[1], h: map.shape[0]}) : "";
    probe(null);
    display();
  }

  // Colours, opacity, smoothing: painted anew from the numbers that are already here.
  function display() {
    tools.update();
    if (!answer) return;
    const {smooth, normalization, opacity} = app.state;
    root.classList.toggle("nomap", !map);
    const [h, w] = map ? map.shape : [1, 1], raw = map ? map.values : new Float32Array(1);
    painted = heat(raw, h, w, SIDE, SIDE, {smooth, normalization});
    paint(canvas("heatmap"), colorize(painted, SIDE, SIDE, app.table));
    paint(canvas("overlay"), colorize(painted, SIDE, SIDE, app.table, {pixels: app.pixels, size: answer.size, opacity: map && (!map.blank || normalization === "signed") ? opacity : 0}));
    const place = placeWords(app, map), target = app.className(answer.target);
    canvas("heatmap").setAttribute("aria-label", map ? t.plain(map.blank ? "alt.blank" : "alt.heatmap", {class: target, place}) : t.plain("alt.nomap"));
    canvas("overlay").setAttribute("aria-label", map ? t.plain(map.blank ? "alt.blank" : "alt.overlay", {class: target, place}) : t.plain("alt.nomap"));
    caption("overlay").textContent = `${Math.round(100 * opacity)} %`;
    const most = map && short(normalization === "signed" ? Math.max(-map.low, map.high) : Math.max(map.high, 0));
    if (map) tools.legend(normalization === "signed" ? `−${most}` : normalization === "max" ? "0" : short(Math.max(map.low, 0)), most);
    else tools.legend("", "");
  }

  // The value under the pointer, marked in all three panels at once.
  function probe(at) {
    for (const cross of root.querySelectorAll(".hl-cross")) {
      cross.hidden = !at;
      if (at) Object.assign(cross.style, {left: `${100 * at.x}%`, top: `${100 * at.y}%`});
    }
    const line = root.querySelector("#hl-probe");
    if (!at || !map) return void (line.innerHTML = t(map ? "probe.hint" : "probe.none"));
    const [H, W] = answer.size, [h, w] = map.shape;
    const row = Math.min(Math.floor(at.y * H), H - 1), column = Math.min(Math.floor(at.x * W), W - 1);
    const value = (app.state.smooth ? bilinear : nearest)(map.values, h, w, H, W)[row * W + column];
    const [red, green, blue] = app.pixels.slice(3 * (row * W + column));
    const part = map.high > 0 ? percent(Math.max(value, 0) / map.high) : "0 %";
    line.innerHTML = t("probe.value", {row, column, value: short(value), part, red, green, blue});
  }
  for (const frame of root.querySelectorAll(".hl-frame")) {
    frame.onpointermove = event => {
      const {left, top, width, height} = frame.getBoundingClientRect();
      const x = (event.clientX - left) / width, y = (event.clientY - top) / height;
      probe(x >= 0 && x < 1 && y >= 0 && y < 1 ? {x, y} : null);
    };
    frame.onpointerleave = () => probe(null);
  }
  return {show, display};
}

export function placeWords(app, map) {
  if (!map) return "";
  return map.places.map(name => app.t.plain(`place.${name}`)).join(app.t.plain("and")) || app.t.plain("place.spread");
}

export function sentence(app, answer) {
  const {t} = app, {map, probabilities, predicted, target} = answer;
  const values = {
    model: app.model.title, layer: app.layerLabel(answer.layer), method: app.start.methods[answer.method],
    class: app.className(predicted), p: percent(probabilities[predicted]), target: app.className(target), q: percent(probabilities[target]),
  };
  const say = [t("say.prediction", values)];
  if (target !== predicted) say.push(t("say.target", values));
  if (!map) say.push(t("say.nomap", {...values, shape: app.model.layers.find(row => row.name === answer.layer)?.shape.join(" × ")}));
  else if (map.blank) say.push(t("say.blank", {...values, low: short(map.low), high: short(map.high)}));
  else say.push(t(map.places.length ? "say.where" : "say.spread", {...values, place: placeWords(app, map), share: percent(map.share), area: percent(map.above_half)}), t("say.range", {low: short(map.low), high: short(map.high)}));
  return say.join(" ");
}
