"""The classic small programs about hooks, as plain functions whose numbers one can change.

Each function is what the page runs and, word for word, the code that it shows: `script` adds imports and a call. They
use PyTorch alone, keep nothing and print nothing: what happened is in the dict that they return.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable

import torch
from torch import nn


def callbacks(x=3.0, calls=1, lambda_returns="nothing"):
    """One forward hook written in four ways. A hook is a callback: you hand a function over, PyTorch calls it later."""
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, 2.0)
    nn.init.constant_(layer.bias, 1.0)  # layer(x) is 2 x + 1
    log = []

    def function(module, inputs, output):
        log.append(("function", output.item()))

    handles = [layer.register_forward_hook(function)]  # the function itself: no brackets after its name

    if lambda_returns == "nothing":  # append returns None
        handle = layer.register_forward_hook(lambda module, inputs, output: log.append(("lambda", output.item())))
    else:  # anything but None replaces the output
        handle = layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    handles.append(handle)

    @layer.register_forward_hook  # a decorator: the name below now holds the handle, not the function
    def decorated(module, inputs, output):
        log.append(("decorator", output.item()))

    handles.append(decorated)

    def keep(name):  # a closure: the inner function remembers the `name` it was made with
        def hook(module, inputs, output):
            log.append((name, output.item()))

        return hook

    handles.append(layer.register_forward_hook(keep("closure")))

    log.append(("registered", len(handles)))
    for _ in range(calls):
        log.append(("call", x))
        log.append(("returned", layer(torch.tensor([x])).item()))
    for handle in handles:
        handle.remove()
    return {"log": log}


def tensor_hook(w=1.0, x=2.0, at="a", change="watch"):
    """y = (w + x)(w + 1): a hook on one tensor reads its gradient, and may change it."""
    w = torch.tensor(w, requires_grad=True)
    x = torch.tensor(x, requires_grad=True)
    a = w + x
    b = w + 1
    y = a * b
    tensors = {"w": w, "x": x, "a": a, "b": b, "y": y}
    caught, gradients = [], {}

    def hook(gradient):
        caught.append(gradient.item())
        if change in ("double in place", "both"):
            gradient *= 2  # it works, but PyTorch asks hooks not to: others may hold the same gradient
        if change in ("return triple", "both"):
            return 3 * gradient
        return None

    handle = tensors[at].register_hook(hook)
    for name, tensor in tensors.items():  # watch all five; hooks on one tensor run in the order of registration
        tensor.register_hook(lambda gradient, name=name: gradients.update({name: gradient.item()}))
    y.backward()
    handle.remove()
    return {
        "values": {name: tensor.item() for name, tensor in tensors.items()},
        "caught": caught[0],
        "gradients": gradients,
        "kept in .grad": {"w": w.grad.item(), "x": x.grad.item()},  # a and b are no leaves: their gradients are gone
    }


def spilled_gradient(change="in place"):
    """y = w + x hands ONE gradient tensor to both: a hook on w that doubles it in place doubles it for x too."""
    w = torch.tensor(1.0, requires_grad=True)
    x = torch.tensor(2.0, requires_grad=True)

    def hook(gradient):
        return gradient.mul_(2) if change == "in place" else 2 * gradient

    w.register_hook(hook)
    (w + x).backward()
    return {"w": w.grad.item(), "x": x.grad.item()}


def chain(x=2.0, factor=0.5):
    """z = (x ** 2) ** 3 with a hook on y = x ** 2 that scales the gradient on its way back to x."""
    x = torch.tensor(x, requires_grad=True)
    y = x**2
    z = y**3
    seen = {}

    def hook(gradient):
        seen["arrives at y"] = gradient.item()
        seen["leaves y"] = (factor * gradient).item()
        return factor * gradient

    y.register_hook(hook)
    z.backward()
    return {"values": {"x": x.item(), "y": y.item(), "z": z.item()}, **seen, "x.grad": x.grad.item()}


def convolution(image, first, second, hook_returns="nothing"):
    """A forward hook on a convolution catches both of its output maps, and may replace them."""
    conv = nn.Conv2d(1, 2, 3, padding=1, bias=False)
    conv.weight.data = torch.tensor([[first], [second]], dtype=torch.float32)  # (2, 1, 3, 3)
    caught = []

    def hook(module, inputs, output):
        caught.append(output[0].tolist())
        if hook_returns == "only what is positive":
            return output.relu()
        if hook_returns == "the second map silenced":
            return output * torch.tensor([1.0, 0.0]).reshape(2, 1, 1)
        return None  # nothing: the output goes on as it is

    handle = conv.register_forward_hook(hook)
    output = conv(torch.tensor([[image]], dtype=torch.float32))  # (1, 1, 4, 4) -> (1, 2, 4, 4)
    handle.remove()
    return {"caught": caught[0], "passed on": output[0].tolist()}


def order(x=1.0, factor=3.0, registered="forwards"):
    """The four kinds of hook on one layer: each writes down when it was called, whatever order it was registered in."""

    class Layer(nn.Module):
        def forward(self, value):
            log.append(("forward", value.item(), (2 * value + 1).item()))
            return 2 * value + 1

    layer, log = Layer(), []

    def pre_hook(module, inputs):
        log.append(("forward pre-hook", inputs[0].item(), (factor * inputs[0]).item()))
        return (factor * inputs[0],)  # a tuple: the new arguments of forward

    def forward_hook(module, inputs, output):
        log.append(("forward hook", inputs[0].item(), output.item()))

    def backward_hook(module, grad_input, grad_output):
        log.append(("full backward hook", grad_output[0].item(), grad_input[0].item()))

    registrations = [
        lambda: layer.register_forward_pre_hook(pre_hook),
        lambda: layer.register_forward_hook(forward_hook),
        lambda: layer.register_full_backward_hook(backward_hook),
    ]
    handles = [register() for register in (registrations if registered == "forwards" else registrations[::-1])]
    x = torch.tensor(x, requires_grad=True)
    y = layer(x)
    y.register_hook(lambda gradient: log.append(("tensor hook", gradient.item(), gradient.item())))
    z = y**2
    log.append(("backward", z.item(), 1.0))
    z.backward()
    for handle in handles:
        handle.remove()
    return {"log": log, "x.grad": x.grad.item()}


def backward_hook(batch=4, inputs=3, outputs=2, input_requires_grad="no", x=2.0):
    """What grad_input and grad_output are, and what the old `register_backward_hook` gets wrong."""
    linear, seen = nn.Linear(inputs, outputs), {}

    def shapes(module, grad_input, grad_output):
        seen["grad_output"] = tuple(grad_output[0].shape)  # of the output, (batch, outputs)
        seen["grad_input"] = None if grad_input[0] is None else tuple(grad_input[0].shape)  # of the input

    handle = linear.register_full_backward_hook(shapes)
    linear(torch.ones(batch, inputs, requires_grad=input_requires_grad == "yes")).sum().backward()
    handle.remove()

    class Square(nn.Module):  # two operations: times 3, then squared
        def forward(self, value):
            return (3 * value) ** 2

    for kind in ("register_backward_hook", "register_full_backward_hook"):
        module = Square()
        register = getattr(module, kind)
        register(lambda module, grad_input, grad_output, kind=kind: seen.update({kind: grad_input[0].item()}))
        value = torch.tensor(x, requires_grad=True)
        module(value).backward()
    return {**seen, "x.grad": value.grad.item()}


def in_place(x=1.0, factor=3.0, value=-2.0):
    """What a hook sees when its tensor is changed in place afterwards."""
    x = torch.tensor(x, requires_grad=True)
    a = 2 * x
    seen = {"a before": a.item()}
    a.register_hook(lambda gradient: seen.update({"hook registered before": gradient.item()}))
    a.retain_grad()
    a.mul_(factor)  # the same name and memory, another value
    seen["a after"] = a.item()
    a.register_hook(lambda gradient: seen.update({"hook registered after": gradient.item()}))
    (a**2).backward()
    seen["a.grad from retain_grad"] = a.grad.item()

    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    kept = []

    def hook(module, inputs, output):
        kept.extend([output, output.clone()])

    handle = model[0].register_forward_hook(hook)
    model(torch.tensor([value]))
    handle.remove()
    return {**seen, "kept output": kept[0].item(), "kept clone": kept[1].item()}


def never_removed(runs=4, factor=2.0, remove="never"):
    """A hook that multiplies a layer's output, registered anew before each run."""
    layer = nn.Identity()
    calls, rows = [], []

    def hook(module, inputs, output):
        calls.append(output.item())
        return factor * output

    for run in range(1, runs + 1):
        handle = layer.register_forward_hook(hook)
        calls.clear()
        output = layer(torch.ones(1)).item()
        if remove == "after each run":
            handle.remove()
        rows.append({"run": run, "calls": len(calls), "output": output, "left": len(layer._forward_hooks)})
    return {"rows": rows}


def grad_cam(model, module, image, target, call=1, entering=False):
    """Grad-CAM (Selvaraju et al., 2017) from hooks alone: image (1, 3, H, W) -> its raw map (h, w) at one module."""
    kept, calls = {}, []

    def hook(module, inputs, output=None):  # as a pre-hook it is given no output
        calls.append(module)
        if len(calls) == call:
            values = inputs[0] if entering else output
            kept["values"] = values.detach().clone()  # a clone: no later in-place operation can overwrite it
            values.register_hook(lambda gradient: kept.update(gradient=gradient))

    handle = (module.register_forward_pre_hook if entering else module.register_forward_hook)(hook)
    logits = model(image.clone().requires_grad_())  # so that a gradient flows, even where all weights are frozen
    handle.remove()
    logits[0, target].backward()
    weights = kept["gradient"].mean((2, 3), keepdim=True)  # (1, C, 1, 1)
    return (weights * kept["values"]).sum(1)[0]


def layer_features(model, names, images):
    """{"pool:2": (N, C)}: the mean over the picture of what each call of the named modules returns."""
    kept, calls = {"pixels": images.mean((2, 3))}, Counter()

    def keep(name):
        def hook(module, inputs, output):
            calls[name] += 1
            kept[f"{name}:{calls[name]}"] = output.flatten(2).mean(2) if output.ndim > 2 else output

        return hook

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return {key.removesuffix(":1") if calls[key[:-2]] == 1 else key: value for key, value in kept.items()}


def nearest_centroid(features, labels, new_features, new_labels):
    """Learn one centre for each class from `features` (N, C); the share of new ones that lie nearest to their own."""
    mean, spread = features.mean(0), features.std(0) + 1e-6
    features, new_features = (features - mean) / spread, (new_features - mean) / spread
    classes = labels.unique()
    centres = torch.stack([features[labels == k].mean(0) for k in classes])  # (classes, C)
    nearest = torch.cdist(new_features, centres).argmin(1)
    return (classes[nearest] == new_labels).float().mean().item()


def script(program: Callable, **arguments) -> str:
    """A program of this module as a script that runs by itself: its very source, and a call with these arguments."""
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return (
        f"import torch\nfrom torch import nn\n\n\n{inspect.getsource(program)}\n\n"
        f"result = {program.__name__}({given})\nfor name, value in result.items():\n    print(name, value)\n"
    )
