"""Write docs/curves.webp, the training curves of the README, from checkpoints/*.csv: python tools/curves.py"""

import csv
import io
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    figure = Figure(figsize=(9, 3.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    accuracy, loss = figure.subplots(1, 2)
    for name, color in (("simple_cnn", "#1f5fa8"), ("resnet", "#b43d07")):
        rows = list(csv.DictReader((ROOT / "checkpoints" / f"{name}.csv").open()))
        epochs = [int(row["epoch"]) for row in rows]
        for axes, figure_name in ((accuracy, "accuracy"), (loss, "loss")):
            for split, style in (("train", ":"), ("check", "-")):
                values = [float(row[f"{split}_{figure_name}"]) for row in rows]
                label = f"{name}, {'training' if split == 'train' else 'test'}"
                axes.plot(epochs, values, style, color=color, label=label)
    accuracy.set(title="accuracy", xlabel="epoch", ylim=(0.3, 1))
    loss.set(title="loss", xlabel="epoch", ylim=(0, 2))
    accuracy.legend(fontsize=8, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110)
    Image.open(buffer).convert("RGB").save(ROOT / "docs" / "curves.webp", quality=85, method=6)


if __name__ == "__main__":
    main()
