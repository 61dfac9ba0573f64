"""The plain-PyTorch script behind the open tab: it gives the arrays that the page shows."""

from hooklab import models, snippets
from hooklab.ui.classes import SHOWN, other_class
from hooklab.ui.gradcam import common, layer_info
from hooklab.ui.hooks import usable
from hooklab.ui.question import Refusal, choice, default_layer, number, resolve

_OWN = "picture.png"  # what the page saves one's own picture as, at the model's input size


def view(labs, request) -> dict:
    """{"code", "own"}: `own` where the script reads a picture that the viewer has to save first."""
    question = resolve(labs, request)
    if question.model not in models.REGISTRY or not question.lab.shipped:
        raise Refusal("code_model", "the scripts are written for the networks and weights that ship with hooklab")
    answer = common(question)
    image = _OWN if question.index is None else question.index
    place = (question.model, image, question.layer, answer["target"])
    tab = choice(request.get("tab"), "tab", ("gradcam", "features", "classes", "evidence", "hooks"))
    if tab == "features":
        text = snippets.features(*place)
    elif tab == "hooks":
        edits = request.get("edits")
        _, edits = usable(question.lab, edits if isinstance(edits, list) else [])
        layer = question.layer if layer_info(question).spatial else default_layer(question.lab)
        text = snippets.run(question.model, image, edits, layer, answer["target"])
    elif tab == "classes":
        show = choice(request.get("show"), "show", SHOWN)
        if show == "classes":
            text = snippets.classes(question.model, image, question.layer, question.method)
        elif show == "difference":
            other = other_class(question, request, answer)
            text = snippets.difference(*place, other, question.method)
        elif show == "layers":
            text = snippets.all_layers(question.model, image, answer["target"])
        else:
            text = snippets.explain(*place, question.method)
    elif tab == "evidence":
        percent = number(request.get("percent", 20), "percent", 0, 100)
        which = choice(request.get("which"), "which", ("hottest", "coldest"))
        baseline = choice(request.get("baseline"), "baseline", ("blur", "grey"))
        text = snippets.erase(*place, percent, question.method, which, baseline)
    else:
        text = snippets.explain(*place, question.method)
    return {"code": text, "own": question.index is None}
