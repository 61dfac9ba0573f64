"""Hooks: what the learner attaches to the network in front of them, when each hook fires, and what it does."""

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from hooklab import sanity
from hooklab.edits import ACTIONS, HOOKS, Edit
from hooklab.lab import Lab
from hooklab.ui.gradcam import common, layer_info
from hooklab.ui.payload import floats, pack
from hooklab.ui.question import Refusal, choice, integer, number, resolve

MOST_EDITS, MOST_LEFT = 24, 9
WATCH = ("none", "layer", "all")


def view(labs, request) -> dict:
    """One run with the edits sent: what every hook saw, the prediction, map and input gradient before and after.

    `edits`: dicts of `Edit`'s fields and "on". One that cannot be used is not: it comes back with its `problem`, and
    the others run. `watch`: "none", "layer" (all four kinds on the page's layer) or "all" (on every module). `left`:
    how many earlier runs' hooks are still there because nobody removed them: that many more sets of real hooks are
    registered, on this request's own copy of the model, and like all others removed before the answer leaves.
    """
    question = resolve(labs, request)
    answer, notes = common(question), []
    lab, shown = question.lab, places(question.lab)
    watch = _or_note(notes, lambda: choice(request.get("watch", "layer"), "watch", WATCH), "layer")
    left = _or_note(notes, lambda: integer(request.get("left", 0), "left", 0, MOST_LEFT), 0)
    sent = _or_note(notes, lambda: _listed(request.get("edits") or []), [])
    rows, active = usable(lab, sent)
    watched = {"none": [], "layer": [module_place(question.layer)], "all": [name for name in shown if ":" not in name]}
    edits = [*active, *(Edit(name, hook) for name in watched[watch] for hook in HOOKS)]
    layer = question.layer if layer_info(question).spatial else None  # the default's
    try:
        run = lab.run(question.image, edits * (left + 1), layer, answer["target"])
    except ValueError as error:  # every edit was checked: what is left is what they made of the numbers
        raise Refusal("run", str(error)) from error
    if not all(np.isfinite(array).all() for array in (run.gradient_after, run.raw_after) if array is not None):
        raise Refusal("run", "with these hooks the gradients are not finite: use smaller values")
    for row in rows:
        if "index" in row:  # of the first set: to a second one of the same edits there may be nothing left to change
            row["effect"] = run.effects[row["index"]].code
    registered = run.hooks_during - run.hooks_before - (run.layer is not None)  # without the one that records the map
    found = {
        "rows": rows,
        "watch": watch,
        "left": left,
        "active": len(active),
        "before": floats(run.before),
        "after": floats(run.after),
        "layer": run.layer,
        "maps": None if run.layer is None else [pack(run.raw_before), pack(run.raw_after)],
        "gradients": [pack(np.abs(gradient).sum(0)) for gradient in (run.gradient_before, run.gradient_after)],
        "events": [_event(event, edits) for event in run.events],
        "live": [registered * left // (left + 1), registered, run.hooks_after],
        "actions": {name: [row.hooks, row.takes, row.low, row.high] for name, row in ACTIONS.items()},
        "most": MOST_EDITS,
        "places": [{"name": name, "type": kind, "channels": channels} for name, (kind, channels) in shown.items()],
    }
    return {**answer, "notes": [*answer["notes"], *notes], "hooks": found}


def _event(event, edits: list[Edit]) -> dict:
    return {
        "kind": event.kind,
        "layer": event.layer,
        "edit": event.edit % len(edits),
        "set": event.edit // len(edits),
        "inputs": [None if shape is None else list(shape) for shape in event.inputs],
        "outputs": [None if shape is None else list(shape) for shape in event.outputs],
        "numbers": [_finite(value) for value in (event.minimum, event.mean, event.maximum)],
        "milliseconds": round(event.milliseconds, 3),
        "changed": event.changed,
        "none": bool(event.note),  # there was no grad_input
    }


def usable(lab: Lab, sent: list) -> tuple[list[dict], list[Edit]]:
    """A row for each edit sent, {"problem"}, {"index"} in the edits that act, or {} where it is off; and those."""
    rows: list[dict] = []
    active: list[Edit] = []
    for raw in sent:
        try:
            edit = checked(raw, places(lab))
        except Refusal as refusal:
            rows.append({"problem": [refusal.code, refusal.values]})
            continue
        on = raw.get("on", True) is not False
        rows.append({"index": len(active)} if on else {})
        active += [edit] if on else []
    return rows, active


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None  # JSON knows no infinity


def _or_note(notes: list, check, default):
    try:
        return check()
    except Refusal as refusal:
        notes.append([refusal.code, refusal.values])
        return default


def _listed(edits: object) -> list:
    if not isinstance(edits, list) or len(edits) > MOST_EDITS:
        shown = f"{len(edits)} edits" if isinstance(edits, list) else repr(edits)[:60]
        raise Refusal("edits", f"{shown}: a list of at most {MOST_EDITS} is accepted", value=shown, most=MOST_EDITS)
    return edits


def module_place(layer: str) -> str:
    """The module, or the call of one, that a layer of the page belongs to: "pool:3.input" -> "pool:3"."""
    return layer.removesuffix(".input")


@lru_cache(maxsize=8)
def places(lab: Lab) -> dict[str, tuple[str, dict[str, int]]]:
    """{module, or "module:call" where it is called several times: (its type, channels at each kind of hook)}."""
    run = lab.run(np.zeros((*lab.inputs.size[1:], 3), np.uint8), watch="all")
    modules = dict(lab.model.named_modules())
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for event in run.events:
        if event.kind != "forward":
            continue
        enters, leaves = (next((shape for shape in side if shape), (1, 1)) for side in (event.inputs, event.outputs))
        path = run.edits[event.edit].layer
        channels = {hook: _channels(leaves if hook in ("forward", "tensor") else enters) for hook in HOOKS}
        if event.layer != path and path in found:  # the fewest channels of all its calls are those that all have
            before = found[path][1]
            found[path] = (found[path][0], {hook: min(before[hook], channels[hook]) for hook in HOOKS})
        kind = type(modules[path]).__name__
        found.setdefault(path, (kind, channels))
        found.setdefault(event.layer, (kind, channels))
    return found


def _channels(shape: tuple[int, ...]) -> int:
    """(N, C, ...) -> C; (N, tokens, C) -> C: as `Edit` counts them."""
    return shape[2 if len(shape) == 3 else min(1, len(shape) - 1)]


def checked(raw: object, shown: Mapping) -> Edit:
    """An `Edit` from what the page sent; Refusal names the value and what is accepted, in words that the page has."""
    if not isinstance(raw, Mapping):
        raise Refusal("edit", f"{raw!r:.60}: an edit is an object", value=repr(raw)[:60])
    layer = choice(raw.get("layer"), "layer", tuple(shown))
    hook = choice(raw.get("hook", "forward"), "hook", HOOKS)
    action = choice(raw.get("action", "watch"), "action", [name for name, row in ACTIONS.items() if hook in row.hooks])
    takes, low, high = ACTIONS[action].takes, ACTIONS[action].low, ACTIONS[action].high
    value = raw.get("value")
    if takes == "number":
        value = number(value, action, low, high)
    elif takes == "pair":
        if not isinstance(value, list) or len(value) != 2:
            raise Refusal("pair", f"{action} {value!r:.60}: two numbers", field=action, value=repr(value)[:60])
        value = [number(part, action, low, high) for part in value]
        if value[0] > value[1]:
            raise Refusal("pair", f"{action} {value}: the lower number comes first", field=action, value=str(value))
    else:
        value = None
    channels, last = raw.get("channels"), shown[layer][1][hook] - 1
    if channels is not None:
        if not isinstance(channels, list) or len(channels) > last + 1:
            raise Refusal("integer", "channels", field="channel", value=repr(channels)[:60], low=0, high=last)
        channels = [integer(channel, "channel", 0, last) for channel in channels]
    if action == "keep" and not channels:
        raise Refusal("keep", f"keep: the channels to keep, from 0 to {last}, are needed", last=last)
    return Edit(layer, hook, action, channels, value, integer(raw.get("seed", 0), "seed", 0, 2**31 - 1))


def channels(labs, request) -> dict:
    """Does the gradient tell the truth? What silencing each channel of the layer takes from the target's logit.

    Beside it Grad-CAM's weight, and weight times the channel's sum: what the gradient says that silencing would take.
    `correlations` are the rank correlations of the effect with either.
    """
    question = resolve(labs, request)
    lab, target = question.lab, question.target
    found = lab.features(question.image, question.layer, target)
    effects = lab.channel_effects(question.image, question.layer, found.target)
    promised = found.weights * found.maps.sum((1, 2))
    return {
        "layer": question.layer,
        "target": found.target,
        "effects": floats(effects.effects),
        "weights": floats(effects.weights),
        "promised": floats(promised),
        "correlations": [effects.correlation, sanity.rank_correlation(effects.effects, promised)],
    }


VIEWS = {"hooks": view, "hooks.channels": channels}
