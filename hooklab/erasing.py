"""Take pixels away: those under a brush, or the hottest or coldest of a map. Pictures are uint8 arrays (H, W, 3).

An erased pixel takes the colour of a baseline picture: "blur", the picture so blurred that only its colours are left,
or "grey". What counts of a map (H, W) is the ORDER in which it ranks the pixels; it may be signed.
"""

from __future__ import annotations

import numpy as np
import torch

from . import cam

BASELINES = ("blur", "grey")
RANDOM_MAPS = 8


def as_picture(pixels: np.ndarray) -> np.ndarray:
    pixels = np.asarray(pixels)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise ValueError(f"pixels {pixels.dtype} {pixels.shape}: a picture is uint8 (height, width, 3)")
    return pixels


def as_share(percent: float) -> float:
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
    pixels = as_picture(pixels)
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
    pixels, mask = as_picture(pixels), np.asarray(mask)
    if mask.dtype != bool or mask.shape != pixels.shape[:2]:
        raise ValueError(f"mask {mask.dtype} {mask.shape}: for this picture a mask is bool {pixels.shape[:2]}")
    return np.where(mask[..., None], baseline_picture(pixels, baseline), pixels)


def erase(
    pixels: np.ndarray, heat: np.ndarray, percent: float, which: str = "hottest", baseline: str = "blur"
) -> np.ndarray:
    """The picture without its hottest (or coldest) `percent` of pixels: uint8 (H, W, 3).

    `heat` (H, W) may be signed: only its order counts. 0 returns the picture itself, 100 the whole baseline.
    """
    pixels, heat = as_picture(pixels), np.asarray(heat)
    if heat.shape != pixels.shape[:2]:
        raise ValueError(f"heat {heat.shape}: for this picture a map is {pixels.shape[:2]}")
    if which not in ("hottest", "coldest"):
        raise ValueError(f"which {which!r}: accepted are 'hottest' and 'coldest'")
    ranked = order(heat)
    count = counts(np.array([as_share(percent)]), heat.size)[0]
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


def counts(fractions: np.ndarray, total: int) -> np.ndarray:
    """How many pixels a fraction is; those of f and of 1 - f add up to all of them."""
    smaller = np.floor(np.minimum(fractions, 1 - fractions) * total + 0.5).astype(int)
    return np.where(fractions > 0.5, total - smaller, smaller)
