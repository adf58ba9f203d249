# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's pin_memory: tensors in locked pages of their own."""
from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os

import torch

__all__ = ["pin_handle"]
_libc = ctypes.CDLL(None, use_errno=True)
_sizes: dict = {}  # bytes of each tensor that was not freed, by its address
_said = False


def _lock(address: int, size: int) -> None:
    global _said
    if _libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0 or _said:
        return
    _said = True
    logging.getLogger("headrace").warning(
        "mlock() of %d bytes: %s. DeepSpeed's buffers stay unlocked, and the system may write them "
        "out while memory is short; values do not change. Raise `ulimit -l`.", size,
        os.strerror(ctypes.get_errno()))


def new_tensor(elements: int, example: torch.Tensor) -> torch.Tensor:
    if elements == 0:
        return torch.empty(0, dtype=example.dtype)
    # The tensor keeps them. Not shared, as would be Python's default: that memory has small pages.
    pages = mmap.mmap(-1, elements * example.element_size(),
                      flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    tensor = torch.frombuffer(pages, dtype=example.dtype, count=elements)
    _lock(tensor.data_ptr(), len(pages))
    _sizes[tensor.data_ptr()] = len(pages)
    return tensor


def free(address: int) -> bool:
    """The memory itself goes with the tensor, which a view of it may outlive."""
    size = _sizes.pop(address, None)
    if size is not None:
        _libc.munlock(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return size is not None


def is_pinned(tensor: torch.Tensor) -> bool:
    """By torch, or wholly within a tensor of ours; a view too."""
    if tensor.device.type != "cpu":
        return False
    first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    if any(address <= first and last <= address + size for address, size in _sizes.items()):
        return True
    return torch.cuda.is_available() and tensor.is_pinned()


class pin_handle:  # noqa: N801 (DeepSpeed's name)
    """Tensors of all handles are known to each."""

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
        return new_tensor(num_elem, example_tensor)

    def free_cpu_locked_tensor(self, locked_tensor: torch.Tensor) -> bool:
        return free(locked_tensor.data_ptr())

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        return free(address)

    def is_pinned(self, buffer: torch.Tensor) -> bool:
        return is_pinned(buffer)
