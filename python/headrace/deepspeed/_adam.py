# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's cpu_adam."""
from __future__ import annotations

import torch

from .. import _c
from .._errors import ArgumentError
from ._tensors import check_values
from ._update import update

__all__ = ["adam_rollback", "adam_update", "create_adam", "destroy_adam"]
_decoupled: dict = {}  # of each optimizer: whether it decays weights as AdamW does


def create_adam(optimizer_id: int, _lr: float, _beta1: float, _beta2: float, _eps: float,
                _weight_decay: float, adamw_mode: bool, _should_log: bool) -> int:
    """Each update names its constants again."""
    _decoupled[optimizer_id] = bool(adamw_mode)
    return 0


def destroy_adam(optimizer_id: int) -> int:
    _decoupled.pop(optimizer_id, None)
    return 0


def adam_update(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, eps: float,
                weight_decay: float, bias_correction: bool, params: torch.Tensor,
                grads: torch.Tensor, exp_avg: torch.Tensor, exp_avg_sq: torch.Tensor) -> int:
    rule = _c.HEADRACE_ADAMW if _known(optimizer_id) else _c.HEADRACE_ADAM
    return update(rule, step, params, grads, (exp_avg, exp_avg_sq), learning_rate_scale=lr,
                  beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay,
                  bias_correction=int(bias_correction))


def adam_rollback(optimizer_id: int, step: int, lr: float, beta1: float, beta2: float, eps: float,
                  weight_decay: float, _bias_correction: bool, params: torch.Tensor,
                  grads: torch.Tensor, exp_avg: torch.Tensor, exp_avg_sq: torch.Tensor) -> int:
    """Undoes an update of AdamW up to rounding: AdamW's equations, solved for the values before.
    A weight for which that has no finite result becomes 0, as DeepSpeed's own does."""
    _known(optimizer_id)
    for name, tensor in (("grads", grads), ("exp_avg", exp_avg), ("exp_avg_sq", exp_avg_sq)):
        check_values(tensor, name, params)
    if any(tensor.dtype != torch.float32 for tensor in (params, grads, exp_avg, exp_avg_sq)):
        return -1
    mean, square = exp_avg / (1 - beta1**step), exp_avg_sq / (1 - beta2**step)
    params.add_(lr * mean / (square.sqrt() + eps)).div_(1 - lr * weight_decay)
    params.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    exp_avg.sub_((1 - beta1) * grads).div_(beta1)
    exp_avg_sq.sub_((1 - beta2) * grads * grads).div_(beta2)
    return 0


def _known(optimizer_id: int) -> bool:
    if optimizer_id not in _decoupled:
        raise ArgumentError(f"no Adam has the number {optimizer_id}; nothing was updated. Call "
                            "create_adam() first.")
    return _decoupled[optimizer_id]
