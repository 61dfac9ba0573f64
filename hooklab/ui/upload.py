"""A picture of the user's own: decoded, cropped and resized once; what the model sees goes back, nothing is kept."""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gradio.utils import get_upload_folder

from hooklab import data, images
from hooklab.ui.payload import encode
from hooklab.ui.question import Refusal, choice

_PREVIEW = 320  # pixels, the longer side of the picture that the page shows with the crop drawn on it


def view(labs, request) -> dict:
    """{"file": base64} -> the pixels that the model sees, and how they were cut out of the picture."""
    model = choice(request.get("model"), "model", tuple(labs))
    picture = decode(_from_base64(request.get("file")))
    fitted = data.fit(picture, labs[model].inputs.size[1:])
    preview = picture.copy()
    preview.thumbnail((_PREVIEW, _PREVIEW))
    return {
        "pixels": encode(fitted.pixels),
        "size": list(fitted.pixels.shape[:2]),
        "original": list(fitted.original),
        "box": list(fitted.crop),
        "preview": encode(images.png(np.asarray(preview))),
    }


def decode(source: bytes | Path):
    """`data.decode`, its errors as refusals that the page can say in two languages."""
    try:
        return data.decode(source)
    except data.ImageError as error:
        raise Refusal(f"image.{error.code}", str(error), **error.values) from error


def image_argument(value: object):
    """What a script sends as `image`: an index, a file that its client uploaded, or a data: URL -> int or picture.

    A client may name any path it likes: only files in the upload folder are opened, whatever else the object says.
    """
    if isinstance(value, Mapping):
        return decode(_uploaded(value))
    if isinstance(value, str):
        head, comma, body = value.partition(",")
        if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
            raise _not_an_image()
        return decode(_from_base64(body))
    return value  # an index, or something that `resolve` refuses by name


def _uploaded(value: Mapping) -> Path:
    path = value.get("path")
    if not isinstance(path, str) or not path or "\0" in path:
        raise _not_an_image()
    folder, path = Path(get_upload_folder()).resolve(), Path(path).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        raise _not_an_image()
    return path


def _from_base64(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise _not_an_image() from error


def _not_an_image() -> Refusal:
    return Refusal(
        "image.argument", "image: an index from 0 to 9999, an uploaded file or a data:image/...;base64 URL is needed"
    )
