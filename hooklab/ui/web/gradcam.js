// Where does it look? The input, the heatmap and the overlay, with the sentence that says what they show.
import {bilinear, colorize, heat, nearest, paint, unpack} from "./stage.js";
import {saveView} from "./save.js";
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
    <div class="hl-below"><p class="hl-probe" id="hl-probe"></p><span class="hl-space"></span>
      <span class="hl-build" id="hl-build" hidden><button id="hl-play" aria-label="${t("build.play")}">▶</button><input type="range" id="hl-count" min="0" aria-label="${t("build.slider")}"><output></output></span>
      <button id="hl-show-build" title="${t("build.hint")}">${t("build.show")}</button></div>
    <div class="hl-tools"></div>
    <button class="hl-true" id="hl-true"><svg viewBox="0 -2 120 44" preserveAspectRatio="none" aria-hidden="true"></svg><span></span></button>`;
  const tools = mountTools(root.querySelector(".hl-tools"), app, ["legend", "colors", "opacity", "smooth", "normalization"], `
    <label>${t("method")} <select id="hl-method">${Object.entries(app.start.methods).map(([name, title]) => `<option value="${name}">${app.escape(title)}</option>`).join("")}</select></label>
    <span class="hl-space"></span>
    <button id="hl-png">PNG</button><button id="hl-npz">npz</button><button id="hl-html" title="${t("save.html.hint")}">HTML</button>`);
  root.querySelector("#hl-method").onchange = event => app.set({method: event.target.value});
  root.querySelector("#hl-png").onclick = () => app.download("png");
  root.querySelector("#hl-npz").onclick = () => app.download("npz");
  root.querySelector("#hl-html").onclick = () => saveView(app);
  root.querySelector("#hl-true").onclick = () => app.set({tab: "evidence"});
  const canvas = name => root.querySelector(`[data-panel=${name}] canvas`);
  const caption = name => root.querySelector(`[data-panel=${name}]`).parentElement.querySelector("figcaption span");
  let answer, map, painted, stack = null, asking = 0, playing = 0;

  function show(next) {
    answer = next;
    map = answer.map && {...answer.map, ...unpack(answer.map.raw)};
    root.querySelector("#hl-method").value = answer.method;
    root.querySelector("#hl-say").innerHTML = sentence(app, answer);
    app.paintInput(canvas("input"));
    canvas("input").setAttribute("aria-label", answer.index === null ? t.plain("alt.own") : t.plain("alt.input", {index: answer.index, class: app.className(answer.label)}));
    caption("input").textContent = `${answer.size[1]} × ${answer.size[0]}`;
    caption("heatmap").textContent = map ? t.plain("panel.grid", {w: map.shape[1], h: map.shape[0], low: short(map.low), high: short(map.high)}) : "";
    probe(null);
    stopBuilding();
    display();
    judge();
  }

  // Colours, opacity, smoothing: painted anew from the numbers that are already here.
  function display() {
    tools.update();
    if (!answer) return;
    const {smooth, normalization, opacity} = app.state;
    root.classList.toggle("nomap", !map);
    const [h, w] = map ? map.shape : [1, 1], raw = stack ? stack.sum : map ? map.values : new Float32Array(1);
    painted = heat(raw, h, w, SIDE, SIDE, {smooth, normalization, ...(stack && normalization === "max" ? {peak: stack.peak} : {})});
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
  // ---- one sentence on whether the map is true, asked for once the map has been looked at for a moment

  function judge() {
    const card = root.querySelector("#hl-true"), asked = answer, ticket = ++asking;
    card.querySelector("span").innerHTML = map && !map.blank ? `<b>${t("tab.evidence")}</b> …` : t("true.none");
    card.querySelector("svg").innerHTML = "";
    card.classList.remove("ready");
    if (!map || map.blank) return;
    setTimeout(async () => {
      if (ticket !== asking || !root.isConnected) return;
      try {
        const {evidence} = await app.ask({...app.question("evidence"), layer: asked.layer, target: asked.target});
        if (ticket !== asking) return;
        const {map: own, random} = evidence.blur, at = k => own.fractions[k], index = own.fractions.findIndex(f => f >= 0.2 - 1e-9);
        const chance = random.deletion[random.fractions.findIndex(f => f >= 0.2 - 1e-9)];
        const line = (curve, who) => `<polyline class="${who}" points="${curve.fractions.map((f, k) => `${120 * f},${40 * (1 - curve.deletion[k])}`).join(" ")}"/>`;
        card.querySelector("svg").innerHTML = line(random, "random") + line(own, "map");
        card.querySelector("span").innerHTML = t("true.summary", {percent: Math.round(100 * at(index)), class: app.className(asked.target), before: percent(evidence.before), after: percent(own.deletion[index]), random: percent(chance)});
        card.classList.add("ready");
      } catch { if (ticket === asking) card.querySelector("span").innerHTML = t("true.later"); }
    }, 350);
  }

  // ---- the map built up channel by channel, the largest contribution first

  function stopBuilding() {
    clearInterval(playing);
    playing = 0;
    stack = null;
    root.querySelector("#hl-build").hidden = true;
    root.querySelector("#hl-show-build").hidden = !map || answer.method !== "gradcam";
  }

  root.querySelector("#hl-show-build").onclick = async () => {
    const asked = answer;
    try {
      const {features} = await app.ask({...app.question("features"), layer: asked.layer, target: asked.target});
      if (asked !== answer) return;
      const {shape: [C, h, w], values} = unpack(features.maps), maps = k => values.subarray(k * h * w, (k + 1) * h * w);
      const added = features.weights.map((weight, k) => weight * maps(k).reduce((a, b) => a + b, 0) / (h * w));
      const order = added.map((_, k) => k).sort((a, b) => added[b] - added[a]);
      stack = {order, added, maps, weights: features.weights, count: 0, sum: new Float32Array(h * w), peak: Math.max(map.high, 1e-30)};
      Object.assign(root.querySelector("#hl-count"), {max: C, value: 0});
      root.querySelector("#hl-build").hidden = false;
      root.querySelector("#hl-show-build").hidden = true;
      build(0);
      if (!matchMedia("(prefers-reduced-motion: reduce)").matches) play(); // else the slider alone moves it
    } catch (error) { app.tell(error.message, "error"); }
  };
  root.querySelector("#hl-count").oninput = event => { pause(); build(Number(event.target.value)); };
  root.querySelector("#hl-play").onclick = () => playing ? pause() : play();

  function build(count) {
    stack.sum.fill(0);
    for (const k of stack.order.slice(0, count)) stack.maps(k).forEach((v, at) => stack.sum[at] += stack.weights[k] * v);
    stack.count = count;
    const last = stack.order[count - 1];
    root.querySelector("#hl-count").value = count;
    root.querySelector("#hl-build output").innerHTML = count ? t("build.step", {count, all: stack.order.length, k: last, added: (stack.added[last] < 0 ? "" : "+") + short(stack.added[last])}) : t("build.start", {all: stack.order.length});
    display();
  }

  function play() {
    if (stack.count >= stack.order.length) build(0);
    root.querySelector("#hl-play").textContent = "❚❚";
    const step = Math.max(1, Math.round(stack.order.length / 128));
    playing = setInterval(() => {
      if (!stack || !root.isConnected || stack.count >= stack.order.length) return pause();
      build(Math.min(stack.count + step, stack.order.length));
    }, 60);
  }

  function pause() {
    clearInterval(playing);
    playing = 0;
    const button = root.querySelector("#hl-play");
    if (button) button.textContent = "▶";
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

// In words: what the network says, and where its map lies. `model` is another than the chosen one in networks.js.
export function sentence(app, answer, model = app.model) {
  const {t} = app, {map, probabilities, predicted, target} = answer;
  const values = {
    model: model.title, layer: app.layerLabel(answer.layer, model), method: app.start.methods[answer.method],
    class: app.className(predicted), p: percent(probabilities[predicted]), target: app.className(target), q: percent(probabilities[target]),
  };
  const say = [t("say.prediction", values)];
  if (target !== predicted) say.push(t("say.target", values));
  if (!map) say.push(t("say.nomap", {...values, shape: model.layers.find(row => row.name === answer.layer)?.shape.join(" × ")}));
  else if (map.blank) say.push(t("say.blank", {...values, low: short(map.low), high: short(map.high)}));
  else say.push(t(map.places.length ? "say.where" : "say.spread", {...values, place: placeWords(app, map), share: percent(map.share), area: percent(map.above_half)}));
  return say.join(" ");
}
