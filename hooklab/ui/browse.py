"""Browse: what the networks get right and wrong on the 10,000 test images, from the shipped predictions alone."""

import functools
from collections.abc import Mapping

import numpy as np

from hooklab import data, models
from hooklab.lab import Lab
from hooklab.ui.gradcam import common
from hooklab.ui.payload import encode, floats
from hooklab.ui.question import Refusal, choice, integer, number, resolve, target

PER_SHEET = 60
BINS = 20  # of probability, in the histogram
OUTCOMES = ("any", "right", "wrong")
VERSUS = ("any", "disagree", "only_this", "only_other", "neither")  # this network's answer beside the other's
SORTS = ("sure", "unsure", "index")


def view(labs: Mapping[str, Lab], request: Mapping) -> dict:
    """The page's answer when the tab opens; `find` alone answers a change of the filters, and runs no model."""
    question = resolve(labs, request)
    return {**common(question), "browse": _find(labs, question.model, request)}


def find(labs: Mapping[str, Lab], request: Mapping) -> dict:
    """The images that pass all filters, one sheet of them with their pixels, and how many there would be otherwise.

    Filters (all may be left out): `truth` and `predicted` are classes, `outcome` is one of OUTCOMES, `low` and `high`
    bound the probability of the predicted class, `versus` is one of VERSUS, `sort` one of SORTS, `sheet` starts at 0.

    Each count leaves its own filter out, so that it tells what choosing another value would give: `matrix` (true class,
    predicted class) is counted under all filters but those two, `histogram` under all but the probability, and so on.
    """
    return _find(labs, choice(request.get("model"), "model", tuple(labs)), request)


def _find(labs: Mapping[str, Lab], model: str, request: Mapping) -> dict:
    if not labs[model].shipped:
        raise Refusal("predictions", f"{model} runs with weights of your own; predictions ship only for ours")
    lab, labels = labs[model], data.test_labels()
    predicted, probability = predictions(model)
    right = predicted == labels
    other = next((name for name in labs if name != model and labs[name].shipped), None)
    other_predicted, other_probability = predictions(other or model)
    other_right = other_predicted == labels

    low = number(request.get("low", 0), "low", 0, 1)
    high = number(request.get("high", 1), "high", low, 1)
    every = np.ones(len(labels), bool)
    outcomes = {"any": every, "right": right, "wrong": ~right}
    versus = {
        "any": every,
        "disagree": predicted != other_predicted,
        "only_this": right & ~other_right,
        "only_other": ~right & other_right,
        "neither": ~right & ~other_right,
    }
    filters = {
        "truth": _is_class(lab, labels, request.get("truth")),
        "predicted": _is_class(lab, predicted, request.get("predicted")),
        "outcome": outcomes[choice(request.get("outcome", "any"), "outcome", OUTCOMES)],
        "probability": (probability >= low) & (probability <= high),
        "versus": versus[choice(request.get("versus", "any"), "versus", VERSUS)],
    }

    def passing(*but: str) -> np.ndarray:
        """Which images pass all filters except those named."""
        return np.logical_and.reduce([every, *(mask for name, mask in filters.items() if name not in but)])

    found = np.flatnonzero(passing())
    key = {"sure": -probability, "unsure": probability, "index": np.arange(len(labels))}
    found = found[np.argsort(key[choice(request.get("sort", "sure"), "sort", SORTS)][found], kind="stable")]
    sheets = max(1, -(-len(found) // PER_SHEET))
    sheet = min(integer(request.get("sheet", 0), "sheet", 0, len(labels)), sheets - 1)
    shown = found[sheet * PER_SHEET : (sheet + 1) * PER_SHEET]

    classes = len(lab.classes)
    rest = passing("truth", "predicted")
    cells = np.bincount(classes * labels[rest] + predicted[rest], minlength=classes**2)
    rest = passing("probability")
    return {
        "model": model,
        "other": other,
        "count": len(found),
        "right": int(right[found].sum()),
        "sheet": sheet,
        "per_sheet": PER_SHEET,
        "sheets": sheets,
        "matrix": cells.reshape(classes, classes).tolist(),
        "histogram": {"right": _histogram(probability[rest & right]), "wrong": _histogram(probability[rest & ~right])},
        "outcomes": {name: int((passing("outcome") & mask).sum()) for name, mask in outcomes.items()},
        "versus": {name: int((passing("versus") & mask).sum()) for name, mask in versus.items()} if other else None,
        "images": {
            "index": shown.tolist(),
            "label": labels[shown].tolist(),
            "predicted": predicted[shown].tolist(),
            "probability": floats(probability[shown]),
            "other": other_predicted[shown].tolist() if other else None,
            "other_probability": floats(other_probability[shown]) if other else None,
            "pixels": encode(b"".join(data.test_image(index)[0].tobytes() for index in shown)),
        },
    }


@functools.cache
def predictions(name: str) -> tuple[np.ndarray, np.ndarray]:
    return models.predictions(name)


def _is_class(lab: Lab, values: np.ndarray, wanted: object) -> np.ndarray:
    return np.ones(len(values), bool) if wanted is None else values == target(lab, wanted)


def _histogram(probability: np.ndarray) -> list[int]:
    bins = np.minimum((probability * BINS).astype(int), BINS - 1)
    return np.bincount(bins, minlength=BINS).tolist()


VIEWS = {"browse": view, "browse.find": find}
