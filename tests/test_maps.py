import dataclasses
import math

import numpy as np
import pytest

from hooklab import maps
from hooklab.maps import Estimate, Maps, Settings

CLASSES = ("ant", "bee", "cow")
RANDOM = np.random.default_rng(0)


def make(raw=None, n=6, method="gradcam", evidence=None, label=None, predicted=None):
    raw = RANDOM.standard_normal((n, 4, 6)).astype(np.float32) if raw is None else np.asarray(raw, np.float32)
    n = len(raw)
    settings = Settings("net", "f00", "test", n, "conv", (method,), CLASSES, "blur" if evidence else None, 10)
    whole = np.arange(n)
    return Maps(
        settings,
        index=whole + 100,
        label=whole % 3 if label is None else np.asarray(label),
        predicted=whole % 3 if predicted is None else np.asarray(predicted),
        probability=np.linspace(0.5, 1, n, dtype=np.float32),
        raw={method: raw},
        evidence=evidence or {},
    )


def test_a_file_is_read_as_it_was_written(tmp_path):
    figures = {name: RANDOM.random((6, 4), np.float32) for name in ("gradcam", "random", "centre")}
    before = make(evidence=figures)
    maps.write(tmp_path / "maps.npz", before)
    after = maps.read(tmp_path / "maps.npz")
    assert after.settings == before.settings
    for name in ("index", "label", "predicted", "probability"):
        assert (getattr(after, name) == getattr(before, name)).all()
    np.testing.assert_allclose(
        after.raw["gradcam"], before.raw["gradcam"], atol=1e-3 * abs(before.raw["gradcam"]).max()
    )
    assert all((after.evidence[name] == figures[name]).all() for name in figures)
    assert [path.name for path in tmp_path.iterdir()] == ["maps.npz"]


def test_float16_neither_overflows_nor_sinks(tmp_path):
    raw = RANDOM.standard_normal((5, 4, 6)) * np.array([1e-30, 1e-8, 1, 1e8, 1e30])[:, None, None]
    maps.write(tmp_path / "maps.npz", make(raw))
    after = maps.read(tmp_path / "maps.npz").raw["gradcam"]
    for one, other in zip(after, raw, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3 * abs(other).max())
    with np.load(tmp_path / "maps.npz") as file:
        assert file["maps/gradcam"].dtype == np.float16


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    maps.write(tmp_path / "maps.npz", make())
    before = (tmp_path / "maps.npz").read_bytes()

    def broken(file, **arrays):
        file.write(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises(KeyboardInterrupt):
        maps.write(tmp_path / "maps.npz", make())
    assert (tmp_path / "maps.npz").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut short", None])
def test_a_file_of_something_else_is_refused_in_words(tmp_path, content):
    path = tmp_path / "maps.npz"
    if content is None:
        np.savez(path, other=np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"maps\.npz: not a file that python -m hooklab.explain wrote"):
        maps.read(path)
    with pytest.raises(ValueError, match=r"nothing\.npz: there is no such file"):
        maps.read(tmp_path / "nothing.npz")


def test_parts_are_joined_in_the_order_of_the_split():
    whole = make(n=6)
    parts = []
    for rows in ([4, 5], [0, 1], [2, 3]):
        simple = {name: getattr(whole, name)[rows] for name in ("index", "label", "predicted", "probability")}
        parts.append(dataclasses.replace(whole, **simple, raw={"gradcam": whole.raw["gradcam"][rows]}))
    joined = maps.join(parts)
    assert (joined.index == whole.index).all()
    assert (joined.probability == whole.probability).all()
    assert (joined.raw["gradcam"] == whole.raw["gradcam"]).all()


# -- where the heat lies


def test_the_average_of_a_class_is_the_mean_of_its_heat():
    raw = np.array([[[2.0, -4.0]], [[1.0, 2.0]], [[-1.0, -2.0]], [[3.0, 3.0]]])  # (4, 1, 2): the third is blank
    found = make(raw, label=[0, 0, 1, 1], predicted=[0, 0, 0, 1])
    by_predicted, counts = maps.average_by_class(found)
    assert counts.tolist() == [3, 1, 0]
    np.testing.assert_allclose(by_predicted, [[[1.5 / 3, 1 / 3]], [[1, 1]], [[0, 0]]], rtol=1e-6)
    by_label, counts = maps.average_by_class(found, "gradcam", by="label")
    assert counts.tolist() == [2, 2, 0]
    np.testing.assert_allclose(by_label, [[[0.75, 0.5]], [[0.5, 0.5]], [[0, 0]]], rtol=1e-6)


def test_the_centre_is_the_middle_half_of_both_sides():
    flat, inside, corner, blank = np.ones((8, 8)), np.zeros((8, 8)), np.zeros((8, 8)), -np.ones((8, 8))
    inside[2:6, 2:6], corner[0, 0] = 1, 1
    found = make([flat, inside, corner, blank])
    np.testing.assert_allclose(maps.centre_share(found), [0.25, 1, 0, np.nan])
    assert maps.off_centre(found).tolist() == [102, 100, 101]  # the blank one is left out
    np.testing.assert_allclose(maps.centre_share(make(np.ones((1, 5, 7)))), [0.25], rtol=1e-6)  # cells cut by the edge


# -- the table of methods


def test_estimates_are_normal_and_wilson_intervals():
    values = RANDOM.random(50)
    found = Estimate.of(values)
    half = 1.959964 * np.std(values, ddof=1) / math.sqrt(50)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == (pytest.approx(values.mean() - half), pytest.approx(values.mean() + half))
    share = Estimate.of_share(np.arange(10) < 8)  # 8 of 10: a textbook's 0.490 to 0.943
    assert (share.value, round(share.low, 3), round(share.high, 3)) == (0.8, 0.490, 0.943)
    assert Estimate.of_share(np.zeros(5, bool)).low == pytest.approx(0)
    assert Estimate.of_share(np.ones(5, bool)).high == pytest.approx(1)
    assert Estimate.of(np.array([0.3])).high == math.inf


def figures(n, deletion, insertion, drop=0.0, increase=0.0):
    return np.tile(np.float32([deletion, insertion, drop, increase]), (n, 1))


def test_faithfulness_is_the_mean_over_images():
    mine = figures(6, 0.3, 0.7, 0.1)
    mine[:2] = (0.8, 0.2, 0.5, 1.0)  # two of six images are worse than random
    found = make(evidence={"gradcam": mine, "random": figures(6, 0.5, 0.5, 0.2, 0.25), "centre": figures(6, 0.4, 0.6)})
    row, random, centre = maps.faithfulness(found)
    assert (row.method, random.method, centre.method) == ("gradcam", "random", "centre")
    assert row.deletion.value == pytest.approx((4 * 0.3 + 2 * 0.8) / 6)
    assert row.insertion.value == pytest.approx((4 * 0.7 + 2 * 0.2) / 6)
    assert row.drop.value == pytest.approx((4 * 0.1 + 2 * 0.5) / 6)
    assert row.increase.value == pytest.approx(2 / 6)
    assert row.beats_random.value == pytest.approx(4 / 6)
    assert centre.beats_random.value == 1
    assert random.beats_random is None
    assert random.increase.value == pytest.approx(0.25)
    assert row.blank == 0


def test_the_table_has_a_line_a_method_and_says_what_it_shows():
    found = make(evidence={name: figures(6, 0.25, 0.75, 0.125) for name in ("gradcam", "random", "centre")})
    text = maps.table([found, found])
    lines = [line for line in text.splitlines() if line.startswith("| net |")]
    assert len(lines) == 6
    assert lines[0].startswith("| net | gradcam | 0.250 ± 0.000 | 0.750 ± 0.000 | 12.5% ± 0.0% | 0.0% ± 19.5% |")
    assert "first 6 images of the test split, at `conv` of net" in text
    assert "a point every 10 %, against a blurred picture" in text


def test_bad_questions_are_answered_in_words():
    with pytest.raises(ValueError, match="holds no evidence; write it with --evidence"):
        maps.faithfulness(make())
    with pytest.raises(ValueError, match="method 'layercam': this file has gradcam"):
        maps.heat(make(), "layercam")
    with pytest.raises(ValueError, match=r"by 'size': accepted are 'predicted' and 'label'"):
        maps.average_by_class(make(), by="size")
