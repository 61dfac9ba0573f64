"""What a Lab answers with: arrays that cannot be written to, since many users may hold the same one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Explanation:
    """One class activation map. Arrays are float32 where nothing else is said, and cannot be written to."""

    logits: np.ndarray  # (K,)
    probabilities: np.ndarray  # (K,)
    predicted: int
    target: int
    layer: str
    method: str
    raw: np.ndarray  # (h, w): the signed map on logits, before ReLU
    heatmap: np.ndarray  # (H, W) in [0, 1]: ReLU, enlarged, divided by its maximum
    blank: bool  # no evidence is positive; the heatmap is then all zero
    input: np.ndarray  # uint8 (H, W, 3): the pixels that the model saw


@dataclass(frozen=True, eq=False)
class Features:
    """What a layer holds. A layer without maps has C maps of one row: its (C,) numbers, or its (tokens, C) sequence."""

    layer: str
    target: int
    maps: np.ndarray  # float32 (C, h, w)
    weights: np.ndarray  # float32 (C,): Grad-CAM's alpha for the target, the gradient's mean over space
    order: np.ndarray  # int64 (C,): channels by what they add to the map, weight times mean activation, most first


def read_only(values: Tensor | np.ndarray) -> np.ndarray:
    """A NumPy array of one's own that cannot be written to; float32 where it held fractions."""
    if isinstance(values, Tensor):
        values = values.detach().float() if values.is_floating_point() else values.detach()
        values = values.cpu().numpy()
    values = values.view()
    values.flags.writeable = False
    return values


def as_maps(values: Tensor) -> Tensor:
    """What one picture makes of a layer, as float32 (C, h, w): (C,) -> (C, 1, 1), (tokens, C) -> (C, 1, tokens)."""
    values = values.float()
    if values.ndim == 2:
        return values.T[:, None]
    return (
        values.reshape(*values.shape[:2], -1) if values.ndim > 3 else values.reshape(-1, *(values.shape[1:] or (1, 1)))
    )
