#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What DeepSpeed 0.19.8 makes of the files in deepspeed_cases.txt, by its own parser.

    pip install deepspeed==0.19.8
    DS_ACCELERATOR=cpu python3 tests/settings/deepspeed_oracle.py > NEW

Prints the cases with DeepSpeed's verdict in their second field, and to stderr how often both agree.
A case is two lines: its name, DeepSpeed's verdict and ours, separated by tabs, and the file as
JSON. Ours is compared by settings_deepspeed_test; this program carries it over.

"auto" is left out, as a trainer that fills it in may give what the defaults are; there are as many
ranks as the batch sizes need. Beside the parser, constructors are asked: for their signatures
where they need DeepSpeed's compiled parts, else by calling them.
"""
import inspect
import json
import logging
import pathlib
import sys

import torch
import deepspeed
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime import config, lr_schedules

VERSION = "0.19.8"


def without_auto(value):
    if not isinstance(value, dict):
        return value
    left = {name: without_auto(one) for name, one in value.items() if one != "auto"}
    # The one that has no default.
    return {**left, "total_num_steps": 1000} if value.get("total_num_steps") == "auto" else left


def ranks_of(file):
    whole, micro, accumulation = (file.get(name) for name in (
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
    if not isinstance(whole, int) or not micro:
        return 1
    of_rank = micro * (accumulation or 1)
    return whole // of_rank if accumulation and whole % of_rank == 0 else 1


def optimizer_class(parsed, kind, params):
    if kind in ("adam", "adamw"):
        adam_w = params.pop("adam_w_mode", True) or kind == "adamw"
        if params.pop("torch_adam", False):
            params.pop("fp32_optimizer_states", None)
            return torch.optim.AdamW if adam_w else torch.optim.Adam
    offload = parsed.zero_config.offload_optimizer
    cpu = parsed.zero_enabled and offload is not None and offload.device in ("cpu", "nvme")
    known = {"adam": (DeepSpeedCPUAdam, FusedAdam), "adamw": (DeepSpeedCPUAdam, FusedAdam),
             "adagrad": (DeepSpeedCPUAdagrad, torch.optim.Adagrad),
             "lion": (DeepSpeedCPULion, FusedLion), "lamb": (None, FusedLamb)}
    if kind in known:
        return known[kind][0 if cpu and known[kind][0] else 1]
    return getattr(torch.optim, kind)


def make_optimizer(parsed):
    params = dict(parsed.optimizer_params or {})
    if "max_grad_norm" in params:
        raise ValueError("max_grad_norm")
    if parsed.optimizer_name == "muon":
        return
    one = optimizer_class(parsed, parsed.optimizer_name, params)
    if one.__module__.startswith("torch."):
        one([torch.nn.Parameter(torch.zeros(2))], **params)
    else:
        inspect.signature(one.__init__).bind(None, [], **params)


def make_scheduler(parsed):
    name = parsed.scheduler_name
    one = getattr(lr_schedules, name, None) or getattr(torch.optim.lr_scheduler, name)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))])
    one(optimizer, **(parsed.scheduler_params or {}))


def check_param_dtype(parsed, dtype):
    asked = parsed.param_dtype
    if asked is not None and config.DtypeEnum(asked).value != dtype:
        raise ValueError("param_dtype")  # as the engine asserts


def verdict_of(given):
    file = without_auto(json.loads(json.dumps(given)))
    if not {"train_batch_size", "train_micro_batch_size_per_gpu"} & given.keys():
        return "refuses"
    if not {"train_batch_size", "train_micro_batch_size_per_gpu"} & file.keys():
        file["train_micro_batch_size_per_gpu"] = 1
    config.dist.get_rank, config.dist.get_world_size = lambda: 0, lambda: ranks_of(file)
    try:
        parsed = config.DeepSpeedConfig(json.loads(json.dumps(file)))
        if parsed.optimizer_name is not None:
            make_optimizer(parsed)
        if parsed.scheduler_name is not None:
            make_scheduler(parsed)
        dtype = (torch.float16 if parsed.float16_config.enabled else
                 torch.bfloat16 if parsed.bfloat16_config.enabled else torch.float32)
        check_param_dtype(parsed, dtype)
    except Exception:  # whatever it is, DeepSpeed does not go on
        return "refuses"
    open_dtype = any((given.get(name) or {}).get("enabled") == "auto" for name in ("fp16", "bf16"))
    if open_dtype and dtype == torch.float32:
        return "takes, dtype the trainer's"
    return "takes, " + {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}[dtype]


def main():
    if deepspeed.__version__.split("+")[0] != VERSION:
        sys.exit(f"this is of DeepSpeed {VERSION}, and {deepspeed.__version__} is installed")
    lines = pathlib.Path(__file__).with_name("deepspeed_cases.txt").read_text().splitlines()
    both = {}
    for head, file in zip(lines[::2], lines[1::2]):
        name, _, ours = head.split("\t")
        verdict = verdict_of(json.loads(file))
        print(name, verdict, ours, sep="\t")
        print(file)
        pair = verdict.split()[0].rstrip(","), ours.split()[0]
        both.setdefault(pair, []).append(name.removeprefix("# "))
    for (deepspeeds, ours), names in sorted(both.items()):
        print(f"DeepSpeed {deepspeeds}, Headrace {ours}: {len(names)}", file=sys.stderr)
        if (deepspeeds, ours) in (("takes", "refuses"), ("refuses", "accepts")):
            print("  " + " ".join(names), file=sys.stderr)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main()
