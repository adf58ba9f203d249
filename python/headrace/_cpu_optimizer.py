# SPDX-License-Identifier: Apache-2.0
"""headrace_optimizer of headrace/c.h: updates arrays of the program, with the bits of an engine."""
from __future__ import annotations

import ctypes
from typing import Any, Optional, Sequence

from . import _c
from ._library import call, new


class CpuOptimizer:
    """One call at a time. Close it: it has threads."""

    def __init__(self, **options: Any) -> None:
        """options: the fields of headrace_optimizer_options."""
        self.handle: Optional[ctypes.c_void_p] = None
        given, handle = new(_c.headrace_optimizer_options, **options), ctypes.c_void_p()
        call("optimizer_create", ctypes.byref(given), ctypes.byref(handle))
        self.handle = handle

    def initialize(self, states: Sequence[Any]) -> None:
        arrays = (_c.headrace_parameter_state * len(states))(*states)
        call("optimizer_initialize", self.handle, arrays, len(states))

    def step(self, states: Sequence[Any], updates: Sequence[Any]) -> Any:
        """Updates all of these once, and gives the headrace_update_result. The whole rate is in the
        learning_rate_scale of their hyperparameters, so that no product is rounded."""
        arrays = (_c.headrace_parameter_state * len(states))(*states)
        inputs = (_c.headrace_parameter_update * len(updates))(*updates)
        options = new(_c.headrace_step_options, learning_rate=1.0)
        result = new(_c.headrace_update_result)
        call("optimizer_step", self.handle, arrays, inputs, len(states), ctypes.byref(options),
             None, ctypes.byref(result))
        return result

    def close(self) -> None:
        if self.handle is not None:
            call("optimizer_destroy", self.handle)
            self.handle = None

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # in a forked child, or while Python ends
            pass
