# SPDX-License-Identifier: Apache-2.0
"""initialize(), with the arguments and results of deepspeed.initialize()."""
from __future__ import annotations

import contextlib
import copy
import os
from typing import Any, Callable, Mapping, Optional

import torch

from .._errors import ArgumentError, PeerLost, Unsupported
from .._settings import called
from ..torch import offload as rooms
from ..torch._part import NAMES
from ..torch.offload import _building, _given_optimizer, _settings
from ..torch.offload._blocks import automatic_or_leaves
from ..torch.offload._ranks import Ranks, ranks_of
from . import _config
from ._engine import Engine

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def initialize(args: Any = None, model: Optional[torch.nn.Module] = None,
               optimizer: Any = None, model_parameters: Any = None, training_data: Any = None,
               lr_scheduler: Any = None, distributed_port: Any = None, mpu: Any = None,
               dist_init_required: Any = None, collate_fn: Optional[Callable] = None,
               config: Any = None, mesh_param: Any = None, config_params: Any = None) -> tuple:
    """Trains `model` with headrace.offload(), as the DeepSpeed file `config` says. Returns the
    engine, the optimizer (None without one), a loader of training_data or None, and the schedule or
    None. docs/python.md lists what differs. After an error, the model keeps its values, rounded to
    the file's dtype if the error came after that; with several ranks, none goes on."""
    del distributed_port  # where the ranks meet is said by their launcher
    ranks = _joined(dist_init_required)
    with ranks.told_of_errors():
        _refuse_wrong(model, mpu if mpu is not None else mesh_param)
        whole = _config.read(args, config, config_params)
        loop, rest = _config.split(whole, {NAMES[one.dtype] for one in model.parameters()
                                           if one.dtype in NAMES}, ranks.world_size)
        trains = optimizer is not None or bool(rest.get("optimizer"))
        if not trains and lr_scheduler is not None:
            raise ArgumentError("initialize() was given an lr_scheduler, and no optimizer; the "
                                "model is as it was. Name an optimizer in config, or leave both "
                                "out.")
        before = [(one, one.dtype, one.requires_grad) for one in model.parameters()]
        if not trains:
            model.requires_grad_(False)
        made = None
        try:
            with called(_config.name_of(args, config, config_params)):
                made = _offloaded(model, optimizer, model_parameters, rest, ranks)
            schedule = _schedule_of(lr_scheduler, optimizer, made, loop.scheduler) if trains \
                else None
            loader = _loader_of(training_data, loop, ranks, collate_fn)
        except BaseException as error:
            ranks.tell(error)
            _undo(made, before)
            raise
        made.ranks().close_group_of(ranks)
        made.end = "destroy() was called. Call headrace.deepspeed.initialize() again."
        engine = Engine(model, made, schedule, loop, whole, trains, made.ranks())
        return engine, made if trains else None, loader, schedule


def _refuse_wrong(model: Any, divisions: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model is a {type(model).__name__}, and initialize() takes a "
                            "torch.nn.Module; nothing was done.")
    if divisions is not None:
        raise Unsupported("mpu and mesh_param divide a model by tensors or layers among ranks, and "
                          "headrace.deepspeed gives each rank a part of all parameters; the model "
                          "is as it was. Leave them out.")


def _joined(wanted: Optional[bool]) -> Ranks:
    """As DeepSpeed does, the ranks that a launcher has started meet here, unless they have."""
    known = torch.distributed.is_available() and torch.distributed.is_initialized()
    if wanted is not False and not known and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        torch.distributed.init_process_group("gloo")
    return ranks_of(None)


def _loader_of(data: Any, loop: _config.Loop, ranks: Ranks,
               collate_fn: Optional[Callable]) -> Optional[torch.utils.data.DataLoader]:
    if data is None:
        return None
    sampler = torch.utils.data.distributed.DistributedSampler(
        data, ranks.world_size, ranks.rank) if ranks.several else None
    return torch.utils.data.DataLoader(data, loop.micro_batch, shuffle=sampler is None,
                                       sampler=sampler, collate_fn=collate_fn)


def _undo(made: Any, before: list) -> None:
    if made is not None:
        try:
            made.restore()
        except PeerLost:  # its cause is the error that is raised
            made.close()
    for parameter, dtype, requires_grad in before:
        parameter.requires_grad_(requires_grad)
        if parameter.dtype != dtype:
            with contextlib.suppress(RuntimeError):  # several ranks have lost its values
                _building.convert([parameter], dtype)
                parameter.data = parameter.data.to(dtype)


def _convert(model: torch.nn.Module, rest: Mapping[str, Any]) -> None:
    """To the dtype of the file, as DeepSpeed does."""
    for key, dtype in _DTYPES.items():
        if (rest.get(key) or {}).get("enabled") is True:
            _building.convert(model.parameters(), dtype)
            model.to(dtype)


def _offloaded(model: torch.nn.Module, optimizer: Any, model_parameters: Any, rest: dict,
               ranks: Ranks) -> Any:
    optimizer = _called(optimizer, model, model_parameters)
    given = None if optimizer is None else _given_optimizer.of_optimizer(optimizer)
    if given is None:
        _settings.rule_of(copy.deepcopy(rest), None, {})  # refuses before values are rounded
    _convert(model, rest)
    common: dict = {"device": _device_of(model),
                    "blocks": automatic_or_leaves(model), "collective": ranks.collective}
    if given is None:
        groups = _given_optimizer.of_parameters(model, model_parameters)
        return rooms.offload(model, rest, params=groups, **common)[1]
    rest.pop("optimizer", None)  # the program's own goes before the file's, as in DeepSpeed
    made = rooms.offload(model, rest, optimizer=given[0], params=given[1], **common)[1]
    _given_optimizer.share_groups(optimizer, made)
    return made


def _called(optimizer: Any, model: torch.nn.Module, model_parameters: Any) -> Any:
    if not callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    return optimizer(list(model.parameters()) if model_parameters is None else model_parameters)


def _device_of(model: torch.nn.Module) -> Optional[str]:
    """A GPU, where there is one, as DeepSpeed's accelerator does; else where the model is."""
    on_cpu = all(one.device.type == "cpu" for one in model.parameters())
    return "cuda" if on_cpu and _accelerator() == "cuda" else None


def _accelerator() -> str:
    try:
        from deepspeed.accelerator import get_accelerator
    except ImportError:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(get_accelerator().device_name())


def _schedule_of(given: Any, old: Any, optimizer: Any, section: Optional[Mapping]) -> Any:
    if given is None:
        return _schedule_from(section, optimizer) if section else None
    if getattr(given, "optimizer", None) is not None:
        if not _has_groups_of(given.optimizer, old):
            raise ArgumentError("lr_scheduler belongs to another optimizer than the one that "
                                "initialize() was given; it would change nothing. Make it for that "
                                "one, or give a function that takes the optimizer.")
        return given  # the groups are shared
    if callable(given):
        return given(optimizer)
    raise ArgumentError(f"lr_scheduler is a {type(given).__name__}; nothing was scheduled. Give "
                        "one of torch.optim.lr_scheduler, or a function that takes the optimizer.")


def _has_groups_of(one: Any, other: Any) -> bool:
    """The same, or one that it was made of, as Accelerate does."""
    groups, others = ([id(group) for group in getattr(each, "param_groups", ())]
                      for each in (one, other))
    return one is other or groups == others != []


def _schedule_from(section: Mapping[str, Any], optimizer: Any) -> Any:
    name, options = section.get("type"), dict(section.get("params") or {})
    kind = getattr(torch.optim.lr_scheduler, str(name), None)
    if kind is None:
        try:
            from deepspeed.runtime import lr_schedules
        except ImportError as error:
            raise Unsupported(f"the schedule '{name}' of config is DeepSpeed's, which is not "
                              "installed. Install it, or give lr_scheduler=.") from error
        kind = getattr(lr_schedules, str(name), None)
    if kind is None or kind is torch.optim.lr_scheduler.ReduceLROnPlateau:
        raise ArgumentError(f"the schedule '{name}' of config is neither torch's nor DeepSpeed's. "
                            "Correct its type, or give lr_scheduler=.")
    return kind(optimizer, **options)
