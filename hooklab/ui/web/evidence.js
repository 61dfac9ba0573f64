// Is it true? Erase what the map points at, by its order or by hand; shuffle the weights; nudge the picture.
import {colorize, fromBase64, heat, paint, picture, toBase64, unpack} from "./stage.js";
import {mountTools} from "./tools.js";
import {fixed, percent, short} from "./words.js";

const TESTS = ["erase", "sanity", "stability", "split"], SIDE = 192;

// The picture that is left, with a line around what was erased: blurred pixels alone are hard to tell from the others.
function paintErased(canvas, pixels, original, [H, W]) {
  const scale = Math.max(1, Math.round(384 / Math.max(H, W))), small = document.createElement("canvas");
  paint(small, picture(pixels, [H, W]));
  Object.assign(canvas, {width: W * scale, height: H * scale});
  const pen = canvas.getContext("2d"), changed = (y, x) => y >= 0 && x >= 0 && y < H && x < W && [0, 1, 2].some(c => pixels[3 * (y * W + x) + c] !== original[3 * (y * W + x) + c]);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, W * scale, H * scale);
  pen.beginPath();
  for (let y = 0; y <= H; y++)
    for (let x = 0; x <= W; x++) {
      if (changed(y, x) !== changed(y - 1, x)) pen.moveTo(x * scale, y * scale), pen.lineTo((x + 1) * scale, y * scale);
      if (changed(y, x) !== changed(y, x - 1)) pen.moveTo(x * scale, y * scale), pen.lineTo(x * scale, (y + 1) * scale);
    }
  for (const [color, width] of [["#000", 3.5], ["#fff", 1.5]]) Object.assign(pen, {strokeStyle: color, lineWidth: width}), pen.stroke();
}

export function mount(root, app) {
  const {t} = app;
  root.innerHTML = `
    <p class="hl-intro" id="hl-intro"></p>
    <p class="hl-say" id="hl-say" aria-live="polite"></p>
    <div class="hl-row hl-bar-row"><div class="hl-switch hl-many" role="group" aria-label="${t("test")}">${TESTS.map(name => `<button data-test="${name}">${t(`test.${name}`)}</button>`).join("")}</div></div>
    <div data-part="erase">
      <div class="hl-erase">
        <figure><div class="hl-frame"><canvas id="hl-left" class="hl-pixels" role="img"></canvas></div><figcaption><b>${t("erase.left")}</b><span>${t("erase.brush.hint")}</span></figcaption></figure>
        <div class="hl-paired" id="hl-paired" role="img"></div>
        <div class="hl-curves"></div>
      </div>
      <div class="hl-tools">
        <label>${t("erase.amount")} <input type="range" id="hl-percent" min="0" max="100" step="5"><output></output></label>
        <label><select id="hl-which" aria-label="${t("erase.which")}"><option value="hottest">${t("erase.hottest")}</option><option value="coldest">${t("erase.coldest")}</option></select></label>
        <label>${t("erase.baseline")} <select id="hl-baseline"><option value="blur">${t("erase.blur")}</option><option value="grey">${t("erase.grey")}</option></select></label>
        <button id="hl-clear">${t("erase.clear")}</button>
      </div>
    </div>
    <div data-part="sanity"><div class="hl-grid layers"></div><div class="hl-curves"></div></div>
    <div data-part="stability"><div class="hl-three"></div></div>
    <div data-part="split"><div class="hl-grid classes"></div><h3>${t("split.least")}</h3><div class="hl-least" role="group" aria-label="${t("split.least")}"></div><h3>${t("split.table")}</h3><div class="hl-scroll" tabindex="0" role="region" aria-label="${t("split.table")}"><table class="hl-table-of"></table></div></div>
    <div class="hl-tools" data-display></div>`;
  const tools = mountTools(root.querySelector("[data-display]"), app, ["legend", "colors", "opacity", "smooth"], `
    <label>${t("method")} <select id="hl-method">${Object.entries(app.start.methods).map(([name, title]) => `<option value="${name}">${app.escape(title)}</option>`).join("")}</select></label>`);
  const find = selector => root.querySelector(selector), part = name => find(`[data-part=${name}]`);
  find("#hl-method").onchange = event => app.set({method: event.target.value});
  find(".hl-many").onclick = event => event.target.dataset.test && app.set({test: event.target.dataset.test});
  find("#hl-percent").oninput = event => { mask = null; app.set({percent: Number(event.target.value)}, {replace: true}); };
  find("#hl-which").onchange = event => { mask = null; app.set({which: event.target.value}); };
  find("#hl-baseline").onchange = event => app.set({baseline: event.target.value});
  find("#hl-clear").onclick = () => { mask = null; app.set({percent: 0}); display(); };

  let answer, left = null, mask = null, running = null, again = false, result = null, key = "";

  function show(next) {
    answer = next;
    mask = null;
    left = result = null;
    find("#hl-method").value = answer.method;
    display();
  }

  function display() {
    tools.update();
    if (!answer) return;
    const {test, percent: amount, which, baseline} = app.state;
    for (const name of TESTS) part(name).hidden = name !== test || (!answer.evidence && test !== "split");
    for (const button of root.querySelectorAll("[data-test]")) button.setAttribute("aria-pressed", button.dataset.test === test);
    find("#hl-intro").innerHTML = t(`intro.${test}`);
    find("[data-display]").hidden = test === "erase";
    tools.legend("0", t.plain("legend.own"));
    if (!answer.evidence && test !== "split") return void (find("#hl-say").innerHTML = t("say.nomap", {layer: app.layerLabel(answer.layer), shape: app.model.layers.find(row => row.name === answer.layer)?.shape.join(" × ")}));
    if (test === "erase") {
      find("#hl-percent").value = amount, find("#hl-percent + output").textContent = `${amount} %`;
      find("#hl-which").value = which, find("#hl-baseline").value = baseline;
      part("erase").querySelector(".hl-curves").innerHTML = ["deletion", "insertion"].map(kind => curves(kind)).join("");
      attempt();
    } else if (result?.test === test) ({sanity: showSanity, stability: showStability, split: showSplit})[test](result);
    else load(test);
  }

  // ---- erasing

  // Keep only the latest wish while an answer is on its way.
  async function attempt() {
    if (running) return void (again = true);
    do {
      again = false;
      const {percent: amount, which, baseline} = app.state, asked = answer;
      running = app.ask({...app.question("evidence.attempt"), layer: answer.layer, target: answer.target, percent: amount, which, baseline, ...(mask ? {mask: toBase64(mask)} : {})});
      try {
        const found = await running;
        if (asked === answer) { left = found; paintLeft(); }
      } catch (error) { app.tell(error.message, "error"); }
      running = null;
    } while (again);
  }

  function paintLeft() {
    if (!find("#hl-left") || app.state.test !== "erase") return;
    paintErased(find("#hl-left"), fromBase64(left.pixels), app.pixels, left.size);
    const before = answer.probabilities, after = left.probabilities, k = answer.target, values = {class: app.className(k), before: percent(before[k]), after: percent(after[k])};
    find("#hl-left").setAttribute("aria-label", t.plain("alt.erased", values));
    const paired = find("#hl-paired");
    paired.setAttribute("aria-label", t.plain("alt.paired", values));
    paired.innerHTML = before.map((p, c) => `<div class="${c === k ? "on" : ""}"><span>${app.className(c)}</span><span class="hl-pair"><i style="width:${100 * p}%"></i><i style="width:${100 * after[c]}%"></i></span><span>${percent(after[c])}</span></div>`).join("") + `<p class="hl-soft">${t("paired.legend")}</p>`;
    const {percent: amount, which, baseline} = app.state;
    if (mask) return void (find("#hl-say").innerHTML = t("say.covered", {...values, amount: percent(mask.reduce((a, b) => a + b, 0) / mask.length)}));
    const curve = answer.evidence[baseline];
    const others = which === "hottest" ? {random: percent(at(curve.random, "deletion", amount)), centre: percent(at(curve.centre, "deletion", amount))} : null;
    find("#hl-say").innerHTML = t(others ? "say.erased" : "say.erased.coldest", {...values, amount, ...others}) + " " + t("say.area", {deletion: curve.map.deletion_area.toFixed(2), random: curve.random.deletion_area.toFixed(2)});
  }

  // The brush: covers round spots of the picture, wherever the viewer likes.
  const canvas = find("#hl-left");
  canvas.onpointerdown = event => { canvas.setPointerCapture(event.pointerId); mask ??= new Uint8Array(answer.size[0] * answer.size[1]); brush(event); };
  canvas.onpointermove = event => event.buttons && mask && brush(event);
  function brush(event) {
    const {left: x0, top: y0, width, height} = canvas.getBoundingClientRect(), [H, W] = answer.size;
    const x = (event.clientX - x0) / width * W, y = (event.clientY - y0) / height * H, radius = Math.max(H, W) / 14;
    for (let row = 0; row < H; row++)
      for (let column = 0; column < W; column++)
        if (Math.hypot(column + 0.5 - x, row + 0.5 - y) <= radius) mask[row * W + column] = 1;
    attempt();
  }

  function at(curve, kind, amount) {
    const {fractions, [kind]: values} = curve, x = amount / 100;
    const k = Math.max(1, fractions.findIndex(f => f >= x - 1e-9)), part = (x - fractions[k - 1]) / (fractions[k] - fractions[k - 1]);
    return values[k - 1] * (1 - part) + values[k] * part;
  }

  function curves(kind) {
    const {baseline, percent: amount} = app.state, found = answer.evidence[baseline], W = 300, H = 130;
    const line = who => found[who].fractions.map((f, k) => `${(f * W).toFixed(1)},${((1 - found[who][kind][k]) * H).toFixed(1)}`).join(" ");
    const words = {class: app.className(answer.target), area: found.map[`${kind}_area`].toFixed(2), random: found.random[`${kind}_area`].toFixed(2), centre: found.centre[`${kind}_area`].toFixed(2)};
    return `<figure class="hl-curve"><figcaption><b>${t(`curve.${kind}`)}</b><span>${t(`curve.${kind}.hint`)}</span></figcaption>
      <svg viewBox="-2 -4 ${W + 4} ${H + 8}" preserveAspectRatio="none" role="img" aria-label="${t.plain(`alt.${kind}`, words)}">
        ${[0, 0.5, 1].map(y => `<line class="grid" x1="0" x2="${W}" y1="${y * H}" y2="${y * H}"/>`).join("")}
        <line class="mark" x1="${amount / 100 * W}" x2="${amount / 100 * W}" y1="0" y2="${H}"/>
        ${["centre", "random", "map"].map(who => `<polyline class="${who}" points="${line(who)}"/>`).join("")}
      </svg><p class="hl-soft">${["map", "random", "centre"].map(who => `<span class="hl-keyed"><i class="hl-key ${who}"></i>${t(`curve.${who}`)} ${found[who][`${kind}_area`].toFixed(2)}</span> `).join("")}</p></figure>`;
  }

  // ---- the slower tests, on demand

  async function load(test) {
    const wanted = [answer.model, answer.index, answer.layer, answer.target, answer.method, test].join("|");
    if (key === wanted && result === null) return; // already on its way
    key = wanted;
    find("#hl-say").innerHTML = t("working");
    try {
      const found = await app.ask({...app.question(`evidence.${test}`), layer: answer.layer, target: answer.target});
      if (key !== wanted || app.state.test !== test) return;
      result = {test, ...found};
      display();
    } catch (error) { app.tell(error.message, "error"); find("#hl-say").innerHTML = ""; }
    key = "";
  }

  function tile(raw, title, note, {peak = null, over = true} = {}) {
    const {shape: [h, w], values} = raw.values ? raw : unpack(raw), box = document.createElement("figure");
    box.innerHTML = `<canvas role="img"></canvas><figcaption><b>${app.escape(title)}</b><span>${app.escape(note)}</span></figcaption>`;
    const painted = heat(values, h, w, SIDE, SIDE, {smooth: app.state.smooth, peak});
    paint(box.firstChild, colorize(painted, SIDE, SIDE, app.table, over ? {pixels: app.pixels, size: answer.size, opacity: app.state.opacity} : {}));
    box.firstChild.setAttribute("aria-label", `${title} ${note}`);
    return box;
  }

  function showSanity(found) {
    const grid = part("sanity").querySelector(".hl-grid");
    grid.replaceChildren(tile(found.original, t.plain("sanity.original"), ""), ...found.steps.map(step => tile(step.raw, t.plain("sanity.step", {layer: step.name}), `ρ ${fixed(step.correlation)} · SSIM ${fixed(step.ssim)}`)));
    grid.style.setProperty("--count", found.steps.length + 1);
    const verdict = found.passed ? "passed" : found.sees_weights ? "class" : found.sees_class ? "weights" : "both";
    find("#hl-say").innerHTML = t(`say.sanity.${verdict}`, {method: app.start.methods[answer.method], layer: app.layerLabel(answer.layer), last: fixed(found.steps.at(-1).correlation), threshold: found.threshold});
  }

  function showStability(found) {
    const top = Math.max(...unpack(found.spread).values);
    part("stability").querySelector(".hl-three").replaceChildren(
      tile(found.mean, t.plain("stability.mean"), t.plain("stability.of", {count: found.variants + 1}), {peak: 1}),
      tile(found.spread, t.plain("stability.spread"), t.plain("stability.most", {value: short(top)}), {over: false}));
    find("#hl-say").innerHTML = t("say.stability", {agreement: fixed(found.agreement), shift: fixed(found.kinds.shift), flip: fixed(found.kinds.flip), noise: fixed(found.kinds.noise)});
  }

  function showSplit(found) {
    const {shape: [K, h, w], values} = unpack(found.average), grid = part("split").querySelector(".hl-grid");
    const top = Math.max(...values), packed = k => ({shape: [h, w], values: values.subarray(k * h * w, (k + 1) * h * w)});
    grid.replaceChildren(...Array.from({length: K}, (_, k) => tile(packed(k), app.className(k), t.plain("split.count", {count: found.counts[k]}), {over: false, peak: top})));
    const least = part("split").querySelector(".hl-least");
    least.replaceChildren(...found.least.map(({index, pixels}) => {
      const button = Object.assign(document.createElement("button"), {title: index, onclick: () => app.set({index, pixels: null, upload: null, target: null, tab: "gradcam", layer: found.layer_of_maps})});
      button.setAttribute("aria-label", t.plain("image.example", {index}));
      button.append(document.createElement("canvas"));
      paint(button.firstChild, picture(fromBase64(pixels), [32, 32]));
      return button;
    }));
    const columns = ["deletion", "insertion", "drop", "increase", "beats_random"], share = name => ["drop", "increase", "beats_random"].includes(name);
    const cell = (row, name) => row[name] ? (share(name) ? `${(100 * row[name].value).toFixed(1)} ± ${(100 * row[name].half).toFixed(1)} %` : `${row[name].value.toFixed(3)} ± ${row[name].half.toFixed(3)}`) : "";
    part("split").querySelector("table").innerHTML = `<thead><tr><th>${t("method")}</th>${columns.map(name => `<th title="${t(`split.${name}.hint`)}">${t(`split.${name}`)}</th>`).join("")}<th>${t("split.blank")}</th></tr></thead>
      <tbody>${found.table.map(row => `<tr><th>${app.start.methods[row.method] ?? t(`curve.${row.method}`)}</th>${columns.map(name => `<td>${cell(row, name)}</td>`).join("")}<td>${row.blank === null ? "" : percent(row.blank)}</td></tr>`).join("")}</tbody>`;
    const best = found.table.filter(row => row.beats_random && app.start.methods[row.method]).reduce((a, b) => a.beats_random.value >= b.beats_random.value ? a : b);
    find("#hl-say").innerHTML = t("say.split", {model: app.model.title, best: app.start.methods[best.method], share: percent(best.beats_random.value), count: found.table_images, central: percent(found.central), images: found.images});
  }

  return {show, display};
}
