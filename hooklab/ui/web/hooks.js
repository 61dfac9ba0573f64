// Hooks: attach them to the network, see when each fires and what passes, change it, and see what that does.
import {journey} from "./diagram.js";
import {colorize, heat, paint, range, unpack} from "./stage.js";
import {percent, short} from "./words.js";
import {format, layerPlace, parse, silenced} from "./edits.js";
import {mountChannels} from "./channels.js";

const HOOKS = ["forward_pre", "forward", "tensor", "backward"];
const PICTURES = ["map.before", "map.after", "gradient.before", "gradient.after"];
const SIDE = 160, MOST_LEFT = 9;

export function mount(root, app) {
  const {t} = app;
  const option = (value, text) => `<option value="${app.escape(value)}">${text}</option>`;
  root.innerHTML = `
    <p class="hl-intro">${t("intro.hooks")}</p>
    <p class="hl-say" id="hl-say" aria-live="polite"></p>
    <div class="hl-hooks">
      <div class="hl-attach">
        <form class="hl-card" id="hl-form" novalidate>
          <h2 id="hl-form-title">${t("hooks.add")}</h2>
          <label>${t("layer")}<select name="layer"></select></label>
          <label title="${t("hooks.kind.hint")}">${t("hooks.kind")}<select name="hook">${HOOKS.map(hook => option(hook, t(`order.${hook}`))).join("")}</select></label>
          <label>${t("hooks.action")}<select name="action"></select></label>
          <label data-for="number pair">${t("hooks.value")}<span class="hl-row"><input name="value" inputmode="decimal" autocomplete="off"><input name="high" inputmode="decimal" autocomplete="off" aria-label="${t("hooks.highest")}"></span></label>
          <label data-for="channels">${t("channels")}<input name="channels" autocomplete="off" placeholder="${t("hooks.channels.all")}"></label>
          <label data-for="seed">${t("hooks.seed")}<input name="seed" inputmode="numeric" autocomplete="off"></label>
          <p class="hl-wrong" id="hl-wrong" role="alert"></p>
          <div class="hl-row"><button class="hl-primary" id="hl-add">${t("hooks.attach")}</button><button type="button" id="hl-cancel" hidden>${t("hooks.cancel")}</button></div>
        </form>
        <div class="hl-card">
          <h2>${t("hooks.attached")}</h2>
          <ol class="hl-edits" id="hl-edits"></ol>
          <label class="hl-line">${t("hooks.watch")} <select id="hl-watch">${["none", "layer", "all"].map(value => option(value, t(`hooks.watch.${value}`))).join("")}</select></label>
        </div>
      </div>
      <div class="hl-card hl-outcome">
        <div class="hl-switch" role="tablist" aria-label="${t("hooks.result")}">${["run", "channels"].map(id => `<button role="tab" data-result="${id}">${t(`hooks.result.${id}`)}</button>`).join("")}</div>
        <div id="hl-run">
          <table class="hl-pairs"><thead><tr><td></td><td></td><th>${t("hooks.probability")}</th><th title="${t("hooks.logit.hint")}">${t("hooks.logit")}</th></tr></thead><tbody></tbody></table>
          <div class="hl-four">${PICTURES.map(name => `<figure><canvas role="img" data-picture="${name}"></canvas><figcaption title="${t(`hooks.${name.split(".")[0]}.hint`)}"><b>${t(`hooks.${name}`)}</b></figcaption></figure>`).join("")}</div>
          <p class="hl-soft" id="hl-scale"></p>
        </div>
        <div id="hl-effects" hidden></div>
      </div>
      <div class="hl-right">
        <div class="hl-card hl-live">
          <h2>${t("hooks.live")}</h2><p id="hl-live" aria-live="polite" title="${t("hooks.live.hint")}"></p><div id="hl-growth" role="img"></div>
          <label class="hl-line" title="${t("hooks.forget.hint")}"><input type="checkbox" id="hl-forget"> ${t("hooks.forget")}</label>
          <span class="hl-space"></span><button type="button" id="hl-restart" hidden>${t("hooks.restart")}</button><button type="button" id="hl-again">${t("hooks.again")}</button>
        </div>
        <div class="hl-card hl-timeline"><h2>${t("hooks.timeline")}</h2><p class="hl-soft" id="hl-timeline-hint"></p><div class="hl-scroll" id="hl-calls" tabindex="0" role="region" aria-label="${t("hooks.timeline")}"></div></div>
      </div>
    </div>`;
  const find = selector => root.querySelector(selector), form = find("#hl-form"), field = form.elements;
  const channels = mountChannels(find("#hl-effects"), app, channel => app.set({edits: silenced(app.state.edits, answer.layer, channel), left: 0, result: "run"}));
  let answer, found, edits = [], editing = null, listed = null, runs = [];

  // ---- the form

  const place = () => found.places.find(row => row.name === field.layer.value);
  const last = () => place().channels[field.hook.value] - 1;

  function fillActions(action = field.action.value) {
    const offered = Object.entries(found.actions).filter(([, row]) => row.hooks.includes(field.hook.value));
    field.action.innerHTML = offered.map(([name]) => option(name, t(`action.${name}`))).join("");
    field.action.value = offered.some(([name]) => name === action) ? action : "watch";
    fit();
  }

  // Only what the action takes is shown, with its range.
  function fit() {
    const {takes, low, high} = found.actions[field.action.value], action = field.action.value;
    const shown = {"number pair": takes, channels: action !== "watch", seed: action === "noise"};
    for (const [name, on] of Object.entries(shown)) form.querySelector(`[data-for="${name}"]`).hidden = !on;
    field.high.hidden = takes !== "pair";
    field.value.title = field.high.title = takes ? `${short(low)} … ${short(high)}` : "";
    field.value.setAttribute("aria-label", t.plain(takes === "pair" ? "hooks.lowest" : `value.${action}`, {}, t.plain("hooks.value")));
    field.value.placeholder = t.plain(`value.${action}`, {}, "");
    field.channels.title = `0 … ${last()}`;
    field.channels.placeholder = t.plain(action === "keep" ? "hooks.channels.some" : "hooks.channels.all", {last: last()});
  }

  const refuse = (name, code, values) => {
    find("#hl-wrong").innerHTML = t(`error.${code}`, values);
    field[name].setAttribute("aria-invalid", "true");
    field[name].focus();
    return null;
  };

  // The edit that the form holds; null, and a sentence that names the accepted range, where it holds none.
  function read() {
    find("#hl-wrong").innerHTML = "";
    for (const control of form.elements) control.removeAttribute("aria-invalid");
    const action = field.action.value, {takes, low, high} = found.actions[action], edit = {layer: field.layer.value, hook: field.hook.value, action};
    const number = name => {
      const text = field[name].value.trim(), value = Number(text);
      return text !== "" && value >= low && value <= high ? value : refuse(name, "number", {field: t.plain(`action.${action}`), value: text, low: short(low), high: short(high)});
    };
    if (takes === "number" && (edit.value = number("value")) === null) return null;
    if (takes === "pair") {
      edit.value = [number("value"), number("high")];
      if (edit.value.includes(null)) return null;
      if (edit.value[0] > edit.value[1]) return refuse("high", "pair", {field: t.plain(`action.${action}`), value: edit.value.join(", ")});
    }
    if (action !== "watch") {
      const words = field.channels.value.split(/[\s,，、]+/).filter(Boolean), all = [];
      for (const word of words) {
        const [, from, to = from] = /^(\d+)(?:[-–](\d+))?$/.exec(word) ?? [];
        if (from === undefined || Number(to) > last() || Number(from) > Number(to)) return refuse("channels", "integer", {field: t.plain("channels"), value: word, low: 0, high: last()});
        for (let channel = Number(from); channel <= Number(to); channel++) if (!all.includes(channel)) all.push(channel);
      }
      if (words.length) edit.channels = all;
      if (action === "keep" && !all.length) return refuse("channels", "keep", {last: last()});
    }
    if (action === "noise") {
      const seed = Number(field.seed.value || 0);
      if (!(Number.isInteger(seed) && seed >= 0 && seed < 2 ** 31)) return refuse("seed", "integer", {field: t.plain("hooks.seed"), value: field.seed.value, low: 0, high: 2 ** 31 - 1});
      edit.seed = seed;
    }
    return edit;
  }

  const change = next => { editing = null; app.set({edits: format(next), left: 0}); };
  form.onsubmit = event => {
    event.preventDefault();
    const edit = found && read();
    if (!edit) return;
    if (editing === null && edits.length >= found.most) return void (find("#hl-wrong").innerHTML = t("error.edits", {value: edits.length + 1, most: found.most}));
    change(editing === null ? [...edits, edit] : edits.map((old, k) => k === editing ? edit : old));
  };
  form.onchange = event => {
    if (event.target === field.hook) fillActions(); else if (event.target === field.action || event.target === field.layer) fit();
  };
  find("#hl-cancel").onclick = () => { editing = null; listEdits(); };

  function load(edit) {
    for (const name of ["layer", "hook"]) field[name].value = edit[name];
    fillActions(edit.action);
    const pair = Array.isArray(edit.value);
    field.value.value = (pair ? edit.value[0] : edit.value) ?? "";
    field.high.value = pair ? edit.value[1] : "";
    field.channels.value = Array.isArray(edit.channels) ? edit.channels.join(", ") : "";
    field.seed.value = edit.seed ?? "";
  }

  // ---- what is attached

  const list = find("#hl-edits");
  list.onclick = event => {
    const k = Number(event.target.closest("li")?.dataset.k);
    if (event.target.closest("[data-remove]")) change(edits.filter((_, at) => at !== k));
    else if (event.target.closest("[data-load]")) { load(edits[k]); editing = k; listEdits(); field.action.focus(); }
  };
  list.onchange = event => {
    const k = Number(event.target.closest("li").dataset.k);
    change(edits.map((edit, at) => at === k ? {...edit, on: event.target.checked} : edit));
  };

  function words(edit) {
    const parts = [t.plain(`action.${edit.action}`, {}, edit.action)];
    if (Array.isArray(edit.value)) parts[0] += ` ${edit.value.map(short).join(" … ")}`;
    else if (edit.value !== undefined) parts[0] += ` ${typeof edit.value === "number" ? short(edit.value) : edit.value}`;
    if (Array.isArray(edit.channels)) parts.push(t.plain("hooks.of", {channels: edit.channels.length > 6 ? `${edit.channels.slice(0, 5).join(", ")} … (${edit.channels.length})` : edit.channels.join(", ")}));
    if (edit.action === "prune") parts[0] += " %";
    if (edit.action === "noise") parts.push(`${t.plain("hooks.seed")} ${edit.seed ?? 0}`);
    return parts.join(" · ");
  }

  function status({problem, effect, index}) {
    if (problem) return `<span class="bad">${t(`error.${problem[0]}`, {...problem[1], field: fieldName(problem[1].field)})}</span>`;
    if (index === undefined) return t("effect.off");
    return effect === "" ? `<span class="good">${t("effect.changed")}</span>` : t(`effect.${effect}`);
  }

  const fieldName = name => t.plain(`field.${name}`, {}, t.plain(`action.${name}`, {}, name));

  function listEdits() {
    list.innerHTML = edits.map((edit, k) => {
      const name = `${edit.layer} · ${t.plain(`order.${edit.hook}`, {}, edit.hook)}`, row = found.rows[k] ?? {};
      return `<li data-k="${k}" class="${k === editing ? "editing" : ""}"><input type="checkbox" ${edit.on === false ? "" : "checked"} aria-label="${app.escape(name)}, ${t("hooks.on")}">
        <button type="button" data-load title="${t("hooks.load")}"><b>${app.escape(name)}</b><span>${app.escape(words(edit))}</span></button>
        <button type="button" data-remove aria-label="${t("hooks.remove")}: ${app.escape(name)}" title="${t("hooks.remove")}">×</button><p>${status(row)}</p></li>`;
    }).join("") || `<li class="none">${t("hooks.none")}</li>`;
    find("#hl-form-title").innerHTML = t(editing === null ? "hooks.add" : "hooks.change");
    find("#hl-add").innerHTML = t(editing === null ? "hooks.attach" : "hooks.replace");
    find("#hl-cancel").hidden = editing === null;
  }
  find("#hl-watch").onchange = event => app.set({watch: event.target.value, left: 0});

  // ---- live hooks

  find("#hl-forget").onchange = event => app.set({forget: event.target.checked});
  find("#hl-again").onclick = () => app.state.forget ? app.set({left: app.state.left + 1}) : app.refresh();
  find("#hl-restart").onclick = () => app.set({left: 0});

  function live() {
    const [before, during, after] = found.live, {forget} = app.state, most = found.left >= MOST_LEFT;
    find("#hl-live").innerHTML = t("hooks.live.counts", {before, during, after: forget ? during : before + after});
    if (!found.left) runs = [];
    runs[found.left] = during;
    const bars = Array.from({length: found.left + 1}, (_, k) => runs[k] ?? during * (k + 1) / (found.left + 1));
    find("#hl-growth").innerHTML = bars.map(count => `<i style="height:${Math.max(2, 40 * count / Math.max(...bars))}px"><b>${count}</b></i>`).join("");
    find("#hl-growth").setAttribute("aria-label", t.plain("hooks.growth", {list: bars.join(", ")}));
    find("#hl-again").disabled = forget && most;
    find("#hl-restart").hidden = !found.left;
  }

  // ---- what it did

  function outcome() {
    const body = root.querySelector(".hl-pairs tbody"), [p, q] = [softmax(found.before), softmax(found.after)];
    if (body.children.length !== p.length) body.innerHTML = p.map((_, k) => `<tr><th scope="row">${app.className(k)}</th><td><i></i><i></i></td><td></td><td></td></tr>`).join("");
    p.forEach((value, k) => {
      const row = body.children[k], [first, second] = row.querySelectorAll("i");
      row.className = k === answer.target ? "target" : "";
      first.style.width = `${100 * value}%`;
      second.style.width = `${100 * q[k]}%`;
      row.children[2].innerHTML = pair(percent(value), percent(q[k]));
      row.children[3].innerHTML = pair(fixed(found.before[k]), fixed(found.after[k]));
    });
    find("#hl-say").innerHTML = sentence(p, q);
  }

  function sentence(p, q) {
    const k = answer.target, calls = found.events.length;
    const values = {target: app.className(k), calls, p: percent(p[k]), q: percent(q[k]), a: fixed(found.before[k]), b: fixed(found.after[k])};
    const [old, now] = [argmax(p), argmax(q)], [before, after] = found.gradients.map(total);
    const say = [t("hooks.say.calls", values)];
    if (found.before.some((v, k) => v !== found.after[k])) say.push(t("hooks.say.changed", values), old === now ? t("hooks.say.same", {class: app.className(now)}) : t("hooks.say.other", {old: app.className(old), class: app.className(now)}));
    else say.push(t("hooks.say.untouched", values));
    if (before !== after) say.push(t("hooks.say.gradient", {ratio: before ? short(after / before) : "0"}));
    return say.join(" ");
  }

  function pictures() {
    const {maps} = found, {smooth} = app.state;
    const show = (packed, peak, names, smooth) => packed.forEach(({shape: [h, w], values}, k) => {
      const canvas = root.querySelector(`[data-picture="${names[k]}"]`);
      paint(canvas, colorize(heat(values, h, w, SIDE, SIDE, {smooth, peak}), SIDE, SIDE, app.table));
      canvas.setAttribute("aria-label", t.plain("hooks.picture", {name: t.plain(`hooks.${names[k]}`), high: short(range(values)[1])}));
    });
    const unpacked = maps?.map(unpack) ?? [], gradients = found.gradients.map(unpack);
    const peaks = [unpacked, gradients].map(pair => Math.max(0, ...pair.map(one => range(one.values)[1])));
    show(unpacked, peaks[0], PICTURES.slice(0, 2), smooth);
    show(gradients, peaks[1], PICTURES.slice(2), false);
    find("#hl-scale").innerHTML = t("hooks.scale", {layer: app.layerLabel(found.layer ?? ""), map: short(peaks[0]), gradient: short(peaks[1])});
  }

  function timeline() {
    const {events, left} = found, scroll = find("#hl-calls"), top = scroll.scrollTop;
    const size = shape => shape ? shape.join("×") : "None";
    const item = event => {
      const shape = event.kind === "forward_pre" ? event.inputs[0] : event.kind === "backward" && !event.none ? event.inputs.find(Boolean) : event.outputs[0];
      const numbers = event.numbers.map(value => value === null ? "–" : two(value)).join(" / ");
      const detail = `${size(shape)} · ${event.milliseconds.toFixed(1)} ms`;
      const notes = [event.none && "event.none", event.changed && "event.changed"].filter(Boolean).map(key => t.plain(key));
      if (event.set < left) notes.push(t.plain("event.left", {run: event.set + 1}));
      return {kind: event.kind, title: event.layer, tag: t.plain(`order.${event.kind}`), detail, numbers, changed: event.changed, left: event.set < left,
        hint: [t.plain("event.hint", {kind: t.plain(`order.${event.kind}`), layer: event.layer, inputs: event.inputs.map(size).join(", ") || "–", outputs: event.outputs.map(size).join(", ") || "–", low: said(event.numbers[0]), mean: said(event.numbers[1]), high: said(event.numbers[2]), ms: event.milliseconds.toFixed(2)}), ...notes].join(" ")};
    };
    const said = value => value === null ? "–" : short(value);
    const forward = event => event.kind === "forward_pre" || event.kind === "forward";
    scroll.innerHTML = events.length ? journey({
      down: events.filter(forward).map(item), up: events.filter(event => !forward(event)).map(item),
      turn: t("hooks.turn", {target: app.className(answer.target), logit: fixed(found.after[answer.target])}), downLabel: t.plain("order.down"), upLabel: t.plain("order.up"),
    }) : `<p class="hl-soft">${t("hooks.quiet")}</p>`;
    scroll.scrollTop = top;
    find("#hl-timeline-hint").innerHTML = events.length ? t("hooks.timeline.hint") : "";
  }

  const tabs = root.querySelector(".hl-switch");
  tabs.onclick = event => event.target.dataset.result && app.set({result: event.target.dataset.result});
  tabs.onkeydown = event => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    event.preventDefault(), event.stopPropagation();
    app.set({result: app.state.result === "run" ? "channels" : "run"});
    tabs.querySelector("[aria-selected=true]").focus();
  };

  function show(next) {
    answer = next;
    found = {...answer.hooks, actions: Object.fromEntries(Object.entries(answer.hooks.actions).map(([name, [hooks, takes, low, high]]) => [name, {hooks, takes, low, high}]))};
    edits = parse(app.state.edits);
    if (editing !== null && editing >= edits.length) editing = null;
    const there = `${answer.model} ${answer.layer}`, chosen = layerPlace(answer.layer);
    if (listed !== there && editing === null) { // the form follows the page's layer
      listed = there;
      field.layer.innerHTML = found.places.map(({name, type}) => option(name, app.escape(`${name} · ${type}`))).join("");
      field.layer.value = chosen.layer;
      field.hook.value = chosen.hook;
      field.action.value = "";
      fillActions("zero");
    }
    for (const key of ["watch", "left"]) app.state[key] = found[key]; // what fell back must not stay in the address
    history.replaceState(null, "", app.address());
    find("#hl-watch").value = found.watch;
    listEdits();
    outcome();
    timeline();
    display();
  }

  function display() {
    if (!answer) return;
    const {result} = app.state;
    for (const tab of tabs.children) {
      tab.setAttribute("aria-selected", tab.dataset.result === result);
      tab.tabIndex = tab.dataset.result === result ? 0 : -1;
    }
    root.querySelector(".hl-hooks").classList.toggle("channels", result === "channels");
    find("#hl-run").hidden = result !== "run";
    find("#hl-effects").hidden = result !== "channels";
    find("#hl-forget").checked = app.state.forget;
    live();
    pictures();
    if (result === "channels") channels.show(answer);
  }

  return {show, display, request: () => ({edits: parse(app.state.edits), watch: app.state.watch, left: app.state.left})};
}

const fixed = value => value.toFixed(2).replace("-", "−");
const two = value => short(Number(value.toPrecision(2)));
const pair = (before, after) => before === after ? before : `${before} → <b>${after}</b>`;
const argmax = values => values.indexOf(Math.max(...values));
const total = packed => unpack(packed).values.reduce((sum, value) => sum + value, 0);

function softmax(logits) {
  const top = Math.max(...logits), powers = logits.map(v => Math.exp(v - top)), sum = powers.reduce((a, b) => a + b, 0);
  return powers.map(v => v / sum);
}
