# SPDX-License-Identifier: Apache-2.0
"""What programs ask a DeepSpeedEngine, apart from training and checkpoints: numbers of the loop and
the optimizer, and what has no effect here."""
from __future__ import annotations

import contextlib
import os
from typing import Any, ContextManager, Optional

import torch

from .._errors import ArgumentError, Unsupported, WrongState
from ..torch.offload._ranks import Ranks
from ._config import Loop
from ._loss_scale import LossScale
from ._scaled_passes import ScaledPasses

# Of methods that a DeepSpeedEngine has, and headrace's engine has not.
_INSTEAD = {
    "allreduce_gradients": "step() has the gradients of all ranks: leave the call out.",
    "clip_fp32_gradients": "Give gradient_clipping in config.",
    "deepspeed_io": "Give initialize() training_data, or make a torch.utils.data.DataLoader.",
    "load_module_state_dict": "Call module.load_state_dict().",
    "offload_states": "Call optimizer.sleep(folder).",
    "optimizer_name": "Read config['optimizer'].",
    "optimizer_params": "Read config['optimizer'].",
    "reload_states": "Call optimizer.wake().",
    "scheduler_name": "Read config['scheduler'].",
    "scheduler_params": "Read config['scheduler'].",
    "train_batch": "Call the engine, backward() and step() for each micro-batch.",
    "eval_batch": "Call the engine."}


def missing(name: str, module: torch.nn.Module) -> AttributeError:
    help_text = _INSTEAD.get(name, "docs/python.md lists the methods of DeepSpeed's engine that "
                                   "there are; what the file says is in engine.config.")
    return AttributeError(f"neither headrace's engine nor its {type(module).__name__} has "
                          f"'{name}'; nothing was done. {help_text}", name=name)


class Questions:
    mp_world_size = 1

    module: torch.nn.Module
    optimizer: Any
    config: dict
    _loop: Loop
    _adds: bool  # made for several micro-batches in a step
    _norm: Optional[torch.Tensor]
    _ranks: Ranks
    _since_update: int
    _scaled_passes: ScaledPasses

    # ---- the optimizer ----
    def get_global_grad_norm(self) -> Optional[torch.Tensor]:
        """Of the last update, before clipping."""
        return self._norm

    def get_lr(self) -> list:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_mom(self) -> list:
        """Of each group the betas, or of SGD the momentum; None: its rule has neither."""
        return [group.get("betas", group.get("momentum")) for group in self.optimizer.param_groups]

    def loss_scale(self) -> float:
        return self._loop.loss_scale.value

    def dynamic_loss_scale(self) -> bool:
        return self._loop.loss_scale.dynamic

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """For a program that calls backward() of the loss itself: the loss divided by the number of
        micro-batches in a step, and multiplied by the scale of fp16."""
        return self._scaled(loss / self._loop.accumulation if self._loop.accumulation > 1 else loss)

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        if not self.fp16_enabled():
            return loss
        scaled = loss.float() * self._loop.loss_scale.value
        self._scaled_passes.watch(scaled)
        scaled._headrace_scaled = True  # type: ignore[attr-defined]
        return scaled

    def fp16_enabled(self) -> bool:
        """Whether the file converts the model to fp16."""
        return isinstance(self._loop.loss_scale, LossScale)

    def bfloat16_enabled(self) -> bool:
        """Whether a trained parameter is in bf16, by the file or by itself."""
        return any(one.dtype == torch.bfloat16 for one in self.module.parameters()
                   if one.requires_grad)

    # ---- the ranks ----
    @property
    def world_size(self) -> int:
        return self._loop.world_size

    dp_world_size = world_size

    @property
    def global_rank(self) -> int:
        return self._ranks.rank

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", 0))

    # ---- the loop ----
    def train_batch_size(self) -> int:
        return self._loop.micro_batch * self._loop.accumulation * self._loop.world_size

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._loop.micro_batch

    def gradient_accumulation_steps(self) -> int:
        return self._loop.accumulation

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """By another number of micro-batches in a step."""
        of_all = self._loop.micro_batch * self._loop.world_size
        accumulation, rest = divmod(train_batch_size, of_all)
        if accumulation < 1 or rest:
            raise ArgumentError(f"train_batch_size {train_batch_size} is no multiple of the "
                                f"micro-batch of {of_all} on all ranks; nothing was changed. "
                                "Give a multiple of it.")
        if self._since_update > 0:
            raise WrongState(f"set_train_batch_size() after {self._since_update} of "
                             f"{self._loop.accumulation} micro-batches of a step; nothing was "
                             "changed. Call it after the last of them.")
        if accumulation > 1 and not self._adds and any(
                one.requires_grad and one.dtype != torch.float32
                for one in self.module.parameters()):
            raise Unsupported("set_train_batch_size() for several micro-batches in a step, and "
                              "initialize() has made an engine for one, which does not add up "
                              "16-bit gradients; nothing was changed. Give initialize() "
                              "gradient_accumulation_steps of 2 or more, and lower it afterwards.")
        self._loop.accumulation = accumulation

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        self._loop.micro_batch = micro_batch_size

    def steps_per_print(self) -> Optional[int]:
        return self._loop.steps_per_print

    def gradient_clipping(self) -> float:
        return self._loop.clipping

    # ---- ZeRO ----
    def zero_optimization_stage(self) -> int:
        return self._loop.stage

    def zero_optimization(self) -> bool:
        return self._loop.stage > 0

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        return self._loop.gathers_on_save

    def empty_partition_cache(self) -> None:
        """A block's memory is free again after each use."""

    def no_sync(self) -> ContextManager[None]:
        """Gradients go to the ranks that add them up as they come, whatever is said."""
        return contextlib.nullcontext()

    @property
    def device(self) -> torch.device:
        return self.optimizer.model_device()
