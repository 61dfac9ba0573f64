"""Maps of a whole split in one file, and what can be read from them: averages, rankings, the table of methods.

`python -m hooklab.explain` writes such a file; `read` opens it. It is a plain `.npz` (no pickle): raw maps as float16
of their own largest magnitude, with that as float32 beside them, so that no map overflows or sinks.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

FIGURES = ("deletion", "insertion", "drop", "increase")  # columns of the evidence
RIVALS = ("random", "centre")
Z = 1.959964  # standard errors either way of a 95 % interval


@dataclass(frozen=True)
class Settings:
    """What maps of one file have in common. Maps are of the PREDICTED class."""

    model: str
    weights: str  # SHA-256 of the checkpoint's tensors
    split: str
    images: int  # the first so many of the split
    layer: str
    methods: tuple[str, ...]
    classes: tuple[str, ...]
    baseline: str | None  # of the evidence; None: there is none
    step: int | None  # of its curves, in percent


@dataclass(frozen=True, eq=False)
class Maps:
    settings: Settings
    index: np.ndarray  # int64 (N,): which image of the split
    label: np.ndarray  # int64 (N,)
    predicted: np.ndarray  # int64 (N,)
    probability: np.ndarray  # float32 (N,): of the predicted class
    raw: Mapping[str, np.ndarray]  # method -> float32 (N, h, w)
    evidence: Mapping[str, np.ndarray]  # method, "random" or "centre" -> float32 (N, 4): see FIGURES


def write(path: str | os.PathLike, maps: Maps) -> None:
    """Write a file of maps, whole or not at all."""
    arrays = {"settings": np.frombuffer(json.dumps(asdict(maps.settings)).encode(), np.uint8)}
    arrays |= {name: getattr(maps, name) for name in ("index", "label", "predicted", "probability")}
    for name, raw in maps.raw.items():
        scale = np.abs(raw).max((1, 2))
        arrays[f"scale/{name}"] = scale
        arrays[f"maps/{name}"] = (raw / np.where(scale > 0, scale, 1)[:, None, None]).astype(np.float16)
    arrays |= {f"evidence/{name}": figures for name, figures in maps.evidence.items()}
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | os.PathLike) -> Maps:
    """Open a file of maps; ValueError where it is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            content = {name: file[name] for name in file.files}
        fields = json.loads(content.pop("settings").tobytes())
        settings = Settings(**{key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()})
        raw = {m: content[f"maps/{m}"] * content[f"scale/{m}"][:, None, None] for m in settings.methods}
        evidence = {}
        if settings.baseline:
            evidence = {name: content[f"evidence/{name}"] for name in (*settings.methods, *RIVALS)}
        simple = [content[name] for name in ("index", "label", "predicted", "probability")]
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except (OSError, EOFError, KeyError, TypeError, ValueError, AttributeError, zipfile.BadZipFile):
        raise ValueError(f"{path}: not a file that python -m hooklab.explain wrote") from None
    return Maps(settings, *simple, raw, evidence)


def join(parts: Sequence[Maps]) -> Maps:
    """Maps of the same settings as one, in the order of the split."""
    index = np.concatenate([part.index for part in parts])
    order = np.argsort(index)

    def whole(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays)[order]

    simple = [whole([getattr(part, name) for part in parts]) for name in ("label", "predicted", "probability")]
    raw = {name: whole([part.raw[name] for part in parts]) for name in parts[0].raw}
    evidence = {name: whole([part.evidence[name] for part in parts]) for name in parts[0].evidence}
    return Maps(parts[0].settings, index[order], *simple, raw, evidence)


# -- where the heat lies ---------------------------------------------------------------------------------


def _method(maps: Maps, method: str | None) -> str:
    method = maps.settings.methods[0] if method is None else method
    if method not in maps.raw:
        raise ValueError(f"method {method!r}: this file has {', '.join(maps.raw)}")
    return method


def heat(maps: Maps, method: str | None = None) -> np.ndarray:
    """ReLU of each map over its own maximum, float32 (N, h, w) in [0, 1]; zero where a map is blank."""
    positive = maps.raw[_method(maps, method)].clip(0)
    top = positive.max((1, 2), keepdims=True)
    return positive / np.where(top > 0, top, 1)


def average_by_class(maps: Maps, method: str | None = None, by: str = "predicted") -> tuple[np.ndarray, np.ndarray]:
    """Where a class lies on average: mean heat (K, h, w) and how many images (K,) it comes from.

    by: "predicted" or "label". A class without images has a map of zeros.
    """
    if by not in ("predicted", "label"):
        raise ValueError(f"by {by!r}: accepted are 'predicted' and 'label'")
    member = np.eye(len(maps.settings.classes), dtype=np.float32)[getattr(maps, by)]  # (N, K)
    counts = member.sum(0)
    sums = np.einsum("nk,nhw->khw", member, heat(maps, method))
    return sums / np.maximum(counts, 1)[:, None, None], counts.astype(np.int64)


def _inner(cells: int) -> np.ndarray:
    """How much of each of `cells` lies in the middle half of their row."""
    edges = np.linspace(0, 1, cells + 1).clip(0.25, 0.75)
    return np.diff(edges) * cells


def centre_share(maps: Maps, method: str | None = None) -> np.ndarray:
    """The share of each map's heat in the middle half of both sides, (N,): 1/4 if it is spread evenly, NaN if blank."""
    hot = heat(maps, method)
    inside = np.einsum("nhw,h,w->n", hot, _inner(hot.shape[1]), _inner(hot.shape[2]))
    total = hot.sum((1, 2))
    return np.divide(inside, total, out=np.full(len(hot), np.nan, np.float32), where=total > 0)


def off_centre(maps: Maps, method: str | None = None) -> np.ndarray:
    """Images of the split, those with the least of their heat in the centre first; blank maps are left out."""
    share = centre_share(maps, method)
    seen = np.flatnonzero(np.isfinite(share))
    return maps.index[seen[np.argsort(share[seen], kind="stable")]]


# -- the table of methods --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A mean over images, and the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray) -> Estimate:
        """The normal interval; of one image alone, the whole line."""
        values = np.asarray(values, dtype=np.float64)
        half = Z * values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.inf
        return cls(float(values.mean()), float(values.mean() - half), float(values.mean() + half))

    @classmethod
    def of_share(cls, hits: np.ndarray) -> Estimate:
        """Wilson's interval, which stays within 0 and 1."""
        n, p = len(hits), float(np.mean(hits))
        middle = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
        half = Z / (1 + Z**2 / n) * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
        return cls(p, max(0.0, middle - half), min(1.0, middle + half))


@dataclass(frozen=True)
class Faithfulness:
    """One line of the table: a method's figures over all images. Shares and areas are from 0 to 1."""

    method: str
    deletion: Estimate  # area under the curve: lower is better
    insertion: Estimate  # higher is better
    drop: Estimate  # lower is better
    increase: Estimate  # higher is better
    beats_random: Estimate | None  # how often insertion exceeds deletion by more than it does for random maps
    blank: float | None  # how often there was no positive evidence


def faithfulness(maps: Maps) -> list[Faithfulness]:
    """Every method of a file, then the yardsticks; ValueError where the file holds no evidence."""
    if not maps.evidence:
        raise ValueError("this file holds no evidence; write it with --evidence")
    gap = {name: figures[:, 1] - figures[:, 0] for name, figures in maps.evidence.items()}
    rows = []
    for name, figures in maps.evidence.items():
        deletion, insertion, drop, increase = figures.T
        whole = name == "random"  # its share is already a mean over several maps
        rows.append(
            Faithfulness(
                method=name,
                deletion=Estimate.of(deletion),
                insertion=Estimate.of(insertion),
                drop=Estimate.of(drop),
                increase=Estimate.of(increase) if whole else Estimate.of_share(increase > 0),
                beats_random=None if whole else Estimate.of_share(gap[name] > gap["random"]),
                blank=float(np.mean(maps.raw[name].max((1, 2)) <= 0)) if name in maps.raw else None,
            )
        )
    return rows


def table(files: Sequence[Maps]) -> str:
    """The figures of several files as Markdown, with the half-width of each 95 % interval."""
    lines = [
        "| network | method | deletion area ↓ | insertion area ↑ | average drop ↓ | increase in confidence ↑ "
        "| beats random maps | blank |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for maps in files:
        for row in faithfulness(maps):
            cells = [
                f"{row.deletion.value:.3f} ± {_half(row.deletion):.3f}",
                f"{row.insertion.value:.3f} ± {_half(row.insertion):.3f}",
                f"{row.drop.value:.1%} ± {_half(row.drop):.1%}",
                f"{row.increase.value:.1%} ± {_half(row.increase):.1%}",
                f"{row.beats_random.value:.1%} ± {_half(row.beats_random):.1%}" if row.beats_random else "",
                f"{row.blank:.1%}" if row.blank is not None else "",
            ]
            lines.append(f"| {maps.settings.model} | {row.method} | {' | '.join(cells)} |")
    counts = " or ".join(f"{count:,}" for count in sorted({maps.settings.images for maps in files}))
    layers = " and ".join(f"`{maps.settings.layer}` of {maps.settings.model}" for maps in files)
    setting = files[0].settings
    baseline = "grey" if setting.baseline == "grey" else "blurred"
    lines += [
        "",
        f"The predicted class of the first {counts} images of the {setting.split} split, at {layers}. "
        f"Curves have a point every {setting.step} %, against a {baseline} picture. "
        "± is half of a 95 % confidence interval. "
        "A map beats random maps where its insertion area exceeds its deletion area: theirs are equal.",
    ]
    return "\n".join(lines)


def _half(estimate: Estimate) -> float:
    return (estimate.high - estimate.low) / 2
