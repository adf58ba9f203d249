# SPDX-License-Identifier: Apache-2.0
"""What offload() was asked for: the engine's settings, and the optimizer with its options."""
from __future__ import annotations

import copy
import json
import os
from typing import Any, Callable, Mapping, Optional, Union

from ..._engine import resolved
from ..._errors import ArgumentError, ConfigError
from ..._settings import whole_path
from .._rules import SGD, Adagrad, Adam, AdamW, Lion
from .._words import words

RULES = {"adamw": AdamW, "adam": Adam, "adagrad": Adagrad, "lion": Lion, "sgd": SGD}
# Constants that say which rule runs, or what it does in any case.
_AS_IT_IS = {"torch_adam", "adam_w_mode", "bias_correction"}
# What DeepSpeed's have where a file names a type without them, and the classes here have not.
_OF_DEEPSPEED: dict = {"adamw": {"weight_decay": 0.0}, "lion": {"lr": 1e-3, "betas": (0.9, 0.999)}}
_OF_A_TRAINER = {
    "gradient_clipping": "Clip with step(max_norm=...) of the optimizer, or with one rank with "
                         "torch.nn.utils.clip_grad_norm_() before it, and leave the key out.",
    "scheduler": "Use one of torch.optim.lr_scheduler, and leave it out."}


def read(config: Any) -> dict:
    """A dict of settings, or a file of them."""
    if isinstance(config, (str, os.PathLike)):
        config = _from_file(config)
    if not isinstance(config, (Mapping, type(None))):
        raise ArgumentError(f"config is a {type(config).__name__}; the model is as it was. Give a "
                            "dict or the path of a JSON file.")
    settings = copy.deepcopy(dict(config or {}))
    for key, help_text in _OF_A_TRAINER.items():
        if settings.get(key) == "auto":
            del settings[key]  # the training loop decides
        elif settings.get(key):
            raise ArgumentError(f"config has {key}, which is the training loop's to follow; the "
                                f"model is as it was. {help_text}")
    return settings


def _from_file(path: Any) -> Any:
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file, object_pairs_hook=_without_repeats)
        except ValueError as error:
            raise ArgumentError(f"{path} is no JSON: {error}; the model is as it was. Correct the "
                                "file.") from error


def _without_repeats(pairs: list) -> dict:
    section = dict(pairs)
    if len(section) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key '{next(key for key in keys if keys.count(key) > 1)}' is there "
                         "twice")
    return section


def place(settings: dict, nvme: Optional[str],
          host_budget: Union[int, str, None]) -> Optional[str]:
    """Adds what the arguments say. Returns the folder for the files of state_dict(); None: it
    takes memory."""
    zero = settings.setdefault("zero_optimization", {})
    if nvme is not None:
        nvme = whole_path(nvme, "nvme", "the model is as it was")
        for key in ("offload_optimizer", "offload_param"):
            _set_once(zero, key, {"device": "nvme", "nvme_path": nvme}, "nvme")
    if host_budget is not None:
        own = settings.setdefault("headrace", {})
        _set_once(own, "host_budget_bytes", host_budget, "host_budget")
    return nvme or (zero.get("offload_param") or {}).get("nvme_path")


def _set_once(where: dict, key: str, value: Any, argument: str) -> None:
    if where.get(key) is not None:
        raise ArgumentError(f"both {argument} and {key} of config say where values live; the model "
                            "is as it was. Give one of them.")
    where[key] = value


def host_checkpoints(settings: dict) -> bool:
    """Whether what checkpoints keep is to be in host memory. The key is not the engine's."""
    section = settings.get("activation_checkpointing")
    if not isinstance(section, Mapping) or not isinstance(section.get("cpu_checkpointing"), bool):
        return False
    rest = {key: value for key, value in section.items() if key != "cpu_checkpointing"}
    settings.pop("activation_checkpointing")
    if rest:
        settings["activation_checkpointing"] = rest
    return section["cpu_checkpointing"]


def words_of(host_budget: Union[int, str, None]) -> Callable[[str], str]:
    """What errors and log lines of the engine are changed to."""
    return words({}, {} if host_budget is None else {"headrace.host_budget_bytes": "host_budget"})


def rule_of(settings: dict, name: Optional[str], options: dict) -> tuple[type, dict]:
    """The optimizer's class and its options, from the arguments and config's `optimizer`."""
    _refuse_no_name(name)
    section = settings.pop("optimizer", None) or {}
    given = dict(section.get("params") or {})
    without = "Adam" if given.get("adam_w_mode") is False else "AdamW"
    kind = str(section.get("type", name or without)).lower()
    if kind == "adam" and section and given.get("adam_w_mode") is not False:
        kind = "adamw"  # as DeepSpeed reads it
    if name is not None and name.lower() != kind:
        raise ArgumentError(f"optimizer is '{name}', and config has "
                            f"'{section.get('type')}'; the model is as it was. Give one of them.")
    if kind not in RULES:
        raise ArgumentError(f"the optimizer '{kind}' is not among headrace's rules "
                            f"({', '.join(rule.__name__ for rule in RULES.values())}); the model "
                            "is as it was. Use one of them.")
    known = _known_constants({"type": RULES[kind].__name__, **section}) if section else {}
    _warn_later(settings, kind, {key: value for key, value in given.items() if key not in known},
                {key: value for key, value in section.items() if key not in ("type", "params")})
    return RULES[kind], {**_defaults(section, kind), **_joined(known, options)}


def _defaults(section: Mapping[str, Any], kind: str) -> dict:
    params = section.get("params") or {}
    if "type" not in section or kind == "adamw" and params.get("torch_adam"):
        return {}
    return _OF_DEEPSPEED.get(kind, {})


def _refuse_no_name(name: Any) -> None:
    if not isinstance(name, (str, type(None))):
        kind = name if isinstance(name, type) else type(name)
        what = f"the class {kind.__name__}" if kind is name else f"an object of {kind.__name__}"
        raise ArgumentError(f"optimizer is {what}, and offload() makes its own; the model is as it "
                            "was. Give a name, such as optimizer=\"AdamW\", and the options beside "
                            "it: lr=1e-5. headrace.deepspeed.initialize() takes optimizers.")


def _known_constants(section: Mapping[str, Any]) -> dict:
    """Those of params that an optimizer here takes. Others are refused, or change nothing."""
    given = section.get("params") or {}
    said = {key: value for key, value in given.items() if value != "auto"}
    read = resolved({"optimizer": {**section, "params": said}})["optimizer"].get("params", {})
    if said.get("bias_correction") is False:
        raise ConfigError("config: optimizer.params.bias_correction: found false, and Adam here "
                          "always divides by 1 - beta^t, as torch's does; remove it, or write true")
    return {key: value for key, value in given.items()
            if (key in read or value == "auto") and key not in _AS_IT_IS}


def _warn_later(settings: dict, kind: str, constants: Mapping[str, Any],
                others: Mapping[str, Any]) -> None:
    """The engine names what has no effect, as it starts. others: beside type and params."""
    wanted = {key: value for key, value in constants.items()
              if key not in _AS_IT_IS
              or key == "adam_w_mode" and kind == "adamw" and value is False}
    if wanted or others:
        of_type = {"type": "AdamW"} if kind == "adamw" else {}
        settings["optimizer"] = {**of_type, **({"params": wanted} if wanted else {}), **others}


def _joined(given: dict, options: dict) -> dict:
    for key, value in options.items():
        if given.get(key, "auto") not in ("auto", value):
            raise ArgumentError(f"{key} is {value}, and config's optimizer has {given[key]}; the "
                                "model is as it was. Give one of them.")
    joined = {**given, **options}
    open_ones = [key for key, value in joined.items() if value == "auto"]
    if open_ones:
        raise ArgumentError(f"config's optimizer has {', '.join(open_ones)} as \"auto\", and "
                            "nothing says what that is; the model is as it was. Give it to "
                            f"offload(): {open_ones[0]}=...")
    return joined


def settle_dtype(settings: dict, dtypes: set) -> None:
    """DeepSpeed converts the model to what its file says, and "auto" is what the model has."""
    for key, wanted in (("bf16", "bf16"), ("fp16", "f16")):
        section = settings.get(key) or {}
        if section.get("enabled") == "auto":
            settings[key] = section = {**section, "enabled": wanted in dtypes}
        if section.get("enabled") is True and wanted not in dtypes:
            raise ArgumentError(
                f"config enables {key}, and the model has {', '.join(sorted(dtypes))} parameters; "
                "it is as it was. Convert it first, such as with model.to(torch.bfloat16), or "
                f"leave {key} out.")
