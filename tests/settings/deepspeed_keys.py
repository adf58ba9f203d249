#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every key that DeepSpeed reads from a settings file, from its own code.

    pip install deepspeed==0.19.8
    DS_ACCELERATOR=cpu python3 tests/settings/deepspeed_keys.py > tests/settings/deepspeed_keys.txt

One line per key, separated by tabs: its path, the types it takes, a file with DeepSpeed's default
of it, whether DeepSpeed takes that file, and what the file gets here, which settings_deepspeed_test
compares and this program carries over from the table that is there. What sections of pydantic
models hold is read from the models, what constructors take from their signatures, and the rest by
parsing a file that notes which keys are looked for.
"""
import inspect
import json
import logging
import pathlib
import sys
import typing

import torch
import deepspeed
from deepspeed.compile.config import CompileConfig
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.inference.config import WeightQuantConfig
from deepspeed.monitor.config import DeepSpeedMonitorConfig
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime import config, lr_schedules
from deepspeed.runtime.config_utils import DeepSpeedConfigModel
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

VERSION = "0.19.8"
MODELS = {
    "zero_optimization": DeepSpeedZeroConfig,
    "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config,
    "compile": CompileConfig,
    "comms_logger": CommsLoggerConfig,
    "hybrid_engine": config.HybridEngineConfig,
    "weight_quantization": WeightQuantConfig,
    "tensor_parallel": TPTrainingConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig,
}
# Sections that the parser walks through itself.
PLAIN = ["aio", "activation_checkpointing", "checkpoint", "checkpoint.writer",
         "checkpoint.parallel_write", "data_types", "flops_profiler", "autotuning",
         "data_efficiency", "optimizer", "scheduler", "torch_autocast", "timers",
         "expert_parallel"]
# By the type that a file names; what its class takes.
OPTIMIZERS = [("AdamW", DeepSpeedCPUAdam), ("AdamW", FusedAdam), ("AdamW", torch.optim.AdamW),
              ("Adam", torch.optim.Adam), ("Adagrad", DeepSpeedCPUAdagrad),
              ("Adagrad", torch.optim.Adagrad), ("Lion", DeepSpeedCPULion), ("Lion", FusedLion),
              ("SGD", torch.optim.SGD)]
SCHEDULERS = [(name, getattr(lr_schedules, name)) for name in lr_schedules.VALID_LR_SCHEDULES]
NEEDED = {"WarmupDecayLR": {"total_num_steps": 100}, "WarmupCosineLR": {"total_num_steps": 100},
          "OneCycle": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2}}


class Noted(dict):
    """A section that notes what it is asked for."""

    def __init__(self, path, given, found):
        super().__init__(given)
        self.path, self.found = path, found

    def note(self, name, default=None):
        if isinstance(name, str):
            path = f"{self.path}.{name}" if self.path else name
            if self.found.get(path) is None:
                self.found[path] = default
        return name

    def get(self, name, default=None):
        return super().get(self.note(name, default), default)

    def __contains__(self, name):
        return super().__contains__(self.note(name))

    def __getitem__(self, name):
        return super().__getitem__(self.note(name))

    def keys(self):
        noted, mine = self, super().keys()

        class View:
            def __contains__(self, name):
                return name in noted

            def __iter__(self):
                return iter(mine)

        return View()

    def __copy__(self):
        return self


def type_words(annotation):
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return ["text"]
    if arguments and type(None) in arguments or typing.get_origin(annotation) is typing.Union:
        return sorted({word for one in arguments for word in type_words(one)})
    base = typing.get_origin(annotation) or annotation
    if base is type(None):
        return ["null"]
    for known, word in ((bool, "boolean"), (int, "integer"), (float, "number"), (dict, "object"),
                        (list, "list"), (tuple, "list"), (DeepSpeedConfigModel, "object")):
        if inspect.isclass(base) and issubclass(base, known):
            return [word]
    return ["text"] if base is not object else ["any"]


def type_of_value(value):
    if value is None:
        return ["any"]
    return type_words(type(value))


def as_json(value):
    if isinstance(value, DeepSpeedConfigModel):
        return "{}"
    if isinstance(value, (bool, int, float, str, list, tuple, dict, type(None))):
        return json.dumps(value)
    return json.dumps(str(value))


def model_rows(path, model):
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        nested = [one for one in (field.annotation, *typing.get_args(field.annotation))
                  if inspect.isclass(one) and issubclass(one, DeepSpeedConfigModel)]
        for spelling in filter(None, (name, field.alias)):
            yield f"{path}.{spelling}", type_words(field.annotation), as_json(default)
            for one in nested:
                yield from model_rows(f"{path}.{spelling}", one)


def parsed_rows():
    found = {}
    sections = {name: Noted(name, {}, found) for name in PLAIN}
    sections["timers"]["throughput"] = {}
    for name in PLAIN:
        if "." in name:
            parent, _, last = name.rpartition(".")
            sections[parent][last] = sections[name]
    for name in ("optimizer", "scheduler"):
        sections[name].update(type="AdamW", params={})
    sections["expert_parallel"]["enabled"] = False
    top = {name: section for name, section in sections.items() if "." not in name}
    config.DeepSpeedConfig(Noted("", {"train_batch_size": 1, **top}, found))
    for path, default in found.items():
        if path in sections:
            yield path, ["object"], "{}"
        else:
            yield path, type_of_value(default), as_json(default)


TYPE_OF = {}


def constructor_rows(section, classes):
    for name, one in classes:
        parameters = list(inspect.signature(one.__init__).parameters.values())[2:]  # self, its own
        for parameter in parameters:
            if parameter.name == "adamw_mode":  # which DeepSpeed passes itself
                continue
            default = None if parameter.default is parameter.empty else parameter.default
            path = f"{section}.{parameter.name}"
            TYPE_OF.setdefault(path, name)
            if parameter.name in NEEDED.get(name, {}):
                default = NEEDED[name][parameter.name]
            yield path, type_of_value(default), as_json(default)


def removed_rows():
    for name in config._REMOVED_TOP_LEVEL_CONFIG_KEYS:
        yield name, ["removed"], "{}"
    for name in config._REMOVED_ZERO_CONFIG_KEYS:
        yield f"zero_optimization.{name}", ["removed"], "{}"


def rows():
    yield from removed_rows()
    yield from parsed_rows()
    for path, model in MODELS.items():
        yield path, ["object"], "{}"
        yield from model_rows(path, model)
    for name, field in DeepSpeedMonitorConfig.model_fields.items():
        yield name, ["object"], "{}"
        yield from model_rows(name, field.annotation)
    yield from constructor_rows("optimizer.params", OPTIMIZERS)
    # What is taken out before a constructor is called.
    yield f"optimizer.params.{config.ADAM_W_MODE}", ["boolean"], as_json(config.ADAM_W_MODE_DEFAULT)
    yield f"optimizer.params.{config.TORCH_ADAM_PARAM}", ["boolean"], "false"
    yield from constructor_rows("scheduler.params", SCHEDULERS)
    yield "sequence_parallel_size", ["integer"], "null"


def file_of(path, value):
    file = json.loads(value)
    for name in reversed(path.split(".")):
        file = {name: file}
    section, *rest = path.split(".")
    if len(rest) == 2 and rest[0] == "params":
        kind = TYPE_OF.get(path, "AdamW")
        file[section]["params"] = {**NEEDED.get(kind, {}), **file[section]["params"]}
        file = {section: {"type": kind, **file[section]}}
    return file


def is_taken(file):
    sized = {"train_micro_batch_size_per_gpu": 1} if "train_batch_size" in file else {
        "train_batch_size": 1}
    try:
        config.DeepSpeedConfig({**sized, **json.loads(json.dumps(file))})
        return True
    except Exception:  # whatever it is, DeepSpeed does not go on
        return False


def table_there():
    path = pathlib.Path(__file__).with_suffix(".txt")
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.split("\t")[0]: line.split("\t")[4] for line in lines}


def main():
    if deepspeed.__version__.split("+")[0] != VERSION:
        sys.exit(f"this is of DeepSpeed {VERSION}, and {deepspeed.__version__} is installed")
    table = {}
    for path, types, default in rows():
        known = table.setdefault(path, [set(), default])
        known[0] |= set(types)
        if known[1] == "null":
            known[1] = default
    here = table_there()
    for path, (types, default) in sorted(table.items()):
        types = {"removed"} if "removed" in types else types - {"any"} or types
        file = file_of(path, default)
        taken = "takes" if is_taken(file) else "refuses"
        print(path, "|".join(sorted(types)), json.dumps(file), taken, here.get(path, "?"), sep="\t")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main()
