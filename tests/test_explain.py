import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hooklab import data, erasing, evidence, explain, maps
from hooklab.cam import METHODS
from hooklab.lab import Lab

LIMIT = 8


@pytest.fixture(scope="module")
def lab():
    return Lab("simple_cnn", device="cpu")


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(explain, "PART", 3)


def run(out, *more):
    explain.main(["--limit", str(LIMIT), "--batch-size", "3", "--device", "cpu", "--out", str(out), *more])
    return maps.read(out)


def same(one, other):
    assert one.settings == other.settings
    for name in ("index", "label", "predicted", "probability"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-6)
    for found, expected in ((one.raw, other.raw), (one.evidence, other.evidence)):
        assert found.keys() == expected.keys()
        for name in found:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-6)


def test_maps_in_batches_are_the_maps_one_by_one(lab):
    layer = "pool:3.input"
    pixels = data.test_images()[:3]
    logits, found = explain.explain_batch(lab, pixels, layer, tuple(METHODS))
    assert list(found) == list(METHODS)
    for n, picture in enumerate(pixels):
        for method, raws in found.items():
            alone = lab.explain(picture, layer, None, method)
            np.testing.assert_allclose(raws[n], alone.raw, rtol=1e-3, atol=3e-4 * abs(alone.raw).max())
        np.testing.assert_allclose(logits[n], alone.logits, rtol=1e-4, atol=1e-4)


def test_figures_are_those_of_the_evidence(lab):
    pixels, raws = data.test_images()[7], [lab.explain(7, method=m).raw for m in ("gradcam", "layercam")]
    rows = explain.judge(lab, pixels, np.stack(raws), 3, 7, "blur")
    against = evidence.yardsticks(lab.probabilities, pixels, (8, 8), seed=7, step=10)
    for row, raw in zip(rows[: len(raws)], raws, strict=True):
        alone = evidence.evidence(lab.probabilities, pixels, raw, 3, against, step=10)
        curves = alone.curves["blur"]
        expected = curves["map"].deletion_area, curves["map"].insertion_area, alone.drop["map"], alone.increase["map"]
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-6)
    assert rows[2][0] == pytest.approx(curves["random"].deletion_area, rel=1e-4)
    assert rows[3][1] == pytest.approx(curves["centre"].insertion_area, rel=1e-4)


def test_the_file_holds_what_the_network_says_of_the_split(lab, tmp_path, small_parts, capsys):
    found = run(tmp_path / "maps.npz", "--evidence", "--method", "gradcam", "eigencam")
    assert found.index.tolist() == list(range(LIMIT))
    assert (found.label == data.test_labels()[:LIMIT]).all()
    logits = lab.predict(data.test_images()[:LIMIT])
    assert (found.predicted == logits.argmax(1)).all()
    assert found.settings.layer == "pool:3.input"
    assert set(found.evidence) == {"gradcam", "eigencam", *maps.RIVALS}
    for n in (0, LIMIT - 1):
        np.testing.assert_allclose(found.raw["gradcam"][n], lab.explain(n).raw, rtol=2e-3, atol=1e-3)
    assert [path.name for path in tmp_path.iterdir()] == ["maps.npz"]  # no parts are left
    printed = capsys.readouterr()
    assert "| simple_cnn | eigencam |" in printed.out
    assert f"{LIMIT} of {LIMIT} images" in printed.err


def test_an_interrupted_run_continues_to_the_same_file(tmp_path, small_parts, monkeypatch):
    whole = run(tmp_path / "whole.npz", "--evidence")
    original, computed = explain.explain_part, []

    def interrupted(lab, settings, pixels, labels, first, batch):
        computed.append(first)
        if len(computed) == 2:
            raise KeyboardInterrupt
        return original(lab, settings, pixels, labels, first, batch)

    monkeypatch.setattr(explain, "explain_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "maps.npz", "--evidence")
    same(run(tmp_path / "maps.npz", "--evidence"), whole)
    assert computed == [0, 3, 3, 6]  # the first part is not computed again
    run(tmp_path / "maps.npz", "--evidence")
    assert len(computed) == 4  # nor is a finished file


def test_parts_of_another_run_are_not_mixed_in(tmp_path, small_parts, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(explain, "explain_part", interrupted)
        run(tmp_path / "maps.npz")
    with pytest.raises(ValueError, match=r"parts of another run \(layer 'pool:3.input' then, 'conv1' now\): delete it"):
        run(tmp_path / "maps.npz", "--layer", "conv1")


SCRIPT = """
import os, sys
from hooklab import explain
explain.PART = 3
out = sys.argv[1].format(rank=os.environ["RANK"])
explain.main(["--limit", "{limit}", "--device", "cpu", "--batch-size", "3", "--out", out, "--method", "hirescam"])
"""


@pytest.mark.parametrize("place", ["maps.npz", "machine{rank}/maps.npz"], ids=["one disk", "a disk each"])
def test_two_processes_write_what_one_writes(tmp_path, place):
    alone = run(tmp_path / "alone.npz", "--method", "hirescam")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{limit}", str(LIMIT)))
    root = str(Path(explain.__file__).parents[1])
    subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            script,
            tmp_path / place,
        ],
        check=True,
        capture_output=True,
        timeout=180,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
    )
    same(maps.read(str(tmp_path / place).format(rank=0)), alone)
    assert not list(tmp_path.rglob("*.parts"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit", "0"], "--limit 0: accepted are whole numbers from 1 to 10000"),
        (["--limit", "10001"], "--limit 10001: accepted are whole numbers from 1 to 10000"),
        (["--batch-size", "-3"], "--batch-size -3: accepted are whole numbers from 1 to"),
        (["--layer", "conv9"], "layer 'conv9': this model has no such layer"),
        (["--layer", "fc1"], "layer 'fc1' holds 512: a map needs"),
        (["--split", "train"], "split 'train' does not ship with hooklab"),
        (["--split", "train", "--data", "no/where"], "no CIFAR-10 in no"),
        (["--table", "no.npz"], "no.npz: there is no such file"),
        (["--checkpoint", "no.pth"], r"no checkpoint at no\.pth"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(tmp_path, arguments, message):
    with pytest.raises((ValueError, OSError), match=message):
        explain.main(["--device", "cpu", "--out", str(tmp_path / "maps.npz"), *arguments])
    assert not list(tmp_path.iterdir())


def test_the_command_prints_a_table_of_finished_files(tmp_path, capsys):
    n = 3
    figures = {name: np.full((n, 4), 0.5, np.float32) for name in ("gradcam", *maps.RIVALS)}
    settings = maps.Settings("resnet", "f00", "test", n, "layer2", ("gradcam",), data.CLASSES, erasing.BASELINES[0], 10)
    whole = np.arange(n)
    found = maps.Maps(settings, whole, whole, whole, whole / 3, {"gradcam": np.ones((n, 2, 2))}, figures)
    maps.write(tmp_path / "maps.npz", found)
    explain.main(["--table", str(tmp_path / "maps.npz")])
    assert "| resnet | gradcam | 0.500 ± 0.000 |" in capsys.readouterr().out


def test_a_wrong_word_on_the_command_line_leaves_without_a_trace(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "hooklab.explain", "--table", tmp_path / "no.npz"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("no.npz: there is no such file")
    assert "Traceback" not in done.stderr
