"""Writes the shipped CIFAR-10 test split: python -m hooklab.assets.write DIRECTORY

DIRECTORY is any folder that `hooklab.data.load_cifar10` reads. The ten shards and the labels are written beside this
file, then read back and compared; they are the same for every source, so there is no need to run this again.
"""

import sys

import numpy as np
from PIL import Image

from hooklab import data


def write(directory):
    pixels, labels = data.load_cifar10(directory, "test")
    images = pixels.transpose(0, 2, 3, 1)  # (10000, 32, 32, 3)
    for shard in range(data.SHARDS):
        tiles = images[shard * data.PER_SHARD : (shard + 1) * data.PER_SHARD]
        tiles = tiles.reshape(-1, data.COLUMNS, 32, 32, 3).swapaxes(1, 2)  # (rows, 32, columns, 32, 3)
        sheet = Image.fromarray(tiles.reshape(-1, data.COLUMNS * 32, 3))
        sheet.save(data.shard_path(shard), lossless=True, quality=100, method=6)
    data.LABELS_PATH.write_bytes(labels.astype(np.uint8).tobytes())
    data._decode_shard.cache_clear()
    data._labels.cache_clear()
    if not np.array_equal(data.test_images(), images) or not np.array_equal(data.test_labels(), labels):
        raise ValueError(f"what was written to {data.ASSETS} differs from {directory}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(sys.argv[1])
