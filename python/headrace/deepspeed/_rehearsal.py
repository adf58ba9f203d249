# SPDX-License-Identifier: Apache-2.0
"""What headrace.offload() would refuse, found before the model is converted: a conversion rounds
values, and nobody keeps the others."""
from __future__ import annotations

import copy
import errno
import os
from typing import Any, Mapping, NoReturn, Optional

import torch

from .._engine import resolved
from .._errors import ArgumentError, NoSuchFile
from .._settings import refuse_durable
from ..torch import offload as rooms
from ..torch._part import NAMES
from ..torch.offload import _blocks, _private, _settings
from ..torch.offload._device import device_of
from ..torch.offload._offload import Offload
from ..torch.offload._ranks import Ranks
from . import _schedules


class _Passed(Exception):
    """Nothing was refused."""


class _Rehearsed(Offload):
    """Ends where an engine would be made. Groups and slots change nothing in a model."""

    def start(self, settings: dict, *_: Any) -> NoReturn:
        _refuse_settings(settings)
        raise _Passed


def rehearse(model: torch.nn.Module, settings: Mapping[str, Any], rule_name: Optional[str],
             groups: Optional[list], ranks: Ranks, device: Any, blocks: Any) -> Any:
    """An optimizer like the one that will train, without an engine; None: the conversion itself
    changes what offload() looks at. The arguments are those of offload()."""
    rooms._refuse_twice(model)
    _private.refuse_other_torch()
    refuse_durable(settings, "the model is as it was")
    settings = _settings.read(settings)
    _settings.host_checkpoints(settings)
    folder = _settings.place(settings, None, None)
    rule, options = _settings.rule_of(settings, rule_name, {})
    if not all(map(_stays, model.parameters())):
        _refuse_settings(settings)
        return None
    of_model = _Rehearsed(model, _blocks.divide(model, blocks), folder, device_of(model, device),
                          ranks, _settings.words_of(None))
    params = list(model.named_parameters()) if groups is None else \
        [{**group, "params": list(group["params"])} for group in groups]
    made = rooms._made(rule, params, {"snapshots": None, **options})
    try:
        made.adopt(of_model, settings, folder)
    except _Passed:
        pass
    return made


def rehearse_schedule(section: Any, optimizer: Any, given: Optional[torch.optim.Optimizer]) -> None:
    """One that a file names, with its parameters. given: the program's, whose groups will be those
    of the optimizer that trains."""
    if not section or optimizer is None:
        return
    for theirs, ours in zip(given.param_groups if given is not None else (),
                            optimizer.param_groups):
        for key, value in theirs.items():
            ours.setdefault(key, copy.copy(value))
    try:
        _schedules.of_section(section, optimizer)
    except Exception as error:
        raise ArgumentError(f"the schedule '{section.get('type')}' of config cannot be made of its "
                            f"params: {error}; the model is as it was. Correct them.") from error


def _stays(parameter: torch.Tensor) -> bool:
    """Whether a conversion leaves all of it as it is, but for a dtype that the engine has."""
    return parameter.layout == torch.strided and parameter.is_contiguous() and (
        parameter.dtype in NAMES or not parameter.is_floating_point())


def _refuse_settings(settings: Mapping[str, Any]) -> None:
    whole = resolved(settings)
    tiers = [tier for key, tier in whole["zero_optimization"].items() if key.startswith("offload_")]
    if not any(tier["device"] == "nvme" for tier in tiers):
        return
    for path in whole["headrace"]["nvme_paths"]:
        if not os.path.isdir(path):
            raise NoSuchFile(f"config has the nvme_path {path}, which is no folder; the model is "
                             "as it was. Create it (mkdir -p), or name another one.",
                             errno=errno.ENOENT)
