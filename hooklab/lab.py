"""Lab: one model on one device that answers many users at once; the only object that the page talks to.

    >>> lab = Lab("simple_cnn")
    >>> lab.explain(1218, layer="conv3", target="ship").heatmap       # float32 (H, W) in [0, 1]

A request borrows a replica of the model, runs one forward pass inside `hooks.record`, gives the replica back, and keeps
what came out in a cache of bounded size.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from . import cam, data, hooks, passes
from .cache import Cache
from .hooks import nearest
from .inputs import Inputs, Prepared
from .layers import LayerInfo
from .layers import layers as find_layers
from .replicas import Pool

CHUNK = 32  # how many pictures are one batch


@dataclass(frozen=True, eq=False)
class Explanation:
    """One class activation map. Arrays are float32 where nothing else is said, and cannot be written to."""

    logits: np.ndarray  # (K,)
    probabilities: np.ndarray  # (K,)
    predicted: int
    target: int
    layer: str
    method: str
    raw: np.ndarray  # (h, w): the signed map on logits, before ReLU
    heatmap: np.ndarray  # (H, W) in [0, 1]: ReLU, enlarged, divided by its maximum
    blank: bool  # no evidence is positive; the heatmap is then all zero
    input: np.ndarray  # uint8 (H, W, 3): the pixels that the model saw


@dataclass(frozen=True, eq=False)
class Features:
    """What a layer holds. A layer without maps has C maps of one row: its (C,) numbers, or its (tokens, C) sequence."""

    layer: str
    target: int
    maps: np.ndarray  # float32 (C, h, w)
    weights: np.ndarray  # float32 (C,): Grad-CAM's alpha for the target, the gradient's mean over space
    order: np.ndarray  # int64 (C,): channels by what they add to the map, weight times mean activation, most first


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
        return _array(self._logits(self.inputs.batch(pixels)))

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
            logits, kept, found = _finite(passes.scores(model(image.tensor))), seen[layer], None
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
            logits=_array(logits),
            probabilities=_array(logits.softmax(0)),
            predicted=int(logits.argmax()),
            target=target,
            layer=layer,
            method=method.name,
            raw=_array(raw),
            heatmap=_array(cam.heatmap(raw, tuple(image.tensor.shape[-2:]))),
            blank=not bool((raw > 0).any()),
            input=_array(image.fitted.pixels),
        )

    def explain_classes(self, image: Any, layer: str | None = None, method: str = "gradcam") -> np.ndarray:
        """The maps of all classes, raw float32 (K, h, w), from one forward pass."""
        method, image = self._method(method), self._image(image)
        layer = self._layer(image.tensor, layer, spatial=True).name
        return _array(
            self._cache.get(
                ("classes", image.digest, layer, method.name), lambda: self._raw_classes(method, image, layer)
            )
        )

    def _raw_classes(self, method: cam.Method, image: Prepared, layer: str) -> Tensor:
        every = range(len(self.classes))
        if method.needs == "gradients":
            with self._pool.lend() as model, hooks.record(model, layer) as seen:
                logits = _finite(passes.scores(model(image.tensor)))
                gradients = passes.gradients(logits, seen[layer], every)
                activation = seen[layer][0].detach()
            return _finite(method.function(activation, gradients))
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
        return _finite(raw)

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
        maps, gradients = _as_maps(activation), _as_maps(gradient)
        weights = gradients.mean((1, 2))
        order = (weights * maps.mean((1, 2))).argsort(descending=True, stable=True)
        return Features(layer, target, _array(maps), _array(weights), _array(order))


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


def _finite(tensor: Tensor) -> Tensor:
    if not bool(tensor.isfinite().all()):
        raise ValueError("the model's numbers for this picture are not finite (NaN or infinity): check its weights")
    return tensor


def _array(values: Tensor | np.ndarray) -> np.ndarray:
    """A NumPy array of one's own that cannot be written to; float32 where it held fractions."""
    if isinstance(values, Tensor):
        values = values.detach().float() if values.is_floating_point() else values.detach()
        values = values.cpu().numpy()
    values = values.view()
    values.flags.writeable = False
    return values


def _as_maps(values: Tensor) -> Tensor:
    """What one picture makes of a layer, as float32 (C, h, w): (C,) -> (C, 1, 1), (tokens, C) -> (C, 1, tokens)."""
    values = values.float()
    if values.ndim == 2:
        return values.T[:, None]
    return (
        values.reshape(*values.shape[:2], -1) if values.ndim > 3 else values.reshape(-1, *(values.shape[1:] or (1, 1)))
    )
