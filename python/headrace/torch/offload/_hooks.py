# SPDX-License-Identifier: Apache-2.0
"""Hooks of modules: torch.compile leaves them alone, and a copy of the module raises by name."""
from __future__ import annotations

from typing import Any, Callable

import torch


def _outside_graphs(function: Callable[..., Any]) -> Any:
    reason = "headrace.offload() binds parameters here, so a graph ends; leave fullgraph out, or " \
             "compile each block"
    try:
        return torch.compiler.disable(reason=reason)(function)
    except TypeError:  # torch before 2.8 gives none
        return torch.compiler.disable(function)


class Hook:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @_outside_graphs
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function(*arguments, **options)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError("a model that headrace.offload() has parked cannot be copied or pickled: "
                        "its values are in an engine. Use state_dict(), or bring them back with "
                        "optimizer.restore().")
