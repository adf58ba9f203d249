# SPDX-License-Identifier: Apache-2.0
"""A model as it is before initialize(), to which an error brings it back."""
from __future__ import annotations

import contextlib
import logging
from typing import Any

import torch

from .._errors import Error, PeerLost
from ..torch._part import NAMES
from ..torch.offload import _building

_log = logging.getLogger("headrace.deepspeed")


class Before:
    """Not the values of parameters, which would take as much memory as they: an error that comes
    after a conversion says that it has rounded them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = [(one, one.dtype, one.requires_grad) for one in model.parameters()]
        self._buffers = [(module, name, buffer) for module in model.modules()
                         for name, buffer in module._buffers.items()]

    def bring_back(self, optimizer: Any, error: BaseException) -> None:
        """optimizer: that of offload(), or None."""
        if optimizer is not None:
            try:
                optimizer.restore()
            except PeerLost:  # its cause is the error that is raised
                optimizer.close()
        changed = [(one, dtype) for one, dtype, _ in self._parameters if one.dtype != dtype]
        converted_to = _name_of(changed[0][0].dtype) if changed else ""
        for parameter, _, requires_grad in self._parameters:
            parameter.requires_grad_(requires_grad)
        for parameter, dtype in changed:
            with contextlib.suppress(RuntimeError):  # no space, or ranks have lost its values
                _building.convert([parameter], dtype)
                parameter.data = parameter.data.to(dtype)
        for module, name, buffer in self._buffers:
            module._buffers[name] = buffer
        if changed:
            left = sum(one.dtype != dtype for one, dtype in changed)
            _tell(error, _text_of(converted_to, left))


def _name_of(dtype: torch.dtype) -> str:
    return NAMES.get(dtype, str(dtype))


def _text_of(name: str, left: int) -> str:
    """left: how many could not be converted back."""
    now = f"{left} of its parameters still are, or have no values, and the others have" if left \
        else "its dtypes are brought back, and it has"
    return (f"The error came after the model was converted to {name}: {now} the values of before, "
            f"rounded to {name}. Make or load the model again before you call initialize() anew.")


def _tell(error: BaseException, text: str) -> None:
    if isinstance(error, Error):
        error.text = f"{error.text} {text}"
    else:  # of the program or of torch
        _log.warning("initialize() ended by a %s. %s", type(error).__name__, text)
