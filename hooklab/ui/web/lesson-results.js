// What each lesson shows: RESULTS[letter](root, app, change) -> {show(lesson, answer) -> [sentence, values of the note], stop?()}.
import {bars, graph, journey} from "./diagram.js";
import {colorize, heat, paint, unpack} from "./stage.js";
import {percent, short} from "./words.js";

const KIND = {"forward pre-hook": "forward_pre", forward: "module", "forward hook": "forward", "tensor hook": "tensor", "full backward hook": "backward"};
const clean = value => short(Number(value.toFixed(6)));

function steps(root, app) {
  const {t} = app;
  return {show({result}) {
    const calls = result.log.filter(([who]) => !["registered", "call", "returned"].includes(who)).length;
    const rows = result.log.map(([who, value]) => {
      const mine = ["registered", "call", "returned"].includes(who);
      return `<li class="${mine ? "mine" : "theirs"}">${mine ? t(`log.${who}`, {value: clean(value)}) : t("log.hook", {who: t.plain(`log.${who}`), value: clean(value)})}</li>`;
    });
    root.innerHTML = `<div class="hl-log"><p><span>${t("log.you")}</span><span>${t("log.pytorch")}</span></p><ol>${rows.join("")}</ol></div>`;
    const [, last] = result.log.at(-1);
    return [t("lesson.a.say", {calls, hooks: result.log.find(([who]) => who === "registered")[1], result: clean(last)})];
  }};
}

function tensorHook(root, app) {
  const {t} = app;
  return {show({result, values: {at, change}}) {
    const {values: v, gradients: g, without, spilled} = result, kept = result["kept in .grad"];
    const title = {w: "w", x: "x", a: "a = w + x", b: "b = w + 1", y: "y = a · b"};
    const place = {w: [80, 58], x: [80, 194], a: [290, 194], b: [290, 58], y: [500, 126]};
    const node = id => ({
      id, x: place[id][0], y: place[id][1], title: title[id], value: `= ${clean(v[id])}`, hook: id === at,
      gradient: `∂y/∂${id} = ${clean(g[id])}`, was: g[id] === without[id] ? null : clean(without[id]),
      foot: id in kept ? t.plain("graph.kept") : id === "y" ? t.plain("graph.start") : t.plain("graph.gone"),
    });
    const edges = [["w", "b", "1"], ["w", "a", "1"], ["x", "a", "1"], ["b", "y", `a = ${clean(v.a)}`], ["a", "y", `b = ${clean(v.b)}`]];
    const label = t.plain("graph.label", {list: Object.keys(v).map(id => `${id} = ${clean(v[id])}, ∂y/∂${id} = ${clean(g[id])}`).join("; ")});
    root.innerHTML = graph({nodes: Object.keys(title).map(node), edges, size: [580, 242], label, hookWord: t.plain("graph.hook")});
    const say = t("lesson.b.say", {at, caught: clean(result.caught), w: clean(kept.w), x: clean(kept.x)});
    const more = change === "watch" ? t("lesson.b.say.watch") : t("lesson.b.say.change", {w: clean(without.w), x: clean(without.x)});
    return [`${say} ${more}`, {spill_w: clean(spilled["in place"].w), spill_x: clean(spilled["in place"].x), clean_x: clean(spilled.returned.x)}];
  }};
}

function chain(root, app) {
  const {t} = app;
  return {show({result, values: {x, factor}}) {
    const {values: v} = result, arrives = clean(result["arrives at y"]), leaves = clean(result["leaves y"]), grad = clean(result["x.grad"]);
    const plain = clean(result["arrives at y"] * 2 * v.x);
    const nodes = [
      {id: "x", x: 80, y: 62, title: "x", value: `= ${clean(v.x)}`, gradient: `∂z/∂x = ${grad}`, was: grad === plain ? null : plain, foot: t.plain("graph.kept")},
      {id: "y", x: 290, y: 62, title: "y = x²", value: `= ${clean(v.y)}`, gradient: leaves, was: arrives, foot: t.plain("graph.times", {factor: clean(factor)}), hook: true},
      {id: "z", x: 500, y: 62, title: "z = y³", value: `= ${clean(v.z)}`, gradient: "∂z/∂z = 1", was: null, foot: t.plain("graph.start")},
    ];
    const edges = [["x", "y", `2x = ${clean(2 * v.x)}`], ["y", "z", `3y² = ${clean(3 * v.y ** 2)}`]];
    const label = t.plain("graph.label", {list: `x = ${clean(v.x)}; y = ${clean(v.y)}, ${arrives} → ${leaves}; z = ${clean(v.z)}; ∂z/∂x = ${grad}`});
    root.innerHTML = graph({nodes, edges, size: [580, 110], label, hookWord: t.plain("graph.hook")});
    return [t("lesson.c.say", {arrives, leaves, grad, plain})];
  }};
}

// A 4 x 4 picture to paint, and the two maps that a hook on the convolution catches.
function convolution(root, app, change) {
  const {t} = app;
  root.innerHTML = `<div class="hl-conv">
    <figure><div class="hl-paint" role="group" aria-label="${t("paint")}">${Array.from({length: 16}, (_, k) => `<button type="button" data-k="${k}"></button>`).join("")}</div><figcaption><b>${t("paint")}</b></figcaption>
      <label class="hl-brush">${t("paint.brush")} <input type="range" min="0" max="9" value="9" id="hl-brush"><output>9</output></label></figure>
    <div class="hl-maps"></div></div>`;
  const cells = [...root.querySelectorAll("[data-k]")], brush = root.querySelector("#hl-brush");
  let image = "0".repeat(16);
  const put = (k, digit) => {
    if (image[k] === String(digit)) return;
    image = image.slice(0, k) + digit + image.slice(k + 1);
    color();
    change("image", image);
  };
  const color = () => cells.forEach((cell, k) => {
    const grey = Math.round(255 * image[k] / 9);
    Object.assign(cell.style, {background: `rgb(${grey} ${grey} ${grey})`, color: grey > 120 ? "#000" : "#fff"});
    cell.textContent = image[k];
    cell.setAttribute("aria-label", t.plain("paint.cell", {row: k >> 2, column: k & 3, value: image[k]}));
  });
  brush.oninput = () => { brush.nextElementSibling.textContent = brush.value; };
  const board = root.querySelector(".hl-paint");
  board.onpointerdown = event => {
    const cell = event.target.closest("[data-k]");
    if (!cell) return;
    event.target.releasePointerCapture?.(event.pointerId); // so that the strokes of a finger reach the other cells
    put(Number(cell.dataset.k), brush.value);
  };
  board.onpointermove = event => {
    if (!event.buttons) return;
    const cell = document.elementFromPoint(event.clientX, event.clientY)?.closest?.("[data-k]");
    if (cell) put(Number(cell.dataset.k), brush.value);
  };
  board.onkeydown = event => {
    const k = cells.indexOf(document.activeElement), by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 4, ArrowUp: -4}[event.key];
    if (/^\d$/.test(event.key)) put(k, event.key);
    else if (event.key === " " || event.key === "Enter") put(k, brush.value);
    else if (by) cells[k + by]?.focus();
    else return;
    event.preventDefault(), event.stopPropagation();
  };
  return {show({result, values}) {
    if (!board.contains(document.activeElement) || !board.matches(":active")) image = values.image;
    color();
    const {caught} = result, passed = result["passed on"];
    const all = [...caught, ...passed].flat(2), low = Math.min(0, ...all), high = Math.max(0, ...all);
    const map = (rows, name) => `<figure><div class="hl-cells" role="img" aria-label="${t.plain(name)}: ${rows.map(row => row.map(clean).join(" ")).join("; ")}">${rows.flat().map(v => cell(app, v, low, high)).join("")}</div><figcaption><b>${t(name)}</b></figcaption></figure>`;
    const same = JSON.stringify(caught) === JSON.stringify(passed);
    root.querySelector(".hl-maps").innerHTML = map(caught[0], "conv.first") + map(caught[1], "conv.second") + (same ? "" : map(passed[0], "conv.passed.first") + map(passed[1], "conv.passed.second"));
    return [t(same ? "lesson.d.say" : "lesson.d.say.changed", {low: clean(Math.min(...caught.flat(2))), high: clean(Math.max(...caught.flat(2))), after: clean(Math.min(...passed.flat(2)))})];
  }};
}

function cell(app, value, low, high) {
  const [r, g, b] = app.table.slice(3 * Math.round(255 * (high > low ? (value - low) / (high - low) : 0)));
  return `<span style="background:rgb(${r} ${g} ${b});color:${0.3 * r + 0.6 * g + 0.1 * b > 120 ? "#000" : "#fff"}">${clean(value)}</span>`;
}

function order(root, app) {
  const {t} = app;
  return {show({result, values: {x, factor}}) {
    const at = result.log.findIndex(([kind]) => kind === "backward");
    const row = ([kind, taken, given]) => ({kind: KIND[kind], title: t.plain(`order.${KIND[kind]}`), detail: t.plain(`order.${KIND[kind]}.detail`, {taken: clean(taken), given: clean(given)})});
    root.innerHTML = journey({
      down: result.log.slice(0, at).map(row), up: result.log.slice(at + 1).map(row),
      turn: t("order.turn", {z: clean(result.log[at][1])}), downLabel: t.plain("order.down"), upLabel: t.plain("order.up"),
    });
    const input = result.log.at(-1)[2];
    return [t("lesson.e.say", {x: clean(x), entered: clean(result.log[0][2]), factor: clean(factor), input: clean(input), grad: clean(result["x.grad"])})];
  }};
}

function backwardHook(root, app) {
  const {t} = app;
  return {show({result, values: {batch, inputs, outputs, x}}) {
    const given = result.grad_input?.join(" × ") ?? "None", wanted = clean(result["x.grad"]);
    const old = result.register_backward_hook, full = result.register_full_backward_hook;
    root.innerHTML = `
      <div class="hl-flow"><span>x<b>${batch} × ${inputs}</b></span><i>→</i><span class="mid">Linear(${inputs}, ${outputs})</span><i>→</i><span>y<b>${batch} × ${outputs}</b></span>
      <span class="hot${result.grad_input ? "" : " none"}">grad_input[0]<b>${given}</b></span><i>←</i><span class="mid">${t("backward.hook")}</span><i>←</i><span class="hot">grad_output[0]<b>${result.grad_output.join(" × ")}</b></span></div>
      <table class="hl-table-plain"><caption>${t("backward.caption", {x: clean(x)})}</caption><tbody>
      ${[["x.grad", result["x.grad"], "backward.truth"], ["register_full_backward_hook", full, full === result["x.grad"] ? "backward.right" : "backward.wrong"], ["register_backward_hook", old, old === result["x.grad"] ? "backward.right" : "backward.wrong"]].map(([name, value, verdict]) => `<tr><th scope="row"><code>${name}</code></th><td>${clean(value)}</td><td>${t(verdict)}</td></tr>`).join("")}</tbody></table>`;
    return [t(result.grad_input ? "lesson.f.say" : "lesson.f.say.none", {input: given, output: result.grad_output.join(" × ")}), {old: clean(old), full: wanted, three: clean(3 * x)}];
  }};
}

function inPlace(root, app) {
  const {t} = app;
  return {show({result: r, values: {factor, value}}) {
    const row = (name, value, meaning) => `<tr><th scope="row">${t(name)}</th><td>${clean(value)}</td><td>${meaning}</td></tr>`;
    const before = t("inplace.old", {a: clean(r["a before"])}), after = t("inplace.new", {a: clean(r["a after"])});
    root.innerHTML = `
      <div class="hl-flow wide"><span>x<b>${clean(r["a before"] / 2)}</b></span><i>→</i><span>a = 2x<b>${clean(r["a before"])}</b></span><i>→</i><span class="hot">a.mul_(${clean(factor)})<b>${clean(r["a after"])}</b></span><i>→</i><span>y = a²<b>${clean(r["a after"] ** 2)}</b></span></div>
      <table class="hl-table-plain"><caption>${t("inplace.gradients")}</caption><tbody>
      ${row("inplace.before", r["hook registered before"], before)}${row("inplace.after", r["hook registered after"], after)}${row("inplace.retain", r["a.grad from retain_grad"], after)}</tbody></table>
      <table class="hl-table-plain"><caption>${t("inplace.values", {value: clean(value)})}</caption><tbody>
      ${row("inplace.output", r["kept output"], t(r["kept output"] === r["kept clone"] ? "inplace.same" : "inplace.overwritten"))}${row("inplace.clone", r["kept clone"], t("inplace.safe"))}</tbody></table>`;
    return [t("lesson.g.say", {before: clean(r["hook registered before"]), after: clean(r["hook registered after"])})];
  }};
}

function neverRemoved(root, app) {
  const {t} = app;
  return {show({result: {rows}, values: {remove}}) {
    const top = rows.length, last = rows.at(-1);
    root.innerHTML = `<table class="hl-table-plain hl-runs"><thead><tr><th>${t("runs.run")}</th><th>${t("runs.calls")}</th><td></td><th>${t("runs.output")}</th><th>${t("runs.left")}</th></tr></thead><tbody>
      ${rows.map(({run, calls, output, left}) => `<tr><th scope="row">${run}</th><td class="hl-wide-cell">${"<i></i>".repeat(calls)}</td><td>${calls}</td><td>${clean(output)}</td><td>${left}</td></tr>`).join("")}</tbody></table>`;
    return [t(remove === "never" ? "lesson.h.say" : "lesson.h.say.removed", {runs: top, calls: rows.reduce((sum, row) => sum + row.calls, 0), left: last.left, output: clean(last.output), first: clean(rows[0].output)})];
  }};
}

function gradCam(root, app) {
  const {t} = app, side = 256;
  root.innerHTML = `<div class="hl-two hl-cams">${["scratch", "page"].map(name => `<figure><div class="hl-frame"><canvas role="img" data-map="${name}"></canvas></div><figcaption><b>${t(`cam.${name}`)}</b></figcaption></figure>`).join("")}</div>`;
  return {show({result}, answer) {
    const maps = ["scratch", "page"].map(name => unpack(result[name]));
    maps.forEach(({shape: [h, w], values}, k) => {
      const painted = heat(values, h, w, side, side, {smooth: app.state.smooth, normalization: app.state.normalization});
      const canvas = root.querySelectorAll("canvas")[k];
      paint(canvas, colorize(painted, side, side, app.table, {pixels: app.pixels, size: answer.size, opacity: app.state.opacity}));
      canvas.setAttribute("aria-label", t.plain(`cam.${k ? "page" : "scratch"}`));
    });
    return [t("lesson.i.say", {layer: app.layerLabel(result.layer), class: app.className(answer.target), difference: result.difference ? short(result.difference) : "0", largest: short(result.largest)})];
  }};
}

// The server looks at one part of the images a time; the bar shows how far it is.
function transfer(root, app) {
  const {t} = app;
  let asked, found, running = 0;
  root.innerHTML = `<div class="hl-transfer"><progress max="1" value="0" aria-label="${t("transfer.progress")}"></progress><div></div></div>`;
  const bar = root.querySelector("progress"), place = root.querySelector(".hl-transfer > div");
  const words = values => {
    if (!found) return [t("lesson.j.wait", {images: values.images})];
    const best = found.rows.reduce((a, b) => b.accuracy > a.accuracy ? b : a);
    return [t("lesson.j.say", {task: t.plain(`option.${values.task.replaceAll(" ", "-")}`), layer: name(best.layer), p: percent(best.accuracy), chance: percent(found.chance), fitted: found.fitted, tested: found.tested})];
  };
  const name = layer => layer === "pixels" ? t.plain("transfer.pixels") : layer;
  async function run(values, answer, parts) {
    const mine = ++running;
    found = null;
    for (let part = 0; part < parts && mine === running; part++) {
      try {
        const reply = await app.ask({...app.question("lessons.accuracy"), numbers: values, part});
        if (mine !== running || !root.isConnected) return;
        bar.value = reply.done / reply.of;
        if (reply.rows) found = reply;
      } catch (error) { return void app.tell(error.message, "error"); }
    }
    if (mine !== running || !found) return;
    const best = Math.max(...found.rows.map(row => row.accuracy));
    place.innerHTML = bars(found.rows.map(({layer, accuracy, size}) => ({label: `${name(layer)} · ${size}`, value: accuracy, text: percent(accuracy), mark: accuracy === best ? "best" : ""})), 1, {line: found.chance, lineText: t.plain("transfer.chance", {p: percent(found.chance)})});
    document.querySelector("#hl-say").innerHTML = words(values)[0];
  }
  return {
    show({values, result}, answer) {
      const key = JSON.stringify([answer.model, values]);
      if (key !== asked) { asked = key; bar.value = 0; run(values, answer, result.parts); }
      return words(values);
    },
    stop() { running++; },
  };
}

export const RESULTS = {a: steps, b: tensorHook, c: chain, d: convolution, e: order, f: backwardHook, g: inPlace, h: neverRemoved, i: gradCam, j: transfer};
