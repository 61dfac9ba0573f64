"""Lab: one model, many users. Oracles are closed forms, a second derivation, or the serial result."""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from nets import NETS, Reused, torchvision_net
from PIL import Image
from torch import nn

from hooklab import cam, data, hooks, models
from hooklab.edits import HOOKS
from hooklab.lab import Lab
from hooklab.replicas import Pool, replica


def picture(height=32, width=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def simple_cnn():
    torch.manual_seed(0)
    return models.build("simple_cnn")


class Gap(nn.Module):
    """The last block's maps, averaged, then one Linear head."""

    def __init__(self, classes=7, scale=1.0):
        super().__init__()
        torch.manual_seed(3)
        self.conv1, self.conv2, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Linear(6, classes)
        self.fc.weight.data *= scale

    def forward(self, x):
        return self.fc(self.conv2(self.conv1(x).relu()).mean((2, 3)))


@pytest.fixture(autouse=True)
def one_thread():
    """Small nets gain nothing from several, and lose much where other programs run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def lab():
    return Lab(simple_cnn(), data.CLASSES, input_size=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3, device="cpu")


def small(net, size=(3, 20, 28), **more):
    return Lab(net, input_size=size, device="cpu", **more)


# -- layers -------------------------------------------------------------------------------------------------------


def test_layers_of_simple_cnn(lab):
    """One row a call, in execution order; results of functions are inputs, with a label from autograd."""
    rows = [(row.name, row.label, row.type, row.shape, row.parameters, row.spatial) for row in lab.layers()]
    assert rows == [
        ("conv1", "conv1", "Conv2d", (32, 32, 32), 896, True),
        ("pool:1.input", "conv1 after relu", "relu", (32, 32, 32), 0, True),
        ("pool:1", "pool:1", "MaxPool2d", (32, 16, 16), 0, True),
        ("conv2", "conv2", "Conv2d", (64, 16, 16), 18496, True),
        ("pool:2.input", "conv2 after relu", "relu", (64, 16, 16), 0, True),
        ("pool:2", "pool:2", "MaxPool2d", (64, 8, 8), 0, True),
        ("conv3", "conv3", "Conv2d", (128, 8, 8), 73856, True),
        ("pool:3.input", "conv3 after relu", "relu", (128, 8, 8), 0, True),
        ("pool:3", "pool:3", "MaxPool2d", (128, 4, 4), 0, True),
        ("fc1.input", "pool:3 after reshape", "reshape", (2048,), 0, False),
        ("fc1", "fc1", "Linear", (512,), 1049088, False),
        ("fc2.input", "fc1 after relu", "relu", (512,), 0, False),
        ("fc2", "fc2", "Linear", (10,), 5130, False),
    ]


@pytest.mark.parametrize("inplace", [False, True])
def test_layers_between_modules(inplace):
    rows = small(Reused(inplace)).layers()
    assert [(row.name, row.label) for row in rows if row.name != row.label] == [
        ("pool:1.input", "conv1 after relu"),
        ("relu:2.input", "conv3 and relu:1 after add"),
        ("fc.input", "pool:2 after mean"),
    ]
    assert [row.name for row in rows if row.default] == ["pool:2"]


@pytest.mark.parametrize("name", NETS)
def test_layers_of_torchvision_nets(name):
    """Every name can be recorded and has the shape that its row says; no input is listed that a module returned."""
    net = torchvision_net(name)
    found = small(net, (3, 32, 40)).layers()
    names = [row.name for row in found]
    assert len(set(names)) == len(names)
    x = torch.rand(1, 3, 32, 40)
    with hooks.record(net, names, gradients=False) as seen:
        net(x)
    assert all(seen[row.name].shape[1:] == row.shape for row in found)
    for row in found:
        if row.name.endswith(".input") and row.type != "cat":  # DenseNet also concatenates one tensor with nothing
            twins = [other for other in names if other != row.name and torch.equal(seen[other], seen[row.name])]
            assert all(names.index(other) > names.index(row.name) for other in twins), (row.name, twins)


def test_an_input_that_a_module_returned_is_not_listed_but_accepted(lab):
    assert "conv2.input" not in [row.name for row in lab.layers()]
    one, other = lab.explain(3, "conv2.input"), lab.explain(3, "pool:1")
    assert np.array_equal(one.raw, other.raw) and one.layer == "conv2.input"


LAYERS_REFUSED = [
    ("conv9", "layer 'conv9': this model has no such layer; the nearest are conv"),
    ("pool", "layer 'pool': this module is called 3 times; use pool:1, pool:2, pool:3"),
    ("pool.input", "called 3 times; use pool:1.input, pool:2.input, pool:3.input"),
    ("pool:4", "layer 'pool:4': this model has no such layer; the nearest are pool:"),
    ("", "layer ''"),
    (3, "layer 3"),
    ("layer4", "no such layer"),
    ("fc1", "layer 'fc1' holds 512: a map needs (C, h, w) with h * w > 1, as in pool:3"),
    ("fc2.input", "layer 'fc2.input' holds 512"),
]


@pytest.mark.parametrize(("layer", "message"), LAYERS_REFUSED)
def test_layers_refused(lab, layer, message):
    for ask in (lab.explain, lab.explain_classes):
        with pytest.raises(ValueError) as error:
            ask(0, layer=layer)
        assert message in str(error.value)


def test_E4_the_default_is_the_last_spatial_layer_at_the_real_input_size():
    net = torchvision_net("resnet18")
    small_, large = small(net, (3, 32, 32)), small(net, (3, 64, 64))
    assert {row.name: row.spatial for row in small_.layers()}["layer4"] is False
    assert [row.name for row in small_.layers() if row.default] == ["layer3"]
    assert [row.name for row in large.layers() if row.default] == ["layer4"]
    assert small_.explain(0).raw.shape == large.explain(0).raw.shape == (2, 2)
    with pytest.raises(ValueError, match=r"layer 'layer4' holds 512 x 1 x 1: a map needs .* as in layer3"):
        small_.explain(0, "layer4")
    shipped = Lab("simple_cnn", device="cpu")
    assert [row.name for row in shipped.layers() if row.default] == ["pool:3.input"]


# -- maps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_E17_on_a_gap_net_grad_cam_is_cam(scale):
    """fc.weight[c] / (h w) per channel: on logits, so that a confident picture's map does not vanish."""
    net = Gap(scale=scale)
    lab = small(net)
    with torch.no_grad():
        fitted = lab.prepare(5)
        maps = net.conv2(net.conv1(data.normalize(fitted.pixels, *lab_normalisation(lab))).relu())[0]  # (6, h, w)
        expected = torch.einsum("kc,chw->khw", net.fc.weight, maps) / maps[0].numel()
    for target in range(7):
        found = lab.explain(5, "conv2", target)
        np.testing.assert_allclose(found.raw, expected[target], rtol=1e-5, atol=1e-5 * scale)
        np.testing.assert_allclose(found.raw.sum() + net.fc.bias[target].item(), found.logits[target], rtol=1e-4)
    if scale > 1:
        assert found.probabilities.max() > 0.999 and np.abs(found.raw).max() > 0.1
    np.testing.assert_allclose(lab.explain_classes(5, "conv2"), expected, rtol=1e-5, atol=1e-5 * scale)


def lab_normalisation(lab):
    return lab.inputs.mean, lab.inputs.std


def test_an_explanation_holds_together(lab):
    found = lab.explain(1218, target="ship")
    assert (found.target, found.layer, found.method) == (8, "pool:3", "gradcam")
    assert found.predicted == found.logits.argmax() and found.logits.shape == (10,)
    np.testing.assert_allclose(found.probabilities, np.exp(found.logits) / np.exp(found.logits).sum(), rtol=1e-5)
    np.testing.assert_array_equal(found.logits, lab.predict(found.input[None])[0])
    assert found.input.dtype == np.uint8 and np.array_equal(found.input, np.asarray(data.test_image(1218)[0]))
    assert found.raw.dtype == found.heatmap.dtype == np.float32 and found.heatmap.shape == (32, 32)
    heat = F.interpolate(torch.tensor(found.raw)[None, None].relu(), (32, 32), mode="bilinear")[0, 0]
    np.testing.assert_allclose(found.heatmap, heat / heat.max() if heat.max() > 0 else heat, atol=1e-6)
    assert found.blank == (found.raw.max() <= 0)
    assert lab.explain(1218).target == found.predicted
    for array in (found.logits, found.probabilities, found.raw, found.heatmap, found.input):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.parametrize("method", cam.METHODS)
@pytest.mark.parametrize("layer", ["conv2", "pool:3.input"])
def test_all_classes_and_all_layers_are_the_single_maps(lab, method, layer):
    classes, every = lab.explain_classes(7, layer, method), lab.explain_layers(7, 4, "gradcam")
    assert classes.shape == (10, *lab.explain(7, layer).raw.shape) and classes.dtype == np.float32
    for target in (0, 4, 9):
        single = lab.explain(7, layer, target, method).raw
        np.testing.assert_allclose(classes[target], single, rtol=1e-4, atol=1e-6 * np.abs(single).max())
    assert list(every) == [row.name for row in lab.layers() if row.spatial]
    np.testing.assert_allclose(every[layer], lab.explain(7, layer, 4).raw, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("method", cam.METHODS)
def test_all_layers_with_every_method(method):
    lab = small(Reused())
    every = lab.explain_layers(3, method=method)
    for name, raw in every.items():
        np.testing.assert_allclose(raw, lab.explain(3, name, method=method).raw, rtol=1e-3, atol=1e-6, err_msg=name)
    assert len(every) == 9


def test_features_are_the_activations_and_grad_cams_weights(lab):
    net = simple_cnn()
    x = data.normalize(lab.prepare(9).pixels, (0.5,) * 3, (0.5,) * 3)
    maps = F.relu(net.conv1(x)).detach().requires_grad_()
    rest = net.pool(F.relu(net.conv2(net.pool(maps))))
    logits = net.fc2(F.relu(net.fc1(net.pool(F.relu(net.conv3(rest))).flatten(1))))
    (gradient,) = torch.autograd.grad(logits[0, 6], maps)
    found = lab.features(9, "pool:1.input", "frog")
    np.testing.assert_allclose(found.maps, maps[0].detach(), atol=1e-6)
    np.testing.assert_allclose(found.weights, gradient[0].mean((1, 2)), rtol=1e-4, atol=1e-9)
    share = found.weights * found.maps.mean((1, 2))
    assert sorted(found.order) == list(range(32)) and (np.diff(share[found.order]) <= 0).all()
    raw = lab.explain(9, "pool:1.input", "frog").raw
    np.testing.assert_allclose(np.einsum("c,chw->hw", found.weights, found.maps), raw, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("sign", [0.0, -1.0])
def test_E5_no_positive_evidence_is_said_and_everything_is_finite(sign):
    """All weights zero: 0 / 0; non-negative maps with negative weights: an all-negative map."""
    net = Gap()
    net.conv2.weight.data.abs_(), net.conv2.bias.data.zero_(), net.fc.weight.data.abs_().mul_(sign)
    lab = small(net)
    for method in cam.METHODS:
        found = lab.explain(picture(), "conv2", 2, method)
        assert all(np.isfinite(array).all() for array in (found.raw, found.heatmap, found.probabilities))
        if method in ("gradcam", "gradcam++", "hirescam", "xgradcam", "layercam", "ablationcam"):
            assert found.blank and not found.heatmap.any() and (found.raw <= 0).all()
    assert found.blank == (not found.heatmap.any())


@pytest.mark.parametrize("value", [0, 128, 255])
def test_E5_constant_pictures(lab, value):
    for method in cam.METHODS:
        found = lab.explain(np.full((32, 32, 3), value, np.uint8), method=method)
        assert np.isfinite(found.raw).all() and np.isfinite(found.heatmap).all()
        assert found.heatmap.min() >= 0 and (found.heatmap.max() == 0 if found.blank else found.heatmap.max() == 1)


def test_E5_weights_that_are_not_numbers_are_named():
    net = Gap()
    net.fc.bias.data[0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        small(net).explain(0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_E6_inside_an_evaluation_loop(mode):
    expected = small(Gap()).explain(1, "conv2", 3)
    net = Gap().eval().requires_grad_(False)
    with mode():
        lab = small(net)
        found = lab.explain(1, "conv2", 3)
        many, run = lab.explain_classes(1, "conv2"), lab.run(1, layer="conv2", target=3)
        silenced = lab.channel_effects(1, "conv2", 3)
        assert not torch.is_grad_enabled()
    assert np.array_equal(found.raw, expected.raw) and np.array_equal(found.logits, expected.logits)
    np.testing.assert_allclose(many[3], expected.raw, rtol=1e-5)
    np.testing.assert_allclose(run.raw_before, expected.raw, rtol=1e-5)
    assert silenced.effects.shape == (6,)


@pytest.mark.parametrize("shape", [(20, 31), (31, 20), (9, 40)])
def test_E13_height_and_width_are_not_swapped(shape):
    """A net with transposed kernels on the transposed picture gives the transposed maps."""
    one, other = Reused(), Reused()
    for name in ("conv1", "conv2", "conv3"):
        getattr(other, name).weight.data = getattr(one, name).weight.data.transpose(2, 3)
    image = picture(*shape)
    upright, turned = small(one, (3, *shape)), small(other, (3, *shape[::-1]))
    for row in upright.layers():
        if row.spatial:
            found = upright.explain(image, row.name, 2)
            expected = turned.explain(image.swapaxes(0, 1), row.name, 2)
            assert found.heatmap.shape == shape and found.input.shape == (*shape, 3)
            np.testing.assert_allclose(found.raw, expected.raw.T, rtol=1e-3, atol=1e-7)
            np.testing.assert_allclose(found.heatmap, expected.heatmap.T, rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match=rf"uint8 \(N, {shape[0]}, {shape[1]}, 3\) is accepted"):
        upright.predict(image.swapaxes(0, 1)[None])


def test_E1_maps_and_features_do_not_depend_on_inplace():
    plain, in_place = small(Reused(False)), small(Reused(True))
    names = [row.name for row in plain.layers()]
    assert names == [row.name for row in in_place.layers()]
    for name in names:
        one, other = plain.features(2, name, 1), in_place.features(2, name, 1)
        assert np.array_equal(one.maps, other.maps) and np.array_equal(one.weights, other.weights), name
    for name, raw in plain.explain_layers(2, 1).items():
        assert np.array_equal(raw, in_place.explain_layers(2, 1)[name])
        assert np.array_equal(plain.explain(2, name, 1).raw, in_place.explain(2, name, 1).raw)


class Sequence(nn.Module):
    """Rows of the picture through an LSTM, whose output is a tuple; then a dict."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTM(12, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        x, _ = self.lstm(x.mean(1))
        return {"logits": self.head(x[:, -1])}


def test_E12_outputs_that_are_not_maps():
    lab = small(Sequence(), (3, 8, 12))
    assert [(row.name, row.shape, row.spatial) for row in lab.layers()] == [
        ("lstm.input", (8, 12), False),
        ("lstm", (8, 5), False),
        ("head.input", (5,), False),
        ("head", (3,), False),
    ]
    assert lab.features(0, "lstm").maps.shape == (5, 1, 8) and lab.features(0, "head").maps.shape == (3, 1, 1)
    with pytest.raises(ValueError, match=r"layer 'lstm' holds 8 x 5: a map needs \(C, h, w\)"):
        lab.explain(0, "lstm")
    with pytest.raises(ValueError, match="no layer with maps"):
        lab.explain(0)
    assert lab.explain_layers(0) == {}
    run = lab.run(0, [{"layer": "lstm", "action": "zero", "channels": [1]}], watch="all")
    assert run.layer is None and run.raw_before is None and run.effects[0].changed
    assert not np.array_equal(run.before, run.after)
    assert {event.kind for event in run.events if event.layer == "lstm"} == set(HOOKS)
    effects = lab.channel_effects(0, "lstm", 1).effects
    assert effects[1] == pytest.approx(lab.run(0, run.edits[:1], target=1).before[1] - run.after[1], abs=1e-6)


# -- what is not accepted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (12, "target 12: this model has 10 classes (0 to 9)"),
        (-1, "target -1: this model has 10 classes (0 to 9)"),
        (10**30, "this model has 10 classes (0 to 9)"),
        (np.int64(10), "target 10: this model has 10 classes"),
        ("shop", "target 'shop': not one of this model's 10 classes; the nearest are ship"),
        ("3", "target '3': not one of"),
        ("", "target ''"),
        (3.0, "target 3.0: a class's name or a whole number from 0 to 9"),
        (True, "target True: a class's name or a whole number from 0 to 9"),
        (np.bool_(False), "a whole number from 0 to 9"),
        (float("nan"), "target nan"),
        ([3], "target [3]"),
        (torch.tensor([1, 2]), "a whole number from 0 to 9"),
    ],
)
def test_E11_targets_are_checked_before_anything_runs(lab, target, message):
    def never(*_):
        raise AssertionError("the model ran")

    handle = lab.model.register_forward_pre_hook(never)
    try:
        for ask in (lab.explain, lab.features, lab.channel_effects, lab.run):
            with pytest.raises(ValueError) as error:
                ask(0, target=target)
            assert message in str(error.value)
        with pytest.raises(ValueError):
            lab.explain_layers(0, target)
    finally:
        handle.remove()


@pytest.mark.parametrize("target", [8, "ship", np.int64(8), np.uint8(8), torch.tensor(8)])
def test_targets_accepted(lab, target):
    assert lab.explain(0, target=target).target == 8


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (-1, "index -1: the test split has images 0 to 9999"),
        (10000, "index 10000"),
        (True, "index True"),
        (1.5, "index 1.5"),
        (float("nan"), "index nan"),
        (None, "NoneType is not a picture"),
        ([1, 2], "list is not a picture"),
        (np.zeros((8, 8, 3)), "image float64 (8, 8, 3): uint8 (H, W, 3) is accepted"),
        (np.zeros((8, 8), np.uint8), "uint8 (8, 8)"),
        (np.zeros((8, 8, 4), np.uint8), "uint8 (8, 8, 4)"),
        (np.zeros((0, 8, 3), np.uint8), "0"),
        (b"nothing", ""),
    ],
)
def test_images_refused(lab, image, message):
    with pytest.raises(ValueError) as error:
        lab.explain(image)
    assert message in str(error.value)


def test_methods_refused(lab):
    for method in ("cam", None, 3, ["gradcam"]):
        with pytest.raises(ValueError, match=r"accepted are gradcam, gradcam\+\+"):
            lab.explain(0, method=method)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "vgg"}, "simple_cnn, resnet"),
        ({"model": 3}, "model 3: a torch.nn.Module or one of simple_cnn, resnet is accepted"),
        ({"device": "tpu9"}, "device 'tpu9': accepted here are auto, cpu"),
        ({"device": "cuda:77"}, "device 'cuda:77': accepted here are auto, cpu"),
        ({"device": None}, "device 'None'"),
        ({"classes": ["a", "b"]}, "classes: 2 given, but this model has 7"),
        ({"classes": list(range(7))}, "a list of 7 names"),
        ({"input_size": (3, 32)}, "input_size (3, 32)"),
        ({"input_size": (4, 32, 32)}, "(3, height, width) or (1, height, width)"),
        ({"input_size": (3, 0, 32)}, "input_size (3, 0, 32)"),
        ({"preprocess": lambda image: image}, "preprocess returned Image: a float tensor"),
        ({"preprocess": lambda image: torch.zeros(2, 3, 8, 8)}, "preprocess returned (2, 3, 8, 8)"),
        ({"model": nn.Conv2d(3, 4, 3)}, "a classifier's logits (N, classes)"),
    ],
)
def test_construction_refused(arguments, message):
    with pytest.raises(ValueError) as error:
        Lab(**{"model": Gap(), "input_size": (3, 20, 20), "device": "cpu", **arguments})
    assert message in str(error.value)


# -- anybody's module ---------------------------------------------------------------------------------------------


class Uncopyable(Gap):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("build", [Gap, Uncopyable])
def test_E10_a_module_that_is_handed_in_stays_as_it_is(build):
    net = build().train()
    net.conv1.eval(), net.fc.bias.requires_grad_(False)
    net(torch.rand(2, 3, 20, 28)).sum().backward()
    fired = []
    net.conv2.register_forward_hook(lambda *_: fired.append(1))

    def state():
        return (
            [module.training for module in net.modules()],
            [parameter.requires_grad for parameter in net.parameters()],
            [None if parameter.grad is None else parameter.grad.clone() for parameter in net.parameters()],
            [parameter.clone() for parameter in net.parameters()],
            hooks.count(net),
        )

    before = state()
    lab = small(net)
    lab.layers(), lab.explain(1), lab.explain(1, "conv1", 2, "scorecam"), lab.features(1, "fc")
    lab.explain_classes(1), lab.explain_layers(1), lab.channel_effects(1), lab.predict(picture(20, 28)[None])
    lab.run(1, [{"layer": "conv1", "hook": "backward", "action": "zero"}], watch="all")
    with pytest.raises(ValueError):
        lab.run(1, [{"layer": "conv1", "action": "zero", "channels": [99]}])
    assert str(before) == str(state())
    assert fired, "the user's own hook fires on the replicas too"


@pytest.mark.parametrize("build", [Gap, Uncopyable])
def test_what_cannot_be_copied_gives_the_same_maps(build):
    lab = small(build())
    assert lab._pool.copied == (build is Gap)
    np.testing.assert_array_equal(lab.explain(4, "conv1", 1).raw, small(Gap()).explain(4, "conv1", 1).raw)
    with ThreadPoolExecutor(8) as pool:
        maps = list(pool.map(lambda index: lab.explain(index, "conv1", 1).raw, range(16)))
    assert all(np.array_equal(raw, lab.explain(index, "conv1", 1).raw) for index, raw in enumerate(maps))


def test_a_replica_shares_the_memory_of_every_weight():
    net = torchvision_net("resnet18").requires_grad_(True).train()
    twin = replica(net)
    for kind in ("parameters", "buffers"):
        pairs = list(zip(getattr(net, kind)(), getattr(twin, kind)(), strict=True))
        assert pairs and all(a.data_ptr() == b.data_ptr() for a, b in pairs)
    assert not any(p.requires_grad for p in twin.parameters()) and all(p.requires_grad for p in net.parameters())
    assert not twin.training and net.training


def test_tied_weights_stay_tied():
    net = Gap()
    net.other = nn.Linear(6, 7)
    net.other.weight = net.fc.weight
    assert replica(net).other.weight is not net.fc.weight
    assert len(list(replica(net).parameters())) == len(list(net.parameters()))


def test_bound_methods_as_hooks_keep_their_object():
    class Collector:
        def __init__(self):
            self.shapes = []

        def __call__(self, module, inputs, output):
            self.shapes.append(output.shape)

        def method(self, module, inputs):
            self.shapes.append(inputs[0].shape)

    net, collector = Gap(), Collector()
    net.conv2.register_forward_hook(collector), net.conv2.register_forward_pre_hook(collector.method)
    small(net).explain(0)
    assert (1, 8, 18, 26) in collector.shapes and (1, 6, 16, 24) in collector.shapes


def test_preprocess_of_torchvision_gives_back_the_pixels():
    preset = torchvision.transforms.Compose(
        [
            torchvision.transforms.Resize(30),
            torchvision.transforms.CenterCrop((20, 28)),
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
        ]
    )
    lab = Lab(Gap(), preprocess=preset, device="cpu")
    assert lab.inputs.size == (3, 20, 28)
    image = Image.fromarray(picture(50, 60))
    pixels = np.asarray(preset.transforms[1](preset.transforms[0](image)))
    found = lab.explain(image, "conv2")
    assert np.array_equal(found.input, pixels) and found.heatmap.shape == (20, 28)
    np.testing.assert_allclose(lab.predict(pixels[None])[0], found.logits, rtol=1e-5)
    assert lab.prepare(image).original == (60, 50) and lab.prepare(image).crop is None


def test_preprocess_that_nobody_knows():
    def wild(image):
        return torch.tensor(np.asarray(image.resize((28, 20))), dtype=torch.float32).permute(2, 0, 1) * 3 - 50

    lab = Lab(Gap(), preprocess=wild, device="cpu")
    found = lab.explain(picture(20, 28), "conv2")
    assert found.input.min() == 0 and found.input.max() == 255 and found.input.shape == (20, 28, 3)
    np.testing.assert_allclose(lab.predict(picture(20, 28)[None])[0], found.logits, rtol=1e-5)


def test_grey_networks():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    lab = small(net, (1, 12, 16), classes=["a", "b", "c"], mean=(0.5,) * 3, std=(0.25,) * 3)
    found = lab.explain(picture(12, 16), "0", "b")
    assert found.raw.shape == (10, 14) and found.input.shape == (12, 16, 3)


def test_double_precision():
    assert small(Gap().double()).explain(0, "conv2").raw.dtype == np.float32


def test_classes_get_names(lab):
    assert small(Gap()).classes == tuple(f"class {index}" for index in range(7))
    assert lab.classes == data.CLASSES and lab.device == torch.device("cpu") and not lab.model.training


# -- many users ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_megabytes", [0, 64])
def test_E9_sixteen_threads_get_the_serial_result_to_the_bit(cache_megabytes):
    make = lambda megabytes: small(simple_cnn(), (3, 32, 32), classes=data.CLASSES, cache_megabytes=megabytes)  # noqa: E731
    serial, threaded = make(0), make(cache_megabytes)
    jobs = [
        (index, row.name, target, method)
        for index in (1, 2)
        for row in serial.layers()
        if row.spatial
        for target, method in [(0, "gradcam"), (7, "hirescam")]
    ]

    def ask(lab, job):
        found = lab.explain(*job)
        features = lab.features(job[0], job[1], job[2])
        run = lab.run(job[0], [{"layer": job[1], "action": "zero", "channels": [job[2]]}], target=job[2])
        return [found.raw, found.heatmap, found.logits, features.maps, features.weights, run.after, run.gradient_after]

    expected = [ask(serial, job) for job in jobs]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda job: ask(threaded, job), jobs))
    for job, arrays, wanted in zip(jobs, found, expected, strict=True):
        assert all(map(np.array_equal, arrays, wanted)), job
    assert hooks.count(threaded.model) == 0


def test_E8_five_hundred_calls_leave_nothing_behind():
    """No tensor with a graph outlives its call, also without the garbage collector; memory is bounded."""
    lab = small(simple_cnn(), (3, 32, 32), classes=data.CLASSES, cache_megabytes=2)

    def call(index):
        lab.explain(index, ("conv1", "conv3", "pool:3.input")[index % 3], index % 10)
        if index % 50 == 0:
            lab.explain_classes(index), lab.channel_effects(index), lab.explain_layers(index)
            lab.run(index, [{"layer": "conv2", "hook": "backward", "action": "scale", "value": 2}], watch="all")

    def tensors():
        return [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]

    for index in range(60):
        call(index)
    gc.collect()
    gc.disable()
    try:
        before, memory = len(tensors()), resident_megabytes()
        for index in range(60, 560):
            call(index)
        alive = tensors()
        assert not any(tensor.grad_fn is not None for tensor in alive)
        assert len(alive) <= before + 200  # what the bounded cache holds varies
    finally:
        gc.enable()
    assert lab._cache.bytes <= 2 * 2**20
    assert resident_megabytes() < memory + 30
    assert hooks.count(lab.model) == 0


def resident_megabytes():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096 / 2**20
    except OSError:
        return 0.0  # not Linux: the count of tensors stands alone


def test_a_warm_answer_runs_no_model():
    net, runs = Gap(), []
    net.register_forward_hook(lambda *_: runs.append(1))
    lab = small(net)
    lab.layers()
    runs.clear()
    first = lab.explain(6, "conv2", 1)
    assert len(runs) == 1, "one forward pass"
    again = lab.explain(6, "conv2", 1)
    assert len(runs) == 1 and np.array_equal(first.raw, again.raw)
    lab.features(6, "conv2", 1), lab.explain(6, "conv2", 1, "hirescam"), lab.explain(6, "conv2", 1, "eigencam")
    assert len(runs) == 1, "other methods use the same pass"
    lab.explain_classes(6, "conv2")
    assert len(runs) == 2, "all classes: one pass"
    lab.explain_layers(6)
    assert len(runs) == 3, "all layers: one pass"
    lab.explain(picture(20, 28), "conv2", 1)
    assert len(runs) == 4


def test_weights_changed_in_place_are_seen_after_forget():
    net = Gap()
    lab = small(net)
    before = lab.explain(6, "conv2", 1)
    with torch.no_grad():
        net.fc.weight.mul_(3)
    assert np.array_equal(lab.explain(6, "conv2", 1).raw, before.raw)
    lab.forget()
    np.testing.assert_allclose(lab.explain(6, "conv2", 1).raw, before.raw * 3, rtol=1e-4, atol=1e-7)
    assert lab._cache.bytes > 0


def test_the_pool_is_bounded_and_a_replica_has_one_user_at_a_time():
    pool, lent, most = Pool(Gap(), 3, torch.device("cpu")), [], [0]
    all_three = threading.Barrier(3, timeout=60)

    def use(number):
        with pool.lend() as model:
            lent.append(id(model))
            most[0] = max(most[0], len(lent))
            unique = len(set(lent)) == len(lent)
            all_three.wait()  # passes only if three are lent at the same time
            lent.remove(id(model))
            return unique

    with ThreadPoolExecutor(12) as threads:
        assert all(threads.map(use, range(12)))
    assert most[0] == 3 and len(pool._idle) == 3


def test_the_pool_serves_in_order_of_asking():
    pool, order, threads = Pool(Gap(), 1, torch.device("cpu")), [], []

    def use(number):
        with pool.lend():
            order.append(number)

    with pool.lend():
        for number in range(8):
            threads.append(threading.Thread(target=use, args=(number,)))
            threads[-1].start()
            while len(pool._waiting) <= number:
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(8)) and len(pool._idle) == 1


def test_the_pool_gets_its_replica_back_after_an_error():
    lab = small(Gap())
    for _ in range(20):
        with pytest.raises(ValueError, match="channel 9"):
            lab.run(0, [{"layer": "conv1", "action": "zero", "channels": [9]}])
    assert lab.explain(0).raw.size and len(lab._pool._idle) >= 1


# -- Lab.run ------------------------------------------------------------------------------------------------------


def test_run_before_and_after(lab):
    """After silencing channels, logits and maps are those of a net whose filters are zero."""
    edits = [{"layer": "conv3", "action": "zero", "channels": [3, 77]}]
    run = lab.run(11, edits, layer="pool:3.input", target="dog")
    cut = simple_cnn()
    cut.conv3.weight.data[[3, 77]], cut.conv3.bias.data[[3, 77]] = 0, 0
    other = Lab(cut, data.CLASSES, input_size=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3, device="cpu")
    for expected, logits, raw in [
        (lab.explain(11, "pool:3.input", "dog"), run.before, run.raw_before),
        (other.explain(11, "pool:3.input", "dog"), run.after, run.raw_after),
    ]:
        np.testing.assert_allclose(logits, expected.logits, atol=1e-6)
        np.testing.assert_allclose(raw, expected.raw, rtol=1e-4, atol=1e-8)
    assert run.target == 5 and run.layer == "pool:3.input" and run.gradient_before.shape == (3, 32, 32)
    assert (run.hooks_before, run.hooks_during, run.hooks_after) == (0, 2, 0)
    assert run.effects[0].code == "" and [event.layer for event in run.events] == ["conv3"]
    assert lab.run(11).target == lab.explain(11).predicted


@pytest.mark.parametrize("value", [0.5, 2, 0])
def test_a_gradient_edit_changes_the_input_gradient_and_the_map_but_no_logit(lab, value):
    run = lab.run(11, [{"layer": "pool:2", "hook": "tensor", "action": "scale", "value": value}], layer="conv1")
    assert np.array_equal(run.before, run.after)
    np.testing.assert_allclose(run.gradient_after, run.gradient_before * value, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(run.raw_after, run.raw_before * value, rtol=1e-4, atol=1e-9)
    assert run.effects[0].code == "backward_only" and "leaves the forward pass alone" in run.effects[0].reason


EFFECTS = [
    ({"layer": "conv3"}, "watches", 1),
    ({"layer": "pool", "hook": "backward"}, "watches", 3),
    ({"layer": "conv3", "action": "scale", "value": 1}, "unchanged", 1),
    ({"layer": "pool:3.input", "action": "clamp", "value": [0, 1e6]}, "unchanged", 1),  # after a ReLU already
    ({"layer": "conv2", "hook": "tensor", "action": "clip", "value": 1e6}, "unchanged", 1),
    ({"layer": "pool", "action": "scale", "value": 2}, "", 3),
    ({"layer": "pool:2", "action": "negate"}, "", 1),
    ({"layer": "fc2", "hook": "backward", "action": "zero"}, "backward_only", 1),
]


@pytest.mark.parametrize(("edit", "code", "calls"), EFFECTS, ids=lambda case: str(case))
def test_effects_say_why_there_was_none(lab, edit, code, calls):
    effect = lab.run(2, [edit]).effects[0]
    assert (effect.code, effect.calls, effect.changed) == (code, calls, code in ("", "backward_only"))
    assert bool(effect.reason) == bool(code)


def test_effects_of_hooks_that_never_fire():
    class Branches(Gap):
        def __init__(self):
            super().__init__()
            self.unused, self.aside = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1)

        def forward(self, x):
            self.aside(x)
            return super().forward(x)

    actions = [("forward", "zero"), ("tensor", "zero"), ("backward", "watch")]
    edits = [
        {"layer": layer, "hook": hook, "action": action} for layer in ("unused", "aside") for hook, action in actions
    ]
    run = small(Branches()).run(0, edits)
    codes = [effect.code for effect in run.effects]
    assert codes == ["never_called", "no_gradient", "no_gradient", "not_reached", "no_gradient", "no_gradient"]


def test_watching_everything(lab):
    run = lab.run(4, [{"layer": "conv1", "action": "noise", "value": 0.1, "seed": 5}], watch="all")
    modules = [name for name, _ in lab.model.named_modules() if name]
    assert len(run.edits) == 1 + 4 * len(modules)
    assert run.hooks_during == len(run.edits) + 1 + 8  # the map's, and one on the tensor of each of the 8 calls
    assert {(event.kind, event.layer) for event in run.events} >= {
        (kind, row.name) for kind in HOOKS for row in lab.layers() if not row.name.endswith(".input")
    }
    assert run.events[0].kind == "forward_pre" and run.events[0].layer == "conv1"
    last_forward = max(index for index, event in enumerate(run.events) if event.kind.startswith("forward"))
    assert all(event.kind in ("tensor", "backward") for event in run.events[last_forward + 1 :])
    assert all(event.minimum <= event.mean <= event.maximum for event in run.events)
    assert np.array_equal(run.after, lab.run(4, run.edits[:1]).after), "watching changes nothing"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"layer": "conv3", "action": "zero", "channels": [128]}, "channel 128: conv3 has 128 channels (0 to 127)"),
        (
            {"layer": "conv3", "hook": "tensor", "action": "zero", "channels": [128]},
            "conv3 has 128 channels (0 to 127)",
        ),
        ({"layer": "conv3", "hook": "backward", "action": "zero", "channels": [64]}, "64 channels (0 to 63)"),
        ({"layer": "conv9", "action": "zero"}, "layer 'conv9': this model has no such module"),
        ({"layer": "pool:4", "action": "zero"}, "layer 'pool:4': this model calls pool as pool:1, pool:2, pool:3"),
        ({"layer": "conv1:2", "action": "zero"}, "layer 'conv1:2': this model calls conv1 as conv1"),
        ({"layer": "conv3", "hook": "tensor", "action": "clip_norm", "value": -1}, "value -1"),
        ({"layer": "conv3", "action": "scale", "value": float("nan")}, "value nan"),
        ("conv3", "a dict with layer"),
    ],
)
def test_bad_edits_name_what_is_accepted_and_leave_nothing_behind(lab, edit, message):
    with pytest.raises(ValueError) as error:
        lab.run(0, [edit])
    assert message in str(error.value)
    assert all(hooks.count(model) == 0 for model in [lab.model, *lab._pool._idle])


def test_watch_refuses_unknown_modules(lab):
    with pytest.raises(ValueError, match="no such module"):
        lab.run(0, watch=["conv9"])


# -- channel effects ----------------------------------------------------------------------------------------------


def test_channel_effects_are_those_of_silencing_one_by_one(lab):
    found = lab.channel_effects(8, "conv2", "cat")
    before = lab.explain(8, target="cat").logits[3]
    for channel in range(0, 64, 9):
        after = lab.run(8, [{"layer": "conv2", "action": "zero", "channels": [channel]}]).after[3]
        assert found.effects[channel] == pytest.approx(before - after, abs=1e-6)
    np.testing.assert_array_equal(found.weights, lab.features(8, "conv2", "cat").weights)
    assert -1 <= found.correlation <= 1
    one = small(Gap()).channel_effects(8, "conv2", 4)  # linear from here on: what a channel adds is its part of the map
    features = small(Gap()).features(8, "conv2", 4)
    np.testing.assert_allclose(one.effects, features.weights * features.maps.sum((1, 2)), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", NETS)
def test_replacing_a_layer_gives_what_an_edit_gives(name):
    """At several layers, beside skip connections and concatenations too: one batch for all, against one by one."""
    net = torchvision_net(name)
    lab = small(net, (3, 32, 32))
    image = lab._image(0)
    for row in lab.layers()[2 :: max(3, len(lab.layers()) // 12)]:
        _, activation, _, _ = lab._look(image, row.name, 0, gradient=False)
        values = torch.stack([activation, activation * 0])
        found = lab._replaced_logits(image, row.name, values)
        for factor, logits in zip((1, 0), found, strict=True):
            after = lab.run(0, [{"layer": row.name, "action": "scale", "value": factor}], layer=None).after
            np.testing.assert_allclose(logits, after, rtol=1e-3, atol=1e-4, err_msg=f"{row.name} times {factor}")


# -- models of other kinds ----------------------------------------------------------------------------------------


def test_torchscript_is_refused_in_one_sentence():
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    with pytest.raises(ValueError, match="TorchScript modules take no hooks"):
        small(scripted)


def spectral():
    net = Reused()
    torch.nn.utils.spectral_norm(net.conv1)
    return net


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.compile(Reused()),
        lambda: Reused().to(memory_format=torch.channels_last),
        lambda: Reused().bfloat16(),
        spectral,
    ],
    ids=["compiled", "channels last", "bfloat16", "spectral norm"],
)
def test_other_kinds_of_models(make):
    lab = small(make())
    found, run = lab.explain(3), lab.run(3, watch="all")
    assert found.layer == "pool:2" and np.isfinite(found.raw).all() and found.raw.dtype == np.float32
    assert len(lab.layers()) == 12 - 1 and np.array_equal(run.before, run.after)


def test_a_layer_table_is_made_once():
    net, runs = Gap(), []
    net.register_forward_hook(lambda *_: runs.append(1))
    lab = small(net, cache_megabytes=0)
    lab.layers()
    before = len(runs)
    lab.layers(), lab.layers(3), lab.explain(3)
    assert len(runs) == before + 1
