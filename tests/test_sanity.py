import numpy as np
import pytest
import torch
from torch import nn

from hooklab import cam, hooks, sanity
from hooklab.erasing import gaussian_matrix


def smooth(seed, size=(12, 16)):
    raw = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))
    return cam.heatmap(raw, size).numpy()


# -- how alike two maps are


@pytest.mark.parametrize("seed", range(4))
def test_rank_correlation_is_pearsons_of_ranks_with_ties_shared(seed):
    a, b = np.random.default_rng(seed).integers(0, 5, (2, 6, 7)).astype(float)

    def ranks(values):  # by the definition: how many are smaller, and half of the equal ones
        flat = values.ravel()
        return [(flat < v).sum() + ((flat == v).sum() + 1) / 2 for v in flat]

    expected = np.corrcoef(ranks(a), ranks(b))[0, 1]
    assert sanity.rank_correlation(a, b) == pytest.approx(expected)
    assert sanity.rank_correlation(np.exp(a), b) == pytest.approx(expected)
    assert sanity.rank_correlation(-a, b) == pytest.approx(-expected)
    assert sanity.rank_correlation(a, a) == 1


def test_a_flat_map_agrees_with_nothing():
    assert sanity.rank_correlation(np.ones((3, 4)), smooth(0, (3, 4))) == 0
    assert sanity.rank_correlation(np.ones((3, 4)), np.ones((3, 4))) == 0


def test_ssim_is_its_formula_pixel_by_pixel():
    a, b = smooth(0), smooth(1)
    rows, columns = gaussian_matrix(12, 1.5), gaussian_matrix(16, 1.5)
    values = []
    for i in range(12):
        for j in range(16):
            w = np.outer(rows[i], columns[j])
            ma, mb = (w * a).sum(), (w * b).sum()
            va, vb, cov = (w * (a - ma) ** 2).sum(), (w * (b - mb) ** 2).sum(), (w * (a - ma) * (b - mb)).sum()
            values.append((2 * ma * mb + 1e-4) * (2 * cov + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)))
    assert sanity.ssim(a, b) == pytest.approx(np.mean(values))
    assert sanity.ssim(b, a) == pytest.approx(sanity.ssim(a, b))
    assert sanity.ssim(a, a) == pytest.approx(1)
    assert sanity.ssim(np.zeros((3, 4)), np.ones((3, 4))) == pytest.approx(1e-4 / (1 + 1e-4))


# -- randomisation of the weights


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.relu, self.pool = nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(64, 5)
        for norm in (self.norm1, self.norm2):
            for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
                tensor.uniform_(0.5, 1.5)

    def forward(self, images):
        x = self.relu(self.norm1(self.conv1(images)))
        return self.head(self.pool(self.relu(self.norm2(self.conv2(x)))).flatten(1))


IMAGE = torch.randn(1, 3, 8, 10, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def net():
    return Net().eval()


@pytest.fixture
def rows():
    """Every call of every module, in execution order."""
    return ["conv1", "norm1", "relu:1", "conv2", "norm2", "relu:2", "pool", "head.input", "head"]


def maps_by(method, layer="relu:2"):
    method = cam.METHODS[method]

    def raw_of(model):
        def look():
            with hooks.record(model, layer) as seen:
                logits = model(IMAGE)
                (gradients,) = torch.autograd.grad(logits[0, 2], seen[layer])
            activations = seen[layer][0].detach()
            return method.function(activations, *([gradients[0]] if method.needs == "gradients" else [])).numpy()

        return look

    return raw_of


def test_a_block_is_a_layer_with_its_normalisation_in_execution_order(net, rows):
    blocks = sanity.blocks(net, rows)
    assert list(blocks) == ["conv1", "conv2", "head"]
    assert [len(tensors) for tensors in blocks.values()] == [6, 6, 2]  # weight and bias, and four of the norm's


def test_parts_that_are_never_called_go_with_the_module_that_holds_them():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.zeros(1, 1, 8))
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            x = x + self.token
            return self.head(self.attention(x, x, x)[0].mean(1))

    model = Attends()
    blocks = sanity.blocks(model, ["attention.input", "attention", "head"])
    assert list(blocks) == ["attention", "head", ""]
    found = {tensor.data_ptr() for tensors in blocks.values() for tensor in tensors}
    assert found == {parameter.data_ptr() for parameter in model.parameters()}


def test_the_cascade_goes_down_from_the_top_and_keeps_every_value(net, rows):
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    names = []
    for name in sanity.cascade(net, rows, seed=1):
        names.append(name)
        changed = {key.split(".")[0] for key, tensor in net.state_dict().items() if not tensor.equal(before[key])}
        partners = {"conv2": "norm2", "conv1": "norm1"}
        assert changed == {*names, *(partners[n] for n in names if n in partners)}
    assert names == ["head", "conv2", "conv1"]
    for key, tensor in net.state_dict().items():
        assert tensor.flatten().sort().values.equal(before[key].flatten().sort().values)


def test_the_cascade_follows_its_seed(rows):
    runs = []
    for seed in (1, 1, 2):
        net = Net()
        list(sanity.cascade(net, rows, seed))
        runs.append(net.conv2.weight)
    assert runs[0].equal(runs[1])
    assert not runs[0].equal(runs[2])


def test_gradcam_depends_on_the_weights(net, rows):
    found = sanity.sanity(net, rows, "relu:2", maps_by("gradcam"), (8, 10))
    assert found.passed
    assert [(step.name, step.above) for step in found.steps] == [("head", True), ("conv2", False), ("conv1", False)]
    assert all(-1 <= step.correlation <= 1 and step.ssim < 0.9 for step in found.steps)
    assert found.steps[0].raw.shape == (8, 10)


def test_eigencam_does_not_look_at_the_class(net, rows):
    found = sanity.sanity(net, rows, "relu:2", maps_by("eigencam"), (8, 10))
    assert found.steps[0].correlation == pytest.approx(1)
    assert found.steps[0].ssim == pytest.approx(1)
    assert not found.sees_class
    assert not found.passed


def test_an_edge_detector_fails(net, rows):
    edges = IMAGE[0].mean(0).diff(dim=1, append=torch.zeros(8, 1)).abs().numpy()
    found = sanity.sanity(net, rows, "relu:2", lambda model: lambda: edges, (8, 10))
    assert (found.sees_class, found.sees_weights, found.passed) == (False, False, False)
    assert all(step.correlation == pytest.approx(1) for step in found.steps)


def test_a_flat_map_does_not_pass(net, rows):
    found = sanity.sanity(net, rows, "relu:2", lambda model: lambda: np.zeros((8, 10)), (8, 10), repeats=1)
    assert not found.passed


def test_the_model_itself_is_left_alone_and_progress_is_told(net, rows):
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    told = []
    sanity.sanity(net, rows, "conv2", maps_by("gradcam", "conv2"), (8, 10), 2, lambda *state: told.append(state))
    assert all(tensor.equal(before[name]) for name, tensor in net.state_dict().items())
    assert told == [(done, 7) for done in range(2, 8)]


def test_the_similarities_are_means_over_the_repeats(net, rows):
    found = sanity.sanity(net, rows, "relu:2", maps_by("hirescam"), (8, 10), repeats=3)
    expected = []
    for seed in range(3):
        shuffled = Net().eval()
        *_, last = sanity.cascade(shuffled, rows, seed)
        expected.append(sanity.rank_correlation(found.original, maps_by("hirescam")(shuffled)()))
    assert last == found.steps[-1].name
    assert found.steps[-1].correlation == pytest.approx(np.mean(expected))


def test_an_unknown_layer_is_named(net, rows):
    with pytest.raises(ValueError, match="layer 'conv9': not one of conv1, "):
        sanity.sanity(net, rows, "conv9", maps_by("gradcam"), (8, 10))


# -- small changes of the picture


def spot():
    """A smooth bright spot off the middle, on black."""
    y, x = np.mgrid[:32, :48]
    bright = 250 * np.exp(-((y - 12) ** 2 + (x - 20) ** 2) / 30)
    return np.repeat(np.rint(bright).astype(np.uint8)[..., None], 3, 2)


def brightness(pixels):
    return pixels.mean(2).astype(np.float32)


def test_a_map_that_moves_with_the_picture_is_stable():
    found = sanity.stability(brightness, spot(), noise=0)
    assert found.spread.max() < 1e-6
    np.testing.assert_allclose(found.mean, brightness(spot()) / 250, atol=1e-6)
    assert found.agreement == pytest.approx(1)
    assert [variant.kind for variant in found.variants] == ["shift"] * 8 + ["flip"] + ["noise"] * 4
    assert {variant.shift for variant in found.variants[:8]} == {
        (a, b) for a in (-2, 0, 2) for b in (-3, 0, 3) if a or b
    }


def test_a_map_that_stays_where_it_is_disagrees_when_the_picture_moves():
    fixed = brightness(spot())
    found = sanity.stability(lambda pixels: fixed, spot())
    by_kind = {kind: [v.correlation for v in found.variants if v.kind == kind] for kind in ("shift", "flip", "noise")}
    assert min(by_kind["noise"]) == pytest.approx(1)
    assert max(by_kind["shift"]) < 0.999
    assert by_kind["flip"][0] < 0.9
    assert found.spread.max() > 0.1


def test_noise_spreads_a_map_that_follows_every_pixel():
    still, noisy = (sanity.stability(brightness, spot(), noise) for noise in (0, 30))
    assert noisy.agreement < still.agreement
    assert noisy.spread.mean() > 0.01


def test_shifted_moves_down_and_right_and_repeats_the_border():
    grid = np.arange(12).reshape(3, 4)
    assert sanity.shifted(grid, 1, 0).tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]
    assert sanity.shifted(grid, 0, -2).tolist() == [[2, 3, 3, 3], [6, 7, 7, 7], [10, 11, 11, 11]]


@pytest.mark.parametrize("raw", [np.zeros((4, 4)), -np.ones((4, 4))])
def test_E5_blank_maps_are_finite(raw):
    found = sanity.stability(lambda pixels: raw, np.full((9, 12, 3), 128, np.uint8))
    assert np.isfinite([*found.mean.ravel(), *found.spread.ravel(), found.agreement]).all()
    assert found.mean.max() == 0
