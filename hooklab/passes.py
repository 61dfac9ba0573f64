"""Questions to a model: its logits, their gradients, and its logits when a layer holds something else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from .hooks import Place, locate
from .nested import first_tensor, with_first


def scores(output: Any) -> Tensor:
    """The logits (N, K) in what a classifier returned."""
    logits = first_tensor(output)
    if logits is None or logits.ndim != 2 or not logits.is_floating_point():
        shape = "no tensor" if logits is None else f"{logits.dtype} {tuple(logits.shape)}"
        raise ValueError(f"the model returned {shape}: a classifier's logits (N, classes) are accepted")
    return logits


def gradients(logit: Tensor, activations: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of one logit at several activations (1, C, ...): (C, ...) each, zero where it does not depend."""
    if not logit.requires_grad:
        return [torch.zeros_like(activation[0]) for activation in activations]
    found = torch.autograd.grad(logit, activations, allow_unused=True)
    return [torch.zeros_like(a[0]) if g is None else g[0] for g, a in zip(found, activations, strict=True)]


def gradients_of_all(logits: Tensor, activation: Tensor, chunk: int = 64) -> Iterator[Tensor]:
    """The gradients of all logits (1, K) at an activation (1, C, ...), `chunk` classes at a time: (<= chunk, C, ...).

    One batched backward pass a chunk; class by class where an operation of the model has no batching rule.
    """
    if not logits.requires_grad:
        yield activation.new_zeros(logits.shape[1], *activation.shape[1:])
        return
    for rows in torch.eye(logits.shape[1]).to(logits).split(chunk):

        def ask(vector: Tensor, batched: bool) -> Tensor:
            (found,) = torch.autograd.grad(
                logits[0], activation, vector, retain_graph=True, is_grads_batched=batched, allow_unused=True
            )
            return activation.new_zeros(*vector.shape[:-1], *activation.shape) if found is None else found

        try:
            found = ask(rows, True)  # (T, 1, C, ...)
        except RuntimeError:
            found = torch.stack([ask(row, False) for row in rows])
        yield found[:, 0]


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
        return with_first(value, lambda _: values.clone()) if place.call in (None, calls) else None

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


def finite(tensor: Tensor) -> Tensor:
    """The same numbers; ValueError where one of them is none."""
    if not math.isfinite(tensor.detach().sum()) and not bool(
        tensor.isfinite().all()
    ):  # one operation where all is well
        raise ValueError("the model's numbers for this picture are not finite (NaN or infinity): check its weights")
    return tensor
