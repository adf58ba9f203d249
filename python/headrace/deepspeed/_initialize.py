# SPDX-License-Identifier: Apache-2.0
"""initialize(), with the arguments and results of deepspeed.initialize()."""
from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

import torch

from .._errors import ArgumentError, Unsupported
from ..torch import offload as rooms
from ..torch.offload import _given_optimizer
from ..torch.offload._blocks import automatic_or_leaves
from . import _config
from ._engine import Engine

_DTYPES = {"bf16": torch.bfloat16}


def initialize(args: Any = None, model: Optional[torch.nn.Module] = None,
               optimizer: Any = None, model_parameters: Any = None, training_data: Any = None,
               lr_scheduler: Any = None, distributed_port: Any = None, mpu: Any = None,
               dist_init_required: Any = None, collate_fn: Optional[Callable] = None,
               config: Any = None, mesh_param: Any = None, config_params: Any = None) -> tuple:
    """Trains `model` with headrace.offload(), as the DeepSpeed file `config` says. Returns the
    engine, the optimizer (None without one), a loader of training_data or None, and the schedule or
    None. docs/python.md lists what differs. One process; after an error, the model keeps its
    values."""
    del distributed_port, dist_init_required  # one process has nobody to call
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model is a {type(model).__name__}, and initialize() takes a "
                            "torch.nn.Module; nothing was done.")
    if mpu is not None or mesh_param is not None:
        raise Unsupported("mpu and mesh_param divide a model among processes, and "
                          "headrace.deepspeed trains in one; the model is as it was. Leave them "
                          "out.")
    whole = _config.read(args, config, config_params)
    loop, rest = _config.split(whole)
    trains = optimizer is not None or bool(rest.get("optimizer"))
    if not trains:
        model.requires_grad_(False)
    _convert(model, rest)
    made = _offloaded(model, optimizer, model_parameters, rest)
    schedule = _schedule_of(lr_scheduler, optimizer, made, loop.scheduler) if trains else None
    engine = Engine(model, made, schedule, loop, whole, trains)
    loader = None if training_data is None else torch.utils.data.DataLoader(
        training_data, loop.micro_batch, shuffle=True, collate_fn=collate_fn, drop_last=True)
    return engine, made if trains else None, loader, schedule


def _convert(model: torch.nn.Module, rest: Mapping[str, Any]) -> None:
    """To the dtype of the file, as DeepSpeed does."""
    for key, dtype in _DTYPES.items():
        if (rest.get(key) or {}).get("enabled") is True:
            model.to(dtype)


def _offloaded(model: torch.nn.Module, optimizer: Any, model_parameters: Any, rest: dict) -> Any:
    common: dict = {"device": _device_of(model), "blocks": automatic_or_leaves(model)}
    if optimizer is None:
        groups = _given_optimizer.of_parameters(model, model_parameters)
        return rooms.offload(model, rest, params=groups, **common)[1]
    if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(list(model.parameters()) if model_parameters is None
                              else model_parameters)
    rest.pop("optimizer", None)  # the program's own goes before the file's, as in DeepSpeed
    rule, groups = _given_optimizer.of_optimizer(optimizer)
    return rooms.offload(model, rest, optimizer=rule, params=groups, **common)[1]


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
        if given.optimizer is not old:
            raise ArgumentError("lr_scheduler belongs to another optimizer than the one that "
                                "initialize() was given; it would change nothing. Make it for that "
                                "one, or give a function that takes the optimizer.")
        given.optimizer = optimizer  # whose groups have the same order
        return given
    if callable(given):
        return given(optimizer)
    raise ArgumentError(f"lr_scheduler is a {type(given).__name__}; nothing was scheduled. Give "
                        "one of torch.optim.lr_scheduler, or a function that takes the optimizer.")


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
    if kind is None:
        raise ArgumentError(f"the schedule '{name}' of config is neither torch's nor DeepSpeed's. "
                            "Correct its type, or give lr_scheduler=.")
    return kind(optimizer, **options)
