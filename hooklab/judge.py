"""The questions that `Lab` answers about a map: is it true, does it depend on the network, does it hold still?

`evidence.py` and `sanity.py` hold the formulas, for anybody's model; here they meet a picture, a layer and a class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from . import cam, data, erasing, evidence, passes, sanity
from .results import read_only


@dataclass(frozen=True, eq=False)
class Covered:
    """A picture with a part of it taken away, and what the model says of the rest."""

    pixels: np.ndarray  # uint8 (H, W, 3)
    logits: np.ndarray  # float32 (K,)
    probabilities: np.ndarray  # float32 (K,)


@dataclass(frozen=True, eq=False)
class Difference:
    """The map of logit[target] - logit[other]: positive where the picture speaks for `target` rather than `other`."""

    target: int
    other: int
    layer: str
    method: str
    difference: float  # of the two logits
    raw: np.ndarray  # float32 (h, w), signed
    heatmap: np.ndarray  # float32 (H, W) in [0, 1]
    blank: bool  # nothing speaks for `target` rather than `other`


class Judge:
    """The part of `Lab` that doubts its maps. Images, layers, targets and methods are those of `Lab.explain`."""

    def evidence(
        self,
        image: Any,
        layer: str | None = None,
        target: int | str | None = None,
        method: str = "gradcam",
        seed: int = 0,
    ) -> evidence.Evidence:
        """Deletion and insertion curves with their areas, drop and increase in confidence, beside the yardsticks'.

        The yardsticks depend only on the picture and the layer's grid, and are kept for other classes and methods;
        `seed` is that of the random maps.
        """
        found = self.explain(image, layer, target, method)
        grid = found.raw.shape
        key = ("yardsticks", blake2b(found.input.tobytes()).digest(), grid, seed)
        against = self._cache.get(key, lambda: evidence.yardsticks(self.probabilities, found.input, grid, seed))
        return evidence.evidence(self.probabilities, found.input, found.raw, found.target, against)

    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """(N, K) of pictures as the model sees them, uint8 (N, H, W, 3) of the input size."""
        return torch.from_numpy(np.array(self.predict(pixels))).softmax(1).numpy()

    def cover(self, image: Any, mask: np.ndarray, baseline: str = "blur") -> Covered:
        """Replace the pixels under a boolean mask (H, W) by the baseline's: "blur" or "grey"."""
        return self._covered(erasing.cover(self.prepare(image).pixels, mask, baseline))

    def erase(
        self,
        image: Any,
        percent: float,
        layer: str | None = None,
        target: int | str | None = None,
        method: str = "gradcam",
        which: str = "hottest",
        baseline: str = "blur",
    ) -> Covered:
        """Replace the `percent` of pixels where the map is "hottest", or "coldest", by the baseline's."""
        found = self.explain(image, layer, target, method)
        heat = cam.enlarge(torch.from_numpy(np.array(found.raw)), found.input.shape[:2]).numpy()
        return self._covered(erasing.erase(found.input, heat, percent, which, baseline))

    def _covered(self, pixels: np.ndarray) -> Covered:
        logits = self.predict(pixels[None])
        return Covered(pixels, logits[0], torch.from_numpy(np.array(logits[0])).softmax(0).numpy())

    def difference(
        self, image: Any, target: int | str, other: int | str, layer: str | None = None, method: str = "gradcam"
    ) -> Difference:
        """Why `target` rather than `other`: the map of the difference of their logits."""
        method, target, other = self._method(method), self._target(target), self._target(other)
        if None in (target, other) or target == other:
            raise ValueError(f"target {target} and other {other}: two different classes are accepted")
        if method.needs == "activations":
            raise ValueError(f"method {method.name!r} makes the same map for every class: there is no difference")
        image = self._image(image)
        layer = self._layer(image.tensor, layer, spatial=True).name
        logits, activation, _, gradient = self._look(image, layer, target, method.needs == "gradients")
        if method.needs == "gradients":
            raw = passes.finite(method.function(activation, gradient - self._look(image, layer, other)[3]))
        else:
            ask = self._masked_logits if method.needs == "masked_logits" else self._replaced_logits

            def scores(questions: torch.Tensor) -> torch.Tensor:
                answers = ask(image, layer, questions)
                return answers[:, target] - answers[:, other]

            raw = passes.finite(method.function(activation, scores))
        size = tuple(image.tensor.shape[-2:])
        return Difference(
            target=target,
            other=other,
            layer=layer,
            method=method.name,
            difference=float(logits[target] - logits[other]),
            raw=read_only(raw),
            heatmap=read_only(cam.heatmap(raw, size)),
            blank=not bool((raw > 0).any()),
        )

    def sanity(
        self,
        image: Any,
        layer: str | None = None,
        target: int | str | None = None,
        method: str = "gradcam",
        repeats: int = sanity.REPEATS,
        progress: Callable[[int, int], None] | None = None,
    ) -> sanity.Sanity:
        """Cascading randomisation of copies of the model from the top layer down (Adebayo et al. 2018)."""
        found = self.explain(image, layer, target, method)

        def raw_of(model: torch.nn.Module) -> Callable[[], np.ndarray]:
            inputs = self.inputs
            lab = type(self)(
                model,
                self.classes,
                inputs.preprocess,
                inputs.size,
                mean=inputs.mean,
                std=inputs.std,
                device=self.device,
                cache_megabytes=0,  # its weights will change
            )
            return lambda: lab.explain(image, found.layer, found.target, method).raw

        rows = list(self._rows(self._image(image).tensor))
        return sanity.sanity(self.model, rows, found.layer, raw_of, found.input.shape[:2], repeats, progress)

    def stability(
        self, image: Any, layer: str | None = None, target: int | str | None = None, method: str = "gradcam"
    ) -> sanity.Stability:
        """Mean and spread of the heatmap under small shifts, a mirror image and noise, for the same class."""
        found = self.explain(image, layer, target, method)

        def raw_of(pixels: np.ndarray) -> np.ndarray:
            height, width = pixels.shape[:2]
            fitted = data.Fitted(pixels, (width, height), None)
            return self.explain(fitted, found.layer, found.target, method).raw

        return sanity.stability(raw_of, found.input)
