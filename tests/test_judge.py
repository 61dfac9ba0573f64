import numpy as np
import pytest
import torch
from torch import nn

import hooklab
from hooklab import cache, cam, erasing, evidence, sanity
from hooklab.cam import METHODS

CLASSES = ("ant", "bee", "cow", "dog")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)
        self.head = nn.Linear(12 * 4 * 6, 4)

    def forward(self, x):
        return self.head(self.pool(self.relu(self.conv2(self.pool(self.relu(self.conv1(x)))))).flatten(1))


LAYER, SIZE = "relu:2", (16, 24)  # the layer's grid is 8 x 12
PIXELS = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def lab():
    return hooklab.Lab(Net(), CLASSES, input_size=(3, *SIZE), mean=(0.5,) * 3, std=(0.25,) * 3, device="cpu")


def test_evidence_is_that_of_the_map_that_explain_gives(lab):
    found = lab.evidence(PIXELS, LAYER, "cow", "hirescam")
    raw = lab.explain(PIXELS, LAYER, 2, "hirescam").raw
    alone = evidence.evidence(lab.probabilities, PIXELS, raw, 2)
    for name in erasing.BASELINES:
        for who in ("map", "random", "centre"):
            for curve in ("deletion", "insertion"):
                mine, theirs = (getattr(one.curves[name][who], curve) for one in (found, alone))
                np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert found.target == 2
    assert found.before == pytest.approx(lab.explain(PIXELS).probabilities[2], rel=1e-5)


def test_yardsticks_are_asked_once_for_all_methods_and_classes(monkeypatch):
    lab = hooklab.Lab(Net(), CLASSES, input_size=(3, *SIZE), device="cpu")
    asked, original = [], lab.predict
    monkeypatch.setattr(lab, "predict", lambda pixels: asked.append(len(pixels)) or original(pixels))
    for target in (0, 1):
        for method in ("gradcam", "layercam"):
            lab.evidence(PIXELS, LAYER, target, method)
    assert len(asked) == 5
    lab.evidence(PIXELS, LAYER, 0, seed=1)
    assert len(asked) == 7


def test_the_cache_knows_how_large_yardsticks_are():
    found = evidence.yardsticks(lambda pictures: np.ones((len(pictures), 10), np.float32), PIXELS, (4, 6))
    arrays = [found.whole, *found.erased.values(), found.random_kept, found.centre_kept]
    arrays += [curve for pair in (*found.random.values(), *found.centre.values()) for curve in pair]
    assert cache.size(found) >= sum(array.nbytes for array in arrays) > 2000


@pytest.mark.parametrize("which", ["hottest", "coldest"])
def test_erase_takes_the_pixels_of_the_map(lab, which):
    found = lab.explain(PIXELS, LAYER, "bee")
    heat = cam.enlarge(torch.tensor(found.raw), SIZE).numpy()
    for percent in (0, 35, 100):
        left = lab.erase(PIXELS, percent, LAYER, "bee", which=which, baseline="grey")
        assert (left.pixels == erasing.erase(PIXELS, heat, percent, which, "grey")).all()
        np.testing.assert_allclose(left.probabilities, lab.probabilities(left.pixels[None])[0], rtol=1e-6)
        assert left.probabilities.sum() == pytest.approx(1)
    assert (lab.erase(PIXELS, 0, LAYER).pixels == PIXELS).all()


def test_cover_takes_what_is_under_the_brush(lab):
    mask = np.zeros(SIZE, bool)
    mask[3:9, 5:20] = True
    left = lab.cover(PIXELS, mask)
    assert (left.pixels == erasing.cover(PIXELS, mask, "blur")).all()
    np.testing.assert_allclose(left.logits, lab.predict(left.pixels[None])[0])


@pytest.mark.parametrize("method", ["gradcam", "hirescam", "xgradcam"])
def test_where_the_method_is_linear_the_difference_is_the_difference_of_the_maps(lab, method):
    """In the gradient; the map of a difference of logits needs no map of its own."""
    found = lab.difference(PIXELS, "ant", "dog", LAYER, method)
    one, two = (lab.explain(PIXELS, LAYER, name, method) for name in ("ant", "dog"))
    np.testing.assert_allclose(found.raw, one.raw - two.raw, rtol=1e-4, atol=1e-7)
    assert found.difference == pytest.approx(one.logits[0] - one.logits[3], rel=1e-5)
    assert (found.target, found.other) == (0, 3)


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].needs != "activations"])
def test_the_difference_is_the_map_of_a_class_whose_logit_is_that_difference(lab, method):
    """A second derivation: a net with one more class, ant minus dog."""
    net = Net()
    weight, bias = net.head.weight.data, net.head.bias.data
    net.head = nn.Linear(weight.shape[1], 5)
    net.head.weight.data = torch.cat([weight, weight[:1] - weight[3:]])
    net.head.bias.data = torch.cat([bias, bias[:1] - bias[3:]])
    other = hooklab.Lab(net, input_size=(3, *SIZE), mean=(0.5,) * 3, std=(0.25,) * 3, device="cpu")
    expected = other.explain(PIXELS, LAYER, 4, method)
    found = lab.difference(PIXELS, 0, 3, LAYER, method)
    np.testing.assert_allclose(found.raw, expected.raw, rtol=1e-3, atol=1e-5 * np.abs(expected.raw).max())
    np.testing.assert_allclose(found.heatmap, expected.heatmap, atol=1e-3)
    assert found.blank == expected.blank


def test_sanity_shuffles_copies_and_leaves_the_lab_as_it_was(lab):
    before = lab.explain(PIXELS, LAYER, 1)
    state = {name: tensor.clone() for name, tensor in lab.model.state_dict().items()}
    told = []
    found = lab.sanity(PIXELS, LAYER, 1, repeats=2, progress=lambda *state: told.append(state))
    assert [step.name for step in found.steps] == ["head", "conv2", "conv1"]
    assert [step.above for step in found.steps] == [True, False, False]
    np.testing.assert_allclose(found.original, before.raw, rtol=1e-6)
    assert len({step.raw.tobytes() for step in found.steps} | {before.raw.tobytes()}) == 4
    assert all(tensor.equal(state[name]) for name, tensor in lab.model.state_dict().items())
    assert (lab.explain(PIXELS, LAYER, 1).raw == before.raw).all()
    assert told[-1] == (7, 7)


def test_stability_looks_at_one_class_throughout(lab):
    found = lab.stability(PIXELS, LAYER, "dog")
    assert found.mean.shape == found.spread.shape == SIZE
    assert 0 <= found.mean.min() <= found.mean.max() <= 1
    assert found.spread.max() > 0
    assert len(found.variants) == 13
    flipped = lab.explain(np.ascontiguousarray(PIXELS[:, ::-1]), LAYER, "dog").raw
    signed = [cam.enlarge(torch.tensor(raw), SIZE).numpy() for raw in (lab.explain(PIXELS, LAYER, 3).raw, flipped)]
    flip = next(variant for variant in found.variants if variant.kind == "flip")
    assert flip.correlation == pytest.approx(sanity.rank_correlation(signed[0], signed[1][:, ::-1]), abs=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda lab: lab.evidence(PIXELS, LAYER, 12), r"target 12: this model has 4 classes \(0 to 3\)"),
        (lambda lab: lab.evidence(PIXELS, "head"), "layer 'head' holds 4: a map needs"),
        (lambda lab: lab.evidence(PIXELS, LAYER, 0, "cam"), "method 'cam': accepted are gradcam"),
        (lambda lab: lab.sanity(PIXELS, "conv9"), "layer 'conv9': this model has no such layer"),
        (lambda lab: lab.stability(PIXELS, LAYER, "elk"), "target 'elk': not one of this model's 4 classes"),
        (lambda lab: lab.erase(PIXELS, 101, LAYER), "percent 101: accepted are numbers from 0 to 100"),
        (lambda lab: lab.cover(PIXELS, np.zeros((3, 3), bool)), r"mask bool \(3, 3\): for this picture"),
        (lambda lab: lab.difference(PIXELS, 1, 1), "target 1 and other 1: two different classes are accepted"),
        (lambda lab: lab.difference(PIXELS, 0, 4), r"target 4: this model has 4 classes \(0 to 3\)"),
        (lambda lab: lab.difference(PIXELS, 0, 1, LAYER, "eigencam"), "'eigencam' makes the same map for every class"),
    ],
)
def test_E11_E12_bad_values_are_named_before_anything_runs(lab, call, message):
    with pytest.raises(ValueError, match=message):
        call(lab)


@pytest.mark.parametrize("value", [0, 128, 255])
@pytest.mark.parametrize("method", METHODS)
def test_E5_a_constant_picture_gets_an_answer(lab, method, value):
    flat = np.full((*SIZE, 3), value, np.uint8)
    found = lab.evidence(flat, LAYER, 0, method)
    assert np.isfinite([found.before, *found.drop.values(), found.curves["blur"]["map"].deletion_area]).all()
    np.testing.assert_allclose(found.curves["blur"]["map"].deletion, found.before, rtol=1e-4)  # its blur is itself
