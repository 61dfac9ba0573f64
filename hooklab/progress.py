"""How far a training is, on one line of the terminal."""

from __future__ import annotations

import sys
import time

from torch import Tensor


class Progress:
    """One line on stderr that is rewritten while an epoch runs; whole lines only where stderr is no terminal."""

    def __init__(self, epochs: int, first: int, steps: int, show: bool):
        self.epochs, self.first, self.steps, self.show = epochs, first, steps, show
        self.begun, self.shown = time.monotonic(), 0.0

    def left(self, done: float) -> str:  # done: epochs since we began, with the fraction
        seconds = int((time.monotonic() - self.begun) / max(done, 1e-9) * (self.epochs - self.first - done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"

    def step(self, epoch: int, step: int, loss: Tensor, accuracy: Tensor) -> None:
        if self.show and sys.stderr.isatty() and time.monotonic() - self.shown > 0.2:
            self.shown = time.monotonic()
            share = (step + 1) / self.steps
            bar = "█" * int(20 * share) + "·" * (20 - int(20 * share))
            line = f"epoch {epoch + 1}/{self.epochs} {bar} loss {loss:.3f} accuracy {accuracy:6.1%}"
            print(f"\r{line}  {self.left(epoch - self.first + share)}\x1b[K", end="", file=sys.stderr, flush=True)

    def epoch(self, row: dict) -> None:
        if self.show:
            line = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            start = "\r" if sys.stderr.isatty() else ""
            print(f"{start}{line}, {self.left(row['epoch'] - self.first)}\x1b[K", file=sys.stderr, flush=True)
