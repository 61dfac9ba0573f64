"""Lab: one model on one device that answers many users at once; the only object that the page talks to.

    >>> lab = Lab("simple_cnn")
    >>> lab.explain(1218, layer="conv3", target="ship").heatmap       # float32 (H, W) in [0, 1]

A request borrows a replica of the model, runs one forward pass inside `hooks.record`, gives the replica back, and keeps
what came out in a cache of bounded size.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from . import cam, data, hooks, passes, runs, sanity
from .cache import Cache
from .edits import Edit
from .hooks import nearest
from .inputs import Inputs, Prepared
from .layers import LayerInfo
from .layers import layers as find_layers
from .replicas import Pool
from .results import Explanation, Features, as_maps, read_only
from .runs import ChannelEffects, Run

CHUNK = 32  # how many pictures are one batch


class Lab:
    """A classifier to look into: a shipped network's name, or anybody's module.

    classes      K names; without them CIFAR-10's for a shipped network, else "class 0", "class 1", ...
    preprocess   function of a PIL RGB image -> float tensor (C, H, W), such as torchvision's `weights.transforms()`;
                 without it the centre of the picture is resized to `input_size` and normalised with `mean` and `std`
                 (of ImageNet if not given)
    input_size   (3, H, W), or (1, H, W) for a network of grey pictures
    device       "auto" picks CUDA, then MPS, then the CPU; or a device's name
    checkpoint   weights for the network: a path

    A module that is handed in stays as it is: its modes, flags, gradients, hooks and device. `lab.model` is a copy in
    eval mode that shares its weights. A model's weights are not to change while a Lab explains it.
    """

    def __init__(
        self,
        model: str | nn.Module,
        classes: Sequence[str] | None = None,
        preprocess: Callable[[Image.Image], Tensor] | None = None,
        input_size: tuple[int, int, int] | None = None,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        device: str | torch.device = "auto",
        checkpoint: str | os.PathLike | None = None,
        cache_megabytes: int = 64,
    ):
        default_layer = None
        if isinstance(model, str):
            from . import models

            if model not in models.REGISTRY:
                raise ValueError(f"model {model!r}: accepted are {', '.join(models.REGISTRY)}, or a torch.nn.Module")
            entry = models.REGISTRY[model]
            self.name, default_layer = entry.name, entry.default_layer
            model = models.load(entry.name, checkpoint)
            classes = data.CLASSES if classes is None else classes
            mean, std, input_size = mean or entry.mean, std or entry.std, input_size or entry.input_size
        elif isinstance(model, nn.Module):
            self.name = type(model).__name__
            if checkpoint is not None:
                from . import models

                model = models.load(model, checkpoint)
        else:
            raise ValueError(f"model {model!r}: a name or a torch.nn.Module is accepted")

        self.inputs = Inputs(input_size, mean, std, preprocess)
        self.device = _device(device)
        self._pool = Pool(model, min(4, os.cpu_count() or 1), self.device)
        self.model = self._pool.model
        self._dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        self._cache = Cache(cache_megabytes * 2**20)
        self._default_layer = default_layer
        self.classes = self._class_names(classes)

    # -- what there is to look at -----------------------------------------------------------------------------------

    def layers(self, image: Any = None) -> tuple[LayerInfo, ...]:
        """One row for each call of a module, in execution order, and for each input that a function made.

        `image` matters only for a model whose own pre-processing gives pictures of several sizes.
        """
        tensor = torch.zeros(1, *self.inputs.size) if image is None else self._image(image).tensor
        return tuple(row for row in self._rows(tensor).values() if row.listed)

    def _rows(self, tensor: Tensor) -> dict[str, LayerInfo]:
        """Every name that can be looked at, and its row."""

        def find() -> dict[str, LayerInfo]:
            with self._pool.lend() as model:
                rows = {
                    row.name: row
                    for row in find_layers(model, torch.zeros(tensor.shape, device=self.device, dtype=self._dtype))
                }
            spatial = [row.name for row in rows.values() if row.spatial and row.listed]
            if default := self._default_layer if self._default_layer in spatial else spatial[-1] if spatial else None:
                rows[default] = replace(rows[default], default=True)
            return rows

        return self._cache.get(("rows", tuple(tensor.shape)), find)

    def _layer(self, tensor: Tensor, name: str | None, spatial: bool = False) -> LayerInfo:
        """The row of `name`, or the default's; ValueError where it does not exist or, if asked for, has no map."""
        rows = self._rows(tensor)
        maps = [row.name for row in rows.values() if row.spatial and row.listed]
        if name is None:
            name = next((row.name for row in rows.values() if row.default), None)
            if name is None:
                raise ValueError("this model has no layer with maps (C, h, w), so there is no default layer")
        if not isinstance(name, str) or name not in rows:
            base, dot, _ = str(name).partition(".input")
            if calls := [row for row in rows if row in (f"{base}:{n}{dot}" for n in range(1, len(rows) + 1))]:
                raise ValueError(f"layer {name!r}: this module is called {len(calls)} times; use {', '.join(calls)}")
            raise ValueError(f"layer {name!r}: this model has no such layer; the nearest are {nearest(name, rows)}")
        if spatial and not rows[name].spatial:
            shape = " x ".join(map(str, rows[name].shape))
            raise ValueError(f"layer {name!r} holds {shape}: a map needs (C, h, w) with h * w > 1, as in {maps[-1:]}")
        return rows[name]

    def _target(self, target: int | str | None, predicted: int | None = None) -> int | None:
        """The index of a class, checked on the host; None is the predicted class."""
        if target is None:
            return predicted
        last = len(self.classes) - 1
        if isinstance(target, str):
            if self.classes.count(target) == 1:
                return self.classes.index(target)
            close = nearest(target, self.classes)
            raise ValueError(f"target {target!r}: not one of this model's {last + 1} classes; the nearest are {close}")
        try:
            index = operator.index(None if isinstance(target, (bool, np.bool_)) else target)
        except TypeError:
            raise ValueError(f"target {target!r}: a class's name or a whole number from 0 to {last}") from None
        if not 0 <= index <= last:
            raise ValueError(f"target {index}: this model has {last + 1} classes (0 to {last})")
        return index

    def _method(self, method: str) -> cam.Method:
        if not isinstance(method, str) or method not in cam.METHODS:
            raise ValueError(f"method {method!r}: accepted are {', '.join(cam.METHODS)}")
        return cam.METHODS[method]

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

    def _image(self, image: Any) -> Prepared:
        prepared = self.inputs.prepare(image)
        return replace(prepared, tensor=prepared.tensor.to(self.device, self._dtype))

    # -- the model's answers ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def _logits(self, tensor: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, K), in chunks."""
        with self._pool.lend() as model, torch.inference_mode(False):
            return torch.cat([passes.scores(model(part.to(self.device, self._dtype))) for part in tensor.split(CHUNK)])

    def _class_names(self, classes: Sequence[str] | None) -> tuple[str, ...]:
        count = self._logits(torch.zeros(1, *self.inputs.size)).shape[1]
        names = tuple(f"class {index}" for index in range(count)) if classes is None else tuple(classes)
        if len(names) != count or not all(isinstance(name, str) for name in names):
            raise ValueError(
                f"classes: {len(names)} given, but this model has {count}; a list of {count} names is accepted"
            )
        return names

    def _look(
        self, image: Prepared, layer: str, target: int | None, gradient: bool = True
    ) -> tuple[Tensor, Tensor, int, Tensor | None]:
        """-> logits (K,), activation (C, ...), target, its gradient (C, ...), from the cache or one forward pass."""
        values = self._cache.find(("values", image.digest, layer))
        if values is not None:
            target = int(values[0].argmax()) if target is None else target
            found = self._cache.find(("gradient", image.digest, layer, target)) if gradient else None
            if found is not None or not gradient:
                return *values, target, found
        with self._pool.lend() as model, hooks.record(model, layer, gradients=gradient) as seen:
            logits, kept, found = passes.finite(passes.scores(model(image.tensor))), seen[layer], None
            target = int(logits.argmax()) if target is None else target
            if gradient:
                found = passes.gradients(logits, kept, [target])[0]
            values = logits[0].detach(), kept[0].detach()
        self._cache.keep(("values", image.digest, layer), values)
        if gradient:
            self._cache.keep(("gradient", image.digest, layer, target), found)
        return *values, target, found

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
        every = range(len(self.classes))
        if method.needs == "gradients":
            with self._pool.lend() as model, hooks.record(model, layer) as seen:
                logits = passes.finite(passes.scores(model(image.tensor)))
                gradients = passes.gradients(logits, seen[layer], every)
                activation = seen[layer][0].detach()
            return passes.finite(method.function(activation, gradients))
        _, activation, _, _ = self._look(image, layer, None, gradient=False)
        return torch.stack([self._raw(method, image, layer, activation, None, target) for target in every])

    def _raw(
        self, method: cam.Method, image: Prepared, layer: str, activation: Tensor, gradient: Tensor | None, target: int
    ) -> Tensor:
        if method.needs == "gradients":
            raw = method.function(activation, gradient)
        elif method.needs == "activations":
            raw = method.function(activation)
        elif method.needs == "masked_logits":
            raw = method.function(activation, lambda channels: self._masked_logits(image, layer, channels)[:, target])
        else:
            raw = method.function(activation, lambda values: self._replaced_logits(image, layer, values)[:, target])
        return passes.finite(raw)

    def _masked_logits(self, image: Prepared, layer: str, channels: Tensor) -> Tensor:
        """Logits (C, K) of the input times each channel, enlarged and stretched to [0, 1]: the same for all classes."""

        def ask() -> Tensor:
            size = image.tensor.shape[-2:]
            return torch.cat([self._logits(image.tensor * cam.soft_masks(c, size)) for c in channels.split(CHUNK)])

        return self._cache.get(("masked", image.digest, layer), ask)

    @torch.no_grad()
    def _replaced_logits(self, image: Prepared, layer: str, values: Tensor) -> Tensor:
        """Logits (N, K) when what `layer` holds is replaced by each of `values` (N, C, h, w)."""
        with self._pool.lend() as model:
            return passes.replaced(model, layer, image.tensor, values, CHUNK)

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
                    gradients = passes.gradients_everywhere(logits[0, chosen], kept)
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
            self._check_call(image.tensor, edit)
        with self._pool.lend() as model:
            return runs.run(model, image.tensor, edits, layer, target)

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


def _device(device: str | torch.device) -> torch.device:
    mps = torch.backends.mps.is_available()
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    here = ["cpu", *(["mps"] if mps else []), *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or (str(found) not in here and not (found.index is None and f"{found.type}:0" in here)):
        raise ValueError(f"device {str(device)!r}: accepted here are auto, {', '.join(here)}")
    return found
