"""Shared by all tests: no test needs the network, and none may leave a decoder's global switches changed."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests' tensors are small, and waiting for a second core costs more

import pytest
from PIL import Image, ImageFile


@pytest.fixture(autouse=True)
def pillow_stays_as_it_is():
    limit, truncated = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    yield
    assert limit == Image.MAX_IMAGE_PIXELS
    assert truncated == ImageFile.LOAD_TRUNCATED_IMAGES
