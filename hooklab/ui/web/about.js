// About: what this is, how good the networks are, how to read a map, and how to ask by script.
import {percent} from "./words.js";

const SECTIONS = ["networks", "reading", "doubt", "methods", "scripts", "data", "privacy"];

export function mount(root, app) {
  const {t} = app;
  const list = (name, count) => `<ul>${Array.from({length: count}, (_, k) => `<li>${t(`about.${name}.${k + 1}`)}</li>`).join("")}</ul>`;
  const origin = location.origin + location.pathname.replace(/\/$/, "");
  const scripts = {
    client: `from gradio_client import Client\n\nclient = Client("${origin}")\nfound = client.predict(1218, "resnet", api_name="/explain")\nprint(found["predicted"], found["layer"], found["places"])`,
    curl: `id=$(curl -s ${origin}/gradio_api/call/explain -H "Content-Type: application/json" \\\n  -d '{"data": [1218, "resnet", null, "ship", "gradcam"]}' | cut -d'"' -f4)\ncurl -s -N ${origin}/gradio_api/call/explain/$id`,
    python: `import hooklab\n\nlab = hooklab.Lab("resnet")\nfound = lab.explain(1218, target="ship")\nprint(lab.classes[found.predicted], found.layer, found.heatmap.shape)`,
  };
  root.innerHTML = `
    <p class="hl-intro">${t("intro.about")}</p>
    <p class="hl-say" id="hl-say" aria-live="polite"></p>
    <nav class="hl-row hl-contents" aria-label="${t("about.contents")}">${SECTIONS.map(id => `<button data-to="${id}">${t(`about.${id}`)}</button>`).join("")}</nav>
    <div class="hl-about">
      <section data-section="networks"><h2>${t("about.networks")}</h2><div class="hl-cards"></div></section>
      <div class="hl-columns">
        <section class="hl-card" data-section="reading"><h2>${t("about.reading")}</h2>${list("reading", 6)}<h3>${t("about.limits")}</h3>${list("limits", 4)}</section>
        <section class="hl-card" data-section="doubt"><h2>${t("about.doubt")}</h2><div></div></section>
        <section class="hl-card" data-section="methods"><h2>${t("about.methods")}</h2><p>${t("about.methods.text")}</p><dl></dl></section>
        <section class="hl-card" data-section="scripts"><h2>${t("about.scripts")}</h2><p>${t("about.scripts.text")}</p>${Object.entries(scripts).map(([name, text]) => `
          <div class="hl-row"><h3>${t(`about.scripts.${name}`)}</h3><span class="hl-space"></span><button data-copy="${name}">${t("copy")}</button></div><pre tabindex="0" data-script="${name}">${app.escape(text)}</pre>`).join("")}</section>
        <section class="hl-card" data-section="data"><h2>${t("about.data")}</h2><p>${t("about.data.1")}</p><p>${t("about.data.2")}</p></section>
        <section class="hl-card" data-section="privacy"><h2>${t("about.privacy")}</h2><p>${t("about.privacy.1")}</p><p>${t("about.privacy.2")}</p><p>${t("about.licence")}</p><p class="hl-soft" id="hl-versions"></p></section>
      </div>
    </div>`;
  root.onclick = event => {
    const {to, copy, save} = event.target.dataset;
    if (to) root.querySelector(`[data-section=${to}]`).scrollIntoView({behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth"});
    if (copy) app.copy(copy === "command" ? event.target.closest("section").querySelector("pre").textContent : scripts[copy], event.target);
    if (save) app.save(`${save}.json`, "application/json", JSON.stringify(answer.about.networks[save].card, null, 2));
  };
  let answer;

  function show(next) {
    answer = next;
    const {networks, methods, versions} = answer.about, titles = Object.keys(networks).map(name => [name, app.start.models[name].title]);
    const known = titles.filter(([name]) => networks[name]);
    root.querySelector("#hl-say").innerHTML = known.map(([name, title]) => t("say.about", {model: title, p: percent(networks[name].card.accuracy)})).join(" ") || t("about.own");
    root.querySelector(".hl-cards").innerHTML = titles.map(([name, title]) => networks[name] ? networkCard(name, title, networks[name]) : `<section class="hl-card"><h3>${app.escape(title)}</h3><p>${t("about.own")}</p></section>`).join("");
    root.querySelector("[data-section=doubt] div").innerHTML = doubt(known.filter(([name]) => networks[name].unlike));
    root.querySelector("[data-section=methods] dl").innerHTML = methods.map(({title, paper}) => `<dt>${app.escape(title)}</dt><dd>${linked(paper)}</dd>`).join("");
    root.querySelector("#hl-versions").textContent = Object.entries(versions).map(([name, text]) => `${name} ${text}`).join(" · ");
  }

  // "Selvaraju et al. 2017, arXiv:1610.02391" with its number as a link: nothing is fetched until somebody follows it.
  function linked(paper) {
    return app.escape(paper)
      .replace(/arXiv:([\d.]+\d)/, `<a href="https://arxiv.org/abs/$1" target="_blank" rel="noopener">arXiv:$1</a>`)
      .replace(/doi:(\S+)/, `<a href="https://doi.org/$1" target="_blank" rel="noopener">doi:$1</a>`);
  }

  function networkCard(name, title, {card, curve}) {
    const facts = [
      ["accuracy", percent(card.accuracy)], ["calibration", percent(card.expected_calibration_error)], ["parameters", count(card.parameters)],
      ["multiply_adds", t.plain("about.millions", {count: count(Math.round(card.multiply_adds / (app.lang === "zh" ? 1e4 : 1e6)))})], ["epochs", card.epochs], ["seed", card.seed],
      ["time", card.seconds ? t.plain("about.minutes", {n: count(Math.round(card.seconds / 60))}) : null], ["speed", card.images_per_second ? t.plain("about.per_second", {n: count(card.images_per_second)}) : null],
      ["processes", card.processes && card.device ? `${card.processes} × ${card.device}` : null],
    ].filter(([, value]) => value !== null && value !== undefined);
    const classes = Object.entries(card.per_class_accuracy);
    return `<section class="hl-card" data-network="${name}">
      <div class="hl-row"><h3>${app.escape(title)}</h3><span class="hl-space"></span><button data-save="${name}">${t("about.card")}</button></div>
      <dl class="hl-facts">${facts.map(([key, value]) => `<div title="${t.plain(`about.fact.${key}.hint`)}"><dt>${t(`about.fact.${key}`)}</dt><dd>${app.escape(value)}</dd></div>`).join("")}</dl>
      <div class="hl-curves2">${["accuracy", "loss"].map(kind => chart(kind, curve)).join("")}</div>
      <h4>${t("about.per_class")}</h4>
      <div class="hl-top hl-per-class">${classes.map(([class_, p]) => `<span>${t(`class.${class_}`, {}, class_)}</span><span class="hl-bar"><i style="width:${(100 * p).toFixed(1)}%"></i></span><span class="hl-number">${percent(p)}</span>`).join("")}</div>
      <div class="hl-row"><h4>${t("about.command")}</h4><span class="hl-space"></span><button data-copy="command">${t("copy")}</button></div><pre tabindex="0">${app.escape(card.command)}</pre>
    </section>`;
  }

  // Training and test split over the epochs, with the first and last values in words for who cannot see it.
  function chart(kind, curve) {
    const lines = {train: curve[`train_${kind}`], test: curve[`check_${kind}`]}, epochs = curve.epoch;
    const W = 300, H = 150, left = 38, bottom = 22, values = [...lines.train, ...lines.test];
    const low = kind === "accuracy" ? Math.floor(10 * Math.min(...values)) / 10 : 0, high = kind === "accuracy" ? 1 : Math.ceil(Math.max(...values));
    const x = epoch => left + (W - left - 8) * (epochs.length > 1 ? (epoch - epochs[0]) / (epochs.at(-1) - epochs[0]) : 0.5);
    const y = value => 8 + (H - 8 - bottom) * (1 - (value - low) / (high - low));
    const shown = value => kind === "accuracy" ? `${Math.round(100 * value)} %` : value.toFixed(1);
    const ticks = [low, (low + high) / 2, high], label = t.plain(`about.curve.${kind}`, {
      epochs: epochs.length, first: kind === "accuracy" ? percent(lines.test[0]) : lines.test[0].toFixed(2), last: kind === "accuracy" ? percent(lines.test.at(-1)) : lines.test.at(-1).toFixed(2),
      train: kind === "accuracy" ? percent(lines.train.at(-1)) : lines.train.at(-1).toFixed(2),
    });
    return `<figure><svg viewBox="0 0 ${W} ${H}" role="img" aria-label="${label}">
      ${ticks.map(value => `<path class="grid" d="M${left} ${y(value).toFixed(1)}H${W - 8}"/><text x="${left - 5}" y="${(y(value) + 4).toFixed(1)}" text-anchor="end">${shown(value)}</text>`).join("")}
      <text x="${left}" y="${H - 5}">${epochs[0]}</text><text x="${W - 8}" y="${H - 5}" text-anchor="end">${t("about.epoch", {n: epochs.at(-1)})}</text>
      ${Object.entries(lines).map(([name, line]) => `<path class="${name}" d="${line.map((value, k) => `${k ? "L" : "M"}${x(epochs[k]).toFixed(1)} ${y(value).toFixed(1)}`).join("")}"/>`).join("")}
    </svg><figcaption><b>${t(`about.${kind}`)}</b><span><i class="hl-key train"></i> ${t("about.train")} <i class="hl-key test"></i> ${t("about.test")}</span></figcaption></figure>`;
  }

  function doubt(known) {
    if (!known.length) return `<p>${t("about.doubt.none")}</p>`;
    const figures = known.map(([name, title]) => [title, answer.about.networks[name].unlike]);
    const kinds = Object.keys(figures[0][1].found);
    return `${figures.map(([title, {unsure}]) => `<p>${t("about.doubt.unsure", {model: title, below: percent(unsure.below), images: count(unsure.images), right: percent(unsure.right)})}</p>`).join("")}
      <p>${t("about.doubt.unlike", {percentile: figures[0][1].percentile})}</p>
      <table class="hl-rates"><caption>${t("about.doubt.table", {percentile: 100 - figures[0][1].percentile})}</caption>
        <thead><tr><td></td>${figures.map(([title]) => `<th scope="col">${app.escape(title)}</th><th scope="col" class="hl-soft">${t("about.doubt.alone")}</th>`).join("")}</tr></thead>
        <tbody>${kinds.map(kind => `<tr><th scope="row">${t(`about.kind.${kind}`)}</th>${figures.map(([, {found, found_by_the_largest_probability_alone: alone}]) => `<td>${percent(found[kind])}</td><td class="hl-soft">${percent(alone[kind])}</td>`).join("")}</tr>`).join("")}</tbody></table>
      <p>${t("about.doubt.limit")}</p>`;
  }

  const count = n => n.toLocaleString(document.documentElement.lang);
  return {show, display() {}};
}
