"""Pictures against formulas, against PyTorch and against matplotlib."""

import io
import json

import matplotlib
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from pytorch_grad_cam.utils.image import scale_cam_image

from hooklab import images

SIZES = [((1, 1), (5, 7)), ((1, 4), (4, 1)), ((4, 4), (32, 32)), ((8, 5), (32, 48)), ((7, 7), (224, 224))]
SIZES += [((14, 9), (100, 33)), ((32, 16), (8, 12)), ((5, 3), (5, 3))]


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def pixels(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


# ---- colour maps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", images.COLORMAPS)
def test_colormap_is_matplotlibs(name):
    table = images.colormap(name)
    assert (table.dtype, table.shape, table.flags.writeable) == (np.uint8, (256, 3), False)
    for step in (0, 1, 77, 128, 254, 255):
        assert np.abs(table[step] - 255 * np.array(matplotlib.colormaps[name](step)[:3])).max() <= 0.5 + 1e-9


def test_the_default_grows_brighter_and_the_signed_one_is_light_in_the_middle():
    assert images.COLORMAPS[0] == "inferno"
    luminance = {name: images.colormap(name) @ [0.2126, 0.7152, 0.0722] for name in images.COLORMAPS}
    assert (np.diff(luminance["inferno"]) > -0.5).all()
    assert luminance["RdBu_r"][127:129].min() > 230 > luminance["RdBu_r"][[0, 255]].max()


@pytest.mark.parametrize("name", ["Inferno", "", "hot", None, 3, ["inferno"]])
def test_an_unknown_colormap_is_named(name):
    with pytest.raises(ValueError, match="inferno, viridis") as caught:
        images.colormap(name)
    assert repr(name) in str(caught.value)


# ---- resizing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source, target", SIZES)
def test_resize_is_torchs_bilinear(source, target):
    maps = noise(3, *source)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6 * np.abs(maps).max())):
        expected = F.interpolate(torch.tensor(maps, dtype=dtype)[None], target, mode="bilinear", align_corners=False)[0]
        assert np.abs(images.resize(maps, target) - expected.numpy()).max() <= tolerance


def test_resize_without_smoothing_is_torchs_nearest_for_every_size():
    for source in range(1, 40):
        row = np.arange(source, dtype=np.float32)[None]
        for target in range(1, 120):
            expected = F.interpolate(torch.from_numpy(row)[None], target, mode="nearest")[0].numpy()
            assert np.array_equal(images.resize(row, (1, target), smooth=False), expected), (source, target)


def test_E13_height_is_not_width():
    ramp = np.broadcast_to(np.arange(6.0)[:, None], (6, 3))  # grows downwards
    large = images.resize(ramp, (30, 50))
    assert large.shape == (30, 50)
    assert (np.diff(large, axis=0) >= 0).all()
    assert np.allclose(large, large[:, :1], atol=1e-12)
    assert np.allclose(images.resize(ramp.T, (50, 30)), large.T, atol=1e-12)


@pytest.mark.parametrize("size", [(0, 5), (5, -1), (2.0, 2), (True, 2)])
def test_a_size_is_whole_and_positive(size):
    with pytest.raises(ValueError, match="a whole number from 1 up"):
        images.resize(noise(2, 2), size)


# ---- heatmaps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("source, target", SIZES)
def test_heatmap_by_its_maximum(source, target, smooth):
    raw = noise(*source, seed=1)
    raw[0, 0] = 2  # something is positive
    mode = {"mode": "bilinear", "align_corners": False} if smooth else {"mode": "nearest"}
    large = F.interpolate(torch.from_numpy(raw).double().relu()[None, None], target, **mode)[0, 0].numpy()
    heat = images.heatmap(raw, target, smooth=smooth)
    assert (heat.dtype, heat.shape) == (np.float32, target)
    assert np.allclose(heat, large / large.max(), atol=1e-6)
    assert heat.max() == 1


def test_min_max_is_pytorch_grad_cams():
    raw = np.abs(noise(7, 5)) + 0.2  # without a zero, or it would be the same as "max"
    heat = images.heatmap(raw, (42, 65), "min-max")
    oracle = scale_cam_image(scale_cam_image(np.maximum(raw, 0)[None], (65, 42)))[0]
    assert np.abs(heat - oracle).max() < 1e-5
    assert (heat.min(), heat.max()) == (0, 1)
    assert np.abs(heat - images.heatmap(raw, (42, 65))).max() > 0.05


def test_signed_has_zero_in_the_middle():
    heat = images.heatmap(np.array([[-4.0, 0.0, 2.0]]), (1, 3), "signed")
    assert heat.tolist() == [[0, 0.5, 0.75]]


BLANKS = [
    np.zeros((3, 4)),
    -np.ones((3, 4)),
    -np.abs(noise(3, 4)),
    np.full((1, 1), -1e-30),
    np.full((2, 2), -np.float32(0)),
]


@pytest.mark.parametrize("raw", BLANKS)
@pytest.mark.parametrize("smooth", [True, False])
def test_E5_a_map_without_positive_evidence_is_all_zero(raw, smooth):
    for normalization in ("max", "min-max"):
        heat = images.heatmap(raw, (6, 9), normalization, smooth)
        assert (heat.shape, heat.any()) == ((6, 9), False)


@pytest.mark.parametrize("value", [1, 1e-45, 1e-300, 1e300, np.finfo(np.float64).max])
def test_E5_constants_and_extremes_stay_finite(value):
    raw = np.full((3, 4), value)
    assert np.allclose(images.heatmap(raw, (6, 9)), 1)
    for smooth in (True, False):
        assert not images.heatmap(raw, (61, 97), "min-max", smooth).any()
    for signed in (raw, -raw, raw * [1, -1, 0, 1]):
        for normalization in images.NORMALIZATIONS:
            heat = images.heatmap(signed, (6, 9), normalization)
            assert np.isfinite(heat).all()
            assert 0 <= heat.min() <= heat.max() <= 1
    assert (images.heatmap(raw * 0, (6, 9), "signed") == 0.5).all()


@pytest.mark.parametrize("bad, count", [([np.nan], 1), ([np.inf, np.nan], 2), ([-np.inf], 1)])
def test_E5_nan_and_infinity_are_refused(bad, count):
    raw = noise(4, 4)
    raw[0, : len(bad)] = bad
    uses = [lambda: images.heatmap(raw, (8, 8)), lambda: images.feature_sheet(raw[None]), lambda: images.colorize(raw)]
    for use in uses:
        with pytest.raises(ValueError, match=f"holds {count} values that are NaN or infinite"):
            use()


@pytest.mark.parametrize("raw", [np.zeros(3), np.zeros((0, 4)), np.array([["a"]]), np.zeros((2, 2), complex), 3.0])
def test_what_is_no_map_is_named(raw):
    with pytest.raises(ValueError, match=r"the map is .*; numbers \(\.\.\., h, w\) are accepted"):
        images.heatmap(raw, (8, 8))


def test_an_unknown_normalization_is_named():
    with pytest.raises(ValueError, match="normalization 'minmax': one of max, min-max, signed"):
        images.heatmap(noise(2, 2), (8, 8), "minmax")


@pytest.mark.parametrize("normalization", images.NORMALIZATIONS)
def test_several_maps_at_once_are_the_maps_one_by_one(normalization):
    raw = noise(10, 4, 6)
    together = images.heatmap(raw, (32, 20), normalization)
    for k in range(10):
        assert np.allclose(together[k], images.heatmap(raw[k], (32, 20), normalization), atol=1e-6)


def test_nothing_is_written_into_the_arguments():
    raw, under = noise(4, 4), pixels(8, 8)
    before = raw.copy(), under.copy()
    images.panels(under, raw)
    images.feature_sheet(raw[None])
    assert np.array_equal(raw, before[0])
    assert np.array_equal(under, before[1])


# ---- pictures ------------------------------------------------------------------------------------------------------


def test_colorize_rounds_half_up():
    between = (np.arange(255) + 0.5) / 255  # from one row of the table to the next
    for heat, rows in ((between - 1e-9, range(255)), (between + 1e-9, range(1, 256)), ([0, 0.5, 1], [0, 128, 255])):
        assert images.colorize([heat], "gray")[0, :, 0].tolist() == list(rows)


@pytest.mark.parametrize("heat", [np.array([[-0.01, 1]]), np.array([[0, 1.001]])])
def test_heat_outside_its_range_is_refused(heat):
    with pytest.raises(ValueError, match=r"the heatmap runs from .* values from 0 to 1"):
        images.colorize(heat)


@pytest.mark.parametrize("name", ["inferno", "jet"])
@pytest.mark.parametrize("opacity", [0, 0.3, 0.55, 1])
def test_overlay_pixel_by_pixel(name, opacity):
    under, heat = pixels(6, 9), images.heatmap(noise(3, 3), (6, 9))
    expected = np.zeros_like(under)
    for y in range(6):
        for x in range(9):
            color = images.colormap(name)[int(255 * float(heat[y, x]) + 0.5)]
            for c in range(3):
                expected[y, x, c] = int((1 - opacity) * int(under[y, x, c]) + opacity * int(color[c]) + 0.5)
    painted = images.overlay(under, heat, name, opacity)
    assert painted.dtype == np.uint8
    assert np.array_equal(painted, expected)
    if opacity in (0, 1):
        assert np.array_equal(painted, images.colorize(heat, name) if opacity else under)


def test_overlay_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"the heatmap is \(9, 6\) and the picture \(6, 9\)"):
        images.overlay(pixels(6, 9), np.zeros((9, 6)))
    for opacity in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=f"opacity {opacity}: a number from 0 to 1"):
            images.overlay(pixels(6, 9), np.zeros((6, 9)), opacity=opacity)
    for bad in (np.zeros((6, 9, 3)), np.zeros((6, 9), np.uint8), np.zeros((6, 9, 4), np.uint8)):
        with pytest.raises(ValueError, match=r"pixels are .*; uint8 \(H, W, 3\) is accepted"):
            images.overlay(bad, np.zeros((6, 9)))


def test_enlarge():
    under = pixels(4, 7)
    assert np.array_equal(images.enlarge(under, 1), under)
    assert np.array_equal(images.enlarge(under, 1, smooth=True), under)
    large = images.enlarge(under, 5)
    assert large.shape == (20, 35, 3)
    assert np.array_equal(large[2::5, 2::5], under)
    assert np.array_equal(large, large[2::5, 2::5].repeat(5, 0).repeat(5, 1))
    tensor = torch.from_numpy(under).permute(2, 0, 1)[None].double()
    expected = F.interpolate(tensor, (20, 35), mode="bilinear", align_corners=False)[0].permute(1, 2, 0)
    assert np.abs(images.enlarge(under, 5, smooth=True) - expected.numpy()).max() <= 0.5 + 1e-9
    for factor in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=f"factor {factor}: a whole number from 1 up"):
            images.enlarge(under, factor)


@pytest.mark.parametrize("smooth", [True, False])
def test_panels_are_the_input_the_heatmap_and_the_overlay(smooth):
    under, raw = pixels(16, 24), noise(4, 6)
    shown = {"index": 1218, "model": "simple_cnn", "layer": "pool:3.input", "target": "ship \N{SHIP}"}
    content = images.panels(under, raw, "turbo", 0.4, smooth=smooth, factor=10, gap=6, description=shown)
    picture = Image.open(io.BytesIO(content))
    assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (3 * 240 + 2 * 6, 160))
    assert [round(dots) for dots in picture.info["dpi"]] == [150, 150]
    assert json.loads(picture.text["Description"]) == shown
    array = np.asarray(picture)
    first, second, third = (array[:, k * 246 : k * 246 + 240] for k in range(3))
    heat = images.heatmap(raw, (160, 240), smooth=smooth)
    assert np.array_equal(first, images.enlarge(under, 10))
    assert np.array_equal(second, images.colorize(heat, "turbo"))
    assert np.array_equal(third, images.overlay(first, heat, "turbo", 0.4))
    assert (array[:, 240:246] == 255).all()


@pytest.mark.parametrize("size, height", [((32, 32), 480), ((224, 224), 448), ((600, 400), 600), ((7, 30), 483)])
def test_panels_have_about_the_same_height(size, height):
    picture = Image.open(io.BytesIO(images.panels(pixels(*size), noise(3, 3))))
    assert picture.height == height
    assert picture.text == {}


# ---- feature sheets ------------------------------------------------------------------------------------------------


def tile(sheet, row, column, h, w, gap=1):
    return sheet[row * (h + gap) : row * (h + gap) + h, column * (w + gap) : column * (w + gap) + w]


def test_feature_sheet_shows_every_channel_in_order():
    maps = np.abs(noise(7, 3, 5))
    sheet = images.feature_sheet(maps, columns=4)
    assert sheet.shape == (2 * 3 + 1, 4 * 5 + 3, 3)
    for k in range(7):
        assert np.array_equal(tile(sheet, k // 4, k % 4, 3, 5), images.colorize(maps[k] / maps[k].max(), "viridis"))
    assert (tile(sheet, 1, 3, 3, 5) == 255).all()
    assert (sheet[3] == 255).all()
    order = [6, 0, 3]
    some = images.feature_sheet(maps, order, columns=3)
    for place, k in enumerate(order):
        assert np.array_equal(tile(some, 0, place, 3, 5), tile(sheet, k // 4, k % 4, 3, 5))


def test_feature_sheet_by_own_or_common_maximum():
    maps = np.stack([np.full((2, 2), 1.0), np.full((2, 2), 4.0), np.full((2, 2), -1.0)])
    level = {
        scale: images.feature_sheet(maps, name="gray", columns=3, scale=scale)[0, ::3, 0] for scale in ("own", "common")
    }
    assert level["own"].tolist() == [255, 255, 0]
    assert level["common"].tolist() == [64, 255, 0]
    signed = images.feature_sheet(maps, name="gray", columns=3, scale="common", signed=True)[0, ::3, 0]
    assert signed.tolist() == [159, 255, 96]


@pytest.mark.parametrize(
    "count, h, w, shape", [(64, 8, 8, (8, 8)), (1, 5, 5, (1, 1)), (3, 4, 4, (2, 2)), (32, 4, 16, (11, 3))]
)
def test_feature_sheet_is_about_square(count, h, w, shape):
    rows, columns = shape
    for factor, gap in ((1, 1), (3, 0), (2, 5)):
        sheet = images.feature_sheet(noise(count, h, w), factor=factor, gap=gap)
        assert sheet.shape[:2] == (rows * (h * factor + gap) - gap, columns * (w * factor + gap) - gap)


def test_feature_sheet_enlarges_with_hard_edges():
    maps = noise(5, 3, 4)
    small, large = images.feature_sheet(maps, gap=0), images.feature_sheet(maps, gap=0, factor=4)
    assert np.array_equal(large, images.enlarge(small, 4))


WRONG_SHEETS = [
    ({"order": [0, 5]}, r"order \[0, 5\]: channels 0 to 4"),
    ({"order": [-1]}, r"order \[-1\]: channels 0 to 4"),
    ({"order": []}, r"order \[\]: channels 0 to 4"),
    ({"order": [0.5]}, r"order \[0.5\]: channels 0 to 4"),
    ({"columns": 0}, "columns 0: a whole number from 1 up"),
    ({"scale": "max"}, "scale 'max': 'own' or 'common'"),
    ({"gap": -1}, "gap -1: a whole number from 0 up"),
    ({"factor": 1.5}, "factor 1.5: a whole number from 1 up"),
    ({"name": "hot"}, "colour map 'hot'"),
]


@pytest.mark.parametrize("options, words", WRONG_SHEETS)
def test_what_a_feature_sheet_refuses(options, words):
    with pytest.raises(ValueError, match=words):
        images.feature_sheet(noise(5, 3, 4), **options)
    with pytest.raises(ValueError, match=r"maps are \(3, 4\); \(channels, h, w\) is accepted"):
        images.feature_sheet(noise(3, 4))


# ---- files ---------------------------------------------------------------------------------------------------------


def test_png_is_exact():
    for array in (pixels(5, 9), pixels(5, 9)[..., 0]):
        content = images.png(array, text={"Title": "ship"})
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), array)
        assert Image.open(io.BytesIO(content)).text == {"Title": "ship"}
    assert "dpi" not in Image.open(io.BytesIO(images.png(pixels(2, 2)))).info
