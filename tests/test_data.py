"""The shipped split to the byte, CIFAR-10 folders, and every kind of picture that people bring."""

import hashlib
import io
import pickle
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torchvision import transforms
from torchvision.datasets import cifar

from hooklab import data
from hooklab.assets.write import write

SHA256 = "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"  # of the official test_batch.bin


# ---- the test split ------------------------------------------------------------------------------------------------


def official_layout():
    """The shipped split as the official test_batch.bin: a label, then 1024 red, 1024 green, 1024 blue, 10,000 times."""
    planes = data.test_images().transpose(0, 3, 1, 2).reshape(10000, 3072)
    return np.concatenate([data.test_labels().astype(np.uint8)[:, None], planes], axis=1).tobytes()


def test_shipped_split_is_the_official_one():
    assert hashlib.sha256(official_layout()).hexdigest() == SHA256


def test_shards_are_small_enough_for_a_space():
    sizes = [data.shard_path(shard).stat().st_size for shard in range(10)]
    assert max(sizes) < 2_000_000
    assert sum(sizes) < 17_000_000


def test_one_image():
    image, label = data.test_image(1218)
    assert (image.mode, image.size, label, data.CLASSES[label]) == ("RGB", (32, 32), 8, "ship")
    images, labels = data.test_images(), data.test_labels()
    assert (images.dtype, images.shape) == (np.uint8, (10000, 32, 32, 3))
    assert (labels.dtype, labels.shape) == (np.int64, (10000,))
    for index in (0, 999, 1000, 1218, 9999, np.int64(7), np.uint8(255)):
        image, label = data.test_image(index)
        assert np.array_equal(image, images[index])
        assert label == labels[index]
        assert type(label) is int


def test_what_is_returned_is_the_callers_own():
    data.test_images()[:] = 0
    data.test_labels()[:] = 9
    data.test_image(0)[0].paste("red", (0, 0, 32, 32))
    assert hashlib.sha256(official_layout()).hexdigest() == SHA256


@pytest.mark.parametrize("index", [True, np.True_, 1.0, np.float32(3), float("nan"), "3", "", None, [1], 1j, 10**30])
def test_an_index_is_a_whole_number(index):
    with pytest.raises(ValueError, match=r"0 to 9999") as caught:
        data.test_image(index)
    assert repr(index) in str(caught.value)


@pytest.mark.parametrize("index", [-1, 10000, np.int64(-5)])
def test_an_index_is_in_range(index):
    with pytest.raises(ValueError, match=rf"index {index}: .* 0 to 9999"):
        data.test_image(index)


def test_one_image_decodes_one_shard_and_needs_no_torch():
    script = (
        "import sys; from hooklab import data; data.test_image(5000); data.test_image(5999);"
        "data.decode(data.test_image(5001)[0]);"
        "print(data._decode_shard.cache_info().misses, 'torch' in sys.modules, 'gradio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False", "False"]


def test_sixteen_threads_decode_each_shard_once():
    data._decode_shard.cache_clear()
    indices = np.random.default_rng(0).integers(0, 10000, 800)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(data.test_image, indices))
    assert data._decode_shard.cache_info().misses == 10
    images, labels = data.test_images(), data.test_labels()
    for index, (image, label) in zip(indices, found, strict=True):
        assert np.array_equal(image, images[index])
        assert label == labels[index]


def test_the_tool_writes_what_is_read_back(tmp_path, monkeypatch):
    pixels = np.stack([photo(32, 32).transpose(2, 0, 1) // (1 + n) for n in range(20)])
    labels = np.arange(20) % 10
    smaller = {"ASSETS": tmp_path, "LABELS_PATH": tmp_path / "labels", "SHARDS": 2, "PER_SHARD": 10, "COLUMNS": 5}
    for name, value in smaller.items():
        monkeypatch.setattr(data, name, value)
    monkeypatch.setattr(data, "load_cifar10", lambda directory, split: (pixels, labels))
    try:
        write(tmp_path)
        assert np.array_equal(data.test_images(), pixels.transpose(0, 2, 3, 1))
        assert np.array_equal(data.test_labels(), labels)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["labels", "test_0.webp", "test_1.webp"]
    finally:
        data._decode_shard.cache_clear()
        data._labels.cache_clear()


# ---- CIFAR-10 for training -----------------------------------------------------------------------------------------


@pytest.fixture
def binary(tmp_path):
    """A CIFAR-10 folder in the binary layout: the true test batch; train batches of zeros, the first label apart."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "test_batch.bin").write_bytes(official_layout())
    for number in range(1, 6):
        with open(folder / f"data_batch_{number}.bin", "wb") as file:
            file.write(bytes([number]))
            file.truncate(10000 * 3073)
    return folder


def test_binary_layout(binary):
    for directory in (binary.parent, str(binary.parent), binary):
        pixels, labels = data.load_cifar10(directory, "test")
        assert (pixels.dtype, labels.dtype) == (np.uint8, np.int64)
        assert np.array_equal(pixels, data.test_images().transpose(0, 3, 1, 2))
        assert np.array_equal(labels, data.test_labels())
    pixels, labels = data.load_cifar10(binary.parent)
    assert pixels.shape == (50000, 3, 32, 32)
    assert labels[::10000].tolist() == [1, 2, 3, 4, 5]


def test_pickled_layout(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    rows = data.test_images()[:7].transpose(0, 3, 1, 2).reshape(7, 3072)
    batch = {"data": rows, "labels": data.test_labels()[:7].tolist()}
    (folder / "test_batch").write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(data.CLASSES)}))
    monkeypatch.setattr(cifar, "check_integrity", lambda *arguments: True)  # seven images are not the whole file
    pixels, labels = data.load_cifar10(tmp_path, "test")
    assert (pixels.dtype, pixels.shape, labels.dtype) == (np.uint8, (7, 3, 32, 32), np.int64)
    assert np.array_equal(pixels, data.test_images()[:7].transpose(0, 3, 1, 2))
    assert labels.tolist() == batch["labels"]


def test_what_is_wrong_with_a_folder(binary, tmp_path):
    with pytest.raises(ValueError, match="split 'val': 'train' or 'test'"):
        data.load_cifar10(tmp_path, "val")
    (binary / "data_batch_3.bin").unlink()
    (binary / "data_batch_5.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks data_batch_3\.bin, data_batch_5\.bin"):
        data.load_cifar10(tmp_path)
    with open(binary / "test_batch.bin", "r+b") as file:
        file.write(b"\x0a")
    with pytest.raises(ValueError, match=r"test_batch\.bin holds label 10; .* 0 to 9"):
        data.load_cifar10(tmp_path, "test")
    (binary / "test_batch.bin").write_bytes(bytes(3073))
    with pytest.raises(ValueError, match=r"test_batch\.bin has 3073 bytes; .* 30730000"):
        data.load_cifar10(tmp_path, "test")

    empty = tmp_path / "empty"
    with pytest.raises(FileNotFoundError, match=r"empty: looked for cifar-10-batches-bin and cifar-10-batches-py"):
        data.load_cifar10(empty)
    (empty / "cifar-10-batches-py").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"cifar-10-batches-py is incomplete or damaged"):
        data.load_cifar10(empty)


# ---- pictures that people bring ------------------------------------------------------------------------------------


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def photo(height=48, width=64):
    """Smooth, in colour, and different in all four corners."""
    y, x = np.mgrid[0:height, 0:width]
    planes = (255 * x / (width - 1), 255 * y / (height - 1), 128 + 60 * np.sin(x / 9 + y / 5))
    return np.stack(planes, -1).astype(np.uint8)


ORIENTATIONS = {  # EXIF: where the first row and the first column of the stored picture belong
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def stored(upright, orientation):
    first_row, first_column = ORIENTATIONS[orientation]
    if "bottom" in (first_row, first_column):
        upright = upright[::-1]
    if "right" in (first_row, first_column):
        upright = upright[:, ::-1]
    return np.ascontiguousarray(upright if first_row in ("top", "bottom") else upright.swapaxes(0, 1))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "PIL"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_F1_a_phone_photo_is_upright(kind, orientation):
    upright = photo()
    image = Image.fromarray(stored(upright, orientation))
    exif = Image.Exif()
    exif[0x0112] = orientation
    if kind == "PIL":
        image.info["exif"] = exif.tobytes()
    else:
        options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
        image = encoded(image, kind, exif=exif, **options)
    result = data.decode(image)
    assert result.size == (64, 48)
    assert np.abs(np.asarray(result).astype(int) - upright).max() <= (5 if kind == "JPEG" else 0)
    assert np.array_equal(data.decode(result), result)  # and is not turned twice


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("exif", [b"", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff"])
def test_F1_broken_exif_does_not_cost_the_picture(exif):
    assert data.decode(encoded(Image.fromarray(photo()), "JPEG", exif=b"Exif\0\0" + exif)).size == (64, 48)


def transparent(mode):
    """(picture, options for saving): left half red or grey and opaque, right half black and transparent."""
    rgba = Image.new("RGBA", (16, 8), (0, 0, 0, 0))
    rgba.paste((200, 0, 0, 255), (0, 0, 8, 8))
    la = Image.new("LA", (16, 8), (0, 0))
    la.paste((200, 255), (0, 0, 8, 8))
    indexed = Image.new("P", (16, 8), 1)
    indexed.putpalette([200, 0, 0, 0, 0, 0])
    indexed.paste(0, (0, 0, 8, 8))
    return {
        "RGBA": (rgba, {}),
        "LA": (la, {}),
        "P one index": (indexed, {"transparency": 1}),
        "P alpha table": (indexed, {"transparency": b"\xff\x00"}),
        "RGB key": (rgba.convert("RGB"), {"transparency": (0, 0, 0)}),
        "L key": (la.convert("L"), {"transparency": 0}),
        "I;16 key": (Image.fromarray(np.asarray(la.convert("L")).astype(np.uint16) * 257), {"transparency": 0}),
    }[mode]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P one index", "P alpha table", "RGB key", "L key", "I;16 key"])
def test_F2_transparency_is_composited_on_white(mode):
    image, options = transparent(mode)
    pixels = np.asarray(data.decode(encoded(image, "PNG", **options)))
    assert pixels.shape == (8, 16, 3)
    assert (pixels[:, 8:] == 255).all()
    assert (pixels[:, :8] == ([200, 0, 0] if mode[0] in "RP" else [200, 200, 200])).all()


@pytest.mark.parametrize("kind, options", [("WEBP", {"lossless": True}), ("GIF", {}), ("TIFF", {})])
def test_F2_transparency_in_other_formats(kind, options):
    pixels = np.asarray(data.decode(encoded(transparent("RGBA")[0], kind, **options)))
    assert (pixels[:, 8:] == 255).all()
    assert np.abs(pixels[:, :8].astype(int) - [200, 0, 0]).max() <= 3


def test_F2_half_transparent():
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 51))  # a fifth of red, four fifths of white
    assert np.asarray(data.decode(image))[0, 0].tolist() == [255, 204, 204]
    assert np.asarray(data.decode(image.convert("RGBa")))[0, 0].tolist() == [255, 204, 204]  # premultiplied


RAMP = np.tile(np.arange(256, dtype=np.uint8), (8, 1))  # every brightness once a row


def grey_files():
    """name -> (source, how far a grey value may be off)."""
    ramp = Image.fromarray(RAMP)
    wide = RAMP.astype(np.uint16) * 257
    black_white = Image.fromarray(np.where(RAMP < 128, 0, 255).astype(np.uint8)).convert("1")
    big = Image.frombytes("I;16B", (256, 8), wide.astype(">u2").tobytes())
    return {
        "1": (encoded(black_white, "PNG"), 127),
        "L": (encoded(ramp, "PNG"), 0),
        "LA": (encoded(ramp.convert("LA"), "PNG"), 0),
        "P": (encoded(ramp.convert("P"), "GIF"), 0),
        "RGB": (encoded(ramp.convert("RGB"), "BMP"), 0),
        "I;16 PNG": (encoded(Image.fromarray(wide), "PNG"), 0),
        "I;16 TIFF": (encoded(Image.fromarray(wide), "TIFF"), 0),
        "I;16B TIFF": (encoded(big, "TIFF"), 0),
        "I;16B": (big, 0),
        "I of 8 bits": (ramp.convert("I"), 0),
        "I of 16 bits": (encoded(Image.fromarray(wide.astype(np.int32)), "TIFF"), 0),
        "I of 31 bits": (Image.fromarray(RAMP.astype(np.int32) * (2**31 // 256)), 1),
        "F to 1": (encoded(Image.fromarray(RAMP.astype(np.float32) / 255), "TIFF"), 0),
        "F to 255": (ramp.convert("F"), 0),
        "F to 65535": (Image.fromarray(wide.astype(np.float32)), 0),
        "CMYK JPEG": (encoded(ramp.convert("CMYK"), "JPEG", quality=100), 3),
        "CMYK TIFF": (encoded(ramp.convert("CMYK"), "TIFF"), 0),
        "YCbCr JPEG": (encoded(ramp.convert("RGB"), "JPEG", quality=100), 2),
        "YCbCr": (ramp.convert("YCbCr"), 1),
        "HSV": (ramp.convert("RGB").convert("HSV"), 0),
    }


@pytest.mark.parametrize("name", grey_files())
def test_F3_every_mode_has_the_right_brightness(name):
    source, tolerance = grey_files()[name]
    image = data.decode(source)
    assert (image.mode, image.size) == ("RGB", (256, 8))
    assert np.abs(np.asarray(image).astype(int) - RAMP[..., None]).max() <= tolerance


def test_F3_numbers_that_are_no_brightness():
    grey = np.full((8, 8), 0.5, np.float32)
    grey[0, :4] = np.nan, np.inf, -np.inf, -3
    grey[1, 0] = 1
    pixels = np.asarray(data.decode(Image.fromarray(grey)))
    assert pixels[0, :5, 0].tolist() == [0, 0, 0, 0, 128]
    assert pixels[1, 0, 0] == 255
    assert not np.asarray(data.decode(Image.fromarray(np.zeros((8, 8), np.float32)))).any()
    grey = np.array([[0, 1e30], [5e29, 0]], np.float32).repeat(4, 0).repeat(4, 1)
    assert np.asarray(data.decode(Image.fromarray(grey)))[::4, ::4, 0].tolist() == [[0, 255], [128, 0]]


def test_F3_a_mode_without_a_way_to_rgb_is_named():
    with pytest.raises(data.ImageError, match="La ") as caught:
        data.decode(Image.new("LA", (8, 8)).convert("La"))
    assert (caught.value.code, caught.value.values) == ("mode", {"mode": "La"})


def header_only(width, height):
    """A PNG that announces its size and holds hardly any pixels."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(99))), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


BOMBS = [
    (5001, 5000, r"25\.1"),
    (6000, 5000, r"30\.0"),
    (12000, 9000, r"108\.0"),
    (2**31 - 1, 1, "more than 89"),
    (60000, 60000, "more than 89"),
]


@pytest.mark.parametrize("width, height, megapixels", BOMBS)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_F5_too_many_pixels_are_refused_from_the_header(width, height, megapixels, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("was decoded"))
    with pytest.raises(data.ImageError, match=rf"{megapixels} megapixels; at most 25") as caught:
        data.decode(header_only(width, height))
    assert caught.value.code == "too_many_pixels"
    assert caught.value.values["limit"] == 25


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_F5_a_bomb_is_refused_where_warnings_are_errors():
    with pytest.raises(data.ImageError, match="at most 25"):
        data.decode(header_only(12000, 9000))


def test_F5_the_limits_themselves_are_accepted():
    assert data.decode(Image.new("1", (5000, 5000))).size == (5000, 5000)
    small = encoded(Image.new("RGB", (8, 8)), "PNG")
    assert data.decode(small + bytes(10_000_000 - len(small))).size == (8, 8)
    with pytest.raises(data.ImageError, match="more than 10 MB") as caught:
        data.decode(small + bytes(10_000_001 - len(small)))
    assert (caught.value.code, caught.value.values) == ("too_many_bytes", {"limit": 10})


def test_F5_a_large_file_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "large.png"
    with open(path, "wb") as file:
        file.truncate(10**12)
    with pytest.raises(data.ImageError, match="more than 10 MB"):
        data.decode(path)


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
NOT_PICTURES = [
    (b"", "empty", "empty"),
    (b"airplane,automobile\n", "text", "this is text"),
    ("\N{CAT FACE} \u732b".encode(), "text", "this is text"),
    (SVG, "svg", "SVG .* export it as PNG"),
    (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "heic", "HEIC .* save it as JPEG"),
    (b"%PDF-1.7\n%\xe2\xe3", "pdf", "PDF"),
    (bytes(range(256)) * 9, "not_an_image", "not a picture"),
    (b"\x89PNG\r\n\x1a\n", "not_an_image", "not a picture"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "text", "this is text"),  # Pillow would start Ghostscript
]


@pytest.mark.parametrize("content, code, words", NOT_PICTURES)
def test_F6_a_file_that_is_no_picture_is_named(content, code, words, tmp_path):
    path = tmp_path / "renamed.png"
    path.write_bytes(content)
    for source in (content, path, io.BytesIO(content)):
        with pytest.raises(data.ImageError, match=words) as caught:
            data.decode(source)
        assert caught.value.code == code
        assert "PNG, JPEG, WebP, GIF, BMP or TIFF is accepted" in str(caught.value)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_F6_a_file_that_is_cut_off(kind, part):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(noise), kind)
    with pytest.raises(data.ImageError) as caught:
        data.decode(content[: int(len(content) * part)])
    assert caught.value.code in ("damaged", "not_an_image")


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (7, 100), (100, 7)])
def test_F6_a_picture_with_nothing_to_see(size):
    words = rf"{size[0]} x {size[1]} pixels; each side must have at least 8"
    with pytest.raises(data.ImageError, match=words) as caught:
        data.decode(encoded(Image.new("RGB", size), "PNG"))
    assert caught.value.values == {"width": size[0], "height": size[1], "limit": 8}
    for wide_enough in ((8, 8), (8, 5000)):
        assert data.decode(Image.new("RGB", wide_enough)).size == wide_enough


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_F6_an_animation_gives_its_first_frame(kind):
    frames = [Image.new("RGB", (16, 8), color) for color in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    ImageDraw.Draw(frames[1]).rectangle((0, 0, 7, 7), "white")
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(content)).n_frames == 3
    pixels = np.asarray(data.decode(content)).astype(int)
    assert np.abs(pixels - [250, 0, 0]).max() <= 6


def test_F6_several_pictures_in_one_jpeg():
    content = encoded(Image.fromarray(photo()), "MPO", save_all=True, append_images=[Image.fromarray(photo())])
    assert data.decode(content).size == (64, 48)


def test_every_kind_of_source(tmp_path):
    image = Image.fromarray(photo())
    content = encoded(image, "PNG")
    path = tmp_path / "photo"
    path.write_bytes(content)
    with open(path, "rb") as file, Image.open(path) as unread:
        in_memory = content, bytearray(content), memoryview(content), io.BytesIO(content), image
        for source in (*in_memory, path, str(path), file, unread):
            assert np.array_equal(data.decode(source), photo())
    assert data.decode(image) is not image


@pytest.mark.parametrize("source", [None, 3, 3.5, True, [1, 2], {"path": "x"}, photo()])
def test_what_is_no_source_is_named(source):
    with pytest.raises(data.ImageError, match=rf"{type(source).__name__} is not a picture; bytes, a path"):
        data.decode(source)


def test_a_path_that_is_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "absent.png", "https://example.com/cat.png"):
        with pytest.raises(data.ImageError, match="there is no file"):
            data.decode(path)


def test_nothing_private_stays_with_the_picture():
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    image = data.decode(encoded(Image.fromarray(photo()), "JPEG", exif=exif, comment=b"a comment"))
    assert (image.info, dict(image.getexif())) == ({}, {})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_hostile_bytes_give_a_picture_or_an_image_error(kind):
    random = np.random.default_rng(0)
    content = np.frombuffer(encoded(Image.fromarray(photo(16, 20)), kind), np.uint8)
    refused = 0
    for _ in range(300):
        broken = content.copy()
        where = random.integers(0, len(broken), 4)
        broken[where] = random.integers(0, 256, 4)
        try:
            assert data.decode(broken.tobytes()).mode == "RGB"
        except data.ImageError as error:
            assert error.code in data.IMAGE_ERRORS
            refused += 1
    assert 0 < refused < 300


# ---- what the model sees -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("height, width", [(32, 32), (32, 48), (50, 20)])
def test_a_picture_that_has_the_size_is_kept_to_the_bit(height, width):
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    for image in (noise, Image.fromarray(noise)):
        fitted = data.fit(image, (height, width))
        assert np.array_equal(fitted.pixels, noise)
        assert (fitted.original, fitted.crop) == ((width, height), (0, 0, width, height))


CROPS = [  # picture (w, h), size (H, W), crop (left, top, right, bottom)
    ((400, 300), (32, 32), (50, 0, 350, 300)),
    ((300, 400), (32, 32), (0, 50, 300, 350)),
    ((400, 300), (32, 64), (0, 50, 400, 250)),
    ((400, 300), (64, 32), (125, 0, 275, 300)),
    ((101, 100), (32, 32), (0, 0, 100, 100)),
    ((8, 5000), (32, 32), (0, 2496, 8, 2504)),
    ((5000, 8), (64, 8), (2499, 0, 2500, 8)),
    ((10, 10), (224, 224), (0, 0, 10, 10)),
]


@pytest.mark.parametrize("picture, size, crop", CROPS)
def test_F7_one_geometry_stated(picture, size, crop):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*picture[::-1], 3), dtype=np.uint8))
    fitted = data.fit(image, size)
    assert (fitted.original, fitted.crop) == (picture, crop)
    assert (fitted.pixels.dtype, fitted.pixels.shape) == (np.uint8, (*size, 3))
    assert np.array_equal(fitted.pixels, data.fit(image.crop(crop), size).pixels)  # all of it comes from the crop


def test_fit_is_antialiased_and_keeps_brightness():
    stripes = np.zeros((320, 320, 3), np.uint8)
    stripes[:, ::2] = 255  # one pixel in ten would be all black or all white
    assert set(np.unique(data.fit(stripes, (32, 32)).pixels[:, 1:-1])) <= {127, 128}
    for size in ((32, 32), (20, 48), (500, 300)):
        assert (data.fit(np.full((100, 80, 3), 77, np.uint8), size).pixels == 77).all()


def test_fit_is_the_same_for_a_mirrored_picture():
    image = photo(64, 96)
    mirrored, plain = data.fit(image[:, ::-1], (32, 32)).pixels, data.fit(image, (32, 32)).pixels
    assert np.abs(mirrored[:, ::-1].astype(int) - plain).max() <= 1


@pytest.mark.parametrize("pixels", [np.zeros((8, 8, 3)), np.zeros((8, 8), np.uint8), np.zeros((0, 8, 3), np.uint8)])
def test_pixels_are_checked(pixels):
    for use in (lambda: data.fit(pixels, (32, 32)), lambda: data.normalize(pixels, 0.5, 0.5)):
        with pytest.raises(ValueError, match=r"pixels are (float64|uint8) \(.*; uint8 \(H, W, 3\)"):
            use()


@pytest.mark.parametrize("mean, std", [(0.5, 0.5), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
def test_normalize_equals_torchvision(mean, std):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 20, 30, 3), dtype=np.uint8)
    oracle = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
    expected = torch.stack([oracle(Image.fromarray(picture)) for picture in pixels])
    batch = data.normalize(pixels, mean, std)
    assert batch.dtype == torch.float32
    assert batch.is_contiguous()
    assert torch.equal(batch, expected)
    assert torch.equal(data.normalize(pixels[2], mean, std), expected[2:3])
