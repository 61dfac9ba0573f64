"""A cache that forgets what was not used for longest, bounded by the memory that it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import is_dataclass
from threading import Lock
from typing import Any

import numpy as np
from torch import Tensor


def size(value: Any) -> int:
    """Bytes of the arrays and tensors in `value`, and a little for the rest."""
    if isinstance(value, Tensor):
        return value.element_size() * value.nelement() + 200
    if isinstance(value, np.ndarray):
        return value.nbytes + 200
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return sum(map(size, value.values())) + 200
    return sum(map(size, value)) + 200 if isinstance(value, (tuple, list)) else 200


class Cache:
    """`limit` bytes of values by key, for many threads. None is not a value."""

    def __init__(self, limit: int):
        self.limit, self.bytes = limit, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable) -> Any:
        """The value, or None."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def keep(self, key: Hashable, value: Any) -> None:
        """What alone is larger than the limit is not kept."""
        cost = size(value)
        if cost > self.limit:
            return
        with self._lock:
            self.bytes += cost - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, cost
            while self.bytes > self.limit:
                self.bytes -= self._values.popitem(last=False)[1][1]

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value; `make()`, kept, where there is none. Two threads may both make it: nobody waits for another."""
        value = self.find(key)
        if value is None:
            value = make()
            self.keep(key, value)
        return value

    def clear(self) -> None:
        with self._lock:
            self._values.clear()
            self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)
