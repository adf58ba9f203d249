# SPDX-License-Identifier: Apache-2.0
"""Ranks of an engine over a process group of torch."""
from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import os
import time
import warnings
from typing import Any, Optional, Sequence

import torch
import torch.distributed as dist

from .. import _ends
from .._collective import Collective
from .._errors import PeerLost, WrongState
from ._meeting import wait_for_all


_STORE_IS_GONE = (RuntimeError, ValueError)  # with its rank, or with all of torch's groups
_HEARD_SECONDS = 10.0  # at most, that a rank which fails waits for the others to read why
_READ_SECONDS = 0.5  # that rank 0, with whom the store ends, waits for others in a meeting
_END = "; no rank can go on without it. Start all of them again."


class ProcessGroup(Collective):
    """Ranks over Gloo, for headrace.Engine(collective=...) on the CPU. Make it on every rank, after
    torch.distributed.init_process_group().

    group: one that nothing else uses, since calls come at times of their own, from a thread of the
    engine too. None: a new group of all ranks. timeout: how long a call waits for the others, in
    seconds, for a new group."""

    takes_any_thread = True

    def __init__(self, group: Any = None, *, timeout: float = 600.0) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise WrongState("torch.distributed is not initialized, so there are no ranks; nothing "
                             "was made. Call torch.distributed.init_process_group(\"gloo\") first, "
                             "or leave collective out for one rank.")
        made = group is None
        if made:
            _watch_end()
            wait_for_all(timeout)
            group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))
        self._group = group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self._ranks = dist.get_process_group_ranks(group)
        self._name = group.group_name
        self._ended: Optional[str] = None
        if made:
            self._wait_for_all(timeout)

    def _wait_for_all(self, timeout: float) -> None:
        """A rank that failed before the others are connected would end their connecting, and they
        would not learn why."""
        key = f"headrace/{self._name}/connected"
        _store().add(key, 1)
        end = time.monotonic() + timeout
        while _store().add(key, 0) < self.world_size and time.monotonic() < end:
            time.sleep(0.002)

    def all_to_all_v(self, what: str, give: Sequence[memoryview],
                     take: Sequence[memoryview]) -> None:
        group = self._group
        if self._ended is not None or group is None:
            raise PeerLost(f"'{what}': {self._ended}")
        transfers = []
        for rank, (sent, received) in enumerate(zip(give, take)):
            if rank == self.rank:
                continue
            if sent.nbytes > 0:
                transfers.append(dist.P2POp(dist.isend, _tensor_of(sent), self._ranks[rank],
                                            group))
            if received.nbytes > 0:
                transfers.append(dist.P2POp(dist.irecv, _tensor_of(received), self._ranks[rank],
                                            group))
        if not transfers:
            return
        try:
            works = list(zip(dist.batch_isend_irecv(transfers), [one.peer for one in transfers]))
        except RuntimeError as error:
            raise self._lost(what, "another rank", error) from error
        self._wait(what, works)

    def _wait(self, what: str, works: list) -> None:
        for work, peer in works:
            try:
                work.wait()
            except RuntimeError as error:
                raise self._lost(what, f"rank {self._ranks.index(peer)}", error) from error

    def _lost(self, what: str, name: str, error: Exception) -> PeerLost:
        self._ended = (self._said_by_others() or f"{name} left or is late ({error})") + _END
        return PeerLost(f"'{what}': {self._ended}")

    # What a rank says when it fails, in the store that all of them have.
    def _key_of(self, rank: int) -> str:
        return f"headrace/{self._name}/{rank}"

    def abort(self, why: str) -> None:
        if self._ended is not None:
            return
        self._ended = f"this rank gave up: {why}"
        with contextlib.suppress(*_STORE_IS_GONE):
            _store().set(self._key_of(self.rank), why)
        backend = self._group._get_backend(torch.device("cpu"))
        if hasattr(backend, "abort"):
            backend.abort()  # ends what another thread waits for
        del backend
        self._disconnect()
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            with contextlib.suppress(*_STORE_IS_GONE):
                if dist.get_rank() == 0:
                    self._wait_until_heard()  # the store ends with this process

    def _wait_until_heard(self) -> None:
        def knows(rank: int) -> bool:
            """Also one that has failed by itself."""
            return rank == self.rank or any(_store().check([key]) for key in (
                f"{self._key_of(self.rank)}/{rank}", self._key_of(rank)))

        end = time.monotonic() + _HEARD_SECONDS
        while not all(map(knows, range(self.world_size))) and time.monotonic() < end:
            time.sleep(0.02)

    def _said_by_others(self) -> str:
        with contextlib.suppress(*_STORE_IS_GONE):
            for rank in range(self.world_size):
                if rank != self.rank and _store().check([self._key_of(rank)]):
                    said = _store().get(self._key_of(rank)).decode()
                    _store().set(f"{self._key_of(rank)}/{self.rank}", "heard")
                    return f"rank {rank} gave up: {said}"
        return ""

    def close(self) -> None:
        """Ends the group's connections. All ranks do so, after their last call."""
        if self._ended is None:
            self._ended = "this process group was closed"
            self._disconnect()

    def _disconnect(self) -> None:
        group, self._group = self._group, None
        with contextlib.suppress(ValueError, AssertionError):  # with all of torch's groups, already
            dist.destroy_process_group(group)


@functools.lru_cache(maxsize=None)
def _watch_end() -> None:
    """Once. After the first meeting, no exit handler but those of live groups tells the others of
    an exception, and they may wait for this rank in the next meeting."""
    atexit.register(_tell_end, os.getpid())


def _tell_end(process: int) -> None:
    error = _ends.raised()
    if error is not None and os.getpid() == process:  # a forked child's end is not this rank's
        _ends.note_for_others(error, _READ_SECONDS)


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _tensor_of(piece: memoryview) -> torch.Tensor:
    with warnings.catch_warnings():  # what is given may be read-only, and is only read
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(piece, dtype=torch.uint8)
