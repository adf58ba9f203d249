# SPDX-License-Identifier: Apache-2.0
"""What the operations ask of their tensors."""
from __future__ import annotations

import torch

from .. import _c
from .._errors import ArgumentError

DTYPES = {torch.float32: _c.HEADRACE_F32, torch.bfloat16: _c.HEADRACE_BF16,
          torch.float16: _c.HEADRACE_F16}


def check(tensor: torch.Tensor, name: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name} is a {type(tensor).__name__} and no tensor; nothing was done.")
    if not tensor.is_contiguous():
        raise ArgumentError(f"{name} is no contiguous tensor, so its memory is not one piece; "
                            "nothing was done. Give a tensor after contiguous().")
    if tensor.is_neg() or tensor.is_conj():
        raise ArgumentError(f"{name} is a view whose memory has other signs than its values; "
                            "nothing was done. Give a tensor after resolve_neg() or "
                            "resolve_conj().")


def check_values(tensor: torch.Tensor, name: str, like: torch.Tensor) -> None:
    check(tensor, name)
    found = None
    if tensor.device.type != "cpu":
        found = f"is on {tensor.device}"
    elif tensor.dtype not in DTYPES:
        found = f"has the dtype {tensor.dtype}"
    elif tensor.numel() != like.numel():
        found = f"has {tensor.numel()} elements, and params has {like.numel()}"
    if found is not None:
        raise ArgumentError(
            f"{name} {found}; nothing was updated. The CPU optimizers take float32, bfloat16 and "
            "float16 tensors of one length in host memory.")
