// The current view as one HTML file that opens without a server: this very page, with the answers it would ask for.
import {toBase64} from "./stage.js";

// The text of app.js, of the two tabs that a file holds, and of all that they import.
async function modules(app, names = ["app.js", "gradcam.js", "features.js"], found = {}) {
  for (const name of names) {
    if (name in found) continue;
    found[name] = ""; // before its imports are followed: modules may import each other
    found[name] = await fetch(app.files + name).then(reply => reply.text());
    await modules(app, [...found[name].matchAll(/from "\.\/([\w.-]+)"/g)].map(match => match[1]), found);
  }
  return found;
}

export async function saveView(app) {
  try {
    const asked = {...app.question(""), layer: app.answer.layer, target: app.answer.target};
    const saved = {}, targets = app.model.classes.map((_, k) => k);
    // Grad-CAM for each class, since a map is small; the layer's channels for the chosen class.
    for (const target of targets) saved[`gradcam|${target}`] = await app.ask({...asked, view: "gradcam", target});
    saved[`features|${asked.target}`] = await app.ask({...asked, view: "features"});
    const style = await fetch(app.files + "style.css").then(reply => reply.text()), own = app.start.models[app.state.model];
    const start = {...app.start, index: app.answer.index, language: app.lang, examples: {}, models: {[app.state.model]: {...own, card: {accuracy: own.card.accuracy}}}};
    const imports = Object.fromEntries(Object.entries(await modules(app)).map(([name, text]) => [`hooklab/${name}`, `data:text/javascript;base64,${base64(bare(text))}`]));
    const boot = `
      import {mount} from "hooklab/app.js";
      const saved = JSON.parse(document.getElementById("saved").textContent);
      const chosen = saved.target;
      const ask = async ({view, target}) => {
        const answer = saved.answers[view + "|" + (typeof target === "string" ? saved.start.models[saved.model].classes.indexOf(target) : target ?? chosen)];
        return answer ? {ok: answer} : {error: {code: "offline"}};
      };
      mount(document.getElementById("hooklab"), "", ask, saved);`;
    const state = Object.fromEntries(["colors", "opacity", "smooth", "normalization", "order", "scale"].map(key => [key, app.state[key]]));
    const data = {model: app.state.model, target: asked.target, start, texts: app.texts, answers: saved, state: {...state, model: app.state.model, index: app.answer.index, layer: app.answer.layer}};
    const title = document.createElement("title");
    title.textContent = `hooklab: ${app.model.classes[asked.target]}, ${own.title}, ${app.answer.layer}`;
    const html = `<!doctype html><html lang="${document.documentElement.lang}"><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">${title.outerHTML}
<link rel="icon" href="data:,"><style>body{margin:0}${style}</style>
<script type="importmap">${JSON.stringify({imports})}</script>
<script type="application/json" id="saved">${JSON.stringify(data).replaceAll("<", "\\u003c")}</script>
<body class="${document.body.classList.contains("dark") ? "dark" : ""}"><div id="hooklab" class="offline"></div><script type="module">${boot}</script></body></html>`;
    app.save(`hooklab_${app.answer.index ?? "own"}_${app.state.model}_${app.model.classes[asked.target]}.html`, "text/html", html);
  } catch (error) { app.tell(error.message, "error"); }
}

// A module from a data: address cannot name its neighbours by place, so they get names that the import map knows.
const bare = text => text.replace(/(from|import\()\s*"\.\//g, '$1 "hooklab/');
const base64 = text => toBase64(new TextEncoder().encode(text));
