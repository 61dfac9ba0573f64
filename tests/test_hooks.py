"""`record`: what it keeps, what it changes, what it leaves behind, on hand-made nets and on torchvision's."""

import re
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from nets import NETS, Reused, torchvision_net
from torch import nn

from hooklab import hooks
from hooklab.edits import HOOKS, Edit
from hooklab.hooks import count, locate, record
from hooklab.layers import layers


@pytest.fixture(autouse=True)
def one_thread():
    """Small nets gain nothing from several, and lose much where other programs run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def net():
    return Reused().eval().requires_grad_(False)


@pytest.fixture
def image():
    return torch.rand(1, 3, 14, 18, generator=torch.Generator().manual_seed(2))


# -- names --------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Children whose names look like ours."""

    def __init__(self):
        super().__init__()
        self.input, self.stem = nn.Identity(), nn.Sequential(nn.Identity())
        self.stem.add_module("input", nn.Identity())


@pytest.mark.parametrize(
    ("name", "path", "call", "is_input"),
    [
        ("stem", "stem", None, False),
        ("stem.0", "stem.0", None, False),
        ("stem:2", "stem", 2, False),
        ("stem.0.input", "stem.0", None, True),
        ("stem:12.input", "stem", 12, True),
        ("input", "input", None, False),
        ("input.input", "input", None, True),
        ("stem.input", "stem.input", None, False),  # a module of that name comes first
        ("stem:1.input", "stem", 1, True),
        ("", "", None, False),  # the model itself, as in named_modules()
        (".input", "", None, True),
    ],
)
def test_names(name, path, call, is_input):
    model = Odd()
    place = locate(model, name)
    assert (place.path, place.call, place.input) == (path, call, is_input)
    assert place.module is model.get_submodule(path)


@pytest.mark.parametrize("name", ["conv9", "conv1:0", "conv1:-1", "conv1:x", "conv1:", "conv1.weight", 3, None])
def test_unknown_names_are_quoted_with_the_three_nearest(net, name):
    with pytest.raises(ValueError, match=re.escape(f"layer {name!r}: this model has no such module; the nearest are")):
        record(net, [name])
    with pytest.raises(ValueError, match="conv"):
        record(net, ["convolution"])


# -- what is recorded ---------------------------------------------------------------------------------------------


def test_activations_and_gradients_are_those_of_plain_hooks(net, image):
    """Oracle: PyTorch's own hooks on a copy of the net whose parts are called once each."""
    names = ["conv1", "pool:1.input", "pool:1", "conv2", "relu:1", "conv3", "relu:2.input", "relu:2", "pool:2", "fc"]
    x = image.clone().requires_grad_()
    steps = {"conv1": net.conv1(x)}
    steps["pool:1.input"] = F.relu(steps["conv1"])
    steps["pool:1"] = net.pool(steps["pool:1.input"])
    steps["conv2"] = net.conv2(steps["pool:1"])
    steps["relu:1"] = net.relu(steps["conv2"])
    steps["conv3"] = net.conv3(steps["relu:1"])
    steps["relu:2.input"] = steps["conv3"] + steps["relu:1"]
    steps["relu:2"] = net.relu(steps["relu:2.input"])
    steps["pool:2"] = net.pool(steps["relu:2"])
    steps["fc"] = net.fc(steps["pool:2"].mean((2, 3)))
    wanted = torch.autograd.grad(steps["fc"][0, 3], list(steps.values()))

    with record(net, names) as seen:
        logits = net(image)
    found = torch.autograd.grad(logits[0, 3], [seen[name] for name in names])
    assert list(seen) == names and len(seen) == len(names)
    for name, gradient, expected in zip(names, found, wanted, strict=True):
        assert torch.equal(seen[name], steps[name]), name
        torch.testing.assert_close(gradient, expected, msg=name)


def test_the_first_layer_is_a_leaf_and_nothing_before_it_is_differentiated(net, image):
    with record(net, "conv2") as seen:
        logits = net(image)
    assert seen["conv2"].is_leaf and seen["conv2"].requires_grad and logits.requires_grad
    with record(net, "conv2", gradients=False) as seen:
        logits = net(image)
    assert not seen["conv2"].requires_grad and not logits.requires_grad


def test_a_net_that_is_being_trained_keeps_its_graph(image):
    net = Reused().train()
    with record(net, "conv2") as seen:
        net(image).sum().backward()
    assert not seen["conv2"].is_leaf
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_E6_gradients_under_no_grad_and_inference_mode(net, image, mode):
    with record(net, "conv2") as seen:
        expected = torch.autograd.grad(net(image)[0, 1], seen["conv2"])[0]
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        with record(net, "conv2") as seen:
            (found,) = torch.autograd.grad(net(image)[0, 1], seen["conv2"])
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
    assert torch.equal(found, expected)


def test_E1_in_place_operations_do_not_reach_what_was_recorded(image):
    """The same weights with and without in-place operations: every activation and gradient to the bit."""
    names = [row.name for row in layers(Reused(), image)]
    kept = {}
    for inplace in (False, True):
        net = Reused(inplace).eval().requires_grad_(False)
        with record(net, names) as seen:
            logits = net(image)
        kept[inplace] = [*seen.values(), *torch.autograd.grad(logits[0, 2], list(seen.values()))]
    assert names[1] == "conv1" and len(kept[True]) == 2 * len(names)
    for index, (plain, in_place) in enumerate(zip(kept[False], kept[True], strict=True)):
        assert torch.equal(plain, in_place), (names * 2)[index]


def test_E1_torchvision_with_inplace_switched_off():
    net, image = torchvision_net("resnet18"), torch.rand(1, 3, 64, 64)
    names = [row.name for row in layers(net, image) if row.spatial]
    kept = []
    for inplace in (True, False):
        for module in net.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = inplace
        with record(net, names) as seen:
            logits = net(image)
        kept.append([*seen.values(), *torch.autograd.grad(logits[0, 2], list(seen.values()))])
    assert len(names) > 60 and all(map(torch.equal, *kept))


def test_E3_a_reused_module_has_an_activation_and_a_gradient_for_each_call(net, image):
    """Each call alone gives the same pair as all calls together; the shapes tell the calls apart."""
    names = ["pool:1", "pool:2", "relu:1", "relu:2"]
    with record(net, names) as together:
        logits = net(image)
    gradients = torch.autograd.grad(logits[0, 0], list(together.values()))
    for name, gradient in zip(names, gradients, strict=True):
        with record(net, name) as alone:
            (own,) = torch.autograd.grad(net(image)[0, 0], alone[name])
        assert torch.equal(alone[name], together[name]) and torch.equal(own, gradient)
        assert own.shape == alone[name].shape
    assert together["pool:1"].shape == (1, 4, 7, 9) and together["pool:2"].shape == (1, 6, 2, 3)


def test_E3_a_name_without_a_call_is_refused_where_there_are_several(net, image):
    several = r"layer 'pool': this module was called 2 times; name one call: pool:1, pool:2"
    with pytest.raises(ValueError, match=several), record(net, "pool"):
        net(image)
    with pytest.raises(ValueError, match=r"call: pool:1\.input, pool:2\.input"), record(net, ["pool.input"]):
        net(image)
    with pytest.raises(ValueError, match="layer 'pool:3': pool was called 2 times"), record(net, "pool:3"):
        net(image)
    with pytest.raises(ValueError, match="layer 'conv1': conv1 was not called in this block"), record(net, "conv1"):
        pass


def test_two_passes_in_one_block_are_two_calls(net, image):
    with record(net, ["conv1:1", "conv1:2"]) as seen:
        net(image), net(image * 2)
    with record(net, "conv1") as second:
        net(image * 2)
    assert torch.equal(seen["conv1:2"], second["conv1"]) and not torch.equal(seen["conv1:1"], second["conv1"])


def test_only_what_was_asked_for_can_be_read(net, image):
    with record(net, "conv1") as seen:
        net(image)
    with pytest.raises(KeyError, match="recorded are conv1"):
        seen["conv2"]


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda a, b: (a, b), lambda out: out[0] + out[1]),
        (lambda a, b: [a, (b,)], lambda out: out[0] + out[1][0]),
        (lambda a, b: {"a": a, "b": [b, None, 3]}, lambda out: out["a"] + out["b"][0]),
        (Pair, lambda out: out.first + out.second),
        (lambda a, b: (None, a, b), lambda out: out[1] + out[2]),
    ],
    ids=["tuple", "nested list", "dict", "named tuple", "none first"],
)
def test_E12_structures_keep_their_type_and_their_first_tensor_is_recorded(wrap, unwrap):
    class Inner(nn.Module):
        def forward(self, x, *, scale):
            return wrap(x * scale, x + 1)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return unwrap(self.inner(x, scale=3))

    x, net = torch.tensor([[1.0, 2.0]]), Outer()
    with record(net, ["inner", "inner.input"], [Edit("inner", action="scale", value=10)]) as seen:
        out = net(x)
    assert seen["inner"].tolist() == [[30, 60]] and seen["inner.input"].tolist() == [[1, 2]]
    assert out.tolist() == [[32, 63]]  # 30 + (1 + 1), 60 + (2 + 1)
    (gradient,) = torch.autograd.grad(out.sum(), seen["inner"])
    assert gradient.tolist() == [[1, 1]]


def test_whole_numbers_are_recorded_without_a_gradient():
    net = nn.Sequential(nn.Embedding(5, 3))
    with record(net, ["0", "0.input"]) as seen:
        net(torch.tensor([[1, 4]]))
    assert seen["0.input"].tolist() == [[1, 4]] and not seen["0.input"].requires_grad
    assert seen["0"].shape == (1, 2, 3) and seen["0"].requires_grad


# -- E2: every kind of hook on every module -----------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_E2_four_kinds_of_hook_on_every_module(name):
    """Nothing raises, nothing changes, all fire, and what the backward hooks saw are the true gradients."""
    net, image = torchvision_net(name), torch.rand(1, 3, 32, 32)
    x = image.clone().requires_grad_()
    plain = net(x)
    (expected,) = torch.autograd.grad(plain[0, 1], x)
    paths = [path for path, _ in net.named_modules() if path]
    types = [type(module) for module in net.modules()]
    with record(net, (), [Edit(path, hook) for path in paths for hook in HOOKS]) as seen:
        x = image.clone().requires_grad_()
        logits = net(x)
        (found,) = torch.autograd.grad(logits[0, 1], x)
    assert torch.equal(logits, plain) and torch.equal(found, expected)
    assert count(net) == 0 and [type(module) for module in net.modules()] == types
    events = seen.events
    rows = [row for row in layers(net, image) if not row.name.endswith(".input")]
    assert {event.layer for event in events} == {row.name for row in rows}
    by_kind = {kind: [event.layer for event in events if event.kind == kind] for kind in HOOKS}
    assert all(sorted(layers_) == sorted(row.name for row in rows) for layers_ in by_kind.values())
    assert by_kind["forward"] == [row.name for row in rows]  # in execution order
    assert not any(event.changed for event in events)
    unseen = {type(net.get_submodule(event.layer.split(":")[0])).__name__ for event in events if event.note}
    assert unseen == ({"_DenseLayer"} if name == "densenet121" else set())  # its argument is a list of tensors


def test_E2_backward_hooks_show_the_gradients_that_autograd_computes():
    """Oracle: autograd.grad at what was recorded, around every module of a net with in-place operations."""
    net, image = torchvision_net("resnet18"), torch.rand(1, 3, 64, 64)
    rows = [row.name for row in layers(net, image) if not row.name.endswith(".input")]
    with record(net, [name for row in rows for name in (row, f"{row}.input")]) as seen:
        logits = net(image)
    names = list(seen)
    gradients = dict(zip(names, torch.autograd.grad(logits[0, 1], list(seen.values())), strict=True))
    with record(net, (), [Edit(row, hook) for row in rows for hook in ("tensor", "backward")]) as seen:
        x = image.clone().requires_grad_()
        torch.autograd.grad(net(x)[0, 1], x)
    for event in seen.events:
        expected = gradients[event.layer if event.kind == "tensor" else f"{event.layer}.input"]
        found = event.minimum, event.mean, event.maximum
        assert found == (expected.min().item(), expected.mean().item(), expected.max().item()), event
    assert len(seen.events) == 2 * len(rows)


# -- events -------------------------------------------------------------------------------------------------------


def test_events_are_in_the_order_in_which_things_happened(net, image):
    with record(net, (), [Edit(name, hook) for name in ("conv1", "pool") for hook in HOOKS]) as seen:
        x = image.clone().requires_grad_()
        torch.autograd.grad(net(x)[0, 1], x)
    assert [(event.kind, event.layer) for event in seen.events] == [
        ("forward_pre", "conv1"),
        ("forward", "conv1"),
        ("forward_pre", "pool:1"),
        ("forward", "pool:1"),
        ("forward_pre", "pool:2"),
        ("forward", "pool:2"),
        ("tensor", "pool:2"),
        ("backward", "pool:2"),
        ("tensor", "pool:1"),
        ("backward", "pool:1"),
        ("tensor", "conv1"),
        ("backward", "conv1"),
    ]
    first, pooled = seen.events[1], seen.events[9]
    assert (first.inputs, first.outputs) == (((1, 3, 14, 18),), ((1, 4, 14, 18),))
    assert (first.minimum, first.mean, first.maximum) == tuple(
        getattr(net.conv1(image), name)().item() for name in ("min", "mean", "max")
    )
    assert (pooled.inputs, pooled.outputs, pooled.call) == (((1, 4, 14, 18),), ((1, 4, 7, 9),), 1)
    moments = [event.milliseconds for event in seen.events]
    assert moments == sorted(moments) and moments[0] >= 0


def test_one_call_of_a_reused_module_can_be_hooked_alone(net, image):
    with record(net, (), [Edit("pool:1", hook) for hook in HOOKS]) as seen:
        x = image.clone().requires_grad_()
        torch.autograd.grad(net(x)[0, 1], x)
    assert [(event.kind, event.layer) for event in seen.events] == [
        (hook, "pool:1") for hook in (*HOOKS[:2], "tensor", "backward")
    ]


def test_E16_the_none_in_grad_input_is_explained(net, image):
    edit = [Edit("conv1", "backward"), Edit("conv2", "backward")]
    with record(net, "conv1", edit) as seen:
        net(image)[0, 1].backward()
    second, first = seen.events
    assert first.inputs == (None,) and first.outputs == ((1, 4, 14, 18),)
    assert first.note == "none of conv1's own arguments is a tensor that requires a gradient: no grad_input"
    assert second.inputs == ((1, 4, 7, 9),) and second.note == ""
    with record(net, "conv1", edit) as seen:
        net(image.clone().requires_grad_())[0, 1].backward()
    assert seen.events[1].inputs == ((1, 3, 14, 18),) and seen.events[1].note == ""


class Aliased(nn.Module):
    """A module returns a view, and its base is changed afterwards."""

    def __init__(self):
        super().__init__()
        self.flatten, self.fc = nn.Flatten(), nn.Linear(4, 2)

    def forward(self, x):
        base = x * 1
        view = self.flatten(base)
        base.mul_(2)
        return self.fc(view)


def test_E14_a_tensor_hook_on_a_view_that_is_changed_through_its_base():
    """The hook sits on a clone: it fires once, and with the gradient of what the module returned."""
    net = Aliased().requires_grad_(False)
    x = torch.rand(1, 2, 2, requires_grad=True)
    for _ in range(20):
        with record(net, "flatten", [Edit("flatten", "tensor", "scale", value=3)]) as seen:
            logits = net(x)
            (found,) = torch.autograd.grad(logits[0, 1], x)
        assert torch.equal(seen["flatten"], x.detach().flatten(1))
        torch.testing.assert_close(found.flatten(), 3 * net.fc.weight[1])
        assert len(seen.events) == 1 and seen.live == 0


def test_E15_a_tensor_hook_shows_the_gradient_before_an_in_place_operation():
    """y = 2x, squared in place: a hook put on before sees the gradient at 2x; retain_grad follows to the new value."""

    class Squared(nn.Module):
        def __init__(self):
            super().__init__()
            self.twice = nn.Linear(1, 1, bias=False)
            self.twice.weight.data.fill_(2.0)

        def forward(self, x):
            y = self.twice(x)
            y.pow_(2)
            return y * 5

    net, x = Squared().requires_grad_(False), torch.tensor([[3.0]], requires_grad=True)
    with record(net, "twice", [Edit("twice", "tensor")]) as seen:
        net(x).sum().backward()
    assert seen.events[0].mean == 5 * 2 * 6 and x.grad.item() == 120
    assert seen["twice"].item() == 6

    y = net.twice(torch.tensor([[3.0]], requires_grad=True))
    at_hook = []
    y.register_hook(at_hook.append)
    y.retain_grad()
    y.pow_(2)
    (y * 5).sum().backward()
    assert at_hook[0].item() == 60 and y.grad.item() == 5


# -- editing ------------------------------------------------------------------------------------------------------


def test_edits_compose_and_what_is_recorded_is_what_was_handed_on(net, image):
    edits = [
        {"layer": "conv2", "action": "scale", "value": 2},
        {"layer": "conv2", "action": "zero", "channels": [1]},
        {"layer": "conv2", "action": "clamp", "value": [-0.5, 0.5]},
        {"layer": "conv3", "hook": "forward_pre", "action": "zero", "channels": [0]},
        {"layer": "pool:2.input", "action": "keep", "channels": [0, 3]},
    ]
    with record(net, ["conv2", "relu:1", "conv3.input", "pool:2.input"], edits) as seen:
        net(image)
    conv2 = net.conv2(net.pool(F.relu(net.conv1(image)))) * 2
    conv2[:, 1] = 0
    assert torch.equal(seen["conv2"], conv2.clamp(-0.5, 0.5))
    assert torch.equal(seen["relu:1"], seen["conv2"].relu())
    assert (seen["conv3.input"][:, 0] == 0).all() and torch.equal(seen["conv3.input"][:, 1:], seen["relu:1"][:, 1:])
    assert (seen["pool:2.input"][:, [1, 2, 4, 5]] == 0).all() and seen["pool:2.input"][:, [0, 3]].any()
    assert [event.changed for event in seen.events] == [True] * 5
    assert [event.kind for event in seen.events] == ["forward"] * 3 + ["forward_pre"] * 2


@pytest.mark.parametrize("hook", ["tensor", "backward"])
@pytest.mark.parametrize(
    ("action", "value", "factor"), [("scale", 0.5, 0.5), ("scale", 2, 2), ("zero", None, 0), ("negate", None, -1)]
)
def test_gradient_edits_change_every_gradient_before_them_and_no_value(net, image, hook, action, value, factor):
    """Everything before conv2 is linear in the gradient that passes there."""
    x = image.clone().requires_grad_()
    plain = net(x)
    (expected,) = torch.autograd.grad(plain[0, 1], x)
    with record(net, ["conv1", "conv2"], [Edit("conv2", hook, action, value=value)]) as seen:
        logits = net(x)
        at_x, at_conv1, at_conv2 = torch.autograd.grad(logits[0, 1], [x, *seen.values()])
    with record(net, ["conv1", "conv2"]) as untouched:
        plain1, plain2 = torch.autograd.grad(net(x)[0, 1], list(untouched.values()))
    assert torch.equal(logits, plain)
    torch.testing.assert_close(at_x, expected * factor)
    torch.testing.assert_close(at_conv1, plain1 * factor)
    torch.testing.assert_close(at_conv2, plain2 * (factor if hook == "tensor" else 1))


@pytest.mark.parametrize("hook", HOOKS)
def test_a_channel_that_is_not_there_is_named_with_the_range(net, image, hook):
    channels = 4 if hook in ("forward_pre", "backward") else 6
    message = rf"channel 6: conv2 has {channels} channels \(0 to {channels - 1}\)"
    with pytest.raises(ValueError, match=message), record(net, (), [Edit("conv2", hook, "zero", [6])]):
        net(image.clone().requires_grad_())[0, 1].backward()
    assert count(net) == 0


# -- E7: nothing is left behind -----------------------------------------------------------------------------------


class Failing(Reused):
    def forward(self, x):
        super().forward(x)
        raise RuntimeError("the model failed")


def raise_in_a_hook(*_):
    raise RuntimeError("a hook failed")


@pytest.mark.parametrize(
    "case", ["success", "unknown layer", "unknown edit", "error in the model", "error in a hook", "error in the block"]
)
def test_E7_hooks_are_removed_and_the_users_own_stay(image, case):
    net = (Failing() if case == "error in the model" else Reused()).eval()
    fired = []
    net.conv1.register_forward_hook(lambda *_: fired.append("forward"))
    net.conv2.register_forward_pre_hook(lambda *_: fired.append("pre"))
    net.conv2.register_full_backward_hook(lambda *_: fired.append("backward"))
    if case == "error in a hook":
        net.fc.register_forward_hook(raise_in_a_hook)
    before, types = count(net), [type(module) for module in net.modules()]
    edits = [Edit("nothing" if case == "unknown edit" else path, hook) for path in ("conv1", "pool") for hook in HOOKS]
    seen = None
    try:
        with record(net, ["conv1", "x" if case == "unknown layer" else "pool:1"], edits) as seen:
            assert count(net) > before
            net(image)[0, 1].backward()
            assert count(net) + 3 == before + seen.live  # tensor hooks, conv1's and pool's two, are not on modules
            if case == "error in the block":
                raise KeyError("in the block")
    except (ValueError, RuntimeError, KeyError) as error:
        expected = {"unknown layer": "layer 'x'", "unknown edit": "'nothing'", "error in the block": "in the block"}
        assert expected.get(case, "failed") in str(error)
    else:
        assert case == "success"
    assert count(net) == before and [type(module) for module in net.modules()] == types
    assert seen is None or seen.live == 0
    fired.clear()
    if case not in ("error in the model", "error in a hook"):
        net(image)[0, 1].backward()
        assert fired == ["forward", "pre", "backward"]


def test_E7_nested_blocks(net, image):
    with record(net, "conv1", [Edit("conv2", "backward")]) as outer:
        live = count(net)
        with record(net, "conv2", [Edit("conv2", "backward", "scale", value=2)]) as inner:
            net(image.clone().requires_grad_())[0, 1].backward()
        assert count(net) == live
    assert count(net) == 0 and type(net.conv2) is nn.Conv2d
    assert inner["conv2"].shape == (1, 6, 5, 7) and outer["conv1"].shape == (1, 4, 14, 18)
    assert [len(seen.events) for seen in (outer, inner)] == [1, 1]
    assert outer.events[0].call == inner.events[0].call == 1


def test_a_record_is_used_once_at_a_time_and_can_be_used_again(net, image):
    seen = record(net, "conv1")
    with seen, pytest.raises(RuntimeError, match="in use already"):
        net(image)
        with seen:
            pass
    with seen:
        net(image * 0)
    assert count(net) == 0 and torch.equal(seen["conv1"], net.conv1(image * 0))


def test_an_error_while_hooks_are_registered_leaves_none(net, monkeypatch):
    monkeypatch.setattr(nn.Conv2d, "register_full_backward_hook", raise_in_a_hook)
    with pytest.raises(RuntimeError, match="a hook failed"), record(net, "conv1", [Edit("conv2", "backward")]):
        pass
    assert count(net) == 0 and type(net.conv2) is nn.Conv2d
    with pytest.raises(TypeError):
        hooks.record(net, "conv1", colour="red")
