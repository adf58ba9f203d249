# SPDX-License-Identifier: Apache-2.0
"""Reads and writes buffers in files, many at a time: whole, or with an error that says what is
missing. headrace/file_io.hpp describes order, alignment and safety."""
from __future__ import annotations

import ctypes
import itertools
import json
import os
import threading
import time
from typing import Any, NamedTuple, Optional, Union

from . import _c
from ._errors import ArgumentError, Error, WrongState, error_of
from ._library import call, encoded, new, text_of

__all__ = ["Done", "FileIo"]
_QUEUES = {"auto": _c.HEADRACE_IO_AUTO, "io_uring": _c.HEADRACE_IO_URING,
           "threads": _c.HEADRACE_IO_THREADS}
_BATCH = 64  # ends that one call takes
_POLL_SECONDS = 0.1  # Python looks after signals so often


class Done(NamedTuple):
    """The end of a transfer."""

    tag: int
    done_bytes: int  # from the start, without a gap
    error: Optional[Error]  # None: the transfer is whole


class FileIo:
    """Reads and writes at the same time in any files. Close it, or use `with`: it has threads. Any
    thread may begin transfers; of threads that wait, one waits at a time."""

    def __init__(self, *, block_bytes: int = 1 << 20, queue_depth: int = 32, submit_batch: int = 2,
                 queue: str = "auto", require_direct: bool = False,
                 deadline_seconds: float = 60.0) -> None:
        """queue: "auto", "io_uring" or "threads". require_direct: what cannot go around the page
        cache is refused. deadline_seconds: without progress, until a transfer ends with
        IoStalled."""
        self._handle: Optional[ctypes.c_void_p] = None
        if queue not in _QUEUES:
            raise ArgumentError(f"queue is {queue!r}; nothing was started. Use one of "
                                f"{', '.join(_QUEUES)}.")
        options = new(_c.headrace_io_options, block_bytes=block_bytes, queue_depth=queue_depth,
                      submit_batch=submit_batch, queue=_QUEUES[queue],
                      require_direct=int(require_direct), deadline_seconds=deadline_seconds)
        handle = ctypes.c_void_p()
        call("io_create", ctypes.byref(options), ctypes.byref(handle))
        self._handle = handle
        self._buffers: dict = {}  # of transfers under way, by a number of ours
        self._numbers = itertools.count(1)
        self._waiting = threading.Lock()
        # An exception, such as Ctrl-C's, may leave wait() at any line: what C has handed over is
        # here until wait() has returned it.
        self._taken = (_c.headrace_io_done * _BATCH)()
        self._count, self._at = ctypes.c_size_t(), 0
        self._ended: list = []

    # ---- transfers ----
    def read(self, file: Union[str, os.PathLike, int], into: Any, offset: int = 0,
             tag: int = 0) -> None:
        """Begins to fill `into`, a writable contiguous buffer. file: a path, or a descriptor that
        may be closed after the call."""
        view = _bytes_of(into)
        if view.readonly:
            raise ArgumentError("the buffer to read into is read-only; nothing was read. Give a "
                                "writable one, such as a bytearray.")
        self.read_at(file, _address_of(view), view.nbytes, offset, tag, view)

    def write(self, file: Union[str, os.PathLike, int], data: Any, offset: int = 0,
              tag: int = 0) -> None:
        """Begins to write a contiguous buffer, which must not change until that is done. A path is
        created."""
        view = _bytes_of(data)
        kept = memoryview(bytearray(view)) if view.readonly else view
        self.write_at(file, _address_of(kept), kept.nbytes, offset, tag, kept)

    def read_at(self, file: Union[str, os.PathLike, int], address: int, size: int, offset: int = 0,
                tag: int = 0, keep: Any = None) -> None:
        """The same with an address. keep: held until the transfer is done."""
        self._begin("read", file, address, size, offset, tag, keep)

    def write_at(self, file: Union[str, os.PathLike, int], address: int, size: int,
                 offset: int = 0, tag: int = 0, keep: Any = None) -> None:
        self._begin("write", file, address, size, offset, tag, keep)

    def _begin(self, kind: str, file: Any, address: int, size: int, offset: int, tag: int,
               keep: Any) -> None:
        handle, number = self._live(), next(self._numbers)
        name, place = ("io_" + kind, encoded(file)) if not isinstance(file, int) else \
            (f"io_{kind}_fd", file)
        self._buffers[number] = (tag, keep)
        try:
            call(name, handle, place, offset, address, size, number)
        except BaseException:
            del self._buffers[number]
            raise

    # ---- their ends ----
    def wait(self, least: Optional[int] = None, timeout: Optional[float] = None) -> list:
        """The transfers that are done and were not returned yet (Done), in the order of their ends,
        once there are `least` of them (None: all that were begun) or `timeout` seconds have
        passed."""
        end = None if timeout is None else time.monotonic() + timeout
        if not self._waiting.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            return []  # another thread waits
        try:
            return self._wait_until(least, end)
        finally:
            self._waiting.release()

    def _wait_until(self, least: Optional[int], end: Optional[float]) -> list:
        wanted = self.pending if least is None else min(least, self.pending)
        while True:
            left = _POLL_SECONDS if end is None else min(_POLL_SECONDS, end - time.monotonic())
            self._take(wanted - len(self._ended), max(left, 0.0))
            if len(self._ended) >= wanted or end is not None and time.monotonic() >= end:
                found, self._ended = self._ended, []
                return found

    def finish(self) -> int:
        """Waits for all transfers, and gives their number. Raises the first error of theirs."""
        done = self.wait()
        for one in done:
            if one.error is not None:
                raise one.error
        return len(done)

    def _take(self, least: int, timeout: float) -> None:
        self._collect()  # what an exception left in the call before
        for end in self._taken:
            end.struct_size = ctypes.sizeof(end)
        call("io_wait", self._live(), max(0, min(least, _BATCH)), timeout, self._taken, _BATCH,
             ctypes.byref(self._count))
        self._collect()

    def _collect(self) -> None:
        while self._at < self._count.value:
            end = self._taken[self._at]
            if end.tag in self._buffers:  # else an exception came after its `del`
                self._ended.append(self._done(end))
                del self._buffers[end.tag]
            self._at += 1
        self._count.value = self._at = 0

    def _done(self, end: Any) -> Done:
        tag, _ = self._buffers[end.tag]
        error = None if end.code == _c.HEADRACE_OK else \
            error_of(end.code, end.sys_errno, end.message.decode("utf-8", "replace"))
        return Done(tag, end.done_bytes, error)

    @property
    def pending(self) -> int:
        """Begun, and not yet returned by wait()."""
        return len(self._buffers) + len(self._ended)

    def stats(self) -> dict:
        return json.loads(text_of("io_stats_json", self._live()))

    # ---- life ----
    def _live(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise WrongState("this FileIo is closed. Make another one.")
        return self._handle

    def close(self) -> None:
        """Waits for all transfers."""
        if self._handle is not None:
            call("io_destroy", self._handle)
            self._handle = None
            self._buffers.clear()
            self._ended = []

    def __enter__(self) -> "FileIo":
        return self

    def __exit__(self, *_error: Any) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # in a forked child, or while Python ends
            pass


def _bytes_of(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    if "O" in view.format or "P" in view.format:
        raise ArgumentError(f"the buffer holds addresses (format '{view.format}'), whose bytes "
                            "mean nothing in a file; nothing was done. Give an array of numbers.")
    return view.cast("B")


def _address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else 0
