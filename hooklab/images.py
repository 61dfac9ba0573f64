"""Arrays to pictures: heatmaps, colours, overlays, panels, feature sheets, PNG bytes.

Every rule is a formula, so that the browser paints the same picture from the same numbers.
"""

import functools
import json
import math
from io import BytesIO

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

COLORMAPS = ("inferno", "viridis", "magma", "cividis", "turbo", "jet", "gray", "RdBu_r")
NORMALIZATIONS = ("max", "min-max", "signed")


def colormap(name):
    """The table of a colour map, uint8 (256, 3): matplotlib's values, each floor(255 * v + 0.5)."""
    if name not in COLORMAPS:
        raise ValueError(f"colour map {name!r}: one of {', '.join(COLORMAPS)} is accepted")
    return _table(name)


@functools.cache
def _table(name):
    from matplotlib import colormaps

    table = _to_bytes(colormaps[name](np.linspace(0, 1, 256))[:, :3] * 255)
    table.flags.writeable = False
    return table


def resize(maps, size, smooth=True):
    """maps (..., h, w) -> float64 (..., H, W), with the index rules of torch.nn.functional.interpolate.

    smooth=True is "bilinear" with align_corners=False and no antialiasing: output pixel y reads the input at
    max(0, (y + 0.5) * h / H - 0.5), between two rows. smooth=False is "nearest": row floor(y * h / H).
    """
    maps = _check_maps(maps)
    height, width = _check_size(size)
    if not smooth:
        return maps[..., _nearest(maps.shape[-2], height)[:, None], _nearest(maps.shape[-1], width)]
    return _bilinear(maps.shape[-2], height) @ maps @ _bilinear(maps.shape[-1], width).T


def heatmap(raw, size, normalization="max", smooth=True):
    """Signed map raw (..., h, w) -> float32 (..., H, W) in [0, 1], always finite.

    "max", as in the Grad-CAM paper: ReLU, `resize`, divided by its maximum; a map with no positive value is all zero.
    "min-max", as in other libraries: ReLU, `resize`, then (v - min) / (max - min) over the RESIZED map; a constant
    map is all zero, since it has no contrast.
    "signed": `resize`, then 0.5 + 0.5 * v / max|v|; zero is the middle of a diverging colour map.
    """
    if normalization not in NORMALIZATIONS:
        raise ValueError(f"normalization {normalization!r}: one of {', '.join(NORMALIZATIONS)} is accepted")
    maps = _check_maps(raw)
    if normalization == "signed":
        values = resize(maps, size, smooth)
        return (0.5 + 0.5 * _ratio(values, np.abs(values).max((-2, -1), keepdims=True))).astype(np.float32)
    values = resize(np.maximum(maps, 0), size, smooth)
    low, high = (edge((-2, -1), keepdims=True) for edge in (values.min, values.max))
    if normalization == "max":
        return _ratio(values, high).astype(np.float32)
    contrast = high - low
    contrast[contrast < 1e-9 * high] = 0  # what is left of a constant is rounding
    return _ratio(values - low, contrast).astype(np.float32)


def colorize(heat, name="inferno"):
    """heat (..., H, W) in [0, 1] -> uint8 (..., H, W, 3): row floor(255 * v + 0.5) of `colormap(name)`."""
    return colormap(name)[_to_bytes(_check_heat(heat) * 255)]


def overlay(pixels, heat, name="inferno", opacity=0.55):
    """uint8 (H, W, 3) under heat (H, W) -> uint8 (H, W, 3): floor((1 - opacity) * pixel + opacity * colour + 0.5)."""
    pixels, colors = _check_pixels(pixels), colorize(heat, name)
    if pixels.shape != colors.shape:
        raise ValueError(f"the heatmap is {colors.shape[:-1]} and the picture {pixels.shape[:2]}; they must be equal")
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity {opacity}: a number from 0 to 1 is accepted")
    return _to_bytes((1 - opacity) * pixels + opacity * colors)


def enlarge(pixels, factor, smooth=False):
    """uint8 (H, W, 3) -> uint8 (factor * H, factor * W, 3): hard pixel edges, or `resize` and floor(v + 0.5)."""
    pixels = _check_pixels(pixels)
    factor = _check_whole("factor", factor, 1)
    if not smooth:
        return pixels.repeat(factor, 0).repeat(factor, 1)
    channels = resize(np.moveaxis(pixels, -1, 0), (pixels.shape[0] * factor, pixels.shape[1] * factor))
    return _to_bytes(np.moveaxis(channels, 0, -1))


def panels(
    pixels, raw, name="inferno", opacity=0.55, normalization="max", smooth=True, factor=None, gap=8, description=None
):
    """Three panels side by side, as PNG bytes at 150 dpi: what the model saw, the heatmap, the overlay.

    pixels: uint8 (H, W, 3), enlarged `factor` times with hard edges, by default to a height of about 480; raw: signed
    map (h, w), made a `heatmap` at that size. `description`, a dict of what is shown, is kept as JSON in the tEXt
    chunk "Description"; nothing is drawn into the picture.
    """
    pixels = _check_pixels(pixels)
    factor = max(1, round(480 / pixels.shape[0])) if factor is None else factor
    large = enlarge(pixels, factor)
    heat = heatmap(raw, large.shape[:2], normalization, smooth)
    space = np.full((large.shape[0], _check_whole("gap", gap, 0), 3), 255, np.uint8)
    row = [large, space, colorize(heat, name), space, overlay(large, heat, name, opacity)]
    text = {} if description is None else {"Description": json.dumps(description)}
    return png(np.concatenate(row, axis=1), dpi=150, text=text)


def feature_sheet(maps, order=None, columns=None, name="viridis", scale="own", signed=False, factor=1, gap=1):
    """Every channel of maps (C, h, w) in one picture, uint8 (rows * h, columns * w, 3) plus gaps between them.

    Channels come in index order, or as `order` lists them, row by row; by default the sheet is about square. Each is
    divided by its "own" maximum, or all by the "common" one. Negative values are shown as zero, or, with signed=True,
    by a diverging colour map whose middle is zero. `factor` enlarges with hard edges.
    """
    maps = _check_maps(maps)
    if maps.ndim != 3:
        raise ValueError(f"maps are {maps.shape}; (channels, h, w) is accepted")
    if scale not in ("own", "common"):
        raise ValueError(f"scale {scale!r}: 'own' or 'common' is accepted")
    count, h, w = maps.shape
    order = np.arange(count) if order is None else np.asarray(order)
    if order.ndim != 1 or not order.size or order.dtype.kind not in "iu" or order.min() < 0 or order.max() >= count:
        raise ValueError(f"order {order.tolist()}: channels 0 to {count - 1} are accepted")
    columns = min(math.ceil(math.sqrt(len(order) * h / w)), len(order)) if columns is None else columns
    rows = -(-len(order) // _check_whole("columns", columns, 1))

    values = maps if signed else np.maximum(maps, 0)
    largest = np.abs(values).max((1, 2) if scale == "own" else None, keepdims=True)
    heat = 0.5 + 0.5 * _ratio(values, largest) if signed else _ratio(values, largest)
    tiles = colorize(heat[order], name).repeat(_check_whole("factor", factor, 1), 1).repeat(factor, 2)
    _check_whole("gap", gap, 0)
    cell_h, cell_w = h * factor + gap, w * factor + gap
    sheet = np.full((rows, columns, cell_h, cell_w, 3), 255, np.uint8)
    sheet.reshape(-1, cell_h, cell_w, 3)[: len(order), : h * factor, : w * factor] = tiles
    return sheet.swapaxes(1, 2).reshape(rows * cell_h, columns * cell_w, 3)[
        : rows * cell_h - gap, : columns * cell_w - gap
    ]


def png(pixels, dpi=None, text=None):
    """uint8 (H, W, 3) or grey (H, W) -> PNG bytes, with a resolution and tEXt entries if given."""
    info = PngInfo()
    for key, value in (text or {}).items():
        info.add_text(key, value)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", pnginfo=info, **({"dpi": (dpi, dpi)} if dpi else {}))
    return buffer.getvalue()


# ---- arithmetic and checks -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _bilinear(source, target):
    """The weights (target, source) of linear interpolation along one axis."""
    position = np.maximum((np.arange(target) + 0.5) * (source / target) - 0.5, 0)
    low = np.minimum(position.astype(int), source - 1)
    high = np.minimum(low + 1, source - 1)
    weights = np.zeros((target, source))
    np.add.at(weights, (np.arange(target), low), 1 - (position - low))
    np.add.at(weights, (np.arange(target), high), position - low)
    weights.flags.writeable = False
    return weights


def _nearest(source, target):
    # float32 because torch computes so: 7 * (1 / 7) and its like round differently in float64
    position = np.arange(target, dtype=np.float32) * np.float32(source / target)
    return np.minimum(position.astype(int), source - 1)


def _ratio(values, largest):
    """values / largest, and zero where the largest is zero."""
    return np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)


def _to_bytes(values):
    return np.floor(values + 0.5).astype(np.uint8)


def _check_maps(maps):
    maps = np.asarray(maps)
    if maps.ndim < 2 or 0 in maps.shape or maps.dtype.kind not in "fiub":
        raise ValueError(f"the map is {maps.dtype} {maps.shape}; numbers (..., h, w) are accepted")
    if not np.isfinite(maps).all():
        raise ValueError(f"the map holds {np.count_nonzero(~np.isfinite(maps))} values that are NaN or infinite")
    return maps.astype(np.float64)


def _check_heat(heat):
    heat = _check_maps(heat)
    if heat.min() < 0 or heat.max() > 1:
        raise ValueError(f"the heatmap runs from {heat.min():g} to {heat.max():g}; values from 0 to 1 are accepted")
    return heat


def _check_pixels(pixels):
    pixels = np.asarray(pixels)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3 or 0 in pixels.shape:
        raise ValueError(f"pixels are {pixels.dtype} {pixels.shape}; uint8 (H, W, 3) is accepted")
    return pixels


def _check_size(size):
    height, width = size
    return _check_whole("height", height, 1), _check_whole("width", width, 1)


def _check_whole(what, value, least):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{what} {value!r}: a whole number from {least} up is accepted")
    return int(value)
