import math

import pytest
import torch
from torch import nn

from hooklab import cam
from hooklab.cam import METHODS, heatmap, soft_masks

# A tiny net whose every quantity is known by hand: the layer is the identity, the head is linear, so the gradient of
# the logit at the layer is the head's weight G, wherever the input A lies.
A = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 1.0], [0.0, 1.0]]])  # (C=2, h=2, w=2)
G = torch.tensor([[[1.0, 0.0], [-1.0, 2.0]], [[2.0, 2.0], [-2.0, 2.0]]])
LOGIT = 10.0  # <A, G> = 6 from channel 0 and 4 from channel 1


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 1, bias=False)
        self.head = nn.Linear(8, 1, bias=False)
        self.layer.weight.data = torch.eye(2)[:, :, None, None]
        self.head.weight.data = G.flatten()[None]

    def forward(self, images):
        return self.head(self.layer(images).flatten(1))


def explain(net, image, method):
    """The raw map of logit 0 at `net.layer`, by plain autograd and without any hook."""
    method = METHODS[method]
    activations = net.layer(image[None]).detach().requires_grad_()
    logit = net.head(activations.flatten(1))[0, 0]
    activations, gradients = activations[0].detach(), torch.autograd.grad(logit, activations)[0][0]
    with torch.no_grad():
        if method.needs == "gradients":
            return method.function(activations, gradients)
        if method.needs == "activations":
            return method.function(activations)
        if method.needs == "masked_logits":
            size = image.shape[-2:]
            return method.function(activations, lambda channels: net(image * soft_masks(channels, size))[:, 0])
        return method.function(activations, lambda batch: net.head(batch.flatten(1))[:, 0])


# Score-CAM's masks are (A_k - min) / (max - min): [[0, 1/3], [2/3, 1]] and A_1 itself. Under G the masked images score
# (0 + 0 - 2 + 8) + (0 + 2/3 + 0 + 2) = 26/3 and (0 + 0 + 0 + 8) + (0 + 2 + 0 + 2) = 12, so the softmax sees 10/3.
# Eigen-CAM: A^T A = [[30, 6], [6, 2]] has the larger eigenvalue 16 + sqrt(232) and its vector along (6, that - 30).
SOFTMAX = 1 / (1 + math.exp(10 / 3))
EIGENVECTOR = torch.nn.functional.normalize(torch.tensor([6.0, math.sqrt(232) - 14]), dim=0)
CLOSED_FORMS = {
    "gradcam": 0.5 * A[0] + 1.0 * A[1],
    "gradcam++": (1 / 12 + 2 / 22) * A[0] + 3 * (2 / 6) * A[1],  # g / (2 + g sum A), where g > 0
    "hirescam": torch.tensor([[1.0, 2.0], [-3.0, 10.0]]),
    "xgradcam": 6 / 10 * A[0] + 4 / 2 * A[1],
    "layercam": torch.tensor([[1.0, 2.0], [0.0, 10.0]]),
    "eigencam": EIGENVECTOR[0] * A[0] + EIGENVECTOR[1] * A[1],
    "scorecam": SOFTMAX * A[0] + (1 - SOFTMAX) * A[1],
    "ablationcam": 6 / LOGIT * A[0] + 4 / LOGIT * A[1],
}


@pytest.mark.parametrize("method", METHODS)
def test_E18_every_method_gives_its_closed_form(method):
    raw = explain(Tiny(), A, method)
    assert raw.dtype == torch.float32
    torch.testing.assert_close(raw, CLOSED_FORMS[method])


def test_E17_gradcam_is_cam_on_a_net_with_global_average_pooling():
    torch.manual_seed(0)
    activations, head = torch.rand(3, 7, 4, 5).requires_grad_(), nn.Linear(7, 10)
    logits = head(activations.mean((-2, -1)))
    gradients = torch.stack(
        [torch.autograd.grad(logits[:, c].sum(), activations, retain_graph=True)[0] for c in range(10)]
    )
    expected = torch.einsum("kc,nchw->knhw", head.weight / (4 * 5), activations)
    for method in ("gradcam", "hirescam"):  # the gradient is constant over positions, so the two agree
        torch.testing.assert_close(METHODS[method].function(activations, gradients), expected, rtol=1e-5, atol=1e-6)


def test_hirescam_and_xgradcam_sum_to_what_the_papers_promise():
    """HiResCAM's completeness: with a linear head its map sums to the logit. XGrad-CAM's conservation: so does its."""
    for method in ("hirescam", "xgradcam"):
        torch.testing.assert_close(explain(Tiny(), A, method).sum(), torch.tensor(LOGIT))


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_gradcam_plus_plus_is_equation_19_with_the_derivatives_of_exp_of_the_logit(scale):
    """By the letter, in float64. Squares and cubes of small gradients must not sink into an epsilon."""
    torch.manual_seed(1)
    activations, gradients = torch.rand(6, 3, 4), scale * torch.randn(6, 3, 4)
    a, g, y = activations.double(), gradients.double(), math.exp(0.7)
    first, second, third = y * g, y * g**2, y * g**3
    alpha = second / (2 * second + a.sum((1, 2), keepdim=True) * third)
    expected = torch.einsum("c,chw->hw", (alpha * first.relu()).sum((1, 2)), a) / y
    raw = METHODS["gradcam++"].function(activations, gradients)
    torch.testing.assert_close(raw.double(), expected, rtol=1e-5, atol=0)


def test_eigencam_of_one_pattern_is_the_pattern():
    pattern = torch.rand(4, 5)
    channels = torch.tensor([3.0, 0.0, 4.0])
    torch.testing.assert_close(cam.eigencam(channels[:, None, None] * pattern), 5 * pattern)


def test_eigencam_of_activations_after_relu_has_no_negative_value():
    torch.manual_seed(0)
    assert cam.eigencam(torch.randn(100, 16, 5, 6).relu()).min() >= -1e-6


def test_ablationcam_of_a_negative_logit_is_not_upside_down():
    """Silencing a channel that supports the class lowers its logit, whatever the logit's sign."""
    weights = torch.tensor([1.0, -3.0])
    raw = cam.ablationcam(torch.ones(2, 1, 1) * weights[:, None, None].abs(), lambda b: b.flatten(1) @ weights)
    torch.testing.assert_close(raw, torch.tensor([[(1 * 1 - 9 * 3) / 8]]))  # logit 1 - 9 = -8


@pytest.mark.parametrize("chunk", [1, 3, 5, 100])
def test_ablationcam_in_chunks_is_ablationcam_at_once(chunk):
    torch.manual_seed(0)
    activations, head, sizes = torch.rand(5, 3, 4), torch.randn(60), []

    def logits(batch):
        sizes.append(len(batch))
        return batch.flatten(1) @ head

    silenced = activations.repeat(5, 1, 1, 1) * (1 - torch.eye(5))[:, :, None, None]
    before, after = activations.flatten() @ head, silenced.flatten(1) @ head
    expected = torch.einsum("c,chw->hw", (before - after) / before.abs(), activations)
    torch.testing.assert_close(cam.ablationcam(activations, logits, chunk), expected)
    assert max(sizes) <= chunk
    assert sum(sizes) == 1 + 5


def test_soft_masks_reach_0_and_1_after_the_enlargement():
    torch.manual_seed(0)
    channels = torch.cat([torch.randn(4, 3, 5), torch.full((1, 3, 5), 7.0)])
    masks = soft_masks(channels, (12, 20))
    assert masks.shape == (5, 1, 12, 20)
    torch.testing.assert_close(masks[:4].amin((1, 2, 3)), torch.zeros(4))
    torch.testing.assert_close(masks[:4].amax((1, 2, 3)), torch.ones(4))
    assert masks[4].abs().max() == 0  # constant: nothing to stretch


def by_gradients():
    return [name for name, method in METHODS.items() if method.needs == "gradients"]


@pytest.mark.parametrize("method", by_gradients())
def test_E13_classes_and_images_broadcast_on_maps_that_are_not_square(method):
    torch.manual_seed(0)
    function = METHODS[method].function
    activations, gradients = torch.rand(3, 8, 4, 6), torch.randn(10, 3, 8, 4, 6)  # 3 images, 10 classes
    together = function(activations, gradients)
    assert together.shape == (10, 3, 4, 6)
    for k in range(10):
        for n in range(3):
            torch.testing.assert_close(together[k, n], function(activations[n], gradients[k, n]), rtol=1e-4, atol=1e-6)
    turned = function(activations.mT, gradients.mT)
    torch.testing.assert_close(turned, together.mT, rtol=1e-4, atol=1e-6)


def test_eigencam_takes_a_batch():
    torch.manual_seed(0)
    activations = torch.rand(3, 8, 4, 6)
    torch.testing.assert_close(cam.eigencam(activations), torch.stack([cam.eigencam(a) for a in activations]))


HOSTILE = {
    "zeros": (torch.zeros(4, 3, 2), torch.zeros(4, 3, 2)),
    "dead layer": (torch.zeros(4, 3, 2), torch.randn(4, 3, 2)),
    "no gradient": (torch.rand(4, 3, 2), torch.zeros(4, 3, 2)),
    "constant": (torch.full((4, 3, 2), 2.5), torch.full((4, 3, 2), -1.5)),
    "negative": (-torch.rand(4, 3, 2), torch.randn(4, 3, 2)),
    "channels that cancel": (torch.tensor([1.0, -1.0]).expand(4, 3, 2), torch.randn(4, 3, 2)),
    "grad-cam++'s pole": (torch.full((4, 3, 2), -1 / 3), torch.ones(4, 3, 2)),  # 2 + g sum A = 0
    "tiny": (torch.full((4, 3, 2), 1e-38), torch.full((4, 3, 2), 1e-38)),
    "large": (torch.full((4, 3, 2), 1e15), torch.full((4, 3, 2), 1e15)),
    "one position": (torch.rand(4, 1, 1), torch.randn(4, 1, 1)),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("method", METHODS)
def test_E5_maps_and_pictures_are_always_finite(method, case):
    activations, gradients = HOSTILE[case]
    method = METHODS[method]
    raw = method.function(
        activations,
        *{
            "gradients": [gradients],
            "activations": [],
            "masked_logits": [lambda c: (soft_masks(c, (6, 4)) * gradients.mean()).sum((1, 2, 3))],
            "ablated_logits": [lambda b: (b * gradients).sum((1, 2, 3))],
        }[method.needs],
    )
    assert raw.isfinite().all()
    for normalise in ("max", "min-max"):
        picture = heatmap(raw, (6, 4), normalise)
        assert picture.isfinite().all()
        assert 0 <= picture.min() <= picture.max() <= 1


def test_E5_an_all_negative_map_is_blank():
    assert heatmap(-torch.rand(3, 4) - 0.1, (6, 8)).abs().max() == 0


def test_heatmap_is_relu_then_bilinear_then_divided_by_its_maximum():
    raw = torch.tensor([[-8.0, 2.0]])
    # half-pixel centres at -1/4, 1/4, 3/4, 5/4 between ReLU(-8) = 0 and 2
    torch.testing.assert_close(heatmap(raw, (1, 4)), torch.tensor([[0.0, 0.25, 0.75, 1.0]]))
    torch.testing.assert_close(heatmap(raw + 10, (1, 4), "min-max"), torch.tensor([[0.0, 0.25, 0.75, 1.0]]))
    many = torch.randn(2, 3, 4, 5)
    one = torch.stack([torch.stack([heatmap(m, (9, 7)) for m in row]) for row in many])
    torch.testing.assert_close(heatmap(many, (9, 7)), one)


@pytest.mark.parametrize("method", by_gradients())
def test_half_precision_is_summed_in_float32(method):
    activations, gradients = torch.rand(64, 8, 8).half(), torch.randn(64, 8, 8).half()
    function = METHODS[method].function
    torch.testing.assert_close(function(activations, gradients), function(activations.float(), gradients.float()))


@pytest.mark.parametrize(
    ("activations", "gradients", "message"),
    [
        ((4, 3, 2), (4, 2, 3), r"\(4, 3, 2\) and gradients \(4, 2, 3\)"),
        ((4, 3), (4, 3), r"shape \(4, 3\)"),
        ((10,), (10,), r"shape \(10,\)"),
        ((0, 3, 2), (0, 3, 2), r"shape \(0, 3, 2\)"),
    ],
)
def test_E12_what_is_no_map_is_refused_with_its_shape(activations, gradients, message):
    for method in by_gradients():
        with pytest.raises(ValueError, match=message):
            METHODS[method].function(torch.zeros(activations), torch.zeros(gradients))
    if activations == gradients:
        with pytest.raises(ValueError, match=message):
            cam.eigencam(torch.zeros(activations))


def test_heatmap_names_a_normalisation_it_does_not_know():
    with pytest.raises(ValueError, match=r"'z-score'.*'max' and 'min-max'"):
        heatmap(torch.zeros(2, 2), (4, 4), "z-score")


def test_the_table_of_methods_cannot_be_changed():
    assert list(METHODS) == list(CLOSED_FORMS)
    with pytest.raises(TypeError):
        METHODS["mine"] = METHODS["gradcam"]
    with pytest.raises(AttributeError):
        METHODS["gradcam"].title = "mine"
