# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer, and those that are derived from it:

  headrace.transformers.offload(trainer, nvme="/mnt/nvme")  # before trainer.train()

The trainer makes its optimizer when training begins: that one says what is trained, and how. With
several processes, which torchrun or accelerate launch started, each is a rank of one model.
"""
from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Mapping
from typing import Any, Iterator, Optional, Union

from ._errors import Unsupported, WrongState
from .torch import offload as rooms
from .torch.offload._given_optimizer import of_optimizer, share_groups

__all__ = ["offload"]


def offload(trainer: Any, config: Any = None, *, nvme: Optional[str] = None,
            host_budget: Union[int, str, None] = None, blocks: Any = "auto",
            snapshots: Optional[str] = None) -> None:
    """The trainer's model goes to headrace.offload(), whose arguments these are, when training
    begins."""
    where = {"config": _with_accumulation(config, trainer), "nvme": nvme, "blocks": blocks,
             "host_budget": host_budget, "snapshots": snapshots}
    make = trainer.create_optimizer

    def create_optimizer(*arguments: Any, **named: Any) -> Any:
        given = make(*arguments, **named)
        unwrapped = getattr(given, "optimizer", given)  # of accelerate's
        if not hasattr(unwrapped, "is_open"):  # else by the training run before
            _refuse_apart(trainer)
            rule, groups = of_optimizer(given)
            made = rooms.offload(trainer.model, optimizer=rule, params=groups, **where)[1]
            share_groups(given, made)
            trainer.optimizer = made
            _clip_in_step(trainer.accelerator, made)
            if made.ranks().several:
                _join(trainer)
        return trainer.optimizer

    trainer.create_optimizer = create_optimizer


def _with_accumulation(config: Any, trainer: Any) -> Any:
    """The engine adds gradients of 16 bits in f32 if it knows that several come."""
    steps = getattr(getattr(trainer, "args", None), "gradient_accumulation_steps", 1)
    if steps == 1 or not isinstance(config, (Mapping, type(None))):
        return config
    return {"gradient_accumulation_steps": steps, **(config or {})}


def processes_started() -> int:
    """By a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _refuse_apart(trainer: Any) -> None:
    """Each process would train a model of its own, on all of the data."""
    started = processes_started()
    if started != trainer.accelerator.num_processes:
        raise WrongState(f"a launcher has started {started} processes, and the Trainer has joined "
                         f"{trainer.accelerator.num_processes}; nothing was trained. Set "
                         "use_cpu=True in its TrainingArguments, or ACCELERATE_USE_CPU=true in the "
                         "environment: ranks are on the CPU.")


def _clip_in_step(accelerator: Any, made: Any) -> None:
    """Ranks add up their gradients only in step(). One rank clips there too: its bits are those of
    several."""
    def clip_grad_norm_(_parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        if norm_type != 2:
            raise Unsupported(f"the trainer clips by the norm of order {norm_type}, and the engine "
                              "has the 2-norm; nothing was clipped. Use norm_type=2.")
        return made.clip_in_step(max_norm)

    accelerator.clip_grad_norm_ = clip_grad_norm_


def _join(trainer: Any) -> None:
    """What a trainer of several processes would do otherwise: wrap the model in
    DistributedDataParallel, and ask for values on the rank that saves alone."""
    _check(trainer, "save_model", "_save_optimizer_and_scheduler")
    prepare, save = trainer.accelerator.prepare_model, trainer.save_model
    save_optimizer = trainer._save_optimizer_and_scheduler

    def prepare_model(model: Any, *_arguments: Any, **_named: Any) -> Any:
        """offload() has placed it, and there is nothing to wrap."""
        return prepare(model, device_placement=False, evaluation_mode=True)

    def save_model(*arguments: Any, **named: Any) -> Any:
        with saved_by_all(trainer.model):
            return save(*arguments, **named)

    def save_optimizer_and_scheduler(*arguments: Any, **named: Any) -> Any:
        with saved_by_all(trainer.optimizer):
            return save_optimizer(*arguments, **named)

    trainer.accelerator.prepare_model, trainer.save_model = prepare_model, save_model
    trainer._save_optimizer_and_scheduler = save_optimizer_and_scheduler


def _check(trainer: Any, *methods: str) -> None:
    missing = [name for name in methods if not hasattr(trainer, name)]
    if missing:
        import transformers
        raise Unsupported(
            f"{type(trainer).__name__} of transformers {transformers.__version__} has no method "
            f"{' and no '.join(missing)}, in which all ranks save together; nothing was trained. "
            "Use a version that docs/python.md names, or one process.")


@contextlib.contextmanager
def saved_by_all(one: Any) -> Iterator[None]:
    """Within, state_dict() of a model or an optimizer, which the first rank alone calls, returns
    what all ranks have joined. Collective. Within itself, as where push_to_hub() saves once more,
    it changes nothing."""
    of_program = vars(one).get("state_dict")
    if getattr(of_program, "func", None) is _given:
        yield
        return
    one.state_dict = functools.partial(_given, one.state_dict())
    try:
        yield
    finally:
        del one.state_dict
        if of_program is not None:
            one.state_dict = of_program


def _given(state: Any, *_arguments: Any, **_named: Any) -> Any:
    """save_pretrained() empties what it gets, and may be called again."""
    return copy.copy(state)
