"""One of the processes of test_train: trains both networks on 33 images and writes down what it saw and ended with."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from test_train import CPU, RECIPE, pictures

from hooklab import batches, models, train

RECIPE = replace(RECIPE, epochs=2, batch_size=11)


class Watched(batches.Images):
    """Notes which images were asked for, epoch by epoch."""

    def epoch(self, *arguments, **options):
        self.seen.append([])
        return super().epoch(*arguments, **options)

    def augmented(self, indices, *rest, **options):
        self.seen[-1] += indices.tolist()
        return super().augmented(indices, *rest, **options)


def fit(name, team, path):
    torch.manual_seed(0)
    model = models.build(name)
    images = Watched(*pictures(33), models.REGISTRY[name], CPU, RECIPE.shift)
    images.seen = []
    check = batches.Images(*pictures(20), models.REGISTRY[name], CPU)
    average, rows = train.train(model, images, check, RECIPE, 0, path, team=team, show=False)
    return {"model": model.state_dict(), "average": average.state_dict(), "rows": rows, "seen": images.seen}


def main():
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    team = train.Team(dist.get_rank(), dist.get_world_size())
    together = {name: fit(name, team, folder / f"{name}.state") for name in models.REGISTRY}
    torch.save(together, folder / f"{team.rank}of{team.size}.pt")
    dist.destroy_process_group()
    if team.leads:
        alone = fit("simple_cnn", train.Team(), folder / "alone.state")
        torch.save({"simple_cnn": alone}, folder / "0of2alone.pt")


if __name__ == "__main__":
    main()
