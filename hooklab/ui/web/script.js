// "Show the code": the script behind the open tab, in a dialog.
import {mountCode} from "./code.js";
import {parse} from "./edits.js";
import {paint, picture} from "./stage.js";

export async function showScript(app) {
  const {t, state} = app, {tab, show, other, percent, which, baseline} = state;
  let answer;
  try {
    const edits = tab === "hooks" ? parse(state.edits) : [];
    answer = await app.ask({...app.question("code"), layer: app.answer.layer, target: app.answer.target, tab, show, other, percent, which, baseline, edits});
  } catch (error) { return app.tell(error.message, "error"); }
  const dialog = document.createElement("dialog");
  dialog.className = "hl-dialog hl-script";
  dialog.setAttribute("aria-label", t.plain("code.title"));
  dialog.innerHTML = `<p>${t("script.what")}</p><p id="hl-own-picture" ${answer.own ? "" : "hidden"}><button>${t("script.picture")}</button></p><div class="hl-code"></div><form method="dialog"><button>${t("close")}</button></form>`;
  mountCode(dialog.querySelector(".hl-code"), app, () => `hooklab_${tab}`).show(answer.code);
  dialog.querySelector("#hl-own-picture button").onclick = () => {
    const canvas = document.createElement("canvas");
    paint(canvas, picture(app.pixels, app.answer.size));
    canvas.toBlob(blob => app.save("picture.png", "image/png", blob), "image/png");
  };
  dialog.onclose = () => dialog.remove();
  app.root.append(dialog);
  dialog.showModal();
}
