"""See, and change, what flows through a model: `record` owns every hook, `layers` lists where one can be put.

    >>> with record(model, ["conv3", "pool:3.input"]) as seen:
    ...     logits = model(image)                      # image (N, 3, H, W)
    >>> seen["conv3"]                                  # (N, C, h, w): what conv3 returned
    >>> torch.autograd.grad(logits[0, 8], seen["conv3"])

Names are dotted module paths, as in `model.named_modules()`. A module that is called several times in one pass has one
name a call: "pool:1", "pool:2". What ENTERS a module, caught by a pre-hook, is its name with ".input": so the result of
a function between two modules, such as `F.relu`, has a name too.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from .edits import Edit
from .nested import each_tensor, first_tensor, shapes, with_first


def nearest(name: object, known: Iterable[str], count: int = 3) -> str:
    """The `count` names most like `name`, as text for an error message."""
    return ", ".join(difflib.get_close_matches(str(name), list(known), count, cutoff=0.0))


@dataclass(frozen=True)
class Place:
    """Where a name points: a module, one of its calls (None: every one) and its output or its input."""

    module: nn.Module
    path: str
    call: int | None
    input: bool

    def name(self, call: int | None = None) -> str:
        return self.path + (f":{call}" if call else "") + (".input" if self.input else "")


def locate(model: nn.Module, name: str) -> Place:
    """The place that `name` stands for in `model`; ValueError with the three nearest names if there is none."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if isinstance(name, str):
        rest, is_input = name, False
        if name not in modules and name.endswith(".input"):
            rest, is_input = name[: -len(".input")], True
        if rest in modules:
            return Place(modules[rest], rest, None, is_input)
        path, _, call = rest.rpartition(":")
        if path in modules and re.fullmatch("[1-9][0-9]{0,8}", call):
            return Place(modules[path], path, int(call), is_input)
    raise ValueError(f"layer {name!r}: this model has no such module; the nearest are {nearest(name, modules)}")


def count(model: nn.Module) -> int:
    """How many hooks are registered on all modules of `model`, whoever registered them."""
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return sum(len(getattr(module, kind, ())) for module in model.modules() for kind in kinds)


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


class record(Mapping):
    """`with record(model, layers, edits) as seen:` hooks on entry, removes every hook on exit, whatever happened.

    `layers`: a name, or names, to keep activations of; `seen[name]` is the tensor, with batch. What is kept is a clone,
    and a clone is handed on: a later in-place operation cannot overwrite it. With `gradients` (the default) it requires
    a gradient, also under `torch.no_grad()`, and is a leaf if nothing before it does: nothing before the layer is then
    differentiated. Without, it is detached.

    `edits`: `Edit`s, or dicts of their fields, applied in order by real hooks; `seen.events` has every call of theirs
    in the order in which it happened. Run the backward pass inside the block, or hooks on gradients are gone by then.

    Hooks of the user's own stay and still fire. ValueError: for an unknown name on construction; for one that needs a
    call number, or that was never reached, at the end of the block, or on `seen[name]`.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: str | Iterable[str] = (),
        edits: Iterable[Edit | Mapping] = (),
        *,
        gradients: bool = True,
    ):
        names = (layers,) if isinstance(layers, str) else tuple(layers)
        self.edits = tuple(Edit.of(edit) for edit in edits)
        self._model, self._gradients = model, gradients
        self._places = {name: locate(model, name) for name in names}
        self._edit_places = tuple(locate(model, edit.layer) for edit in self.edits)
        self._stack: ExitStack | None = None
        self._clear()

    def _clear(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._calls: dict[str, int] = dict.fromkeys(self._places, 0)
        self._events: list[tuple] = []
        self._fired: dict[int, int] = {}  # edit -> how often its backward hook fired
        self._calls_before: dict[nn.Module, int] = {}  # shielded module -> calls before this block
        self.live = 0  # hooks registered by this block and not yet removed

    def __enter__(self) -> record:
        if self._stack is not None:
            raise RuntimeError("this record is in use already; make another one for a nested block")
        self._clear()
        self._began = time.perf_counter()
        self._stack = ExitStack()
        try:
            if self._gradients:
                self._stack.enter_context(torch.inference_mode(False))
                self._stack.enter_context(torch.enable_grad())
            self._register()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._close()
        if kind is None:
            for name in self._places:
                self._check(name)

    def _close(self) -> None:
        self._stack.close()
        self._stack = None

    # -- what was recorded ------------------------------------------------------------------------------------------

    def _check(self, name: str) -> None:
        place, calls = self._places[name], self._calls[name]
        if place.call is None and calls > 1:
            names = ", ".join(place.name(call) for call in range(1, calls + 1))
            raise ValueError(f"layer {name!r}: this module was called {calls} times; name one call: {names}")
        if calls < (place.call or 1):
            times = {0: "not called", 1: "called once"}.get(calls, f"called {calls} times")
            raise ValueError(f"layer {name!r}: {place.path or 'the model'} was {times} in this block")

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._places:
            raise KeyError(f"{name!r} is not recorded here; recorded are {', '.join(self._places) or 'no layers'}")
        self._check(name)
        if name not in self._kept:
            raise ValueError(f"layer {name!r}: there was no tensor in what this module took or returned")
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def events(self) -> tuple[Event, ...]:
        """Every call of the edits' hooks so far, in the order in which it happened."""
        found = []
        for index, kind, call, inputs, outputs, numbers, moment, changed in self._events:
            place = self._edit_places[index]
            low, high, mean = (None,) * 3 if numbers is None else (number.item() for number in numbers)
            name = place.path if self._calls[index] == 1 else f"{place.path}:{call}"
            note = ""
            if kind == "backward" and not any(inputs):
                note = f"none of {place.path}'s own arguments is a tensor that requires a gradient: no grad_input"
            found.append(Event(kind, name, call, inputs, outputs, low, mean, high, moment, index, changed, note))
        return tuple(found)

    # -- registering ------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        """Edits of values first, then what is recorded, then edits of gradients: each sees those before it."""
        pairs = list(enumerate(zip(self.edits, self._edit_places, strict=True)))
        for index, (edit, place) in pairs:
            if edit.hook in ("forward", "forward_pre"):
                place = replace(place, input=place.input or edit.hook == "forward_pre")
                self._on(place, index, partial(self._change, index))
        for name, place in self._places.items():
            self._on(place, name, partial(self._keep, name))
        for index, (edit, place) in pairs:
            if edit.hook == "tensor":
                self._on(place, index, partial(self._watch_gradient, index))
        for index, (edit, place) in pairs:
            if edit.hook == "backward":
                self._shield(place.module)
                self._own(place.module.register_full_backward_hook(partial(self._backward, index)))

    def _own(self, handle) -> None:
        def remove():
            handle.remove()
            self.live -= 1

        self.live += 1
        self._stack.callback(remove)

    def _on(self, place: Place, key: str | int, function: Callable[[int, tuple, Any], Any]) -> None:
        """Call `function(call, the module's arguments, value)` for the value at `place`; it returns the new value."""
        self._calls[key] = 0

        def called(args: tuple, value: Any) -> Any:
            self._calls[key] += 1
            return function(self._calls[key], args, value) if place.call in (None, self._calls[key]) else None

        def before(module, args, kwargs):
            return called((*args, *kwargs.values()), (args, kwargs))

        def after(module, args, kwargs, output):
            return called((*args, *kwargs.values()), output)

        register = place.module.register_forward_pre_hook if place.input else place.module.register_forward_hook
        self._own(register(before if place.input else after, with_kwargs=True))

    # -- the hooks --------------------------------------------------------------------------------------------------

    def _happened(
        self, index: int, kind: str, call: int, inputs: Any, outputs: Any, tensor: Tensor | None, changed: bool = False
    ) -> None:
        numbers = None
        if tensor is not None and tensor.numel():
            values = tensor.detach()
            values = values if values.is_floating_point() else values.float()
            numbers = (*values.aminmax(), values.mean())  # read later: on an accelerator reading waits
        moment = (time.perf_counter() - self._began) * 1000
        self._events.append((index, kind, call, shapes(inputs), shapes(outputs), numbers, moment, changed))

    def _change(self, index: int, call: int, args: tuple, value: Any) -> Any:
        edit, place = self.edits[index], self._edit_places[index]
        before = first_tensor(value)
        after = before if before is None else edit(before, call)
        changed = after is not before and not torch.equal(after, before)
        is_input = place.input or edit.hook == "forward_pre"
        kind = "forward_pre" if is_input else "forward"
        self._happened(index, kind, call, args, () if is_input else value, after, changed)
        return None if after is before else with_first(value, lambda _: after)

    def _watch_gradient(self, index: int, call: int, args: tuple, value: Any) -> Any:
        def attach(tensor: Tensor) -> Tensor:
            # On a clone: a hook on a view that is then changed through another alias can crash PyTorch.
            hooked = tensor.clone() if tensor.requires_grad else tensor.detach().clone().requires_grad_()
            self._own(hooked.register_hook(partial(self._gradient, index, call)))
            return hooked.clone()

        tensor = first_tensor(value)
        return with_first(value, attach) if tensor is not None and tensor.is_floating_point() else None

    def _gradient(self, index: int, call: int, gradient: Tensor) -> Tensor | None:
        edited = self.edits[index](gradient, call)
        changed = edited is not gradient and not torch.equal(edited, gradient)
        self._happened(index, "tensor", call, (), gradient, edited, changed)
        return edited if changed else None

    def _backward(self, index: int, module: nn.Module, grad_input: tuple, grad_output: tuple) -> tuple | None:
        self._calls[index] = module.__dict__[_CALLS] - self._calls_before[module]
        fired = self._fired[index] = self._fired.get(index, 0) + 1
        call = self._calls[index] + 1 - fired  # the last call's gradient comes first
        if self._edit_places[index].call not in (None, call):
            return None
        edited = tuple(g if g is None else self.edits[index](g, call) for g in grad_input)
        pairs = list(zip(edited, grad_input, strict=True))
        changed = any(new is not old and not torch.equal(new, old) for new, old in pairs)
        shown = first_tensor(edited) if first_tensor(edited) is not None else first_tensor(grad_output)
        self._happened(index, "backward", call, grad_input, grad_output, shown, changed)
        return edited if changed else None

    def _shield(self, module: nn.Module) -> None:
        """A full backward hook makes views of what goes in and out, barred to in-place operations: clone them."""
        if module in self._calls_before:
            return
        kind = type(module)
        if not getattr(kind, "shielded", False):
            module.__class__ = _shielded(kind)
            module.__dict__[_CALLS] = 0
            self._stack.callback(module.__dict__.pop, _CALLS)
            self._stack.callback(setattr, module, "__class__", kind)
        self._calls_before[module] = module.__dict__[_CALLS]

    def _keep(self, name: str, call: int, args: tuple, value: Any) -> Any:
        def keep(tensor: Tensor) -> Tensor:
            if not (self._gradients and tensor.is_floating_point()):
                self._kept[name] = tensor.detach().clone()
                return tensor
            kept = tensor.clone() if tensor.requires_grad else tensor.detach().clone().requires_grad_()
            self._kept[name] = kept
            return kept.clone()

        return with_first(value, keep)


_CALLS = "_calls_while_shielded"


@lru_cache(maxsize=256)
def _shielded(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass that counts calls and clones what enters `forward` and what leaves the module."""

    class Shielded(kind):
        shielded = True

        def __call__(self, *args, **kwargs):
            self.__dict__[_CALLS] += 1
            return each_tensor(super().__call__(*args, **kwargs), Tensor.clone)

        def forward(self, *args, **kwargs):
            return super().forward(*each_tensor(args, Tensor.clone), **each_tensor(kwargs, Tensor.clone))

    Shielded.__name__, Shielded.__qualname__ = kind.__name__, kind.__qualname__
    return Shielded
