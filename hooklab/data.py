"""Pixels in: the shipped CIFAR-10 test split, CIFAR-10 for training, and any picture that people bring.

CIFAR-10 is by Alex Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Its 10,000 test images
ship in `assets/`, exact to the byte, as ten lossless WebP sheets of 1,000 images; `hooklab/assets/write.py` wrote them.
"""

import functools
import math
import operator
import os
import threading
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

ASSETS = Path(__file__).parent / "assets"
LABELS_PATH = ASSETS / "test_labels.bin"
SHARDS, PER_SHARD, COLUMNS = 10, 1000, 25

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
ACCEPTED = "PNG, JPEG, WebP, GIF, BMP or TIFF"
MAX_MEGABYTES, MAX_MEGAPIXELS, MIN_SIDE = 10, 25, 8


# ---- the test split ------------------------------------------------------------------------------------------------


def test_image(index):
    """Image `index` (0 to 9999) of the CIFAR-10 test split -> (PIL.Image RGB 32x32, label 0 to 9)."""
    index = _check_index(index)
    return Image.fromarray(_shard(index // PER_SHARD)[index % PER_SHARD]), int(_labels()[index])


def test_images():
    """All 10,000 images, uint8 (10000, 32, 32, 3), in the order of the official files."""
    return np.concatenate([_shard(shard) for shard in range(SHARDS)])


def test_labels():
    """All 10,000 labels, int64 (10000,)."""
    return _labels().astype(np.int64)


def shard_path(shard):
    return ASSETS / f"test_{shard}.webp"


def _check_index(index):
    last = SHARDS * PER_SHARD - 1
    try:
        if isinstance(index, (bool, np.bool_)):
            raise TypeError
        value = operator.index(index)
    except TypeError:
        raise ValueError(f"index {index!r}: a whole number from 0 to {last} is accepted") from None
    if not 0 <= value <= last:
        raise ValueError(f"index {value}: the test split has images 0 to {last}")
    return value


_decoding = threading.Lock()  # a class that opens the page in the same second decodes each shard once


def _shard(shard):
    with _decoding:
        return _decode_shard(shard)


@functools.cache
def _decode_shard(shard):
    with Image.open(shard_path(shard)) as sheet:
        tiles = np.asarray(sheet.convert("RGB")).reshape(-1, 32, COLUMNS, 32, 3)
    images = np.ascontiguousarray(tiles.swapaxes(1, 2)).reshape(PER_SHARD, 32, 32, 3)
    images.flags.writeable = False
    return images


@functools.cache
def _labels():
    return np.frombuffer(LABELS_PATH.read_bytes(), np.uint8)


# ---- CIFAR-10 for training -----------------------------------------------------------------------------------------


def load_cifar10(directory, split="train", download=False):
    """CIFAR-10 from a folder that holds `cifar-10-batches-bin` or `cifar-10-batches-py` (or is one of them).

    split "train" has 50,000 images, "test" 10,000 -> (uint8 (N, 3, 32, 32), int64 (N,)). `download=True` fetches the
    second layout through torchvision where neither is there. FileNotFoundError says what was looked for; ValueError
    what is wrong with a file.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split {split!r}: 'train' or 'test' is accepted")
    directory = Path(directory)
    if directory.name in ("cifar-10-batches-bin", "cifar-10-batches-py"):
        directory = directory.parent
    binary, pickled = directory / "cifar-10-batches-bin", directory / "cifar-10-batches-py"
    if binary.is_dir():
        return _read_binary(binary, split)
    if not pickled.is_dir() and not download:
        raise FileNotFoundError(f"no CIFAR-10 in {directory}: looked for {binary.name} and {pickled.name} there")

    from torchvision.datasets import CIFAR10

    try:
        dataset = CIFAR10(directory, train=split == "train", download=download)
    except RuntimeError as error:
        raise ValueError(f"{pickled} is incomplete or damaged; delete it and download again") from error
    return np.ascontiguousarray(dataset.data.transpose(0, 3, 1, 2)), np.asarray(dataset.targets, np.int64)


def _read_binary(directory, split):
    names = ["test_batch.bin"] if split == "test" else [f"data_batch_{number}.bin" for number in range(1, 6)]
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{directory} lacks {', '.join(missing)}")
    rows = []
    for name in names:
        batch = np.fromfile(directory / name, np.uint8)
        if batch.size != 10000 * 3073:
            raise ValueError(f"{directory / name} has {batch.size} bytes; a batch of CIFAR-10 has {10000 * 3073}")
        rows.append(batch.reshape(10000, 3073))  # a label, then 1024 red, 1024 green, 1024 blue
        if rows[-1][:, 0].max() > 9:
            raise ValueError(f"{directory / name} holds label {rows[-1][:, 0].max()}; labels of CIFAR-10 are 0 to 9")
    rows = np.concatenate(rows)
    return rows[:, 1:].reshape(-1, 3, 32, 32).copy(), rows[:, 0].astype(np.int64)


# ---- pictures that people bring ------------------------------------------------------------------------------------


class ImageError(ValueError):
    """A picture that is not accepted: `code`, a key of IMAGE_ERRORS, and `values`, what its message has in braces."""

    def __init__(self, code, **values):
        super().__init__(IMAGE_ERRORS[code].format(**values))
        self.code = code
        self.values = values


IMAGE_ERRORS = {
    "damaged": "the picture is damaged or cut off; save or send it again",
    "empty": "the file is empty; a picture as {accepted} is accepted",
    "heic": "this is a HEIC or AVIF picture, or a film; {accepted} is accepted, so save it as JPEG",
    "mode": "a picture with colours of type {mode} is not accepted; RGB is",
    "not_a_source": "{type} is not a picture; bytes, a path, an open file or a PIL image is accepted",
    "not_an_image": "this is not a picture that can be read; {accepted} is accepted",
    "not_found": "there is no file {path!r}",
    "pdf": "this is a PDF document; {accepted} is accepted",
    "svg": "this is an SVG drawing; {accepted} is accepted, so export it as PNG",
    "text": "this is text, whatever its name says; a picture as {accepted} is accepted",
    "too_many_bytes": "the file has more than {limit} MB; at most {limit} are accepted",
    "too_many_pixels": "the picture has {megapixels} megapixels; at most {limit} are accepted",
    "too_small": "the picture is {width} x {height} pixels; each side must have at least {limit}, "
    "or there is nothing to see in it",
}


def decode(source):
    """bytes, a path, an open file or a PIL image -> PIL.Image RGB, 8 bits, upright, on white where it is transparent.

    Accepts PNG, JPEG, WebP, GIF, BMP and TIFF of up to 10 MB and 25 megapixels, each side at least 8 pixels; an
    animation gives its first frame. Raises ImageError, a ValueError that says what was wrong and what is accepted.
    """
    image = source if isinstance(source, Image.Image) else _open(_read(source))
    width, height = image.size
    if width * height > MAX_MEGAPIXELS * 1_000_000:  # from the header: nothing is unpacked yet
        megapixels = math.ceil(width * height / 1e5) / 10
        raise ImageError("too_many_pixels", megapixels=f"{megapixels:.1f}", limit=MAX_MEGAPIXELS)
    if min(width, height) < MIN_SIDE:
        raise ImageError("too_small", width=width, height=height, limit=MIN_SIDE)
    try:
        image = image.copy() if image is source else image
        ImageOps.exif_transpose(image, in_place=True)  # decodes the pixels first
    except Exception as error:  # on hostile bytes the decoders raise a dozen unrelated types
        raise ImageError("damaged") from error
    return _to_rgb(image)


def _read(source):
    limit = MAX_MEGABYTES * 1_000_000
    if isinstance(source, (bytes, bytearray, memoryview)):
        content = bytes(source)
    elif isinstance(source, (str, os.PathLike)):
        if not os.path.isfile(source):
            raise ImageError("not_found", path=os.fspath(source))
        with open(source, "rb") as file:
            content = file.read(limit + 1)
    elif hasattr(source, "read"):
        content = source.read(limit + 1)
    else:
        raise ImageError("not_a_source", type=type(source).__name__)
    if not content:
        raise ImageError("empty", accepted=ACCEPTED)
    if len(content) > limit:
        raise ImageError("too_many_bytes", limit=MAX_MEGABYTES)
    return content


def _open(content):
    try:
        return Image.open(BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # Pillow's own limit, far above ours
        megapixels = f"more than {Image.MAX_IMAGE_PIXELS / 1e6:.0f}"
        raise ImageError("too_many_pixels", megapixels=megapixels, limit=MAX_MEGAPIXELS) from None
    except Exception as error:
        raise ImageError(_kind(content), accepted=ACCEPTED) from error


def _kind(content):
    """What a file is that Pillow does not open: a key of IMAGE_ERRORS."""
    if content[4:8] == b"ftyp":
        return "heic"
    if content.startswith(b"%PDF-"):
        return "pdf"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return "not_an_image"
    return "svg" if "<svg" in text[:4096].lower() else "text"


def _to_rgb(image):
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_8_bits(image)).convert("RGB")
    try:
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("RGB")
    except ValueError as error:
        raise ImageError("mode", mode=image.mode) from error
    image.info = {}  # where it was taken is nobody's business
    return image


def _to_8_bits(image):
    """Grey values of more than 8 bits -> uint8 (h, w).

    In the modes I;16 white is 65535. The modes I and F do not say where white is, so it is the first of 1 (F only),
    255, 65535 and 2**31 - 1 that no value exceeds. NaN and infinity are black.
    """
    grey = np.asarray(image).astype(np.float32)
    grey = np.where(np.isfinite(grey), grey, 0)
    whites = [65535] if image.mode.startswith("I;16") else [1] * (image.mode == "F") + [255, 65535, 2**31 - 1]
    white = next((white for white in whites if grey.max() <= white), grey.max())
    transparent = grey == image.info.get("transparency", -1)
    return np.where(transparent, 255, np.floor(np.clip(grey / white, 0, 1) * 255 + 0.5)).astype(np.uint8)


# ---- what the model sees -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fitted:
    """What the model sees of a picture."""

    pixels: np.ndarray  # uint8 (H, W, 3)
    original: tuple[int, int]  # (width, height) of the picture
    crop: tuple[int, int, int, int] | None  # (left, top, right, bottom) in its pixels; None where that is not known


def fit(image, size):
    """The largest centred part of `image` with the shape of `size` = (H, W), resized to it -> Fitted.

    image: PIL RGB or uint8 (h, w, 3). Bicubic with antialiasing, after averaging whole blocks where the picture is
    far larger; a part that already has the size is kept to the bit. This is the only geometry: the model, the heatmap
    and the overlay all use `Fitted.pixels`.
    """
    if not isinstance(image, Image.Image):
        image = Image.fromarray(_check_pixels(image, 3))
    (height, width), (w, h) = size, image.size
    crop_w, crop_h = min(w, max(1, round(h * width / height))), min(h, max(1, round(w * height / width)))
    left, top = (w - crop_w) // 2, (h - crop_h) // 2
    crop = (left, top, left + crop_w, top + crop_h)
    part = (image if image.mode == "RGB" else image.convert("RGB")).crop(crop)
    if part.size != (width, height):
        part = part.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return Fitted(np.array(part), (w, h), crop)


def normalize(pixels, mean, std):
    """(pixels / 255 - mean) / std: uint8 (H, W, 3) or (N, H, W, 3) -> float32 tensor (N, 3, H, W)."""
    import torch

    pixels = _check_pixels(pixels, 3, 4)
    batch = torch.from_numpy(pixels.reshape(-1, *pixels.shape[-3:]).copy()).permute(0, 3, 1, 2).float().div(255)
    mean, std = (torch.as_tensor(value, dtype=torch.float32).reshape(-1, 1, 1) for value in (mean, std))
    return batch.sub(mean).div(std).contiguous()


def _check_pixels(pixels, *dimensions):
    pixels = np.asarray(pixels)
    if pixels.dtype != np.uint8 or pixels.ndim not in dimensions or pixels.shape[-1] != 3 or 0 in pixels.shape:
        raise ValueError(f"pixels are {pixels.dtype} {pixels.shape}; uint8 (H, W, 3) is accepted")
    return pixels
