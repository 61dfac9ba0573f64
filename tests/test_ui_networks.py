"""Two networks side by side: each entry is its own Lab's answer, for one common class."""

import base64
import json
from types import SimpleNamespace

import numpy as np
import pytest

from hooklab import data
from hooklab.ui import browse, networks
from hooklab.ui.question import Refusal
from tests.test_ui import unpack


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"model": "resnet", "index": 25},
        {"index": 3, "target": "cat", "method": "layercam"},
        {"layer": "conv2", "other_layer": "layer1", "index": 90},
        {"model": "resnet", "layer": "relu1", "other_layer": "conv3", "target": 0},
    ],
    ids=str,
)
def test_each_map_is_that_of_its_own_network_for_the_common_class(labs, request_):
    answer = networks.view(labs, request_)
    json.dumps(answer)
    model = request_.get("model", "simple_cnn")
    first, second = answer["networks"]
    assert (first["model"], second["model"]) == (model, "resnet" if model == "simple_cnn" else "simple_cnn")
    marked = []
    for found, field in ((first, "layer"), (second, "other_layer")):
        own = labs[found["model"]].explain(
            request_.get("index", 1218), request_.get(field), answer["target"], request_.get("method", "gradcam")
        )
        assert (found["layer"], found["target"]) == (own.layer, answer["target"])
        assert found["predicted"] == own.predicted and np.allclose(found["probabilities"], own.probabilities, atol=1e-6)
        assert np.allclose(unpack(found["map"]["raw"]), own.raw, atol=1e-3 * np.abs(own.raw).max())
        marked.append(own.heatmap > 0.5)
    assert first["predicted"] == answer["predicted"]
    both = sum(a and b for a, b in zip(*(m.ravel() for m in marked), strict=True))
    either = sum(a or b for a, b in zip(*(m.ravel() for m in marked), strict=True))
    assert answer["overlap"] == pytest.approx(both / either)


def test_the_class_is_the_one_that_the_chosen_network_predicts(labs):
    for model in labs:
        answer = networks.view(labs, {"model": model, "index": 4})
        assert answer["target"] == labs[model].explain(4).predicted


def test_a_layer_without_maps_has_no_map_and_no_overlap(labs):
    answer = networks.view(labs, {"layer": "fc1"})
    assert answer["networks"][0]["map"] is answer["overlap"] is None
    assert answer["networks"][0]["predicted"] == answer["predicted"]
    assert np.allclose(answer["networks"][0]["probabilities"], answer["probabilities"], atol=1e-6)


def test_a_wrong_other_layer_falls_back_with_a_note_and_a_swapped_one_without(labs):
    wrong = networks.view(labs, {"other_layer": "conv9"})
    assert wrong["networks"][1]["layer"] == "layer2" and [code for code, _ in wrong["notes"]] == ["layer"]
    swapped = networks.view(labs, {"model": "resnet", "other_layer": "layer1"})  # it was the other one's a click ago
    assert swapped["networks"][1]["layer"] == "pool:3.input" and swapped["notes"] == []
    for value in (3, True, ["layer1"], {}):
        assert networks.view(labs, {"other_layer": value})["networks"][1]["layer"] == "layer2"


def test_a_picture_of_ones_own_goes_to_both(labs):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    answer = networks.view(labs, {"pixels": base64.b64encode(pixels.tobytes()).decode(), "target": "frog"})
    assert answer["index"] is None
    for found in answer["networks"]:
        own = labs[found["model"]].explain(pixels, target="frog")
        assert np.allclose(unpack(found["map"]["raw"]), own.raw, atol=1e-3 * np.abs(own.raw).max())


def test_one_network_alone_is_an_answer_too(labs):
    answer = networks.view({"resnet": labs["resnet"]}, {})
    assert [found["model"] for found in answer["networks"]] == ["resnet"] and answer["overlap"] is None


def test_the_next_disagreement_is_the_next_in_a_plain_walk(labs):
    mine, theirs = browse.predictions("simple_cnn")[0], browse.predictions("resnet")[0]
    for start in (0, 1218, 5000, 9999):
        want = next(i % 10_000 for i in range(start + 1, start + 10_002) if mine[i % 10_000] != theirs[i % 10_000])
        got = networks.disagreement(labs, {"index": start})
        assert got == {"index": want, "count": sum(a != b for a, b in zip(mine.tolist(), theirs.tolist(), strict=True))}
        logits = [lab.predict(np.asarray(data.test_image(want)[0])[None])[0] for lab in labs.values()]
        assert logits[0].argmax() != logits[1].argmax()


@pytest.mark.parametrize("index", [-1, 10_000, "3", True, None, 1.5])
def test_a_hostile_index_is_refused(labs, index):
    with pytest.raises(Refusal, match="index"):
        networks.disagreement(labs, {"index": index})


def test_there_is_no_next_disagreement_without_two_shipped_networks(labs):
    for others in ({"resnet": labs["resnet"]}, {**labs, "simple_cnn": SimpleNamespace(shipped=False)}):
        with pytest.raises(Refusal, match="predictions that ship"):
            networks.disagreement(others, {"index": 0})
