// Texts in the user's language, with the values filled in.

export const escapeHtml = text => String(text).replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);

// t("key", {name: value}, fallback): texts are [English, Chinese]; values are escaped, so the result may go into HTML.
// t.plain(...) is the same for attributes and text nodes: no tags, nothing escaped.
export function makeTranslate(texts, lang) {
  const column = lang === "zh" ? 1 : 0;
  const fill = (escape, key, values, fallback) => {
    const text = texts[key]?.[column];
    return text === undefined ? escape(fallback) : text.replace(/\{(\w+)\}/g, (_, name) => escape(values[name] ?? ""));
  };
  const t = (key, values = {}, fallback = key) => fill(escapeHtml, key, values, fallback);
  t.plain = (key, values = {}, fallback = key) => fill(String, key, values, fallback).replace(/<\/?\w+>/g, "");
  return t;
}

// One decimal, and never a rounded 0 or 100 for what is neither.
export const percent = p => (p < 1 && p > 0.9995 ? ">99.9" : p > 0 && p < 0.0005 ? "<0.1" : (100 * p).toFixed(p === 0 || p === 1 ? 0 : 1)) + " %";

// Three significant digits, plain where that is short.
export function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return (size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)))).replace("-", "−");
}

// Two decimals with a real minus sign, for correlations.
export const fixed = value => value.toFixed(2).replace("-", "−");
