# SPDX-License-Identifier: Apache-2.0
"""What headrace.deepspeed.initialize() returns in the place of a DeepSpeedEngine: the calls that
programs, Accelerate and Hugging Face's Trainer make, over headrace.offload()."""
from __future__ import annotations

import logging
import os
from typing import Any, Optional

import torch

from .._errors import ArgumentError, Unsupported, WrongState
from .._library import unbroken
from ..torch.offload import _trainer_state
from ..torch.offload._ranks import Ranks
from . import _checkpoints
from ._config import Loop
from ._questions import Questions, missing
from ._scaled_passes import ScaledPasses

_log = logging.getLogger("headrace.deepspeed")
# What schedules write into groups, and read there again.
_OF_SCHEDULES = ("lr", "initial_lr", "min_lr", "max_lr", "betas", "momentum", "base_momentum",
                 "max_momentum")


class Engine(Questions, torch.nn.Module):
    """Trains `module`, whose parameters live in an engine of headrace.

    backward() and step() belong together, once per micro-batch. Every gradient_accumulation_steps
    times, step() clips, updates, drops the gradients, and advances the schedule.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any, lr_scheduler: Any, loop: Loop,
                 config: dict, trains: bool, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks
        self.module, self.optimizer, self.lr_scheduler = model, optimizer, lr_scheduler
        self.config, self._loop, self._trains = config, loop, trains
        self.micro_steps = self.global_steps = self.global_samples = self.skipped_steps = 0
        self._since_update = 0  # micro-batches
        self._scaled_passes = ScaledPasses()
        if trains and self.fp16_enabled():
            optimizer.tell_scaled_gradients(self._scaled_passes.runs)
        self._adds = loop.accumulation > 1
        self._boundary: Optional[bool] = None  # what set_gradient_accumulation_boundary() said
        self._norm: Optional[torch.Tensor] = None
        self._applied = False

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__["_modules"].get("module")
            if module is None:
                raise
        try:
            return getattr(module, name)  # as DeepSpeed's engine does
        except AttributeError as error:
            raise missing(name, module) from error

    # ---- a step ----
    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False,
                 scale_wrt_gas: bool = True) -> torch.Tensor:
        """Of the loss divided by the number of micro-batches in a step, unless scale_wrt_gas is
        False. Returns what it began with."""
        self._refuse_without_optimizer("backward()")
        if loss.numel() != 1:
            raise ValueError(f"the loss has {loss.numel()} elements; no gradient was computed. "
                             "Give its mean or sum.")
        if hasattr(loss, "_headrace_scaled"):
            raise WrongState("backward() of a loss that scale() has scaled; no gradient was "
                             "computed, since it would be scaled twice. Give the loss itself.")
        if scale_wrt_gas:
            loss = loss / self._loop.accumulation
        self._scaled(loss).backward(retain_graph=retain_graph)
        return loss

    def is_gradient_accumulation_boundary(self) -> bool:
        if self._boundary is not None:
            return self._boundary
        return self._since_update + 1 >= self._loop.accumulation

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self._boundary = is_boundary

    def step(self, lr_kwargs: Optional[dict] = None) -> None:
        self._refuse_without_optimizer("step()")
        self._applied = False
        self._refuse_unscaled()
        is_boundary = self.is_gradient_accumulation_boundary()
        if is_boundary:
            self._refuse_missing_metrics(lr_kwargs or {})
        self._since_update += 1
        if is_boundary:
            self._since_update = 0  # also after an error: what came is of no use then
            self._update(lr_kwargs or {})
        self.micro_steps += 1
        self.global_samples += self._loop.micro_batch * self._loop.world_size

    def _update(self, lr_kwargs: dict) -> None:
        before = self.optimizer.updates()
        self.optimizer.step(max_norm=self._loop.clipping,
                            gradient_scale=1 / self._loop.loss_scale.value)
        self._applied = self.optimizer.updates() > before
        self._norm = torch.tensor(self.optimizer.gradient_norm or 0.0)
        overflowed = self.optimizer.was_skipped()
        self.zero_grad()
        self.skipped_steps += overflowed
        self.global_steps += 1
        if self._applied or overflowed:  # a step without gradients says nothing about the scale
            self._loop.loss_scale.update(overflowed)
        if self.lr_scheduler is not None and self._applied:
            self.lr_scheduler.step(**lr_kwargs)
        every = self._loop.steps_per_print
        if every and self.global_steps % every == 0:
            _log.info("step=%d, skipped=%d, lr=%s", self.global_steps, self.skipped_steps,
                      self.get_lr())

    def _refuse_unscaled(self) -> None:
        if not self.fp16_enabled():
            return
        has_gradients = any(one.grad is not None for one in self.module.parameters())
        if self.optimizer.has_unscaled_gradients() \
                or has_gradients and not self._scaled_passes.any_began:
            raise WrongState("step() in fp16 after a backward() of a loss that was not scaled, so "
                             "small gradients were lost; nothing was updated. Call "
                             "engine.backward(loss), or engine.scale(loss).backward(), and "
                             "engine.zero_grad() before.")

    def _refuse_missing_metrics(self, lr_kwargs: dict) -> None:
        if isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) \
                and "metrics" not in lr_kwargs:
            raise ArgumentError("ReduceLROnPlateau needs to be told a loss, and step() was not; "
                                "nothing was updated. Call step(lr_kwargs={\"metrics\": loss}), or "
                                "leave it out of initialize() and call its step() yourself.")

    def was_step_applied(self) -> bool:
        """Whether the last step() updated the weights."""
        return self._applied

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)
        self._scaled_passes.forget()

    def _refuse_without_optimizer(self, call: str) -> None:
        if not self._trains:
            raise WrongState(f"{call} of an engine without an optimizer; nothing was done. Give "
                             "initialize() one, or name it in config's optimizer.")
        self.optimizer.updates()  # raises after destroy()

    # ---- weights and checkpoints ----
    def module_state_dict(self, destination: Any = None, prefix: str = "",
                          keep_vars: bool = False,
                          exclude_frozen_parameters: bool = False) -> dict:
        """All weights, one at a time in memory, in files where the config names a drive."""
        weights = self.module.state_dict(destination=destination, prefix=prefix,
                                         keep_vars=keep_vars)
        for name, one in self.module.named_parameters(remove_duplicate=False):
            if exclude_frozen_parameters and not one.requires_grad:
                weights.pop(prefix + name, None)
        return weights

    def _zero3_consolidated_16bit_state_dict(
            self, exclude_frozen_parameters: bool = False) -> dict:
        return self.module_state_dict(exclude_frozen_parameters=exclude_frozen_parameters)

    def save_16bit_model(self, save_dir: Any, save_filename: str = "pytorch_model.bin",
                         exclude_frozen_parameters: bool = False) -> bool:
        weights = self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)
        if self._ranks.rank == 0:
            os.makedirs(save_dir, exist_ok=True)
            torch.save(weights, os.path.join(save_dir, save_filename))
        self._ranks.meet()
        return True

    save_fp16_model = save_16bit_model

    def save_checkpoint(self, save_dir: Any, tag: Any = None, client_state: Optional[dict] = None,
                        save_latest: bool = True, exclude_frozen_parameters: bool = False) -> bool:
        """Weights, masters and moments, the schedule and client_state. Frozen parameters are in
        it in any case. Complete or not there: `latest` is written last."""
        del exclude_frozen_parameters  # a resume needs them, and they are not held in memory
        self._refuse_without_optimizer("save_checkpoint()")
        tag = f"global_step{self.global_steps}" if tag is None else tag
        call = f"save_checkpoint({str(save_dir)!r})"
        with self._ranks.agreed(call):
            self._refuse_lost_gradients()
            own = _trainer_state.packed(self._own_state(client_state or {}))
            folder = _checkpoints.folder_to_save(save_dir, tag)
        _checkpoints.save_to(folder, call, self._ranks,
                             lambda folder: self.optimizer.save_checkpoint(folder, own))
        if save_latest and self._ranks.rank == 0:
            _checkpoints.note_latest(save_dir, tag)
        self._ranks.meet()
        return True

    def _refuse_lost_gradients(self) -> None:
        if self._since_update > 0:
            raise WrongState(f"save_checkpoint() after {self._since_update} of "
                             f"{self._loop.accumulation} micro-batches of a step, whose gradients "
                             "it would lose; nothing was saved. Call it after the last of them.")

    def load_checkpoint(self, load_dir: Any, tag: Any = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False, custom_load_fn: Any = None) -> tuple:
        """Returns the folder and the client_state, or (None, None) if load_dir has no `latest`."""
        del load_module_strict  # the engine's format always names what is missing or unexpected
        self._refuse_without_optimizer("load_checkpoint()")
        if custom_load_fn is not None or load_module_only or not load_optimizer_states:
            raise Unsupported("load_checkpoint() loads weights and optimizer state together; "
                              "nothing was loaded. Leave custom_load_fn, load_module_only and "
                              "load_optimizer_states out, or read weights alone with "
                              "module.load_state_dict().")
        folder = _checkpoints.folder_to_load(load_dir, tag, self._ranks)
        if folder is None:
            _log.warning("there is no 'latest' in %s, and no tag was given: nothing was loaded",
                         load_dir)
            return None, None
        return unbroken(lambda: self._load_from(folder, load_lr_scheduler_states))

    def _load_from(self, folder: Any, with_schedule: bool) -> tuple:
        groups = self.optimizer.param_groups
        own = [{key: group[key] for key in _OF_SCHEDULES if key in group} for group in groups] \
            if self.lr_scheduler is not None and not with_schedule else []
        loaded = self._load_parts(folder, with_schedule)
        for group, rates in zip(groups, own):
            group.update(rates)
        return loaded

    def _load_parts(self, folder: Any, with_schedule: bool) -> tuple:
        of_model, given = self.optimizer.load_checkpoint_parts(
            folder, lambda given: self._refuse_another_loop(
                _checkpoints.loop_state_of(given), with_schedule, folder))
        state = _checkpoints.loop_state_of(given)
        if state is None:
            _log.warning("%s has no state of a loop: weights, masters and moments were loaded; "
                         "counters and schedule are as they were%s", folder,
                         ", and so are rates and buffers" if of_model is None else "")
            return str(folder), {}
        return str(folder), self._take_own_state(state, with_schedule)

    def _name_of_schedule(self) -> Optional[str]:
        """None: there is none that has a state."""
        has_state = hasattr(self.lr_scheduler, "state_dict")
        return type(self.lr_scheduler).__name__ if has_state else None

    def _own_state(self, client_state: dict) -> dict:
        name = self._name_of_schedule()
        return {"client_state": client_state, "micro_steps": self.micro_steps,
                "global_steps": self.global_steps, "global_samples": self.global_samples,
                "skipped_steps": self.skipped_steps,
                "loss_scale": self._loop.loss_scale.state(),
                "schedule_name": name,
                "schedule": _trainer_state.plain(self.lr_scheduler.state_dict())
                if name is not None else None}

    def _take_own_state(self, state: dict, with_schedule: bool) -> dict:
        for name in ("micro_steps", "global_steps", "global_samples", "skipped_steps"):
            setattr(self, name, state[name])
        self._since_update = 0
        if "groups" in state:  # saved before the optimizer did it
            _trainer_state.take(_of_older(state), self.module, self.optimizer.param_groups)
        self._loop.loss_scale.restore(state.get("loss_scale"))
        if with_schedule and self._name_of_schedule() is not None and state["schedule"] is not None:
            self.lr_scheduler.load_state_dict(state["schedule"])
        return state["client_state"]

    def _refuse_another_loop(self, state: Optional[dict], with_schedule: bool,
                             folder: Any) -> None:
        """Before anything is loaded."""
        if state is None:
            return
        if "groups" in state:
            _trainer_state.refuse_another(_of_older(state), self.module,
                                          self.optimizer.param_groups, folder)
        if self.lr_scheduler is not None and not with_schedule:
            return  # this run's rates stay
        name = self._name_of_schedule()
        if (state["schedule"] is None) != (name is None):
            _log.warning("%s and this run do not both have a schedule: rates start as the "
                         "checkpoint's groups have them", folder)
            return
        saved = state.get("schedule_name", name)  # older checkpoints do not say
        if saved != name:
            raise ArgumentError(f"the schedule in {folder} is a {saved}, and that of this run is a "
                                f"{name}, to which the other's state means nothing; nothing was "
                                "loaded. Use the same schedule, or start this one anew: "
                                "load_checkpoint(..., load_lr_scheduler_states=False).")

    # ---- life ----
    def compile(self, *arguments: Any, **named: Any) -> None:
        self.module.compile(*arguments, **named)

    def destroy(self) -> None:
        """Brings the parameters back into torch's memory, so that the module can be used on. The
        optimizer's state is gone, and so are gradients that no step has used."""
        if self.optimizer.is_open():
            self.optimizer.zero_grad()
            self.optimizer.restore()


def _of_older(state: dict) -> dict:
    return {**state, "param_groups": state["groups"]}
