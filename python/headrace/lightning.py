# SPDX-License-Identifier: Apache-2.0
"""A strategy of Lightning: Trainer(strategy=headrace.lightning.Strategy(nvme="/mnt/nvme")), or
after this import, Trainer(strategy="headrace") for a model in host memory.

The module that is trained, with what configure_optimizers() returned for it, goes to
headrace.offload() when a fit begins. docs/python.md describes both.
"""
from __future__ import annotations

from typing import Any, Optional, Union

try:
    from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError:  # the same under its older name
    from pytorch_lightning.strategies import (  # type: ignore[assignment]
        SingleDeviceStrategy, StrategyRegistry)
    from pytorch_lightning.trainer.states import TrainerFn  # type: ignore[assignment]

from ._errors import Unsupported
from .torch.offload import offload
from .torch.offload._given_optimizer import of_optimizer, share_groups

__all__ = ["Strategy"]


class Strategy(SingleDeviceStrategy):
    """One process, on the device of the Trainer. The arguments are those of headrace.offload();
    the optimizer and its groups are the module's."""

    strategy_name = "headrace"

    def __init__(self, config: Any = None, *, nvme: Optional[str] = None,
                 host_budget: Union[int, str, None] = None, blocks: Any = "auto",
                 snapshots: Optional[str] = None, **of_lightning: Any) -> None:
        super().__init__(**of_lightning)
        self._where = {"config": config, "nvme": nvme, "host_budget": host_budget,
                       "blocks": blocks, "snapshots": snapshots}
        self._offloaded: Any = None  # the optimizer

    @property
    def root_device(self) -> Any:
        """The Trainer's accelerator and devices decide."""
        import torch
        devices = getattr(self, "parallel_devices", None) or [self._root_device]
        return torch.device(devices[0])

    @root_device.setter
    def root_device(self, device: Any) -> None:
        self._root_device = device

    def model_to_device(self) -> None:
        """In a fit, offload() does it, without the whole model on the device."""
        trainer = getattr(self.lightning_module, "_trainer", None)
        fits = trainer is not None and trainer.state.fn == TrainerFn.FITTING
        if not fits and not self._is_offloaded():
            super().model_to_device()

    def setup_optimizers(self, trainer: Any) -> None:
        if self._is_offloaded():  # by the fit before
            self._offloaded.restore()
        super().setup_optimizers(trainer)
        if len(self.optimizers) != 1:
            raise Unsupported(f"configure_optimizers() returned {len(self.optimizers)} optimizers, "
                              "and the strategy 'headrace' trains with one; the model is as it "
                              "was. Return one, with several groups if need be.")
        given = self.optimizers[0]
        rule, groups = of_optimizer(given)
        assert self.lightning_module is not None  # there were optimizers of it
        self._offloaded = offload(self.lightning_module, optimizer=rule, params=groups,
                                  device=self.root_device, **self._where)[1]
        self.optimizers = [self._offloaded]
        share_groups(given, self._offloaded)

    def _is_offloaded(self) -> bool:
        return self._offloaded is not None and self._offloaded.is_open()

    def teardown(self) -> None:
        """The module stays offloaded, and can be used on. Strategy.optimizers[0].restore() brings
        it back into torch's memory."""
        if not self._is_offloaded():
            super().teardown()
            return
        self.precision_plugin.teardown()
        if self.accelerator is not None:
            self.accelerator.teardown()
        self.checkpoint_io.teardown()


if Strategy.strategy_name not in StrategyRegistry:
    StrategyRegistry.register(Strategy.strategy_name, Strategy,
                              description="parameters and optimizer state by headrace.offload()")
