# SPDX-License-Identifier: Apache-2.0
"""A rank whose program ends by an exception before it comes to the other ranks tells them, in the
store that torch.distributed has. They wait for it in torch/_meeting.py."""
from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from typing import Any

_HEARD_SECONDS = 0.5  # that rank 0 waits for the others to read it: the store ends with it
_forked = False  # from a rank, such as a worker of a data loader: its end is not the rank's


def key_of(rank: int) -> str:
    return f"headrace/ended/{rank}"


def raised() -> Any:
    """The exception that ends this program, at its end; None: there is none."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def cause_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def note_for_others(error: BaseException, heard_seconds: float) -> None:
    """Where meetings look. Rank 0, with whom the store ends, waits so long for them to read it."""
    distributed = _distributed()
    if distributed is None:
        return
    with contextlib.suppress(RuntimeError, ValueError):  # the store is gone
        distributed.distributed_c10d._get_default_store().set(
            key_of(distributed.get_rank()), cause_of(error)[:400])
        if distributed.get_rank() == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            time.sleep(heard_seconds)


def _distributed() -> Any:
    """torch.distributed, where the program has several ranks."""
    found = sys.modules.get("torch.distributed")
    several = found is not None and found.is_available() and found.is_initialized() \
        and found.get_world_size() > 1
    return found if several else None


def _note_fork() -> None:
    global _forked
    _forked = _distributed() is not None


@atexit.register
def _tell() -> None:
    error, meeting = raised(), sys.modules.get("headrace.torch._meeting")
    if error is not None and not _forked and (meeting is None or not meeting.came()):
        note_for_others(error, _HEARD_SECONDS)


os.register_at_fork(after_in_child=_note_fork)
