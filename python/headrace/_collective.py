# SPDX-License-Identifier: Apache-2.0
"""The ranks of an engine: what passes bytes between the processes that train one model."""
from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Optional, Sequence

from . import _c
from ._errors import ArgumentError
from ._library import ctrl_c_let_through, new


class Collective:
    """A rank's way to the other ranks, for Engine(collective=...). Derive a class from it that sets
    rank and world_size and has all_to_all_v() and abort(); headrace.torch.ProcessGroup is one.

    Every rank makes the same calls in the same order. What a call raises ends the engine on this
    rank, and the engine then calls abort().
    """

    rank = 0
    world_size = 1
    # Whether calls may come from a thread of the engine too. Only then can the ranks join and
    # reduce ahead of their trainers' calls. The same on every rank.
    takes_any_thread = False

    def all_to_all_v(self, what: str, give: Sequence[memoryview],
                     take: Sequence[memoryview]) -> None:
        """Sends give[r] to rank r, and fills take[r] with what rank r gives, which has as many
        bytes. Both have a piece for each rank; skip this rank's own, and those of 0 bytes. `what`
        names the call. Returns when the bytes are there."""
        raise NotImplementedError

    def abort(self, why: str) -> None:
        """This rank has failed: the other ranks' calls must raise."""
        raise NotImplementedError


def _bytes_at(address: Optional[int], size_bytes: int) -> memoryview:
    if not address or size_bytes == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size_bytes).from_address(address)).cast("B")


def _refuse_incomplete(collective: Collective) -> None:
    kind = type(collective)
    for name in ("all_to_all_v", "abort"):
        if getattr(kind, name) is getattr(Collective, name):
            raise ArgumentError(f"{kind.__name__} has no {name}() of its own, and the engine needs "
                                "one; nothing was made. See headrace.Collective.")
    rank, world_size = collective.rank, collective.world_size
    if not isinstance(rank, int) or not isinstance(world_size, int):
        raise ArgumentError(f"{kind.__name__} has the rank {rank!r} and the world_size "
                            f"{world_size!r}; nothing was made. Both are numbers.")


class Table:
    """A Collective as C calls it. `failure`: what it raised first."""

    def __init__(self, collective: Collective) -> None:
        _refuse_incomplete(collective)
        self._of = collective
        self.failure: Optional[BaseException] = None
        self.process = os.getpid()
        fields: Any = dict(_c.headrace_collective._fields_)
        self.struct = new(
            _c.headrace_collective, rank=collective.rank, world_size=collective.world_size,
            takes_any_thread=int(collective.takes_any_thread),
            all_gather=fields["all_gather"](self._guarded(self._all_gather)),
            all_to_all=fields["all_to_all"](self._guarded(self._all_to_all)),
            all_to_all_v=fields["all_to_all_v"](self._guarded(self._all_to_all_v)),
            exchange=fields["exchange"](self._guarded(self._exchange)),
            abort=fields["abort"](self._abort))

    def _guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        def call(_context: Any, _sequence: int, what: bytes, *arguments: Any) -> int:
            try:
                with ctrl_c_let_through():
                    function(what.decode("utf-8", "replace"), *arguments)
            except BaseException as error:  # must not pass through C
                self.failure = self.failure or error
                return _c.HEADRACE_PEER_LOST
            return _c.HEADRACE_OK
        return call

    def abort(self, why: str) -> None:
        try:
            self._of.abort(why)
        except BaseException as error:
            self.failure = self.failure or error

    def _abort(self, _context: Any, why: bytes) -> None:
        self.abort(why.decode("utf-8", "replace") if self.failure is None else self.cause())

    def cause(self) -> str:
        """Of the failure, for the other ranks and this one."""
        return f"{type(self.failure).__name__}: {self.failure}"

    def _pieces(self, pieces: Any) -> list[memoryview]:
        return [_bytes_at(pieces[r].data, pieces[r].size_bytes)
                for r in range(self._of.world_size)]

    def _all_gather(self, what: str, _stream: int, whole: Any) -> None:
        pieces = self._pieces(whole)
        self._of.all_to_all_v(what, [pieces[self._of.rank]] * len(pieces), pieces)

    def _all_to_all(self, what: str, _stream: int, give: Any, take: Optional[int]) -> None:
        gives, takes, at = self._pieces(give), [], take or 0
        size = gives[self._of.rank].nbytes
        for rank in range(len(gives)):
            own = rank == self._of.rank
            takes.append(_bytes_at(at, 0 if own else size))
            at += 0 if own else size
        self._of.all_to_all_v(what, gives, takes)

    def _all_to_all_v(self, what: str, _stream: int, give: Any, take: Any,
                      _largest_bytes: int) -> None:
        self._of.all_to_all_v(what, self._pieces(give), self._pieces(take))

    def _exchange(self, what: str, mine: int, size_bytes: int, of_all: int) -> None:
        own = _bytes_at(mine, size_bytes)
        takes = [_bytes_at(of_all + rank * size_bytes, size_bytes)
                 for rank in range(self._of.world_size)]
        if size_bytes == 0:
            return
        self._of.all_to_all_v(what, [own] * len(takes), takes)
        takes[self._of.rank][:] = own
