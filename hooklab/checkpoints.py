"""Read a checkpoint that somebody brings: safely, strictly, and with a plain answer when it does not fit."""

from __future__ import annotations

import difflib
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

PREFIXES = ("module.", "_orig_mod.", "model.")  # of DataParallel, torch.compile and Lightning
NESTS = ("state_dict", "model_state_dict", "model", "net", "ema")  # where training scripts put the weights; first wins
ADVICE = "save the weights alone: torch.save(model.state_dict(), 'weights.pth')"


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded, or does not fit the model; in the second case the names are kept."""

    def __init__(self, message: str, missing=(), unexpected=(), misshapen=()):
        super().__init__(message)
        self.missing, self.unexpected, self.misshapen = tuple(missing), tuple(unexpected), tuple(misshapen)


def load_into(model: nn.Module, path: str | Path) -> nn.Module:
    """Load the weights at `path` into `model`, all of them or none, and return it in eval mode.

    Known wrappings are undone (see `PREFIXES` and `NESTS`). CheckpointError, a ValueError, tells what the file is, or
    every name that is missing, unexpected or of another shape.
    """
    path = Path(path)
    state = unwrap(read(path), path.name, model.state_dict().keys())
    check_fit(model, state, path.name)
    model.load_state_dict(state)
    return model.eval()


def read(path: Path) -> object:
    """torch.load without running code from the file, on the CPU; FileNotFoundError or CheckpointError in words."""
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}")
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder, not a checkpoint file")
    stranger = recognise(path)
    if stranger:
        raise CheckpointError(f"{path.name} is {stranger}; {ADVICE}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        if not found:
            raise CheckpointError(f"{path.name} is damaged, or no file of torch.save; {ADVICE}") from error
        raise CheckpointError(refusal(path.name, found[1])) from error
    except (RuntimeError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path.name} is damaged, or no file of torch.save; {ADVICE}") from error


def refusal(name: str, refused: str) -> str:
    if refused.startswith("numpy"):
        return f"{name} holds NumPy values ({refused}), which are not loaded because a pickle can run code; {ADVICE}"
    return (
        f"{name} refers to {refused}, as a whole model saved by torch.save(model) does; it is not loaded because "
        f"a pickle can run code; {ADVICE}"
    )


def recognise(path: Path) -> str | None:
    """What the file is, if its first bytes show that it is nothing torch.save has written."""
    with open(path, "rb") as file:
        head = file.read(4096)
    if not head:
        return "empty"
    for magic, what in MAGIC.items():
        if head.startswith(magic):
            return what
    if head.startswith(b"PK"):
        return recognise_zip(path)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 100_000_000:
        return "a safetensors file"
    if head[:1] == b"\x08" and (path.suffix == ".onnx" or b"onnx" in head.lower() or b"pytorch" in head):
        return "an ONNX model"
    if all(byte >= 32 or byte in b"\t\n\r" for byte in head):
        return "a text file"
    return None


MAGIC = {
    b"version https://git-lfs": "the pointer that Git LFS leaves in place of a file (git lfs pull fetches it)",
    b"<!DOCTYPE": "a web page, probably of a failed download",
    b"<html": "a web page, probably of a failed download",
    b"\x89HDF": "an HDF5 file, as Keras writes it",
    b"\x93NUMPY": "a NumPy array",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"\x1f\x8b": "a gzip archive",
}


def recognise_zip(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        return "a zip file that breaks off"
    if any(name.endswith("constants.pkl") for name in names):
        return "a TorchScript program"
    return None if any(name.endswith("data.pkl") for name in names) else "a zip file that torch.save has not written"


def unwrap(content: object, name: str, wanted: object = ()) -> dict[str, Tensor]:
    """The state_dict inside what a training script saved, under the names that `wanted`, the model's own, go by."""
    while isinstance(content, Mapping) and not is_state_dict(content):
        nest = next((key for key in NESTS if isinstance(content.get(key), Mapping)), None)
        if nest is None:
            keys = ", ".join(map(repr, content)) or "nothing"
            raise CheckpointError(f"{name} holds {keys}, but no weights, nor any under {', '.join(NESTS)}; {ADVICE}")
        content = content[nest]
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{name} holds a {type(content).__name__}, not a state_dict; {ADVICE}")
    state = dict(content)
    if "n_averaged" not in wanted:
        state.pop("n_averaged", None)  # the counter of torch.optim.swa_utils.AveragedModel
    while True:
        for prefix in PREFIXES:
            # A model whose own names begin so, each of them, keeps them.
            mine = bool(wanted) and all(key.startswith(prefix) for key in wanted)
            if state and not mine and all(key.startswith(prefix) for key in state):
                state = {key[len(prefix) :]: value for key, value in state.items()}
                break
        else:
            return state


def is_state_dict(content: Mapping) -> bool:
    return bool(content) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())


def check_fit(model: nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """CheckpointError that lists every name that does not fit, the three nearest to a wanted one first."""
    own, title = model.state_dict(), type(model).__name__
    missing, unexpected = [k for k in own if k not in state], [k for k in state if k not in own]
    misshapen = [k for k in own if k in state and own[k].shape != state[k].shape]
    if missing or unexpected or misshapen:
        lines = [f"{name} does not fit {title}; nothing was loaded."]
        if misshapen:
            shapes = [f"{k} is {tuple(state[k].shape)}, {title} has {tuple(own[k].shape)}" for k in misshapen]
            lines.append(f"Wrong shape: {'; '.join(shapes)}.")
        if missing:
            lines.append(f"Missing: {', '.join(nearest_first(missing, unexpected, 'the file has {}'))}.")
        if unexpected:
            lines.append(f"Unexpected: {', '.join(nearest_first(unexpected, missing, title + ' has {}'))}.")
        raise CheckpointError("\n".join(lines), missing, unexpected, misshapen)
    spoiled = [k for k, v in state.items() if v.is_floating_point() and not torch.isfinite(v).all()]
    if spoiled:
        raise CheckpointError(f"{name} holds values that are not finite in {', '.join(spoiled)}; nothing was loaded.")


def nearest_first(names: list[str], others: list[str], hint: str) -> list[str]:
    """`names` with the three that resemble one of `others` most in front, each with a hint at that other name."""
    pairs = []
    for name in names:
        best = difflib.get_close_matches(name, others, n=1, cutoff=0.6)
        score = difflib.SequenceMatcher(None, name, best[0]).ratio() if best else 0.0
        pairs.append((-score, name, f"{name} ({hint.format(best[0])})" if best else name))
    pairs.sort(key=lambda pair: pair[0])  # stable: the rest stays in the model's order
    return [text if i < 3 else name for i, (_, name, text) in enumerate(pairs)]
