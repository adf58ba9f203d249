# SPDX-License-Identifier: Apache-2.0
"""What a DeepSpeed file says to a training loop, apart from what it says to an engine."""
from __future__ import annotations

import base64
import binascii
import copy
import dataclasses
import json
import logging
import os
from typing import Any, Mapping, Optional

from .._errors import ArgumentError
from ._loss_scale import LossScale, NoScale

_log = logging.getLogger("headrace.deepspeed")
CLIPPING = 1.0  # DeepSpeed's, where the file has none
_LOOP = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
         "gradient_clipping", "scheduler", "steps_per_print")
# Of Accelerate: whether an optimizer of the program's may be used. Here every rule may.
_NOTHING_TO_DO = ("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer")


@dataclasses.dataclass
class Loop:
    micro_batch: int  # of a rank
    accumulation: int
    world_size: int
    clipping: float
    steps_per_print: Optional[int]
    scheduler: Optional[Mapping[str, Any]]
    gathers_on_save: bool
    stage: int
    loss_scale: NoScale


def _given(args: Any, config: Any, config_params: Any) -> list:
    return [one for one in (config, config_params, getattr(args, "deepspeed_config", None))
            if one is not None]


def name_of(args: Any, config: Any, config_params: Any) -> Any:
    """For the errors in it."""
    found = _given(args, config, config_params)[0]
    return "config" if isinstance(found, Mapping) or not os.path.exists(found) else found


def read(args: Any, config: Any, config_params: Any) -> dict:
    """From wherever deepspeed.initialize() takes it."""
    given = _given(args, config, config_params)
    if not given:
        raise ArgumentError("initialize() was given no config; the model is as it was. Give "
                            "config=\"ds.json\", or a dict.")
    if len(given) > 1 and any(one != given[0] for one in given):
        raise ArgumentError("initialize() was given two configs; the model is as it was. Give one "
                            "of config, config_params and args.deepspeed_config.")
    found = given[0]
    if isinstance(found, Mapping):
        return copy.deepcopy(dict(found))
    return _parsed(_text_of(os.fspath(found)), found)


def _text_of(name: str) -> str:
    if not os.path.exists(name):
        try:  # as DeepSpeed's launcher hands it on
            return base64.urlsafe_b64decode(name).decode()
        except (binascii.Error, UnicodeDecodeError):
            pass
    with open(name, encoding="utf-8") as file:
        return file.read()


def _parsed(text: str, name: Any) -> dict:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{name} is no JSON: {error}; the model is as it was.") from error
    if not isinstance(found, dict):
        raise ArgumentError(f"{name} holds a {type(found).__name__}, and a config is an object; "
                            "the model is as it was.")
    return found


def split(config: dict, dtypes: set, world_size: int) -> tuple[Loop, dict]:
    """What the loop follows, and what is left for the engine and its optimizer. dtypes: of the
    model, such as "f32"."""
    for key in ("fp16", "bf16", "bfloat16", "zero_optimization", "scheduler", "optimizer"):
        if not isinstance(config.get(key) or {}, Mapping):
            raise ArgumentError(f"{key} is {config[key]!r}, and initialize() needs an object; the "
                                "model is as it was. Look at its keys in DeepSpeed's documents.")
    if "bfloat16" in config:
        config = {**config, "bf16": config["bfloat16"]}
        del config["bfloat16"]
    config = _with_dtypes(config, dtypes)
    loss_scale = _loss_scale_of(config, dtypes)
    rest = {key: value for key, value in config.items()
            if key not in _LOOP and key not in _NOTHING_TO_DO}
    zero = config.get("zero_optimization") or {}
    micro_batch, accumulation = _batch_of(config, world_size)
    # Given, so that the engine does not report what it would take for them.
    rest.update(gradient_accumulation_steps=accumulation, gradient_clipping=0)
    rest.setdefault("bf16", {"enabled": False})
    clipping = _number(config, "gradient_clipping", None)
    if clipping is None:
        clipping = CLIPPING
        _log.info("gradient_clipping is not given: %s holds, as in DeepSpeed since 0.19.3",
                  CLIPPING)
    if not clipping >= 0:
        raise ArgumentError(f"gradient_clipping is {clipping}; the model is as it was. Give the "
                            "largest norm that gradients may have, or 0 for none.")
    return Loop(micro_batch, accumulation, world_size, clipping,
                _number(config, "steps_per_print", None), config.get("scheduler"),
                bool(zero.get("stage3_gather_16bit_weights_on_model_save",
                              zero.get("gather_16bit_weights_on_model_save", False))),
                int(_number(zero, "stage", 0)), loss_scale), rest


def _loss_scale_of(config: dict, dtypes: set) -> NoScale:
    fp16 = config.get("fp16") or {}
    if fp16.get("enabled") is True:
        if (config.get("bf16") or {}).get("enabled") is True:
            raise ArgumentError("config enables fp16 and bf16, and a model is converted to one; it "
                                "is as it was. Enable one of them.")
        return LossScale(fp16)
    if "f16" in dtypes and (config.get("bf16") or {}).get("enabled") is not True:
        raise ArgumentError("the model has f16 parameters, and config does not enable fp16, so "
                            "nothing would scale the loss and small gradients would be lost; the "
                            "model is as it was. Enable fp16 or bf16, or call model.float().")
    return NoScale()


def _with_dtypes(config: dict, dtypes: set) -> dict:
    """"auto" is what the model has."""
    for key, dtype in (("bf16", "bf16"), ("fp16", "f16")):
        section = config.get(key) or {}
        if section.get("enabled") != "auto":
            continue
        if dtype in dtypes and len(dtypes) > 1:
            raise ArgumentError(
                f"{key}.enabled is \"auto\", and the model has {', '.join(sorted(dtypes))} "
                "parameters, so nothing says whether it is to be converted; it is as it was. Give "
                f"true, which converts it to {dtype}, or false"
                f"{', which keeps each dtype' if dtype == 'bf16' else ' and model.float()'}.")
        config = {**config, key: {**section, "enabled": dtype in dtypes}}
    return config


def _number(config: Mapping[str, Any], key: str, otherwise: Any) -> Any:
    value = config.get(key)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ArgumentError(f"{key} is {value!r}, and initialize() needs a number; the model is as "
                            "it was. Hugging Face's Trainer fills in \"auto\"; other programs "
                            "have to.")
    return value


def _batch_of(config: Mapping[str, Any], world_size: int) -> tuple[int, int]:
    """Sequences per backward, and backwards per step, of a rank: any two of three give the
    third."""
    whole, part, times = (_number(config, key, None) for key in _LOOP[:3])
    if whole is None and part is None:
        raise ArgumentError("config has neither train_batch_size nor "
                            "train_micro_batch_size_per_gpu; the model is as it was. Give one.")
    if times is None:
        times = 1 if whole is None or part is None else max(1, int(whole // part // world_size))
    part = whole // times // world_size if part is None else part
    whole = part * times * world_size if whole is None else whole
    if min(part, times) < 1 or whole != part * times * world_size:
        ranks = f" times {world_size} ranks" if world_size > 1 else ""
        raise ArgumentError(f"train_batch_size {whole} is not train_micro_batch_size_per_gpu "
                            f"{part} times gradient_accumulation_steps {times}{ranks}; the model "
                            "is as it was. Leave one of them out.")
    if int(part) != part or int(times) != times:
        raise ArgumentError(f"train_micro_batch_size_per_gpu is {part} and "
                            f"gradient_accumulation_steps {times}; the model is as it was. Give "
                            "whole numbers.")
    return int(part), int(times)
