"""Browsing: every filter and every count against a plain loop over the 10,000 images."""

import base64
import statistics
import time
from types import SimpleNamespace

import numpy as np
import pytest

from hooklab import data, models
from hooklab.lab import Lab
from hooklab.ui import browse
from hooklab.ui.question import Refusal

LABELS = data.test_labels()


def made_up(seed, accuracy):
    """Predictions, right as often as `accuracy` says; probabilities in steps of 0.01, so that many are equal."""
    random = np.random.default_rng(seed)
    wrong = random.random(10_000) > accuracy
    predicted = np.where(wrong, (LABELS + random.integers(1, 10, 10_000)) % 10, LABELS)
    return predicted, random.integers(10, 101, 10_000).astype(np.float32) / 100


@pytest.fixture
def predictions(monkeypatch):
    made = {"simple_cnn": made_up(1, 0.8), "resnet": made_up(2, 0.9)}
    monkeypatch.setattr(browse, "predictions", made.__getitem__)
    return made


def labs(**shipped):
    shipped = shipped or {"simple_cnn": True, "resnet": True}
    return {name: SimpleNamespace(classes=data.CLASSES, shipped=value) for name, value in shipped.items()}


def find(**request):
    return browse.find(labs(), {"model": "simple_cnn", **request})


def loop(predictions, model="simple_cnn", truth=None, predicted=None, outcome="any", low=0, high=1, versus="any"):
    """The same by hand: indices of the images that pass."""
    other = "resnet" if model == "simple_cnn" else "simple_cnn"
    answers, probabilities = (values.tolist() for values in predictions[model])
    rows = enumerate(zip(LABELS.tolist(), answers, probabilities, predictions[other][0].tolist(), strict=True))
    low, high = float(np.float32(low)), float(np.float32(high))  # "0.9" includes what the file holds as 0.9
    found = []
    for index, (label, mine, p, theirs) in rows:
        if truth is not None and data.CLASSES[label] != truth:
            continue
        if predicted is not None and data.CLASSES[mine] != predicted:
            continue
        if not low <= p <= high or (outcome != "any" and (outcome == "right") != (mine == label)):
            continue
        if versus == "disagree" and mine == theirs:
            continue
        rights = {"only_this": (True, False), "only_other": (False, True), "neither": (False, False)}
        if versus in rights and rights[versus] != (mine == label, theirs == label):
            continue
        found.append(index)
    return found


CASES = [
    {},
    {"model": "resnet"},
    {"truth": "cat"},
    {"predicted": "dog"},
    {"truth": "cat", "predicted": "dog"},
    {"truth": "ship", "predicted": "ship"},
    {"outcome": "wrong"},
    {"outcome": "right", "truth": "frog"},
    {"low": 0.5},
    {"low": 0.25, "high": 0.5},
    {"low": 1, "high": 1},
    {"versus": "disagree"},
    {"versus": "only_this"},
    {"versus": "only_other", "model": "resnet"},
    {"versus": "neither", "truth": "bird", "low": 0.9},
    {"outcome": "right", "versus": "neither"},  # no image can be both
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_images_and_every_count_are_those_of_a_plain_loop(predictions, case):
    got, want = find(**case), loop(predictions, **case)
    answers, probabilities = predictions[case.get("model", "simple_cnn")]
    assert got["count"] == len(want)
    assert got["right"] == sum(answers[i] == LABELS[i] for i in want)
    surest = sorted(want, key=lambda i: (-probabilities[i], i))
    assert got["images"]["index"] == surest[:60]

    without = {key: value for key, value in case.items() if key not in ("truth", "predicted")}
    matrix = np.zeros((10, 10), int)
    for i in loop(predictions, **without):
        matrix[LABELS[i], answers[i]] += 1
    assert got["matrix"] == matrix.tolist()

    without = {key: value for key, value in case.items() if key not in ("low", "high")}
    every = loop(predictions, **without)
    for name, right in (("right", True), ("wrong", False)):
        bins = [0] * 20
        for i in every:
            if (answers[i] == LABELS[i]) == right:
                bins[min(int(np.float32(20) * probabilities[i]), 19)] += 1
        assert got["histogram"][name] == bins

    for key, names in (("outcome", browse.OUTCOMES), ("versus", browse.VERSUS)):
        counts = got["outcomes" if key == "outcome" else "versus"]
        assert counts == {name: len(loop(predictions, **{**case, key: name})) for name in names}


def test_the_sheets_hold_every_image_once_in_order_and_one_too_far_is_the_last(predictions):
    probabilities = predictions["simple_cnn"][1]
    want = {
        "sure": lambda i: (-probabilities[i], i),
        "unsure": lambda i: (probabilities[i], i),
        "index": lambda i: i,
    }
    for sort, key in want.items():
        first = find(truth="cat", outcome="wrong", sort=sort)
        indices = []
        for sheet in range(first["sheets"]):
            indices += find(truth="cat", outcome="wrong", sort=sort, sheet=sheet)["images"]["index"]
        assert indices == sorted(loop(predictions, truth="cat", outcome="wrong"), key=key)
        assert find(truth="cat", outcome="wrong", sort=sort, sheet=9999)["sheet"] == first["sheets"] - 1


def test_a_tile_carries_what_both_networks_say_and_its_pixels(predictions):
    images = find(versus="disagree", sort="index", sheet=3)["images"]
    pixels = np.frombuffer(base64.b64decode(images["pixels"]), np.uint8).reshape(-1, 32, 32, 3)
    for k, index in enumerate(images["index"]):
        picture, label = data.test_image(index)
        assert (pixels[k] == np.asarray(picture)).all() and images["label"][k] == label
        for name, what, p in (("simple_cnn", "predicted", "probability"), ("resnet", "other", "other_probability")):
            assert images[what][k] == predictions[name][0][index]
            assert images[p][k] == pytest.approx(predictions[name][1][index])


def test_nothing_found_is_an_answer(predictions):
    got = find(outcome="right", versus="neither")
    assert (got["count"], got["sheets"], got["sheet"], got["images"]["index"]) == (0, 1, 0, [])
    assert got["images"]["pixels"] == ""


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        *[("model", value, "choice") for value in (None, "vgg", 3, ["resnet"])],
        *[("truth", value, "target") for value in ("zebra", 10, -1, True, ["cat"])],
        *[("predicted", value, "target") for value in ("zebra", 1.5)],
        *[("outcome", value, "choice") for value in ("maybe", None, True)],
        *[("versus", value, "choice") for value in ("both", 1)],
        *[("sort", value, "choice") for value in ("random", {})],
        *[("sheet", value, "integer") for value in (-1, 1.5, "2", True, 10**9)],
        *[("low", value, "number") for value in (-0.1, 1.1, "0.5", float("nan"), True)],
        *[("high", value, "number") for value in (-0.1, 1.1, None)],
    ],
)
def test_hostile_values_are_refused_by_name(predictions, field, value, code):
    with pytest.raises(Refusal) as caught:
        find(**{field: value})
    assert caught.value.code == code and repr(value)[:20] in str(caught.value)


def test_a_range_that_ends_before_it_begins_is_refused(predictions):
    with pytest.raises(Refusal, match=r"high 0\.4: a number from 0\.5 to 1"):
        find(low=0.5, high=0.4)


def test_without_a_second_network_that_ships_there_is_no_comparison(predictions):
    for others in ({"simple_cnn": True}, {"simple_cnn": True, "resnet": False}):
        got = browse.find(labs(**others), {"model": "simple_cnn"})
        assert got["other"] is got["versus"] is got["images"]["other"] is None
        assert got["count"] == 10_000


def test_weights_of_your_own_have_no_shippedpredictions(predictions):
    with pytest.raises(Refusal, match="weights of your own"):
        browse.find(labs(simple_cnn=False, resnet=True), {"model": "simple_cnn"})


def test_an_answer_takes_under_100_ms(predictions):
    find()
    times = []
    for case in CASES * 2:
        began = time.perf_counter()
        find(**case)
        times.append(time.perf_counter() - began)
    assert statistics.median(times) < 0.1


def test_the_tab_opens_with_the_picture_and_the_shipped_predictions_are_the_models_own():
    real = {name: Lab(name, device="cpu") for name in models.REGISTRY}
    for name, lab in real.items():
        answer = browse.view(real, {"model": name, "index": 25, "sort": "index", "sheet": 5})
        assert answer["index"] == 25 and answer["browse"]["model"] == name
        images = answer["browse"]["images"]
        logits = lab.predict(np.stack([np.asarray(data.test_image(index)[0]) for index in images["index"]]))
        assert logits.argmax(1).tolist() == images["predicted"]
        exponentials = np.exp(logits - logits.max(1, keepdims=True))
        assert np.allclose((exponentials / exponentials.sum(1, keepdims=True)).max(1), images["probability"], atol=1e-3)
        assert answer["browse"]["matrix"] == models.card(name)["confusion_matrix"]
