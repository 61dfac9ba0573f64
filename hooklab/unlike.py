"""Is a picture unlike what a network was trained on, or the network unsure of it? A score from hooks, measured.

    python -m hooklab.unlike                    # writes checkpoints/NAME.unlike.json and .npz for each network

A softmax always adds up to 1: noise, too, gets a class, and often a high probability. What gives strange pictures away
is inside. Forward hooks catch a few layers; the mean of each of their channels makes one vector an image; the score is
that vector's Mahalanobis distance from the test images' (as Lee et al. 2018, arXiv:1807.03888, but with one Gaussian
for all classes). The Gaussian is fitted to the even-numbered test images. The odd-numbered ones set the threshold, at
their 99th percentile, and pictures that are made up here show how much it finds and how much it misses.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hooklab import data, models
from hooklab.lab import Lab

LAYERS = {
    "simple_cnn": ("pool:1.input", "pool:2.input", "pool:3.input"),  # each convolution after its ReLU
    "resnet": ("relu1", "relu2", "layer1", "layer2"),
}
PERCENTILE = 99  # of the test images that are nearer than the threshold
RIDGE = 1e-3  # of the mean variance, so that a silent channel's tiny variance does not rule the distance
MADE_UP = 1000  # pictures of each kind


@dataclass(frozen=True, eq=False)
class Yardstick:
    """What distances are measured with and compared to."""

    mean: np.ndarray  # float32 (C,)
    whitening: np.ndarray  # float32 (C, C): (means - mean) @ whitening has the identity as covariance
    distances: np.ndarray  # float32 (1001,): of the odd-numbered test images, at every tenth of a percent

    def distance(self, means: np.ndarray) -> np.ndarray:
        """(N, C) -> (N,)."""
        return np.linalg.norm((means - self.mean) @ self.whitening, axis=1)

    def nearer(self, distance: float) -> float:
        """The share of test images that are nearer than `distance`."""
        return float(np.searchsorted(self.distances, distance) / len(self.distances))


def doubt(lab: Lab, pixels: np.ndarray, probability: float, own: bool) -> dict | None:
    """What to tell about an answer, or None where nothing was measured for these weights.

    {"unsure": bool, "below", "right"}: at most `below`, the network is right on `right` of the test images; and, for a
    picture of the user's `own`, uint8 (H, W, 3), {"unlike": bool, "nearer"}: the share of test images that lie nearer.
    """
    measured = load(lab.name) if lab.shipped else None
    if measured is None:
        return None
    figures, yardstick = measured
    said = {**figures["unsure"], "unsure": probability <= figures["unsure"]["below"]}
    if own:
        distance = yardstick.distance(lab.channel_means(pixels[None], figures["layers"]))[0]
        said |= {"unlike": bool(distance > figures["threshold"]), "nearer": yardstick.nearer(distance)}
    return said


@functools.cache
def load(name: str, folder: Path = models.SHIPPED) -> tuple[dict, Yardstick] | None:
    """The figures and the yardstick of a shipped network; None where there are none for the weights of its card."""
    path = folder / f"{name}.unlike.json"
    if not path.is_file():
        return None
    figures = json.loads(path.read_text(encoding="utf-8"))
    if figures["sha256"] != models.card(name)["sha256"]:
        return None
    with np.load(folder / f"{name}.unlike.npz") as file:
        return figures, Yardstick(**file)


def measure(lab: Lab) -> tuple[dict, Yardstick]:
    """Fit, set the threshold and count what it finds: a few minutes on two cores."""
    layers, images, labels = LAYERS[lab.name], data.test_images(), data.test_labels()
    means = lab.channel_means(images, layers)
    yardstick = fit(means[::2], means[1::2])
    threshold = float(yardstick.distances[10 * PERCENTILE])
    logits = lab.predict(images)
    energy, probability = scores(logits)
    limits = np.quantile(energy[1::2], 1 - PERCENTILE / 100), np.quantile(probability[1::2], 1 - PERCENTILE / 100)

    found, instead = {}, {"probability": {}, "energy": {}}
    for kind, pictures in made_up(np.random.default_rng(0)).items():
        distances = yardstick.distance(lab.channel_means(pictures, layers))
        found[kind] = share(distances > threshold)
        their_energy, their_probability = scores(lab.predict(pictures))
        instead["energy"][kind] = share(their_energy < limits[0])
        instead["probability"][kind] = share(their_probability < limits[1])
    figures = {
        "command": f"python -m hooklab.unlike --model {lab.name}",
        "sha256": models.card(lab.name)["sha256"],
        "layers": list(layers),
        "channels": means.shape[1],
        "percentile": PERCENTILE,
        "threshold": threshold,
        "found": found,
        "found_by_the_largest_probability_alone": instead["probability"],
        "found_by_the_logits_energy_alone": instead["energy"],
        "unsure": unsure(probability, logits.argmax(1) == labels),
    }
    return figures, yardstick


def fit(means: np.ndarray, others: np.ndarray) -> Yardstick:
    """The Gaussian of `means` (N, C), and the distances of `others`, which it has not seen."""
    means = means.astype(np.float64)
    covariance = np.cov(means, rowvar=False)
    covariance += RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    whitening = np.linalg.inv(np.linalg.cholesky(covariance)).T
    yardstick = Yardstick(means.mean(0).astype(np.float32), whitening.astype(np.float32), np.zeros(0))
    quantiles = np.quantile(yardstick.distance(others), np.linspace(0, 1, 1001))
    return Yardstick(yardstick.mean, yardstick.whitening, quantiles.astype(np.float32))


def unsure(probability: np.ndarray, right: np.ndarray) -> dict:
    """The largest probability, in whole percent, up to which more test images are wrong than right."""
    below = 0.0
    for percent in range(1, 100):
        chosen = probability <= percent / 100
        if chosen.any() and right[chosen].mean() < 0.5:
            below = percent / 100
    chosen = probability <= below
    return {"below": below, "images": int(chosen.sum()), "right": share(right[chosen]) if chosen.any() else 0.0}


def scores(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, K) -> energy, the logarithm of the sum of exponentials (N,), and the largest probability (N,)."""
    top = logits.max(1)
    total = np.exp(logits - top[:, None]).sum(1)
    return top + np.log(total), 1 / total


def share(chosen: np.ndarray) -> float:
    return round(float(np.mean(chosen)), 4)


# ---- pictures that no photograph of an animal or a vehicle resembles -------------------------------------------------


def made_up(random: np.random.Generator, count: int = MADE_UP) -> dict[str, np.ndarray]:
    """`count` pictures of each kind, uint8 (count, 32, 32, 3)."""
    photos = data.test_images()[random.choice(10_000, count, replace=False)]
    kinds = {
        "noise": lambda k: random.integers(0, 256, (32, 32, 3)),
        "clouds": lambda k: resized(Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))),
        "stripes": lambda k: stripes(random),
        "colour": lambda k: np.full((32, 32, 3), random.integers(0, 256, 3)),
        "letters": lambda k: letters(random),
        "tiles": lambda k: tiles(photos[k], random),
        "negative": lambda k: 255 - photos[k],
    }
    return {kind: np.stack([make(k) for k in range(count)]).astype(np.uint8) for kind, make in kinds.items()}


def stripes(random: np.random.Generator) -> np.ndarray:
    """A grating of two colours, soft or hard, at any angle."""
    y, x = np.mgrid[:32, :32]
    angle, frequency = random.uniform(0, np.pi), random.uniform(0.05, 0.5)
    wave = np.sin(2 * np.pi * (frequency * (x * np.cos(angle) + y * np.sin(angle)) + random.random()))
    wave = (np.sign(wave) if random.random() < 0.5 else wave)[..., None] / 2 + 0.5
    one, other = random.uniform(0, 255, (2, 3))
    return one + (other - one) * wave


def letters(random: np.random.Generator) -> np.ndarray:
    """Three lines of capitals, as a screenshot or a page of a book has them."""
    page = Image.new("RGB", (128, 128), tuple(random.integers(0, 256, 3).tolist()))
    font = ImageFont.load_default(size=int(random.integers(24, 60)))
    ink = tuple(random.integers(0, 256, 3).tolist())
    for line in range(3):
        text = "".join(map(chr, random.integers(65, 91, 5)))
        ImageDraw.Draw(page).text((4, 4 + 40 * line), text, fill=ink, font=font)
    return resized(page)


def tiles(photo: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A photo cut into 64 tiles of 4 x 4 pixels, in any order."""
    cut = photo.reshape(8, 4, 8, 4, 3).swapaxes(1, 2).reshape(64, 4, 4, 3)
    return random.permutation(cut).reshape(8, 8, 4, 4, 3).swapaxes(1, 2).reshape(32, 32, 3)


def resized(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.resize((32, 32), Image.Resampling.BICUBIC))


def main(arguments: list[str] | None = None) -> None:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m hooklab.unlike", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=LAYERS, help="one network only (default: every one)")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    for name in [options.model] if options.model else LAYERS:
        figures, yardstick = measure(Lab(name, device=options.device))
        np.savez_compressed(models.SHIPPED / f"{name}.unlike.npz", **vars(yardstick))
        text = json.dumps(figures, indent=2)
        (models.SHIPPED / f"{name}.unlike.json").write_text(text + "\n", encoding="utf-8")
        print(name, {kind: f"{value:.1%}" for kind, value in figures["found"].items()}, figures["unsure"])


if __name__ == "__main__":
    main()
