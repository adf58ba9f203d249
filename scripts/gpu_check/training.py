# SPDX-License-Identifier: Apache-2.0
"""Parts that train: the same GPT in every place, to the same bits."""
import json
import os
import time

from gpu_check.check import Failed, SanitizerBroke, Skipped

SMALL = ["--layers", "4", "--hidden", "256", "--heads", "4", "--seq", "128", "--batch", "4",
         "--steps", "10", "--seed", "3"]
# Attention's backward sums over blocks of keys; with 1,024 tokens there are several.
LONG = ["--layers", "2", "--hidden", "256", "--heads", "4", "--seq", "1024", "--batch", "2",
        "--steps", "4", "--seed", "3"]
TWO_STEPS = ["--layers", "2", "--hidden", "128", "--heads", "4", "--seq", "128", "--batch", "2",
             "--steps", "2", "--seed", "3"]
KEY = "zero_optimization.offload_"
OUR_KERNELS = ["--kernel-name", "kernel_substring=headrace"]
UPDATED_ON_GPU = ["--set", "headrace.update_on=device"]


def placed(where, nvme="", in_memory=True):
    """Words that place parameters and state. in_memory: a temporary folder may be memory; the
    report says what it is. A store refuses that."""
    if where == "device":
        return []
    if where == "host":
        return ["--set", KEY + "param.device=cpu", "--set", KEY + "optimizer.device=cpu"]
    words = ["--set", KEY + "param.device=nvme", "--set", KEY + "param.nvme_path=" + nvme,
             "--set", KEY + "optimizer.device=nvme", "--set", KEY + "optimizer.nvme_path=" + nvme,
             *(["--set", "headrace.allow_memory_backed=true"] if in_memory else [])]
    if where == "mixed":
        words += ["--set", "headrace.tile_elements=65536",
                  "--set", "headrace.host_budget_bytes=48MiB"]
    return words


def two_steps(check):
    report = check.train("two-steps", *TWO_STEPS, *placed("host"))
    return {"steps": len(report["steps"]), "hash": report["hash"]}


def trained_exactness(check):
    """The same GPT with its weights on the GPU, in host memory, on NVMe and divided; updated by
    the CPU, on the GPU and where it is faster; and with 1,024 tokens twice in one place and once
    in another."""
    check.need_gpu()
    check.need_torch()
    os.makedirs(check.nvme, exist_ok=True)
    runs = [(name, "small", SMALL, placed(name, check.nvme))
            for name in ("device", "host", "nvme", "mixed")]
    runs[2:2] = [(name, "long", LONG, placed(place))
                 for name, place in (("long-device", "device"), ("long-device-again", "device"),
                                     ("long-host", "host"))]
    runs += [(name + "-gpu-update", "small", SMALL, placed(name, check.nvme) + UPDATED_ON_GPU)
             for name in ("host", "nvme", "mixed")]
    runs.append(("host-auto-update", "small", SMALL,
                 placed("host") + ["--set", "headrace.update_on=auto"]))
    first, updated = {}, {}
    check.so_far = {"hash": first, "steps_updated_on_gpu": updated}
    for name, model, shape, words in runs:
        report = check.train("exact-" + name, *shape, *words)
        updated[name] = report["lanes"]["update"]["steps_on_device"]
        if name.endswith("-gpu-update") and updated[name] != len(report["steps"]):
            raise Failed(f"{name}: {updated[name]} steps of {len(report['steps'])} were updated "
                         "on the GPU")
        if report["hash"] != first.setdefault(model, report["hash"]):
            raise Failed(f"{name} differs from the first of its model: "
                         f"{json.dumps(report['hash'])}, not {json.dumps(first[model])}")
    return check.so_far


def kept_training(check):
    """Steps of a run that is saved, loaded from there in another place, and killed in mid-run with
    its steps in a store: each ends with the hashes of the one that nothing disturbed."""
    check.need_gpu()
    check.need_torch()
    os.makedirs(check.nvme, exist_ok=True)
    shape, saves = [*SMALL, "--steps", "100"], os.path.join(check.place, "saves")
    check.so_far = {}
    began = time.monotonic()
    saved = check.train("kept-saved", *shape, *placed("host"), "--save", saves, "--save-every",
                        "50", "--keep", "2")
    seconds = time.monotonic() - began
    loaded = check.train("kept-loaded", *shape, *placed("nvme", check.nvme), *UPDATED_ON_GPU,
                         "--load", os.path.join(saves, "step-50"))
    store = [*shape, *placed("nvme", check.nvme, in_memory=False), "--store", "gpu_check"]
    check.train_and_kill("kept-killed", 0.7 * seconds, *store)
    resumed = check.train("kept-resumed", *store)
    for name, report in (("saved", saved), ("loaded", loaded), ("resumed", resumed)):
        check.so_far[name] = {"steps": len(report["steps"]), "hash": report["hash"]}
        if report["hash"] != saved["hash"]:
            raise Failed(f"{name} ended with other hashes than the run that was saved: "
                         f"{json.dumps(report['hash'])}, not {json.dumps(saved['hash'])}")
    if len(resumed["steps"]) == len(saved["steps"]):
        raise Failed("the kill came before a step was committed, so nothing was resumed")
    return check.so_far


def sanitized(tool, *words):
    """Two steps of train_gpt. What LibTorch's own calls answer is its own affair; and where the
    tool breaks in a run that is LibTorch's alone, it cannot tell of ours."""
    def over(check, name, *more):
        command = check.train_command(os.path.join(check.out, f"{tool}-{name}.json"), *TWO_STEPS,
                                      *more)
        check.sanitizer(tool, command, name, *words)

    def work(check):
        try:
            over(check, "training", *placed("host"), *UPDATED_ON_GPU)
        except SanitizerBroke as why:
            try:
                over(check, "plain-training", "--plain")
            except SanitizerBroke:
                raise Skipped(f"{tool} breaks in LibTorch's own kernels, without Headrace "
                              f"(--plain) too: {why}") from None
            raise
        return {"errors": 0}
    return work
