# SPDX-License-Identifier: Apache-2.0
"""What an engine leaves on a drive: where it resumed, and saves that go on beside training."""
from __future__ import annotations

import ctypes
import threading
import weakref
from typing import NamedTuple, Optional

from ._library import call, lib


class Resumed(NamedTuple):
    """headrace_resumed of headrace/c.h."""

    step: int
    skipped: int
    trainer_state: bytes  # of set_trainer_state() before that step


class BackgroundSave:
    """A checkpoint that is being written. It goes on, and is whole or not there, without this
    object too; the engine may be closed before, and then ends when the save has."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        weakref.finalize(self, lib.headrace_background_save_destroy, handle, None)

    @property
    def done(self) -> bool:
        """It has ended, with a checkpoint or an error."""
        done = ctypes.c_int32()
        call("background_save_done", self._handle, ctypes.byref(done))
        return bool(done.value)

    def wait(self) -> None:
        """Until it has ended; raises its error. From then on, no rate limits it. Ctrl-C ends the
        wait alone."""
        failure: list[Optional[Exception]] = []

        def work() -> None:
            try:
                call("background_save_wait", self._handle)
            except Exception as error:
                failure.append(error)

        # A call into C hears no Ctrl-C, and a wait for a thread does.
        thread = threading.Thread(target=work, name="headrace-save-wait", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
        if failure:
            raise failure[0]
