# SPDX-License-Identifier: Apache-2.0
"""Which backward passes are of a loss that was scaled for fp16."""
from __future__ import annotations

import weakref

import torch

from ..torch.offload import _private


class _Pass:
    """torch holds it while the pass runs, and calls it at the end unless an exception ends it."""

    def __init__(self, running: "weakref.WeakSet[_Pass]") -> None:
        self._running = running
        running.add(self)

    def __call__(self) -> None:
        self._running.discard(self)


class ScaledPasses:
    def __init__(self) -> None:
        self._running: weakref.WeakSet[_Pass] = weakref.WeakSet()
        self.any_began = False  # since the last forget()

    def watch(self, scaled: torch.Tensor) -> None:
        """Its passes are known by the gradient that reaches it first."""
        if scaled.requires_grad:
            scaled.register_hook(self._begin)

    def _begin(self, _gradient: torch.Tensor) -> None:
        self.any_began = True
        _private.at_end_of_pass(_Pass(self._running))

    def runs(self) -> bool:
        """Also within the passes that checkpoints run inside of one."""
        return len(self._running) > 0

    def forget(self) -> None:
        self.any_began = False
