# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's async_io over headrace.io: a transfer that is not whole is an OSError."""
from __future__ import annotations

import os
from typing import Any, NamedTuple, Union

import torch

from .._errors import ArgumentError, IoError
from ..io import FileIo
from . import _pinned
from ._tensors import check

__all__ = ["aio_handle", "aio_read", "aio_write", "deepspeed_memcpy"]
_MOST_DEPTH = 1024
_COMPARED_BYTES = 1 << 22  # at a time


class _Transfer(NamedTuple):
    kind: str
    buffer: torch.Tensor  # DeepSpeed's
    memory: torch.Tensor  # the same, or its copy in host memory
    file: Any
    offset: int
    validate: bool


class aio_handle:  # noqa: N801 (DeepSpeed's name)
    def __init__(self, block_size: int = 1 << 20, queue_depth: int = 128,
                 single_submit: bool = False, overlap_events: bool = False,
                 intra_op_parallelism: int = 1) -> None:
        """overlap_events and intra_op_parallelism change nothing: all transfers overlap, and a
        transfer keeps the whole depth busy."""
        for name, flag in (("single_submit", single_submit), ("overlap_events", overlap_events)):
            if not isinstance(flag, (bool, int)):
                raise TypeError(f"{name} is {flag!r}, and True or False is needed")
        self._options = (block_size, queue_depth, single_submit, overlap_events,
                         intra_op_parallelism)
        depth = min(queue_depth * max(1, intra_op_parallelism), _MOST_DEPTH)
        self._io = FileIo(block_bytes=block_size, queue_depth=depth,
                          submit_batch=1 if single_submit else min(depth, 32))
        self._transfers: dict = {}
        self._number = 0

    def get_block_size(self) -> int:
        return self._options[0]

    def get_queue_depth(self) -> int:
        return self._options[1]

    def get_single_submit(self) -> bool:
        return self._options[2]

    def get_overlap_events(self) -> bool:
        return self._options[3]

    def get_intra_op_parallelism(self) -> int:
        return self._options[4]

    def get_alignment(self) -> int:
        """What DeepSpeed rounds sizes up to; ours takes any."""
        return 512 * self._options[4]

    # ---- transfers ----
    def read(self, buffer: torch.Tensor, filename: str, validate: bool,
             file_offset: int = 0) -> int:
        self._begin("read", buffer, filename, file_offset, validate)
        self.wait()
        return 0

    def write(self, buffer: torch.Tensor, filename: str, validate: bool,
              file_offset: int = 0) -> int:
        self._begin("write", buffer, filename, file_offset, validate)
        self.wait()
        return 0

    def pread(self, buffer: torch.Tensor, filename: str, validate: bool, *is_async: bool,
              file_offset: int = 0, **named: bool) -> int:
        return self._transfer("read", buffer, filename, validate, is_async, file_offset, named)

    def pwrite(self, buffer: torch.Tensor, filename: str, validate: bool, *is_async: bool,
               file_offset: int = 0, **named: bool) -> int:
        return self._transfer("write", buffer, filename, validate, is_async, file_offset, named)

    def sync_pread(self, buffer: torch.Tensor, filename: str, file_offset: int = 0) -> int:
        self._begin("read", buffer, filename, file_offset)
        return self.wait()

    def sync_pwrite(self, buffer: torch.Tensor, filename: str, file_offset: int = 0) -> int:
        self._begin("write", buffer, filename, file_offset)
        return self.wait()

    def async_pread(self, buffer: torch.Tensor, filename: str, file_offset: int = 0) -> int:
        return self._begin("read", buffer, filename, file_offset)

    def async_pwrite(self, buffer: torch.Tensor, filename: Union[str, int, None] = None,
                     file_offset: int = 0, *, fd: Union[int, None] = None) -> int:
        """filename or fd: a path, or a descriptor, which stays the caller's."""
        return self._begin("write", buffer, filename if fd is None else fd, file_offset)

    def _transfer(self, kind: str, buffer: torch.Tensor, filename: str, validate: bool,
                  is_async: tuple, file_offset: int, named: dict) -> int:
        """`async`, which is a word of Python's own, comes by place or by name."""
        if len(is_async) == 2:
            is_async, file_offset = is_async[:1], is_async[1]
        if len(is_async) + len(named) != 1 or named and "async" not in named:
            raise TypeError(f"p{kind}() takes buffer, filename, validate, async and file_offset")
        self._begin(kind, buffer, filename, file_offset, validate)
        return 0 if (is_async or (named["async"],))[0] else self.wait()

    def _begin(self, kind: str, buffer: torch.Tensor, file: Any, offset: int,
               validate: bool = False) -> int:
        check(buffer, "buffer")
        memory = buffer if buffer.device.type == "cpu" else torch.empty_like(buffer, device="cpu")
        if kind == "write" and memory is not buffer:
            memory.copy_(buffer)
        begin = self._io.read_at if kind == "read" else self._io.write_at
        begin(file, memory.data_ptr(), memory.nbytes, offset, self._number)
        self._transfers[self._number] = _Transfer(kind, buffer, memory, file, offset, validate)
        self._number += 1
        return 0

    def wait(self) -> int:
        """Ends all transfers of this handle, and gives their number. The first that is not whole is
        raised, once all have ended."""
        done = self._io.wait()
        ended = [self._transfers.pop(one.tag) for one in done]
        for one, transfer in zip(done, ended):
            if one.error is not None:
                raise one.error
            _finish(transfer)
        return len(done)

    # ---- memory ----
    def new_cpu_locked_tensor(self, num_elem: int, example_tenosr: torch.Tensor) -> torch.Tensor:
        return _pinned.new_tensor(num_elem, example_tenosr)  # spelt as DeepSpeed spells it

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        return _pinned.free(tensor.data_ptr())

    def is_pinned(self, buffer: torch.Tensor) -> bool:
        return _pinned.is_pinned(buffer)


def _finish(transfer: _Transfer) -> None:
    if transfer.kind == "read" and transfer.memory is not transfer.buffer:
        transfer.buffer.copy_(transfer.memory)
    if transfer.validate:
        _compare(transfer)


def _compare(transfer: _Transfer) -> None:
    """With the file's bytes, read again through the page cache."""
    of_the_caller = isinstance(transfer.file, int)
    with open(transfer.file, "rb", closefd=not of_the_caller) as file:
        file.seek(transfer.offset)
        values = transfer.memory.view(-1).view(torch.uint8)
        for at in range(0, values.numel(), _COMPARED_BYTES):
            part = values[at:at + _COMPARED_BYTES]
            found = file.read(part.numel())
            if found != part.numpy().tobytes():
                raise IoError(
                    f"{transfer.file}: the file differs from the buffer after a {transfer.kind} of "
                    f"{values.numel()} bytes at {transfer.offset}, in the piece from "
                    f"{transfer.offset + at} on. Do not use either; check the drive.")


def aio_read(buffer: torch.Tensor, filename: str, block_size: int, queue_depth: int,
             single_submit: bool, overlap_events: bool, validate: bool) -> int:
    """The whole file, which has to be as large as the buffer."""
    size = os.stat(filename).st_size
    if size != buffer.nbytes:
        raise ArgumentError(f"{filename} has {size} bytes, and the buffer {buffer.nbytes}; nothing "
                            "was read. Give a buffer of the file's size.")
    return aio_handle(block_size, queue_depth, single_submit,
                      overlap_events).read(buffer, filename, validate)


def aio_write(buffer: torch.Tensor, filename: str, block_size: int, queue_depth: int,
              single_submit: bool, overlap_events: bool, validate: bool) -> int:
    return aio_handle(block_size, queue_depth, single_submit,
                      overlap_events).write(buffer, filename, validate)


def deepspeed_memcpy(dest: torch.Tensor, src: torch.Tensor) -> int:
    dest.copy_(src)
    return 0
