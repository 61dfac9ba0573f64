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

Predict = Callable[[np.ndarray], np.ndarray]

BASELINES = ("blur", "grey")
STEP = 5  # percent between two points of a curve
YARDSTICK_STEP = 10  # the same for the yardsticks: a mean of many curves is smooth
RANDOM_MAPS = 8


def _picture(pixels: np.ndarray) -> np.ndarray:
    pixels = np.asarray(pixels)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise ValueError(f"pixels {pixels.dtype} {pixels.shape}: a picture is uint8 (height, width, 3)")
    return pixels


def _share(percent: float) -> float:
    if isinstance(percent, bool) or not isinstance(percent, (int, float, np.number)) or not 0 <= percent <= 100:
        raise ValueError(f"percent {percent!r}: accepted are numbers from 0 to 100")
    return float(percent) / 100


def gaussian_matrix(size: int, sigma: float) -> np.ndarray:
    """(size, size), rows sum to 1: `matrix @ column` is the column blurred, with nothing beyond its ends."""
    positions = np.arange(size)
    weights = np.exp(-((positions[:, None] - positions) ** 2) / (2 * sigma**2))
    return weights / weights.sum(1, keepdims=True)


def baseline_picture(pixels: np.ndarray, baseline: str = "blur") -> np.ndarray:
    """What an erased pixel looks like, uint8 (H, W, 3): "blur" (sigma 1/8 of each side) or "grey" (128)."""
    pixels = _picture(pixels)
    height, width, _ = pixels.shape
    if baseline == "grey":
        return np.full_like(pixels, 128)
    if baseline == "blur":
        rows, columns = gaussian_matrix(height, height / 8), gaussian_matrix(width, width / 8)
        return np.rint(np.einsum("ij,jkc,lk->ilc", rows, pixels, columns, optimize=True)).astype(np.uint8)
    raise ValueError(f"baseline {baseline!r}: accepted are {' and '.join(map(repr, BASELINES))}")


def order(heat: np.ndarray) -> np.ndarray:
    """Flat indices of a map's pixels, hottest first: (H, W) -> (H*W,).

    Ties are broken by one fixed smooth random field: by position, the top rows of the picture would always go first.
    """
    heat = np.asarray(heat, dtype=np.float32)
    if heat.ndim != 2 or not np.isfinite(heat).all():
        raise ValueError(f"heat {heat.shape}: a map is (height, width) of finite numbers")
    ties = cam.enlarge(torch.from_numpy(random_maps((8, 8), 2)[0]), heat.shape).numpy()
    return np.lexsort((ties.ravel(), -heat.ravel()))


def cover(pixels: np.ndarray, mask: np.ndarray, baseline: str = "blur") -> np.ndarray:
    """The picture with the pixels under a boolean mask (H, W) replaced by the baseline's."""
    pixels, mask = _picture(pixels), np.asarray(mask)
    if mask.dtype != bool or mask.shape != pixels.shape[:2]:
        raise ValueError(f"mask {mask.dtype} {mask.shape}: for this picture a mask is bool {pixels.shape[:2]}")
    return np.where(mask[..., None], baseline_picture(pixels, baseline), pixels)


def erase(
    pixels: np.ndarray, heat: np.ndarray, percent: float, which: str = "hottest", baseline: str = "blur"
) -> np.ndarray:
    """The picture without its hottest (or coldest) `percent` of pixels: uint8 (H, W, 3).

    `heat` (H, W) may be signed: only its order counts. 0 returns the picture itself, 100 the whole baseline.
    """
    pixels, heat = _picture(pixels), np.asarray(heat)
    if heat.shape != pixels.shape[:2]:
        raise ValueError(f"heat {heat.shape}: for this picture a map is {pixels.shape[:2]}")
    if which not in ("hottest", "coldest"):
        raise ValueError(f"which {which!r}: accepted are 'hottest' and 'coldest'")
    ranked = order(heat)
    count = _counts(np.array([_share(percent)]), heat.size)[0]
    mask = np.zeros(heat.size, dtype=bool)
    mask[ranked[:count] if which == "hottest" else ranked[heat.size - count :]] = True
    return cover(pixels, mask.reshape(heat.shape), baseline)


def random_maps(grid: tuple[int, int], number: int = RANDOM_MAPS, seed: int = 0) -> np.ndarray:
    """Normal noise on a layer's grid, (number, h, w): every second map is the negative of the one before it."""
    if number < 2 or number % 2:
        raise ValueError(f"number {number}: random maps come in pairs, a map and its negative")
    noise = np.random.default_rng(seed).standard_normal((number // 2, *grid), dtype=np.float32)
    return np.stack([noise, -noise], 1).reshape(number, *grid)


def centred(size: tuple[int, int]) -> np.ndarray:
    """A Gaussian in the middle, (H, W) in [0, 1], its sigma a quarter of each side."""
    rows, columns = (np.exp(-8 * ((np.arange(n) + 0.5) / n - 0.5) ** 2) for n in size)
    return np.outer(rows, columns).astype(np.float32)


def _counts(fractions: np.ndarray, total: int) -> np.ndarray:
    """How many pixels a fraction is; those of f and of 1 - f add up to all of them."""
    smaller = np.floor(np.minimum(fractions, 1 - fractions) * total + 0.5).astype(int)
    return np.where(fractions > 0.5, total - smaller, smaller)


def _fractions(step: int) -> np.ndarray:
    return np.arange(0, 101, step) / 100


def _steps(pixels: np.ndarray, erased: np.ndarray, ranked: np.ndarray, fractions: np.ndarray) -> list[np.ndarray]:
    """The pictures of both curves between their ends: first those of deletion, then those of insertion."""
    flat, base = pixels.reshape(-1, 3), erased.reshape(-1, 3)
    deletion, insertion = [], []
    for count in _counts(fractions[1:-1], len(flat)):
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
    pixels = _picture(pixels)
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
    whole, erased = probabilities[0], dict(zip(bases, probabilities[1:], strict=False))
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
        return float(np.interp(_share(percent), self.fractions, self.deletion))


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
    return float(np.maximum(0, before - kept).mean() / before) if before > 0 else 0.0


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
    pixels, raw = _picture(pixels), np.asarray(raw, dtype=np.float32)
    if raw.ndim != 2 or not np.isfinite(raw).all():
        raise ValueError(f"raw {raw.shape}: a map is (height, width) of finite numbers")
    if against is None:
        against = yardsticks(predict, pixels, raw.shape, baselines=baselines)
    if isinstance(target, bool) or not 0 <= target < len(against.whole):
        raise ValueError(
            f"target {target!r}: this model has {len(against.whole)} classes (0 to {len(against.whole) - 1})"
        )
    size, fractions, tensor = pixels.shape[:2], _fractions(step), torch.from_numpy(raw)
    picture, ranked = cam.heatmap(tensor, size).numpy(), order(cam.enlarge(tensor, size).numpy())
    batch = [*_kept(pixels, picture[None])]
    for name in baselines:
        batch += _steps(pixels, baseline_picture(pixels, name), ranked, fractions)
    probabilities = predict(np.stack(batch))[:, target]
    before = float(against.whole[target])
    curves = {}
    for name, between in zip(baselines, np.split(probabilities[1:], len(baselines)), strict=True):
        mine = _join(against.whole[target], against.erased[name][target], between)
        rivals = {"random": against.random[name], "centre": against.centre[name]}
        curves[name] = {"map": Curves(fractions, *mine)}
        for who, (deletion, insertion) in rivals.items():
            points = np.linspace(0, 1, len(deletion))
            curves[name][who] = Curves(points, deletion[:, target], insertion[:, target])
    kept = {"map": probabilities[:1], "random": against.random_kept[:, target], "centre": against.centre_kept[[target]]}
    return Evidence(
        target=int(target),
        before=before,
        blank=not picture.any(),
        curves=curves,
        drop={who: _drop(before, seen) for who, seen in kept.items()},
        increase={who: float((seen > before).mean()) for who, seen in kept.items()},
    )
