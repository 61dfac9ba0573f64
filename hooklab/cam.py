"""Class activation maps: pure functions of activations, gradients and scores.

    A    activations of one layer                 (..., C, h, w)
    g    gradient of a class LOGIT at that layer  (..., C, h, w)
    raw  the signed map, before ReLU              (..., h, w), float32

Leading dimensions broadcast, so the gradients of K classes, (K, C, h, w), meet one image's activations, (C, h, w), in
a single call, and so do N images with theirs. Nothing here knows a model, a file or a user: where a method has to ask
the model again (Score-CAM, Ablation-CAM) the caller hands in a function that answers.

    >>> method = METHODS["hirescam"]
    >>> raw = method.function(activations, gradients)   # method.needs == "gradients"
    >>> heatmap(raw, (32, 32))                          # float32 in [0, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

Scores = Callable[[Tensor], Tensor]  # a batch of N questions to the model -> (N,) logits of the target class


def _maps(name: str, tensor: Tensor) -> Tensor:
    if tensor.ndim < 3 or 0 in tensor.shape:
        raise ValueError(f"{name} have shape {tuple(tensor.shape)}: a map needs (..., channels, height, width)")
    return tensor.float()


def _pair(activations: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    if activations.shape[-3:] != gradients.shape[-3:]:
        raise ValueError(
            f"activations {tuple(activations.shape)} and gradients {tuple(gradients.shape)} "
            "must agree in channels, height and width"
        )
    return _maps("activations", activations), _maps("gradients", gradients)


def _weighted(weights: Tensor, activations: Tensor) -> Tensor:
    """Sum over channels of one weight a channel times its activation: (..., C), (..., C, h, w) -> (..., h, w)."""
    return torch.einsum("...c,...chw->...hw", weights, activations)


def _ratio(numerator: Tensor, denominator: Tensor, smallest: Tensor | float) -> Tensor:
    """numerator / denominator, and 0 where the denominator is too small to divide by."""
    usable = denominator.abs() > smallest
    return torch.where(usable, numerator / torch.where(usable, denominator, 1.0), 0.0)


def gradcam_weights(gradients: Tensor) -> Tensor:
    """Grad-CAM's alpha, one number a channel: (..., C, h, w) -> (..., C)."""
    return _maps("gradients", gradients).mean((-2, -1))


def gradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """sum_k mean_ij(g_k) A_k.  Selvaraju et al., Grad-CAM, ICCV 2017, eq. 1 and 2."""
    activations, gradients = _pair(activations, gradients)
    return _weighted(gradcam_weights(gradients), activations)


def gradcam_plus_plus(activations: Tensor, gradients: Tensor) -> Tensor:
    """sum_k w_k A_k, w_k = sum_ij alpha_kij ReLU(g_kij).  Chattopadhay et al., Grad-CAM++, WACV 2018, eq. 19.

    alpha = g^2 / (2 g^2 + sum_ab A_kab g^3) rests on the paper's choice Y = exp(logit), whose second and third
    derivatives are Y g^2 and Y g^3; where g is not 0 it is 1 / (2 + g sum_ab A_kab), which is what is computed, as it
    does not underflow. The factor Y > 0 common to all weights is left out: it cannot change the map's shape.
    """
    activations, gradients = _pair(activations, gradients)
    positive = gradients.relu()
    denominator = 2 + positive * activations.sum((-2, -1), keepdim=True)
    return _weighted(_ratio(positive, denominator, 1e-6).sum((-2, -1)), activations)


def hirescam(activations: Tensor, gradients: Tensor) -> Tensor:
    """sum_k g_k A_k, element by element.  Draelos and Carin, HiResCAM, 2020, arXiv:2011.08891."""
    activations, gradients = _pair(activations, gradients)
    return (gradients * activations).sum(-3)


def xgradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """sum_k w_k A_k, w_k = sum_ij (A_kij / sum_ab A_kab) g_kij.  Fu et al., XGrad-CAM, BMVC 2020.

    A channel whose activations sum to nothing (it is dead, or it cancels before a ReLU) has no such share: weight 0.
    """
    activations, gradients = _pair(activations, gradients)
    total = activations.sum((-2, -1))
    smallest = 1e-6 * activations.abs().sum((-2, -1))
    return _weighted(_ratio((gradients * activations).sum((-2, -1)), total, smallest), activations)


def layercam(activations: Tensor, gradients: Tensor) -> Tensor:
    """sum_k ReLU(g_k) A_k, element by element.  Jiang et al., LayerCAM, IEEE TIP 2021."""
    activations, gradients = _pair(activations, gradients)
    return (gradients.relu() * activations).sum(-3)


def eigencam(activations: Tensor) -> Tensor:
    """A v, v the first right singular vector of A as an (h*w, C) matrix.  Muhammad and Yeasin, Eigen-CAM, IJCNN 2020.

    As in the paper, A is not centred, and no class enters. A singular vector has no sign of its own: it is taken such
    that the map's sum is not negative (after a ReLU the whole map is then non-negative).
    """
    matrix = _maps("activations", activations).flatten(-2).transpose(-2, -1)  # (..., h*w, C)
    first = torch.linalg.svd(matrix, full_matrices=False).Vh[..., 0, :]  # (..., C)
    projection = (matrix @ first[..., None])[..., 0]  # (..., h*w)
    projection = torch.where(projection.sum(-1, keepdim=True) < 0, -projection, projection)
    return projection.unflatten(-1, activations.shape[-2:])


def enlarge(raw: Tensor, size: tuple[int, int]) -> Tensor:
    """The signed map at the input's size: (..., h, w) -> (..., H, W), bilinear with half-pixel centres."""
    maps = raw.float().reshape(-1, 1, *raw.shape[-2:])
    maps = F.interpolate(maps, size, mode="bilinear", align_corners=False)
    return maps.reshape(*raw.shape[:-2], *size)


def soft_masks(channels: Tensor, size: tuple[int, int]) -> Tensor:
    """Score-CAM's masks: (N, h, w) -> (N, 1, H, W), enlarged to the input's size, then each stretched to [0, 1].

    A constant channel has nothing to stretch and gives a mask of zeros.
    """
    masks = enlarge(channels, size)[:, None]
    low, high = masks.amin((-2, -1), keepdim=True), masks.amax((-2, -1), keepdim=True)
    return _ratio(masks - low, high - low, 0.0)


def scorecam(activations: Tensor, logits_of_masked: Scores) -> Tensor:
    """sum_k w_k A_k, w = softmax over channels of the target's logit.  Wang et al., Score-CAM, CVPRW 2020, algorithm 1.

    `logits_of_masked(channels (C, h, w))` returns the target's (C,) logits for the input times `soft_masks(channels,
    input size)`, in batches of its own choice. The paper takes each logit's increase over a baseline picture; that
    baseline is the same for all channels, so the softmax does not see it.
    """
    activations = _maps("activations", activations)
    return _weighted(logits_of_masked(activations).float().softmax(0), activations)


def ablationcam(activations: Tensor, logits_of_activations: Scores, chunk: int = 32) -> Tensor:
    """sum_k w_k A_k, w_k = (y - y_k) / |y|, y_k the logit with channel k at zero.  Desai and Ramaswamy, WACV 2020.

    `logits_of_activations((N, C, h, w))` returns the target's (N,) logits when the layer's output is replaced; it is
    asked for the C silenced versions, `chunk` at a time. The paper divides by y, and speaks of classes with y > 0;
    |y| is the same there, and does not turn the map upside down for a class whose logit is negative.
    """
    activations = _maps("activations", activations)
    before = logits_of_activations(activations[None]).float()  # (1,)
    after = []
    for channels in torch.arange(len(activations), device=activations.device).split(chunk):
        silenced = activations.repeat(len(channels), 1, 1, 1)  # (N, C, h, w)
        silenced[torch.arange(len(channels)), channels] = 0
        after.append(logits_of_activations(silenced).float())
    return _weighted((before - torch.cat(after)) / before.abs().clamp(min=1e-6), activations)


def heatmap(raw: Tensor, size: tuple[int, int], normalise: str = "max") -> Tensor:
    """The picture of a raw map: (..., h, w) -> (..., H, W), float32 in [0, 1], always finite.

    "max": ReLU, bilinear to `size`, divided by its maximum (all zero where no evidence is positive).
    "min-max": ReLU, bilinear, stretched from its minimum to its maximum, as other libraries do.
    """
    if normalise not in ("max", "min-max"):
        raise ValueError(f"normalise {normalise!r}: accepted are 'max' and 'min-max'")
    maps = enlarge(raw.relu(), size)
    if normalise == "min-max":
        maps = maps - maps.amin((-2, -1), keepdim=True)
    return _ratio(maps, maps.amax((-2, -1), keepdim=True), 0.0)


@dataclass(frozen=True)
class Method:
    """One way to make a map. `needs` says what `function` takes beside the activations:

    "gradients"       function(activations, gradients of the target's logit), broadcasting over leading dimensions
    "activations"     function(activations): the same map for every class
    "masked_logits"   function(activations, logits_of_masked), see `scorecam`
    "ablated_logits"  function(activations, logits_of_activations), see `ablationcam`
    """

    name: str
    title: str
    function: Callable[..., Tensor]
    needs: str
    paper: str


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("gradcam", "Grad-CAM", gradcam, "gradients", "Selvaraju et al. 2017, arXiv:1610.02391"),
            Method(
                "gradcam++", "Grad-CAM++", gradcam_plus_plus, "gradients", "Chattopadhay et al. 2018, arXiv:1710.11063"
            ),
            Method("hirescam", "HiResCAM", hirescam, "gradients", "Draelos and Carin 2020, arXiv:2011.08891"),
            Method("xgradcam", "XGrad-CAM", xgradcam, "gradients", "Fu et al. 2020, arXiv:2008.02312"),
            Method("layercam", "LayerCAM", layercam, "gradients", "Jiang et al. 2021, doi:10.1109/TIP.2021.3089943"),
            Method("eigencam", "Eigen-CAM", eigencam, "activations", "Muhammad and Yeasin 2020, arXiv:2008.00299"),
            Method("scorecam", "Score-CAM", scorecam, "masked_logits", "Wang et al. 2020, arXiv:1910.01279"),
            Method("ablationcam", "Ablation-CAM", ablationcam, "ablated_logits", "Desai and Ramaswamy, WACV 2020"),
        )
    }
)
