# SPDX-License-Identifier: Apache-2.0
"""headrace.offload(): a model of torch whose parameters live in an engine.

_blocks.py finds the groups; _groups.py parks and binds their parameters; _forward.py and
_backward.py say when; _gradients.py takes gradients; _values.py moves values in and out;
_optimizer.py and _model_part.py update; _given_optimizer.py reads a program's own optimizer;
_trainer_state.py has what checkpoints hold beside the engine's values; _ranks.py is for several
processes; _checkpoints.py keeps inputs of checkpoints; _building.py is for models that are made;
_offload.py is all of one model; _private.py has the names that torch does not document.
"""
from __future__ import annotations

import contextlib
import os
from typing import Any, Iterable, Iterator, Optional, Union

import torch

from ..._collective import Collective
from ..._errors import ArgumentError, WrongState
from ..._settings import called, refuse_durable, whole_path
from .._part import with_dtype
from . import _blocks, _building, _private, _settings, _values
from ._device import device_of
from ._offload import Offload, live
from ._optimizer import OF_RULE
from ._ranks import ranks_of, world_size


def offload(model: torch.nn.Module, config: Any = None, *, nvme: Optional[str] = None,
            host_budget: Union[int, str, None] = None, blocks: _blocks.Blocks = "auto",
            optimizer: Optional[str] = None, params: Optional[Iterable[dict]] = None,
            snapshots: Optional[str] = None, device: Any = None,
            collective: Optional[Collective] = None, **options: Any) -> tuple:
    ranks = ranks_of(collective)  # first: the others wait for this one, also for its error
    with ranks.told_of_errors():
        if not isinstance(model, torch.nn.Module):
            raise ArgumentError(f"model is a {type(model).__name__}, and offload() takes a "
                                "torch.nn.Module; nothing was done.")
        _private.refuse_other_torch()
        _refuse_twice(model)
        settings = _settings.read(config)
        refuse_durable(settings, "the model is as it was")
        in_host = _settings.host_checkpoints(settings)
        folder = _settings.place(settings, nvme, host_budget)
        name = config if isinstance(config, (str, os.PathLike)) else "config"
        with called(name):
            rule, options = _settings.rule_of(settings, optimizer, options)
        divisions = _blocks.divide(model, blocks)
        of_model = Offload(model, divisions, folder, device_of(model, device), ranks,
                           _settings.words_of(host_budget), in_host)
        kinds = {slot.kind for slot in of_model.slots} - {"u8"}
        if name == "config":  # a file says what DeepSpeed would train
            settings = with_dtype(settings, kinds)
        _settings.settle_dtype(settings, kinds)
        made = _made(rule, params if params is not None else list(model.named_parameters()),
                     {"snapshots": snapshots, **options})
        # Tensors that are made in inference mode could not be trained.
        with called(name), torch.inference_mode(False):
            made.adopt(of_model, settings, folder)
        return model, made


def _made(rule: type, params: Any, options: dict) -> Any:
    try:
        return OF_RULE[rule](params, **options)
    except TypeError as error:
        raise ArgumentError(f"{rule.__name__} cannot be made of these options: {error}; the model "
                            "is as it was. offload() passes on what it does not know itself.") \
            from error


def _refuse_twice(model: torch.nn.Module) -> None:
    for other in live():
        if any(other.has(parameter) for parameter in model.parameters()):
            raise WrongState(f"this {type(model).__name__} is offloaded already, or has parameters "
                             "of a model that is; nothing was done. Call restore() of its "
                             "optimizer first.")


def building(nvme: str) -> _building.Building:
    _private.refuse_other_torch()
    return _building.Building(whole_path(nvme, "nvme", "no model was made"))


@contextlib.contextmanager
def gathered(what: Any, *, modify: bool = False, of_rank: Optional[int] = None) -> Iterator[Any]:
    parameters = _parameters_of(what)
    with contextlib.ExitStack() as scopes:
        for one in live():
            own = one.wholes_of(parameters)
            if own:
                scopes.enter_context(_values.modify_scope(one, own, of_rank) if modify
                                     else _values.read_scope(one, own))
        yield what


def spread(what: Any, rank: int) -> None:
    """Of parameters that are not offloaded, the rank's values become those of all ranks of
    torch.distributed. Collective."""
    if world_size() < 2:
        return
    for one in _parameters_of(what):
        if one.device.type == "meta" or any(offload.has(one) for offload in live()):
            continue
        values = one.detach().contiguous()
        torch.distributed.broadcast(values, src=rank)
        if values.data_ptr() != one.data_ptr():
            one.data.copy_(values)


def _parameters_of(what: Any) -> list:
    if isinstance(what, torch.nn.Module):
        return list(what.parameters())
    return [what] if isinstance(what, torch.Tensor) else list(what)
