# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's cpu_lion."""
from __future__ import annotations

import torch

from .. import _c
from ._update import update

__all__ = ["create_lion", "destroy_lion", "lion_update"]


def create_lion(_optimizer_id: int, _lr: float, _beta1: float, _beta2: float, _weight_decay: float,
                _should_log: bool) -> int:
    return 0


def destroy_lion(_optimizer_id: int) -> int:
    return 0


def lion_update(_optimizer_id: int, step: int, lr: float, beta1: float, beta2: float,
                weight_decay: float, params: torch.Tensor, grads: torch.Tensor,
                exp_avg: torch.Tensor) -> int:
    return update(_c.HEADRACE_LION, step, params, grads, (exp_avg,), learning_rate_scale=lr,
                  beta1=beta1, beta2=beta2, weight_decay=weight_decay)
