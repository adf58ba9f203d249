# SPDX-License-Identifier: Apache-2.0
"""The optimizers: what each calls its options, and how the engine's rules see them.

All take these, beside torch's own:
nvme: a folder on a drive for the state; None: in memory, unless config says otherwise.
config: more settings (docs/settings.md), such as {"headrace": {"host_budget_bytes": "8GiB"}}.
snapshots: a folder; state_dict() then saves the state there, and holds only a reference.
The first step() allocates.
"""
from __future__ import annotations

import ctypes
import math
from typing import Any, Mapping, Optional

from .._errors import ArgumentError, Unsupported
from ._optimizers import Offloaded

# What torch's rules do where these options are on, and a step here cannot.
_ON = {
    "amsgrad": "amsgrad is not among headrace's rules",
    "capturable": "a step here is the host's work, which no CUDA graph has",
    "differentiable": "autograd does not see a step here",
    "initial_accumulator_value": "Adagrad's sums of squares begin at 0 here"}
_SHORT = {"learning_rate_scale": "lr", "learning_rate_decay": "lr_decay"}


def _float_of(value: Any) -> float:
    """NaN for what is no number. A text is none, even if it spells one: schedulers multiply."""
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError):  # the last: a tensor of several numbers
        return math.nan


class _Rule(Offloaded):
    def __setstate__(self, state: dict) -> None:
        """torch calls it in a load. Groups of older optimizers and of DeepSpeed's lack maximize:
        each group keeps the one that it has."""
        own = [group["maximize"] for group in self.__dict__.get("param_groups", ())]
        super().__setstate__(state)
        for group, maximize in zip(self.param_groups, own):
            group.setdefault("maximize", maximize)

    def _checked(self, group: Mapping[str, Any], **values: Any) -> dict:
        """As floats from 0 on; betas below 1. An engine has them in f32."""
        floats = {name: _float_of(value) for name, value in values.items()}
        for name, value in floats.items():
            below = 1.0 if name.startswith("beta") else math.inf
            if not 0.0 <= value or ctypes.c_float(value).value >= below:
                raise ArgumentError(
                    f"{_SHORT.get(name, name)} is {values[name]!r} in {self._place_of(group)}; "
                    "nothing was done. Give a number from 0 on that float32 can hold, and betas "
                    "that it holds below 1.")
        return floats

    def _place_of(self, group: Mapping[str, Any]) -> str:
        number = next(i for i, one in enumerate(self.param_groups) if one is group)
        return f"param_groups[{number}]"

    def _betas(self, group: Mapping[str, Any]) -> dict:
        try:
            beta1, beta2 = group["betas"]
        except (TypeError, ValueError):
            raise ArgumentError(f"betas is {group['betas']!r} in {self._place_of(group)}; nothing "
                                "was done. Give two numbers.") from None
        return {"beta1": beta1, "beta2": beta2}


def _take_torchs(rule: str, options: Mapping[str, Any], *known: str) -> None:
    """Of torch's options, those that are no part of the rule: they only say how torch computes."""
    for key in options:
        if key not in ("foreach", "fused", "differentiable", *known):
            raise TypeError(f"{rule}.__init__() got an unexpected keyword argument '{key}'")
    _refuse_on(options, "differentiable", *known)


def _refuse_on(options: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if options.get(key):
            raise Unsupported(f"{key} is {options[key]!r}, and {_ON[key]}; nothing was done. Leave "
                              "it out, or use torch.optim.")


class Adam(_Rule):
    """torch.optim.Adam, with its state where the plan says."""

    _RULE = "adam"
    _CONTENTS = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}

    def __init__(self, params: Any, lr: Any = 1e-3, betas: tuple = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, amsgrad: bool = False, *, nvme: Optional[str] = None,
                 config: Optional[Mapping[str, Any]] = None, maximize: bool = False,
                 snapshots: Optional[str] = None, **of_torch: Any) -> None:
        _take_torchs("Adam", of_torch, "capturable")
        _refuse_on({"amsgrad": amsgrad}, "amsgrad")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps,
                                  "weight_decay": weight_decay, "maximize": maximize,
                                  "decoupled_weight_decay": self._RULE == "adamw"},  # as torch's
                         nvme, config, snapshots)

    def _refuse_others_decay(self, group: Mapping[str, Any]) -> None:
        """In torch, a group can have the other rule's."""
        own = self._RULE == "adamw"
        if group.get("decoupled_weight_decay", own) != own:
            raise ArgumentError(
                f"{self._place_of(group)} has decoupled_weight_decay={not own}, which is the rule "
                f"of {'Adam' if own else 'AdamW'}; nothing was done. An optimizer here has one "
                "rule for all of its groups: use two optimizers.")

    def _constants(self, group: Mapping[str, Any]) -> dict:
        _refuse_on(group, "amsgrad")
        self._refuse_others_decay(group)
        values = self._checked(group, learning_rate_scale=group["lr"], **self._betas(group),
                               eps=group["eps"], weight_decay=group["weight_decay"])
        return {**values, "maximize": int(group["maximize"])}


class AdamW(Adam):
    """torch.optim.AdamW, with its state where the plan says."""

    _RULE = "adamw"

    def __init__(self, params: Any, lr: Any = 1e-3, betas: tuple = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.01, amsgrad: bool = False, **options: Any) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)


class Adagrad(_Rule):
    """torch.optim.Adagrad, with its state where the plan says."""

    _RULE = "adagrad"
    _CONTENTS = {"sum": "exp_avg"}  # the only moment

    def __init__(self, params: Any, lr: Any = 1e-2, lr_decay: float = 0.0,
                 weight_decay: float = 0.0, eps: float = 1e-10, *, nvme: Optional[str] = None,
                 config: Optional[Mapping[str, Any]] = None, maximize: bool = False,
                 snapshots: Optional[str] = None, **of_torch: Any) -> None:
        _take_torchs("Adagrad", of_torch, "initial_accumulator_value")
        super().__init__(params, {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay,
                                  "eps": eps, "maximize": maximize}, nvme, config, snapshots)

    def _constants(self, group: Mapping[str, Any]) -> dict:
        _refuse_on(group, "initial_accumulator_value")
        values = self._checked(group, learning_rate_scale=group["lr"],
                               learning_rate_decay=group["lr_decay"], eps=group["eps"],
                               weight_decay=group["weight_decay"])
        return {**values, "maximize": int(group["maximize"])}


class Lion(_Rule):
    """Lion (arXiv 2302.06675), which torch does not have, with its state where the plan says."""

    _RULE = "lion"
    _CONTENTS = {"exp_avg": "exp_avg"}

    def __init__(self, params: Any, lr: Any = 1e-4, betas: tuple = (0.9, 0.99),
                 weight_decay: float = 0.0, *, nvme: Optional[str] = None,
                 config: Optional[Mapping[str, Any]] = None, maximize: bool = False,
                 snapshots: Optional[str] = None) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay,
                                  "maximize": maximize}, nvme, config, snapshots)

    def _constants(self, group: Mapping[str, Any]) -> dict:
        values = self._checked(group, learning_rate_scale=group["lr"], **self._betas(group),
                               weight_decay=group["weight_decay"])
        return {**values, "maximize": int(group["maximize"])}


class SGD(_Rule):
    """torch.optim.SGD, with its momentum where the plan says."""

    _KEYS = ()  # torch's does not count steps

    def __init__(self, params: Any, lr: Any = 1e-3, momentum: float = 0.0, dampening: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False, *,
                 nvme: Optional[str] = None, config: Optional[Mapping[str, Any]] = None,
                 maximize: bool = False, snapshots: Optional[str] = None,
                 **of_torch: Any) -> None:
        _take_torchs("SGD", of_torch)
        params = list(params)
        has_momentum = bool(momentum) or any(isinstance(group, dict) and group.get("momentum")
                                             for group in params)
        # Without momentum there is no state.
        self._RULE = "sgd_momentum" if has_momentum else "sgd"
        self._CONTENTS = {"momentum_buffer": "exp_avg"} if has_momentum else {}
        super().__init__(params, {"lr": lr, "momentum": momentum, "dampening": dampening,
                                  "weight_decay": weight_decay, "nesterov": nesterov,
                                  "maximize": maximize}, nvme, config, snapshots)

    def _constants(self, group: Mapping[str, Any]) -> dict:
        values = self._checked(group, learning_rate_scale=group["lr"], momentum=group["momentum"],
                               dampening=group["dampening"], weight_decay=group["weight_decay"])
        if group["momentum"] and self._RULE == "sgd":
            raise ArgumentError("a parameter group has momentum, and the first ones of this "
                                "optimizer have none, so it has no room for it; nothing was done. "
                                "Give momentum to the optimizer, and 0 to the groups without.")
        if group["nesterov"] and not (group["momentum"] > 0 and group["dampening"] == 0):
            raise ArgumentError("nesterov needs a momentum and no dampening; nothing was done. "
                                "Give momentum=0.9, or leave nesterov out.")
        return {**values, "nesterov": int(group["nesterov"]), "maximize": int(group["maximize"])}
