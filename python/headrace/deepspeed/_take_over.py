# SPDX-License-Identifier: Apache-2.0
"""Puts headrace's engine in the place of DeepSpeed's, for programs that import `deepspeed`."""
from __future__ import annotations

import types

from .._errors import Unsupported
from ._on_import import when_imported

_NAMES = ("initialize", "DeepSpeedEngine", "zero")


def take_over() -> None:
    """deepspeed.initialize() is headrace's from now on, in this process. May be called before or
    after `import deepspeed`, but before the first deepspeed.initialize()."""
    when_imported("deepspeed", _replace)


def _replace(module: types.ModuleType) -> None:
    missing = [name for name in _NAMES if not hasattr(module, name)]
    if missing:
        raise Unsupported(f"this version of DeepSpeed has no {', '.join(missing)}, so headrace "
                          "cannot take its place; it was tried with 0.19.8. Leave "
                          "HEADRACE_DEEPSPEED=engine and take_over() away.")
    from . import zero
    from ._engine import Engine
    from ._initialize import initialize
    module.initialize = initialize  # type: ignore[attr-defined]
    module.DeepSpeedEngine = Engine  # type: ignore[attr-defined]
    module.zero.Init = zero.Init  # type: ignore[attr-defined]
    module.zero.GatheredParameters = zero.GatheredParameters  # type: ignore[attr-defined]
