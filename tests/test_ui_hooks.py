"""The hooks tab's Python side: real hooks, their calls in order, what they do, and what is refused."""

import json
import math
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hooklab import hooks as engine
from hooklab.edits import ACTIONS, HOOKS
from hooklab.ui import code
from hooklab.ui import hooks as page
from hooklab.ui.question import Refusal
from hooklab.ui.static import WEB
from tests.test_ui import unpack

TEXTS = json.loads((WEB / "texts.json").read_text("utf-8"))
PLACES = {"simple_cnn": "conv2", "resnet": "layer1.0.conv2"}


def ask(labs, *edits, **request):
    answer = page.view(labs, {"watch": "none", "edits": list(edits), **request})
    return json.loads(json.dumps(answer, allow_nan=False))["hooks"]


def edit(layer="conv2", hook="forward", action="watch", **fields):
    return {"layer": layer, "hook": hook, "action": action, **fields}


# ---- what hooks do, against the same arithmetic by hand


def by_hand(lab, change=lambda values: values, scale=1.0):
    """Logits and input gradient of test image 1218, with `change` after conv2 and the gradient there times `scale`."""
    net, image = lab.model, lab.inputs.prepare(1218).tensor.clone().requires_grad_()
    x = change(net.conv2(F.max_pool2d(F.relu(net.conv1(image)), 2)))
    x = x * scale + (x * (1 - scale)).detach()  # the same values, another gradient
    x = F.max_pool2d(F.relu(net.conv3(F.max_pool2d(F.relu(x), 2))), 2)
    logits = net.fc2(F.relu(net.fc1(x.flatten(1))))[0]
    (gradient,) = torch.autograd.grad(logits[8], image)
    return logits.detach().numpy(), gradient[0].abs().sum(0).numpy()


@pytest.mark.parametrize(
    "fields, change",
    [
        ({"action": "zero", "channels": [3, 9]}, lambda x: x.index_fill(1, torch.tensor([3, 9]), 0.0)),
        ({"action": "scale", "value": -0.5}, lambda x: -0.5 * x),
        ({"action": "negate", "channels": [0]}, lambda x: torch.cat([-x[:, :1], x[:, 1:]], 1)),
        ({"action": "keep", "channels": [1, 2, 5]}, lambda x: x * torch.eye(64)[[1, 2, 5]].sum(0).reshape(-1, 1, 1)),
        ({"action": "mean"}, lambda x: x.mean((2, 3), keepdim=True).expand_as(x)),
        ({"action": "clamp", "value": [-0.1, 0.2]}, lambda x: x.clamp(-0.1, 0.2)),
        ({"action": "watch"}, lambda x: x),
    ],
    ids=lambda value: value.get("action") if isinstance(value, dict) else "",
)
def test_a_forward_hook_does_what_its_action_says(labs, fields, change):
    found, (logits, gradient) = ask(labs, edit(**fields), target="ship"), by_hand(labs["simple_cnn"], change)
    assert np.allclose(found["after"], logits, atol=1e-4)
    assert np.allclose(found["before"], by_hand(labs["simple_cnn"])[0], atol=1e-4)
    assert np.allclose(unpack(found["gradients"][1]), gradient, atol=2e-3 * gradient.max())


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0, -1.0])
def test_a_tensor_hook_changes_the_gradient_before_it_and_nothing_else(labs, factor):
    found = ask(labs, edit(hook="tensor", action="scale", value=factor), target="ship", layer="conv3")
    _, gradient = by_hand(labs["simple_cnn"], scale=factor)
    assert found["after"] == found["before"]
    assert found["maps"][0] == found["maps"][1]  # behind the hook the gradient is as it was
    assert np.allclose(unpack(found["gradients"][1]), gradient, atol=2e-3 * max(gradient.max(), 1e-9))
    assert found["rows"][0]["effect"] == "backward_only"


def test_edits_compose_and_those_that_are_off_do_not_act(labs):
    first, second = edit(action="scale", value=2), edit(action="zero", channels=[0])
    both = ask(labs, first, second)
    expected = by_hand(labs["simple_cnn"], lambda x: (2 * x).index_fill(1, torch.tensor([0]), 0.0))[0]
    assert np.allclose(both["after"], expected, atol=1e-4)
    one = ask(labs, {**first, "on": False}, second)
    assert one["rows"][0] == {} and one["rows"][1]["effect"] == ""
    assert one["after"] == ask(labs, second)["after"] != both["after"]


def test_the_same_seed_gives_the_same_noise(labs):
    runs = [ask(labs, edit(action="noise", value=0.3, seed=seed))["after"] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    "request_, effect",
    [
        (edit(), "watches"),
        (edit(action="scale", value=1), "unchanged"),
        (edit(hook="backward", action="scale", value=0.5), "backward_only"),
        (edit(action="zero"), ""),
        (edit("fc2", action="zero", channels=[0]), ""),
    ],
)
def test_why_a_hook_had_no_effect(labs, request_, effect):
    assert ask(labs, request_)["rows"][0]["effect"] == effect
    assert f"effect.{effect or 'changed'}" in TEXTS


def test_every_reason_and_action_has_words():
    from hooklab.runs import REASONS

    assert all(f"effect.{code or 'changed'}" in TEXTS for code in REASONS)
    assert all(f"action.{name}" in TEXTS for name in ACTIONS)
    assert all(f"order.{hook}" in TEXTS for hook in HOOKS)
    assert all(f"hooks.watch.{watch}" in TEXTS for watch in page.WATCH)
    assert all(f"value.{name}" in TEXTS for name, action in ACTIONS.items() if action.takes)


# ---- when hooks are called


def test_the_four_kinds_on_one_layer_are_called_in_this_order(labs):
    found = ask(labs, layer="conv3", watch="layer")
    assert [event["kind"] for event in found["events"]] == ["forward_pre", "forward", "tensor", "backward"]
    assert {event["layer"] for event in found["events"]} == {"conv3"}
    times = [event["milliseconds"] for event in found["events"]]
    assert times == sorted(times)
    pre, forward, tensor, backward = found["events"]
    assert pre["inputs"] == [[1, 64, 8, 8]] and forward["outputs"] == tensor["outputs"] == [[1, 128, 8, 8]]
    assert backward["inputs"] == [[1, 64, 8, 8]] and backward["outputs"] == [[1, 128, 8, 8]]
    maps = labs["simple_cnn"].features(1218, "conv3").maps
    assert np.allclose(forward["numbers"], [maps.min(), maps.mean(), maps.max()], atol=1e-4)


@pytest.mark.parametrize("model", ["simple_cnn", "resnet"])
def test_watching_every_module_sees_it_go_down_and_come_back_up(labs, model):
    events = ask(labs, model=model, watch="all")["events"]
    down = [event["layer"] for event in events if event["kind"] == "forward"]
    up = [event["layer"] for event in events if event["kind"] == "backward"]
    assert [event["kind"] in ("forward_pre", "forward") for event in events] == sorted(
        [event["kind"] in ("forward_pre", "forward") for event in events], reverse=True
    )
    assert sorted(down) == sorted(up)
    if model == "simple_cnn":  # no module inside another: the way back is the way there, reversed
        assert down == up[::-1] == ["conv1", "pool:1", "conv2", "pool:2", "conv3", "pool:3", "fc1", "fc2"]


def test_E3_a_module_that_is_called_three_times_can_be_hooked_at_one_call(labs):
    all_calls = ask(labs, edit("pool", action="watch"))["events"]
    assert [event["layer"] for event in all_calls] == ["pool:1", "pool:2", "pool:3"]
    (event,) = ask(labs, edit("pool:2", action="watch"))["events"]
    assert (event["layer"], event["outputs"]) == ("pool:2", [[1, 64, 8, 8]])


def test_E16_the_first_layers_backward_hook_gets_a_grad_input(labs):
    (event,) = ask(labs, edit("conv1", "backward"))["events"]
    assert event["inputs"] == [[1, 3, 32, 32]] and not event["none"]


# ---- live hooks


def test_E7_all_hooks_are_gone_after_a_run(labs):
    found = ask(labs, edit(), edit(hook="tensor"), edit(hook="backward"), watch="all")
    assert found["live"][0] == found["live"][2] == 0
    assert found["live"][1] > 4 * 6
    assert all(engine.count(lab.model) == 0 for lab in labs.values())


@pytest.mark.parametrize("left", [0, 1, 4])
def test_what_is_forgotten_is_registered_again_acts_again_and_is_gone_for_others(labs, left):
    found = ask(labs, edit(action="scale", value=0.5), edit(action="watch"), left=left)
    assert found["live"] == [2 * left, 2 * (left + 1), 0]
    assert np.allclose(found["after"], by_hand(labs["simple_cnn"], lambda x: 0.5 ** (left + 1) * x)[0], atol=1e-4)
    assert sorted({event["set"] for event in found["events"]}) == list(range(left + 1))
    assert len(found["events"]) == 2 * (left + 1)
    assert ask(labs)["events"] == [] and ask(labs)["live"] == [0, 0, 0]  # the next user


def test_P1_users_with_different_hooks_at_once_get_what_they_get_alone(labs):
    kinds = [("forward", 0.5), ("tensor", 0.0), ("backward", -1.0), ("forward_pre", 2.0)]
    wanted = [[edit(hook=hook, action="scale", value=value + k)] for k in range(2) for hook, value in kinds]
    alone = [ask(labs, *edits) for edits in wanted]
    together = [None] * 8

    def work(k):
        together[k] = [ask(labs, *wanted[k], left=k % 3), ask(labs, *wanted[k])][1]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    for one, other in zip(alone, together, strict=True):
        assert one["after"] == other["after"] and one["gradients"] == other["gradients"]
        assert len(one["events"]) == len(other["events"])


# ---- what is refused


@pytest.mark.parametrize(
    "fields, code, values",
    [
        ({"action": "zero", "channels": [64]}, "integer", {"field": "channel", "low": 0, "high": 63}),
        ({"action": "zero", "channels": [-1]}, "integer", {"field": "channel", "low": 0, "high": 63}),
        ({"action": "zero", "channels": [1.5]}, "integer", {"field": "channel"}),
        ({"action": "zero", "channels": [True]}, "integer", {"field": "channel"}),
        ({"action": "zero", "channels": ["x"]}, "integer", {"field": "channel"}),
        ({"action": "zero", "channels": "0"}, "integer", {"field": "channel"}),
        ({"action": "zero", "channels": list(range(64)) * 2}, "integer", {"field": "channel"}),
        ({"action": "zero", "hook": "forward_pre", "channels": [32]}, "integer", {"high": 31}),
        ({"action": "scale", "hook": "backward", "value": 1, "channels": [32]}, "integer", {"high": 31}),
        ({"action": "scale", "hook": "tensor", "value": 1, "channels": [64]}, "integer", {"high": 63}),
        *[({"action": "scale", "value": v}, "number", {"low": -1e6, "high": 1e6}) for v in (math.nan, 1e9, "2", None)],
        ({"action": "clip_norm", "hook": "tensor", "value": -1}, "number", {"low": 0.0, "high": 1e6}),
        ({"action": "prune", "value": 101}, "number", {"low": 0.0, "high": 100.0}),
        ({"action": "clamp", "value": [1, 0]}, "pair", {"field": "clamp"}),
        ({"action": "clamp", "value": 3}, "pair", {"field": "clamp"}),
        ({"action": "clamp", "value": [0, float("inf")]}, "number", {"field": "clamp"}),
        ({"action": "keep"}, "keep", {"last": 63}),
        ({"action": "keep", "channels": []}, "keep", {"last": 63}),
        ({"action": "noise", "value": 1, "seed": -1}, "integer", {"field": "seed", "low": 0, "high": 2**31 - 1}),
        ({"action": "clip", "value": 1}, "choice", {"field": "action"}),  # only gradients are clipped
        ({"action": "prune", "hook": "tensor", "value": 1}, "choice", {"field": "action"}),
        ({"hook": "middle"}, "choice", {"field": "hook"}),
        *[({"layer": layer}, "choice", {"field": "layer"}) for layer in ("conv9", "pool:4", "", None, 3, "layer1", [])],
    ],
    ids=repr,
)
def test_a_bad_edit_is_named_with_what_is_accepted_and_the_others_run(labs, fields, code, values):
    found = page.view(labs, {"watch": "none", "edits": [edit(**fields), edit(action="watch")]})["hooks"]
    found_code, found_values = found["rows"][0]["problem"]
    assert found_code == code and f"error.{code}" in TEXTS
    assert values.items() <= found_values.items()
    if code == "choice" and fields.get("layer") == "pool:4":
        assert "pool:3" in found_values["choices"]
    assert found["rows"][1]["effect"] == "watches" and len(found["events"]) == 1


@pytest.mark.parametrize("raw", [None, 1, "zero", [], [edit()]])
def test_an_edit_that_is_no_object_is_a_problem_of_its_own(labs, raw):
    assert ask(labs, raw)["rows"][0]["problem"][0] == "edit"


@pytest.mark.parametrize(
    "request_, code",
    [
        ({"edits": [edit()] * 25}, "edits"),
        ({"edits": {"layer": "conv1"}}, "edits"),
        ({"edits": "conv1"}, "edits"),
        ({"watch": "everything"}, "choice"),
        *[({"left": left}, "integer") for left in (-1, 10, 1e9, "1", True, None)],
    ],
)
def test_a_bad_list_falls_back_with_a_note(labs, request_, code):
    answer = page.view(labs, request_)
    assert [note for note, _ in answer["notes"]] == [code]
    assert f"note.{code}" in TEXTS
    assert answer["hooks"]["rows"] == [] and answer["hooks"]["left"] == 0


@pytest.mark.parametrize("hook", ["forward", "tensor"])
def test_hooks_that_make_the_numbers_infinite_get_a_sentence(labs, hook):
    edits = [edit(place, hook, "scale", value=1e6) for place in ("conv1", "conv2", "conv3", "fc1", "fc2")] * 2
    with pytest.raises(Refusal) as caught:
        page.view(labs, {"edits": edits})
    assert caught.value.code == "run" and "error.run" in TEXTS
    assert ask(labs)["live"] == [0, 0, 0]


def test_numbers_that_are_infinite_only_on_the_way_are_left_out(labs):
    edits = [edit("conv1", action="scale", value=1e6) for _ in range(7)]
    found = ask(labs, *edits, edit("conv1", action="clamp", value=[0, 1]), edit("conv1"))
    assert found["events"][6]["numbers"][2] is None
    assert None not in found["events"][-1]["numbers"]


def test_a_layer_without_a_map_shows_the_default_layers(labs):
    found = ask(labs, layer="fc1", watch="layer")
    assert found["layer"] == "pool:3.input"
    assert [event["layer"] for event in found["events"]] == ["fc1"] * 4


@pytest.mark.parametrize("model", ["simple_cnn", "resnet"])
def test_every_place_takes_a_hook_of_every_kind_at_its_last_channel(labs, model):
    for place in page.places(labs[model]):
        for hook in HOOKS:
            last = page.places(labs[model])[place][1][hook] - 1
            found = ask(labs, edit(place, hook, "zero", channels=[last]), model=model)
            assert "effect" in found["rows"][0], (place, hook)
            assert found["events"], (place, hook)


# ---- from a channel to its effect


@pytest.mark.parametrize("model, layer", [("simple_cnn", "conv3"), ("simple_cnn", "fc1"), ("resnet", "layer2.0")])
def test_the_table_says_what_silencing_one_channel_really_does(labs, model, layer):
    table = page.channels(labs, {"model": model, "layer": layer, "target": "cat"})
    for channel in (0, 7, len(table["effects"]) - 1):
        run = ask(labs, edit(layer, action="zero", channels=[channel]), model=model, target="cat")
        assert table["effects"][channel] == pytest.approx(run["before"][3] - run["after"][3], abs=1e-4)
    features = labs[model].features(1218, layer, "cat")
    assert np.allclose(table["weights"], features.weights)
    assert np.allclose(table["promised"], features.weights * features.maps.sum((1, 2)), atol=1e-6)


def test_where_the_network_is_linear_behind_the_layer_the_gradient_tells_the_truth(labs):
    table = page.channels(labs, {"model": "resnet", "layer": "layer2"})
    assert np.allclose(table["effects"], table["promised"], atol=1e-3)
    assert table["correlations"][1] > 0.99
    ranks = [np.argsort(np.argsort(table[name])) for name in ("effects", "promised")]
    assert table["correlations"][1] == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=0.01)


def test_the_script_of_the_tab_leaves_out_what_is_refused_or_off(labs):
    edits = [edit(action="scale", value=0.25), edit("conv9", action="zero"), edit(action="zero", on=False), None]
    text = code.view(labs, {"tab": "hooks", "edits": edits, "layer": "fc1"})["code"]
    assert "0.25" in text and "conv9" not in text and "0 * x" not in text
    compile(text, "script", "exec")
