"""What hooks saw: a timeline of their calls, and the hooks on gradients that write it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from .edits import Edit
from .nested import each_tensor, first_tensor, shapes


@dataclass(frozen=True)
class Event:
    """One call of one hook. Shapes include the batch; the statistics are of what the hook passed on.

    For "forward_pre" they are of the module's input, for "forward" of its output, for "tensor" of the gradient of its
    output, for "backward" of grad_input (`inputs`), or of grad_output (`outputs`) where no input has a gradient.
    """

    kind: str
    layer: str
    call: int  # 1 for the module's first call
    inputs: tuple[tuple[int, ...] | None, ...]
    outputs: tuple[tuple[int, ...] | None, ...]
    minimum: float | None
    mean: float | None
    maximum: float | None
    milliseconds: float  # since the block was entered
    edit: int  # index in the edits given
    changed: bool
    note: str


class Timeline:
    """The calls of some edits' hooks. It holds no tensor of the graph.

    Hooks on gradients belong to the graph and hold on to this; held the other way too, both would live for ever, out of
    the garbage collector's sight.
    """

    def __init__(self, edits: Sequence[Edit], paths: Sequence[str]):
        self.edits, self.paths = edits, paths
        self.calls: dict[int | str, int] = {}  # edit -> how often its module was called
        self._began = time.perf_counter()
        self._rows: list[tuple] = []
        self._fired: dict[int, int] = {}  # edit -> how often its backward hook fired

    def add(
        self, index: int, kind: str, call: int, inputs: Any, outputs: Any, tensor: Tensor | None, changed: bool
    ) -> None:
        numbers = None
        if tensor is not None and tensor.numel():
            values = tensor.detach()
            values = values if values.is_floating_point() else values.float()
            numbers = (*values.aminmax(), values.mean())  # read later: on an accelerator reading waits
        moment = (time.perf_counter() - self._began) * 1000
        self._rows.append((index, kind, call, shapes(inputs), shapes(outputs), numbers, moment, changed))

    def events(self) -> tuple[Event, ...]:
        found = []
        for index, kind, call, inputs, outputs, numbers, moment, changed in self._rows:
            path, note = self.paths[index], ""
            low, high, mean = (None,) * 3 if numbers is None else (number.item() for number in numbers)
            if kind == "backward" and not any(inputs):
                note = f"none of {path}'s own arguments is a tensor that requires a gradient: no grad_input"
            name = path if self.calls[index] == 1 else f"{path}:{call}"
            found.append(Event(kind, name, call, inputs, outputs, low, mean, high, moment, index, changed, note))
        return tuple(found)

    def tensor_hook(self, index: int, call: int, gradient: Tensor) -> Tensor | None:
        edited = self.edits[index](gradient, call)
        changed = edited is not gradient and not torch.equal(edited, gradient)
        self.add(index, "tensor", call, (), gradient, edited, changed)
        return edited if changed else None

    def backward_hook(
        self, index: int, only: int | None, before: int, module: nn.Module, grad_input: tuple, grad_output: tuple
    ) -> tuple | None:
        """`only`: the call that it is for, None for all; `before`: how often `module` was called before the block."""
        self.calls[index] = module.__dict__[CALLS] - before
        self._fired[index] = self._fired.get(index, 0) + 1
        call = self.calls[index] + 1 - self._fired[index]  # the last call's gradient comes first
        if only not in (None, call):
            return None
        edited = tuple(g if g is None else self.edits[index](g, call) for g in grad_input)
        pairs = zip(edited, grad_input, strict=True)
        changed = any(new is not old and not torch.equal(new, old) for new, old in pairs)
        shown = first_tensor(edited)
        shown = first_tensor(grad_output) if shown is None else shown
        self.add(index, "backward", call, grad_input, grad_output, shown, changed)
        return edited if changed else None


CALLS = "calls_while_shielded"  # an attribute of the module


@contextmanager
def shielded(module: nn.Module) -> Iterator[None]:
    """For the length of a full backward hook: it makes views of what goes in and out, and an in-place operation on such
    a view is an error. So clones go in and out; the calls are counted on the way."""
    kind = type(module)
    if CALLS in module.__dict__:  # a nested block
        yield
        return
    module.__class__, module.__dict__[CALLS] = _shield(kind), 0
    try:
        yield
    finally:
        module.__class__ = kind
        del module.__dict__[CALLS]


@lru_cache(maxsize=256)
def _shield(kind: type[nn.Module]) -> type[nn.Module]:
    class Shielded(kind):
        def __call__(self, *args, **kwargs):
            self.__dict__[CALLS] += 1
            return each_tensor(super().__call__(*args, **kwargs), Tensor.clone)

        def forward(self, *args, **kwargs):
            return super().forward(*each_tensor(args, Tensor.clone), **each_tensor(kwargs, Tensor.clone))

    Shielded.__name__, Shielded.__qualname__ = kind.__name__, kind.__qualname__
    return Shielded
