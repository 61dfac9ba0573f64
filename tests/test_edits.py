"""Edits: closed-form results for every action, and a message for everything that is not accepted."""

import math

import pytest
import torch

from hooklab.edits import ACTIONS, HOOKS, Edit

X = torch.tensor([[[[1.0, -3.0]], [[0.0, 2.0]], [[4.0, 4.0]]]])  # (1, 3, 1, 2)


def edited(action, value=None, channels=None, hook="forward", x=X, **more):
    return Edit("conv", hook, action, channels, value, **more)(x)


CASES = [
    ({"action": "watch"}, [[1, -3], [0, 2], [4, 4]]),
    ({"action": "zero"}, [[0, 0], [0, 0], [0, 0]]),
    ({"action": "zero", "channels": [0, 2]}, [[0, 0], [0, 2], [0, 0]]),
    ({"action": "zero", "channels": []}, [[1, -3], [0, 2], [4, 4]]),
    ({"action": "keep", "channels": [1]}, [[0, 0], [0, 2], [0, 0]]),
    ({"action": "scale", "value": -0.5}, [[-0.5, 1.5], [0, -1], [-2, -2]]),
    ({"action": "scale", "value": 3, "channels": (1,)}, [[1, -3], [0, 6], [4, 4]]),
    ({"action": "negate"}, [[-1, 3], [0, -2], [-4, -4]]),
    ({"action": "noise", "value": 0}, [[1, -3], [0, 2], [4, 4]]),
    ({"action": "mean"}, [[-1, -1], [1, 1], [4, 4]]),
    ({"action": "mean", "channels": [0]}, [[-1, -1], [0, 2], [4, 4]]),
    ({"action": "prune", "value": 0}, [[1, -3], [0, 2], [4, 4]]),
    ({"action": "prune", "value": 34}, [[1, -3], [0, 0], [4, 4]]),  # mean magnitudes 2, 1, 4: a third is one channel
    ({"action": "prune", "value": 70}, [[0, 0], [0, 0], [4, 4]]),
    ({"action": "prune", "value": 100}, [[0, 0], [0, 0], [0, 0]]),
    ({"action": "prune", "value": 50, "channels": [0, 2]}, [[0, 0], [0, 2], [4, 4]]),  # the weaker of the two
    ({"action": "clamp", "value": [-1, 2.5]}, [[1, -1], [0, 2], [2.5, 2.5]]),
    ({"action": "clip", "value": 2, "hook": "tensor"}, [[1, -2], [0, 2], [2, 2]]),
    ({"action": "clip_norm", "value": 100, "hook": "backward"}, [[1, -3], [0, 2], [4, 4]]),
    ({"action": "clip_norm", "value": math.sqrt(46) / 2, "hook": "tensor"}, [[0.5, -1.5], [0, 1], [2, 2]]),
    ({"action": "clip_norm", "value": 0, "hook": "tensor"}, [[0, 0], [0, 0], [0, 0]]),
]


@pytest.mark.parametrize(("case", "expected"), CASES, ids=lambda case: str(case) if isinstance(case, dict) else "")
def test_action(case, expected):
    before = X.clone()
    torch.testing.assert_close(edited(**case), torch.tensor(expected, dtype=torch.float32)[None, :, None])
    assert torch.equal(X, before), "edits are out of place"


def test_every_action_is_in_the_table_of_cases():
    assert {case["action"] for case, _ in CASES} == set(ACTIONS)


def test_noise_has_a_seed_a_call_and_a_size_of_its_own():
    x = torch.zeros(1, 4, 50, 50)
    one = edited("noise", 2.0, x=x, seed=7)
    assert torch.equal(one, edited("noise", 2.0, x=x, seed=7))
    assert not torch.equal(one, edited("noise", 2.0, x=x, seed=8))
    assert not torch.equal(one, Edit("conv", action="noise", value=2.0, seed=7)(x, call=2))
    assert abs(one.std().item() - 2) < 0.05 and abs(one.mean().item()) < 0.05  # 10,000 numbers
    only = edited("noise", 2.0, channels=[3], x=x, seed=7)
    assert torch.equal(only[:, :3], x[:, :3]) and torch.equal(only[:, 3], one[:, 3])


def test_noise_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    edited("noise", 1.0)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 5), 1), ((2, 7, 5), 2), ((2, 5, 3, 4), 1), ((2, 5, 2, 3, 4), 1), ((5,), 0)]
)
def test_channels_of_any_rank(shape, axis):
    """(N, C), sequences (N, tokens, C), maps (N, C, h, w), volumes, and a lone vector."""
    x = torch.rand(shape) + 1
    found = edited("zero", channels=[4], x=x)
    assert (found.select(axis, 4) == 0).all()
    assert torch.equal(found.narrow(axis, 0, 4), x.narrow(axis, 0, 4))
    with pytest.raises(ValueError, match=r"channel 5: conv has 5 channels \(0 to 4\)"):
        edited("zero", channels=[5], x=x)


REFUSED = [
    ({"layer": 3}, "layer 3"),
    ({"hook": "sideways"}, "hook 'sideways': accepted are forward_pre, forward, backward, tensor"),
    ({"action": "explode"}, "accepted are watch, zero, scale, negate, noise, keep, mean, prune, clamp"),
    ({"action": "clip", "value": 1}, "action 'clip': with a forward hook"),
    ({"action": "prune", "value": 5, "hook": "tensor"}, "action 'prune': with a tensor hook"),
    ({"action": "zero", "value": 1}, "value 1: zero takes no value"),
    ({"action": "scale"}, "value None: scale takes a factor"),
    ({"action": "scale", "value": math.nan}, "value nan"),
    ({"action": "scale", "value": math.inf}, "value inf"),
    ({"action": "scale", "value": True}, "value True"),
    ({"action": "scale", "value": "2"}, "value '2'"),
    ({"action": "noise", "value": -1}, "value -1: noise takes a standard deviation, a number from 0"),
    ({"action": "prune", "value": 101}, "a number from 0 to 100"),
    ({"action": "clip_norm", "value": -1, "hook": "tensor"}, "value -1: clip_norm takes the largest Euclidean norm"),
    ({"action": "clamp", "value": 3}, "value 3: clamp takes two numbers"),
    ({"action": "clamp", "value": [1, 2, 3]}, "clamp takes two numbers"),
    ({"action": "clamp", "value": [2, 1]}, "in this order"),
    ({"action": "clamp", "value": [0, math.nan]}, "value nan"),
    ({"action": "zero", "channels": 3}, "channels 3: a list"),
    ({"action": "zero", "channels": "12"}, "channels '12': a list"),
    ({"action": "zero", "channels": [-1]}, "channel -1"),
    ({"action": "zero", "channels": [1.5]}, "channel 1.5"),
    ({"action": "zero", "channels": [True]}, "channel True"),
    ({"action": "keep"}, "keep needs the channels"),
    ({"action": "keep", "channels": []}, "keep needs the channels"),
    ({"seed": -1}, "seed -1"),
    ({"seed": 1.0}, "seed 1.0"),
    ({"sead": 1}, "a dict with layer and some of hook, action, channels, value, seed"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=lambda case: str(case))
def test_refused_with_what_is_accepted(fields, message):
    with pytest.raises(ValueError) as error:
        Edit.of({"layer": "conv", **fields})
    assert message in str(error.value)


@pytest.mark.parametrize("edit", [None, 3, "conv", ["conv"], {}, {"hook": "forward"}])
def test_only_dicts_and_edits_become_edits(edit):
    with pytest.raises(ValueError, match="a dict with layer"):
        Edit.of(edit)


def test_json_and_python_give_the_same_edit():
    edit = Edit("conv", "forward", "clamp", (1, 2), (0.0, 1.0), 3)
    assert Edit.of({"layer": "conv", "action": "clamp", "channels": [1, 2], "value": [0, 1], "seed": 3}) == edit
    assert Edit.of(edit) is edit and hash(edit) == hash(Edit.of(edit))
    assert all(Edit("conv", hook).action == "watch" for hook in HOOKS)
