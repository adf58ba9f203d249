# SPDX-License-Identifier: Apache-2.0
"""Puts headrace's engine in the place of DeepSpeed's, for programs that import `deepspeed`."""
from __future__ import annotations

import contextlib
import types
from typing import Any

from .._errors import Unsupported
from ._on_import import when_imported

_NAMES = ("initialize", "DeepSpeedEngine", "zero")


class Init(contextlib.AbstractContextManager):
    """For deepspeed.zero.Init: parameters are made as they are without it. initialize() takes them
    out of memory."""

    def __init__(self, module: Any = None, *_arguments: Any, **_named: Any) -> None:
        del module

    def __exit__(self, *_exception: Any) -> None:
        return None


class GatheredParameters(contextlib.AbstractContextManager):
    """For deepspeed.zero.GatheredParameters: headrace.gathered(). Of parameters that are not
    offloaded, each rank has its own; after the scope, they are those of modifier_rank on all."""

    def __init__(self, params: Any, modifier_rank: Any = None, fwd_module: Any = None,
                 enabled: bool = True) -> None:
        del fwd_module
        self._what, self._rank, self._enabled = params, modifier_rank, enabled
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> Any:
        if self._enabled:
            from ..torch.offload import gathered
            self._scope.enter_context(gathered(self._listed(), modify=self._rank is not None,
                                               of_rank=self._rank))
        return self._what

    def __exit__(self, *exception: Any) -> Any:
        result = self._scope.__exit__(*exception)
        if self._enabled and self._rank is not None and exception[0] is None:
            from ..torch.offload import spread
            spread(self._listed(), self._rank)
        return result

    def _listed(self) -> Any:
        import torch
        if isinstance(self._what, (torch.nn.Module, torch.Tensor)):
            return self._what
        return [one for one in self._what if one is not None]


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
    from ._engine import Engine
    from ._initialize import initialize
    module.initialize = initialize  # type: ignore[attr-defined]
    module.DeepSpeedEngine = Engine  # type: ignore[attr-defined]
    module.zero.Init = Init
    module.zero.GatheredParameters = GatheredParameters
