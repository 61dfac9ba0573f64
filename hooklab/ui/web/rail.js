// The left rail: which image, which model, and the ten classes, which are the probabilities and the target picker in one.
import {fromBase64, paint, picture, toBase64} from "./stage.js";
import {percent} from "./words.js";

export function mountRail(root, app) {
  const {t, start} = app, own = app.state.index === null;
  root.innerHTML = `
    <div class="hl-card">
      <div class="hl-switch" role="tablist" aria-label="${t("image")}">
        <button role="tab" data-source="test" aria-selected="${!own}">${t("image.test")}</button>
        <button role="tab" data-source="own" aria-selected="${own}">${t("image.own")}</button>
      </div>
      <div class="hl-source" data-source="test">
        <canvas id="hl-input" class="hl-pixels" role="img"></canvas>
        <div>
          <div class="hl-step">
            <button data-step="-1" aria-label="${t("image.previous")}" title="${t("image.previous")} (←)">◀</button>
            <input id="hl-index" inputmode="numeric" autocomplete="off" aria-label="${t("image.index")}">
            <button data-step="1" aria-label="${t("image.next")}" title="${t("image.next")} (→)">▶</button>
          </div>
          <button class="hl-wide" id="hl-random">${t("image.random")}</button>
          <p id="hl-truth" class="hl-soft"></p>
        </div>
      </div>
      <div class="hl-source hl-own" data-source="own">
        <div class="hl-preview" id="hl-preview" hidden><img alt="${t("own.preview")}"><i></i></div>
        <div>
          <label class="hl-drop"><input type="file" accept="image/*" id="hl-file"><span>${t("own.drop")}</span></label>
          <button class="hl-wide" id="hl-camera">${t("own.camera")}</button><button class="hl-wide" id="hl-snap" hidden>${t("own.snap")}</button>
        </div>
        <video id="hl-video" playsinline muted hidden></video>
        <p id="hl-crop" class="hl-soft">${t("own.privacy")}</p>
      </div>
      <div class="hl-examples" role="group" aria-label="${t("image.examples")}">${Object.keys(start.examples).map(index => `<button data-example="${index}" aria-label="${t("image.example", {index})}" title="${index}"><canvas></canvas></button>`).join("")}</div>
    </div>
    <div class="hl-card">
      <label class="hl-field"><span>${t("model")}</span><select id="hl-model">${Object.entries(start.models).map(([name, model]) => `<option value="${name}" title="${model.card.accuracy ? t("accuracy", {p: percent(model.card.accuracy)}) : ""}">${app.escape(model.title)}${model.card.accuracy ? ` · ${percent(model.card.accuracy)}` : ""}</option>`).join("")}</select></label>
      <label class="hl-field"><span>${t("layer")}</span><select id="hl-layer"></select></label>
      <p class="hl-soft" id="hl-ask">${t("classes.hint")}</p>
      <div class="hl-classes" role="group" aria-label="${t("classes")}">${app.model.classes.map((_, k) => `
        <button class="hl-class" data-class="${k}" aria-pressed="false"><span>${app.className(k)}</span><span class="hl-bar"><i></i></span><span class="hl-number"></span></button>`).join("")}</div>
      <p id="hl-doubt" class="hl-doubt" title="${t("doubt.hint")}" hidden></p>
    </div>`;
  const find = selector => root.querySelector(selector);
  const index = find("#hl-index");
  let shownOwn = own;

  const showSource = source => {
    for (const tab of root.querySelectorAll(".hl-switch [role=tab]")) tab.setAttribute("aria-selected", tab.dataset.source === source);
    for (const box of root.querySelectorAll(".hl-source")) box.hidden = box.dataset.source !== source;
  };
  showSource(own ? "own" : "test");
  find(".hl-switch").onclick = event => event.target.dataset.source && showSource(event.target.dataset.source);

  const choose = k => app.set({index: k, pixels: null, upload: null, target: null});
  const step = by => {
    const from = app.state.index ?? start.index;
    choose(((from + by) % 10000 + 10000) % 10000);
  };
  for (const button of root.querySelectorAll("[data-step]")) button.onclick = () => step(Number(button.dataset.step));
  find("#hl-random").onclick = () => choose(Math.floor(Math.random() * 10000));
  index.onchange = () => {
    const value = /^\d{1,4}$/.test(index.value.trim()) ? Number(index.value) : NaN;
    if (isNaN(value)) { app.tell(t("error.integer", {field: t.plain("image.index"), value: index.value, low: 0, high: 9999}), "error"); index.value = app.state.index ?? ""; }
    else choose(value);
  };
  for (const button of root.querySelectorAll("[data-example]")) {
    paint(button.firstChild, picture(fromBase64(start.examples[button.dataset.example]), [32, 32]));
    button.onclick = () => { showSource("test"); choose(Number(button.dataset.example)); };
  }

  const model = find("#hl-model");
  model.value = app.state.model;
  model.onchange = async () => {
    const changes = {model: model.value, layer: null};
    if (app.state.upload) try { Object.assign(changes, await fit(app.state.upload.file, model.value)); } catch (error) { return app.tell(error.message, "error"); }
    app.set(changes);
  };

  const layer = find("#hl-layer");
  layer.onchange = () => app.set({layer: layer.value});
  const listLayers = () => {
    if (layer.dataset.model === app.state.model) return;
    layer.dataset.model = app.state.model;
    layer.innerHTML = app.model.layers.map(row => `<option value="${app.escape(row.name)}">${app.escape(row.name)} · ${app.escape(row.type)} · ${row.shape.join("×")}${row.spatial ? "" : ` · ${t("layer.nomap")}`}</option>`).join("");
  };

  const classes = find(".hl-classes");
  classes.onclick = event => {
    const button = event.target.closest("[data-class]");
    if (button) app.set({target: app.model.classes[button.dataset.class]});
  };

  // ---- one's own picture: from a file, the clipboard or a camera

  const fit = async (file, name) => {
    const fitted = await app.ask({view: "upload", model: name, file});
    return {index: null, pixels: fitted.pixels, upload: {file, ...fitted}};
  };
  const take = async blob => {
    if (!blob) return;
    const most = start.max_file_bytes;
    if (blob.size > most) return app.tell(t("error.image.too_many_bytes", {limit: most / 1e6}), "error");
    root.classList.add("busy");
    try {
      app.set({...await fit(toBase64(new Uint8Array(await blob.arrayBuffer())), app.state.model), target: null});
    } catch (error) { app.tell(error.message, "error"); }
    root.classList.remove("busy");
  };
  find("#hl-file").onchange = event => { take(event.target.files[0]); event.target.value = ""; };
  root.ondragover = event => event.preventDefault();
  root.ondrop = event => { event.preventDefault(); showSource("own"); take(event.dataTransfer.files[0]); };
  document.onpaste = event => {
    const file = [...event.clipboardData.files].find(f => f.type.startsWith("image/"));
    if (file) { showSource("own"); take(file); }
  };
  const video = find("#hl-video"), camera = find("#hl-camera"), snap = find("#hl-snap");
  const stop = () => { video.srcObject?.getTracks().forEach(track => track.stop()); video.srcObject = null; video.hidden = snap.hidden = true; };
  camera.onclick = async () => {
    if (video.srcObject) return stop();
    try {
      video.srcObject = await navigator.mediaDevices.getUserMedia({video: {facingMode: "environment"}}); // undefined on plain http
      video.hidden = snap.hidden = false;
      await video.play();
    } catch { app.tell(t("error.camera"), "error"); }
  };
  snap.onclick = () => {
    const canvas = Object.assign(document.createElement("canvas"), {width: video.videoWidth, height: video.videoHeight});
    canvas.getContext("2d").drawImage(video, 0, 0);
    stop();
    canvas.toBlob(take, "image/png");
  };

  function show(answer) {
    const {label, probabilities, predicted, target, size} = answer, {upload} = app.state;
    const mine = answer.index === null;
    if (mine !== shownOwn) showSource(mine ? "own" : "test"); // but leave the tab that was just opened by hand
    shownOwn = mine;
    app.paintInput(find("#hl-input"));
    find("#hl-input").setAttribute("aria-label", mine ? t.plain("alt.own") : t.plain("alt.input", {index: answer.index, class: app.className(label)}));
    index.value = answer.index ?? "";
    const right = label === predicted;
    find("#hl-truth").innerHTML = mine ? "" : t(right ? "truth.right" : "truth.wrong", {class: app.className(label)});
    const doubt = answer.doubt ?? {}, doubts = [];
    if (doubt.unlike) doubts.push(t("doubt.unlike", {p: percent(doubt.nearer)}));
    if (doubt.unsure) doubts.push(t("doubt.unsure", {model: app.model.title, below: percent(doubt.below), right: percent(doubt.right)}));
    find("#hl-doubt").innerHTML = doubts.join(" ");
    find("#hl-doubt").hidden = !doubts.length;
    const preview = find("#hl-preview");
    preview.hidden = !mine || !upload;
    preview.parentElement.classList.toggle("has", !preview.hidden);
    if (mine && upload) {
      const [w, h] = upload.original, [left, top, right, bottom] = upload.box;
      preview.querySelector("img").src = `data:image/png;base64,${upload.preview}`;
      Object.assign(preview.querySelector("i").style, {left: `${100 * left / w}%`, top: `${100 * top / h}%`, width: `${100 * (right - left) / w}%`, height: `${100 * (bottom - top) / h}%`});
      find("#hl-crop").innerHTML = t("own.crop", {w, h, side: `${Math.round(right - left)} × ${Math.round(bottom - top)}`, to: `${size[1]} × ${size[0]}`}) + " " + t("own.privacy");
    }
    model.value = app.state.model;
    listLayers();
    layer.value = answer.layer;
    for (const button of classes.children) {
      const k = Number(button.dataset.class), p = probabilities[k];
      button.setAttribute("aria-pressed", k === target);
      button.classList.toggle("predicted", k === predicted);
      button.setAttribute("aria-label", t.plain(k === predicted ? "class.predicted" : "class.row", {class: app.className(k), p: percent(p)}));
      button.querySelector("i").style.width = `${100 * p}%`;
      button.querySelector(".hl-number").textContent = percent(p);
    }
    for (const button of root.querySelectorAll("[data-example]")) button.classList.toggle("on", Number(button.dataset.example) === answer.index);
  }
  return {show, step};
}
