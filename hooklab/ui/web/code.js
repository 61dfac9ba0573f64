// A script beside a result: coloured, with a button that copies it and one that saves it as a file.
import {escapeHtml} from "./words.js";

export function mountCode(root, app, name) {
  const {t} = app;
  let text = "";
  root.innerHTML = `
    <header class="hl-row"><b>${t("code.title")}</b><span class="hl-space"></span><button data-copy>${t("code.copy")}</button><button data-save>${t("code.save")}</button></header>
    <pre tabindex="0" role="region" aria-label="${t("code.title")}"><code lang="en"></code></pre>`;
  root.querySelector("[data-copy]").onclick = event => app.copy(text, event.currentTarget);
  root.querySelector("[data-save]").onclick = () => app.save(`${name()}.py`, "text/x-python", text);
  return {
    show(next) {
      if (next === text) return;
      text = next;
      root.querySelector("code").innerHTML = python(text);
    },
  };
}

const TOKENS = /("""[\s\S]*?"""|f?"[^"\n]*"|f?'[^'\n]*')|(#[^\n]*)|\b(import|from|as|def|class|return|for|in|if|else|elif|with|lambda|not|and|or|is|try|finally|nonlocal|None|True|False)\b|(\b\d+(?:\.\d*)?(?:e-?\d+)?\b)/g;

export function python(text) {
  let html = "", at = 0;
  for (const match of text.matchAll(TOKENS)) {
    const kind = ["", "string", "comment", "keyword", "digit"].find((_, k) => k && match[k] !== undefined);
    html += `${escapeHtml(text.slice(at, match.index))}<span class="hl-py-${kind}">${escapeHtml(match[0])}</span>`;
    at = match.index + match[0].length;
  }
  return html + escapeHtml(text.slice(at));
}
