"""The plain PyTorch script behind the hook view: every edit as a hook of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import indent
from types import MappingProxyType

from . import data, layers
from .edits import GRADIENTS, Edit
from .hooks import Place
from .scripts import beginning, code, hook_function, place_in, place_of, registration, rows_of, script, target_index

CHANGES: Mapping[str, str] = MappingProxyType(
    {
        "zero": "0 * x",
        "scale": "<value> * x",
        "negate": "-x",
        "noise": "x + <value> * torch.randn(x.shape, generator=torch.Generator().manual_seed(<seed> + call))",
        "mean": "x.mean((2, 3), keepdim=True).expand_as(x)",
        "clamp": "x.clamp<value>",
        "clip": "x.clamp(-<value>, <value>)",
        "clip_norm": "x * (<value> / x.norm().clamp(min=1e-12)).clamp(max=1)",
    }
)
KEEP = """
others = [channel for channel in range(x.shape[1]) if channel not in <channels>]
x = x.clone()
x[:, others] = 0
return x
"""
PRUNE = """
among = <among>
strength = x.detach().abs().mean([axis for axis in range(x.ndim) if axis != 1])[among]
weakest = among[strength.argsort(stable=True)[: int(len(among) * <value> / 100)]]
x = x.clone()
x[:, weakest] = 0
return x
"""


def change(name: str, edit: Edit, row: layers.LayerInfo) -> str:
    """`def name(x, call)`, which changes a batch of activations or gradients as the edit does."""
    channels = None if edit.channels is None else sorted(set(edit.channels))
    among = "torch.arange(x.shape[1])" if channels is None else f"torch.tensor({channels})"
    values = {"value": edit.value, "seed": edit.seed * 1000, "channels": channels, "among": among}
    if edit.action == "watch":
        body = f'print("{edit.hook} {edit.layer}, call", call, tuple(x.shape), f"mean {{x.mean():.6f}}")\nreturn x'
    elif edit.action in ("keep", "prune"):
        body = code(KEEP if edit.action == "keep" else PRUNE, **values)
    elif edit.action == "mean" and len(row.shape) < 3:
        body = "return x  # one number a channel is its own mean"
    elif channels is None:
        body = "return " + code(CHANGES[edit.action], **values)
    else:
        body = code("changed = " + CHANGES[edit.action], **values)
        body += f"\nx = x.clone()\nx[:, {channels}] = changed[:, {channels}]\nreturn x"
    return f"def {name}(x, call):\n{indent(body, '    ')}\n"


def acting(name: str, edit: Edit, place: Place, calls: int) -> tuple[str, str]:
    """The hook `name` that applies `change_<name>`, and its registration."""
    if edit.hook == "backward":
        only = f"\nif call != {place.call}:\n    return None" if place.call else ""
        body = code(
            """
            <name>.calls += 1
            call = <later> - <name>.calls  # the gradient of the last call comes first<only>
            return tuple(None if g is None else change_<name>(g, call) for g in grad_input)
            """,
            name=name,
            later=calls + 1,
            only=only,
        )
        function = f"def {name}(module, grad_input, grad_output):\n{indent(body, '    ')}\n\n\n{name}.calls = 0"
        return function, f"model.get_submodule({json.dumps(place.path)}).register_full_backward_hook({name})"
    if edit.hook == "tensor":
        body = code(
            """
            call, x = <name>.calls, x.clone()
            x.register_hook(lambda gradient: change_<name>(gradient, call))
            return x.clone()
            """,
            name=name,
        )
    else:
        place = replace(place, input=place.input or edit.hook == "forward_pre")
        body = f"return change_{name}(x, {name}.calls)"
    return hook_function(name, place, body, counts=True), registration(name, place)


def run(model: str, image: int | str, edits: Sequence[Edit | Mapping], layer: str, target: int) -> str:
    """One pass without and one with hooks that change things.

    Leaves the logits `before` (K,), Grad-CAM at `layer`, `raw_before` (h, w), and the target's gradient at the input,
    `gradient_before` (C, H, W); and the same with the hooks, `after`, `raw_after`, `gradient_after`.
    """
    place, rows = place_of(model, layer), rows_of(model)
    edits = [Edit.of(edit) for edit in edits]
    functions, values, gradients = [], [], []
    for number, edit in enumerate(edits, 1):
        at = place_in(model, edit.layer)
        own = [row for name, row in rows.items() if name.partition(":")[0] == at.path and not name.endswith(".input")]
        hook, registered = acting(f"edit_{number}", edit, at, len(own))
        functions += [change(f"change_edit_{number}", edit, own[(at.call or 1) - 1]), hook]
        (gradients if edit.hook in GRADIENTS else values).append(registered)
    caught = registration("catch", place)
    together = "".join(f"    {each},\n" for each in [*values, caught, *gradients])
    reset = "catch.calls = 0\n" if place.call else ""
    return script(
        beginning("Hooks that change what passes them", model, image),
        "# 1. Keep what flows through the layer of the map, and measure.\nkept = {}",
        hook_function("catch", place, 'kept["A"] = x.clone()\nreturn kept["A"].clone()'),
        code(
            """
            def measure():
                x = image.clone().requires_grad_()
                logits = model(x)[0]
                gradient, G = torch.autograd.grad(logits[<target>], [x, kept["A"]])  # of <name>
                return logits.detach(), torch.einsum("c,chw->hw", G[0].mean((1, 2)), kept["A"][0].detach()), gradient[0]


            handles = [<caught>]
            before, raw_before, gradient_before = measure()
            handles.pop().remove()
            """,
            target=target_index(target),
            name=data.CLASSES[target],
            caught=caught,
        ),
        "# 2. The changes, and the hooks that make them." if edits else "",
        *functions,
        "# 3. Values are changed first, then kept, then gradients are changed.\n"
        f"{reset}handles = [\n{together}]\nafter, raw_after, gradient_after = measure()\n"
        "for handle in handles:\n    handle.remove()",
        f'print(f"{data.CLASSES[target]}: {{before.softmax(0)[{target}]:.1%}} before, '
        f'{{after.softmax(0)[{target}]:.1%}} after")',
    )
