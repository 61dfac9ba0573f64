// The network as a strip: one box for each recorded output, to scale, in the order in which they are computed.
export function mountStrip(root, app) {
  const {t} = app;

  function build() {
    const {layers, size} = app.model;
    const tallest = size[1];
    root.innerHTML = `
      <div class="hl-strip" role="group" aria-label="${t("network")}" title="${t("network.way")}">
        <span class="hl-layer hl-fixed"><span class="hl-box" style="${box([3, tallest, size[2]], tallest)}"><i></i></span><b>${t("network.input")}</b><small>3×${size[1]}×${size[2]}</small></span>
        ${layers.map(layer => `<button class="hl-layer${layer.spatial ? "" : " flat"}" data-layer="${layer.name}" aria-pressed="false" title="${app.escape(layer.name)} · ${app.escape(layer.type)}" aria-label="${app.escape(layer.name)}, ${app.escape(layer.type)}, ${layer.shape.join(" × ")}${layer.spatial ? "" : `, ${t("layer.nomap")}`}">
          <span class="hl-box" style="${box(layer.shape, tallest)}">${"<i></i>".repeat(sheets(layer.shape))}</span><b>${app.layerLabel(layer.name)}</b><small>${layer.shape.join("×")}</small></button>`).join("")}
      </div>`;
    root.classList.toggle("long", layers.length > 14);
    const strip = root.querySelector(".hl-strip");
    strip.onclick = event => {
      const button = event.target.closest("[data-layer]");
      if (button) app.set({layer: button.dataset.layer});
    };
  }

  function show(answer) {
    let after = false;
    for (const button of root.querySelectorAll("[data-layer]")) {
      const on = button.dataset.layer === answer.layer;
      button.setAttribute("aria-pressed", on);
      button.classList.toggle("after", after); // the way back of the gradient
      if (on) {
        after = true;
        const strip = button.parentElement;
        if (button.offsetLeft < strip.scrollLeft || button.offsetLeft + button.offsetWidth > strip.scrollLeft + strip.clientWidth)
          strip.scrollLeft = button.offsetLeft - strip.clientWidth / 2;
      }
    }
  }
  build();
  return {build, show};
}

const sheets = shape => shape.length === 3 ? Math.max(2, Math.min(8, Math.round(Math.log2(shape[0])))) : 1;

// Side in proportion to the square root of height, so that 4 beside 32 can still be seen.
function box(shape, tallest) {
  const side = shape.length === 3 ? 8 + 36 * Math.sqrt(shape[1] / tallest) : 12;
  return `--side:${side.toFixed(1)}px;--sheets:${sheets(shape)}`;
}
