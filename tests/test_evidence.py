import numpy as np
import pytest
import torch

from hooklab import cam
from hooklab import erasing as er
from hooklab import evidence as ev

WHITE, BLACK = 255, 0


def brightness(pictures):
    """A model that can be reckoned by hand: class 0 is the mean brightness of a picture, class 1 is the rest."""
    bright = pictures.reshape(len(pictures), -1).mean(1) / 255
    return np.stack([bright, 1 - bright], 1)


def half_white(height=20, width=10):
    pixels = np.full((height, width, 3), BLACK, np.uint8)
    pixels[:, : width // 2] = WHITE
    return pixels


def noisy(seed=0, size=(12, 16)):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


# -- erasing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", er.BASELINES)
@pytest.mark.parametrize("which", ["hottest", "coldest"])
def test_erasing_0_and_100_percent_is_exact(baseline, which):
    pixels, heat = noisy(), np.random.default_rng(1).standard_normal((12, 16))
    assert (er.erase(pixels, heat, 0, which, baseline) == pixels).all()
    assert (er.erase(pixels, heat, 100, which, baseline) == er.baseline_picture(pixels, baseline)).all()


@pytest.mark.parametrize("percent", [0, 0.3, 10, 25, 50, 62.5, 99, 100, np.float32(20), np.int64(30)])
def test_erasing_takes_the_hottest_pixels_and_no_others(percent):
    pixels, heat = noisy(size=(10, 20)), np.random.default_rng(1).permutation(200).reshape(10, 20).astype(float)
    count = round(float(percent) * 2)
    gone = (er.erase(pixels, heat, percent, "hottest", "grey") != pixels).any(2)
    assert not (gone & (heat < 200 - count)).any()
    assert (er.erase(pixels, heat, percent, "hottest", "grey")[heat >= 200 - count] == 128).all()
    assert (er.erase(pixels, heat, percent, "coldest", "grey")[heat < count] == 128).all()
    assert (er.erase(pixels, heat, percent, "coldest") == er.erase(pixels, -heat, percent, "hottest")).all()


def test_a_signed_map_is_ordered_below_zero_too():
    heat = np.array([[-3.0, -1.0], [-2.0, 5.0]])
    assert er.order(heat).tolist() == [3, 1, 2, 0]


def test_ties_do_not_favour_any_side_of_the_picture():
    """All of a flat map is one tie. Whatever is erased first, no half of the picture holds nearly all of it."""
    ranked = er.order(np.zeros((32, 32)))
    assert sorted(ranked) == list(range(1024))
    assert (ranked == er.order(np.full((32, 32), 7.0))).all()
    for percent in (10, 25, 50):
        gone = np.zeros(1024, bool)
        gone[ranked[: 1024 * percent // 100]] = True
        gone = gone.reshape(32, 32)
        for half in (gone[:16], gone[16:], gone[:, :16], gone[:, 16:]):
            assert 0.15 < half.sum() / gone.sum() < 0.85


def test_a_brush_covers_what_is_under_it():
    pixels, mask = noisy(), np.zeros((12, 16), bool)
    mask[2:5, 3:9] = True
    left = er.cover(pixels, mask, "grey")
    assert (left[2:5, 3:9] == 128).all()
    assert (left[~mask] == pixels[~mask]).all()
    assert (er.cover(pixels, ~mask & mask) == pixels).all()


def test_a_blurred_picture_keeps_its_brightness_and_loses_its_detail():
    flat = np.full((9, 13, 3), (10, 200, 77), np.uint8)
    assert (er.baseline_picture(flat) == flat).all()  # nothing leaks in from outside
    pixels = noisy(size=(32, 32))
    blurred = er.baseline_picture(pixels).astype(float)
    assert blurred.std() < pixels.std() / 8
    assert abs(blurred.mean() - pixels.mean()) < 2
    turned = er.baseline_picture(pixels.transpose(1, 0, 2))
    assert (turned == er.baseline_picture(pixels).transpose(1, 0, 2)).all()


def test_the_blur_is_a_gaussian():
    matrix = er.gaussian_matrix(5, 1.5)
    weights = np.exp(-(np.array([2, 1, 0, 1, 2]) ** 2) / 4.5)
    np.testing.assert_allclose(matrix[2], weights / weights.sum())
    np.testing.assert_allclose(matrix.sum(1), 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, h: er.erase(p, h, -1), "percent -1: accepted are numbers from 0 to 100"),
        (lambda p, h: er.erase(p, h, 100.5), "percent 100.5: accepted"),
        (lambda p, h: er.erase(p, h, float("nan")), "percent nan: accepted"),
        (lambda p, h: er.erase(p, h, "20"), "percent '20': accepted"),
        (lambda p, h: er.erase(p, h, True), "percent True: accepted"),
        (lambda p, h: er.erase(p, h, None), "percent None: accepted"),
        (lambda p, h: er.erase(p, h, 20, "warmest"), "which 'warmest': accepted are 'hottest' and 'coldest'"),
        (lambda p, h: er.erase(p, h, 20, "hottest", "pink"), "baseline 'pink': accepted are 'blur' and 'grey'"),
        (lambda p, h: er.erase(p, h.T, 20), r"heat \(16, 12\): for this picture a map is \(12, 16\)"),
        (lambda p, h: er.erase(p, h * np.nan, 20), r"heat \(12, 16\): a map is \(height, width\) of finite numbers"),
        (lambda p, h: er.erase(p / 255, h, 20), r"pixels float64 \(12, 16, 3\): a picture is uint8"),
        (lambda p, h: er.erase(p[..., 0], h, 20), r"pixels uint8 \(12, 16\): a picture is uint8"),
        (lambda p, h: er.cover(p, h), r"mask float64 \(12, 16\): for this picture a mask is bool \(12, 16\)"),
        (lambda p, h: er.random_maps((3, 4), 7), "number 7: random maps come in pairs"),
        (lambda p, h: ev.evidence(brightness, p, h, 2), r"target 2: this model has 2 classes \(0 to 1\)"),
        (lambda p, h: ev.evidence(brightness, p, h, -1), r"target -1: this model has 2 classes \(0 to 1\)"),
        (lambda p, h: ev.evidence(brightness, p, h[0], 0), r"raw \(16,\): a map is"),
        (lambda p, h: ev.evidence(brightness, p, h, 0).summary(120), "percent 120: accepted"),
    ],
)
def test_E11_bad_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(noisy(), np.random.default_rng(1).standard_normal((12, 16)))


# -- curves ----------------------------------------------------------------------------------------------


def test_curves_of_a_model_that_can_be_reckoned_by_hand():
    """Half white, half black; the map finds the white half. With grey 128 = g * 255 deletion goes 1/2 -> g/2 -> g."""
    pixels, g = half_white(), 128 / 255
    raw = (pixels[..., 0] == WHITE).astype(np.float32)
    curves = ev.evidence(brightness, pixels, raw, target=0).curves["grey"]["map"]
    f = np.arange(0, 101, 5) / 100
    assert len(f) >= 20
    np.testing.assert_allclose(curves.fractions, f)
    deletion = np.where(f <= 0.5, 0.5 - f * (1 - g), g / 2 + (f - 0.5) * g)
    insertion = np.where(f <= 0.5, g + f * (1 - g), 0.5 + g / 2 - (f - 0.5) * g)
    np.testing.assert_allclose(curves.deletion, deletion, rtol=1e-6)
    np.testing.assert_allclose(curves.insertion, insertion, rtol=1e-6)
    trapezoid = getattr(np, "trapezoid", None) or np.trapz
    np.testing.assert_allclose(curves.deletion_area, trapezoid(deletion, f))
    np.testing.assert_allclose(curves.insertion_area, trapezoid(insertion, f))


def test_drop_and_increase_of_a_model_that_can_be_reckoned_by_hand():
    """Seen through the map the white half stays white and the black half turns grey: brighter than before."""
    pixels, g = half_white(), 128 / 255
    white = (pixels[..., 0] == WHITE).astype(np.float32)
    found, missed = (ev.evidence(brightness, pixels, raw, target=0) for raw in (white, 1 - white))
    assert (found.drop["map"], found.increase["map"]) == (0, 1)  # 1/2 -> 1/2 + g/2
    np.testing.assert_allclose(missed.drop["map"], 1 - g, rtol=1e-6)  # 1/2 -> g/2
    assert missed.increase["map"] == 0
    assert found.before == 0.5


def test_a_true_map_beats_the_yardsticks_and_its_negative_loses():
    pixels = half_white()
    raw = (pixels[::4, ::2, 0] == WHITE).astype(np.float32) - 0.5  # the layer's grid is 5 x 5
    true, false = (ev.evidence(brightness, pixels, sign * raw, 0).curves["grey"] for sign in (1, -1))
    assert true["map"].deletion_area < true["random"].deletion_area < false["map"].deletion_area
    assert true["map"].insertion_area > true["random"].insertion_area > false["map"].insertion_area
    assert true["map"].deletion_area < true["centre"].deletion_area


@pytest.mark.parametrize("baseline", er.BASELINES)
def test_random_curves_are_the_mean_over_all_random_maps(baseline):
    """The second derivation: every random map, negatives too, taken through the whole of `evidence` by itself."""
    pixels = noisy(size=(32, 32))
    pixels[:9, :20] = 250
    single = [
        ev.evidence(brightness, pixels, raw, 1, step=ev.YARDSTICK_STEP) for raw in er.random_maps((4, 5), 8, seed=3)
    ]
    against = ev.yardsticks(brightness, pixels, (4, 5), seed=3)
    mine = ev.evidence(brightness, pixels, np.ones((4, 5)), 1, against)
    assert len(single) >= 8
    for curve in ("deletion", "insertion"):
        expected = np.mean([getattr(one.curves[baseline]["map"], curve) for one in single], axis=0)
        # not exact: a pixel in a corner, where enlarging makes ties, is not always last when its negative is first
        np.testing.assert_allclose(getattr(mine.curves[baseline]["random"], curve), expected, atol=3e-4)
    np.testing.assert_allclose(mine.drop["random"], np.mean([one.drop["map"] for one in single]), rtol=1e-6)
    np.testing.assert_allclose(mine.increase["random"], np.mean([one.increase["map"] for one in single]))


def test_random_maps_are_as_coarse_as_the_layer_and_follow_the_seed():
    maps = er.random_maps((4, 6), 8, seed=1)
    assert maps.shape == (8, 4, 6)
    assert (maps[::2] == -maps[1::2]).all()
    assert (maps == er.random_maps((4, 6), 8, seed=1)).all()
    assert len({m.tobytes() for m in (*maps, *er.random_maps((4, 6), 8, seed=2))}) == 16


def test_the_centre_is_where_the_gaussian_is_hottest():
    heat = er.centred((20, 12))
    assert heat.shape == (20, 12)
    assert 0 < heat.min() < heat.max() <= 1
    np.testing.assert_allclose(heat, heat[::-1, ::-1], rtol=1e-6)
    np.testing.assert_allclose(heat[0, 5] / heat[9, 5], np.exp(-8 * (0.475**2 - 0.025**2)), rtol=1e-5)


def test_one_batch_for_the_map_and_one_for_the_yardsticks():
    sizes = []

    def predict(pictures):
        sizes.append(len(pictures))
        return brightness(pictures)

    pixels = noisy()
    against = ev.yardsticks(predict, pixels, (3, 4))
    for target in (0, 1):  # the yardsticks serve every class
        ev.evidence(predict, pixels, np.eye(3, 4), target, against)
    points, coarse = 100 // ev.STEP - 1, 100 // ev.YARDSTICK_STEP - 1
    rivals = er.RANDOM_MAPS // 2 + 1
    assert sizes == [3 + er.RANDOM_MAPS + 1 + 2 * rivals * 2 * coarse, *[1 + 2 * 2 * points] * 2]


def test_given_yardsticks_are_those_that_would_be_made():
    pixels, raw = noisy(), np.random.default_rng(5).standard_normal((3, 4))
    one = ev.evidence(brightness, pixels, raw, 0)
    two = ev.evidence(brightness, pixels, raw, 0, ev.yardsticks(brightness, pixels, (3, 4)))
    np.testing.assert_equal(one.summary(20), two.summary(20))
    assert one.drop == two.drop


def test_the_summary_holds_the_figures_of_the_sentence():
    pixels = noisy(size=(32, 32))
    raw = pixels[::4, ::4, 0] - 128.0
    found = ev.evidence(brightness, pixels, raw, 0)
    heat = cam.enlarge(torch.from_numpy(raw), (32, 32)).numpy()
    for percent in (0, 20, 100):
        summary = found.summary(percent, "blur")
        left = er.erase(pixels, heat, percent, "hottest", "blur")
        np.testing.assert_allclose(summary.after, brightness(left[None])[0, 0], rtol=1e-6)
        assert summary.before == brightness(pixels[None])[0, 0]


@pytest.mark.parametrize("raw", [np.zeros((4, 4)), np.full((4, 4), -1.0), np.full((4, 4), 3.0)])
@pytest.mark.parametrize("pixels", [noisy(), np.full((12, 16, 3), 77, np.uint8), np.full((12, 16, 3), 0, np.uint8)])
def test_E5_blank_maps_and_constant_pictures_give_finite_figures(raw, pixels):
    found = ev.evidence(brightness, pixels, raw, 0)
    assert found.blank == (raw.max() <= 0)
    figures = [*found.drop.values(), *found.increase.values()]
    for curves in found.curves.values():
        for curve in curves.values():
            figures += [*curve.deletion, *curve.insertion, curve.deletion_area, curve.insertion_area]
    assert np.isfinite(figures).all()
    assert min(figures) >= 0
    assert max(figures) <= 1


def test_several_maps_in_one_batch_are_each_by_itself():
    pixels, raws = noisy(), np.random.default_rng(5).standard_normal((3, 4, 5))
    together = ev.compare(brightness, pixels, raws, 1)
    for one, raw in zip(together, raws, strict=True):
        alone = ev.evidence(brightness, pixels, raw, 1)
        assert (one.summary(), one.drop, one.increase) == (alone.summary(), alone.drop, alone.increase)
        for name in er.BASELINES:
            assert (one.curves[name]["map"].insertion == alone.curves[name]["map"].insertion).all()
