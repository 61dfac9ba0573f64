"""The plain PyTorch script behind each view: a learner can run it, read it and change it, without hooklab.

Each function returns the text of a script that needs torch, numpy and pillow, runs in hooklab's folder (where the
checkpoint and the test images lie) and leaves its results in the variables that the function's docstring names.

    >>> print(explain("simple_cnn", 1218, "conv3", target=8))

`model` is the name of a shipped network; `image` an index of the CIFAR-10 test split, or the path of a picture that has
the network's input size already; `layer`, `method` and edits are those of `Lab`; `target` is the index of a class.
"""

from __future__ import annotations

import json
from textwrap import indent
from types import MappingProxyType

from . import data, erasing, evidence
from .edit_snippets import run as run
from .scripts import (
    HEATMAP,
    beginning,
    catching,
    code,
    formula,
    place_in,
    place_of,
    rows_of,
    script,
    target_index,
    title_of,
    use,
)


def explain(model: str, image: int | str, layer: str, target: int, method: str = "gradcam") -> str:
    """The map of one class at one layer. Leaves `logits` (1, K), `raw` (h, w) and `heatmap` (H, W) in [0, 1]."""
    title, place, name = title_of(method), place_of(model, layer), data.CLASSES[target_index(target)]
    return script(
        beginning(f"{title} for {name} at {layer}", model, image),
        catching(place),
        formula(method, place),
        use(method, f"logits[:, {target}]"),
        HEATMAP,
        f'print(f"{name}: {{logits.softmax(1)[0, {target}]:.1%}}, raw map {{raw.min():.4f}} to {{raw.max():.4f}}")',
    )


def classes(model: str, image: int | str, layer: str, method: str = "gradcam") -> str:
    """The map of every class, from one forward pass. Leaves `logits` (1, K) and `raw` (K, h, w)."""
    title, place = title_of(method), place_of(model, layer)
    return script(
        beginning(f"{title} for every class at {layer}", model, image),
        catching(place),
        formula(method, place),
        "maps = []\nfor k in range(10):\n"
        + indent(use(method, "logits[:, k]", ", retain_graph=True"), "    ")
        + "\n    maps.append(raw)\nraw = torch.stack(maps)  # (10, h, w)",
    )


def difference(model: str, image: int | str, layer: str, target: int, other: int, method: str = "gradcam") -> str:
    """Why one class rather than another: the map of the difference of their logits. Leaves `raw` and `heatmap`."""
    title, place, a, b = title_of(method), place_of(model, layer), target_index(target), target_index(other)
    return script(
        beginning(f"{title}: why {data.CLASSES[a]} rather than {data.CLASSES[b]}, at {layer}", model, image),
        catching(place),
        formula(method, place),
        use(method, f"logits[:, {a}] - logits[:, {b}]"),
        HEATMAP,
    )


def all_layers(model: str, image: int | str, target: int) -> str:
    """Grad-CAM at every layer that has maps, from one forward and one backward pass. Leaves `maps`, name -> (h, w)."""
    rows = [name for name, row in rows_of(model).items() if row.spatial and row.listed]
    lines = ["wanted = {"]
    for name in rows:
        place = place_in(model, name)
        lines.append(f"    {json.dumps(name)}: ({json.dumps(place.path)}, {place.call or 1}, {place.input}),")
    return script(
        beginning(f"Grad-CAM for {data.CLASSES[target_index(target)]} at every layer", model, image),
        "# 1. Which call of which module, and whether its input is meant.\n" + "\n".join([*lines, "}"]),
        code(
            """
            kept, handles = {}, []


            def catcher(name, number):
                calls = []

                def catch(module, inputs, output=None):  # as a pre-hook it is called without an output
                    calls.append(module)
                    if len(calls) == number:
                        kept[name] = (inputs[0] if output is None else output).clone()
                        return kept[name]

                return catch


            for name, (path, number, is_input) in wanted.items():
                module = model.get_submodule(path)
                register = module.register_forward_pre_hook if is_input else module.register_forward_hook
                handles.append(register(catcher(name, number)))
            logits = model(image.requires_grad_())
            for handle in handles:
                handle.remove()

            # 2. The gradient of the logit at all of them at once, and the map of each.
            gradients = torch.autograd.grad(logits[0, <target>], [kept[name] for name in wanted])
            maps = {}
            for name, G in zip(wanted, gradients):
                maps[name] = torch.einsum("c,chw->hw", G[0].mean((1, 2)), kept[name][0].detach())
            """,
            target=target,
        ),
    )


def features(model: str, image: int | str, layer: str, target: int) -> str:
    """What a layer holds. Leaves `maps` (C, h, w), Grad-CAM's `weights` (C,) and `order`, what adds most first."""
    return script(
        beginning(f"The feature maps at {layer}", model, image),
        catching(place_of(model, layer)),
        code(
            """
            (G,) = torch.autograd.grad(logits[0, <target>], A)  # <name>
            maps = A[0].detach()  # (C, h, w)
            weights = G[0].mean((1, 2))  # Grad-CAM's weight of each channel
            order = (weights * maps.mean((1, 2))).argsort(descending=True, stable=True)
            print("the three channels that add most:", order[:3].tolist())
            """,
            target=target_index(target),
            name=data.CLASSES[target],
        ),
    )


# -- erasing ---------------------------------------------------------------------------------------------

ORDER = code(
    """
    # 3. The order of the pixels, hottest first. A fixed smooth random field decides between equal ones.
    heat = F.interpolate(raw[None, None], image.shape[-2:], mode="bilinear", align_corners=False)[0, 0].numpy()
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 1, 8, 8), dtype=np.float32))
    ties = F.interpolate(noise, heat.shape, mode="bilinear", align_corners=False).numpy()
    ranked = np.lexsort((ties.ravel(), -heat.ravel()))
    """
)
BASES = MappingProxyType(
    {
        "grey": "# 4. An erased pixel is grey.\nbase = np.full_like(pixels, 128)",
        "blur": code(
            """
            # 4. An erased pixel takes the colour of a blurred picture.
            places = np.arange(32)
            blur = np.exp(-((places[:, None] - places) ** 2) / (2 * 4**2))  # a Gaussian of 4 pixels
            blur /= blur.sum(1, keepdims=True)  # with nothing beyond the border
            base = np.rint(np.einsum("ij,jkc,lk->ilc", blur, pixels, blur, optimize=True)).astype(np.uint8)
            """
        ),
    }
)


def erase(
    model: str,
    image: int | str,
    layer: str,
    target: int,
    percent: float,
    method: str = "gradcam",
    which: str = "hottest",
    baseline: str = "blur",
) -> str:
    """Erase the hottest or the coldest pixels. Leaves the picture `left` (H, W, 3) and its `probabilities` (K,)."""
    share = erasing.as_share(percent)
    if which not in ("hottest", "coldest"):
        raise ValueError(f"which {which!r}: accepted are 'hottest' and 'coldest'")
    count = int(erasing.counts(share, 32 * 32))
    return script(
        explain(model, image, layer, target, method),
        ORDER,
        _base(baseline),
        code(
            """
            # 5. Erase the <which> <percent> %, and ask again.
            mask = np.zeros(ranked.size, bool)
            mask[ranked[<chosen>]] = True
            left = np.where(mask.reshape(32, 32, 1), base, pixels)
            with torch.no_grad():
                probabilities = model(prepare(left[None])).softmax(1)[0]
            print(f"<name> without the <which> <percent> %: {probabilities[<target>]:.1%}")
            """,
            which=which,
            percent=f"{percent:g}",
            chosen=f":{count}" if which == "hottest" else f"{32 * 32 - count}:",
            target=target,
            name=data.CLASSES[target],
        ),
    )


def _base(baseline: str) -> str:
    if baseline not in BASES:
        raise ValueError(f"baseline {baseline!r}: accepted are {' and '.join(map(repr, erasing.BASELINES))}")
    return BASES[baseline]


def curves(
    model: str, image: int | str, layer: str, target: int, method: str = "gradcam", baseline: str = "blur"
) -> str:
    """Deletion and insertion. Leaves the target's probabilities `deletion` and `insertion` (21,) and their areas."""
    return script(
        explain(model, image, layer, target, method),
        ORDER,
        _base(baseline),
        code(
            """
            # 5. Erase the hottest 0, <step>, ... 100 %, and reveal them.
            pictures = {"deletion": [], "insertion": []}
            for percent in range(0, 101, <step>):
                mask = np.zeros(ranked.size, bool)
                mask[ranked[: round(percent / 100 * ranked.size)]] = True
                mask = mask.reshape(32, 32, 1)
                pictures["deletion"].append(np.where(mask, base, pixels))
                pictures["insertion"].append(np.where(mask, pixels, base))
            with torch.no_grad():
                deletion, insertion = (
                    model(prepare(np.stack(batch))).softmax(1)[:, <target>].numpy() for batch in pictures.values()
                )
            deletion_area, insertion_area = ((c[1:] + c[:-1]).mean() / 2 for c in (deletion, insertion))
            print(f"area of deletion {deletion_area:.3f} (lower is better), of insertion {insertion_area:.3f} (higher)")
            """,
            step=evidence.STEP,
            target=target,
        ),
    )
