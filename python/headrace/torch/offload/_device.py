# SPDX-License-Identifier: Apache-2.0
"""The device on which an offloaded model computes."""
from __future__ import annotations

from typing import Any

import torch

from ..._errors import ArgumentError, Unsupported

CPU = torch.device("cpu")


def device_of(model: torch.nn.Module, wanted: Any) -> torch.device:
    """`wanted`, or the one that all parameters are on."""
    found = {one.device for one in model.parameters() if one.device.type != "meta"}
    if wanted is None and len(found) > 1:
        raise ArgumentError(f"the model's parameters are on {', '.join(sorted(map(str, found)))}; "
                            "it is as it was. Say where it is to compute: device=\"cuda\", for "
                            "example.")
    return _numbered(torch.device(wanted) if wanted is not None else next(iter(found), CPU))


def _numbered(device: torch.device) -> torch.device:
    if device.type == "cpu":
        return CPU
    if device.type != "cuda":
        raise Unsupported(f"the device is {device}, and offload() serves the CPU and NVIDIA GPUs; "
                          "the model is as it was. Use one of them.")
    if not torch.cuda.is_available():
        raise Unsupported(f"the device is {device}, and torch finds no GPU; the model is as it "
                          "was. Look at nvidia-smi and torch.version.cuda.")
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.device("cuda", index)


def stream_of(device: torch.device) -> int:
    """What orders the engine's work with torch's, as its calls take it."""
    return 0 if device.type == "cpu" else torch.cuda.current_stream(device).cuda_stream


def move_buffers(model: torch.nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device != device:
                module._buffers[name] = buffer.to(device)
