"""Every class and layer: many maps of one image on one grid, and what comparing them says."""

from itertools import combinations

import numpy as np

from hooklab import cam, images
from hooklab.sanity import rank_correlation
from hooklab.ui.describe import where
from hooklab.ui.gradcam import common, layer_info
from hooklab.ui.payload import pack
from hooklab.ui.question import Refusal, choice, resolve, target

SHOWN = ("classes", "difference", "layers", "methods")


def view(labs, request) -> dict:
    """{"show", "tiles": [{"name", "raw", "low", "high", "above_half", "places"}], and one fact for the sentence}."""
    question = resolve(labs, request)
    show = choice(request.get("show", "classes"), "show", SHOWN)
    answer = {**common(question), "show": show, "tiles": []}
    if show == "layers":
        maps = question.lab.explain_layers(question.image, answer["target"], question.method)
        return {**answer, "tiles": [_tile(name, raw, answer["size"]) for name, raw in maps.items()]}
    if not layer_info(question).spatial:
        return answer
    if show == "methods":
        maps = {
            name: question.lab.explain(question.image, question.layer, answer["target"], name).raw
            for name in cam.METHODS
        }
        return {**answer, "tiles": [_tile(name, raw, answer["size"]) for name, raw in maps.items()], **_agreement(maps)}
    maps = question.lab.explain_classes(question.image, question.layer, question.method)
    if show == "classes":
        return {**answer, "tiles": [_tile(k, raw, answer["size"]) for k, raw in enumerate(maps)]}
    other, chosen = other_class(question, request, answer), answer["target"]
    between = question.lab.difference(question.image, chosen, other, question.layer, question.method).raw
    tiles = {"target": maps[chosen], "other": maps[other], "difference": between}
    return {**answer, "other": other, "tiles": [_tile(name, raw, answer["size"]) for name, raw in tiles.items()]}


def other_class(question, request, answer) -> int:
    """The class to compare with: the one that was asked for, or the most probable one besides the target."""
    wanted = request.get("other")
    if wanted is not None and wanted != "":
        other = target(question.lab, wanted)
        if other != answer["target"]:
            return other
    if len(question.lab.classes) < 2:
        raise Refusal("one_class", "this model has one class: there is no other to compare with")
    return next(int(k) for k in np.argsort(answer["probabilities"])[::-1] if k != answer["target"])


def _tile(name, raw, size) -> dict:
    facts = where(images.heatmap(raw, size))
    return {"name": name, "raw": pack(raw), "low": float(raw.min()), "high": float(raw.max()), **facts}


def _agreement(maps) -> dict:
    """Mean rank correlation over all pairs of methods, and the method that agrees least with the others."""
    pairs = {(a, b): rank_correlation(maps[a], maps[b]) for a, b in combinations(maps, 2)}
    mean_of = {name: float(np.mean([value for pair, value in pairs.items() if name in pair])) for name in maps}
    odd = min(mean_of, key=mean_of.get)
    return {"agreement": float(np.mean(list(pairs.values()))), "odd": odd, "odd_agreement": mean_of[odd]}
