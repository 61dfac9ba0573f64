"""What the browser or a script asks, checked once, here: every value ends as a valid one or as a `Refusal`."""

import base64
import binascii
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hooklab import cam
from hooklab.lab import Lab

DEFAULT_INDEX = 1218


class Refusal(ValueError):
    """A request that cannot be answered: `code` is a key of texts.json ("error." + code), `values` fill its braces."""

    def __init__(self, code: str, message: str, **values):
        super().__init__(message)
        self.code, self.values = code, values


@dataclass(frozen=True)
class Question:
    """One valid request. `notes` say what fell back to a default, as (code, values) pairs for texts.json."""

    model: str
    lab: Lab
    image: int | np.ndarray  # an index of the test split, or uint8 (H, W, 3) at the model's input size
    layer: str
    target: int | None  # None: the predicted class
    method: str
    notes: tuple[tuple[str, dict], ...]

    @property
    def index(self) -> int | None:
        return self.image if isinstance(self.image, int) else None


def resolve(labs: Mapping[str, Lab], request: object, strict: bool = False) -> Question:
    """A `Question` from the page (an unknown value falls back to the default with a note) or a script (`strict`)."""
    if not isinstance(request, Mapping):
        raise Refusal("request", f"{_quoted(request)}: a request is an object with fields such as index, model, layer")
    notes: list[tuple[str, dict]] = []

    def pick(check, field, default):
        value = request.get(field)
        if value is None or value == "":
            return default() if callable(default) else default
        try:
            return check(value)
        except Refusal as refusal:
            if strict:
                raise
            notes.append((refusal.code, refusal.values))
            return default() if callable(default) else default

    model = pick(lambda value: _model(labs, value), "model", next(iter(labs)))
    lab = labs[model]
    if request.get("pixels") is not None:
        image = _pixels(lab, request["pixels"])
    elif request.get("picture") is not None:  # decoded by upload.py
        image = lab.prepare(request["picture"]).pixels
    else:
        image = pick(_index, "index", DEFAULT_INDEX)
    return Question(
        model=model,
        lab=lab,
        image=image,
        layer=pick(lambda value: _layer(lab, model, value), "layer", lambda: default_layer(lab)),
        target=pick(lambda value: target(lab, value), "target", None),
        method=pick(_method, "method", "gradcam"),
        notes=tuple(notes),
    )


def default_layer(lab: Lab) -> str:
    return next((layer.name for layer in lab.layers() if layer.default), lab.layers()[-1].name)


def integer(value: object, field: str, low: int, high: int) -> int:
    """A whole number from low to high; True, 1.5, NaN, "5" and [5] are none."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        shown = _quoted(value)
        raise Refusal(
            "integer",
            f"{field} {shown}: a whole number from {low} to {high} is needed",
            field=field,
            value=shown,
            low=low,
            high=high,
        )
    return value


def number(value: object, field: str, low: float, high: float) -> float:
    """A finite number from low to high; True, NaN and "5" are none."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not low <= value <= high
    ):
        shown = _quoted(value)
        raise Refusal(
            "number",
            f"{field} {shown}: a number from {low} to {high} is needed",
            field=field,
            value=shown,
            low=low,
            high=high,
        )
    return float(value)


def choice(value: object, field: str, choices) -> str:
    """One of the names in `choices`."""
    if not isinstance(value, str) or value not in choices:
        shown, listed = _quoted(value), ", ".join(choices)
        raise Refusal("choice", f"{field} {shown}: choose one of {listed}", field=field, value=shown, choices=listed)
    return value


def target(lab: Lab, value: object) -> int:
    """A class by its name or its number."""
    if isinstance(value, str) and value in lab.classes:
        return lab.classes.index(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(lab.classes):
        return value
    shown, count = _quoted(value), len(lab.classes)
    message = f"target {shown}: this model has {count} classes (0 to {count - 1}): {', '.join(lab.classes)}"
    raise Refusal("target", message, value=shown, count=count, last=count - 1, choices=", ".join(lab.classes))


def _index(value: object) -> int:
    return integer(value, "index", 0, 9999)


def _model(labs: Mapping[str, Lab], value: object) -> str:
    return choice(value, "model", tuple(labs))


def _method(value: object) -> str:
    return choice(value, "method", tuple(cam.METHODS))


def _layer(lab: Lab, model: str, value: object) -> str:
    names = [layer.name for layer in lab.layers()]
    if isinstance(value, str) and value in names:
        return value
    shown, listed = _quoted(value), ", ".join(names)
    raise Refusal(
        "layer", f"layer {shown} is not in {model}; it has {listed}", value=shown, model=model, choices=listed
    )


def _pixels(lab: Lab, value: object) -> np.ndarray:
    """uint8 (H, W, 3) from base64: a picture of the user's own, as `data.fit` made it, so that nothing is kept here."""
    _, height, width = lab.inputs.size
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raw = b""
    if len(raw) != height * width * 3:
        shape = f"{height} x {width} x 3"
        raise Refusal("pixels", f"pixels: base64 of {shape} bytes is needed", shape=shape)
    return np.frombuffer(raw, np.uint8).reshape(height, width, 3)


def _quoted(value: object) -> str:
    """The value as its sender wrote it, cut short."""
    return reprlib.repr(value)
