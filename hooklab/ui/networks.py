"""Two networks on one image: the same class, one map each, and how much of the picture both maps mark."""

from collections.abc import Mapping

import numpy as np

from hooklab.lab import Lab
from hooklab.ui import browse
from hooklab.ui.describe import where
from hooklab.ui.gradcam import common, layer_info
from hooklab.ui.payload import floats, pack
from hooklab.ui.question import Question, Refusal, integer, resolve


def view(labs: Mapping[str, Lab], request: Mapping) -> dict:
    """One entry a network, the chosen one first: its layer, probabilities and map of the common target class.

    `other_layer` is the other network's layer, as `layer` is the chosen one's. `overlap`: the area that is above half
    of the peak in both maps, divided by the area that is so in either; None where a map is missing or blank.
    """
    question = resolve(labs, request)
    answer = common(question)
    questions, notes = [question], list(answer["notes"])
    for name in labs:
        if name != question.model:
            asked = resolve(labs, {**request, "model": name, "layer": request.get("other_layer")})
            # A layer of the chosen network is left over from when the two were the other way round: no mistake.
            known = [layer.name for layer in question.lab.layers()]
            notes += [list(note) for note in asked.notes if note[0] == "layer" and request["other_layer"] not in known]
            questions.append(asked)
    found = [_look(asked, answer["target"]) for asked in questions]
    maps = [explanation.heatmap for _, explanation in found if explanation is not None and not explanation.blank]
    return {
        **answer,
        "notes": notes,
        "networks": [entry for entry, _ in found],
        "overlap": _overlap(maps) if len(maps) == len(found) > 1 else None,
    }


def _look(question: Question, target: int) -> tuple[dict, object]:
    lab = question.lab
    entry = {"model": question.model, "layer": question.layer, "target": target, "map": None}
    if not layer_info(question).spatial:
        pixels = lab.prepare(question.image).pixels
        probabilities = lab.probabilities(pixels[None])[0]
        return {**entry, "probabilities": floats(probabilities), "predicted": int(probabilities.argmax())}, None
    seen = lab.explain(question.image, question.layer, target, question.method)
    entry["map"] = {
        "raw": pack(seen.raw),
        "low": float(seen.raw.min()),
        "high": float(seen.raw.max()),
        "blank": seen.blank,
        **where(seen.heatmap),
    }
    return {**entry, "probabilities": floats(seen.probabilities), "predicted": seen.predicted}, seen


def _overlap(heatmaps: list[np.ndarray]) -> float | None:
    if len({heatmap.shape for heatmap in heatmaps}) > 1:
        return None
    marked = np.stack([heatmap > 0.5 for heatmap in heatmaps])
    return float(marked.all(0).sum() / marked.any(0).sum())


def disagreement(labs: Mapping[str, Lab], request: Mapping) -> dict:
    """{"index"}: the next test image after `index` on which the shipped predictions of two networks differ."""
    if len(labs) < 2 or not all(lab.shipped for lab in labs.values()):
        raise Refusal("predictions", "the next disagreement is found in predictions that ship; these weights are yours")
    index = integer(request.get("index"), "index", 0, 9999)
    answers = np.stack([browse.predictions(name)[0] for name in labs])
    differ = np.flatnonzero((answers != answers[0]).any(0))
    return {"index": int(differ[np.searchsorted(differ, index, "right") % len(differ)]), "count": len(differ)}


VIEWS = {"networks": view, "networks.next": disagreement}
