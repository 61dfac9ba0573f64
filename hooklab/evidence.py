"""Is the map true? What happens to the prediction when the pixels it points at are taken away, or are all that is left.

Pictures are uint8 arrays (H, W, 3). The model is a function, `predict(pictures uint8 (N, H, W, 3)) -> (N, K)
probabilities`; it may run them in batches of its own choice. A map is judged by the ORDER in which it ranks the pixels:

    deletion   the hottest pixels are erased first: the faster the probability falls, the better the map found them
    insertion  on an erased picture the hottest pixels are revealed first: the faster it rises, the better

(Petsiuk et al., RISE, BMVC 2018). An erased pixel takes the colour of a baseline picture: blurred or grey. The numbers
mean little alone, so beside them stand two yardsticks. One is random maps of the same coarseness: noise on the layer's
grid, enlarged as the map is. (A random order of single pixels would be no fair rival: scattered holes destroy far more
than a patch of the same area.) The other is a Gaussian in the middle, where photographers put things.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from . import cam
from .erasing import BASELINES, as_picture, as_share, baseline_picture, centred, counts, order, random_maps

Predict = Callable[[np.ndarray], np.ndarray]

STEP = 5  # percent between two points of a curve
YARDSTICK_STEP = 10  # the same for the yardsticks: a mean of many curves is smooth


def _fractions(step: int) -> np.ndarray:
    return np.arange(0, 101, step) / 100


def _steps(pixels: np.ndarray, erased: np.ndarray, ranked: np.ndarray, fractions: np.ndarray) -> list[np.ndarray]:
    """The pictures of both curves between their ends: first those of deletion, then those of insertion."""
    flat, base = pixels.reshape(-1, 3), erased.reshape(-1, 3)
    deletion, insertion = [], []
    for count in counts(fractions[1:-1], len(flat)):
        hottest = np.zeros((len(flat), 1), dtype=bool)
        hottest[ranked[:count]] = True
        deletion.append(np.where(hottest, base, flat).reshape(pixels.shape))
        insertion.append(np.where(hottest, flat, base).reshape(pixels.shape))
    return deletion + insertion


def _join(whole: np.ndarray, erased: np.ndarray, between: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both curves with their ends: (K,), (K,), (2 * (P - 2), K) -> deletion (P, K), insertion (P, K)."""
    deletion, insertion = np.split(between, 2)
    return np.stack([whole, *deletion, erased]), np.stack([erased, *insertion, whole])


def _kept(pixels: np.ndarray, pictures: np.ndarray) -> np.ndarray:
    """The picture seen through heatmaps in [0, 1], on grey: (M, H, W) -> uint8 (M, H, W, 3)."""
    heat, grey = pictures[..., None], baseline_picture(pixels, "grey").astype(np.float32)
    return np.rint(heat * pixels + (1 - heat) * grey).astype(np.uint8)


@dataclass(frozen=True)
class Yardsticks:
    """What the evidence for any map of one picture on one grid is held against, for all K classes at once."""

    grid: tuple[int, int]
    whole: np.ndarray  # (K,) probabilities of the untouched picture
    erased: Mapping[str, np.ndarray]  # baseline -> (K,)
    random: Mapping[str, tuple[np.ndarray, np.ndarray]]  # baseline -> deletion (P, K), insertion (P, K): means
    centre: Mapping[str, tuple[np.ndarray, np.ndarray]]
    random_kept: np.ndarray  # (M, K) probabilities of the picture seen through each random heatmap
    centre_kept: np.ndarray  # (K,)


def yardsticks(
    predict: Predict,
    pixels: np.ndarray,
    grid: tuple[int, int],
    seed: int = 0,
    baselines: tuple[str, ...] = BASELINES,
    step: int = YARDSTICK_STEP,
) -> Yardsticks:
    """Curves of `RANDOM_MAPS` random maps of a layer's grid (h, w) and of a centred Gaussian, in one batch.

    To reveal the hottest pixels of a map first is to erase those of its negative last. As random maps come in such
    pairs, the insertion curves of one half are the deletion curves of the other, read backwards, and cost nothing.
    """
    pixels = as_picture(pixels)
    size, fractions = pixels.shape[:2], _fractions(step)
    noise = torch.from_numpy(random_maps(grid, seed=seed))
    pictures = np.concatenate([cam.heatmap(noise, size).numpy(), centred(size)[None]])
    ranked = [order(heat) for heat in [*cam.enlarge(noise[::2], size).numpy(), centred(size)]]
    bases = {name: baseline_picture(pixels, name) for name in baselines}
    batch = [pixels, *bases.values(), *_kept(pixels, pictures)]
    ends = len(batch)
    for base in bases.values():
        for ranks in ranked:
            batch += _steps(pixels, base, ranks, fractions)
    probabilities = predict(np.stack(batch))
    whole, erased = probabilities[0], dict(zip(bases, probabilities[1 : 1 + len(bases)], strict=True))
    between = probabilities[ends:].reshape(len(bases), len(ranked), -1, probabilities.shape[1])
    random, centre = {}, {}
    for name, curves in zip(bases, between, strict=True):
        pairs = [_join(whole, erased[name], curve) for curve in curves]
        deletion = np.mean([(d + i[::-1]) / 2 for d, i in pairs[:-1]], axis=0)
        random[name], centre[name] = (deletion, deletion[::-1]), pairs[-1]
    kept = probabilities[1 + len(bases) : ends]
    return Yardsticks(tuple(grid), whole, erased, random, centre, kept[:-1], kept[-1])


@dataclass(frozen=True)
class Curves:
    """The target's probability as pixels go or come, hottest first. Areas are means over the curve, from 0 to 1."""

    fractions: np.ndarray  # (P,) of the pixels: erased in deletion, revealed in insertion; from 0 to 1
    deletion: np.ndarray  # (P,)
    insertion: np.ndarray  # (P,)

    @property
    def deletion_area(self) -> float:
        return _area(self.deletion)

    @property
    def insertion_area(self) -> float:
        return _area(self.insertion)

    def after(self, percent: float) -> float:
        """The probability once the hottest `percent` is erased, between two points on the line that joins them."""
        return float(np.interp(as_share(percent), self.fractions, self.deletion))


def _area(curve: np.ndarray) -> float:
    """The trapezoidal rule at equal steps over a length of 1."""
    return float((curve[0] / 2 + curve[1:-1].sum() + curve[-1] / 2) / (len(curve) - 1))


@dataclass(frozen=True)
class Summary:
    """The figures of one sentence: erasing the hottest `percent` takes the target from `before` to `after`; a random
    map leaves `random`, a centred Gaussian `centre`. All are probabilities."""

    percent: float
    baseline: str
    before: float
    after: float
    random: float
    centre: float


@dataclass(frozen=True)
class Evidence:
    """How far one map can be believed. Keys of the inner mappings: "map", "random" (a mean) and "centre".

    curves    baseline -> who -> Curves
    drop      Average Drop: the share of the probability lost when the picture is seen through the heatmap alone
    increase  Increase in Confidence: whether that probability even rises (for "random", the share of maps)
              both: Chattopadhay et al., Grad-CAM++, WACV 2018; here on grey, which is the networks' zero
    """

    target: int
    before: float  # the target's probability on the untouched picture
    blank: bool  # the map has no positive evidence: its drop is that of a plain grey picture
    curves: Mapping[str, Mapping[str, Curves]]
    drop: Mapping[str, float]
    increase: Mapping[str, float]

    def summary(self, percent: float = 20, baseline: str = "blur") -> Summary:
        after = {who: curves.after(percent) for who, curves in self.curves[baseline].items()}
        return Summary(percent, baseline, self.before, after["map"], after["random"], after["centre"])


def _drop(before: float, kept: np.ndarray) -> float:
    return float(np.mean(np.maximum(0, before - kept)) / before) if before > 0 else 0.0


def evidence(
    predict: Predict,
    pixels: np.ndarray,
    raw: np.ndarray,
    target: int,
    against: Yardsticks | None = None,
    baselines: tuple[str, ...] = BASELINES,
    step: int = STEP,
) -> Evidence:
    """The evidence for one raw signed map (h, w) of class `target`, on the picture that the model saw.

    `against` are `yardsticks` of the same picture and grid, made here if none are given; they serve every method,
    class and layer of that grid.
    """
    return compare(predict, pixels, np.asarray(raw)[None], target, against, baselines, step)[0]


def compare(
    predict: Predict,
    pixels: np.ndarray,
    raws: np.ndarray,
    target: int,
    against: Yardsticks | None = None,
    baselines: tuple[str, ...] = BASELINES,
    step: int = STEP,
) -> list[Evidence]:
    """The same for several maps of one class and grid, (M, h, w), in one batch."""
    pixels, raws = as_picture(pixels), np.array(raws, dtype=np.float32)
    if raws.ndim != 3 or not np.isfinite(raws).all():
        raise ValueError(f"raw {raws.shape[1:]}: a map is (height, width) of finite numbers")
    if against is None:
        against = yardsticks(predict, pixels, raws.shape[1:], baselines=baselines)
    classes = len(against.whole)
    if isinstance(target, bool) or not 0 <= target < classes:
        raise ValueError(f"target {target!r}: this model has {classes} classes (0 to {classes - 1})")
    size, fractions, tensor = pixels.shape[:2], _fractions(step), torch.from_numpy(raws)
    pictures, signed = cam.heatmap(tensor, size).numpy(), cam.enlarge(tensor, size).numpy()
    bases = [baseline_picture(pixels, name) for name in baselines]
    batch = [*_kept(pixels, pictures)]
    for heat in signed:
        ranked = order(heat)
        for base in bases:
            batch += _steps(pixels, base, ranked, fractions)
    probabilities = predict(np.stack(batch))[:, target]
    kept, between = probabilities[: len(raws)], probabilities[len(raws) :].reshape(len(raws), len(bases), -1)
    return [
        _evidence(against, target, baselines, fractions, bool(picture.any()), kept[index], between[index])
        for index, picture in enumerate(pictures)
    ]


def _evidence(
    against: Yardsticks,
    target: int,
    baselines: tuple[str, ...],
    fractions: np.ndarray,
    positive: bool,
    seen: np.ndarray,
    between: np.ndarray,
) -> Evidence:
    """Put the target's column of the yardsticks beside a map's own probabilities: () when seen through it, (B, P)."""
    before, curves = float(against.whole[target]), {}
    for name, own in zip(baselines, between, strict=True):
        curves[name] = {"map": Curves(fractions, *_join(against.whole[target], against.erased[name][target], own))}
        for who, rival in {"random": against.random[name], "centre": against.centre[name]}.items():
            deletion, insertion = (curve[:, target] for curve in rival)
            curves[name][who] = Curves(np.linspace(0, 1, len(deletion)), deletion, insertion)
    kept = {"map": seen, "random": against.random_kept[:, target], "centre": against.centre_kept[target]}
    return Evidence(
        target=int(target),
        before=before,
        blank=not positive,
        curves=curves,
        drop={who: _drop(before, value) for who, value in kept.items()},
        increase={who: float(np.mean(value > before)) for who, value in kept.items()},
    )
