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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from .edits import Edit


def nearest(name: object, known: Iterable[str], count: int = 3) -> str:
    """The `count` names most like `name`, as text for an error message."""
    return ", ".join(difflib.get_close_matches(str(name), list(known), count, cutoff=0.0))


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor of what a module took or returned: a tensor, or tuples, lists and dicts of them."""
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return next((found for found in map(first_tensor, items) if found is not None), None)


def _each(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with `function` applied to each of its tensors."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        changed = {key: _each(item, function) for key, item in value.items()}
        return changed if type(value) is dict else type(value)(**changed)  # such as transformers' ModelOutput
    if isinstance(value, (tuple, list)):
        changed = [_each(item, function) for item in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)  # a named tuple, or not
    return value


def _first(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with its first tensor replaced by `function` of it."""
    target = first_tensor(value)
    return _each(value, lambda tensor: function(tensor) if tensor is target else tensor)


def _shapes(value: Any) -> tuple[tuple[int, ...] | None, ...]:
    if isinstance(value, (tuple, list)):
        return tuple(None if (tensor := first_tensor(item)) is None else tuple(tensor.shape) for item in value)
    tensor = first_tensor(value)
    return () if tensor is None else (tuple(tensor.shape),)


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


class record(Mapping):  # noqa: N801  it reads as a verb: with record(...) as seen
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

    def _change(self, index: int, call: int, args: tuple, value: Any) -> Any:
        return _first(value, lambda tensor: self.edits[index](tensor, call))

    def _keep(self, name: str, call: int, args: tuple, value: Any) -> Any:
        def keep(tensor: Tensor) -> Tensor:
            if not (self._gradients and tensor.is_floating_point()):
                self._kept[name] = tensor.detach().clone()
                return tensor
            kept = tensor.clone() if tensor.requires_grad else tensor.detach().clone().requires_grad_()
            self._kept[name] = kept
            return kept.clone()

        return _first(value, keep)


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
    tensors = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
    rows: list[tuple[str, int, bool, nn.Module, Tensor, str, bool]] = []
    calls: dict[str, int] = {}
    seen: dict[tuple[int, int], tuple] = {}  # (tensor, autograd node) by identity, kept alive so that it is unique
    made: dict[Any, tuple[int, str, int]] = {}  # autograd node -> when, and by which call of which module

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
            made[tensor.grad_fn] = (len(rows), name, calls[name])
            rows.append((name, calls[name], False, module, tensor, tensor.grad_fn, True))

    with ExitStack() as stack, torch.inference_mode(False), torch.enable_grad():
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
        """The function that made an input, and the same with the module before it: ("relu", "conv3 after relu")."""
        functions = []
        while (
            node is not None and node not in made and not node.name().endswith("AccumulateGrad") and len(functions) < 4
        ):
            functions.append(_function(node.name()))
            parents = [parent for parent, _ in node.next_functions if parent is not None]
            node = max(parents, key=lambda parent: made.get(parent, (-1,))[0], default=None)
        source = full(*made[node][1:]) if node in made else "input"
        return functions[0], f"{source} after {', '.join(reversed(functions))}"

    found = []
    for name, call, is_input, module, tensor, node, listed in rows:
        row = full(name, call) + (".input" if is_input else "")
        type_, label = (type(module).__name__, row)
        if is_input:
            type_, label = origin(node) if listed and node is not None else ("input", f"input of {full(name, call)}")
        shape = tuple(tensor.shape[1:])
        spatial = len(shape) == 3 and shape[1] * shape[2] > 1
        parameters = 0 if is_input else sum(p.numel() for p in module.parameters())
        found.append(LayerInfo(row, label, type_, shape, parameters, spatial, listed=listed))
    return tuple(found)


def scores(output: Any) -> Tensor:
    """The logits (N, K) in what a classifier returned."""
    logits = first_tensor(output)
    if logits is None or logits.ndim != 2 or not logits.is_floating_point():
        shape = "no tensor" if logits is None else f"{logits.dtype} {tuple(logits.shape)}"
        raise ValueError(f"the model returned {shape}: a classifier's logits (N, classes) are accepted")
    return logits


def gradients(logits: Tensor, activation: Tensor, targets: Sequence[int]) -> Tensor:
    """Gradients of one picture's logits (1, K) at its activation (1, C, ...), one for each target: (T, C, ...).

    One batched backward pass; class by class where an operation of the model does not allow that. Zero where a logit
    does not depend on the activation. The graph is freed.
    """
    if not logits.requires_grad:
        return activation.new_zeros(len(targets), *activation.shape[1:])
    chosen = logits[0, list(targets)]  # (T,)
    if len(targets) > 1:
        try:
            (found,) = torch.autograd.grad(
                chosen, activation, torch.eye(len(targets)).to(chosen), True, is_grads_batched=True, allow_unused=True
            )
            return activation.new_zeros(len(targets), *activation.shape[1:]) if found is None else found[:, 0]
        except RuntimeError:
            pass  # no batching rule
    rows = []
    for index in range(len(targets)):
        (row,) = torch.autograd.grad(
            chosen[index], activation, retain_graph=index + 1 < len(targets), allow_unused=True
        )
        rows.append(torch.zeros_like(activation[0]) if row is None else row[0])
    return torch.stack(rows)


def replaced(model: nn.Module, layer: str, image: Tensor, values: Tensor, chunk: int = 32) -> Tensor:
    """Logits (N, K) of `image` (1, C, H, W) when `layer` holds each of `values` (N, ...) instead of its own.

    What comes before the layer runs once a chunk: the hook hands on a whole batch for the one picture, which most
    networks let pass; those that do not are run on as many copies of the picture.
    """
    place = locate(model, layer)
    return torch.cat([_replaced(model, place, image, part) for part in values.split(chunk)])


def _replaced(model: nn.Module, place: Place, image: Tensor, values: Tensor) -> Tensor:
    calls = 0

    def swap(value: Any) -> Any:
        nonlocal calls
        calls += 1
        return _first(value, lambda _: values.clone()) if place.call in (None, calls) else None

    def run(batch: Tensor) -> Tensor:
        nonlocal calls
        calls = 0
        with ExitStack() as stack, torch.inference_mode(False), torch.no_grad():
            if place.input:
                hook = place.module.register_forward_pre_hook(lambda _, *inputs: swap(inputs), with_kwargs=True)
            else:
                hook = place.module.register_forward_hook(lambda _, inputs, output: swap(output))
            stack.callback(hook.remove)
            return scores(model(batch))

    try:
        logits = run(image)
        if len(logits) == len(values):
            return logits
    except RuntimeError:
        pass  # a shape that does not broadcast: a branch beside the layer kept its batch of one
    return run(image.expand(len(values), -1, -1, -1))


def _function(node_name: str) -> str:
    """ "MaxPool2DBackward0" -> "max pool2d"."""
    words = re.sub(r"Backward\d*$", "", node_name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", " ", words).lower()
