# SPDX-License-Identifier: Apache-2.0
"""Schedules of learning rates: the program's, or one that a DeepSpeed file names."""
from __future__ import annotations

from typing import Any, Mapping

import torch

from .._errors import ArgumentError, Unsupported
from ..torch.offload import _given_optimizer


def refuse(given: Any, old: Any, section: Any) -> None:
    """Before anything changes. old: the program's optimizer, or None."""
    if given is None:
        if section:
            _kind_of(section)
    elif _optimizer_of(given) is not None:
        if not _has_groups_of(given.optimizer, old):
            raise ArgumentError("lr_scheduler belongs to another optimizer than the one that "
                                "initialize() was given; it would change nothing, and the model is "
                                "as it was. Make it for that one, or give a function that takes "
                                "the optimizer.")
    elif not callable(given):
        raise ArgumentError(f"lr_scheduler is a {type(given).__name__}; the model is as it was. "
                            "Give one of torch.optim.lr_scheduler, or a function that takes the "
                            "optimizer.")


def made(given: Any, section: Any, optimizer: Any) -> Any:
    """For the optimizer that trains, after refuse()."""
    if given is None:
        return of_section(section, optimizer) if section else None
    other = _optimizer_of(given)
    if other is None:
        return given(optimizer)
    if other.param_groups is not optimizer.param_groups:
        _given_optimizer.follow(other, optimizer)
    return given  # the groups are shared


def of_section(section: Mapping[str, Any], optimizer: Any) -> Any:
    return _kind_of(section)(optimizer, **(section.get("params") or {}))


def _optimizer_of(schedule: Any) -> Any:
    return getattr(schedule, "optimizer", None)


def _has_groups_of(one: Any, other: Any) -> bool:
    """The same, or one that it was made of, as Accelerate does."""
    groups, others = ([id(group) for group in getattr(each, "param_groups", ())]
                      for each in (one, other))
    return one is other or groups == others != []


def _kind_of(section: Mapping[str, Any]) -> Any:
    name = section.get("type")
    kind = getattr(torch.optim.lr_scheduler, str(name), None)
    if kind is None:
        try:
            from deepspeed.runtime import lr_schedules
        except ImportError as error:
            raise Unsupported(f"the schedule '{name}' of config is not torch's, and DeepSpeed, "
                              "which has others, is not installed; the model is as it was. Install "
                              "it, correct the type, or give lr_scheduler=.") from error
        kind = getattr(lr_schedules, str(name), None)
    if not isinstance(kind, type) or kind is torch.optim.lr_scheduler.ReduceLROnPlateau:
        raise ArgumentError(f"the schedule '{name}' of config is neither torch's nor DeepSpeed's; "
                            "the model is as it was. Correct its type, or give lr_scheduler=.")
    return kind
