# SPDX-License-Identifier: Apache-2.0
"""Before ranks make a process group together, they wait for each other here: torch's own wait names
nobody, and does not end when a rank does."""
from __future__ import annotations

import logging
import time
from typing import Any, Iterable

import torch.distributed as dist

from .._ends import key_of
from .._errors import PeerLost

_log = logging.getLogger("headrace")
_NOTICE_SECONDS = 30.0
_MOST_PAUSE_SECONDS = 0.1
_AGAIN = "nothing was made. Start all ranks again."
_times = 0  # that this process has come here, as the others have


def came() -> bool:
    return _times > 0


def wait_for_all(timeout: float) -> None:
    """Raises PeerLost if a rank's program has ended by an exception, or does not come here."""
    global _times
    _times += 1
    try:
        _wait(f"headrace/came/{_times}/", timeout)
    except RuntimeError as error:
        if isinstance(error, PeerLost):
            raise
        raise PeerLost(f"the store of torch.distributed, which rank 0 or the launcher has, is gone "
                       f"({error}), so that has ended; {_AGAIN}") from error


def _wait(place: str, timeout: float) -> None:
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{place}{dist.get_rank()}", "")
    missing = list(range(dist.get_world_size()))
    began, pause, told = time.monotonic(), 0.001, False
    while missing := [rank for rank in missing if not store.check([f"{place}{rank}"])]:
        _refuse_ended(store, missing)
        waited = time.monotonic() - began
        if waited > timeout:
            raise PeerLost(f"{_named(missing)} did not come to headrace.offload() or ProcessGroup()"
                           f" within {timeout:g} s of rank {dist.get_rank()}, or ended before; "
                           f"{_AGAIN}")
        if waited > _NOTICE_SECONDS and not told:
            told = True
            _log.warning("rank %d has waited %.0f s for %s to come to headrace.offload() or "
                         "ProcessGroup(), and waits up to %g s", dist.get_rank(), waited,
                         _named(missing), timeout)
        time.sleep(pause)
        pause = min(2 * pause, _MOST_PAUSE_SECONDS)


def _refuse_ended(store: Any, ranks: Iterable[int]) -> None:
    for rank in ranks:
        if store.check([key_of(rank)]):
            raise PeerLost(f"rank {rank} ended before it came to headrace.offload() or "
                           f"ProcessGroup(): {store.get(key_of(rank)).decode()}; {_AGAIN}")


def _named(ranks: list) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {listed}" if len(ranks) == 1 else f"the ranks {listed}"
