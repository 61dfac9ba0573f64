"""One picture through a model before and after edits: what every hook saw, and what that did to the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from . import cam, passes
from .edits import GRADIENTS, HOOKS, Edit
from .hooks import Event, count, record
from .results import read_only


class Effect(NamedTuple):
    """What became of one edit. `code` is "" where it changed values on their way to the logits."""

    calls: int  # how often its hook fired
    changed: bool  # whether it changed what passed, at least once
    code: str  # "", "watches", "never_called", "no_gradient", "unchanged", "not_reached" or "backward_only"
    reason: str  # the same as a sentence


REASONS: Mapping[str, str] = MappingProxyType(
    {
        "": "",
        "watches": "a watching hook hands on what it gets",
        "never_called": "the module, or that call of it, is not part of this pass",
        "no_gradient": "no gradient of this class passes here",
        "unchanged": "what passed was already so",
        "not_reached": "the changed values do not reach the logits",
        "backward_only": "a gradient edit leaves the forward pass alone: the logits stay, gradients before it change",
    }
)


@dataclass(frozen=True, eq=False)
class Run:
    """Arrays are float32 and cannot be written to. The gradients are those of the target's logit."""

    target: int
    layer: str | None  # where the maps are; None for a model without maps
    before: np.ndarray  # (K,) logits
    after: np.ndarray
    raw_before: np.ndarray | None  # (h, w) Grad-CAM at `layer`
    raw_after: np.ndarray | None
    gradient_before: np.ndarray  # (C, H, W), at the input
    gradient_after: np.ndarray
    events: tuple[Event, ...]  # every call of every hook, in the order in which it happened
    edits: tuple[Edit, ...]  # those given, then the watching ones; `Event.edit` is an index into it
    effects: tuple[Effect, ...]  # one for each of `edits`
    hooks_before: int  # live hooks of the model's modules and tensors: before,
    hooks_during: int  # with the edits' and the one that records for the map,
    hooks_after: int  # and after


class ChannelEffects(NamedTuple):
    """Does the gradient tell the truth? What silencing a channel takes from the target's logit, beside its weight."""

    effects: np.ndarray  # (C,): logit before minus logit with this channel at zero
    weights: np.ndarray  # (C,): Grad-CAM's alpha
    correlation: float  # Spearman's rank correlation of the two; 0 where one of them is constant


def watching(model: nn.Module, watch: str | Sequence[str]) -> tuple[Edit, ...]:
    """All four kinds of hook on each of the modules named; "all" are all modules."""
    names = [name for name, _ in model.named_modules() if name] if watch == "all" else watch
    names = (names,) if isinstance(names, str) else names
    return tuple(Edit(name, hook) for name in names for hook in HOOKS)


class _Pass(NamedTuple):
    logits: Tensor  # (K,)
    target: int
    raw: Tensor | None  # (h, w)
    gradient: Tensor  # (C, H, W)


def _one_pass(model: nn.Module, seen: record, image: Tensor, layer: str | None, target: int | None) -> _Pass:
    """Forward and backward inside `seen`. A full backward hook shows no grad_input unless the input has a gradient."""
    image = image.clone().requires_grad_()
    logits = passes.finite(passes.scores(model(image)))[0]
    target = int(logits.argmax()) if target is None else target
    at = [image] if layer is None else [image, seen[layer]]
    found = passes.gradients(logits[target], at)
    raw = None if layer is None else cam.gradcam(seen[layer][0].detach(), found[1])
    return _Pass(logits.detach(), target, raw, found[0])


def plain(model: nn.Module, image: Tensor, layer: str | None, target: int | None) -> _Pass:
    """The picture (1, C, H, W) through `model` as it is. `target` None is the predicted class."""
    with record(model, () if layer is None else layer) as seen:
        return _one_pass(model, seen, image, layer, target)


def run(model: nn.Module, image: Tensor, edits: Sequence[Edit], layer: str | None, before: _Pass) -> Run:
    """The same picture with `edits`, beside what came out `before`."""
    hooks_before = count(model)
    with record(model, () if layer is None else layer, edits) as seen:
        after = _one_pass(model, seen, image, layer, before.target)
        hooks_during = hooks_before + seen.live
    events = seen.events
    return Run(
        target=before.target,
        layer=layer,
        before=read_only(before.logits),
        after=read_only(after.logits),
        raw_before=None if layer is None else read_only(before.raw),
        raw_after=None if layer is None else read_only(after.raw),
        gradient_before=read_only(before.gradient),
        gradient_after=read_only(after.gradient),
        events=events,
        edits=tuple(edits),
        effects=effects(edits, events, not torch.equal(before.logits, after.logits)),
        hooks_before=hooks_before,
        hooks_during=hooks_during,
        hooks_after=count(model) + seen.live,
    )


def effects(edits: Sequence[Edit], events: Sequence[Event], logits_changed: bool) -> tuple[Effect, ...]:
    """What became of each edit, and why it had no effect where it had none."""
    found = []
    for index, edit in enumerate(edits):
        own = [event.changed for event in events if event.edit == index]
        if not own:
            code = "no_gradient" if edit.hook in GRADIENTS else "never_called"
        elif edit.action == "watch":
            code = "watches"
        elif not any(own):
            code = "unchanged"
        elif edit.hook in GRADIENTS:
            code = "backward_only"
        else:
            code = "" if logits_changed else "not_reached"
        found.append(Effect(len(own), any(own), code, REASONS[code]))
    return tuple(found)
