"""How long a map takes: python -m bench.methods [--model simple_cnn] [--images 30]

Medians over different images, so nothing comes from the cache; the rounds of all candidates alternate, so that what
else the machine does hits all of them. pytorch-grad-cam and torchcam run on the same network, layer, image and class.
"""

import argparse
import logging
import resource
import statistics
import time
from collections.abc import Callable

import pytorch_grad_cam
import torch
import torchcam.methods
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

from hooklab import data, explain
from hooklab.cam import METHODS
from hooklab.lab import Lab

TARGET = 8
PYTORCH_GRAD_CAM = {
    "gradcam": pytorch_grad_cam.GradCAM,
    "gradcam++": pytorch_grad_cam.GradCAMPlusPlus,
    "hirescam": pytorch_grad_cam.HiResCAM,
    "xgradcam": pytorch_grad_cam.XGradCAM,
    "layercam": pytorch_grad_cam.LayerCAM,
    "eigencam": pytorch_grad_cam.EigenCAM,
    "scorecam": pytorch_grad_cam.ScoreCAM,
    "ablationcam": pytorch_grad_cam.AblationCAM,
}
TORCHCAM = {
    "gradcam": torchcam.methods.GradCAM,
    "gradcam++": torchcam.methods.GradCAMpp,
    "xgradcam": torchcam.methods.XGradCAM,
    "layercam": torchcam.methods.LayerCAM,
    "scorecam": torchcam.methods.ScoreCAM,
}


def medians(candidates: dict[str, Callable[[int], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of each candidate, never with an image that another one had; the first two calls do not count."""
    times = {name: [] for name in candidates}
    for number in range(rounds + 2):
        for place, (name, candidate) in enumerate(candidates.items()):
            begun = time.perf_counter()
            candidate(number * len(candidates) + place)
            times[name].append(1000 * (time.perf_counter() - begun))
    return {name: statistics.median(each[2:]) for name, each in times.items()}


def peers(lab: Lab, layer: str) -> dict[str, Callable[[int], object]]:
    """Both libraries hook a module's output, so they get the module whose last call holds the layer's maps."""
    module, shape = lab.model.get_submodule(layer), lab.inputs.size

    def by_pytorch_grad_cam(kind):
        def explain(number):
            with kind(model=lab.model, target_layers=[module]) as peer:
                peer(lab.inputs.prepare(number).tensor, [ClassifierOutputTarget(TARGET)])

        return explain

    def by_torchcam(kind):
        def explain(number):
            with kind(lab.model, target_layer=module, input_shape=shape) as peer:
                peer(TARGET, lab.model(lab.inputs.prepare(number).tensor))

        return explain

    found = {f"pytorch-grad-cam {name}": by_pytorch_grad_cam(kind) for name, kind in PYTORCH_GRAD_CAM.items()}
    return found | {f"torchcam {name}": by_torchcam(kind) for name, kind in TORCHCAM.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="simple_cnn")
    parser.add_argument("--images", type=int, default=30)
    options = parser.parse_args()
    logging.disable()
    pytorch_grad_cam.score_cam.tqdm.tqdm = pytorch_grad_cam.ablation_cam.tqdm.tqdm = lambda steps: steps  # no bars

    lab = Lab(options.model)
    lab.model.requires_grad_(True)  # the peers need gradients of parameters to find a path; hooklab does not
    layer = {"simple_cnn": "conv3", "resnet": "layer2.1.relu2"}[options.model]
    shape = next(row.shape for row in lab.layers() if row.name == layer)
    torch.set_grad_enabled(True)
    print(
        f"{options.model} at {layer}, {shape}; {torch.get_num_threads()} threads; median of {options.images} images\n"
    )

    ours = {f"hooklab {name}": lambda n, name=name: lab.explain(n, layer, TARGET, name) for name in METHODS}
    found = medians(ours | peers(lab, layer), options.images)
    print("| method | hooklab, ms | pytorch-grad-cam, ms | torchcam, ms |\n| --- | --- | --- | --- |")
    for name in METHODS:
        cells = [found.get(f"{who} {name}") for who in ("hooklab", "pytorch-grad-cam", "torchcam")]
        print(f"| {name} | {' | '.join('' if cell is None else f'{cell:.1f}' for cell in cells)} |")

    pictures, lab = data.test_images(), Lab(options.model)  # another one: those images are in the first one's cache
    found = medians(
        {
            "plain": lambda n: lab.predict(pictures[n : n + 1]),
            "one": lambda n: lab.explain(n, layer, TARGET),
            "classes": lambda n: lab.explain_classes(n, layer),
            "layers": lambda n: lab.explain_layers(n, TARGET),
            "evidence": lambda n: lab.evidence(n, layer, TARGET),
        },
        options.images,
    )
    count = sum(row.spatial for row in lab.layers())
    print(f"\none map {found['one']:.1f} ms, {found['one'] / found['plain']:.1f} times a plain forward pass")
    print(f"ten classes {found['classes']:.1f} ms, {found['classes'] / found['one']:.2f} times one")
    print(f"{count} layers {found['layers']:.1f} ms, {found['layers'] / found['one']:.2f} times one")
    print(f"evidence {found['evidence']:.0f} ms, with yardsticks that nobody asked for before")

    begun = time.perf_counter()
    for start in range(0, 2000, 50):
        explain.explain_batch(lab, pictures[start : start + 50], layer, ("gradcam",))
    rate = 2000 / (time.perf_counter() - begun)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"in batches {rate:.0f} maps a second; peak memory of this process {memory:.0f} MB, peers included")


if __name__ == "__main__":
    main()
