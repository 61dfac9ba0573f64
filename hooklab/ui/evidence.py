"""Is it true? The map put to the test: pixels erased, weights shuffled, the picture nudged."""

import base64
import binascii

import numpy as np

from hooklab.erasing import BASELINES
from hooklab.ui import split
from hooklab.ui.gradcam import common, layer_info
from hooklab.ui.payload import encode, floats, pack
from hooklab.ui.question import Question, Refusal, choice, number, resolve

_WHO = ("map", "random", "centre")


def view(labs, request) -> dict:
    """Deletion and insertion curves of the target's probability, with the yardsticks' beside them."""
    question = resolve(labs, request)
    answer = common(question)
    return {**answer, "evidence": _curves(question, answer["target"]) if layer_info(question).spatial else None}


def _curves(question: Question, target: int) -> dict:
    found = question.lab.evidence(question.image, question.layer, target, question.method)
    return {
        "blank": found.blank,
        "before": found.before,
        "drop": found.drop["map"],
        "increase": found.increase["map"],
        **{
            baseline: {
                who: {
                    "fractions": floats(found.curves[baseline][who].fractions),
                    "deletion": floats(found.curves[baseline][who].deletion),
                    "insertion": floats(found.curves[baseline][who].insertion),
                    "deletion_area": found.curves[baseline][who].deletion_area,
                    "insertion_area": found.curves[baseline][who].insertion_area,
                }
                for who in _WHO
            }
            for baseline in BASELINES
        },
    }


def attempt(labs, request) -> dict:
    """Erase the hottest or coldest part of the map, or what a brush covered: what is left, and what the model says."""
    question = resolve(labs, request, strict=True)
    baseline = choice(request.get("baseline", "blur"), "baseline", BASELINES)
    if request.get("mask") is not None:
        covered = question.lab.cover(question.image, _mask(question, request["mask"]), baseline)
    else:
        percent = number(request.get("percent", 20), "percent", 0, 100)
        which = choice(request.get("which", "hottest"), "which", ("hottest", "coldest"))
        covered = question.lab.erase(
            question.image, percent, question.layer, question.target, question.method, which, baseline
        )
    return {
        "pixels": encode(covered.pixels),
        "size": list(covered.pixels.shape[:2]),
        "probabilities": floats(covered.probabilities),
    }


def sanity(labs, request) -> dict:
    """The map while the weights are shuffled from the top layer down (Adebayo et al. 2018)."""
    question = resolve(labs, request, strict=True)
    found = question.lab.sanity(question.image, question.layer, question.target, question.method)
    return {
        "original": pack(found.original),
        "steps": [
            {
                "name": step.name,
                "above": step.above,
                "raw": pack(step.raw),
                "correlation": step.correlation,
                "ssim": step.ssim,
            }
            for step in found.steps
        ],
        "threshold": found.threshold,
        "passed": found.passed,
        "sees_class": found.sees_class,
        "sees_weights": found.sees_weights,
    }


def stability(labs, request) -> dict:
    """Mean and spread of the heatmap while the picture is shifted, mirrored and made noisy a little."""
    question = resolve(labs, request, strict=True)
    found = question.lab.stability(question.image, question.layer, question.target, question.method)
    kinds = {
        kind: [row.correlation for row in found.variants if row.kind == kind] for kind in ("shift", "flip", "noise")
    }
    return {
        "mean": pack(found.mean),
        "spread": pack(found.spread),
        "agreement": found.agreement,
        "kinds": {kind: float(np.mean(values)) for kind, values in kinds.items()},
        "variants": len(found.variants),
    }


def _mask(question: Question, value: object) -> np.ndarray:
    """bool (H, W) from base64 of one byte a pixel, 0 or not."""
    _, height, width = question.lab.inputs.size
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raw = b""
    if len(raw) != height * width:
        shape = f"{height} x {width}"
        raise Refusal("mask", f"mask: base64 of {shape} bytes is needed", shape=shape)
    return np.frombuffer(raw, np.uint8).reshape(height, width) > 0


VIEWS = {
    "evidence": view,
    "evidence.attempt": attempt,
    "evidence.sanity": sanity,
    "evidence.stability": stability,
    "evidence.split": split.view,
}
