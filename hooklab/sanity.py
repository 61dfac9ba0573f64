"""Does a map depend on what the network has learned, and does it hold still when the picture hardly changes?

Two tests of a method at a layer, both pure functions of `raw_of`, which makes a raw signed map (h, w):

    randomisation   shuffle the weights from the top layer down: a map that stays the same shows the picture, not the
                    network (Adebayo et al., Sanity Checks for Saliency Maps, NeurIPS 2018)
    stability       shift the picture by a pixel or two, flip it, add noise: the map should move along, and no more
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from . import cam, hooks
from .erasing import gaussian_matrix

THRESHOLD = 0.5  # of the rank correlation with the original map: above it, a map is still the same map
REPEATS = 5  # two unrelated smooth maps on an 8x8 grid correlate by +-0.4 at random, the mean of five pairs by +-0.2


# -- how alike two maps are ------------------------------------------------------------------------------


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of a flat array; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place.reshape(-1)]


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's, from -1 to 1; 0 where one of the maps is flat and so has no order."""
    a, b = (_ranks(np.asarray(values, dtype=np.float64).ravel()) for values in (a, b))
    a, b = a - a.mean(), b - b.mean()
    length = np.sqrt((a @ a) * (b @ b))
    return float(np.clip(a @ b / length, -1, 1)) if length > 0 else 0.0


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Mean structural similarity of two heatmaps (H, W) in [0, 1]: 1 for equal ones.

    Wang et al., IEEE TIP 2004, with their Gaussian window of sigma 1.5, cut off and re-weighted at the borders.
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (a, b))
    rows, columns = (gaussian_matrix(side, 1.5) for side in a.shape)

    def blur(values: np.ndarray) -> np.ndarray:
        return rows @ values @ columns.T

    mean_a, mean_b = blur(a), blur(b)
    variances = blur(a * a) - mean_a**2 + blur(b * b) - mean_b**2
    covariance = blur(a * b) - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    alike = (2 * mean_a * mean_b + c1) * (2 * covariance + c2) / ((mean_a**2 + mean_b**2 + c1) * (variances + c2))
    return float(alike.mean())


# -- randomisation of the weights ------------------------------------------------------------------------


def blocks(model: nn.Module, rows: Sequence[str]) -> dict[str, list[Tensor]]:
    """What a cascade shuffles in one step, in execution order: a module's name -> its parameters and buffers.

    rows: names of layers in execution order, as `Lab.layers` gives them. A normalisation goes with the layer before
    it, and what is never called by itself (the parts of an attention, say) with the module that holds it.
    """
    called = list(dict.fromkeys(hooks.locate(model, row).path for row in rows))
    own: dict[str, list[Tensor]] = {name: [] for name in [*called, ""]}
    for name, module in model.named_modules():
        owner = name
        while owner not in own:
            owner = owner.rpartition(".")[0]
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        own[owner] += [tensor.data for tensor in tensors if tensor.is_floating_point()]
    steps: dict[str, list[Tensor]] = {}
    for name, tensors in own.items():
        if tensors and steps and max(tensor.ndim for tensor in tensors) < 2:
            steps[next(reversed(steps))] += tensors
        elif tensors:
            steps[name] = tensors
    return steps


def cascade(model: nn.Module, rows: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Shuffle `model` IN PLACE, one block at a time from the top; yields the name of each once it is done.

    Every tensor keeps its values and loses their places, so activations keep their size and nothing explodes, whatever
    the architecture.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, tensors in reversed(blocks(model, rows).items()):
        for tensor in tensors:
            places = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
            tensor.copy_(tensor.flatten()[places].reshape(tensor.shape))
        yield name


@dataclass(frozen=True, eq=False)
class Step:
    """One step of the cascade: `name` and all layers after it are shuffled. Similarities are means over the repeats."""

    name: str
    above: bool  # all that is shuffled lies after the explained layer: its activations are still the trained ones
    raw: np.ndarray  # float32 (h, w): the map, from the first repeat
    heatmap: np.ndarray  # float32 (H, W)
    correlation: float  # Spearman's, of the raw maps
    ssim: float  # of the heatmaps


@dataclass(frozen=True, eq=False)
class Sanity:
    """Passed: the map's rank correlation with the original fell below the threshold both when all layers after the
    explained one were shuffled (does it look at the class?) and at the end, when all layers were (at the network?).
    A flat map, which has no order that could be lost, does not pass."""

    original: np.ndarray  # float32 (h, w)
    steps: tuple[Step, ...]  # from the top layer to the bottom
    threshold: float
    passed: bool
    sees_class: bool
    sees_weights: bool


def sanity(
    model: nn.Module,
    rows: Sequence[str],
    layer: str,
    raw_of: Callable[[nn.Module], Callable[[], np.ndarray]],
    size: tuple[int, int],
    repeats: int = REPEATS,
    progress: Callable[[int, int], None] | None = None,
) -> Sanity:
    """Cascading randomisation of COPIES of `model`; the model itself is not touched.

    rows: every layer in execution order, `layer` among them; `raw_of(copy)` -> a function without arguments that makes
    the raw map (h, w) with the copy's weights of that moment; size: (H, W) of the heatmaps; `progress(done, all)`.
    """
    if layer not in rows:
        raise ValueError(f"layer {layer!r}: not one of {', '.join(rows)}")
    after = {hooks.locate(model, row).path for row in rows[rows.index(layer) + 1 :]}
    after -= {hooks.locate(model, row).path for row in rows[: rows.index(layer) + 1]}
    total, done = repeats * len(blocks(model, rows)) + 1, 1
    original = np.array(raw_of(copy.deepcopy(model))(), dtype=np.float32)
    names, maps = [], []
    for seed in range(repeats):
        shuffled = copy.deepcopy(model)
        look = raw_of(shuffled)
        maps.append([])
        names = []
        for name in cascade(shuffled, rows, seed):
            names.append(name)
            maps[-1].append(np.array(look(), dtype=np.float32))
            done += 1
            if progress:
                progress(done, total)
    heat = _heat(original, size)
    steps = tuple(
        Step(
            name=name,
            above=set(names[: index + 1]) <= after,
            raw=maps[0][index],
            heatmap=_heat(maps[0][index], size),
            correlation=float(np.mean([rank_correlation(original, run[index]) for run in maps])),
            ssim=float(np.mean([ssim(heat, _heat(run[index], size)) for run in maps])),
        )
        for index, name in enumerate(names)
    )
    above = [step.correlation for step in steps if step.above]
    has_order = bool(np.ptp(original))
    sees_class = has_order and (not above or above[-1] < THRESHOLD)
    sees_weights = has_order and steps[-1].correlation < THRESHOLD
    return Sanity(original, steps, THRESHOLD, sees_class and sees_weights, sees_class, sees_weights)


def _heat(raw: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return cam.heatmap(torch.from_numpy(raw), size).numpy()


# -- small changes of the picture ------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """One small change and how far the map, brought back to the picture's geometry, still agrees with the original."""

    kind: str  # "shift", "flip" or "noise"
    shift: tuple[int, int]  # (down, right) in pixels
    correlation: float  # Spearman's, over the pixels that both show


@dataclass(frozen=True, eq=False)
class Stability:
    mean: np.ndarray  # float32 (H, W) in [0, 1]: of the original heatmap and of all variants
    spread: np.ndarray  # float32 (H, W): their standard deviation
    variants: tuple[Variant, ...]
    agreement: float  # the mean of the correlations


def shifted(pixels: np.ndarray, down: int, right: int) -> np.ndarray:
    """The picture moved; its border pixels fill what comes into view. (H, W, ...) of the same shape."""
    rows = np.clip(np.arange(pixels.shape[0]) - down, 0, pixels.shape[0] - 1)
    columns = np.clip(np.arange(pixels.shape[1]) - right, 0, pixels.shape[1] - 1)
    return pixels[rows][:, columns]


def stability(raw_of: Callable[[np.ndarray], np.ndarray], pixels: np.ndarray, noise: float = 8.0) -> Stability:
    """Mean and spread of the heatmap over 8 shifts (by 1/16 of the sides), a mirror image and 4 doses of noise.

    `raw_of(pixels uint8 (H, W, 3))` -> raw map (h, w), always of the same class; noise: standard deviation in grey
    levels. Pixels that a shift moved out of view are left out of the figures.
    """
    size = height, width = pixels.shape[:2]
    y, x = max(1, height // 16), max(1, width // 16)
    moves = [(a * y, b * x) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
    random = np.random.default_rng(0)
    doses = [np.rint(pixels + noise * random.standard_normal(pixels.shape)).clip(0, 255) for _ in range(4)]
    changed = [
        *(("shift", move, shifted(pixels, *move)) for move in moves),
        ("flip", (0, 0), pixels[:, ::-1]),
        *(("noise", (0, 0), dose.astype(np.uint8)) for dose in doses),
    ]
    original = torch.from_numpy(np.array(raw_of(pixels), dtype=np.float32))
    maps, signed = [cam.heatmap(original, size).numpy()], cam.enlarge(original, size).numpy()
    variants = []
    for kind, (down, right), picture in changed:
        raw = torch.from_numpy(np.array(raw_of(np.ascontiguousarray(picture)), dtype=np.float32))
        heat, back = cam.heatmap(raw, size).numpy(), cam.enlarge(raw, size).numpy()
        if kind == "flip":
            heat, back = heat[:, ::-1], back[:, ::-1]
        seen = np.zeros(size, bool)
        seen[max(0, -down) : height - max(0, down), max(0, -right) : width - max(0, right)] = True
        heat, back = shifted(heat, -down, -right), shifted(back, -down, -right)
        maps.append(np.where(seen, heat, np.nan))
        variants.append(Variant(kind, (down, right), rank_correlation(signed[seen], back[seen])))
    maps = np.stack(maps)
    return Stability(
        mean=np.nanmean(maps, 0).astype(np.float32),
        spread=np.nanstd(maps, 0).astype(np.float32),
        variants=tuple(variants),
        agreement=float(np.mean([variant.correlation for variant in variants])),
    )
