"""Measure a trained network on the test split, and write its weights, model card, curve and predictions."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import data, models
from .batches import Images


@torch.no_grad()
def logits_of(model: nn.Module, images: Images, mixed: bool = False, rank: int = 0, size: int = 1) -> Tensor:
    """Logits (N, K) float32 of the images as they are; of `size` processes each fills in its part and leaves zeros."""
    device = images.labels.device
    result = torch.zeros(len(images), len(data.CLASSES), device=device)
    model.eval()
    for batch in torch.arange(len(images), device=device).split(500)[rank::size]:
        with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
            result[batch] = model(images.plain(batch)).float()
    return result


def measure(logits: Tensor, labels: Tensor) -> dict:
    """Accuracy in all, per class and as a confusion matrix [true][predicted], loss and calibration, as plain numbers.

    `logits` (N, K) and `labels` (N,); K is the number of classes of CIFAR-10.
    """
    predicted, classes = logits.argmax(1), len(data.CLASSES)
    confusion = torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes)
    per_class = (confusion.diag() / confusion.sum(1)).tolist()
    return {
        "accuracy": (predicted == labels).double().mean().item(),
        "loss": F.cross_entropy(logits.double(), labels).item(),
        "per_class_accuracy": {name: round(share, 4) for name, share in zip(data.CLASSES, per_class, strict=True)},
        "confusion_matrix": confusion.tolist(),
        "expected_calibration_error": calibration_error(logits, labels),
    }


def calibration_error(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error (Guo et al. 2017) of `logits` (N, K): how far confidence and accuracy lie apart.

    Compared in equally wide bins of confidence, each open below and closed above, weighted by how many images it holds.
    """
    confidence, predicted = logits.double().softmax(1).max(1)
    gap = confidence - (predicted == labels).double()
    which = (confidence * bins).ceil().long().clamp(1, bins) - 1
    return torch.zeros(bins, dtype=gap.dtype).index_add_(0, which, gap).abs().sum().item() / len(labels)


def describe(model: nn.Module, entry: models.Entry) -> dict:
    """What the network is: layers, sizes and the input it expects."""
    return {
        "name": entry.name,
        "title": entry.title,
        "architecture": str(model).splitlines(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "multiply_adds": models.multiply_adds(model, entry.input_size),
        "input_size": entry.input_size,
        "mean": entry.mean,
        "std": entry.std,
        "classes": data.CLASSES,
    }


def versions() -> dict:
    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}


def write(
    folder: Path,
    model: nn.Module,
    entry: models.Entry,
    rows: Sequence[dict],
    logits: Tensor,
    labels: Tensor,
    facts: dict,
) -> dict:
    """Write NAME.pth, .npz, .csv and .json into `folder`, the card last -> the card.

    `logits` (10000, K) of the test split make the predictions and the figures; `facts` tell of the training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
    path = folder / f"{entry.name}.pth"
    save_whole(weights, path)
    write_curve(folder / f"{entry.name}.csv", rows)
    probability, predicted = logits.softmax(1).max(1)
    np.savez_compressed(
        folder / f"{entry.name}.npz",
        predicted=predicted.numpy().astype(np.uint8),
        probability=probability.numpy().astype(np.float32),
    )
    card = {**describe(model, entry), **measure(logits, labels), **facts, "versions": versions()}
    card["sha256"] = models.sha256(path)
    text = json.dumps(card, indent=2, ensure_ascii=False)
    (folder / f"{entry.name}.json").write_text(text + "\n", encoding="utf-8")
    return card


def write_curve(path: Path, rows: Sequence[dict]) -> None:
    """One line of loss and accuracy an epoch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def save_whole(content: object, path: Path) -> None:
    """torch.save under another name, then rename: a reader, or a crash, never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    torch.save(content, part)
    os.replace(part, path)
