// From a channel to its effect: what silencing each channel takes from the target's logit, beside what the gradient says.
import {short} from "./words.js";

const WIDTH = 300, HEIGHT = 210, EDGE = 26;

export function mountChannels(root, app, silence) {
  const {t} = app;
  root.innerHTML = `<p class="hl-soft">${t("effects.intro")}</p>
    <div class="hl-effects-top"><div id="hl-scatter"></div><p class="hl-say" id="hl-correlation" aria-live="polite"></p></div>
    <div class="hl-scroll" tabindex="0" role="region" aria-label="${t("effects.table")}"><table class="hl-table-plain"><thead><tr><th>${t("effects.channel")}</th><th title="${t("effects.effect.hint")}">${t("effects.effect")}</th><td></td><th title="${t("fact.weight.hint")}">${t("effects.weight")}</th><th title="${t("effects.promised.hint")}">${t("effects.promised")}</th><td></td></tr></thead><tbody></tbody></table></div>`;
  const body = root.querySelector("tbody");
  body.onclick = event => {
    const channel = event.target.closest("[data-channel]")?.dataset.channel;
    if (channel !== undefined) silence(Number(channel));
  };
  let asked = null;

  async function show(answer) {
    const key = [answer.index ?? answer.pixels, answer.model, answer.layer, answer.target].join();
    if (key === asked) return;
    asked = key;
    root.setAttribute("aria-busy", "true");
    try {
      const found = await app.ask({...app.question("hooks.channels"), target: answer.target, layer: answer.layer});
      if (key === asked) fill(found);
    } catch (error) { app.tell(error.message, "error"); asked = null; }
    root.removeAttribute("aria-busy");
  }

  function fill({effects, weights, promised, correlations, layer, target}) {
    const order = effects.map((_, k) => k).sort((a, b) => Math.abs(effects[b]) - Math.abs(effects[a]));
    const top = Math.abs(effects[order[0]]) || 1;
    body.innerHTML = order.map(k => `<tr><th scope="row">${k}</th><td>${short(effects[k])}</td><td class="hl-signed"><i class="${effects[k] < 0 ? "minus" : ""}" style="width:${50 * Math.abs(effects[k]) / top}%"></i></td><td>${short(weights[k])}</td><td>${short(promised[k])}</td><td><button data-channel="${k}" aria-label="${t.plain("effects.silence", {k})}" title="${t.plain("effects.silence", {k})}">${t("effects.silence.short")}</button></td></tr>`).join("");
    root.querySelector("#hl-scatter").innerHTML = scatter(effects, promised);
    const [weight, both] = correlations.map(value => value.toFixed(2).replace("-", "−"));
    const judged = Math.max(...correlations) > 0.9 ? "effects.good" : Math.max(...correlations) > 0.5 ? "effects.fair" : "effects.poor";
    root.querySelector("#hl-correlation").innerHTML = t("effects.say", {layer: app.layerLabel(layer), target: app.className(target), weight, both, count: effects.length}) + " " + t(judged);
  }

  // Each dot is a channel: right what the gradient promised, up what happened; on the diagonal it told the truth.
  function scatter(effects, promised) {
    const all = [...effects, ...promised, 0], low = Math.min(...all), high = Math.max(...all), span = high - low || 1;
    const x = v => EDGE + (WIDTH - 2 * EDGE) * (v - low) / span, y = v => HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (v - low) / span;
    const line = (x1, y1, x2, y2, name) => `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" class="${name}"/>`;
    return `<svg class="hl-plot" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${t("effects.plot")}">
      ${line(x(low), y(0), x(high), y(0), "axis")}${line(x(0), y(low), x(0), y(high), "axis")}${line(x(low), y(low), x(high), y(high), "truth")}
      ${effects.map((effect, k) => `<circle cx="${x(promised[k]).toFixed(1)}" cy="${y(effect).toFixed(1)}" r="3.2"><title>${t.plain("channel.name", {k})}: ${short(promised[k])} → ${short(effect)}</title></circle>`).join("")}
      <text x="${WIDTH - EDGE}" y="${HEIGHT - 6}" text-anchor="end">${t("effects.promised")} →</text><text x="${EDGE}" y="14">↑ ${t("effects.effect")}</text></svg>`;
  }
  return {show};
}
