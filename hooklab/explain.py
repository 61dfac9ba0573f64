"""Maps of a whole split: python -m hooklab.explain --model resnet --method gradcam --out maps.npz

For every image the map of the class that the network predicts, with `--evidence` also how far each map can be believed.
Finished parts are kept beside the file, so the same command continues after an interruption. Under `torchrun` the
parts are shared out over processes and machines. `--table a.npz b.npz` prints the figures of finished files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from . import data, evidence, hooks, maps, models, passes
from .cam import METHODS
from .erasing import BASELINES
from .lab import Lab
from .maps import Maps, Settings

PART = 100  # images: what an interruption can cost
STEP = 10  # percent between two points of a curve


def explain_batch(
    lab: Lab, pixels: np.ndarray, layer: str, methods: tuple[str, ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Maps of the predicted class for many pictures at once: uint8 (N, H, W, 3) -> logits (N, K), raw maps (N, h, w).

    One forward and one backward pass for all methods that need no more: a picture's logit depends on no other picture,
    so the gradient of their sum is every picture's own. The others ask the model about each picture in turn.
    """
    tensor = lab.inputs.batch(pixels).to(lab.device)
    with hooks.record(lab.model, layer) as seen:
        logits = passes.finite(passes.scores(lab.model(tensor)))
        predicted = logits.argmax(1)
        (gradients,) = torch.autograd.grad(logits.gather(1, predicted[:, None]).sum(), seen[layer])
    activations, found = seen[layer].detach(), {}
    for name in methods:
        method = METHODS[name]
        if method.needs in ("gradients", "activations"):
            given = (activations, gradients) if method.needs == "gradients" else (activations,)
            found[name] = passes.finite(method.function(*given)).cpu().numpy()
        else:
            height, width = pixels.shape[1:3]
            pictures = (data.Fitted(picture, (width, height), None) for picture in pixels)
            asked = zip(pictures, predicted.tolist(), strict=True)
            found[name] = np.stack([lab.explain(picture, layer, target, name).raw for picture, target in asked])
    return logits.detach().float().cpu().numpy(), found


def judge(
    lab: Lab, pixels: np.ndarray, raws: np.ndarray, target: int, seed: int, baseline: str
) -> list[tuple[float, ...]]:
    """The figures (see `maps.FIGURES`) of several maps (M, h, w) of one picture, then those of the yardsticks."""
    against = evidence.yardsticks(lab.probabilities, pixels, raws.shape[1:], seed, (baseline,), STEP)
    found = evidence.compare(lab.probabilities, pixels, raws, target, against, (baseline,), STEP)
    rows = [(one, "map") for one in found] + [(found[0], rival) for rival in maps.RIVALS]
    return [
        (curves.deletion_area, curves.insertion_area, one.drop[who], one.increase[who])
        for one, who in rows
        for curves in [one.curves[baseline][who]]
    ]


def explain_part(lab: Lab, settings: Settings, pixels: np.ndarray, labels: np.ndarray, first: int, batch: int) -> Maps:
    """The maps of consecutive images, the first of which has index `first` in the split."""
    found = [
        explain_batch(lab, pixels[begin : begin + batch], settings.layer, settings.methods)
        for begin in range(0, len(pixels), batch)
    ]
    logits = np.concatenate([logits for logits, _ in found])
    raw = {name: np.concatenate([part[name] for _, part in found]) for name in settings.methods}
    predicted, figures = logits.argmax(1), {}
    if settings.baseline:
        rows = [
            judge(lab, pixels[n], np.stack([raw[m][n] for m in raw]), int(predicted[n]), first + n, settings.baseline)
            for n in range(len(pixels))
        ]
        rows = np.array(rows, np.float32).transpose(1, 0, 2)
        figures = dict(zip((*settings.methods, *maps.RIVALS), rows, strict=True))
    probability = torch.from_numpy(logits).softmax(1).max(1).values.numpy()
    index = np.arange(first, first + len(pixels))
    return Maps(settings, index, labels.astype(np.int64), predicted.astype(np.int64), probability, raw, figures)


# -- sharing the work ------------------------------------------------------------------------------------


@contextmanager
def team() -> Iterator[tuple[int, int]]:
    """(rank, size) of the processes that torchrun started, or (0, 1)."""
    if "RANK" not in os.environ:
        yield 0, 1
        return
    dist.init_process_group("gloo", timeout=timedelta(days=7))  # one process may have far more to do than another
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def _all(value: object, size: int) -> list:
    """Every process's value, on every process."""
    values = [value] * size
    if size > 1:
        dist.all_gather_object(values, value)
    return values


def explain_split(
    lab: Lab,
    settings: Settings,
    pixels: np.ndarray,
    labels: np.ndarray,
    out: Path,
    batch: int,
    rank: int = 0,
    size: int = 1,
) -> Maps | None:
    """All maps, written to `out` by the process of rank 0, which returns them; those that are there already are kept.

    Parts lie in a folder beside `out`, on a disk that the processes share or not; what one already has is not computed
    again. ValueError where those of another run lie there.
    """
    if any(_all(rank == 0 and out.exists() and maps.read(out).settings == settings, size)):
        return maps.read(out) if rank == 0 else None
    folder = out.with_name(out.name + ".parts")
    folder.mkdir(parents=True, exist_ok=True)
    note, wanted = folder / f"settings.{rank}.json", json.dumps(asdict(settings))
    for other in folder.glob("settings.*.json"):
        if (then := json.loads(other.read_text())) != (now := json.loads(wanted)):
            differ = ", ".join(
                f"{key} {then.get(key)!r} then, {now[key]!r} now" for key in now if then.get(key) != now[key]
            )
            raise ValueError(f"{folder} holds parts of another run ({differ}): delete it, or choose another --out")
    scratch = folder / f".settings.{rank}"
    scratch.write_text(wanted)
    os.replace(scratch, note)

    starts = range(0, len(pixels), PART)
    mine = {start for start in starts if (folder / f"{start:06d}.npz").exists()}
    missing = sorted(set(starts) - set().union(*_all(mine, size)))[rank::size]
    progress = Progress(sum(min(PART, len(pixels) - start) for start in missing), rank == 0)
    for start in missing:
        stop = min(start + PART, len(pixels))
        maps.write(
            folder / f"{start:06d}.npz",
            explain_part(lab, settings, pixels[start:stop], labels[start:stop], start, batch),
        )
        progress.add(stop - start)

    have = _all({start for start in starts if (folder / f"{start:06d}.npz").exists()}, size)
    keepers = {start: next(r for r, parts in enumerate(have) if start in parts) for start in starts}
    lacking = [start for start in starts if start not in have[0] and keepers[start] == rank]
    sent = _all({start: (folder / f"{start:06d}.npz").read_bytes() for start in lacking}, size)
    whole = None
    if rank == 0:
        for start, content in ((start, content) for parts in sent for start, content in parts.items()):
            (folder / f"{start:06d}.npz").write_bytes(content)
        whole = maps.join([maps.read(folder / f"{start:06d}.npz") for start in starts])
        maps.write(out, whole)
    _all(None, size)  # nobody cleans up before the file is written
    shutil.rmtree(folder, ignore_errors=True)
    return whole


class Progress:
    """How far this process is and how long it will take: one line on stderr, rewritten if that is a terminal."""

    def __init__(self, total: int, show: bool):
        self.total, self.show, self.done = total, show, 0
        self.begun = self.shown = time.monotonic()

    def add(self, images: int) -> None:
        self.done += images
        now = time.monotonic()
        live = sys.stderr.isatty()
        if self.show and (self.done == self.total or now - self.shown > (0.2 if live else 10)):
            self.shown, rate = now, self.done / (now - self.begun)
            left = int((self.total - self.done) / rate)
            line = f"{self.done:,} of {self.total:,} images, {rate:.1f} a second, {left // 60} min {left % 60} s left"
            end = "\n" if self.done == self.total or not live else ""
            print(f"\r{line}\x1b[K" if live else line, end=end, file=sys.stderr, flush=True)


# -- the command -----------------------------------------------------------------------------------------


def fingerprint(model: torch.nn.Module) -> str:
    """SHA-256 over names and values of all tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("python -m hooklab.explain", description=__doc__.split("\n\n")[1])
    found.add_argument("--model", choices=tuple(models.REGISTRY), default="simple_cnn")
    found.add_argument("--checkpoint", help="weights of your own for it")
    found.add_argument("--method", nargs="+", choices=(*METHODS, "all"), default=["gradcam"])
    found.add_argument("--layer", help="default: the model's own")
    found.add_argument("--split", choices=("test", "train"), default="test")
    found.add_argument("--data", help="folder with CIFAR-10, needed for the training split only")
    found.add_argument("--limit", type=int, help="only the first so many images")
    found.add_argument("--batch-size", type=int, default=50)
    found.add_argument("--evidence", action="store_true", help="also the figures of the table")
    found.add_argument("--baseline", choices=BASELINES, default="blur", help="what an erased pixel looks like")
    found.add_argument("--device", default="auto")
    found.add_argument("--out", type=Path, default=Path("maps.npz"))
    found.add_argument("--table", nargs="+", metavar="FILE", help="print the table of these files, and do nothing else")
    return found


def pictures(split: str, folder: str | None) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (N, H, W, 3) and labels (N,)."""
    if split == "test":
        return data.test_images(), data.test_labels()
    if folder is None:
        raise ValueError("split 'train' does not ship with hooklab: name a folder with CIFAR-10, --data DIR")
    pixels, labels = data.load_cifar10(folder, "train")
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), labels


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.table:
        print(maps.table([maps.read(path) for path in options.table]))
        return
    pixels, labels = pictures(options.split, options.data)
    for name, value, highest in (("limit", options.limit, len(pixels)), ("batch-size", options.batch_size, PART)):
        if value is not None and not 1 <= value <= highest:
            raise ValueError(f"--{name} {value}: accepted are whole numbers from 1 to {highest}")
    pixels, labels = pixels[: options.limit], labels[: options.limit]
    methods = tuple(METHODS) if "all" in options.method else tuple(dict.fromkeys(options.method))
    with team() as (rank, size):
        device = options.device
        if size > 1 and device == "auto" and torch.cuda.is_available():
            device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
        lab = Lab(options.model, device=device, checkpoint=options.checkpoint, cache_megabytes=1)
        layer = options.layer or next((row.name for row in lab.layers() if row.default), None)
        settings = Settings(
            model=options.model,
            weights=fingerprint(lab.model),
            split=options.split,
            images=len(pixels),
            layer=lab.explain(pixels[0], layer).layer,  # refused in words where it has no map
            methods=methods,
            classes=lab.classes,
            baseline=options.baseline if options.evidence else None,
            step=STEP if options.evidence else None,
        )
        found = explain_split(lab, settings, pixels, labels, options.out, options.batch_size, rank, size)
    if found is not None:
        right = float(np.mean(found.predicted == found.label))
        print(
            f"{options.out}: maps of {len(found.index):,} images by {', '.join(methods)}; {right:.2%} predicted right"
        )
        if options.evidence:
            print(maps.table([found]))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"{error}")
