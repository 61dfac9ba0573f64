"""A split as whole tensors, shuffled and augmented; what an epoch draws depends on (seed, epoch) alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from .models import Entry


class Images:
    """Pixels uint8 (N, 3, H, W) and labels int64 (N,) of a split, on one device, reflected `shift` pixels outward."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, entry: Entry, device: torch.device, shift: int = 0):
        self.shift, self.side = shift, pixels.shape[-1]
        self.labels = torch.from_numpy(labels).to(device)
        channels_last = torch.from_numpy(pixels).permute(0, 2, 3, 1)  # (N, H, W, 3)
        reflect = torch.arange(-shift, self.side + shift).abs()
        reflect = torch.where(reflect >= self.side, 2 * (self.side - 1) - reflect, reflect)
        self.padded = channels_last[:, reflect][:, :, reflect].contiguous().to(device)
        self.mean, self.std = (torch.tensor(v, device=device) for v in (entry.mean, entry.std))

    def __len__(self) -> int:
        return len(self.labels)

    def normalized(self, pixels: Tensor) -> Tensor:  # uint8 (N, H, W, 3) -> float (N, 3, H, W), channels-last in memory
        return ((pixels.float() / 255 - self.mean) / self.std).permute(0, 3, 1, 2)

    def plain(self, indices: Tensor) -> Tensor:
        window = slice(self.shift, self.shift + self.side)
        return self.normalized(self.padded[indices][:, window, window])

    def augmented(self, indices: Tensor, shifts: Tensor, flips: Tensor, corners: Tensor, cutout: int) -> Tensor:
        """Shift, flip and cutout of one batch. `shifts` (N, 2), `flips` (N,), `corners` (N, 2) -> (N, 3, H, W)."""
        steps = torch.arange(self.side, device=indices.device)
        rows = shifts[:, :1] + steps  # (N, H)
        columns = shifts[:, 1:] + torch.where(flips[:, None], steps.flip(0), steps)
        images = self.normalized(self.padded[indices[:, None, None], rows[:, :, None], columns[:, None, :]])
        inside = (steps >= corners[..., None]) & (steps < corners[..., None] + cutout)  # (N, 2, H or W)
        return images.masked_fill_((inside[:, 0, :, None] & inside[:, 1, None, :])[:, None], 0.0)

    def epoch(
        self, epoch: int, seed: int, batch_size: int, cutout: int, rank: int = 0, size: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Yield (images, labels, length of the whole batch); of `size` processes, each gets its part of every batch.

        Every image is seen once an epoch. Batches differ by at most one in length, so that no small one is left over.
        """
        draw = torch.Generator().manual_seed(seed * 100_003 + epoch + 1)
        count, device = len(self), self.labels.device
        order = torch.randperm(count, generator=draw)
        shifts = torch.randint(0, 2 * self.shift + 1, (count, 2), generator=draw)
        corners = torch.randint(1 - cutout, self.side, (count, 2), generator=draw)
        # Alternating flip (Jordan 2024): a coin decides once, then every image is mirrored in every other epoch.
        coin = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(seed * 100_003))
        flips = (coin + epoch) % 2 == 1
        for batch in order.tensor_split(math.ceil(count / batch_size)):
            mine = batch[rank::size]
            drawn = [t[mine].to(device) for t in (shifts, flips, corners)]
            mine = mine.to(device)
            yield self.augmented(mine, *drawn, cutout), self.labels[mine], len(batch)
