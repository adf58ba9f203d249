# SPDX-License-Identifier: Apache-2.0
"""An update of tensors of DeepSpeed's, with the arithmetic of the engine, in f32."""
from __future__ import annotations

import atexit
import ctypes
import os
import threading
from typing import Sequence

import torch

from .. import _c
from .._cpu_optimizer import CpuOptimizer
from .._library import new
from ._tensors import DTYPES, check_values

_lock = threading.Lock()  # an optimizer serves one call at a time


def _new_lock() -> None:
    """The parent's may be held by a thread that a forked child does not have."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)
_optimizers: dict = {}  # by process and rule: a forked child has no threads of its parent's


def _optimizer(rule: int) -> CpuOptimizer:
    key = (os.getpid(), rule)
    if key not in _optimizers:
        # DeepSpeed looks for NaN and infinity itself, and expects an update to go on.
        _optimizers[key] = CpuOptimizer(rule=rule, check_gradients=0)
    return _optimizers[key]


@atexit.register
def _end_threads() -> None:
    _optimizers.clear()


def update(rule: int, step: int, params: torch.Tensor, grads: torch.Tensor,
           moments: Sequence[torch.Tensor], **constants: float) -> int:
    """Tensors of 16 bits are widened, updated and rounded to nearest. Returns 0, as DeepSpeed's
    own."""
    check_values(params, "params", params)
    check_values(grads, "grads", params)
    for at, moment in enumerate(moments):
        check_values(moment, f"moment {at}", params)
    given = (params, *moments)
    wide = [tensor if tensor.dtype == torch.float32 else tensor.float() for tensor in given]
    if params.numel() > 0:
        _update(rule, step, wide, grads, constants)
    for tensor, values in zip(given, wide):
        if tensor is not values:
            tensor.copy_(values)
    return 0


def _update(rule: int, step: int, wide: list, grads: torch.Tensor, constants: dict) -> None:
    hyperparameters = new(_c.headrace_hyperparameters, **constants)
    state = new(_c.headrace_parameter_state, dtype=_c.HEADRACE_F32, elements=wide[0].numel(),
                weight=wide[0].data_ptr())
    for at, moment in enumerate(wide[1:]):
        state.moment[at] = moment.data_ptr()
    gradient = new(_c.headrace_parameter_update, gradient_dtype=DTYPES[grads.dtype],
                   gradient=grads.data_ptr(), t=step,
                   hyperparameters=ctypes.pointer(hyperparameters))
    with _lock:
        _optimizer(rule).step([state], [gradient])
