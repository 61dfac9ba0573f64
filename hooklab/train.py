"""Train the shipped networks on CIFAR-10: python -m hooklab.train --model resnet --data DIR

Everything random in an epoch (order, shifts, flips, cutout) is drawn from a generator seeded by (seed, epoch), so a run
that was interrupted continues to the very result of one that was not. Settings are chosen with `--holdout 5000`, which
never opens the test split; the final run uses all 50,000 training images and ships its last epoch, whatever it scores.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import math
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from . import cards, checkpoints, data, models
from .batches import Images
from .progress import Progress
from .recipes import CHOICE, RECIPES, Recipe, learning_rate, make_optimizer


@dataclass(frozen=True)
class Team:
    """The processes that train together; one alone where torchrun did not start us."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor


def pick_device(name: str = "auto") -> torch.device:
    """auto: CUDA, then MPS, then CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch answers a missing device with either
        raise ValueError(f"device {name!r} is not available here; try auto or cpu") from error
    return device


def has_fast_bfloat16(device: torch.device) -> bool:
    """CUDA since Ampere; of CPUs those with matrix units, on which both networks train about twice as fast."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # newer torch only
    return device.type == "cpu" and bool(capabilities.get("amx_bf16"))


@torch.no_grad()
def toward(average: nn.Module, model: nn.Module, share: float) -> None:
    """Move the average of the weights, and of batch norm's statistics, by `share` toward the model."""
    for mean, now in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(now, share)
        else:
            mean.copy_(now)


def distribute(model: nn.Module) -> nn.Module:
    """DistributedDataParallel that averages gradients alone; batch norm's statistics we average once an epoch."""
    wrapper = nn.parallel.DistributedDataParallel
    newer = "forward_sync_buffers" in inspect.signature(wrapper).parameters  # its name in newer torch
    return wrapper(model, **{"forward_sync_buffers" if newer else "broadcast_buffers": False})


def train(
    model: nn.Module,
    train_set: Images,
    check_set: Images,
    recipe: Recipe,
    seed: int,
    state_path: Path,
    resume: bool = False,
    team: Team = Team(),
    show: bool = True,
) -> tuple[nn.Module, list[dict]]:
    """Train `model` in place -> (the averaged network, one row of loss and accuracy an epoch).

    The state is written to `state_path` after every epoch, first under another name, so that it is always whole;
    `resume=True` goes on from there.
    """
    device, steps = train_set.labels.device, math.ceil(len(train_set) / recipe.batch_size)
    mixed = has_fast_bfloat16(device)
    model = model.to(device, memory_format=torch.channels_last)
    average, optimizer = copy.deepcopy(model), make_optimizer(model, recipe)
    rows, settings = [], {"recipe": asdict(recipe), "seed": seed, "images": len(train_set)}
    if resume:
        state = checkpoints.read(state_path)
        check_resumable(state, recipe, settings, steps, state_path)
        model.load_state_dict(state["model"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        rows = state["rows"]
    wrapped = distribute(model) if team.size > 1 else model

    progress = Progress(recipe.epochs, len(rows), steps, show and team.leads)
    for epoch in range(len(rows), recipe.epochs):
        began, totals = time.monotonic(), torch.zeros(3, device=device)  # of loss, right answers, images
        wrapped.train()
        for step, (images, labels, whole) in enumerate(
            train_set.epoch(epoch, seed, recipe.batch_size, recipe.cutout, team.rank, team.size)
        ):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, epoch * steps + step, steps)
            with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
                logits = wrapped(images).float()
            losses = F.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing, reduction="sum")
            optimizer.zero_grad()
            (losses * team.size / whole).backward()  # processes average gradients, so this is the mean of `whole`
            optimizer.step()
            toward(average, model, 1 - recipe.average)
            totals += torch.stack([losses.detach(), (logits.argmax(1) == labels).sum(), labels.new_tensor(len(labels))])
            progress.step(epoch, step, totals[0] / totals[2], totals[1] / totals[2])
        for buffer in [*model.buffers(), *average.buffers()]:
            if buffer.is_floating_point():  # batch norm's statistics come from each process's own part
                team.sum(buffer).div_(team.size)
        loss, right, seen = team.sum(totals).tolist()
        if not math.isfinite(loss):
            raise ValueError(f"the loss is {loss} in epoch {epoch + 1}: try a learning rate below {recipe.lr}")
        logits = team.sum(cards.logits_of(average, check_set, mixed, team.rank, team.size))
        rows.append(
            {
                "epoch": epoch + 1,
                "learning_rate": optimizer.param_groups[0]["lr"],
                "train_loss": loss / seen,
                "train_accuracy": right / seen,
                "check_loss": F.cross_entropy(logits, check_set.labels).item(),
                "check_accuracy": (logits.argmax(1) == check_set.labels).float().mean().item(),
                "seconds": time.monotonic() - began,
            }
        )
        progress.epoch(rows[-1])
        if team.leads:
            state = {"model": model.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict()}
            cards.save_whole({**state, "rows": rows, "settings": settings}, state_path)
    return average, rows


def check_resumable(state: object, recipe: Recipe, settings: dict, steps: int, path: Path) -> None:
    """ValueError where going on would not give what one uninterrupted run with these settings gives.

    The number of epochs may change as long as the learning rate of the epochs that are done stays what it was.
    """
    if not isinstance(state, dict) or "settings" not in state:
        raise ValueError(f"{path} is not the state of a training")
    begun = Recipe(**state["settings"]["recipe"])
    old, new = {**asdict(begun), **state["settings"]}, {**asdict(recipe), **settings}
    changed = [k for k in new if k not in ("recipe", "epochs") and old[k] != new[k]]
    done = range(len(state["rows"]) * steps)
    if any(learning_rate(begun, step, steps) != learning_rate(recipe, step, steps) for step in done):
        changed.append("epochs or lr")
    if changed:
        raise ValueError(f"{path} was begun with another {', '.join(changed)}: {state['settings']}")


def between(kind: Callable, low: float, high: float) -> Callable[[str], float]:
    """A type for argparse that names the range it accepts."""

    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # so that NaN is refused, too
            raise argparse.ArgumentTypeError(f"{text!r}: {kind.__name__} from {low} to {high} is accepted")
        return value

    return convert


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hooklab.train", description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, choices=RECIPES)
    parser.add_argument("--data", required=True, type=Path, metavar="DIR", help="folder with CIFAR-10")
    parser.add_argument("--download", action="store_true", help="fetch CIFAR-10 into DIR if it is not there")
    parser.add_argument("--epochs", type=between(int, 1, 10_000))
    parser.add_argument("--batch-size", type=between(int, 1, 50_000), help="images in a step, over all processes")
    parser.add_argument("--lr", type=between(float, 1e-9, 100), help="peak of the one-cycle learning rate")
    parser.add_argument("--weight-decay", type=between(float, 0, 1))
    parser.add_argument("--seed", type=between(int, 0, 10**9), default=0)
    parser.add_argument("--device", default="auto", help="auto (CUDA, then MPS, then CPU), or as torch names it")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR")
    parser.add_argument("--resume", action="store_true", help="go on from the state in --out")
    parser.add_argument(
        "--holdout",
        type=between(int, 0, 49_000),
        default=0,
        metavar="N",
        help="check on N training images, not the test split",
    )
    options = parser.parse_args(arguments)
    options.given = [a for a in (sys.argv[1:] if arguments is None else arguments) if a != "--resume"]
    return options


def main(arguments: list[str] | None = None) -> None:
    """Train as the command line says; what is wrong with it, or with the files, is told in one sentence."""
    options = parse(arguments)
    try:
        start(options)
    except (ValueError, OSError) as error:
        sys.exit(f"hooklab.train: {error}")
    except KeyboardInterrupt:
        sys.exit("\nhooklab.train: interrupted; --resume goes on after the last epoch that was finished")


def start(options: argparse.Namespace) -> None:
    """Choose recipe and device, join the other processes where torchrun started several, and run."""
    given = {k: getattr(options, k) for k in ("epochs", "batch_size", "lr", "weight_decay")}
    recipe = replace(RECIPES[options.model], **{k: v for k, v in given.items() if v is not None})
    device = pick_device(options.device)
    team = Team()
    if "WORLD_SIZE" in os.environ:  # torchrun
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        team = Team(dist.get_rank(), dist.get_world_size())
    if recipe.batch_size < team.size:
        raise ValueError(f"batch size {recipe.batch_size}: each of {team.size} processes needs an image of every batch")
    try:
        run(options, recipe, device, team)
    finally:
        if team.size > 1:
            dist.destroy_process_group()


def run(options: argparse.Namespace, recipe: Recipe, device: torch.device, team: Team) -> None:
    """Load the data, train, and write what came out: with a hold-out the curve alone, else everything that ships."""
    if options.download and os.environ.get("LOCAL_RANK", "0") == "0":
        data.load_cifar10(options.data, "train", download=True)  # one process of a machine fetches, the others wait
    if team.size > 1:
        dist.barrier()
    pixels, labels = data.load_cifar10(options.data, "train")
    if options.holdout:
        order = np.random.default_rng(0).permutation(len(labels))
        held, kept = order[: options.holdout], order[options.holdout :]
        check, (pixels, labels) = (pixels[held], labels[held]), (pixels[kept], labels[kept])
    else:
        check = data.load_cifar10(options.data, "test")
    entry = models.entry(options.model)
    train_set, check_set = Images(pixels, labels, entry, device, recipe.shift), Images(*check, entry, device)

    torch.manual_seed(options.seed)
    model, state_path = models.build(options.model), options.out / f"{options.model}.state"
    model, rows = train(model, train_set, check_set, recipe, options.seed, state_path, options.resume, team)
    if not team.leads:
        return
    if options.holdout:
        cards.write_curve(options.out / f"{options.model}.csv", rows)
        print(f"{options.model}: {rows[-1]['check_accuracy']:.2%} of {options.holdout} held-out training images")
        return
    model = model.cpu().to(memory_format=torch.contiguous_format)
    plain = Images(*check, entry, torch.device("cpu"))
    launcher = f"torchrun --nproc-per-node {team.size}" if team.size > 1 else "python"
    seconds = sum(row["seconds"] for row in rows)
    facts = {
        "command": f"{launcher} -m hooklab.train {shlex.join(options.given)}",
        "seed": options.seed,
        "recipe": asdict(recipe),
        "trained_on": f"all {len(train_set)} images of CIFAR-10's training split",
        "measured_on": f"all {len(plain)} test images, float32, one view, no test-time augmentation",
        "how_settings_were_chosen": CHOICE[options.model],
        "epochs": recipe.epochs,
        "seconds": round(seconds),
        "images_per_second": round(len(train_set) * len(rows) / seconds),
        "device": device.type,
        "processes": team.size,
        "threads_per_process": torch.get_num_threads(),
        "precision": "bfloat16 where autocast allows" if has_fast_bfloat16(device) else "float32",
    }
    card = cards.write(options.out, model, entry, rows, cards.logits_of(model, plain), plain.labels, facts)
    print(f"{options.model}: {card['accuracy']:.2%} of {len(plain)} test images, {card['seconds']} s of training")


if __name__ == "__main__":
    main()
