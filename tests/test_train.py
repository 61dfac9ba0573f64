"""Training: the same result after an interruption, on one process or two; what is drawn, and what is written."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hooklab import batches, cards, data, models, train
from hooklab.recipes import RECIPES, Recipe, learning_rate, make_optimizer

CPU = torch.device("cpu")
RECIPE = Recipe(4, 16, 0.02, 5e-4, "sgd", shift=2, cutout=4)
WORKER = Path(__file__).with_name("train_worker.py")


def pictures(count, seed=0):
    """uint8 (N, 3, 32, 32) and labels that can be learned: the brighter a picture, the higher its class."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 10, count)
    pixels = draw.integers(0, 60, (count, 3, 32, 32)) + labels[:, None, None, None] * 20
    return pixels.astype(np.uint8), labels.astype(np.int64)


def split(count=48, shift=2, name="simple_cnn", seed=0):
    return batches.Images(*pictures(count, seed), models.REGISTRY[name], CPU, shift)


def fit(name, path, recipe=RECIPE, resume=False, seed=0):
    torch.manual_seed(99 if resume else 0)  # what a resumed run was initialised with must not matter
    return train.train(models.build(name), split(name=name), split(20, 0, name), recipe, seed, path, resume, show=False)


def without_time(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def equal(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


# ---- the loop --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, optimizer", [("simple_cnn", "adamw"), ("resnet", "sgd")])
def test_an_interrupted_training_resumes_to_the_same_bits(name, optimizer, tmp_path, monkeypatch):
    recipe = replace(RECIPE, optimizer=optimizer, lr=0.002 if optimizer == "adamw" else 0.02)
    whole, rows = fit(name, tmp_path / "whole.state", recipe)

    def interrupt(self, epoch, step, *_):
        if (epoch, step) == (2, 1):  # in the middle of the third epoch
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train.Progress, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fit(name, tmp_path / "cut.state", recipe)
    resumed, resumed_rows = fit(name, tmp_path / "cut.state", recipe, resume=True)
    assert equal(whole, resumed)
    assert without_time(rows) == without_time(resumed_rows) and len(rows) == 4
    untrained = models.build(name).state_dict()
    assert not any(torch.equal(v, untrained[k]) for k, v in whole.state_dict().items() if "conv" in k)


def test_training_learns_and_the_seed_decides(tmp_path):
    recipe = replace(RECIPE, epochs=8, lr=0.05, average=0.8)
    _, rows = fit("simple_cnn", tmp_path / "a.state", recipe)
    first, last = rows[0], rows[-1]
    assert last["train_loss"] < first["train_loss"] - 0.3 and last["check_loss"] < first["check_loss"] - 0.3
    short = replace(RECIPE, epochs=1)
    one, again, other = (fit("simple_cnn", tmp_path / "b.state", short, seed=seed)[0] for seed in (0, 0, 1))
    assert equal(one, again) and not equal(one, other)


def test_a_crash_while_the_state_is_written_leaves_the_last_one(tmp_path, monkeypatch):
    path = tmp_path / "some.state"
    cards.save_whole({"epoch": 1}, path)

    def crash(_content, target):
        Path(target).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", crash)
    with pytest.raises(OSError, match="No space"):
        cards.save_whole({"epoch": 2}, path)
    assert torch.load(path, weights_only=True) == {"epoch": 1}


@pytest.mark.parametrize(
    "change, named",
    [({"lr": 0.01}, "lr"), ({"cutout": 5}, "cutout"), ({"batch_size": 8}, "batch_size"), ({"epochs": 6}, "")],
)
def test_resume_refuses_what_would_not_give_the_same_result(change, named, tmp_path):
    short = replace(RECIPE, epochs=1)
    fit("simple_cnn", tmp_path / "a.state", short)
    with pytest.raises(ValueError, match=rf"begun with another .*{named}"):
        fit("simple_cnn", tmp_path / "a.state", replace(short, **change), resume=True)


def test_epochs_may_change_before_the_rate_falls(tmp_path, monkeypatch):
    longer = replace(RECIPE, epochs=5, decay=0.4, warmup=1)
    whole, _ = fit("simple_cnn", tmp_path / "whole.state", longer)
    monkeypatch.setattr(train.Progress, "epoch", lambda self, row: sys.exit() if row["epoch"] == 3 else None)
    with pytest.raises(SystemExit):
        fit("simple_cnn", tmp_path / "cut.state", replace(longer, epochs=4))
    monkeypatch.undo()
    resumed, rows = fit("simple_cnn", tmp_path / "cut.state", longer, resume=True)
    assert equal(whole, resumed) and len(rows) == 5


def test_a_diverging_run_stops_with_advice(tmp_path):
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) in epoch \d: try a learning rate below 1000000"):
        fit("simple_cnn", tmp_path / "a.state", replace(RECIPE, lr=1e6))


def test_two_processes_see_each_image_once_and_end_with_the_same_weights(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(WORKER)]
    environment = {**os.environ, "PYTHONPATH": str(WORKER.parent.parent), "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(tmp_path)], env=environment, check=True, capture_output=True, timeout=200)
    left, right, alone = (torch.load(tmp_path / f"{name}.pt") for name in ("0of2", "1of2", "0of2alone"))
    for name in ("simple_cnn", "resnet"):
        for epoch in range(2):
            seen = Counter(left[name]["seen"][epoch] + right[name]["seen"][epoch])
            assert seen == Counter(range(33))  # an odd number, in batches of an odd number: each once all the same
        for kind in ("model", "average"):
            mine, other = left[name][kind], right[name][kind]
            assert all(torch.equal(mine[k], other[k]) for k in mine)
        assert without_time(left[name]["rows"]) == without_time(right[name]["rows"])
    # Without batch norm, two processes compute what one does, but for rounding.
    assert [sorted(part) for part in alone["simple_cnn"]["seen"]] == [list(range(33))] * 2
    for key, value in alone["simple_cnn"]["average"].items():
        torch.testing.assert_close(left["simple_cnn"]["average"][key], value, atol=2e-3, rtol=0)


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def test_augmentation_is_shift_flip_and_cutout_of_each_image():
    images = split(12, shift=3)
    pixels, _ = pictures(12)
    draw = np.random.default_rng(1)
    indices, shifts = draw.permutation(12)[:9], draw.integers(0, 7, (9, 2))
    flips, corners = draw.integers(0, 2, 9) == 1, draw.integers(-4, 32, (9, 2))
    got = images.augmented(*map(torch.from_numpy, (indices, shifts, flips, corners)), cutout=5)
    assert got.is_contiguous(memory_format=torch.channels_last)
    for i, index in enumerate(indices):
        padded = np.pad(pixels[index], ((0, 0), (3, 3), (3, 3)), mode="reflect")
        (top, left), (y, x) = shifts[i], corners[i]
        expected = padded[:, top : top + 32, left : left + 32].astype(np.float32)
        expected = (expected[:, :, ::-1] if flips[i] else expected) / 255 * 2 - 1
        expected = expected.copy()
        expected[:, max(y, 0) : y + 5, max(x, 0) : x + 5] = 0
        np.testing.assert_allclose(got[i].numpy(), expected, atol=1e-6)


def test_plain_images_are_the_pixels_normalised():
    pixels, _ = pictures(5)
    entry = models.REGISTRY["resnet"]
    mean, std = (np.array(v)[:, None, None] for v in (entry.mean, entry.std))
    for shift in (0, 4):
        got = split(5, shift, "resnet").plain(torch.tensor([4, 0]))
        np.testing.assert_allclose(got.numpy(), (pixels[[4, 0]] / 255 - mean) / std, atol=1e-6)


def test_every_image_once_an_epoch_in_batches_of_nearly_equal_size():
    images = split(50)
    images.labels = torch.arange(50)  # so that a batch tells which images it holds
    orders = []
    for epoch in range(2):
        drawn = list(images.epoch(epoch, seed=0, batch_size=16, cutout=4))
        assert [len(x) for x, _, _ in drawn] == [whole for _, _, whole in drawn] == [13, 13, 12, 12]
        orders.append(torch.cat([labels for _, labels, _ in drawn]).tolist())
        assert sorted(orders[-1]) == list(range(50))
    assert orders[0] != orders[1]


def test_a_team_draws_together_what_one_draws_alone():
    images = split(50)
    alone = list(images.epoch(3, 7, 16, 4))
    parts = [list(images.epoch(3, 7, 16, 4, rank, 3)) for rank in range(3)]
    for step, (whole, labels, size) in enumerate(alone):
        for rank in range(3):
            x, y, total = parts[rank][step]
            assert torch.equal(x, whole[rank::3]) and torch.equal(y, labels[rank::3]) and total == size


def test_every_image_is_mirrored_in_every_other_epoch(monkeypatch):
    images = split(40)
    seen = []
    monkeypatch.setattr(
        images,
        "augmented",
        lambda i, _s, flips, _c, _n: seen.append(dict(zip(*map(list, (i.tolist(), flips.tolist())), strict=True))),
    )
    epochs = []
    for epoch in range(4):
        seen.clear()
        list(images.epoch(epoch, 0, 16, 4))
        epochs.append({k: v for part in seen for k, v in part.items()})
    for before, after in itertools.pairwise(epochs):
        assert all(before[i] != after[i] for i in range(40))
    assert 8 < sum(epochs[0].values()) < 32


# ---- learning rate, optimiser, average -------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [*RECIPES.values(), RECIPE, replace(RECIPE, epochs=1), replace(RECIPE, epochs=100)])
def test_learning_rate_rises_stays_and_falls_to_nothing(recipe):
    rates = np.array([learning_rate(recipe, step, 50) for step in range(recipe.epochs * 50)])
    top = rates == rates.max()
    assert rates.max() == pytest.approx(recipe.lr, rel=0.05) and 0 < rates[-1] < recipe.lr * 0.04 and rates[0] > 0
    assert (np.diff(rates[: top.argmax() + 1]) > 0).all()
    assert (np.diff(rates[len(top) - top[::-1].argmax() - 1 :]) < 0).all()


def test_weights_decay_and_norms_and_biases_do_not():
    net = models.build("resnet")
    decaying, free = make_optimizer(net, RECIPE).param_groups
    names = {p: n for n, p in net.named_parameters()}
    assert decaying["weight_decay"] == RECIPE.weight_decay and free["weight_decay"] == 0
    assert all(
        "conv" in names[p] or names[p] in ("fc.weight", "layer2.0.shortcut.1.weight") for p in decaying["params"]
    )
    assert all("bn" in names[p] or names[p] == "fc.bias" or ".shortcut.2." in names[p] for p in free["params"])
    assert len(decaying["params"]) + len(free["params"]) == len(names)


def test_the_average_moves_toward_weights_and_statistics():
    average, model = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    with torch.no_grad():
        model.weight.fill_(3.0)
        model.running_mean.fill_(8.0)
        model.num_batches_tracked.fill_(5)
    train.toward(average, model, 0.25)
    assert average.weight.tolist() == [1.5, 1.5] and average.running_mean.tolist() == [2.0, 2.0]
    assert average.num_batches_tracked.item() == 5


@pytest.mark.parametrize("capabilities, fast", [({"amx_bf16": True}, True), ({"avx512_f": True}, False), ({}, False)])
def test_mixed_precision_only_where_the_processor_is_fast_at_it(capabilities, fast, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert train.has_fast_bfloat16(CPU) is fast
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # as in older versions of torch
    assert train.has_fast_bfloat16(CPU) is False


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_cifar(monkeypatch):
    """64 images to train on and 30 to test on in place of CIFAR-10 -> the calls that were made for them."""
    calls = []

    def load(directory, split="train", download=False):
        calls.append((split, download))
        return pictures(64) if split == "train" else pictures(30, seed=1)

    monkeypatch.setattr(data, "load_cifar10", load)
    return calls


def test_the_command_writes_all_that_ships(small_cifar, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    line = ["--model", "resnet", "--data", "d", "--epochs", "2", "--batch-size", "32", "--seed", "3", "--out", str(out)]
    train.main(line)
    assert "of 30 test images" in capsys.readouterr().out
    monkeypatch.setattr(models, "SHIPPED", out)
    card, net = models.card("resnet"), models.load("resnet")
    predicted, probability = models.predictions("resnet")
    pixels, labels = pictures(30, seed=1)
    logits = cards.logits_of(net, batches.Images(pixels, labels, models.REGISTRY["resnet"], CPU))
    assert torch.equal(logits.argmax(1), torch.from_numpy(predicted))
    np.testing.assert_allclose(logits.softmax(1).amax(1).numpy(), probability, atol=1e-6)
    assert card["accuracy"] == pytest.approx((predicted == labels).mean())
    assert card["command"] == "python -m hooklab.train " + " ".join(line) and card["seed"] == 3 and card["epochs"] == 2
    assert card["recipe"]["batch_size"] == 32 and card["processes"] == 1
    assert len((out / "resnet.csv").read_text().splitlines()) == 3
    assert small_cifar == [("train", False), ("test", False)]

    before = (out / "resnet.pth").read_bytes()
    train.main([*line, "--resume"])  # of a finished run: nothing is trained, all is written again
    assert (out / "resnet.pth").read_bytes() == before and models.card("resnet")["command"] == card["command"]


def test_a_holdout_never_opens_the_test_split(small_cifar, tmp_path, capsys):
    line = ["--model", "simple_cnn", "--data", "d", "--epochs", "1", "--holdout", "20", "--out", str(tmp_path)]
    train.main(line)
    assert small_cifar == [("train", False)]
    assert "of 20 held-out training images" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["simple_cnn.csv", "simple_cnn.state"]


def test_F13_training_tells_how_far_it_is_and_fetches_only_when_asked(small_cifar, tmp_path, capsys):
    line = ["--model", "simple_cnn", "--data", "d", "--epochs", "2", "--out", str(tmp_path)]
    train.main(line)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and all("train_loss" in row and "check_accuracy" in row for row in told)
    assert told[0].rstrip("\x1b[K").endswith(" left") and "0:00:00 left" in told[1]
    assert ("train", True) not in small_cifar
    train.main([*line, "--download"])
    assert ("train", True) in small_cifar


def test_F13_a_bar_with_loss_accuracy_and_time_left_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = train.Progress(epochs=3, first=0, steps=4, show=True)
    bar.begun -= 60  # a minute for the first half epoch leaves five
    bar.step(0, 1, torch.tensor(1.5), torch.tensor(0.625))
    assert (
        capsys.readouterr()
        .err.strip("\r\x1b[K")
        .startswith("epoch 1/3 ██████████·········· loss 1.500 accuracy  62.5%  0:05:0")
    )


WRONG = {
    "no data": (
        ["--data", "nowhere"],
        "no CIFAR-10 in nowhere: looked for cifar-10-batches-bin and cifar-10-batches-py",
    ),
    "nothing to resume": (["--resume"], "no checkpoint at"),
    "no such device": (["--device", "gpu9"], "device 'gpu9' is not available here"),
}


@pytest.mark.parametrize("extra, sentence", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_in_one_sentence(extra, sentence, tmp_path, monkeypatch, request):
    if "--data" not in extra:
        request.getfixturevalue("small_cifar")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"^hooklab.train: {sentence}"):
        train.main(["--model", "simple_cnn", "--data", "d", *extra])


@pytest.mark.parametrize(
    "option, value",
    [
        ("--epochs", "0"),
        ("--epochs", "x"),
        ("--lr", "nan"),
        ("--batch-size", "-1"),
        ("--holdout", "50000"),
        ("--seed", "1.5"),
        ("--model", "vgg"),
    ],
)
def test_a_value_out_of_range_is_named(option, value, capsys):
    with pytest.raises(SystemExit):
        train.parse(["--model", "resnet", "--data", "d", option, value])
    message = capsys.readouterr().err
    assert option in message and repr(value) in message and ("accepted" in message or "choose from" in message)


def test_a_foreign_file_is_no_state(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "a.state")
    with pytest.raises(ValueError, match=r"a\.state is not the state of a training"):
        fit("simple_cnn", tmp_path / "a.state", resume=True)
