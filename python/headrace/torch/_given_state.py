# SPDX-License-Identifier: Apache-2.0
"""What is refused of a state_dict before anything changes: state of another model or rule, and
damaged numbers."""
from __future__ import annotations

from typing import Any, Collection, Mapping, Optional, Sequence

import torch

from .._errors import ArgumentError

_MOMENTS = {"exp_avg", "exp_avg_sq", "momentum_buffer", "sum"}  # of all rules
_MOST_STEPS = 1 << 48  # headrace_engine_set_step_count()


def by_number(state_dict: Mapping[str, Any], parameters: int) -> dict:
    """Its state by number of the parameter. Its groups say in which order it names them: with
    numbers, or with names, as torch's distributed checkpoints do."""
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    numbers = {key: number for number, key in enumerate(keys)}
    unknown = [key for key in state_dict["state"] if key not in numbers]
    if unknown or len(keys) != parameters:
        what = f"has state of parameter {unknown[0]}, which is in none of its groups" \
            if unknown else f"is of {len(keys)} parameters"
        raise ArgumentError(f"the state_dict {what}, and this optimizer has {parameters}; nothing "
                            "was loaded. Load the state of the same model.")
    return {numbers[key]: values for key, values in state_dict["state"].items()}


def check_groups(groups: Sequence[Mapping], options: Collection[str], decoupled: Optional[bool],
                 rule: str) -> None:
    """What tells the rules apart is in the groups: AdamW's state has Adam's form."""
    for group in groups:
        missing = set(options) - set(group)
        if missing or group.get("decoupled_weight_decay", decoupled) != decoupled:
            what = f"lacks {', '.join(sorted(missing))}" if missing else \
                f"has decoupled_weight_decay={not decoupled}"
            raise ArgumentError(f"a param_group of the state_dict {what}, so it is of another "
                                f"rule; nothing was loaded. Load the state of {rule}.")


def check_state(state: Mapping[int, Mapping], parameters: Sequence[torch.Tensor],
                keys: Collection[str], moments: Collection[str], rule: str) -> None:
    """keys: what each parameter's state has beside the moments."""
    for index, values in state.items():
        _check_rule(index, values, {*keys, *moments}, _MOMENTS - set(moments), rule)
        steps = float(values.get("step", 1))
        if not 0 <= steps <= _MOST_STEPS or steps != int(steps):
            raise ArgumentError(f"step of parameter {index} is {steps}; nothing was loaded. A "
                                "state has a whole number from 0 on: it is damaged.")
        for name in {*moments, *({"master"} & set(values))}:
            _check_tensor(index, name, values[name], parameters[index].shape)


# torch asks `state` of the optimizer for names, and it has only `step`.
_FLAT = (", and do not flatten it: torch's set_optimizer_state_dict() with "
         "flatten_optimizer_state_dict=True takes only step of it")


def _check_rule(index: int, values: Mapping, needed: set, foreign: set, rule: str) -> None:
    missing = needed - set(values)
    # torch's SGD without momentum saves a momentum_buffer of None.
    others = {name for name in foreign if values.get(name) is not None}
    if missing or others or "max_exp_avg_sq" in values:
        what = f"lacks {', '.join(sorted(missing))}" if missing else \
            f"has {', '.join(sorted(others))}" if others else "is of amsgrad"
        raise ArgumentError(f"the state of parameter {index} {what}; nothing was loaded. Load the "
                            f"state of {rule}{_FLAT if set(values) == {'step'} else ''}.")


def _check_tensor(index: int, name: str, values: Any, shape: torch.Size) -> None:
    if not isinstance(values, torch.Tensor):
        raise ArgumentError(f"{name} of parameter {index} is a {type(values).__name__} and no "
                            "tensor; nothing was loaded. Load a whole state.")
    if values.shape != shape:
        raise ArgumentError(f"{name} of parameter {index} has the shape {tuple(values.shape)}, and "
                            f"the parameter has {tuple(shape)}; nothing was loaded. Load the state "
                            "of the same model.")
