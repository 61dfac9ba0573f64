"""The score for pictures unlike the training data: its parts against closed forms, and what ships against a recount."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hooklab import data, models, unlike
from hooklab.lab import Lab


@pytest.fixture(scope="module")
def lab():
    return Lab("simple_cnn", device="cpu")


def test_channel_means_are_the_means_of_the_feature_maps(lab):
    layers = unlike.LAYERS["simple_cnn"]
    pixels = np.stack([np.asarray(data.test_image(index)[0]) for index in range(40)])  # two chunks
    means = lab.channel_means(pixels, layers)
    assert means.shape == (40, 32 + 64 + 128) and means.dtype == np.float32
    for index in (0, 39):
        want = np.concatenate([lab.features(index, layer).maps.mean((1, 2)) for layer in layers])
        assert np.allclose(means[index], want, atol=1e-5)


def test_a_layer_without_maps_has_no_channel_means(lab):
    with pytest.raises(ValueError, match="fc1"):
        lab.channel_means(np.zeros((1, 32, 32, 3), np.uint8), ["fc1"])


def test_the_distance_is_mahalanobis_and_its_percentiles_hold_for_what_it_has_not_seen():
    random = np.random.default_rng(0)
    mixing = random.normal(size=(6, 6))
    draw = lambda count: random.normal(size=(count, 6)) @ mixing + 3  # noqa: E731
    seen, unseen = draw(20_000), draw(20_000)
    yardstick = unlike.fit(seen, unseen)
    covariance = np.cov(seen, rowvar=False)
    covariance += unlike.RIDGE * np.trace(covariance) / 6 * np.eye(6)
    x = unseen[:5] - seen.mean(0)
    want = np.sqrt(np.einsum("ni,ij,nj->n", x, np.linalg.inv(covariance), x))
    assert np.allclose(yardstick.distance(unseen[:5]), want, rtol=1e-3)
    new = yardstick.distance(draw(20_000))
    assert np.mean(new > yardstick.distances[10 * unlike.PERCENTILE]) == pytest.approx(0.01, abs=0.003)
    assert yardstick.nearer(0) == 0 and yardstick.nearer(1e9) == 1
    assert yardstick.nearer(float(np.median(new))) == pytest.approx(0.5, abs=0.02)


def test_a_silent_channel_does_not_rule_the_distance():
    random = np.random.default_rng(1)
    seen = np.concatenate([random.normal(size=(1000, 3)), np.zeros((1000, 1))], 1)
    yardstick = unlike.fit(seen, seen)
    assert np.isfinite(yardstick.distance(seen)).all()
    assert yardstick.distance(np.array([[0, 0, 0, 0.01]]))[0] < 1


def test_unsure_is_the_largest_limit_under_which_most_answers_are_wrong():
    probability = np.array([0.205, 0.305, 0.405, 0.505, 0.905])
    cases = {
        (0, 0, 1, 1, 1): {"below": 0.5, "images": 3, "right": 0.3333},  # at 0.51 it would be 2 of 4
        (0, 1, 1, 0, 1): {"below": 0.3, "images": 1, "right": 0.0},
        (1, 0, 0, 1, 1): {"below": 0.5, "images": 3, "right": 0.3333},
        (0, 0, 0, 0, 0): {"below": 0.99, "images": 5, "right": 0.0},
    }
    for right, want in cases.items():
        assert unlike.unsure(probability, np.array(right, bool)) == want
    never = unlike.unsure(probability, np.ones(5, bool))
    assert never == {"below": 0.0, "images": 0, "right": 0.0}


def test_energy_and_probability_are_those_of_torch():
    logits = np.random.default_rng(2).normal(scale=40, size=(9, 10)).astype(np.float32)
    energy, probability = unlike.scores(logits)
    assert np.allclose(energy, torch.from_numpy(logits).logsumexp(1), rtol=1e-5)
    assert np.allclose(probability, torch.from_numpy(logits).softmax(1).max(1).values, rtol=1e-5)


def test_the_made_up_pictures_are_what_their_names_say():
    made = unlike.made_up(np.random.default_rng(0), 20)
    again = unlike.made_up(np.random.default_rng(0), 20)
    for kind, pictures in made.items():
        assert pictures.shape == (20, 32, 32, 3) and pictures.dtype == np.uint8, kind
        assert (pictures == again[kind]).all() and len({picture.tobytes() for picture in pictures}) == 20, kind
    assert (made["colour"] == made["colour"][:, :1, :1]).all()
    photos = 255 - made["negative"]
    everything = {image.tobytes() for image in data.test_images()}
    assert all(photo.tobytes() in everything for photo in photos)
    for photo, tiled in zip(photos, made["tiles"], strict=True):
        assert (np.sort(photo.reshape(-1, 3), 0) == np.sort(tiled.reshape(-1, 3), 0)).all() and (photo != tiled).any()
    assert all(len(np.unique(picture.reshape(-1, 3), axis=0)) > 2 for picture in made["letters"])
    assert made["clouds"].std((1, 2)).mean() > 20


@pytest.mark.parametrize("name", unlike.LAYERS)
def test_the_figures_that_ship_are_of_the_weights_that_ship(name):
    measured = unlike.load(name)
    assert measured is not None, f"run python -m hooklab.unlike --model {name}"
    figures, yardstick = measured
    assert figures["layers"] == list(unlike.LAYERS[name]) and figures["percentile"] == unlike.PERCENTILE
    assert figures["threshold"] == pytest.approx(float(yardstick.distances[990]))
    predicted, probability = models.predictions(name)
    assert figures["unsure"] == unlike.unsure(probability, predicted == data.test_labels())

    # A recount on a part: odd-numbered test images are rarely called unlike, and strange pictures as often as stated.
    lab = Lab(name, device="cpu")
    odd = data.test_images()[1:2001:2]
    far = yardstick.distance(lab.channel_means(odd, figures["layers"])) > figures["threshold"]
    assert far.mean() < 0.025
    for kind, pictures in unlike.made_up(np.random.default_rng(7), 100).items():
        far = yardstick.distance(lab.channel_means(pictures, figures["layers"])) > figures["threshold"]
        assert far.mean() == pytest.approx(figures["found"][kind], abs=0.15), kind


def test_doubts_are_told_of_pictures_of_ones_own_and_of_unsure_answers(lab):
    limit = unlike.load("simple_cnn")[0]["unsure"]["below"]
    photo = np.asarray(data.test_image(1218)[0])
    noise = unlike.made_up(np.random.default_rng(3), 1)["noise"][0]
    assert unlike.doubt(lab, noise, 0.99, own=True)["unlike"] is True
    assert unlike.doubt(lab, noise, 0.99, own=True)["nearer"] > 0.99
    assert unlike.doubt(lab, photo, 0.99, own=True)["unlike"] is False
    assert "unlike" not in unlike.doubt(lab, noise, 0.99, own=False)  # a test image is what it is
    assert unlike.doubt(lab, photo, limit, own=False)["unsure"] is True
    assert unlike.doubt(lab, photo, limit + 0.01, own=False)["unsure"] is False


def test_without_figures_for_these_very_weights_nothing_is_claimed(lab, tmp_path):
    assert unlike.doubt(SimpleNamespace(shipped=False, name="simple_cnn"), None, 0.1, own=True) is None
    assert unlike.load("simple_cnn", tmp_path) is None
    figures, _ = unlike.load("simple_cnn")
    (tmp_path / "stale").mkdir()
    (tmp_path / "stale" / "simple_cnn.unlike.json").write_text(json.dumps({**figures, "sha256": "0" * 64}))
    assert unlike.load("simple_cnn", tmp_path / "stale") is None
