"""hooklab: see what a convolutional network sees, and learn how PyTorch hooks show it."""

from importlib import import_module

__version__ = "0.1.0"
_MODULES = ("cam", "data", "evidence", "hooks", "images", "models", "snippets")


def __getattr__(name: str):
    """Load a module, or `Lab`, on first use: `import hooklab` alone costs no import of torch."""
    if name in _MODULES:
        return import_module(f"hooklab.{name}")
    if name == "Lab":
        return import_module("hooklab.lab").Lab
    raise AttributeError(f"module 'hooklab' has no attribute {name!r}; it has Lab and {', '.join(_MODULES)}")


def __dir__() -> list[str]:
    return ["Lab", "__version__", *_MODULES]
