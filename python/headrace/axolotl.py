# SPDX-License-Identifier: Apache-2.0
"""A plugin of Axolotl: its trainer then trains a model that headrace.offload() has taken, with the
optimizer that its configuration names. In the configuration's file:

  plugins: [headrace.axolotl.Plugin]
  headrace: {nvme: /mnt/nvme}    # arguments of headrace.offload(); {} keeps all in host memory
"""
from __future__ import annotations

from typing import Any, Optional, Union

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel, ConfigDict

from .torch.offload import offload
from .torch.offload._given_optimizer import of_optimizer, share_groups

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
    def get_input_args(self) -> str:
        return "headrace.axolotl.Args"

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """The trainer makes its optimizer when training begins: that one says what is trained, and
        how."""
        where = Where(**(cfg.get("headrace") or {})).model_dump()
        make = trainer.create_optimizer

        def create_optimizer(*arguments: Any, **named: Any) -> Any:
            given = make(*arguments, **named)
            unwrapped = getattr(given, "optimizer", given)  # of accelerate's
            if not hasattr(unwrapped, "is_open"):  # else by the training run before
                rule, groups = of_optimizer(given)
                made = offload(trainer.model, optimizer=rule, params=groups, **where)[1]
                share_groups(given, made)
                trainer.optimizer = made
            return trainer.optimizer

        trainer.create_optimizer = create_optimizer
