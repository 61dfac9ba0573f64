"""The whole test split: where each class lies on average, maps that miss the centre, how far each method is true."""

import functools
from dataclasses import asdict

import numpy as np

from hooklab import data, maps
from hooklab.models import SHIPPED
from hooklab.ui.gradcam import common
from hooklab.ui.payload import encode, pack
from hooklab.ui.question import Refusal, resolve

_SHOWN = 24  # pictures whose heat lies farthest from the centre


def view(labs, request) -> dict:
    """Averages per predicted class (K, h, w), the least central images, and the table of methods."""
    question = resolve(labs, request)
    found = _read(question, "maps")
    average, counts = maps.average_by_class(found)
    least = maps.off_centre(found)[:_SHOWN]
    return {
        **common(question),
        "average": pack(average),
        "counts": counts.tolist(),
        "images": found.settings.images,
        "layer_of_maps": found.settings.layer,
        "central": float(np.nanmean(maps.centre_share(found))),
        "least": [{"index": int(k), "pixels": encode(data.test_images()[k])} for k in least],
        "table": [_row(row) for row in maps.faithfulness(_read(question, "methods"))],
        "table_images": _read(question, "methods").settings.images,
    }


def _read(question, kind: str) -> maps.Maps:
    path = SHIPPED / f"{question.model}.{kind}.npz"
    if not question.lab.shipped or not path.exists():
        command = f"python -m hooklab.explain --model {question.model} --out {path.name}"
        raise Refusal(
            "no_maps", f"no maps of the whole split for {question.model}; {command} makes them", command=command
        )
    return _cached(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _cached(path, _changed) -> maps.Maps:
    return maps.read(path)


def _row(row: maps.Faithfulness) -> dict:
    """Estimates as {"value", "half"}: half of the 95 % interval."""
    cells = {name: value for name, value in asdict(row).items() if isinstance(value, dict)}
    return {
        "method": row.method,
        "blank": row.blank,
        **{name: {"value": e["value"], "half": (e["high"] - e["low"]) / 2} for name, e in cells.items()},
    }
