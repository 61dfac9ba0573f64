"""What the scripts of `snippets.py` are put together from: the network, the picture, a hook, a method's formula."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import re
from collections.abc import Mapping
from textwrap import dedent, indent
from types import MappingProxyType

import torch

from . import data, layers, models
from .cam import METHODS
from .hooks import Place, locate

SOURCES = MappingProxyType({"simple_cnn": (models.SimpleCNN,), "resnet": (models.Block, models.ResNet)})


def code(text: str, **names: object) -> str:
    """A template without its indentation, and with each <name> replaced."""
    text = dedent(text).strip("\n")
    for name, value in names.items():
        text = text.replace(f"<{name}>", str(value))
    return text


def script(*parts: str) -> str:
    """Parts with one blank line between them, and two around functions and classes."""
    blocks = [block for part in parts for block in re.split(r"\n{2,}(?=\S)", part.strip("\n")) if block]
    text = blocks[0]
    for before, block in itertools.pairwise(blocks):
        apart = re.search(r"^(def|class|@)", f"{before}\n{block}", re.MULTILINE)
        text += ("\n\n\n" if apart else "\n\n") + block
    return text + "\n"


# -- the network and the picture -------------------------------------------------------------------------


@functools.cache
def source_of(model: str) -> str:
    return "\n\n\n".join(inspect.getsource(source).rstrip() for source in SOURCES[model])


def beginning(title: str, model: str, image: int | str) -> str:
    entry = models.entry(model)
    if isinstance(image, str):
        opened = (
            f'pixels = np.array(Image.open({json.dumps(image)}).convert("RGB"))  # (32, 32, 3): what the network saw'
        )
    else:
        data.test_image(image)  # refuses an index that there is not
        shard, tile = divmod(image, data.PER_SHARD)
        row, column = divmod(tile, data.COLUMNS)
        opened = code(
            """
            sheet = Image.open("hooklab/assets/test_<shard>.webp").convert("RGB")  # 1,000 test images, 25 in a row
            left, top = 32 * <column>, 32 * <row>
            pixels = np.array(sheet.crop((left, top, left + 32, top + 32)))
            """,
            shard=shard,
            column=column,
            row=row,
        )
    return script(
        f'"""{title}, in plain PyTorch. Run it in hooklab\'s folder."""',
        "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom PIL import Image\n"
        "from torch import Tensor, nn\n",
        source_of(model),
        code(
            """
            model = <name>().eval().requires_grad_(False)
            model.load_state_dict(torch.load("checkpoints/<model>.pth", weights_only=True))

            <opened>
            mean, std = torch.tensor(<mean>), torch.tensor(<std>)


            def prepare(pixels):  # uint8 (N, 32, 32, 3) -> (N, 3, 32, 32)
                return ((torch.from_numpy(pixels) / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()


            image = prepare(pixels[None])
            """,
            name=SOURCES[model][-1].__name__,
            model=model,
            opened=opened,
            mean=entry.mean,
            std=entry.std,
        ),
    ).rstrip()


def target_index(target: int) -> int:
    last = len(data.CLASSES) - 1
    if isinstance(target, bool) or not isinstance(target, int) or not 0 <= target <= last:
        raise ValueError(f"target {target!r}: this model has {last + 1} classes (0 to {last})")
    return target


@functools.cache
def rows_of(model: str) -> Mapping[str, layers.LayerInfo]:
    """Every layer of a shipped network, in execution order."""
    entry = models.entry(model)
    found = layers.layers(entry.build().eval(), torch.zeros(1, *entry.input_size))
    return MappingProxyType({row.name: row for row in found})


def place_in(model: str, layer: str) -> Place:
    with torch.device("meta"):  # names are enough
        return locate(models.build(model), layer)


def place_of(model: str, layer: str) -> Place:
    """Where a layer with maps is."""
    rows = rows_of(model)
    if layer not in rows or not rows[layer].spatial:
        accepted = ", ".join(name for name, row in rows.items() if row.listed and row.spatial)
        raise ValueError(f"layer {layer!r}: the layers of {model} that have maps are {accepted}")
    return place_in(model, layer)


# -- hooks -----------------------------------------------------------------------------------------------


def hook_function(name: str, place: Place, body: str, counts: bool = False) -> str:
    """A forward hook, or pre-hook, for a place: `body` finds the tensor in `x` and returns what goes on instead."""
    lines = [f"{name}.calls += 1"] if place.call or counts else []
    if place.call:
        lines += [f"if {name}.calls != {place.call}:  # the module is called several times", "    return None"]
    if place.input:
        lines += ["(x,) = inputs"]
    arguments = "module, inputs" if place.input else "module, inputs, x"
    text = indent("\n".join([*lines, body]), "    ")
    return f"def {name}({arguments}):\n{text}\n" + (f"\n\n{name}.calls = 0" if place.call or counts else "")


def registration(name: str, place: Place) -> str:
    kind = "register_forward_pre_hook" if place.input else "register_forward_hook"
    return f"model.get_submodule({json.dumps(place.path)}).{kind}({name})"


def catching(place: Place) -> str:
    """One forward pass with a hook that keeps the activations."""
    keep = code(
        """
        kept["A"] = x.detach().clone().requires_grad_()  # a leaf: nothing before the layer is differentiated
        return kept["A"].clone()  # so that no later in-place operation can overwrite what was kept
        """
    )
    return script(
        "# 1. Catch what flows through the layer.\nkept = {}\n",
        hook_function("catch", place, keep),
        f"handle = {registration('catch', place)}\n"
        'logits = model(image)  # (1, 10)\nhandle.remove()\nA = kept["A"]  # (1, C, h, w)',
    ).rstrip()


# -- methods ---------------------------------------------------------------------------------------------

FORMULAS: Mapping[str, str] = MappingProxyType(
    {
        "gradcam": """
            weights = G.mean((1, 2))  # one number a channel: the mean of its gradient over space
            return torch.einsum("c,chw->hw", weights, A)
        """,
        "gradcam++": """
            positive = G.relu()
            alpha = 1 / (2 + positive * A.sum((1, 2), keepdim=True))
            return torch.einsum("c,chw->hw", (alpha * positive).sum((1, 2)), A)
        """,
        "hirescam": """
            return (G * A).sum(0)
        """,
        "xgradcam": """
            total = A.sum((1, 2))
            alive = total.abs() > 1e-6 * A.abs().sum((1, 2))
            weights = torch.where(alive, (G * A).sum((1, 2)) / total, 0)
            return torch.einsum("c,chw->hw", weights, A)
        """,
        "layercam": """
            return (G.relu() * A).sum(0)
        """,
        "eigencam": """
            matrix = A.flatten(1).T  # (h * w, C)
            first = torch.linalg.svd(matrix, full_matrices=False).Vh[0]  # (C,)
            raw = (matrix @ first).reshape(A.shape[1:])
            return -raw if raw.sum() < 0 else raw  # a singular vector has no sign of its own
        """,
        "scorecam": """
            masks = F.interpolate(A[:, None], image.shape[-2:], mode="bilinear", align_corners=False)  # (C, 1, H, W)
            low, high = masks.amin((2, 3), keepdim=True), masks.amax((2, 3), keepdim=True)
            masks = torch.where(high > low, (masks - low) / (high - low), 0)
            weights = score(model(image * masks)).softmax(0)  # the answers to the picture seen through each channel
            return torch.einsum("c,chw->hw", weights, A)
        """,
        "ablationcam": """
            channels = torch.arange(len(A))
            silenced = A.repeat(len(A), 1, 1, 1)
            silenced[channels, channels] = 0  # (C, C, h, w): one channel less in each
            before, after = score(ask(A[None])), score(ask(silenced))
            return torch.einsum("c,chw->hw", (before - after) / before.abs(), A)
        """,
    }
)


def formula(method: str, place: Place) -> str:
    needs, paper = METHODS[method].needs, METHODS[method].paper
    arguments = {"gradients": "A, G", "activations": "A"}.get(needs, "A, score")
    body, decorator = indent(code(FORMULAS[method]), "    "), "" if "G" in arguments else "@torch.no_grad()\n"
    ask = ""
    if needs == "ablated_logits":
        ask = code(
            """
            def ask(values):  # the logits (N, 10) when the layer holds `values` (N, C, h, w) instead
                calls = []

                def swap(module, *inputs_and_output):
                    calls.append(module)
                    return <swapped>

                handle = <register>
                logits = model(image.expand(len(values), -1, -1, -1))
                handle.remove()
                return logits
            """,
            swapped=f"values if len(calls) == {place.call} else None" if place.call else "values",
            register=registration("swap", place),
        )
        ask += "\n\n\n"
    heading = f"# 2. {METHODS[method].title}, {paper}: activations (C, h, w) -> raw map (h, w).\n"
    return f"{heading}{ask}{decorator}def cam({arguments}):\n{body}\n"


def use(method: str, score: str, more: str = "") -> str:
    """The use of the method for a score such as "logits[:, 8]"."""
    given = {"gradients": "A[0].detach(), G[0]", "activations": "A[0].detach()"}
    lines = [f"raw = cam({given.get(METHODS[method].needs, f'A[0].detach(), lambda logits: {score}')})"]
    if METHODS[method].needs == "gradients":
        lines.insert(0, f"(G,) = torch.autograd.grad(({score}).sum(), A{more})")
    return "\n".join(lines)


HEATMAP = """
heatmap = F.interpolate(raw.relu()[None, None], image.shape[-2:], mode="bilinear", align_corners=False)[0, 0]
if heatmap.max() > 0:
    heatmap = heatmap / heatmap.max()
""".strip()


def title_of(method: str) -> str:
    if method not in METHODS:
        raise ValueError(f"method {method!r}: accepted are {', '.join(METHODS)}")
    return METHODS[method].title
