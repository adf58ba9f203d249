# SPDX-License-Identifier: Apache-2.0
"""A program's optimizer, or its parameters, as arguments of headrace.offload()."""
from __future__ import annotations

import weakref
from typing import Any, Iterable, Mapping, Optional

import torch

from ..._errors import ArgumentError, Unsupported, WrongState
from .._given_state import check_groups
from . import _private

# By the name of a class of torch's, DeepSpeed's or its own, headrace's rule.
_RULES = {"AdamW": "AdamW", "Adam": "Adam", "Adagrad": "Adagrad", "SGD": "SGD", "Lion": "Lion",
          "FusedAdam": "Adam", "FusedLion": "Lion", "DeepSpeedCPUAdam": "Adam",
          "DeepSpeedCPUAdagrad": "Adagrad", "DeepSpeedCPULion": "Lion"}
# Others have classes of these names too, which compute something else, such as 8-bit moments.
_HOMES = ("torch.optim", "deepspeed.ops", "headrace")
_OPTIONS = {"lr", "betas", "eps", "weight_decay", "maximize", "momentum", "dampening", "nesterov",
            "lr_decay"}
# What only says how torch computes, and what every rule here does.
_WITHOUT_EFFECT = {"params", "param_names", "foreach", "fused", "capturable", "differentiable",
                   "decoupled_weight_decay"}
_AS_HERE = {"bias_correction": True, "amsgrad": False, "initial_accumulator_value": 0}

_AT_ONCE = "an offloaded model has its groups of parameters from the start"


def of_optimizer(optimizer: torch.optim.Optimizer) -> tuple[str, list]:
    """Its rule, and its groups. It must not have made a step: its state is not taken."""
    kind = type(optimizer).__name__
    if kind not in _RULES:
        raise Unsupported(f"the optimizer is a {kind}, and headrace has "
                          f"{', '.join(sorted(set(_RULES.values())))}; the model is as it was. "
                          "Give one of them, or name it in config's optimizer.")
    _refuse_foreign(type(optimizer))
    if _have_made_a_step(optimizer.state.values()):
        raise ArgumentError(f"the {kind} has made a step already, and its state would be lost; "
                            "the model is as it was. Give initialize() a new one.")
    rule = _RULES[kind]
    if rule in ("Adam", "AdamW"):
        rule = _adams_rule(optimizer, rule)
    return rule, [_of_group(group, optimizer) for group in optimizer.param_groups]


def _adams_rule(optimizer: torch.optim.Optimizer, named: str) -> str:
    """Which of the two it computes, its groups say; those of older torch and DeepSpeed do not."""
    of_class = named == "AdamW" or getattr(optimizer, "adam_w_mode",
                                           getattr(optimizer, "adamw_mode", False))
    decoupled = {bool(group.get("decoupled_weight_decay", of_class))
                 for group in optimizer.param_groups}
    if len(decoupled) > 1:
        raise Unsupported(f"some groups of the {named} have decoupled_weight_decay, and others "
                          "not; the model is as it was. Give all of them the same.")
    return "AdamW" if True in decoupled else "Adam"


def _refuse_foreign(kind: type) -> None:
    """A class of the program's own that is derived from torch's has another module, and may have
    another step()."""
    if not any(f"{kind.__module__}.".startswith(f"{home}.") for home in _HOMES):
        raise Unsupported(f"the optimizer is {kind.__module__}.{kind.__qualname__}, which may "
                          f"compute otherwise than headrace's {_RULES[kind.__name__]}; the model "
                          "is as it was. Give the class of torch.optim or headrace.torch.")


def _have_made_a_step(states: Iterable[Mapping]) -> bool:
    """torch's Adagrad has state from the start, of step 0."""
    return any(float(state.get("step", 1)) > 0 for state in states)


def share_groups(given: torch.optim.Optimizer, made: Any) -> None:
    """What a program's schedule writes into the groups of its optimizer reaches the one that
    trains, and its schedule finds there what it has noted. The dicts are the program's: a schedule
    may have them from an optimizer before this one, as Accelerate makes another of the groups."""
    for theirs, ours in zip(given.param_groups, made.param_groups):
        for key, value in ours.items():
            theirs.setdefault(key, value)
    made.param_groups = given.param_groups
    follow(given, made)


def follow(given: Any, made: Any) -> None:
    """While `made` trains, with the dicts that are in the groups of both: what becomes of the
    groups of `given` otherwise reaches it too, or is refused."""
    if not isinstance(given, torch.optim.Optimizer) or hasattr(given, "optimizer"):
        return  # a trainer's own, around another one
    weak, count, add = weakref.ref(made), len(made.param_groups), given.add_param_group

    def training() -> Any:
        found = weak()
        return found if found is not None and found.is_open() else None

    def add_param_group(param_group: dict) -> None:
        if training() is not None:
            raise Unsupported(f"{_AT_ONCE}; nothing was added. Add it before the optimizer is "
                              "given to headrace.")
        add(param_group)

    def before_load(_: Any, state_dict: dict) -> None:
        if training() is not None:
            _refuse_load(given, training(), state_dict)

    def after_load(_: Any) -> None:
        if training() is not None:
            _take_groups(given, training())

    def before_step(training_one: Any, *_: Any) -> None:
        if given.param_groups is not training_one.param_groups or len(given.param_groups) != count:
            raise WrongState(f"param_groups of the {type(given).__name__} that was given to "
                             "headrace is another list, or has other groups, than when training "
                             f"began, and {_AT_ONCE}; nothing was updated. Write into the groups "
                             "that are there, such as param_groups[0][\"lr\"] = 1e-4.")

    given.param_groups = made.param_groups
    setattr(given, "add_param_group", add_param_group)
    given.register_load_state_dict_pre_hook(before_load)
    given.register_load_state_dict_post_hook(after_load)
    made.register_step_pre_hook(before_step)
    made.register_step_post_hook(lambda *_: _private.note_step(given))


def _refuse_load(given: torch.optim.Optimizer, made: Any, state_dict: dict) -> None:
    if _have_made_a_step(state_dict["state"].values()):
        raise ArgumentError("the state_dict has state of parameters, which is not in this "
                            f"{type(given).__name__} but in headrace's engine; nothing was loaded. "
                            "Load it into the optimizer that initialize() returned, or that the "
                            "trainer has by now.")
    check_groups(state_dict["param_groups"], made._options,
                 made.defaults.get("decoupled_weight_decay"), made._RULE)
    for group in state_dict["param_groups"]:
        _refuse_options(group, given, "nothing was loaded")


def _take_groups(given: torch.optim.Optimizer, made: Any) -> None:
    """torch has made new ones."""
    for group, loaded in zip(made.param_groups, given.param_groups):
        group.update(loaded)
        for key in set(group) - set(loaded) - set(made.defaults):
            del group[key]
    given.param_groups = made.param_groups


def _of_group(group: dict, optimizer: torch.optim.Optimizer) -> dict:
    _refuse_options(group, optimizer, "the model is as it was")
    return {"params": list(group["params"]),
            **{key: value for key, value in group.items() if key in _OPTIONS}}


def _refuse_options(group: Mapping, optimizer: torch.optim.Optimizer, unchanged: str) -> None:
    other = [f"{key}={value!r}" for key, value in group.items() if _matters(key, value, optimizer)]
    if other:
        raise Unsupported(f"the {type(optimizer).__name__} has {', '.join(other)}, which "
                          f"headrace's rule does not know; {unchanged}. Leave it out.")


def _matters(key: str, value: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether step() may read it, and would do what no rule here does. What is not among the
    defaults, a schedule or the program wrote into the group for itself."""
    if key in _OPTIONS | _WITHOUT_EFFECT:
        return False
    if key in _AS_HERE:
        return bool(value != _AS_HERE[key])
    return key in optimizer.defaults


def of_parameters(model: torch.nn.Module, given: Optional[Iterable[Any]]) -> Optional[list]:
    """The groups; None: one of all that the model trains."""
    if given is None:
        return None
    if isinstance(given, torch.nn.Module):
        given = given.parameters()
    listed = list(given)
    groups = [{**one, "params": list(one["params"])} if isinstance(one, dict)
              else {"params": [one]} for one in listed]
    if not any(isinstance(one, dict) for one in listed):
        groups = [{"params": listed}]
    known = set(model.parameters())
    for group in groups:
        if any(isinstance(one, tuple) for one in group["params"]):
            raise ArgumentError("model_parameters has parameters with names, as "
                                "named_parameters() gives them; the model is as it was. Give "
                                "model.parameters().")
        if not set(group["params"]) <= known:
            raise ArgumentError("model_parameters has a parameter that is not the model's; the "
                                "model is as it was. Give parameters of the model.")
        group["params"] = [one for one in group["params"] if one.requires_grad]
    return groups
