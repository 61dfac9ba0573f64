"""What the engine costs beside plain PyTorch: ratios of medians, each pair measured in turns within one run.

python -m bench.engine [--model resnet] [--repeats 100] [--threads 1]
"""

import argparse
import statistics
import time

import torch

from hooklab import cam
from hooklab.lab import Lab


def medians(functions, repeats, clock):
    """Milliseconds of each function, called in turns so that a noisy machine disturbs all alike."""
    times = {name: [] for name in functions}
    for _ in range(3 + repeats):
        for name, function in functions.items():
            began = clock()
            function()
            times[name].append((clock() - began) * 1000)
    return {name: statistics.median(values[3:]) for name, values in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="simple_cnn")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    torch.set_num_threads(arguments.threads)
    lab = Lab(arguments.model, device=arguments.device, cache_megabytes=1)
    prepared = lab._image(1218)
    layer = next(row.name for row in lab.layers() if row.default)
    rows = [row for row in lab.layers() if row.spatial]

    def cold(ask):
        """As for a picture not seen before."""

        def run():
            lab.forget()
            return ask()

        return run

    def forward():
        with torch.no_grad():
            return lab.model(prepared.tensor).cpu()

    def forward_backward():
        x = prepared.tensor.clone().requires_grad_()
        logits = lab.model(x)
        return torch.autograd.grad(logits[0, logits[0].argmax()], x)[0].cpu()

    functions = {
        "one plain forward pass": forward,
        "one plain forward and backward pass": forward_backward,
        "explain, cold": cold(lambda: lab.explain(1218)),
        "explain, warm": lambda: lab.explain(1218),
        "explain_classes, cold": cold(lambda: lab.explain_classes(1218)),
        "explain_layers, cold": cold(lambda: lab.explain_layers(1218)),
        "features, cold": cold(lambda: lab.features(1218, layer)),
        "run, no edit": lambda: lab.run(1218),
        "run, four hooks on every module": lambda: lab.run(1218, watch="all"),
    }
    found = medians(functions, arguments.repeats, clock)
    print(f"{lab.name} at {layer} on {lab.device}, {torch.get_num_threads()} threads, {arguments.clock} clock, medians")
    print(f"{'':36}{'ms':>9}{'forwards':>10}{'forward+backward':>18}")
    plain, both = found["one plain forward pass"], found["one plain forward and backward pass"]
    for name, value in found.items():
        print(f"{name:36}{value:9.2f}{value / plain:10.2f}{value / both:18.2f}")
    slow = {f"explain, cold, {method}": cold(lambda m=method: lab.explain(1218, method=m)) for method in cam.METHODS}
    slow |= {f"channel_effects, {row.name}": cold(lambda n=row.name: lab.channel_effects(1218, n)) for row in rows[-9:]}
    for name, value in medians(slow, max(3, arguments.repeats // 20), clock).items():
        print(f"{name:36}{value:9.2f}{value / plain:10.2f}{value / both:18.2f}")


if __name__ == "__main__":
    main()
