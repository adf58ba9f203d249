# SPDX-License-Identifier: Apache-2.0
"""Loads libheadrace.so, and calls it: codes become exceptions, and Ctrl-C ends a call."""
from __future__ import annotations

import _signal  # signal's own functions, without conversions that take ten times as long
import contextlib
import ctypes
import os
import pathlib
import signal
import threading
from typing import Any, Callable, Iterator, Optional

from . import _c
from ._errors import ArgumentError, Error, Interrupted, error_of


def library_path() -> str:
    """HEADRACE_LIBRARY, or the library that came with this package."""
    inside = pathlib.Path(__file__).parent / "_lib" / "libheadrace.so"
    return os.environ.get("HEADRACE_LIBRARY") or str(inside)


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
        for name, (result, arguments) in _c.FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"{error}. headrace cannot be used without its library of the same version. Install "
            "the wheel again, or set HEADRACE_LIBRARY to the path of that library.") from error
    return library


lib = _load()


def _range_of(kind: Any) -> tuple:
    bits = 8 * ctypes.sizeof(kind)
    return (-2**(bits - 1), 2**(bits - 1) - 1) if kind(-1).value < 0 else (0, 2**bits - 1)


_WHOLE = {kind: _range_of(kind)
          for kind in (ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64)}


_REAL = {ctypes.c_float, ctypes.c_double}


def fitting(kind: Any, value: Any, name: str) -> Any:
    """`value`, or ArgumentError: ctypes would cut a number that is too large, and C text at NUL."""
    if isinstance(value, (str, type(None))) and (kind in _REAL or kind in _WHOLE):
        raise ArgumentError(f"{name} is {value!r}; nothing was done. Give a number.")
    if isinstance(value, bytes) and b"\0" in value:
        raise ArgumentError(f"{name} is {value!r}, which C would cut at NUL; nothing was done.")
    if kind in _WHOLE and isinstance(value, int):
        least, most = _WHOLE[kind]
        if not least <= value <= most:
            raise ArgumentError(f"{name} is {value}, and the numbers from {least} to {most} fit; "
                                "nothing was done.")
    return value


def encoded(text: Any) -> bytes:
    """Text or a path, for C."""
    return fitting(None, os.fsencode(text), "a text")


def new(struct: Any, **values: Any) -> Any:
    """A struct as its _init() of headrace/c.h leaves it, with `values` in place."""
    fields = dict(struct._fields_)
    for name, value in values.items():
        if name not in fields:
            known = ", ".join(field for field in fields if field != "struct_size")
            raise ArgumentError(f"'{name}' is not known; nothing was done. Known are {known}.")
        fitting(fields[name], value, name)
    return struct(**{"struct_size": ctypes.sizeof(struct), **struct.defaults, **values})


class _ErrorOfThread(threading.local):
    """Each call overwrites the struct, so each thread has its own."""

    def __init__(self) -> None:
        self.text = ctypes.create_string_buffer(65536)
        self.error = new(_c.headrace_error, message=ctypes.addressof(self.text),
                         message_capacity=len(self.text))


_of_thread = _ErrorOfThread()


def call(name: str, *arguments: Any) -> None:
    """Calls headrace_<name>, and raises what it reports."""
    error = _of_thread.error
    function = getattr(lib, "headrace_" + name)
    for kind, value in zip(function.argtypes, arguments):
        fitting(kind, value, f"an argument of {name}")
    code = function(*arguments, ctypes.byref(error))
    if code != _c.HEADRACE_OK:
        text = _of_thread.text.value.decode("utf-8", "replace")
        raise error_of(code, error.sys_errno, text)


def text_of(name: str, *arguments: Any) -> str:
    """The text that headrace_<name> writes."""
    needed = ctypes.c_size_t()
    call(name, *arguments, None, 0, ctypes.byref(needed))
    buffer = ctypes.create_string_buffer(needed.value)
    call(name, *arguments, buffer, len(buffer), ctypes.byref(needed))
    return buffer.value.decode("utf-8")


# Asked by a thread that waits in a call. CPython answers in C whether Ctrl-C has arrived: the
# signal's handler could end a Python function before its first line, and then there is no result.
_poll_prototype = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_ctrl_c_arrived = _poll_prototype(("PyOS_InterruptOccurred", ctypes.pythonapi))
poll = dict(_c.headrace_engine_options._fields_)["poll"](_ctrl_c_arrived)


class KeptCtrlC:
    """A handler that only remembers: it counts as false until Ctrl-C has come. before: the handler
    that ctrl_c_let_through() puts back for a while; None: it does not."""

    def __init__(self, before: Any = None) -> None:
        self.came = False
        self.before = before

    def __call__(self, *_arguments: Any) -> None:
        self.came = True

    def __bool__(self) -> bool:
        return self.came


def on_ctrl_c() -> None:
    """What Python would have done on Ctrl-C: calls the handler, which may raise or return."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, None)
    if isinstance(handler, KeptCtrlC):
        raise Interrupted("Ctrl-C ended a wait")


def call_to_the_end(name: str, *arguments: Any) -> None:
    """As call(), but if the handler of Ctrl-C returns, the call is made again."""
    while True:
        try:
            return call(name, *arguments)
        except Interrupted:
            pass
        on_ctrl_c()


@contextlib.contextmanager
def ctrl_c_kept(but_in_callbacks: bool = False) -> Iterator[KeptCtrlC]:
    """Keeps Ctrl-C away from the lines inside, where an exception between two of them would be lost
    or do harm. A wait inside ends early all the same, as Interrupted."""
    handler = _signal.getsignal(signal.SIGINT)
    kept = KeptCtrlC(handler if but_in_callbacks else None)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield kept
        return
    _signal.signal(signal.SIGINT, kept)
    try:
        yield kept
    finally:
        _signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def ctrl_c_let_through() -> Iterator[None]:
    """In a callback, within call_with_callbacks(): the program's handler again, for what came while
    C ran and for what comes now."""
    kept = _signal.getsignal(signal.SIGINT)
    if not isinstance(kept, KeptCtrlC) or kept.before is None \
            or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        _signal.signal(signal.SIGINT, kept.before)
        if kept:
            kept.came = False
            on_ctrl_c()
        yield
    finally:
        _signal.signal(signal.SIGINT, kept)


def call_with_callbacks(name: str, *arguments: Any) -> None:
    """As call_to_the_end(), for a call in which C calls functions of Python. The handler of Ctrl-C
    could end such a function before its first line, and C would get no result of it. So Ctrl-C is
    kept, and each of them takes it in ctrl_c_let_through()."""
    if isinstance(_signal.getsignal(signal.SIGINT), KeptCtrlC):
        call_to_the_end(name, *arguments)  # within unbroken(), which calls the handler afterwards
        return
    while True:
        interrupted = False
        try:
            with ctrl_c_kept(but_in_callbacks=True) as kept:
                call(name, *arguments)
        except Interrupted:
            interrupted = True
        except Error:
            if kept:
                on_ctrl_c()
            raise
        if kept or interrupted:
            on_ctrl_c()
        if not interrupted:
            return


def unbroken(work: Callable[[], Any]) -> Any:
    """work(), with Ctrl-C after its end. Interrupted in it means that it did nothing; it is done
    again if the handler of Ctrl-C returns."""
    if isinstance(_signal.getsignal(signal.SIGINT), KeptCtrlC) \
            and threading.current_thread() is threading.main_thread():
        return work()  # within another one, which does this
    while True:
        interrupted = False
        with ctrl_c_kept() as kept:
            try:
                result = work()
            except Interrupted:
                interrupted = True
        if kept or interrupted:
            on_ctrl_c()
        if not interrupted:
            return result


def call_with(name: str, function: Callable[..., None],
              arguments: Callable[[Callable[..., int]], tuple]) -> None:
    """Calls headrace_<name> with arguments(guarded), where C calls guarded(), and guarded() calls
    the function. What that raises ends the call, and is raised here."""
    while True:
        raised: list[BaseException] = []
        failure: Optional[Exception] = None
        with ctrl_c_kept() as kept:
            def guarded(_context: Any, *values: Any) -> int:
                if kept:
                    return _c.HEADRACE_INTERRUPTED
                try:
                    function(*values)
                except BaseException as error:  # must not pass through C
                    raised.append(error)
                    return _c.HEADRACE_INVALID_ARGUMENT
                return _c.HEADRACE_OK

            try:
                call(name, *arguments(guarded))
            except Exception as error:
                failure = error
        if raised:
            raise raised[0]
        if kept or isinstance(failure, Interrupted):
            on_ctrl_c()
        if failure is None:
            return
        if not isinstance(failure, Interrupted):
            raise failure  # otherwise the handler has returned, and the call is made again
