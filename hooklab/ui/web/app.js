// The page's state, its address, its questions to the server, and the frame around the tabs.
import {fromBase64, paint, picture} from "./stage.js";
import {openQr} from "./qr.js";
import {mountRail} from "./rail.js";
import {showScript} from "./script.js";
import {mountStrip} from "./strip.js";
import {addressOf, readAddress, startState, STATE, TABS} from "./state.js";
import {escapeHtml, makeTranslate} from "./words.js";

// The tabs, each loaded when it is first opened. Written out, so that save.js finds the addresses.
const OPEN = {
  gradcam: () => import("./gradcam.js"),
  features: () => import("./features.js"),
  classes: () => import("./classes.js"),
  evidence: () => import("./evidence.js"),
  hooks: () => import("./hooks.js"),
  lessons: () => import("./lessons.js"),
  networks: () => import("./networks.js"),
  browse: () => import("./browse.js"),
  about: () => import("./about.js"),
};

// `saved` holds what a page that was saved as a file would otherwise fetch.
export async function mount(root, files, ask, saved = null) {
  const fetched = name => fetch(files + name).then(reply => reply.json());
  const [start, texts] = saved ? [saved.start, saved.texts] : await Promise.all([fetched("start.json"), fetched("texts.json")]);
  const app = new App(root, files, ask, start, texts, saved);
  window.hooklab = app; // for the browser tests, and for the curious
  await app.begin();
}

class App {
  constructor(root, files, ask, start, texts, saved) {
    Object.assign(this, {root, files, start, texts, saved, server: ask, answer: null, pending: null});
    this.tabs = TABS.filter(id => !saved || ["gradcam", "features"].includes(id));
    this.tables = Object.fromEntries(Object.entries(start.colors).map(([name, data]) => [name, fromBase64(data)]));
    this.state = {};
  }

  async begin() {
    this.readAddress();
    addEventListener("popstate", () => { this.readAddress(); this.build(); });
    addEventListener("keydown", event => this.key(event));
    await this.build();
  }

  get model() { return this.start.models[this.state.model]; }
  get table() { return this.tables[this.state.colors]; }
  className(k) { return this.t(`class.${this.model.classes[k]}`, {}, this.model.classes[k]); }
  layerLabel(name, model = this.model) {
    const layer = model.layers.find(row => row.name === name);
    const parts = /^(.+) after (.+)$/.exec(layer?.label ?? name);
    return parts ? this.t("layer.after", {layer: parts[1], function: parts[2]}) : layer?.label ?? name;
  }

  // ---- state and address

  readAddress() {
    const {pixels, upload} = this.state;
    Object.assign(this, this.saved ? {state: {...startState(this), ...this.saved.state}, notes: []} : readAddress(this, location.search));
    if (upload && !new URLSearchParams(location.search).has("index")) Object.assign(this.state, {pixels, upload, index: null}); // back, with one's own picture
    this.lang = this.state.lang ?? this.start.language ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
    this.t = makeTranslate(this.texts, this.lang);
  }

  address(changes = {}) { return addressOf(this, {...this.state, ...changes}, location.search); }

  // Change the state: repaint what only the browser needs, ask the server for the rest.
  set(changes, {replace = false} = {}) {
    const old = this.state;
    this.state = {...old, ...changes};
    const asks = this.state.pixels !== old.pixels || Object.keys(STATE).some(key => STATE[key].asks && this.state[key] !== old[key]);
    const address = this.address();
    if (!this.saved && address !== location.search) history[replace || !asks ? "replaceState" : "pushState"](null, "", address);
    if (changes.lang && changes.lang !== this.lang) {
      this.lang = changes.lang;
      this.t = makeTranslate(this.texts, this.lang);
      return this.build();
    }
    if (this.state.tab !== old.tab) return this.openTab();
    if (this.state.model !== old.model) this.strip.build();
    if ("present" in changes) this.root.classList.toggle("present", this.state.present);
    if (asks) return this.refresh();
    this.tab?.display?.();
  }

  // ---- questions

  question(view) {
    const {index, pixels, model, layer, target, method} = this.state;
    return {view, model, layer, target, method, ...(index === null ? {pixels} : {index})};
  }

  // The server's answer to a request, or an error in the user's language.
  async ask(request) {
    let reply;
    try { reply = await this.server(request); } catch { reply = null; }
    if (reply?.ok) return reply.ok;
    const {code = "network", values = {}, message = ""} = reply?.error ?? {};
    throw new Error(this.t(`error.${code}`, values, message));
  }

  // Ask for the open tab. While an answer is on its way only the latest change waits, so a fast hand never makes a queue.
  async refresh() {
    if (this.pending) { this.again = true; return this.pending; }
    this.pending = (async () => {
      do {
        this.again = false;
        const tab = this.tab;
        this.root.setAttribute("aria-busy", "true");
        try {
          const answer = await this.ask({...this.question(tab.id), ...tab.request?.()});
          if (!this.again && tab === this.tab) this.show(answer);
        } catch (error) {
          if (!this.again) this.tell(error.message, "error");
        }
      } while (this.again);
      this.root.removeAttribute("aria-busy");
      this.pending = null;
    })();
    return this.pending;
  }

  show(answer) {
    this.answer = answer;
    this.pixels = fromBase64(answer.pixels);
    const notes = [...this.notes, ...answer.notes].map(([code, values]) => this.t(`note.${code}`, values, this.t("note.other", values)));
    this.notes = [];
    if (notes.length) this.tell(notes.join(" "), "note"); else this.tell("");
    if (answer.notes.length) { // what fell back must not stay in the address
      this.state = {...this.state, layer: this.state.layer === answer.layer ? answer.layer : null, ...(answer.index !== null ? {index: answer.index} : {}), target: this.model.classes.includes(this.state.target) ? this.state.target : null, method: answer.method};
      history.replaceState(null, "", this.address());
    }
    this.rail.show(answer);
    this.strip.show(answer);
    this.tab.show(answer);
  }

  tell(text, kind = "note") {
    const bar = this.root.querySelector("#hl-note");
    bar.className = text ? `hl-note ${kind}` : "hl-note";
    bar.querySelector("span").innerHTML = text;
    bar.hidden = !text;
  }

  // ---- the frame

  async build() {
    document.documentElement.lang = this.lang === "zh" ? "zh-CN" : "en";
    const {t} = this;
    this.root.classList.toggle("present", this.state.present);
    this.root.innerHTML = `
      <header class="hl-header">
        <h1>hooklab</h1><p>${t("tagline")}</p><span class="hl-space"></span>
        <button class="hl-chip" id="hl-code">${t("code.show")}</button>
        <button class="hl-chip" id="hl-present" title="${t("present.hint")}">${t("present")}</button>
        <button class="hl-chip" id="hl-language" lang="${this.lang === "zh" ? "en" : "zh"}">${t("language.other")}</button>
        <button class="hl-chip" id="hl-theme" aria-label="${t("theme")}" title="${t("theme")}">◐</button>
        <button class="hl-chip" id="hl-qr" title="${t("qr.title")}">${t("qr")}</button>
        <button class="hl-chip" id="hl-copy">${t("copy.link")}</button>
      </header>
      <div class="hl-note" id="hl-note" role="status" hidden><span></span><button aria-label="${t("close")}">×</button></div>
      <div class="hl-main">
        <aside class="hl-rail" id="hl-rail" aria-label="${t("rail")}"></aside>
        <section class="hl-body">
          <div class="hl-card hl-network" id="hl-strip"></div>
          <div class="hl-tabs" role="tablist" aria-label="${t("tabs")}">${this.tabs.map(id => `<button role="tab" id="hl-tab-${id}" aria-controls="hl-panel" data-tab="${id}">${t(`tab.${id}`)}</button>`).join("")}</div>
          <div class="hl-panel" id="hl-panel" role="tabpanel"></div>
        </section>
      </div>`;
    this.rail = mountRail(this.root.querySelector("#hl-rail"), this);
    this.strip = mountStrip(this.root.querySelector("#hl-strip"), this);
    this.root.querySelector("#hl-note button").onclick = () => this.tell("");
    this.root.querySelector("#hl-language").onclick = () => this.set({lang: this.lang === "zh" ? "en" : "zh"});
    this.root.querySelector("#hl-theme").onclick = () => document.body.classList.toggle("dark");
    this.root.querySelector("#hl-code").onclick = () => showScript(this);
    this.root.querySelector("#hl-present").onclick = () => this.set({present: true});
    this.root.querySelector("#hl-qr").onclick = () => openQr(this);
    this.root.querySelector("#hl-qr").hidden = Boolean(this.saved); // a file on this computer has no link for others
    this.root.querySelector("#hl-copy").onclick = event => this.copy(location.href, event.currentTarget);
    const tablist = this.root.querySelector(".hl-tabs");
    tablist.onclick = event => event.target.dataset.tab && this.set({tab: event.target.dataset.tab});
    tablist.onkeydown = event => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (!step) return;
      event.preventDefault(), event.stopPropagation();
      this.set({tab: this.tabs[(this.tabs.indexOf(this.state.tab) + step + this.tabs.length) % this.tabs.length]});
      tablist.querySelector("[aria-selected=true]").focus();
    };
    await this.openTab();
  }

  async openTab() {
    const id = this.root.dataset.tab = this.state.tab, panel = this.root.querySelector("#hl-panel");
    this.root.setAttribute("aria-busy", "true");
    for (const button of this.root.querySelectorAll(".hl-tabs [role=tab]")) {
      button.setAttribute("aria-selected", button.dataset.tab === id);
      button.tabIndex = button.dataset.tab === id ? 0 : -1;
      if (button.dataset.tab === id) button.scrollIntoView({block: "nearest", inline: "nearest"});
    }
    panel.setAttribute("aria-labelledby", `hl-tab-${id}`);
    this.root.querySelector("#hl-code").disabled = !["gradcam", "features", "classes", "evidence", "hooks"].includes(id);
    const module = await OPEN[id]();
    if (id !== this.state.tab) return; // another tab was opened meanwhile
    panel.innerHTML = "";
    this.tab = {id, ...module.mount(panel, this)};
    await this.refresh();
  }

  key(event) {
    const inside = selector => event.target.closest?.(selector);
    if (event.ctrlKey || event.metaKey || event.altKey || inside("input, select, textarea, dialog")) return;
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (step && !inside("[role=tablist]")) this.rail.step(step);
    else if (event.key === "p") this.set({present: !this.state.present});
    else if (event.key === "Escape" && this.state.present) this.set({present: false});
    else return;
    event.preventDefault();
  }

  // navigator.clipboard exists only on https and localhost; a class opens http://192.168...
  async copy(text, button) {
    try { await navigator.clipboard.writeText(text); } catch {
      const area = Object.assign(document.createElement("textarea"), {value: text});
      (document.querySelector("dialog[open]") ?? document.body).append(area), area.select(), document.execCommand("copy"), area.remove();
    }
    const words = button.textContent;
    button.textContent = this.t("copied");
    setTimeout(() => button.textContent = words, 1200);
  }

  save(name, type, bytes) {
    const link = Object.assign(document.createElement("a"), {download: name, href: URL.createObjectURL(new Blob([bytes], {type}))});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  async download(kind) {
    const {colors, opacity, smooth, normalization} = this.state;
    const target = this.answer.target, layer = this.answer.layer;
    try {
      const file = await this.ask({...this.question("download"), kind, target, layer, colors, opacity, smooth, normalization});
      this.save(file.name, file.type, fromBase64(file.data));
    } catch (error) { this.tell(error.message, "error"); }
  }

  // A canvas with the very pixels that the model saw.
  paintInput(canvas) { paint(canvas, picture(this.pixels, this.answer.size)); }
  escape(text) { return escapeHtml(text); }
}
