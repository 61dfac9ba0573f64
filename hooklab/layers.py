"""What there is to look at in a model: a row for each call of a module, and for what a function made in between."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .nested import first_tensor


@dataclass(frozen=True)
class LayerInfo:
    """One call of a module, or what entered one.

    name        "conv3", "pool:2" (the module's second call), "pool:3.input" (what entered its third)
    label       the same for people: "conv3 after relu"
    type        the module's class, or the function that made an input
    shape       of what `record` keeps, without the batch: (C, h, w) for maps
    parameters  how many numbers the module learns, its children's included
    spatial     whether it can have a map: (C, h, w) with h * w > 1
    default     whether it is the layer to start with
    listed      False for an input that is merely what an earlier module returned
    """

    name: str
    label: str
    type: str
    shape: tuple[int, ...]
    parameters: int
    spatial: bool
    default: bool = False
    listed: bool = True


def layers(model: nn.Module, *inputs: Tensor) -> tuple[LayerInfo, ...]:
    """Every call of every module in one pass of `model(*inputs)`, in the order in which they finish.

    An input is listed where a function made it, and follows (with `listed` False) where a module did.
    """
    rows: list[tuple[str, int, bool, nn.Module, Tensor, Any, bool]] = []
    calls: dict[str, int] = {}
    seen: dict[tuple[int, int], tuple] = {}  # (tensor, autograd node) by identity, kept alive so that it is unique
    made: dict[Any, tuple[str, int]] = {}  # autograd node -> the module, and its call, that returned its tensor

    def know(tensor: Tensor) -> bool:
        """Whether this tensor has been met in this state: an in-place operation gives it another node."""
        key = (id(tensor), id(tensor.grad_fn))
        known = key in seen
        seen[key] = (tensor, tensor.grad_fn)
        return known

    def before(name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        calls[name] = calls.get(name, 0) + 1
        tensor = first_tensor((args, kwargs))
        if tensor is not None:
            rows.append((name, calls[name], True, module, tensor, tensor.grad_fn, not know(tensor)))

    def after(name: str, module: nn.Module, args: tuple, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            know(tensor)
            made[tensor.grad_fn] = (name, calls[name])
            rows.append((name, calls[name], False, module, tensor, tensor.grad_fn, True))

    with ExitStack() as stack, torch.inference_mode(False), torch.enable_grad():
        tensors = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
        for name, module in model.named_modules():
            if name:
                handle = module.register_forward_pre_hook(partial(before, name), with_kwargs=True)
                stack.callback(handle.remove)
                stack.callback(module.register_forward_hook(partial(after, name)).remove)
        for tensor in tensors:
            know(tensor)
        model(*tensors)

    def full(name: str, call: int) -> str:
        return f"{name}:{call}" if calls[name] > 1 else name

    def origin(node: Any) -> tuple[str, str]:
        """The function that made an input, and what it was made of: ("add", "bn2 and shortcut after add")."""
        functions, sources = [], []
        while not sources and node.next_functions and len(functions) < 4:  # a leaf, the picture, has none
            if (word := _function(node.name())) != "clone":  # a copy into another memory layout, of no interest
                functions.append(word)
            parents = [parent for parent, _ in node.next_functions if parent is not None]
            sources = list(dict.fromkeys(full(*made[parent]) for parent in parents if parent in made))
            node = parents[0] if parents else node
        if len(sources) > 3:
            sources = [sources[0], "...", sources[-1]]
        functions = functions or ["clone"]
        return functions[0], f"{' and '.join(sources) or 'input'} after {', '.join(reversed(functions))}"

    found = []
    for name, call, is_input, module, tensor, node, listed in rows:
        row = full(name, call) + (".input" if is_input else "")
        kind, label = type(module).__name__, row
        if is_input:
            kind, label = origin(node) if listed and node is not None else ("input", f"input of {full(name, call)}")
        shape = tuple(tensor.shape[1:])
        spatial = len(shape) == 3 and shape[1] * shape[2] > 1
        parameters = 0 if is_input else sum(p.numel() for p in module.parameters())
        found.append(LayerInfo(row, label, kind, shape, parameters, spatial, listed=listed))
    return tuple(found)


def _function(node_name: str) -> str:
    """ "MaxPool2DBackward0" -> "max pool2d"; the three nodes of a flatten or reshape are one word."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", " ", re.sub(r"Backward\d*$", "", node_name)).lower()
    return "reshape" if words in ("view", "unsafe view", "reshape alias") else words
