# SPDX-License-Identifier: Apache-2.0
"""A plugin of Axolotl: its trainer then trains a model that headrace.offload() has taken, with the
optimizer that its configuration names. In the configuration's file:

  plugins: [headrace.axolotl.Plugin]
  headrace: {nvme: /mnt/nvme}    # arguments of headrace.offload(); {} keeps all in host memory
"""
from __future__ import annotations

import contextlib
import os
from typing import Any, Optional, Union

import torch
from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel, ConfigDict

from .transformers import offload, processes_started, saved_by_all

__all__ = ["Args", "Plugin"]


class Where(BaseModel):
    """Arguments of headrace.offload()."""

    model_config = ConfigDict(extra="forbid")
    config: Optional[Union[str, dict]] = None
    nvme: Optional[str] = None
    host_budget: Union[int, str, None] = None
    snapshots: Optional[str] = None


class Args(BaseModel):
    """What the plugin adds to Axolotl's configuration."""

    headrace: Optional[Where] = None


class Plugin(BasePlugin):
    def __init__(self) -> None:
        super().__init__()
        self._trainer: Any = None
        self._saving = contextlib.ExitStack()

    def get_input_args(self) -> str:
        return "headrace.axolotl.Args"

    def register(self, cfg: Any) -> None:
        """Before Accelerate looks for processes, which it does not join on the CPU by itself."""
        if processes_started() > 1 and not torch.cuda.is_available():
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> None:
        """Before the model is loaded: Axolotl would give each of several processes a GPU of its
        own, also where there is none."""
        if processes_started() > 1 and cfg.get("device") == "cpu":
            cfg["device_map"] = {"": "cpu"}

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        where = Where(**(cfg.get("headrace") or {})).model_dump()
        offload(trainer, **where)
        self._trainer = trainer

    def post_train(self, cfg: Any, model: Any) -> None:
        """Called on all ranks before the first one saves the model alone, and again when it has
        and the ranks have parted."""
        trainer, self._trainer = self._trainer, None
        self._saving.close()
        made = getattr(getattr(trainer, "optimizer", None), "optimizer", None)
        if made is not None and made.is_open() and made.ranks().several:
            self._saving.enter_context(saved_by_all(model))
