"""From a picture to what a model takes, and back to the pixels that it saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from . import data

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE_WITHOUT_A_WORD = (3, 224, 224)


@dataclass(frozen=True, eq=False)
class Prepared:
    """One picture, ready for the model."""

    fitted: data.Fitted
    tensor: Tensor  # (1, C, H, W) on the host
    digest: bytes  # of the tensor


class Inputs:
    """How one model's pictures are made: by `preprocess` if there is one, else by size, mean and standard deviation."""

    def __init__(
        self,
        size: tuple[int, int, int] | None,
        mean: Sequence[float] | None,
        std: Sequence[float] | None,
        preprocess: Callable[[Image.Image], Tensor] | None,
    ):
        self.preprocess = preprocess
        if preprocess is None:
            self.mean = IMAGENET_MEAN if mean is None else mean
            self.std = IMAGENET_STD if std is None else std
        else:
            self.mean, self.std = _normalisation(preprocess) if mean is None or std is None else (mean, std)
            tried = tuple(_one(preprocess(Image.new("RGB", (256, 256)))).shape[1:])
            size = tried if size is None else size
        size = SIZE_WITHOUT_A_WORD if size is None else tuple(size)
        whole = all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in size)
        if len(size) != 3 or not whole or size[0] not in (1, 3):
            raise ValueError(f"input_size {size!r}: (3, height, width) or (1, height, width) is accepted")
        self.size = size

    def prepare(self, image: Any) -> Prepared:
        """image: PIL, uint8 (H, W, 3), an index of the CIFAR-10 test split, a `Fitted`, or what `data.decode` takes."""
        if isinstance(image, data.Fitted):
            fitted, tensor = image, self.batch(image.pixels[None])
        elif self.preprocess is None:
            fitted = data.fit(_picture(image), self.size[1:])
            tensor = self.batch(fitted.pixels[None])
        else:
            image = _picture(image)
            tensor = _one(self.preprocess(image))
            fitted = data.Fitted(self._pixels(tensor[0]), image.size, None)
        digest = blake2b(tensor.numpy().tobytes(), digest_size=16).digest() + str(tuple(tensor.shape)).encode()
        return Prepared(fitted, tensor, digest)

    def batch(self, pixels: np.ndarray) -> Tensor:
        """Pictures as the model sees them, uint8 (N, H, W, 3) -> (N, C, H, W)."""
        pixels = np.asarray(pixels)
        if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[1:] != (*self.size[1:], 3) or not len(pixels):
            accepted = f"uint8 (N, {self.size[1]}, {self.size[2]}, 3)"
            raise ValueError(f"pixels {pixels.dtype} {pixels.shape}: {accepted} is accepted")
        if self.mean is None:
            return torch.cat([_one(self.preprocess(Image.fromarray(picture))) for picture in pixels])
        tensor = data.normalize(pixels, self.mean, self.std)
        return tensor.mean(1, keepdim=True) if self.size[0] == 1 else tensor

    def _pixels(self, tensor: Tensor) -> np.ndarray:
        """What a pre-processing of the user's own made, as a picture: (C, H, W) -> uint8 (H, W, 3).

        Exact where its mean and standard deviation are known; else numbers in [0, 1] are taken for brightness, and
        others stretched from their minimum to their maximum.
        """
        if self.mean is not None:
            mean, std = (
                torch.as_tensor(value, dtype=tensor.dtype).reshape(-1, 1, 1) for value in (self.mean, self.std)
            )
            tensor = tensor * std + mean
        elif tensor.min() < 0 or tensor.max() > 1:
            tensor = (tensor - tensor.min()) / (tensor.max() - tensor.min()).clamp(min=1e-12)
        pixels = tensor.clamp(0, 1).mul(255).round().to(torch.uint8).permute(1, 2, 0)
        return pixels.expand(-1, -1, 3).contiguous().numpy()


def _picture(image: Any) -> Image.Image:
    if isinstance(image, (int, float, bool, np.number, np.bool_)):
        return data.test_image(image)[0]
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(f"image {image.dtype} {image.shape}: uint8 (H, W, 3) is accepted")
        image = Image.fromarray(image)
    return data.decode(image)


def _one(result: Any) -> Tensor:
    """What a pre-processing returned -> float32 (1, C, H, W) on the host."""
    if isinstance(result, Tensor) and result.is_floating_point():
        result = result.detach().cpu().float()
        result = result[None] if result.ndim == 3 else result
        if result.ndim == 4 and len(result) == 1 and result.shape[1] in (1, 3):
            return result.contiguous()
        raise ValueError(f"preprocess returned {tuple(result.shape)}: a float tensor (3 or 1, H, W) is accepted")
    raise ValueError(f"preprocess returned {type(result).__name__}: a float tensor (3 or 1, H, W) is accepted")


def _normalisation(preprocess: Callable) -> tuple[Sequence[float] | None, Sequence[float] | None]:
    """Mean and standard deviation of the last step: torchvision's presets, and a `Compose` that ends in `Normalize`."""
    steps = getattr(preprocess, "transforms", None) or [preprocess]
    mean, std = getattr(steps[-1], "mean", None), getattr(steps[-1], "std", None)
    return (mean, std) if mean is not None and std is not None else (None, None)
