# SPDX-License-Identifier: Apache-2.0
"""initialize(), with the arguments and results of deepspeed.initialize()."""
from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Optional

import torch

from .._errors import ArgumentError, Unsupported
from .._settings import called
from ..torch import offload as rooms
from ..torch._part import NAMES
from ..torch.offload import _building, _given_optimizer
from ..torch.offload._blocks import automatic_or_leaves
from ..torch.offload._ranks import Ranks, ranks_of
from . import _config, _schedules
from ._before import Before
from ._engine import Engine
from ._rehearsal import rehearse, rehearse_schedule

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def initialize(args: Any = None, model: Optional[torch.nn.Module] = None,
               optimizer: Any = None, model_parameters: Any = None, training_data: Any = None,
               lr_scheduler: Any = None, distributed_port: Any = None, mpu: Any = None,
               dist_init_required: Any = None, collate_fn: Optional[Callable] = None,
               config: Any = None, mesh_param: Any = None, config_params: Any = None) -> tuple:
    """Trains `model` with headrace.offload(), as the DeepSpeed file `config` says. Returns the
    engine, the optimizer (None without one), a loader of training_data or None, and the schedule or
    None. docs/python.md lists what differs. What can be refused is refused before the model
    changes. An error that comes after its conversion to the file's dtype, such as of a full drive,
    says that its values are rounded; with several ranks, none goes on."""
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
        scheduler = loop.scheduler if trains and lr_scheduler is None else None
        before, made = Before(model), None
        if not trains:
            model.requires_grad_(False)
        try:
            loader = _loader_of(training_data, loop, ranks, collate_fn)
            optimizer = _called(optimizer, model, model_parameters)
            _schedules.refuse(lr_scheduler, optimizer, scheduler)
            with called(_config.name_of(args, config, config_params)):
                made = _offloaded(model, optimizer, model_parameters, rest, ranks, scheduler)
            schedule = _schedules.made(lr_scheduler, scheduler, made)
        except BaseException as error:
            ranks.tell(error)
            before.bring_back(made, error)
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


def _convert(model: torch.nn.Module, rest: Mapping[str, Any]) -> None:
    """To the dtype of the file, as DeepSpeed does."""
    for key, dtype in _DTYPES.items():
        if (rest.get(key) or {}).get("enabled") is True:
            _building.convert(model.parameters(), dtype)
            model.to(dtype)


def _offloaded(model: torch.nn.Module, optimizer: Any, model_parameters: Any, rest: dict,
               ranks: Ranks, scheduler: Optional[Mapping]) -> Any:
    """scheduler: of the file, which is made later."""
    rule, groups = (None, _given_optimizer.of_parameters(model, model_parameters)) \
        if optimizer is None else _given_optimizer.of_optimizer(optimizer)
    if optimizer is not None:
        rest.pop("optimizer", None)  # the program's own goes before the file's, as in DeepSpeed
    device, blocks = _device_of(model), automatic_or_leaves(model)
    rehearsed = rehearse(model, rest, rule, groups, ranks, device, blocks)
    rehearse_schedule(scheduler, rehearsed, optimizer)
    _convert(model, rest)
    made = rooms.offload(model, rest, optimizer=rule, params=groups, device=device, blocks=blocks,
                         collective=ranks.collective)[1]
    if optimizer is not None:
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
