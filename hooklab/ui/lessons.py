"""Lessons: small programs about hooks, run here with the numbers that the page sends, beside the code that ran."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import torch

from hooklab import data, hooks, lessons, models, scripts
from hooklab.lab import Lab
from hooklab.replicas import replica
from hooklab.ui.gradcam import common, layer_info
from hooklab.ui.payload import pack
from hooklab.ui.question import Question, Refusal, choice, default_layer, integer, number, resolve

KERNELS = MappingProxyType(
    {
        "ones": [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
        "twos": [[2, 2, 2], [2, 2, 2], [2, 2, 2]],
        "copy": [[0, 0, 0], [0, 1, 0], [0, 0, 0]],
        "left to right": [[-1, 0, 1], [-1, 0, 1], [-1, 0, 1]],
        "top to bottom": [[-1, -1, -1], [0, 0, 0], [1, 1, 1]],
        "spots": [[-1, -1, -1], [-1, 8, -1], [-1, -1, -1]],
    }
)
PART = 50  # images of the last lesson that one request looks at, so that the page can show how far it is


@dataclass(frozen=True)
class Parameter:
    """What can be changed in a lesson: a "number", an "integer", a "choice", or "pixels", sixteen digits row by row."""

    name: str
    default: float | int | str
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "choice" if self.choices else {int: "integer", float: "number", str: "pixels"}[type(self.default)]

    def checked(self, value: object) -> float | int | str:
        """The value, which a link brings as text; Refusal says what is accepted."""
        if self.kind == "choice":
            return choice(value, self.name, self.choices)
        if self.kind == "pixels":
            if not isinstance(value, str) or len(value) != 16 or not set(value) <= set("0123456789"):
                shown = repr(value)[:60]
                raise Refusal("pixels16", f"{self.name} {shown}: sixteen digits, 0 to 9, are needed", value=shown)
            return value
        kind, check = (int, integer) if self.kind == "integer" else (float, number)
        if isinstance(value, str):
            with suppress(ValueError):  # it is refused below, as it was written
                value = kind(value)
        return check(value, self.name, self.low, self.high)


X = Parameter("x", 2.0, -100, 100)
# The parameters of each lesson and its program; the last two need the page's model and have functions of their own.
LESSONS: Mapping[str, tuple[Callable | None, tuple[Parameter, ...]]] = MappingProxyType(
    {
        "a": (
            lessons.callbacks,
            (
                Parameter("x", 3.0, -100, 100),
                Parameter("calls", 1, 1, 3),
                Parameter("lambda_returns", "nothing", choices=("nothing", "a value")),
            ),
        ),
        "b": (
            lessons.tensor_hook,
            (
                Parameter("w", 1.0, -100, 100),
                X,
                Parameter("at", "a", choices=("w", "x", "a", "b")),
                Parameter("change", "watch", choices=("watch", "double in place", "return triple", "both")),
            ),
        ),
        "c": (lessons.chain, (Parameter("x", 2.0, -10, 10), Parameter("factor", 0.5, -10, 10))),
        "d": (
            lessons.convolution,
            (
                Parameter("image", "1" * 16),
                Parameter("first", "ones", choices=tuple(KERNELS)),
                Parameter("second", "twos", choices=tuple(KERNELS)),
                Parameter(
                    "hook_returns", "nothing", choices=("nothing", "only what is positive", "the second map silenced")
                ),
            ),
        ),
        "e": (
            lessons.order,
            (
                Parameter("x", 1.0, -100, 100),
                Parameter("factor", 3.0, -100, 100),
                Parameter("registered", "forwards", choices=("forwards", "backwards")),
            ),
        ),
        "f": (
            lessons.backward_hook,
            (
                Parameter("batch", 4, 1, 64),
                Parameter("inputs", 3, 1, 64),
                Parameter("outputs", 2, 1, 64),
                Parameter("input_requires_grad", "no", choices=("no", "yes")),
                X,
            ),
        ),
        "g": (
            lessons.in_place,
            (
                Parameter("x", 1.0, -100, 100),
                Parameter("factor", 3.0, -100, 100),
                Parameter("value", -2.0, -100, 100),
            ),
        ),
        "h": (
            lessons.never_removed,
            (
                Parameter("runs", 4, 1, 12),
                Parameter("factor", 2.0, -3, 3),
                Parameter("remove", "never", choices=("never", "after each run")),
            ),
        ),
        "i": (None, ()),
        "j": (
            None,
            (
                Parameter("images", 300, 100, 600),
                Parameter("task", "ten classes", choices=("ten classes", "animal or vehicle", "bright or dark")),
            ),
        ),
    }
)


def view(labs, request) -> dict:
    """One lesson: its parameters with the values that hold, the result, and the code that gives it."""
    question = resolve(labs, request)
    letter, values, notes = _asked(request)
    program, parameters = LESSONS[letter]
    if letter == "i":
        result, code = _grad_cam(question)
    elif letter == "j":
        result, code = {"parts": -(-values["images"] // PART)}, _transfer_script(question, values)
    else:
        arguments = _arguments(letter, values)
        result, code = program(**arguments), lessons.script(program, **arguments)
    if letter == "b":  # the same without a change, and what a change in place does to others
        result["without"] = program(**{**arguments, "change": "watch"})["gradients"]
        result["spilled"] = {change: lessons.spilled_gradient(change) for change in ("in place", "returned")}
    shown = [
        {"name": p.name, "kind": p.kind, "low": p.low, "high": p.high, "choices": p.choices, "default": p.default}
        for p in parameters
    ]
    found = {"lesson": letter, "parameters": shown, "values": values, "result": result, "code": code}
    answer = common(question)
    return {**answer, "notes": [*answer["notes"], *notes], "lessons": found}


def _asked(request: Mapping) -> tuple[str, dict, list]:
    """The lesson's letter and a valid value for each of its parameters, with a note for each that fell back."""
    notes = []

    def pick(check, value, default):
        if value is None or value == "":
            return default
        try:
            return check(value)
        except Refusal as refusal:
            notes.append([refusal.code, refusal.values])
            return default

    letter = pick(lambda value: choice(value, "lesson", tuple(LESSONS)), request.get("lesson"), "a")
    numbers = request.get("numbers")
    numbers = numbers if isinstance(numbers, Mapping) else {}
    return letter, {p.name: pick(p.checked, numbers.get(p.name), p.default) for p in LESSONS[letter][1]}, notes


def _arguments(letter: str, values: dict) -> dict:
    """The values as the program takes them: kernels by name, sixteen digits as 4 x 4 numbers."""
    if letter != "d":
        return values
    digits = [int(digit) for digit in values["image"]]
    image = [digits[row : row + 4] for row in range(0, 16, 4)]
    return {**values, "image": image, "first": KERNELS[values["first"]], "second": KERNELS[values["second"]]}


# ---- Grad-CAM from scratch


def _grad_cam(question: Question) -> tuple[dict, str]:
    """The lesson's map beside the page's own; where the page's layer has no map, at the model's default layer."""
    lab = question.lab
    layer = question.layer if layer_info(question).spatial else default_layer(lab)
    page = lab.explain(question.image, layer, question.target)
    model = replica(lab.model)
    place = hooks.locate(model, layer)
    image = lab.inputs.prepare(question.image).tensor.to(lab.device)
    scratch = lessons.grad_cam(model, place.module, image, page.target, place.call or 1, place.input).cpu().numpy()
    result = {
        "layer": layer,
        "scratch": pack(scratch),
        "page": pack(page.raw),
        "difference": float(np.abs(scratch - page.raw).max()),
        "largest": float(np.abs(page.raw).max()),
    }
    call = f", call={place.call}" if (place.call or 1) > 1 else ""
    call += ", entering=True" if place.input else ""
    return result, scripts.script(
        _beginning("Grad-CAM from scratch", question),
        inspect.getsource(lessons.grad_cam),
        f'result = grad_cam(model, model.get_submodule("{place.path}"), image, target={page.target}{call})\n'
        "print(result)",
    )


def _beginning(title: str, question: Question) -> str:
    """The network and the picture of the page, where they are those that ship."""
    if question.model not in models.REGISTRY or not question.lab.shipped:
        return "import torch\n\n# Your model in eval mode, and your image (1, 3, H, W), come here."
    return scripts.beginning(title, question.model, "picture.png" if question.index is None else question.index)


# ---- features for another task


def accuracy(labs, request) -> dict:
    """One part of the test images at every layer; the last one brings the accuracy of nearest centres by layer.

    -> {"done", "of"}, and with the last part {"rows": [{"layer", "accuracy", "size"}], "chance", "fitted", "tested"}.
    """
    question = resolve(labs, request)
    _, values, _ = _asked({**request, "lesson": "j"})
    parts = -(-values["images"] // PART)
    part = integer(request.get("part"), "part", 0, parts - 1)
    _features(question.lab, part)
    if part + 1 < parts:
        return {"done": part + 1, "of": parts}
    return {"done": parts, "of": parts, **_accuracies(question.lab, values["images"], values["task"])}


@lru_cache(maxsize=48)  # test images only, the same for all users: 12 parts of each network
def _features(lab: Lab, part: int) -> dict[str, torch.Tensor]:
    """{layer: (PART, C)} of test images part * PART and on."""
    model = replica(lab.model)
    images = lab.inputs.batch(_pictures(part * PART, (part + 1) * PART)).to(lab.device)
    return {name: kept.cpu() for name, kept in lessons.layer_features(model, modules(model), images).items()}


def _pictures(first: int, end: int) -> np.ndarray:
    """Test images, uint8 (N, 32, 32, 3)."""
    return np.stack([np.asarray(data.test_image(index)[0]) for index in range(first, end)])


def _accuracies(lab: Lab, count: int, task: str) -> dict:
    parts = [_features(lab, part) for part in range(-(-count // PART))]
    labels, fitted = _labels(task)[:count], count * 2 // 3
    rows = []
    for name in parts[0]:
        features = torch.cat([part[name] for part in parts])[:count]
        right = lessons.nearest_centroid(features[:fitted], labels[:fitted], features[fitted:], labels[fitted:])
        rows.append({"layer": name, "accuracy": right, "size": features.shape[1]})
    chance = float(labels[fitted:].bincount().max() / (count - fitted))  # always saying the most frequent class
    return {"rows": rows, "chance": chance, "fitted": fitted, "tested": count - fitted}


def _labels(task: str) -> torch.Tensor:
    labels = torch.from_numpy(data.test_labels()[:600])
    if task == "animal or vehicle":
        return ((labels >= 2) & (labels <= 7)).long()  # bird, cat, deer, dog, frog, horse
    if task == "bright or dark":
        brightness = torch.tensor(_pictures(0, 600).mean((1, 2, 3)))
        return (brightness > brightness.median()).long()
    return labels


def modules(model: torch.nn.Module) -> tuple[str, ...]:
    """What a model is made of: its children, and the children of those that are a mere row of modules."""
    names: list[str] = []
    for name, child in model.named_children():
        inside = [f"{name}.{part}" for part, _ in child.named_children()] if _is_row(child) else []
        names += inside or [name]
    return tuple(names)


def _is_row(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Sequential)


def _transfer_script(question: Question, values: dict) -> str:
    labels = {
        "ten classes": "labels = torch.from_numpy(labels)",
        "animal or vehicle": "labels = torch.from_numpy((labels >= 2) & (labels <= 7)).long()",
        "bright or dark": "brightness = torch.from_numpy(pictures.mean((1, 2, 3)))\n"
        "labels = (brightness > brightness.median()).long()",
    }[values["task"]]
    count = values["images"]
    return scripts.script(
        "from collections import Counter",
        _beginning("Features for another task", question),
        inspect.getsource(lessons.layer_features),
        inspect.getsource(lessons.nearest_centroid),
        "# The first 600 test images: sheets of 25 in a row.\n"
        'sheet = np.array(Image.open("hooklab/assets/test_0.webp").convert("RGB"))\n'
        "pictures = sheet.reshape(-1, 32, 25, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)[:600]\n"
        'labels = np.fromfile("hooklab/assets/test_labels.bin", np.uint8)[:600].astype(np.int64)\n'
        f"{labels}",
        f"count, fitted = {count}, {count * 2 // 3}  # two thirds to place the centres, one third to test them\n"
        f"names = {list(modules(question.lab.model))}\n"
        "features = layer_features(model, names, prepare(pictures[:count]))\n"
        "result = {}\n"
        "for name, values in features.items():\n"
        "    result[name] = nearest_centroid(values[:fitted], labels[:fitted], values[fitted:], labels[fitted:count])\n"
        "    print(name, result[name])",
    )


VIEWS = {"lessons": view, "lessons.accuracy": accuracy}
