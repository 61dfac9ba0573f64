"""Lab: one model on one device that answers many users at once; the only object that the page talks to.

    >>> lab = Lab("simple_cnn")
    >>> lab.explain(1218, layer="conv3", target="ship").heatmap       # float32 (H, W) in [0, 1]

A request borrows a replica of the model, runs one forward pass inside `hooks.record`, gives the replica back, and keeps
what came out in a cache of bounded size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import cam, data, hooks, passes, runs, sanity
from .edits import Edit
from .engine import CHUNK, Engine
from .inputs import Prepared
from .judge import Judge
from .layers import LayerInfo
from .results import Explanation, Features, as_maps, read_only
from .runs import ChannelEffects, Run


class Lab(Judge, Engine):
    """A classifier to look into: a shipped network's name, or anybody's module.

    classes      K names; without them CIFAR-10's for a shipped network, else "class 0", "class 1", ...
    preprocess   function of a PIL RGB image -> float tensor (C, H, W), such as torchvision's `weights.transforms()`;
                 without it the centre of the picture is resized to `input_size` and normalised with `mean` and `std`
                 (of ImageNet if not given)
    input_size   (3, H, W), or (1, H, W) for a network of grey pictures
    device       "auto" picks CUDA, then MPS, then the CPU; or a device's name
    checkpoint   weights for the network: a path

    A module that is handed in stays as it is: its modes, flags, gradients, hooks and device. `lab.model` is a copy in
    eval mode that shares its weights; after changing them in place, `forget()` what was answered before.
    """

    def forget(self) -> None:
        """Empty the cache: for a module whose weights were changed."""
        self._cache.clear()

    # -- what there is to look at -----------------------------------------------------------------------------------

    def layers(self, image: Any = None) -> tuple[LayerInfo, ...]:
        """One row for each call of a module, in execution order, and for each input that a function made.

        `image` matters only for a model whose own pre-processing gives pictures of several sizes.
        """
        tensor = torch.empty(1, *self.inputs.size) if image is None else self._image(image).tensor
        return tuple(row for row in self._rows(tensor).values() if row.listed)

    # -- pictures in ------------------------------------------------------------------------------------------------

    def prepare(self, image: Any) -> data.Fitted:
        """What the model sees of `image`: a PIL image, uint8 (H, W, 3), an index of the CIFAR-10 test split, or a path.

        `.pixels` uint8 (H, W, 3), `.original` (width, height), `.crop`. Behind a pre-processing of the user's own,
        `.pixels` are made from its result, and `.crop` is None: where it cropped is not known.
        """
        return self._image(image).fitted

    def predict(self, pixels: np.ndarray) -> np.ndarray:
        """Logits (N, K) of pictures as the model sees them, uint8 (N, H, W, 3) of the input size."""
        return read_only(self._logits(self.inputs.batch(pixels)))

    # -- maps -------------------------------------------------------------------------------------------------------

    def explain(
        self, image: Any, layer: str | None = None, target: int | str | None = None, method: str = "gradcam"
    ) -> Explanation:
        """Where at `layer` the evidence for `target` lies. ValueError names what is not accepted, before anything runs.

        image: as for `prepare`; layer: None is the default; target: index or name, None is the predicted class.
        """
        method = self._method(method)
        target = self._target(target)
        image = self._image(image)
        layer = self._layer(image.tensor, layer, spatial=True).name
        logits, activation, target, gradient = self._look(image, layer, target, method.needs == "gradients")
        raw = self._cache.get(
            ("raw", image.digest, layer, target, method.name),
            lambda: self._raw(method, image, layer, activation, gradient, target),
        )
        return Explanation(
            logits=read_only(logits),
            probabilities=read_only(logits.softmax(0)),
            predicted=int(logits.argmax()),
            target=target,
            layer=layer,
            method=method.name,
            raw=read_only(raw),
            heatmap=read_only(cam.heatmap(raw, tuple(image.tensor.shape[-2:]))),
            blank=not bool((raw > 0).any()),
            input=read_only(image.fitted.pixels),
        )

    def explain_classes(self, image: Any, layer: str | None = None, method: str = "gradcam") -> np.ndarray:
        """The maps of all classes, raw float32 (K, h, w), from one forward pass."""
        method, image = self._method(method), self._image(image)
        layer = self._layer(image.tensor, layer, spatial=True).name
        return read_only(
            self._cache.get(
                ("classes", image.digest, layer, method.name), lambda: self._raw_classes(method, image, layer)
            )
        )

    def _raw_classes(self, method: cam.Method, image: Prepared, layer: str) -> Tensor:
        if method.needs == "gradients":
            with self._pool.lend() as model, hooks.record(model, layer) as seen:
                logits = passes.finite(passes.scores(model(image.tensor)))
                activation = seen[layer][0].detach()
                maps = [method.function(activation, part) for part in passes.gradients_of_all(logits, seen[layer])]
            return passes.finite(torch.cat(maps))
        _, activation, _, _ = self._look(image, layer, None, gradient=False)
        if method.needs == "activations":  # no class enters
            return passes.finite(method.function(activation)).repeat(len(self.classes), 1, 1)
        return torch.stack([self._raw(method, image, layer, activation, None, k) for k in range(len(self.classes))])

    def features(self, image: Any, layer: str | None = None, target: int | str | None = None) -> Features:
        """What `layer` holds, and Grad-CAM's weight of each channel for `target` (None: the predicted class)."""
        target = self._target(target)
        image = self._image(image)
        layer = self._layer(image.tensor, layer).name
        _, activation, target, gradient = self._look(image, layer, target)
        maps, gradients = as_maps(activation), as_maps(gradient)
        weights = gradients.mean((1, 2))
        order = (weights * maps.mean((1, 2))).argsort(descending=True, stable=True)
        return Features(layer, target, read_only(maps), read_only(weights), read_only(order))

    def channel_means(self, pixels: np.ndarray, layers: Sequence[str]) -> np.ndarray:
        """The mean of every channel of `layers`, one layer after another: uint8 (N, H, W, 3) -> float32 (N, channels).

        Each layer is one with maps, (C, h, w).
        """
        batch = self.inputs.batch(pixels)
        for layer in layers:
            self._layer(batch[:1], layer, spatial=True)
        rows = []
        for part in batch.split(CHUNK):
            with self._pool.lend() as model, hooks.record(model, layers, gradients=False) as seen:
                model(part.to(self.device, self._dtype))
                rows.append(torch.cat([seen[layer].mean((2, 3)) for layer in layers], 1).cpu())
        return read_only(torch.cat(rows))

    def explain_layers(
        self, image: Any, target: int | str | None = None, method: str = "gradcam"
    ) -> dict[str, np.ndarray]:
        """The raw map (h, w) at each spatial layer, in execution order, from one forward and one backward pass."""
        method, target, image = self._method(method), self._target(target), self._image(image)
        names = [row.name for row in self._rows(image.tensor).values() if row.spatial and row.listed]

        def make() -> dict[str, Tensor]:
            with self._pool.lend() as model, hooks.record(model, names) as seen:
                logits = passes.finite(passes.scores(model(image.tensor)))
                chosen = int(logits.argmax()) if target is None else target
                kept = [seen[name] for name in names]
                gradients = [None] * len(names)
                if method.needs == "gradients":
                    gradients = passes.gradients(logits[0, chosen], kept)
            kept = [activation[0].detach() for activation in kept]
            return {
                name: self._raw(method, image, name, activation, gradient, chosen)
                for name, activation, gradient in zip(names, kept, gradients, strict=True)
            }

        maps = self._cache.get(("layers", image.digest, target, method.name), make) if names else {}
        return {name: read_only(raw) for name, raw in maps.items()}

    # -- hooks that change things -----------------------------------------------------------------------------------

    def run(
        self,
        image: Any,
        edits: Sequence[Edit | Mapping] = (),
        layer: str | None = None,
        target: int | str | None = None,
        watch: str | Sequence[str] = (),
    ) -> Run:
        """One picture without and with `edits`: logits, maps at `layer`, input gradients, and every call of every hook.

        edits: `Edit`s, or dicts of their fields, in the order in which they act. A module that is called several times
        is edited at every call, "pool:2" at its second alone. watch: names of modules that get all four kinds of hook,
        or "all". target: None is the class predicted without the edits.
        """
        target, image = self._target(target), self._image(image)
        edits = [Edit.of(edit) for edit in edits]
        if layer is not None or any(row.default for row in self._rows(image.tensor).values()):
            layer = self._layer(image.tensor, layer, spatial=True).name
        edits += runs.watching(self.model, watch)
        for edit in edits:
            if ":" in edit.layer:
                self._check_call(image.tensor, edit)
        with self._pool.lend() as model:
            before = self._cache.get(
                ("before", image.digest, layer, target), lambda: runs.plain(model, image.tensor, layer, target)
            )
            return runs.run(model, image.tensor, edits, layer, before)

    def _check_call(self, tensor: Tensor, edit: Edit) -> None:
        """An edit's place must exist; whether it is reached is told afterwards."""
        place = hooks.locate(self.model, edit.layer)
        calls = [row for row in self._rows(tensor) if row.startswith(f"{place.path}:") and not row.endswith(".input")]
        if place.call and place.call > max(len(calls), 1):
            names = ", ".join(calls) or place.path
            raise ValueError(f"layer {edit.layer!r}: this model calls {place.path} as {names}")

    def channel_effects(self, image: Any, layer: str | None = None, target: int | str | None = None) -> ChannelEffects:
        """What silencing each channel takes from the target's logit, in batches, beside Grad-CAM's weight for it."""
        target, image = self._target(target), self._image(image)
        layer = self._layer(image.tensor, layer).name
        logits, activation, target, gradient = self._look(image, layer, target)
        axis = 1 if activation.ndim == 2 else 0  # (tokens, C), or (C, ...)

        def silence() -> Tensor:
            after = []
            for channels in torch.arange(activation.shape[axis]).split(CHUNK):
                silenced = activation.expand(len(channels), *activation.shape).clone()
                for row, channel in enumerate(channels):
                    silenced[row].select(axis, channel).zero_()
                after.append(self._replaced_logits(image, layer, silenced))
            return torch.cat(after)

        after = self._cache.get(("silenced", image.digest, layer), silence)  # (C, K)
        effects = read_only(logits[target] - after[:, target])
        weights = read_only(as_maps(gradient).mean((1, 2)))
        return ChannelEffects(effects, weights, sanity.rank_correlation(effects, weights))
