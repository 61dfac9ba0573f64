"""Where a heatmap lies, as facts that the page puts into words: computed from the map, in no language."""

from itertools import pairwise

import numpy as np

# Regions of a 3 x 3 grid over the picture, by name: rows, columns and single cells.
_NAMES = [f"{row}-{column}" for row in ("top", "middle", "bottom") for column in ("left", "centre", "right")]
_REGIONS = {name: [k] for k, name in enumerate(_NAMES)}
_REGIONS |= {row: [3 * k, 3 * k + 1, 3 * k + 2] for k, row in enumerate(("top", "middle", "bottom"))}
_REGIONS |= {column: [k, k + 3, k + 6] for k, column in enumerate(("left", "centre", "right"))}


def where(heatmap: np.ndarray) -> dict:
    """Facts on a float (H, W) map in [0, 1].

    `places`: one or two names of regions that hold at least half of the heat between them, the densest first; empty
    when the heat is spread so evenly that no such region stands out, or when there is none.
    `share`: their part of the heat; `above_half`: the part of the picture that is above half of the peak.
    """
    total = float(heatmap.sum())
    if total <= 0:
        return {"places": [], "share": 0.0, "above_half": 0.0}
    cells = _cell_sums(heatmap) / total
    above_half = float((heatmap > heatmap.max() / 2).mean())
    shares = {name: float(cells[members].sum()) for name, members in _REGIONS.items()}
    # The densest region that holds half of the heat says most in the fewest words.
    whole = [name for name in shares if shares[name] >= 0.5]
    if whole:
        best = max(whole, key=lambda name: shares[name] / len(_REGIONS[name]))
        return {"places": [best], "share": shares[best], "above_half": above_half}
    first, second = sorted(_NAMES, key=lambda name: -shares[name])[:2]
    if shares[first] + shares[second] >= 0.5:
        return {"places": [first, second], "share": shares[first] + shares[second], "above_half": above_half}
    return {"places": [], "share": 0.0, "above_half": above_half}


def _cell_sums(heatmap: np.ndarray) -> np.ndarray:
    """Heat in each of the nine cells, row by row; a pixel on a boundary is shared by area, so any size is fair."""
    rows, columns = (_thirds(length) for length in heatmap.shape)
    return (rows @ heatmap @ columns.T).ravel()


def _thirds(length: int) -> np.ndarray:
    """(3, length) weights: how much of each pixel lies in each third."""
    edges = np.arange(length + 1)
    cuts = np.linspace(0, length, 4)
    return np.stack([np.clip(np.minimum(edges[1:], b) - np.maximum(edges[:-1], a), 0, 1) for a, b in pairwise(cuts)])
