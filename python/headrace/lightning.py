# SPDX-License-Identifier: Apache-2.0
"""A strategy of Lightning: Trainer(strategy=headrace.lightning.Strategy(nvme="/mnt/nvme")), or
after this import, Trainer(strategy="headrace") for a model in host memory.

The module that is trained, with what configure_optimizers() returned for it, goes to
headrace.offload() when a fit begins. docs/python.md describes both.
"""
from __future__ import annotations

import os
from typing import Any, Optional, Union

import torch
import torch.distributed as dist
from lightning_utilities.core.rank_zero import rank_zero_only

try:
    from lightning.pytorch.strategies import ParallelStrategy, StrategyRegistry
    from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError:  # the same under its older name
    from pytorch_lightning.strategies import (  # type: ignore[assignment]
        ParallelStrategy, StrategyRegistry)
    from pytorch_lightning.strategies.launchers import (  # type: ignore[assignment]
        _SubprocessScriptLauncher)
    from pytorch_lightning.trainer.states import TrainerFn  # type: ignore[assignment]

from ._errors import Unsupported
from .torch.offload import offload
from .torch.offload._given_optimizer import of_optimizer, share_groups

__all__ = ["Strategy"]


class Strategy(ParallelStrategy):
    """On the device of the Trainer, or with Trainer(accelerator="cpu", devices=2), ranks of one
    model, over Gloo. The arguments are those of headrace.offload(); the optimizer and its groups
    are the module's."""

    strategy_name = "headrace"

    def __init__(self, config: Any = None, *, nvme: Optional[str] = None,
                 host_budget: Union[int, str, None] = None, blocks: Any = "auto",
                 snapshots: Optional[str] = None, **of_lightning: Any) -> None:
        super().__init__(**of_lightning)
        self._where = {"config": config, "nvme": nvme, "host_budget": host_budget,
                       "blocks": blocks, "snapshots": snapshots}
        self._offloaded: Any = None  # the optimizer
        self.num_nodes = 1  # Lightning sets it

    # ---- processes ----
    @property
    def root_device(self) -> Any:
        """The Trainer's accelerator and devices decide."""
        devices: Any = self.parallel_devices or ["cpu"]
        return torch.device(devices[self.local_rank])

    @property
    def num_processes(self) -> int:
        """On this machine."""
        return len(self.parallel_devices or [None])

    @property
    def is_distributed(self) -> bool:
        """Lightning then gives each rank a part of the data."""
        return self.num_nodes * self.num_processes > 1

    @property
    def distributed_sampler_kwargs(self) -> dict:
        return {"num_replicas": self.num_nodes * self.num_processes, "rank": self.global_rank}

    def set_world_ranks(self) -> None:
        if self.cluster_environment is not None:
            self.cluster_environment.set_world_size(self.num_nodes * self.num_processes)
            self.cluster_environment.set_global_rank(
                self.node_rank * self.num_processes + self.local_rank)
        # Who logs and writes files.
        rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]

    def _configure_launcher(self) -> None:
        """It starts the other processes, unless torchrun has."""
        if self.is_distributed and self.cluster_environment is not None:
            self._launcher = _SubprocessScriptLauncher(self.cluster_environment,
                                                       self.num_processes, self.num_nodes)

    def setup_environment(self) -> None:
        if self.is_distributed and self.root_device.type != "cpu":
            raise Unsupported(f"the strategy 'headrace' with {self.num_processes} devices and the "
                              f"device {self.root_device}: ranks of Python are on the CPU; nothing "
                              "was trained. Use devices=1, or accelerator=\"cpu\".")
        super().setup_environment()
        self.set_world_ranks()
        if self.is_distributed and not dist.is_initialized():
            environment: Any = self.cluster_environment
            os.environ["MASTER_ADDR"] = str(environment.main_address)
            os.environ["MASTER_PORT"] = str(environment.main_port)
            dist.init_process_group("gloo", rank=self.global_rank, world_size=self.world_size)

    def barrier(self, *_arguments: Any, **_named: Any) -> None:
        if self._are_joined():
            dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if not self._are_joined():
            return obj
        told = [obj]
        dist.broadcast_object_list(told, src)
        return told[0]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if not self._are_joined() or not isinstance(tensor, torch.Tensor):
            return tensor
        mean = reduce_op is None or str(reduce_op).lower() in ("mean", "avg")
        tensor = tensor.clone()
        dist.all_reduce(tensor, _operation_of(reduce_op, mean), group)
        if mean:
            tensor = tensor / dist.get_world_size(group)
        return tensor

    def _are_joined(self) -> bool:
        return self.is_distributed and dist.is_initialized()

    # ---- the model ----
    def model_to_device(self) -> None:
        """In a fit, offload() does it, without the whole model on the device."""
        trainer = getattr(self.lightning_module, "_trainer", None)
        fits = trainer is not None and trainer.state.fn == TrainerFn.FITTING
        if not fits and not self._is_offloaded():
            assert self.model is not None  # connect() has been called
            self.model.to(self.root_device)

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
        made = offload(self.lightning_module, optimizer=rule, params=groups,
                       device=self.root_device, **self._where)[1]
        self._offloaded, self.optimizers = made, [made]
        share_groups(given, made)
        # Ranks add up their gradients only in step(), so that clips. One rank has the same bits.
        plugin: Any = self.precision_plugin
        plugin.clip_grad_by_norm = \
            lambda _optimizer, clip_val: made.clip_in_step(float(clip_val))

    def _is_offloaded(self) -> bool:
        return self._offloaded is not None and self._offloaded.is_open()

    def teardown(self) -> None:
        """The module stays offloaded, and can be used on. Strategy.optimizers[0].restore() brings
        it back into torch's memory."""
        if not self._is_offloaded():
            super().teardown()
            return
        if self.cluster_environment is not None:
            self.cluster_environment.teardown()
        self.precision_plugin.teardown()
        if self.accelerator is not None:
            self.accelerator.teardown()
        self.checkpoint_io.teardown()


def _operation_of(named: Any, mean: bool) -> Any:
    if mean:
        return dist.ReduceOp.SUM
    return getattr(dist.ReduceOp, named.upper()) if isinstance(named, str) else named


if Strategy.strategy_name not in StrategyRegistry:
    StrategyRegistry.register(Strategy.strategy_name, Strategy,
                              description="parameters and optimizer state by headrace.offload()")
