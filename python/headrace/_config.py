# SPDX-License-Identifier: Apache-2.0
"""What this installation consists of."""
from __future__ import annotations

from . import _library
from ._library import library_path

__version__: str = _library.lib.headrace_version_text().decode()
_OTHERS = ("torch", "numpy", "transformers", "accelerate", "lightning", "deepspeed")


def _version_of(package: str) -> str:
    import importlib.metadata  # takes longer than all of headrace, and only reports need it
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def show_config() -> dict:
    """Versions, the library's path, and whether a GPU can be used. For reports of faults."""
    import platform
    missing = _library.text_of("cuda_missing")
    return {"headrace": __version__,
            "library": library_path(),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cuda": missing or "usable",
            **{package: _version_of(package) for package in _OTHERS}}
