"""Every script is executed, without hooklab in sight, and its arrays are compared with the Lab's."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hooklab import data, snippets
from hooklab.cam import METHODS
from hooklab.edits import ACTIONS, Edit
from hooklab.lab import Lab

ROOT = Path(snippets.__file__).parents[1]
IMAGE, SHIP = 1218, 8


@pytest.fixture(scope="module")
def labs():
    found = {}
    return lambda name: found.setdefault(name, Lab(name, device="cpu"))


@pytest.fixture(autouse=True)
def in_the_folder(monkeypatch):
    monkeypatch.chdir(ROOT)


def execute(script):
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(script))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in (node.names if isinstance(node, ast.Import) else [ast.alias(node.module)])
    }
    assert imported <= {"numpy", "torch", "PIL"}
    assert all(len(line) <= 120 for line in script.splitlines() if "Image.open(" not in line)
    found = {"__name__": "script"}
    exec(script, found)
    return found


def assert_same(found, expected, method=None):
    """Ablation-CAM subtracts logits that hardly differ: what is left has fewer digits in common."""
    found = np.asarray(found.detach() if isinstance(found, torch.Tensor) else found)
    assert found.shape == expected.shape
    share = 3e-4 if method == "ablationcam" else 3e-5
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=share * max(1e-6, np.abs(expected).max()))


CASES = [("simple_cnn", layer) for layer in ("conv3", "pool:3.input", "pool:2")] + [("resnet", "layer2.1.relu2")]


METHODS_AT = [
    *((model, layer, method) for model, layer in (CASES[1], CASES[3]) for method in METHODS),
    *((model, layer, method) for model, layer in (CASES[0], CASES[2]) for method in ("gradcam", "ablationcam")),
]


@pytest.mark.parametrize(("model", "layer", "method"), METHODS_AT)
def test_explain(labs, model, layer, method):
    found, lab = execute(snippets.explain(model, IMAGE, layer, SHIP, method)), labs(model)
    expected = lab.explain(IMAGE, layer, SHIP, method)
    assert_same(found["raw"], expected.raw, method)
    np.testing.assert_allclose(found["heatmap"], expected.heatmap, atol=3e-4)
    assert_same(found["logits"][0], expected.logits)
    assert (found["pixels"] == expected.input).all()


@pytest.mark.parametrize("method", ["gradcam", "eigencam", "scorecam", "ablationcam"])
def test_classes(labs, method):
    found = execute(snippets.classes("simple_cnn", IMAGE, "pool:3.input", method))
    assert_same(found["raw"], labs("simple_cnn").explain_classes(IMAGE, "pool:3.input", method), method)


@pytest.mark.parametrize("method", ["gradcam", "layercam", "scorecam", "ablationcam"])
def test_difference(labs, method):
    found = execute(snippets.difference("simple_cnn", IMAGE, "conv3", SHIP, 9, method))
    assert_same(found["raw"], labs("simple_cnn").difference(IMAGE, SHIP, 9, "conv3", method).raw, method)


@pytest.mark.parametrize("model", ["simple_cnn", "resnet"])
def test_all_layers(labs, model):
    found, expected = execute(snippets.all_layers(model, IMAGE, 3))["maps"], labs(model).explain_layers(IMAGE, 3)
    assert list(found) == list(expected)
    for name, raw in expected.items():
        assert_same(found[name], raw)


@pytest.mark.parametrize(("model", "layer"), CASES)
def test_features(labs, model, layer):
    found, expected = execute(snippets.features(model, IMAGE, layer, SHIP)), labs(model).features(IMAGE, layer, SHIP)
    assert_same(found["maps"], expected.maps)
    assert_same(found["weights"], expected.weights)
    contribution = expected.weights * expected.maps.mean((1, 2))
    np.testing.assert_allclose(contribution[found["order"].numpy()], contribution[expected.order], atol=1e-6)


@pytest.mark.parametrize("which", ["hottest", "coldest"])
@pytest.mark.parametrize(("percent", "baseline"), [(0, "blur"), (37.5, "blur"), (20, "grey"), (100, "grey")])
def test_erase(labs, percent, which, baseline):
    script = snippets.erase("simple_cnn", IMAGE, "pool:3.input", SHIP, percent, "gradcam", which, baseline)
    found = execute(script)
    expected = labs("simple_cnn").erase(IMAGE, percent, "pool:3.input", SHIP, "gradcam", which, baseline)
    assert (found["left"] != expected.pixels).any(2).sum() <= 2  # two pixels of almost equal heat may change places
    np.testing.assert_allclose(found["probabilities"], expected.probabilities, atol=0.02)


@pytest.mark.parametrize("baseline", ["blur", "grey"])
def test_curves(labs, baseline):
    found = execute(snippets.curves("simple_cnn", IMAGE, "pool:3.input", SHIP, "hirescam", baseline))
    expected = labs("simple_cnn").evidence(IMAGE, "pool:3.input", SHIP, "hirescam").curves[baseline]["map"]
    for curve in ("deletion", "insertion"):
        gap = np.abs(found[curve] - getattr(expected, curve))
        assert gap.max() < 0.02  # where two pixels of almost equal heat have changed places
        assert np.median(gap) < 1e-5
        assert found[f"{curve}_area"] == pytest.approx(getattr(expected, f"{curve}_area"), abs=1e-3)


VALUES = {"number": 0.5, "pair": (-0.1, 0.2), "": None}
SINGLE = [  # all channels and some of them take turns
    Edit("conv2" if name != "mean" else "pool:2", hook, name, channels, VALUES[action.takes], seed=7)
    for turn, (name, action) in enumerate(ACTIONS.items())
    for step, hook in enumerate(action.hooks)
    for channels in [(1, 5, 9) if name == "keep" or (turn + step) % 2 else None]
]
TOGETHER = [
    {"layer": "conv1", "action": "noise", "value": 0.1, "seed": 3},
    {"layer": "pool", "action": "scale", "value": 1.5, "channels": [0, 1]},
    {"layer": "pool:3", "hook": "backward", "action": "scale", "value": 0.5},
    {"layer": "pool:2.input", "action": "clamp", "value": [0, 0.5]},
    {"layer": "conv3", "hook": "tensor", "action": "noise", "value": 0.01, "seed": 5},
    {"layer": "pool", "hook": "tensor", "action": "negate"},
    {"layer": "pool", "hook": "backward", "action": "noise", "value": 0.001},
    {"layer": "fc1", "action": "prune", "value": 30},
    {"layer": "fc2", "hook": "forward_pre", "action": "mean"},
]


@pytest.mark.parametrize("edits", [[edit] for edit in SINGLE] + [[], TOGETHER], ids=str)
def test_run(labs, edits):
    found = execute(snippets.run("simple_cnn", IMAGE, edits, "pool:3.input", SHIP))
    expected = labs("simple_cnn").run(IMAGE, edits, "pool:3.input", SHIP)
    for name in ("before", "after", "raw_before", "raw_after", "gradient_before", "gradient_after"):
        assert_same(found[name], getattr(expected, name))


def test_run_on_the_residual_network(labs):
    edits = [
        {"layer": "layer1.0", "action": "keep", "channels": [3, 4]},
        {"layer": "layer2.0.relu1", "hook": "backward", "action": "clip", "value": 0.001},
        {"layer": "bn2", "hook": "forward_pre", "action": "negate", "channels": [0]},
    ]
    found = execute(snippets.run("resnet", IMAGE, edits, "layer2", 3))
    expected = labs("resnet").run(IMAGE, edits, "layer2", 3)
    for name in ("after", "raw_after", "gradient_after"):
        assert_same(found[name], getattr(expected, name))


def test_a_picture_of_ones_own(labs, tmp_path):
    path = str(tmp_path / 'my "picture".png')
    data.test_image(77)[0].save(path)
    found = execute(snippets.explain("simple_cnn", path, "conv3", 4))
    assert_same(found["raw"], labs("simple_cnn").explain(77, "conv3", 4).raw)


def test_a_script_runs_by_itself():
    script = snippets.explain("simple_cnn", IMAGE, "pool:3.input", SHIP)
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ship: ")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: snippets.explain("vgg", 1, "conv1", 0), "model 'vgg': choose one of simple_cnn, resnet"),
        (lambda: snippets.explain("simple_cnn", 10000, "conv1", 0), "index 10000: the test split has images 0 to 9999"),
        (lambda: snippets.explain("simple_cnn", 1, "pool", 0), "layer 'pool': the layers of simple_cnn that have maps"),
        (
            lambda: snippets.explain("simple_cnn", 1, "fc1", 0),
            "layer 'fc1': the layers of simple_cnn that have maps are",
        ),
        (lambda: snippets.explain("simple_cnn", 1, "conv1", 10), r"target 10: this model has 10 classes \(0 to 9\)"),
        (lambda: snippets.explain("simple_cnn", 1, "conv1", 0, "cam"), "method 'cam': accepted are gradcam"),
        (lambda: snippets.erase("simple_cnn", 1, "conv1", 0, 101), "percent 101: accepted are numbers from 0 to 100"),
        (lambda: snippets.erase("simple_cnn", 1, "conv1", 0, 1, which="best"), "which 'best': accepted are"),
        (lambda: snippets.curves("simple_cnn", 1, "conv1", 0, baseline="red"), "baseline 'red': accepted are 'blur'"),
        (lambda: snippets.run("simple_cnn", 1, [{"layer": "conv9"}], "conv1", 0), "layer 'conv9': this model has no"),
        (lambda: snippets.run("simple_cnn", 1, [{"layer": "conv1", "action": "x"}], "conv1", 0), "action 'x': with a"),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
