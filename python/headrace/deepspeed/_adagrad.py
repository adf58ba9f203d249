# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's cpu_adagrad."""
from __future__ import annotations

import torch

from .. import _c
from ._update import update

__all__ = ["adagrad_update", "create_adagrad", "destroy_adagrad"]


def create_adagrad(_optimizer_id: int, _lr: float, _eps: float, _weight_decay: float,
                   _should_log: bool) -> int:
    return 0


def destroy_adagrad(_optimizer_id: int) -> int:
    return 0


def adagrad_update(_optimizer_id: int, step: int, lr: float, eps: float, weight_decay: float,
                   params: torch.Tensor, grads: torch.Tensor, exp_avg_sq: torch.Tensor) -> int:
    return update(_c.HEADRACE_ADAGRAD, step, params, grads, (exp_avg_sq,), learning_rate_scale=lr,
                  eps=eps, weight_decay=weight_decay)
