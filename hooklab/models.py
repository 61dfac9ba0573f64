"""The two networks that ship with hooklab, and safe, strict loading of checkpoints."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checkpoints import CheckpointError, load_into

SHIPPED = Path(__file__).parent.parent / "checkpoints"


class SimpleCNN(nn.Module):
    """The network of the well-known CIFAR-10 course: three convolutions, ReLU as a function, ONE shared pool."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 128, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(128 * 4 * 4, 512)
        self.fc2 = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 32, 32)
        x = self.pool(F.relu(self.conv1(x)))  # (N, 32, 16, 16)
        x = self.pool(F.relu(self.conv2(x)))  # (N, 64, 8, 8)
        x = self.pool(F.relu(self.conv3(x)))  # (N, 128, 4, 4)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(x)  # (N, classes)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016); every ReLU is a module of its own, to be hooked."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            # Averaging before the 1x1 convolution uses all pixels; a strided 1x1 would drop three of four.
            self.shortcut = nn.Sequential(
                nn.AvgPool2d(stride), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu2 = nn.ReLU()
        nn.init.zeros_(self.bn2.weight)  # every block starts as its shortcut, which allows a high learning rate

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A small residual network whose last stage keeps an 8x8 map, then global average pooling and one Linear head.

    With that head, Grad-CAM at the last block equals CAM (Zhou et al. 2016). Most multiply-adds are spent at 16x16 and
    8x8, where wide channels are cheap.
    """

    def __init__(self, classes: int = 10, stem: int = 32, middle: int = 64, last: int = 192):
        super().__init__()
        self.conv1 = nn.Conv2d(3, stem, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(stem, middle, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.bn2 = nn.BatchNorm2d(middle)
        self.relu2 = nn.ReLU()
        self.layer1 = nn.Sequential(Block(middle, middle))
        self.layer2 = nn.Sequential(Block(middle, last, stride=2), Block(last, last))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, 32, 32)
        x = self.relu1(self.bn1(self.conv1(x)))  # (N, stem, 32, 32)
        x = self.relu2(self.bn2(self.pool(self.conv2(x))))  # (N, middle, 16, 16)
        x = self.layer2(self.layer1(x))  # (N, last, 8, 8)
        return self.fc(torch.flatten(self.avgpool(x), 1))  # (N, classes)


@dataclass(frozen=True)
class Entry:
    """A network that hooklab ships: how to build it and what its input must look like."""

    name: str
    title: str
    build: Callable[[], nn.Module]
    mean: tuple[float, float, float]  # of the red, green and blue channel, for pixels in [0, 1]
    std: tuple[float, float, float]
    input_size: tuple[int, int, int] = (3, 32, 32)
    default_layer: str | None = None  # None: the last spatial one


REGISTRY = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Entry("simple_cnn", "SimpleCNN", SimpleCNN, (0.5,) * 3, (0.5,) * 3, default_layer="pool:3.input"),
            Entry("resnet", "ResNet", ResNet, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        )
    }
)


def entry(name: str) -> Entry:
    """The registered network of that name; ValueError lists the names there are."""
    if name not in REGISTRY:
        raise ValueError(f"model {name!r}: choose one of {', '.join(REGISTRY)}")
    return REGISTRY[name]


def build(name: str) -> nn.Module:
    """A freshly initialised network."""
    return entry(name).build()


def load(name_or_module: str | nn.Module, path: str | Path | None = None) -> nn.Module:
    """A network with trained weights, in eval mode, on the CPU.

    A name alone loads the weights that ship with hooklab, once their SHA-256 agrees with the model card. With `path`,
    weights of your own are loaded strictly and without running code from the file, into a fresh network of that name
    or into the very module that you pass. CheckpointError, a ValueError, says what does not fit, and nothing is loaded.
    """
    if path is not None:
        return load_into(build(name_or_module) if isinstance(name_or_module, str) else name_or_module, path)
    if not isinstance(name_or_module, str):
        raise ValueError(f"path is needed: no weights ship for a {type(name_or_module).__name__} of your own")
    model, path = build(name_or_module), SHIPPED / f"{name_or_module}.pth"
    digest, promised = sha256(path), card(name_or_module)["sha256"]
    if digest != promised:
        raise CheckpointError(f"{path.name} is not the file of its card: SHA-256 {digest}, the card says {promised}")
    return load_into(model, path)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def card(name: str) -> dict:
    """The model card of a network that ships: what it is, how it was trained, and how well it does."""
    return json.loads((SHIPPED / f"{entry(name).name}.json").read_text(encoding="utf-8"))


def predictions(name: str) -> tuple[np.ndarray, np.ndarray]:
    """What a network that ships says of the 10,000 test images: class, int64 (10000,), and its probability, float32."""
    with np.load(SHIPPED / f"{entry(name).name}.npz") as file:
        return file["predicted"].astype(np.int64), file["probability"]


def multiply_adds(model: nn.Module, input_size: tuple[int, int, int]) -> int:
    """Multiply-adds of all convolutions and linear layers for one image of shape `input_size` (C, H, W)."""
    model, total = copy.deepcopy(model).eval(), 0  # a copy: hooks, modes and statistics of the model stay as they are

    def count(module: nn.Module, _inputs: tuple, output: Tensor) -> None:
        nonlocal total
        total += output.numel() * module.weight[0].numel()  # each output value is one dot product with a filter

    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        layer.register_forward_hook(count)
    reference = next(model.parameters())
    with torch.no_grad():
        model(torch.zeros(1, *input_size, device=reference.device, dtype=reference.dtype))
    return total
