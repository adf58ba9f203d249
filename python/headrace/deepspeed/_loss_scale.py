# SPDX-License-Identifier: Apache-2.0
"""The factor of the loss in fp16, without which small gradients vanish."""
from __future__ import annotations

import logging
from typing import Any, Mapping

from .._errors import ArgumentError, NotFinite

_log = logging.getLogger("headrace.deepspeed")
_DEFAULTS = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000,
             "hysteresis": 2, "consecutive_hysteresis": False, "min_loss_scale": 1}


class NoScale:
    """Of bf16 and f32."""

    value = 1.0
    dynamic = False

    def update(self, overflowed: bool) -> None:
        del overflowed

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        del state


class LossScale(NoScale):
    """As DeepSpeed's: a step that overflows uses up one unit of `hysteresis`, until one is left;
    from then on, each such step halves a dynamic scale. It doubles after loss_scale_window + 1
    steps without overflow, which also restore `hysteresis`."""

    def __init__(self, section: Mapping[str, Any]) -> None:
        self._keys = {key: section.get(key, default) for key, default in _DEFAULTS.items()}
        for key, value in self._keys.items():
            least = 1 if key in ("loss_scale_window", "hysteresis") else 0
            if not isinstance(value, (int, float)) or value < least:
                raise ArgumentError(f"fp16.{key} is {value!r}; the model is as it was. Give a "
                                    f"number from {least} on.")
        self.dynamic = self._keys["loss_scale"] == 0
        self.value = float(self._keys["loss_scale"] or 2.0 ** self._keys["initial_scale_power"])
        self._left, self._good_steps = self._keys["hysteresis"], 0

    def update(self, overflowed: bool) -> None:
        """After each step. Raises NotFinite where the scale would have to fall below its least."""
        if not self.dynamic:
            return
        if overflowed:
            self._good_steps = 0
            self._lower()
            return
        if self._keys["consecutive_hysteresis"]:
            self._left = self._keys["hysteresis"]
        before, self._good_steps = self._good_steps, self._good_steps + 1
        if before > 0 and before % self._keys["loss_scale_window"] == 0:
            self._left = self._keys["hysteresis"]
            self.value *= 2

    def _lower(self) -> None:
        if self._left > 1:
            self._left -= 1
            return
        least = self._keys["min_loss_scale"]
        if self.value == least:
            raise NotFinite(
                f"gradients overflow fp16 at the smallest loss scale, {self.value:g} "
                "(fp16.min_loss_scale), which cannot be lowered; nothing was updated. Train in "
                "bf16, lower the learning rate, or set a smaller fp16.min_loss_scale.")
        lower = max(self.value / 2, least)
        _log.info("gradients overflowed: the step was skipped, the loss scale goes from %g to %g",
                  self.value, lower)
        self.value = lower

    def state(self) -> Any:
        return {"value": self.value, "good_steps": self._good_steps, "left": self._left}

    def restore(self, state: Any) -> None:
        if state is not None and self.dynamic:
            self.value, self._good_steps, self._left = (
                state["value"], state["good_steps"], state["left"])
