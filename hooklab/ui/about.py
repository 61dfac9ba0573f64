"""About: the networks with their cards and training curves, the methods with their papers, and what was measured."""

import csv
import platform
from collections.abc import Mapping
from importlib.metadata import version

import hooklab
from hooklab import cam, models, unlike
from hooklab.lab import Lab
from hooklab.ui.gradcam import common
from hooklab.ui.question import resolve


def view(labs: Mapping[str, Lab], request: Mapping) -> dict:
    """{"networks": {name: {"card", "curve", "unlike"} or None for weights of your own}, "methods", "versions"}."""
    about = {
        "networks": {name: network(name) if lab.shipped else None for name, lab in labs.items()},
        "methods": [{"title": method.title, "paper": method.paper} for method in cam.METHODS.values()],
        "versions": {
            "hooklab": hooklab.__version__,
            "Python": platform.python_version(),
            **{name: version(name) for name in ("torch", "gradio", "numpy")},
        },
    }
    return {**common(resolve(labs, request)), "about": about}


def network(name: str) -> dict:
    """The card of a shipped network, its curve as columns, and the figures of hooklab/unlike.py if they were made."""
    measured = unlike.load(name)
    with open(models.SHIPPED / f"{name}.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    curve = {column: [float(row[column]) for row in rows] for column in rows[0]}
    return {"card": models.card(name), "curve": curve, "unlike": measured[0] if measured else None}
