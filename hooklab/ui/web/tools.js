// Display controls: they act in the browser at once and ask the server nothing.
import {paintTable} from "./stage.js";

// `offered`: which of colors, opacity, smooth, normalization, order this tab has. Returns {update()}.
export function mountTools(root, app, offered, extra = "") {
  const {t} = app;
  const controls = {
    legend: `<span class="hl-legend"><span data-low></span><canvas class="hl-table" aria-hidden="true"></canvas><span data-high></span></span>`,
    colors: `<label>${t("colors")} <select data-key="colors">${Object.keys(app.tables).map(name => `<option>${name}</option>`).join("")}</select></label>`,
    opacity: `<label>${t("opacity")} <input type="range" data-key="opacity" min="0" max="1" step="0.05"><output></output></label>`,
    smooth: `<label><input type="checkbox" data-key="smooth"> ${t("smooth")}</label>`,
    normalization: `<label title="${t("normalization.hint")}">${t("normalization")} <select data-key="normalization"><option value="max">${t("normalization.max")}</option><option value="min-max">${t("normalization.min-max")}</option><option value="signed">${t("normalization.signed")}</option></select></label>`,
    order: `<label>${t("order")} <select data-key="order">${["contribution", "mean", "index"].map(name => `<option value="${name}">${t(`order.${name}`)}</option>`).join("")}</select></label>`,
    scale: `<label>${t("scale")} <select data-key="scale"><option value="each">${t("scale.each")}</option><option value="common">${t("scale.common")}</option></select></label>`,
  };
  root.innerHTML = offered.map(name => controls[name]).join("") + extra;
  for (const control of root.querySelectorAll("[data-key]")) {
    const {key} = control.dataset;
    control.addEventListener("input", () => app.set({[key]: control.type === "checkbox" ? control.checked : control.type === "range" ? Number(control.value) : control.value}));
  }
  return {
    update() {
      for (const control of root.querySelectorAll("[data-key]")) {
        const value = app.state[control.dataset.key];
        if (control.type === "checkbox") control.checked = value; else control.value = value;
        const output = control.parentElement.querySelector("output");
        if (output) output.textContent = `${Math.round(100 * value)} %`;
      }
      const table = root.querySelector(".hl-table");
      if (table) paintTable(table, app.table);
    },
    legend(low, high) {
      root.querySelector("[data-low]").textContent = low;
      root.querySelector("[data-high]").textContent = high;
    },
  };
}
