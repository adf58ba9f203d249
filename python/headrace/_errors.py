# SPDX-License-Identifier: Apache-2.0
"""The exceptions of headrace. Each is also the built-in that a caller would expect."""
from __future__ import annotations

from errno import ENOENT, ENOSPC
from typing import Optional

from . import _c


class Error(RuntimeError):
    """What the library reports: the text names cause, consequence, and the change that helps."""

    _CODE = _c.HEADRACE_FAILED  # of each class: below

    def __init__(self, text: str, code: Optional[int] = None, errno: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.code = self._CODE if code is None else code  # headrace_code of headrace/c.h
        self.errno = errno  # of the cause; 0: none

    def __str__(self) -> str:
        return self.text


class ArgumentError(Error, ValueError):
    """An argument that the call cannot take."""


class ConfigError(Error, ValueError):
    """Settings that are wrong, each with its place."""


class NotFound(Error, KeyError):
    """A name or a number that the engine does not have."""


class OutOfBudget(Error, MemoryError):
    """The plan does not fit, or memory is missing."""


class IoError(Error, OSError):
    """A drive or a file failed."""


class NoSuchFile(IoError, FileNotFoundError):
    """A path that does not exist."""


class NoSpace(IoError):
    """A drive is full."""


class IoStalled(Error, TimeoutError):
    """A drive does not answer. The engine can only be closed."""


class NotFinite(Error, FloatingPointError):
    """A gradient holds NaN or infinity."""


class PeerLost(Error, ConnectionError):
    """Another rank has left, or made another call."""


class Unsupported(Error, NotImplementedError):
    """What this library or this machine cannot do."""


class WrongState(Error):
    """A call at a time when it is not allowed."""


class Corrupt(Error):
    """Bytes that do not have their checksum."""


class Interrupted(Error):
    """A call that ended early. Ctrl-C raises what its handler raises instead."""


_CLASSES = {
    _c.HEADRACE_INVALID_ARGUMENT: ArgumentError, _c.HEADRACE_NOT_FOUND: NotFound,
    _c.HEADRACE_WRONG_STATE: WrongState, _c.HEADRACE_SETTINGS: ConfigError,
    _c.HEADRACE_OUT_OF_BUDGET: OutOfBudget, _c.HEADRACE_IO: IoError,
    _c.HEADRACE_NO_SPACE: NoSpace, _c.HEADRACE_CORRUPT: Corrupt,
    _c.HEADRACE_IO_STALLED: IoStalled, _c.HEADRACE_NOT_FINITE: NotFinite,
    _c.HEADRACE_PEER_LOST: PeerLost, _c.HEADRACE_INTERRUPTED: Interrupted,
    _c.HEADRACE_UNSUPPORTED: Unsupported, _c.HEADRACE_FAILED: Error,
}
for _code, _class in _CLASSES.items():
    _class._CODE = _code


def error_of(code: int, errno: int, text: str) -> Error:
    """The exception for what a C call returned."""
    kind = _CLASSES.get(code, Error)
    if kind is NotFound and errno != 0 or kind is IoError and errno == ENOENT:
        kind = NoSuchFile
    if kind is NoSpace and errno == 0:  # a plan that does not fit, before any write
        errno = ENOSPC
    return kind(text, code, errno)
