"""What a hook can do to the values, or to the gradients, that pass it."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

import torch
from torch import Tensor

VALUES, GRADIENTS = ("forward_pre", "forward"), ("backward", "tensor")
HOOKS = (*VALUES, *GRADIENTS)


@dataclass(frozen=True)
class Action:
    """Which hooks it is for, and what `value` it takes: nothing, a number with a lowest and highest, or two numbers."""

    hooks: tuple[str, ...]
    takes: str = ""  # "", "number" or "pair"
    low: float = -1e6
    high: float = 1e6
    what: str = ""


ACTIONS: Mapping[str, Action] = MappingProxyType(
    {
        "watch": Action(HOOKS),
        "zero": Action(HOOKS),
        "scale": Action(HOOKS, "number", what="a factor"),
        "negate": Action(HOOKS),
        "noise": Action(HOOKS, "number", 0.0, what="a standard deviation"),
        "keep": Action(VALUES),
        "mean": Action(VALUES),
        "prune": Action(VALUES, "number", 0.0, 100.0, what="a percentage of channels"),
        "clamp": Action(VALUES, "pair", what="the lowest and the highest value"),
        "clip": Action(GRADIENTS, "number", 0.0, what="the largest magnitude"),
        "clip_norm": Action(GRADIENTS, "number", 0.0, what="the largest Euclidean norm"),
    }
)


def _number(name: str, value: object, action: Action) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not action.low <= value <= action.high:
        raise ValueError(
            f"value {value!r}: {name} takes {action.what}, a number from {action.low:g} to {action.high:g}"
        )
    return float(value)


def _index(what: str, value: object, highest: int) -> int:
    """A whole number from 0 to `highest`; NumPy's count, booleans and 3.0 do not."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= highest:
        raise ValueError(f"{what} {value!r}: a whole number from 0 to {highest} is accepted")
    return number


@dataclass(frozen=True)
class Edit:
    """One hook at `layer` and what it does there. Checked on construction; ValueError names what is accepted.

    hook      "forward_pre": the module's input; "forward": its output; "backward": grad_input in a full backward hook;
              "tensor": the gradient of its output, in a hook on that tensor
    action    watch, zero, scale, negate, noise;  on values also keep (zero all other channels), mean (each channel by
              its mean over space), prune (zero the weakest `value` % of channels by mean magnitude), clamp;
              on gradients also clip (to +-value) and clip_norm
    channels  the channels that it is limited to; None: all
    value     see `ACTIONS`
    seed      of the noise, which is the same for the same seed, call and shape, on every device
    """

    layer: str
    hook: str = "forward"
    action: str = "watch"
    channels: tuple[int, ...] | None = None
    value: float | tuple[float, float] | None = None
    seed: int = 0

    def __post_init__(self):
        if not isinstance(self.layer, str):
            raise ValueError(f"layer {self.layer!r}: a module's name is accepted")
        if self.hook not in HOOKS:
            raise ValueError(f"hook {self.hook!r}: accepted are {', '.join(HOOKS)}")
        accepted = [name for name, action in ACTIONS.items() if self.hook in action.hooks]
        if self.action not in accepted:
            raise ValueError(f"action {self.action!r}: with a {self.hook} hook, accepted are {', '.join(accepted)}")
        set_ = object.__setattr__  # the dataclass is frozen; this is its construction
        set_(self, "seed", _index("seed", self.seed, 2**31 - 1))
        set_(self, "value", self._checked_value(ACTIONS[self.action]))
        if self.channels is not None:
            if isinstance(self.channels, str) or not isinstance(self.channels, Sequence):
                raise ValueError(f"channels {self.channels!r}: a list of whole numbers is accepted, or nothing for all")
            set_(self, "channels", tuple(_index("channel", channel, 2**31 - 1) for channel in self.channels))
        if self.action == "keep" and not self.channels:
            raise ValueError("keep needs the channels to keep: a list of at least one")

    def _checked_value(self, action: Action) -> float | tuple[float, float] | None:
        value = self.value
        if not action.takes:
            if value is not None:
                raise ValueError(f"value {value!r}: {self.action} takes no value")
            return None
        if action.takes == "number":
            return _number(self.action, value, action)
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            raise ValueError(f"value {value!r}: {self.action} takes two numbers, {action.what}")
        low, high = (_number(self.action, number, action) for number in value)
        if low > high:
            raise ValueError(f"value {value!r}: {self.action} takes {action.what}, in this order")
        return low, high

    @classmethod
    def of(cls, edit: Edit | Mapping) -> Edit:
        """An edit from a dict of its fields, as it comes from JSON."""
        if isinstance(edit, cls):
            return edit
        names = [field.name for field in fields(cls)]
        if not isinstance(edit, Mapping) or "layer" not in edit or not all(key in names for key in edit):
            raise ValueError(f"edit {edit!r}: a dict with layer and some of {', '.join(names[1:])} is accepted")
        return cls(**edit)

    @property
    def changes_values(self) -> bool:
        return self.hook in VALUES and self.action != "watch"

    def __call__(self, tensor: Tensor, call: int = 1) -> Tensor:
        """The edited tensor, out of place. `tensor`: (N, C, ...), or (N, tokens, C) when it has three dimensions."""
        if self.action == "watch":
            return tensor
        axis = 2 if tensor.ndim == 3 else min(1, tensor.ndim - 1)
        chosen = self._chosen(tensor, axis)
        if self.action in ("zero", "keep", "prune"):
            return tensor.masked_fill(chosen, 0)
        changed = self._changed(tensor, axis, call)
        return changed if self.channels is None else torch.where(chosen, changed, tensor)

    def _chosen(self, tensor: Tensor, axis: int) -> Tensor:
        """Which channels the action is for, shaped to broadcast against `tensor`."""
        channels = tensor.shape[axis]
        for channel in self.channels or ():
            if channel >= channels:
                raise ValueError(f"channel {channel}: {self.layer} has {channels} channels (0 to {channels - 1})")
        chosen = torch.full((channels,), self.channels is None, device=tensor.device)
        if self.channels is not None:
            chosen[list(self.channels)] = True
        if self.action == "keep":
            chosen = ~chosen
        if self.action == "prune":
            strength = tensor.detach().abs().mean([d for d in range(tensor.ndim) if d != axis])  # (C,)
            strength[~chosen] = math.inf
            weakest = strength.argsort(stable=True)[: int(chosen.sum() * self.value / 100)]
            chosen = torch.zeros_like(chosen).index_fill(0, weakest, True)
        return chosen.reshape([-1 if d == axis else 1 for d in range(tensor.ndim)])

    def _changed(self, tensor: Tensor, axis: int, call: int) -> Tensor:
        if self.action == "scale":
            return tensor * self.value
        if self.action == "negate":
            return -tensor
        if self.action == "noise":
            generator = torch.Generator().manual_seed(self.seed * 1000 + call)
            return tensor + self.value * torch.randn(tensor.shape, generator=generator).to(tensor)
        if self.action == "mean":
            space = [d for d in range(1, tensor.ndim) if d != axis]
            return tensor.mean(space, keepdim=True).expand_as(tensor) if space else tensor
        if self.action == "clamp":
            return tensor.clamp(*self.value)
        if self.action == "clip":
            return tensor.clamp(-self.value, self.value)
        return tensor * (self.value / tensor.norm().clamp(min=1e-12)).clamp(max=1)  # clip_norm
