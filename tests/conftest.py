"""Shared by all tests: none needs the network, leaves a decoder's global switches changed, or leaves a hook behind."""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests' tensors are small, and waiting for a second core costs more

import pytest
import torch
from PIL import Image, ImageFile

from hooklab import hooks, models
from hooklab.lab import Lab


@pytest.fixture(autouse=True)
def pillow_stays_as_it_is():
    limit, truncated = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    yield
    assert limit == Image.MAX_IMAGE_PIXELS
    assert truncated == ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.fixture(scope="session", autouse=True)
def no_hook_is_alive_after_the_whole_suite():
    yield
    gc.collect()
    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]  # of any test, page or lab
    left = {type(m).__name__: hooks.count(m) for m in modules}
    assert not any(left.values()), left


@pytest.fixture(scope="session")
def labs():
    """Both networks that ship, for tests that only ask."""
    return {name: Lab(name, device="cpu") for name in models.REGISTRY}
