"""The raw maps beside those of pytorch-grad-cam and torchcam, on the same network, image, layer and class.

Where a definition differs, the test says how, and shows that the difference explains all of the gap.
"""

import copy
import logging

import numpy as np
import pytest
import pytorch_grad_cam
import torch
import torch.nn.functional as F
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import nn

from bench.methods import PYTORCH_GRAD_CAM, TORCHCAM
from hooklab import cam
from hooklab.cam import METHODS

TARGET, IMAGE_SIZE = 3, (12, 16)


class Net(nn.Module):
    """Two convolutions, each with ReLU; `small` is a quarter of the image, `full` keeps its size."""

    def __init__(self):
        super().__init__()
        self.full = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
        self.pool = nn.MaxPool2d(4)
        self.small = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU())
        self.before_relu = nn.Conv2d(8, 9, 3, padding=1)
        self.head = nn.Linear(9 * 3 * 4, 5)

    def forward(self, images):
        maps = self.before_relu(self.small(self.pool(self.full(images))))
        return self.head(F.leaky_relu(maps, 0.2).flatten(1))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = Net().eval()
    net.head.weight.data *= 20
    return net


@pytest.fixture(scope="module")
def steep(net):
    """The same net with gradients far above the epsilons in the peers' denominators."""
    steep = copy.deepcopy(net)
    steep.head.weight.data *= 1000
    return steep


@pytest.fixture(scope="module")
def image():
    return torch.randn(1, 3, *IMAGE_SIZE, generator=torch.Generator().manual_seed(1))


def from_layer(net, layer, activations):
    """Logits of a batch whose output at `layer` is replaced."""
    stages = [net.full, net.pool, net.small, net.before_relu]
    for stage in stages[stages.index(layer) + 1 :]:
        activations = stage(activations)
    return net.head(F.leaky_relu(activations, 0.2).flatten(1))


def parts(net, image, layer):
    """Activations and gradients at a layer, without hooks."""
    x = image
    for stage in (net.full, net.pool, net.small, net.before_relu):
        x = stage(x)
        if stage is layer:
            break
    activations = x.detach().requires_grad_()
    (gradients,) = torch.autograd.grad(from_layer(net, layer, activations)[0, TARGET], activations)
    return activations.detach()[0], gradients[0]


def logits_of_masked(net, image, enlarge=cam.soft_masks):
    return lambda channels: net(image * enlarge(channels, IMAGE_SIZE))[:, TARGET]


@torch.no_grad()
def ours(net, image, layer, name, enlarge=cam.soft_masks):
    with torch.enable_grad():
        activations, gradients = parts(net, image, layer)
    method = METHODS[name]
    return method.function(
        activations,
        *{
            "gradients": [gradients],
            "activations": [],
            "masked_logits": [logits_of_masked(net, image, enlarge)],
            "ablated_logits": [lambda batch: from_layer(net, layer, batch)[:, TARGET]],
        }[method.needs],
    )


def by_pytorch_grad_cam(net, image, layer, name):
    """Its raw signed map: what it computes before its own ReLU, min-max and resizing."""
    raw = []
    with PYTORCH_GRAD_CAM[name](model=net, target_layers=[layer]) as peer:
        original = peer.get_cam_image
        peer.get_cam_image = lambda *arguments: raw.append(original(*arguments)) or raw[-1]
        peer(image, [ClassifierOutputTarget(TARGET)])
    return torch.from_numpy(np.float32(raw[0][0]))


def by_torchcam(net, image, layer, name):
    """Its map before ReLU and normalisation."""
    with TORCHCAM[name](net, target_layer=layer, input_shape=image.shape[1:]) as peer:
        peer._relu = False
        return peer(TARGET, net(image), normalized=False)[0][0].detach()


def assert_same(peer, mine):
    torch.testing.assert_close(peer, mine, rtol=1e-5, atol=1e-5 * mine.abs().max().item())


def assert_differs(peer, mine):
    assert (peer - mine).abs().max() > 1e-3 * mine.abs().max()


@pytest.mark.parametrize("layer", ["full", "small"])
@pytest.mark.parametrize("name", ["gradcam", "hirescam", "xgradcam", "layercam", "ablationcam"])
def test_pytorch_grad_cam_agrees(net, image, layer, name):
    layer = getattr(net, layer)
    assert_same(by_pytorch_grad_cam(net, image, layer, name), ours(net, image, layer, name))


@pytest.mark.parametrize("layer", ["full", "small", "before_relu"])
@pytest.mark.parametrize("name", ["gradcam", "xgradcam", "layercam"])
def test_torchcam_agrees(net, image, layer, name):
    layer = getattr(net, layer)
    assert_same(by_torchcam(net, image, layer, name), ours(net, image, layer, name))


@pytest.mark.parametrize("layer", ["full", "small"])
def test_gradcam_plus_plus_of_pytorch_grad_cam_agrees_where_gradients_are_large(steep, image, layer):
    layer = getattr(steep, layer)
    assert_same(by_pytorch_grad_cam(steep, image, layer, "gradcam++"), ours(steep, image, layer, "gradcam++"))


@pytest.mark.parametrize("peer", [by_pytorch_grad_cam, by_torchcam])
def test_scorecam_agrees_where_nothing_has_to_be_enlarged(net, image, peer):
    assert_same(peer(net, image, net.full, "scorecam"), ours(net, image, net.full, "scorecam"))


def corners_aligned(channels, size):
    masks = F.interpolate(channels[:, None], size, mode="bilinear", align_corners=True)
    low, high = masks.amin((-2, -1), keepdim=True), masks.amax((-2, -1), keepdim=True)
    return (masks - low) / (high - low + 1e-8)


def stretched_before(channels, size):
    low, high = channels.amin((-2, -1), keepdim=True), channels.amax((-2, -1), keepdim=True)
    masks = (channels - low) / (high - low + 1e-8)
    return F.interpolate(masks[:, None], size, mode="bilinear", align_corners=False)


@pytest.mark.parametrize(("peer", "enlarge"), [(by_pytorch_grad_cam, corners_aligned), (by_torchcam, stretched_before)])
def test_scorecam_differs_in_how_the_mask_is_enlarged(net, image, peer, enlarge):
    """The paper enlarges, then stretches to [0, 1]. pytorch-grad-cam does so with the corners of both grids aligned,
    which shifts every other point against the image; torchcam stretches first, so its masks no longer reach 1."""
    theirs = peer(net, image, net.small, "scorecam")
    assert_differs(theirs, ours(net, image, net.small, "scorecam"))
    assert_same(theirs, ours(net, image, net.small, "scorecam", enlarge))


def test_eigencam_differs_in_centring(net, image):
    """The paper projects the activations themselves on their first singular vector. pytorch-grad-cam first subtracts
    every channel's mean: it shows where the layer deviates from its average, with a sign that LAPACK happens to pick.
    """
    theirs, (activations, _) = by_pytorch_grad_cam(net, image, net.small, "eigencam"), parts(net, image, net.small)
    assert_differs(theirs.abs(), ours(net, image, net.small, "eigencam").abs())
    centred = cam.eigencam(activations - activations.mean((-2, -1), keepdim=True))
    assert_same(theirs, centred * torch.sign((theirs * centred).sum()))


def test_ablationcam_differs_before_a_relu(net, image):
    """The paper sets a channel to zero. pytorch-grad-cam, where activations can be negative, sets it to their minimum
    less ten million, and every further one ten million lower: nothing that the next layer was made for."""
    theirs = by_pytorch_grad_cam(net, image, net.before_relu, "ablationcam")
    assert_differs(theirs, ours(net, image, net.before_relu, "ablationcam"))
    activations, _ = parts(net, image, net.before_relu)
    with torch.no_grad():
        logit = from_layer(net, net.before_relu, activations[None])[0, TARGET]
        batch, lowest = activations.repeat(len(activations), 1, 1, 1), activations.min()
        for channel in range(len(activations)):  # the minimum is taken over all silenced versions: lower each time
            lowest = lowest - 1e7
            batch[channel, channel] = lowest
        ablated = from_layer(net, net.before_relu, batch)[:, TARGET]
    assert_same(theirs, torch.einsum("c,chw->hw", (logit - ablated) / logit, activations))


def test_ablationcam_differs_for_a_negative_logit(net, image):
    """Dividing by the logit, as pytorch-grad-cam does, turns the map of a class with a negative one upside down."""
    shifted = copy.deepcopy(net)
    shifted.head.bias.data -= net(image)[0, TARGET].item() + 1  # the target's logit is -1
    assert_same(
        by_pytorch_grad_cam(shifted, image, shifted.small, "ablationcam"),
        -ours(shifted, image, shifted.small, "ablationcam"),
    )


def test_gradcam_plus_plus_of_torchcam_never_divides(net, image):
    """torchcam divides a copy of alpha, made by indexing with a mask, and throws it away: its weight is g^2 ReLU(g)."""
    theirs = by_torchcam(net, image, net.small, "gradcam++")
    assert_differs(theirs, ours(net, image, net.small, "gradcam++"))
    activations, gradients = parts(net, image, net.small)
    weights = (gradients**2 * gradients.relu()).sum((-2, -1))
    assert_same(theirs, torch.einsum("c,chw->hw", weights, activations))


def test_gradcam_plus_plus_of_pytorch_grad_cam_fades_with_small_gradients(net, image):
    """Its denominator has an epsilon of 1e-6 beside g^2: at g = 1e-4 it is a hundred times that. Ours has none."""
    activations, gradients = parts(net, image, net.small)
    small = gradients * 1e-4 / gradients.abs().max()
    weights = pytorch_grad_cam.GradCAMPlusPlus(net, [net.small]).get_cam_weights(
        image, None, None, activations[None].numpy(), small[None].numpy()
    )
    mine = METHODS["gradcam++"].function(activations, small)
    theirs = torch.einsum("c,chw->hw", torch.from_numpy(weights)[0], activations)
    assert theirs.abs().max() < 0.1 * mine.abs().max()


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR)
