// Drawings of what flows: a computation graph with every value and gradient, and the way down and up through a network.
import {escapeHtml} from "./words.js";

const WIDTH = 152, HEIGHT = 84;

// nodes: {id, x, y, title, value, gradient, was, foot, hook}; edges: [from, to, label]. Returns SVG; x, y are centres.
export function graph({nodes, edges, size: [w, h], label, hookWord}) {
  const at = Object.fromEntries(nodes.map(node => [node.id, node]));
  const text = (x, y, words, name, anchor = "middle") => `<text x="${x}" y="${y}" class="${name}" text-anchor="${anchor}">${escapeHtml(words)}</text>`;
  const drawnEdges = edges.map(([from, to, words]) => {
    const a = at[from], b = at[to], x1 = a.x + WIDTH / 2, x2 = b.x - WIDTH / 2 - 5;
    const x = (x1 + x2) / 2, y = (a.y + b.y) / 2, slope = Math.sign(b.y - a.y);
    const label = slope ? text(x + 7, y - (slope > 0 ? 10 : -20), words, "hl-g-edge", "start") : text(x, words.length > 3 ? y - HEIGHT / 2 - 5 : y - 6, words, "hl-g-edge");
    return `<line x1="${x1}" y1="${a.y}" x2="${x2}" y2="${b.y}" marker-end="url(#hl-arrow)"/>${label}`;
  });
  const drawnNodes = nodes.map(({x, y, title, value, gradient, was, foot, hook}) => `
    <g class="${hook ? "hooked" : ""}"><rect x="${x - WIDTH / 2}" y="${y - HEIGHT / 2}" width="${WIDTH}" height="${HEIGHT}" rx="9"/>
    ${text(x - WIDTH / 2 + 10, y - 20, title, "hl-g-title", "start")}${text(x + WIDTH / 2 - 10, y - 20, value, "hl-g-value", "end")}
    <text x="${x}" y="${y + 7}" class="hl-g-gradient" text-anchor="middle">${was === null ? "" : `<tspan class="hl-g-was">${escapeHtml(was)}</tspan> → `}${escapeHtml(gradient)}</text>
    ${text(x, y + 29, foot, "hl-g-foot")}
    ${hook ? `<rect class="hl-g-flag" x="${x - 27}" y="${y - HEIGHT / 2 - 11}" width="54" height="21" rx="10"/>${text(x, y - HEIGHT / 2 + 4, hookWord, "hl-g-hook")}` : ""}</g>`);
  return `<svg class="hl-graph" viewBox="0 0 ${w} ${h}" role="img" aria-label="${escapeHtml(label)}">
    <defs><marker id="hl-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>
    ${drawnEdges.join("")}${drawnNodes.join("")}</svg>`;
}

// What happened, in order: forward down the left side, then, after `turn`, backward up the right side.
// Items are {kind, title, tag, detail, numbers, hint, changed, left}; kind is forward_pre, forward, module, tensor or backward.
export function journey({down, up, turn, downLabel, upLabel}) {
  const item = (first, {kind, title, tag = "", detail, numbers = "", hint = "", changed = false, left = false}, k) => `
    <li class="hl-call ${kind}${changed ? " changed" : ""}${left ? " left" : ""}" title="${escapeHtml(hint)}"><i>${first + k}</i><b>${escapeHtml(title)}${tag && ` <em>${escapeHtml(tag)}</em>`}</b><span>${escapeHtml(detail)}</span>${numbers && `<span>${escapeHtml(numbers)}</span>`}</li>`;
  return `<div class="hl-journey">
    <div class="hl-down"><p>${escapeHtml(downLabel)}</p><ol>${down.map((row, k) => item(1, row, k)).join("")}</ol></div>
    <div class="hl-up"><p>${escapeHtml(upLabel)}</p><ol start="${down.length + 1}">${up.map((row, k) => item(down.length + 1, row, k)).join("")}</ol></div>
    <p class="hl-turn">${turn}</p></div>`;
}

// Horizontal bars: rows of {label, value, text, mark}; `top` is the value of a full bar.
export function bars(rows, top, {line = null, lineText = ""} = {}) {
  return `<div class="hl-bars">${rows.map(({label, value, text, mark}) => `
    <span>${escapeHtml(label)}</span><span class="hl-track"><i class="${mark ?? ""}" style="width:${Math.min(100, Math.max(0, 100 * value / (top || 1)))}%"></i>${line === null ? "" : `<u style="left:${100 * line / top}%" title="${escapeHtml(lineText)}"></u>`}</span><span class="hl-number">${escapeHtml(text)}</span>`).join("")}</div>`;
}
