"""Where does it look? The class activation map of one image, layer and class."""

import io
import json
import reprlib

import numpy as np

from hooklab import data, images, unlike
from hooklab.ui.describe import where
from hooklab.ui.payload import encode, floats, pack
from hooklab.ui.question import Question, Refusal, choice, number, resolve


def common(question: Question) -> dict:
    """What every tab shows: the picture, the prediction, and what fell back to a default."""
    lab = question.lab
    pixels = lab.prepare(question.image).pixels
    logits = lab.predict(pixels[None])[0]
    exponentials = np.exp(logits - logits.max())
    probabilities = exponentials / exponentials.sum()
    predicted = int(logits.argmax())
    return {
        "model": question.model,
        "layer": question.layer,
        "method": question.method,
        "index": question.index,
        "label": None if question.index is None else data.test_image(question.index)[1],
        "pixels": encode(pixels),
        "size": list(pixels.shape[:2]),
        "logits": floats(logits),
        "probabilities": floats(probabilities),
        "predicted": predicted,
        "target": predicted if question.target is None else question.target,
        "doubt": unlike.doubt(lab, pixels, float(probabilities.max()), own=question.index is None),
        "notes": [list(note) for note in question.notes],
    }


def view(labs, request) -> dict:
    """The page's answer: the raw map and the facts that its sentence and alternative texts are made of."""
    question = resolve(labs, request)
    answer = common(question)
    if not layer_info(question).spatial:
        return {**answer, "map": None}
    found = question.lab.explain(question.image, question.layer, answer["target"], question.method)
    return {
        **answer,
        "map": {
            "raw": pack(found.raw),
            "low": float(found.raw.min()),
            "high": float(found.raw.max()),
            "blank": found.blank,
            **where(found.heatmap),
        },
    }


def layer_info(question: Question):
    return next(layer for layer in question.lab.layers() if layer.name == question.layer)


def download(labs, request) -> dict:
    """The three panels as one PNG at 150 dpi, or the raw arrays as .npz: {"name", "type", "data" in base64}."""
    question = resolve(labs, request, strict=True)
    kind = choice(request.get("kind"), "kind", ("png", "npz"))
    found = question.lab.explain(question.image, question.layer, question.target, question.method)
    classes = question.lab.classes
    shown = {
        "index": question.index,
        "model": question.model,
        "layer": found.layer,
        "target": classes[found.target],
        "method": found.method,
    }
    stem = "_".join(
        ["hooklab", str(question.index if question.index is not None else "own"), *list(shown.values())[1:]]
    )
    stem = "".join(c if c.isalnum() or c in "_+-." else "-" for c in stem)
    if kind == "npz":
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            input=found.input,
            raw=found.raw,
            heatmap=found.heatmap,
            logits=found.logits,
            probabilities=found.probabilities,
            classes=np.array(classes),
            about=np.array(json.dumps(shown)),
        )
        return {"name": f"{stem}.npz", "type": "application/octet-stream", "data": encode(buffer.getvalue())}
    picture = images.panels(
        found.input,
        found.raw,
        name=choice(request.get("colors", "inferno"), "colors", images.COLORMAPS),
        opacity=number(request.get("opacity", 0.55), "opacity", 0, 1),
        smooth=_switch(request.get("smooth", True), "smooth"),
        normalization=choice(request.get("normalization", "max"), "normalization", images.NORMALIZATIONS),
        description=shown,
    )
    return {"name": f"{stem}.png", "type": "image/png", "data": encode(picture)}


def _switch(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        shown = reprlib.repr(value)
        raise Refusal(
            "choice", f"{field} {shown}: true or false is needed", field=field, value=shown, choices="true, false"
        )
    return value
