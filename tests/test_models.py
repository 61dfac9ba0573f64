"""The shipped networks, their cards, and the checkpoints that people bring."""

import copy
import dataclasses
import io
import json
import shutil
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from hooklab import batches, cards, checkpoints, data, models
from hooklab.models import ResNet, SimpleCNN

NAMES = tuple(models.REGISTRY)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def state():
    return {k: torch.randn_like(v) for k, v in SimpleCNN().state_dict().items()}


def same(model, state):
    own = model.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[k], state[k]) for k in own)


# ---- the networks ----------------------------------------------------------------------------------------------------


def test_simple_cnn_is_the_network_of_the_course():
    shapes = {k: tuple(v.shape) for k, v in SimpleCNN().state_dict().items() if k.endswith("weight")}
    assert shapes == {
        "conv1.weight": (32, 3, 3, 3),
        "conv2.weight": (64, 32, 3, 3),
        "conv3.weight": (128, 64, 3, 3),
        "fc1.weight": (512, 2048),
        "fc2.weight": (10, 512),
    }
    assert [n for n, _ in SimpleCNN().named_children()] == ["conv1", "conv2", "conv3", "pool", "fc1", "fc2"]


def test_simple_cnn_computes_what_a_plain_sequence_of_modules_computes():
    torch.manual_seed(0)
    net, images = SimpleCNN(), torch.randn(2, 3, 32, 32)
    parts = [m for conv in (net.conv1, net.conv2, net.conv3) for m in (conv, nn.ReLU(), nn.MaxPool2d(2))]
    plain = nn.Sequential(*parts, nn.Flatten(), net.fc1, nn.ReLU(), net.fc2)
    assert torch.equal(net(images), plain(images))
    calls = []
    net.pool.register_forward_hook(lambda *_: calls.append(1))
    net(images)
    assert len(calls) == 3


def test_resnet_suits_class_activation_maps():
    net = ResNet().eval()
    assert sum(p.numel() for p in net.parameters()) <= 2_000_000
    calls, shapes = {}, {}

    def note(module, _inputs, output):
        calls[module] = calls.get(module, 0) + 1
        shapes[module] = tuple(output.shape)

    for module in net.modules():
        module.register_forward_hook(note)
    net(torch.zeros(1, 3, 32, 32))
    relus = [m for m in net.modules() if isinstance(m, nn.ReLU)]
    assert len(relus) == 8 and not any(m.inplace for m in relus)
    assert all(calls[m] == 1 for m in relus)  # never shared
    assert shapes[net.layer2][2:] == (8, 8) and shapes[net.avgpool][2:] == (1, 1)
    assert [type(m) for m in net.modules() if isinstance(m, nn.Linear)] == [nn.Linear] and isinstance(net.fc, nn.Linear)


def test_registry_cannot_be_changed(name):
    with pytest.raises(TypeError):
        models.REGISTRY["mine"] = None
    with pytest.raises(dataclasses.FrozenInstanceError):
        models.REGISTRY[name].title = "mine"


@pytest.mark.parametrize("ask", [models.build, models.load, models.card, models.predictions])
def test_unknown_name_is_answered_with_the_names_there_are(ask):
    with pytest.raises(ValueError, match=r"'vgg'.*simple_cnn, resnet"):
        ask("vgg")


def test_multiply_adds_of_known_layers():
    conv = nn.Conv2d(4, 6, 3, padding=1, groups=2)  # 5x7 positions, 6 filters over 2 of the 4 channels
    assert models.multiply_adds(conv, (4, 5, 7)) == 5 * 7 * 6 * 2 * 9
    assert models.multiply_adds(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), (3, 2, 2)) == 60
    by_hand = 1024 * 32 * 27 + 256 * 64 * 288 + 64 * 128 * 576 + 2048 * 512 + 512 * 10
    net = SimpleCNN()
    assert models.multiply_adds(net, (3, 32, 32)) == by_hand
    assert not any(m._forward_hooks for m in net.modules())


def test_multiply_adds_leaves_modes_and_statistics_alone():
    net = ResNet().train()
    before = copy.deepcopy(net.state_dict())
    models.multiply_adds(net, (3, 32, 32))
    assert net.training and same(net, before)


# ---- what ships ------------------------------------------------------------------------------------------------------


def test_shipped_weights_are_loaded_ready_to_use(name):
    net = models.load(name)
    assert not any(m.training for m in net.modules())
    assert sum(p.numel() for p in net.parameters()) == models.card(name)["parameters"]
    assert {p.device.type for p in net.parameters()} == {"cpu"} and {p.dtype for p in net.parameters()} == {
        torch.float32
    }


def test_shipped_weights_need_only_torch(name):
    path = models.SHIPPED / f"{name}.pth"
    assert path.stat().st_size < 8_000_000
    net = models.build(name)
    net.load_state_dict(torch.load(path, weights_only=True))
    assert same(models.load(name), net.state_dict())


def test_weights_that_are_not_those_of_the_card_are_refused(name, tmp_path, monkeypatch):
    for suffix in ("pth", "json"):
        shutil.copy(models.SHIPPED / f"{name}.{suffix}", tmp_path)
    monkeypatch.setattr(models, "SHIPPED", tmp_path)
    models.load(name)
    state = torch.load(tmp_path / f"{name}.pth", weights_only=True)
    next(iter(state.values())).view(-1)[0] += 1e-3
    torch.save(state, tmp_path / f"{name}.pth")
    with pytest.raises(ValueError, match=rf"{name}\.pth is not the file of its card: SHA-256"):
        models.load(name)


@pytest.mark.timeout(900)  # 2.2 TFLOP in float32: 15 seconds on two free cores, minutes on busy ones
def test_card_holds_on_all_10000_test_images(name):
    card, labels = models.card(name), data.test_labels()
    pixels = np.ascontiguousarray(data.test_images().transpose(0, 3, 1, 2))
    images = batches.Images(pixels, labels, models.REGISTRY[name], torch.device("cpu"))
    net = models.load(name).to(memory_format=torch.channels_last)
    logits = cards.logits_of(net, images)
    predicted, probability = models.predictions(name)
    assert predicted.dtype == np.int64 and probability.dtype == np.float32 and len(predicted) == 10_000
    # Other processors round otherwise, which may turn an image or two that hang in the balance.
    assert (logits.argmax(1).numpy() == predicted).sum() >= 9_995
    np.testing.assert_allclose(logits.softmax(1).amax(1).numpy(), probability, atol=1e-3)
    assert (logits.argmax(1).numpy() == labels).mean() == pytest.approx(card["accuracy"], abs=5e-4)

    confusion = np.zeros((10, 10), int)
    np.add.at(confusion, (labels, predicted), 1)
    assert confusion.tolist() == card["confusion_matrix"]
    assert (predicted == labels).mean() == pytest.approx(card["accuracy"], abs=1e-9)
    per_class = dict(zip(data.CLASSES, confusion.diagonal() / 1000, strict=True))
    assert per_class == pytest.approx(card["per_class_accuracy"])
    error = 0.0
    for k in range(15):
        inside = (probability > k / 15) & (probability <= (k + 1) / 15)
        error += abs((probability - (predicted == labels))[inside].sum()) / 10_000
    assert error == pytest.approx(card["expected_calibration_error"], abs=1e-3)


@pytest.mark.parametrize("name, floor", [("simple_cnn", 0.86), ("resnet", 0.93)])
def test_accuracy_does_not_fall_back(name, floor):
    assert models.card(name)["accuracy"] >= floor


def test_card_tells_how_the_network_came_about(name):
    card, net = models.card(name), models.build(name)
    assert card["multiply_adds"] == models.multiply_adds(net, (3, 32, 32))
    assert card["classes"] == list(data.CLASSES)
    assert (tuple(card["mean"]), tuple(card["std"])) == (models.REGISTRY[name].mean, models.REGISTRY[name].std)
    assert f"-m hooklab.train --model {name}" in card["command"] and "--resume" not in card["command"]
    assert "50000" in card["trained_on"] and "no setting was searched" in card["how_settings_were_chosen"]
    assert card["seconds"] > 0 and card["versions"]["torch"] and isinstance(card["seed"], int)
    curve = (models.SHIPPED / f"{name}.csv").read_text().splitlines()
    assert len(curve) == 1 + card["epochs"] and curve[0].startswith("epoch,learning_rate,train_loss,train_accuracy")


def test_calibration_error_of_known_logits():
    # Ten images of one class at confidence 0.75, of which 5 are right: the error is 0.25. Nine at 0.5, all wrong: 0.5.
    sure, torn = [np.log(3.0), 0.0], [0.01, 0.0]
    logits, labels = torch.tensor([sure] * 10 + [torn] * 9), torch.tensor([0] * 5 + [1] * 5 + [1] * 9)
    expected = (10 * 0.25 + 9 * torch.tensor(torn).softmax(0)[0].item()) / 19
    assert cards.calibration_error(logits, labels) == pytest.approx(expected, abs=1e-6)


# ---- what people bring -----------------------------------------------------------------------------------------------

WRAPPED = {
    "plain": lambda s: s,
    "module.": lambda s: {f"module.{k}": v for k, v in s.items()},
    "_orig_mod.": lambda s: {f"_orig_mod.{k}": v for k, v in s.items()},
    "model.": lambda s: {f"model.{k}": v for k, v in s.items()},
    "two prefixes": lambda s: {f"module._orig_mod.{k}": v for k, v in s.items()},
    "averaged": lambda s: {"n_averaged": torch.tensor(7), **{f"module.{k}": v for k, v in s.items()}},
    "state_dict": lambda s: {"epoch": 3, "state_dict": s},
    "model": lambda s: {"model": s, "optimizer": {"lr": 0.1}},
    "net": lambda s: {"net": s, "acc": 91.5},
    "ema": lambda s: {"ema": s},
    "model_state_dict": lambda s: {"model_state_dict": s, "loss": 0.5},
    "nest in nest": lambda s: {"state_dict": {"model": {f"module.{k}": v for k, v in s.items()}}},
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_F8_prefixes_and_nests_are_undone(wrap, state, tmp_path):
    torch.save(wrap(state), tmp_path / "mine.pth")
    assert same(models.load("simple_cnn", tmp_path / "mine.pth"), state)


def test_F8_a_prefix_that_is_the_models_own_stays(tmp_path):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(2, 3)

    mine, path = Wrapper(), tmp_path / "mine.pth"
    torch.save({f"module.{k}": v for k, v in mine.state_dict().items()}, path)
    assert same(models.load(Wrapper(), path), mine.state_dict())


def test_F8_a_file_of_the_old_format_and_of_half_precision(state, tmp_path):
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert same(models.load("simple_cnn", tmp_path / "old.pth"), state)
    half = {k: v.half() for k, v in state.items()}
    torch.save(half, tmp_path / "half.pth")
    net = models.load("simple_cnn", tmp_path / "half.pth")
    assert same(net, {k: v.float() for k, v in half.items()}) and net.fc2.weight.dtype == torch.float32


def test_F9_what_does_not_fit_is_listed_and_nothing_is_loaded(state, tmp_path):
    state["fc2.weight"], state["fc2.bias"] = torch.zeros(100, 512), torch.zeros(100)
    for old, new in {"conv1.weight": "conv_1.weight", "fc1.bias": "classifier.0.b", "conv3.bias": "conv3.bia"}.items():
        state[new] = state.pop(old)
    torch.save(state, tmp_path / "mine.pth")
    net = SimpleCNN()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(checkpoints.CheckpointError) as caught:
        models.load(net, tmp_path / "mine.pth")
    assert same(net, before)
    message = str(caught.value).splitlines()
    assert message[0] == "mine.pth does not fit SimpleCNN; nothing was loaded."
    assert message[1].startswith("Wrong shape: fc2.weight is (100, 512), SimpleCNN has (10, 512); fc2.bias")
    near = ["conv1.weight (the file has conv_1.weight)", "conv3.bias (the file has conv3.bia)", "fc1.bias."]
    assert message[2] == "Missing: " + ", ".join(near)
    assert message[3].startswith("Unexpected: conv_1.weight (SimpleCNN has conv1.weight), conv3.bia (")
    assert set(caught.value.missing) == {"conv1.weight", "fc1.bias", "conv3.bias"}
    assert set(caught.value.unexpected) == {"conv_1.weight", "classifier.0.b", "conv3.bia"}
    assert caught.value.misshapen == ("fc2.weight", "fc2.bias")


def test_F9_another_networks_weights_name_three_hints_and_every_name(tmp_path):
    torch.save(ResNet().state_dict(), tmp_path / "mine.pth")
    with pytest.raises(ValueError) as caught:
        models.load("simple_cnn", tmp_path / "mine.pth")
    _, *lines = str(caught.value).splitlines()
    assert max(line.count("(SimpleCNN has") for line in lines) <= 3
    assert all(k in str(caught.value) for k in ResNet().state_dict())


def test_F9_values_that_are_not_finite_are_refused(state, tmp_path):
    state["fc1.bias"][3] = float("nan")
    torch.save(state, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=r"not finite in fc1\.bias"):
        models.load("simple_cnn", tmp_path / "mine.pth")


def test_F10_a_checkpoint_of_a_gpu_loads_on_the_cpu(state, tmp_path):
    torch.save(state, tmp_path / "mine.pth")
    with zipfile.ZipFile(tmp_path / "mine.pth") as old, zipfile.ZipFile(tmp_path / "cuda.pth", "w") as new:
        for item in old.namelist():
            content = old.read(item)
            if item.endswith("data.pkl"):  # the storages' device, a pickled string: "cpu" becomes "cuda:0"
                assert b"X\x03\x00\x00\x00cpu" in content
                content = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            new.writestr(item, content)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):  # the file does ask for a GPU
            torch.load(tmp_path / "cuda.pth", weights_only=True)
    net = models.load("simple_cnn", tmp_path / "cuda.pth")
    assert same(net, state) and {p.device.type for p in net.parameters()} == {"cpu"}


class Bomb:
    def __reduce__(self):
        import os

        return os.mkdir, (self.target,)


@pytest.mark.parametrize("zipped", [True, False])
def test_F11_a_pickle_that_runs_code_is_refused_by_name(zipped, state, tmp_path):
    bomb = Bomb()
    bomb.target = str(tmp_path / "exploded")
    torch.save({"state_dict": state, "extra": bomb}, tmp_path / "mine.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"posix\.mkdir|nt\.mkdir|os\.mkdir"):
        models.load("simple_cnn", tmp_path / "mine.pth")
    assert not (tmp_path / "exploded").exists()


def test_F11_numpy_values_are_refused_in_plain_words(state, tmp_path):
    torch.save({"state_dict": state, "accuracy": np.float64(0.9)}, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=r"mine\.pth holds NumPy values \(numpy\S*scalar\).*model\.state_dict\(\)"):
        models.load("simple_cnn", tmp_path / "mine.pth")


def whole_model(path):
    torch.save(SimpleCNN(), path)


def archive_with(entry):
    def make(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(entry, b"")

    return make


def cut_short(path):
    buffer = io.BytesIO()
    torch.save(SimpleCNN().state_dict(), buffer)
    path.write_bytes(buffer.getvalue()[:100_000])


def content(data):
    return lambda path: path.write_bytes(data)


STRANGERS = {
    "whole model": (whole_model, "hooklab.models.SimpleCNN, as a whole model"),
    "torchscript": (archive_with("net/constants.pkl"), "is a TorchScript program"),
    "onnx": (content(b"\x08\x08\x12\x07pytorch\x1a\x062.14.1" + bytes(200)), "is an ONNX model"),
    "text": (content("hello, 世界\n".encode()), "is a text file"),
    "json": (content(json.dumps({"a": 1}).encode()), "is a text file"),
    "lfs": (content(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "pointer that Git LFS leaves"),
    "html": (content(b"<!DOCTYPE html><html></html>"), "is a web page"),
    "empty": (content(b""), "is empty"),
    "safetensors": (content((64).to_bytes(8, "little") + b'{"a":{}}' + bytes(80)), "is a safetensors file"),
    "hdf5": (content(b"\x89HDF\r\n\x1a\n" + bytes(80)), "is an HDF5 file"),
    "png": (content(b"\x89PNG\r\n\x1a\n" + bytes(80)), "is a PNG picture"),
    "zip": (archive_with("readme.txt"), "is a zip file that torch.save has not written"),
    "cut short": (cut_short, "is a zip file that breaks off"),
    "noise": (content(bytes(range(255, 0, -1)) * 9), "is damaged, or no file of torch.save"),
    "a list": (lambda path: torch.save([1, 2], path), "holds a list, not a state_dict"),
    "a tensor": (lambda path: torch.save(torch.zeros(3), path), "holds a Tensor, not a state_dict"),
    "no weights": (lambda path: torch.save({"epoch": 3, "loss": 0.1}, path), "holds 'epoch', 'loss', but no weights"),
    "an empty dict": (lambda path: torch.save({}, path), "holds nothing, but no weights"),
}


@pytest.mark.parametrize("make, what", STRANGERS.values(), ids=STRANGERS)
def test_F12_what_is_no_checkpoint_is_told_in_one_sentence(make, what, tmp_path):
    make(tmp_path / "mine.pth")
    with pytest.raises(ValueError) as caught:
        models.load("simple_cnn", tmp_path / "mine.pth")
    message = str(caught.value)
    assert message.startswith("mine.pth ") and what in message
    assert "torch.save(model.state_dict(), 'weights.pth')" in message and "\n" not in message


def test_F12_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        models.load("simple_cnn", tmp_path / "none.pth")
    with pytest.raises(ValueError, match="is a folder"):
        models.load("simple_cnn", tmp_path)
    with pytest.raises(ValueError, match="path is needed"):
        models.load(SimpleCNN())
