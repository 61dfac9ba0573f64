"""See, and change, what flows through a model: one context manager, `record`, owns every hook.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .edits import Edit
from .events import CALLS, Event, Timeline, shielded
from .nested import first_tensor, with_first


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


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """All modules, one that has several names under each of them."""
    return dict(model.named_modules(remove_duplicate=False))


def locate(model: nn.Module | Mapping[str, nn.Module], name: str) -> Place:
    """The place that `name` stands for in `model`, or in its `modules_by_name`, to look up many names quickly.

    ValueError with the three nearest names if there is none.
    """
    modules = modules_by_name(model) if isinstance(model, nn.Module) else model
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
        self._gradients, modules = gradients, modules_by_name(model)
        self._places = {name: locate(modules, name) for name in names}
        self._edit_places = tuple(locate(modules, edit.layer) for edit in self.edits)
        self._stack: ExitStack | None = None
        self._clear()

    def _clear(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._timeline = Timeline(self.edits, [place.path for place in self._edit_places])
        self.live = 0  # hooks registered by this block and not yet removed

    def __enter__(self) -> record:
        if self._stack is not None:
            raise RuntimeError("this record is in use already; make another one for a nested block")
        self._clear()
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
        place, calls = self._places[name], self._timeline.calls.get(name, 0)
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
        return self._timeline.events()

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
                self._stack.enter_context(shielded(place.module))
                before = place.module.__dict__[CALLS]
                hook = partial(self._timeline.backward_hook, index, place.call, before)
                self._own(place.module.register_full_backward_hook(hook))

    def _own(self, handle) -> None:
        def remove():
            handle.remove()
            self.live -= 1

        self.live += 1
        self._stack.callback(remove)

    def _on(self, place: Place, key: str | int, function: Callable[[int, tuple, Any], Any]) -> None:
        """Call `function(call, the module's arguments, value)` for the value at `place`; it returns the new value."""
        calls = self._timeline.calls
        calls[key] = 0

        def called(args: tuple, value: Any) -> Any:
            calls[key] += 1
            return function(calls[key], args, value) if place.call in (None, calls[key]) else None

        def before(module, args, kwargs):
            return called((*args, *kwargs.values()), (args, kwargs))

        def after(module, args, kwargs, output):
            return called((*args, *kwargs.values()), output)

        register = place.module.register_forward_pre_hook if place.input else place.module.register_forward_hook
        self._own(register(before if place.input else after, with_kwargs=True))

    # -- the hooks --------------------------------------------------------------------------------------------------

    def _change(self, index: int, call: int, args: tuple, value: Any) -> Any:
        edit, place = self.edits[index], self._edit_places[index]
        before = first_tensor(value)
        after = before if before is None else edit(before, call)
        changed = after is not before and not torch.equal(after, before)
        is_input = place.input or edit.hook == "forward_pre"
        kind = "forward_pre" if is_input else "forward"
        self._timeline.add(index, kind, call, args, () if is_input else value, after, changed)
        return None if after is before else with_first(value, lambda _: after)

    def _watch_gradient(self, index: int, call: int, args: tuple, value: Any) -> Any:
        def attach(tensor: Tensor) -> Tensor:
            # On a clone: a hook on a view that is then changed through another alias can crash PyTorch.
            hooked = tensor.clone() if tensor.requires_grad else tensor.detach().clone().requires_grad_()
            self._own(hooked.register_hook(partial(self._timeline.tensor_hook, index, call)))
            return hooked.clone()

        tensor = first_tensor(value)
        return with_first(value, attach) if tensor is not None and tensor.is_floating_point() else None

    def _keep(self, name: str, call: int, args: tuple, value: Any) -> Any:
        def keep(tensor: Tensor) -> Tensor:
            if not (self._gradients and tensor.is_floating_point()):
                self._kept[name] = tensor.detach().clone()
                return tensor
            kept = tensor.clone() if tensor.requires_grad else tensor.detach().clone().requires_grad_()
            self._kept[name] = kept
            return kept.clone()

        return with_first(value, keep)
