"""Structural copies of a model that share its weights, and a fair pool that lends them.

A copy's hooks are its own, so two requests that run at once can never see each other's activations.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from threading import Lock

import torch
from torch import nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def replica(model: nn.Module) -> nn.Module:
    """A copy of `model` in eval mode, its parameters frozen, sharing the memory of every parameter and buffer.

    The original's modes, `requires_grad` flags and gradients stay as they are; hooks registered on it fire on the copy
    too. Raises whatever `copy.deepcopy` raises for a module that holds something that cannot be copied.
    """
    memo: dict = {id(buffer): buffer for buffer in model.buffers()}
    with torch.inference_mode(False):  # what is made in inference mode can never take part in a gradient
        for parameter in model.parameters():
            memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
        twin = copy.deepcopy(model, memo)
    for original, copied in zip(model.modules(), twin.modules(), strict=True):
        for kind in _HOOKS:  # a bound method's object would have been copied with it
            if getattr(original, kind, None):
                copied.__dict__[kind] = OrderedDict(getattr(original, kind))
    return twin.eval()


@contextmanager
def _borrowed(model: nn.Module) -> Iterator[nn.Module]:
    """The original itself, in eval mode and frozen for the length of the block, then as it was."""
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.eval().requires_grad_(False)
        yield model
    finally:
        for module, training in modes:
            module.training = training
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


class Pool:
    """Lends up to `size` replicas of `model`, made when first needed, in order of asking.

    A model that cannot be copied is lent itself, to one at a time, and is afterwards as it was before.
    """

    def __init__(self, model: nn.Module, size: int, device: torch.device):
        self._lock = Lock()
        self._waiting: deque[Future] = deque()
        try:
            self.model = replica(model).to(device)  # the original keeps its device: their parameters are two objects
        except Exception as error:  # whatever the model's parts raise on being copied
            if any(parameter.device != device for parameter in model.parameters()):
                raise ValueError(f"this model cannot be copied, so move it to {device} first") from error
            self.model, self.copied, self._unmade, self._idle = model, False, 0, [model]
        else:
            self.copied, self._unmade, self._idle = True, size, []

    @contextmanager
    def lend(self) -> Iterator[nn.Module]:
        """`with pool.lend() as model:` a replica that nobody else uses for the length of the block."""
        model = self._take()
        try:
            with nullcontext(model) if self.copied else _borrowed(model):
                yield model
        finally:
            self._give_back(model)

    def _take(self) -> nn.Module:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if self._unmade:
                self._unmade -= 1
                return replica(self.model)
            turn = Future()
            self._waiting.append(turn)
        try:
            return turn.result()
        except BaseException:  # interrupted: whoever is handed the replica must hand it on
            turn.add_done_callback(lambda done: self._give_back(done.result()))
            raise

    def _give_back(self, model: nn.Module) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set_result(model)
            else:
                self._idle.append(model)
