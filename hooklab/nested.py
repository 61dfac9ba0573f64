"""Tensors inside what modules take and return: a tensor, or tuples, lists and dicts of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor of what a module took or returned: a tensor, or tuples, lists and dicts of them."""
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
    return next((found for found in map(first_tensor, items) if found is not None), None)


def each_tensor(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with `function` applied to each of its tensors."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        changed = {key: each_tensor(item, function) for key, item in value.items()}
        return changed if type(value) is dict else type(value)(**changed)  # such as transformers' ModelOutput
    if isinstance(value, (tuple, list)):
        changed = [each_tensor(item, function) for item in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)  # a named tuple, or not
    return value


def with_first(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with its first tensor replaced by `function` of it."""
    target = first_tensor(value)
    return each_tensor(value, lambda tensor: function(tensor) if tensor is target else tensor)


def shapes(value: Any) -> tuple[tuple[int, ...] | None, ...]:
    if isinstance(value, (tuple, list)):
        return tuple(None if (tensor := first_tensor(item)) is None else tuple(tensor.shape) for item in value)
    tensor = first_tensor(value)
    return () if tensor is None else (tuple(tensor.shape),)
