"""Engine: one model on one device, lent to many threads at once, and a cache of what it said."""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from . import cam, data, hooks, models, passes
from .cache import Cache
from .hooks import nearest
from .inputs import Inputs, Prepared
from .layers import LayerInfo, layers
from .replicas import Pool

CHUNK = 32  # how many pictures are one batch
REPLICAS = min(4, os.cpu_count() or 1)  # how many requests run at once; a server gives each its share of the cores


class Engine:
    """What `Lab` rests on: it checks names on the host, borrows a replica, runs one pass, keeps what came out."""

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
        self.shipped = isinstance(model, str) and checkpoint is None  # its card and predictions hold
        if isinstance(model, str):
            entry = models.entry(model)
            self.name, default_layer = entry.name, entry.default_layer
            # with channels last in memory, convolutions on a CPU take a third of the time
            model = models.load(entry.name, checkpoint).to(memory_format=torch.channels_last)
            classes = data.CLASSES if classes is None else classes
            input_size = entry.input_size if input_size is None else input_size
            mean, std = entry.mean if mean is None else mean, entry.std if std is None else std
        elif isinstance(model, nn.Module):
            model = getattr(model, "_orig_mod", model)  # inside torch.compile's wrapper
            if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
                raise ValueError("TorchScript modules take no hooks: hand in the module that was scripted or traced")
            self.name = type(model).__name__
            if checkpoint is not None:
                model = models.load(copy.deepcopy(model), checkpoint)
        else:
            raise ValueError(f"model {model!r}: a torch.nn.Module or one of {', '.join(models.REGISTRY)} is accepted")

        self.inputs = Inputs(input_size, mean, std, preprocess)
        self.device = _device(device)
        self._pool = Pool(model, REPLICAS, self.device)
        self.model = self._pool.model
        self._dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        self._cache = Cache(cache_megabytes * 2**20)
        self._tables = Cache(4 * 2**20)  # of layers, by the picture's shape: asked for by every request
        self._default_layer = default_layer
        self.classes = self._class_names(classes)

    # -- names, checked before anything runs ----------------------------------------------------------------------

    def _rows(self, tensor: Tensor) -> dict[str, LayerInfo]:
        """Every name that can be looked at, and its row."""

        def find() -> dict[str, LayerInfo]:
            with self._pool.lend() as model:
                rows = {
                    row.name: row
                    for row in layers(model, torch.zeros(tensor.shape, device=self.device, dtype=self._dtype))
                }
            spatial = [row.name for row in rows.values() if row.spatial and row.listed]
            if default := self._default_layer if self._default_layer in spatial else spatial[-1] if spatial else None:
                rows[default] = replace(rows[default], default=True)
            return rows

        return self._tables.get(tuple(tensor.shape), find)

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
            shape, instead = " x ".join(map(str, rows[name].shape)), f", as in {maps[-1]}" if maps else ""
            raise ValueError(f"layer {name!r} holds {shape}: a map needs (C, h, w) with h * w > 1{instead}")
        return rows[name]

    def _target(self, target: int | str | None) -> int | None:
        """The index of a class, checked on the host; None stays None, for the predicted class."""
        if target is None:
            return None
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

    def _image(self, image: Any) -> Prepared:
        prepared = self.inputs.prepare(image)
        return replace(prepared, tensor=prepared.tensor.to(self.device, self._dtype))

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
                (found,) = passes.gradients(logits[0, target], [kept])
            values = logits[0].detach(), kept[0].detach()
        self._cache.keep(("values", image.digest, layer), values)
        if gradient:
            self._cache.keep(("gradient", image.digest, layer, target), found)
        return *values, target, found

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
