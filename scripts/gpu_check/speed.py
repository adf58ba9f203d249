# SPDX-License-Identifier: Apache-2.0
"""Parts that measure: copies, updates, models that fit the GPU and that do not."""
import os
import sys
import tempfile

from gpu_check import machine, training
from gpu_check.check import Failed, Skipped, read_json

GIB = 1 << 30


def copies(check):
    check.need_gpu()
    report = os.path.join(check.out, "copy.json")
    check.run([check.program("bin", "headrace"), "bench", "copy", "--gradients", "--rounds", "3",
               "--json", report], "bench-copy", env=check.environment())
    return read_json(report)


def update_speed(check):
    """All state in host memory, updated within step(): by the CPU and on the GPU."""
    words = ["--layers", "24", "--hidden", "1024", "--heads", "16", "--seq", "256", "--batch",
             "1", "--steps", "6", "--seed", "1", "--set", "headrace.update_mode=barrier",
             *training.placed("host")]
    seconds = check.so_far = {}
    for on, more in (("cpu", []), ("gpu", training.UPDATED_ON_GPU)):
        report = check.train("update-" + on, *words, *more)
        seconds[on] = middle(step["update_s"] for step in report["steps"][1:])
    parameters = report["parameters"]
    return {"parameters": parameters, "cpu_s": seconds["cpu"], "gpu_s": seconds["gpu"],
            "gpu_over_cpu": seconds["cpu"] / seconds["gpu"],
            "to_gpu_bytes_per_second": 14 * parameters / seconds["gpu"],
            "to_host_bytes_per_second": 12 * parameters / seconds["gpu"]}


FITS = ["--layers", "12", "--hidden", "1024", "--heads", "16", "--seq", "1024", "--steps", "6",
        "--seed", "1"]


def model_that_fits(check):
    """Step without offload over the offloaded one; the largest batch decides, and comes first."""
    rows = []
    check.so_far = {"rows": rows}
    for batch in (32, 16, 4):
        plain = check.train(f"fits-plain-{batch}", *FITS, "--batch", str(batch), "--plain")
        ours = check.train(f"fits-host-{batch}", *FITS, "--batch", str(batch),
                           *training.placed("host"))
        rows.append({"batch": batch, "plain_s": step_seconds(plain),
                     "offloaded_s": step_seconds(ours),
                     "ratio": step_seconds(plain) / step_seconds(ours),
                     "plain_device_bytes": plain["memory"]["device_peak_bytes"],
                     "offloaded_device_bytes": ours["memory"]["device_peak_bytes"]})
    return {"rows": rows, "best_ratio": max(row["ratio"] for row in rows), "wanted": 0.85}


def hardware_queues(check):
    """Streams that share one hold each other up: CUDA's own number of them, and all of them."""
    for queues in ("8", "32"):
        report = check.train("queues-" + queues, *FITS, "--batch", "16", *training.placed("host"),
                             *training.UPDATED_ON_GPU, CUDA_DEVICE_MAX_CONNECTIONS=queues)
        check.so_far[queues + "_s"] = step_seconds(report)
    return check.so_far


# ---- a model that does not fit, as large as the drive allows ----

HIDDEN, STEPS, SECONDS_FOR_IT = 2048, 5, 90
STATE = 14  # bytes per parameter on NVMe: weights, master and moments


def parameters_of(layers):
    return 12 * HIDDEN * HIDDEN * layers


def measure_drive(check):
    """Of the folder that swap files will lie in: written and read for three seconds."""
    check.need_gpu()
    if check.drive is None:
        folder = check.nvme
        if check.options.memory_backed:
            mount = machine.memory_folder(STATE * parameters_of(8))
            if not mount:
                raise Skipped("--memory-backed, and no tmpfs has room for the smallest model's "
                              f"{STATE * parameters_of(8) / GIB:.1f} GiB: mount a larger one")
            folder = tempfile.mkdtemp(prefix="gpu_check-", dir=mount)
            check.folders.append(folder)
        os.makedirs(folder, exist_ok=True)
        kind = machine.file_system(folder)
        check.drive = {"folder": folder, "file_system": kind,
                       "memory_backed": kind in machine.IN_MEMORY,
                       "free_bytes": machine.free_bytes(folder), **machine.drive_speed(folder)}
    return check.drive


def layers_for(drive, memory_bytes):
    """The largest model whose steps the drive carries in time; None and why not."""
    for layers in (24, 16, 8):
        state = STATE * parameters_of(layers)
        host = host_budget(layers) + 4 * GIB + (state if drive["memory_backed"] else 0)
        # A step reads weights twice and the state once, and writes the state; it is written once
        # more to begin with.
        seconds = ((STEPS * (STATE + 2) / drive["read_bytes_per_second"] +
                    (STEPS + 1) * STATE / drive["write_bytes_per_second"]) * state / STATE)
        if seconds <= SECONDS_FOR_IT and state * 1.1 <= drive["free_bytes"] and (
                host <= memory_bytes):
            return layers, ""
    return None, (f"the smallest model has {state / GIB:.1f} GiB of state, for which {STEPS} steps "
                  f"take {seconds:.0f} s at {drive['read_bytes_per_second'] / 1e9:.2f} GB/s read "
                  f"and {drive['write_bytes_per_second'] / 1e9:.2f} written, with "
                  f"{drive['free_bytes'] / GIB:.1f} GiB free on {drive['folder']} and "
                  f"{memory_bytes / GIB:.1f} GiB of memory: name a faster or larger drive by "
                  "--nvme, or memory in its place by --memory-backed")


def host_budget(layers):
    return 6 * GIB * layers // 24


def model_that_does_not(check):
    """Parameters and state on NVMe, under a device budget several times smaller."""
    check.need_gpu()
    check.need_torch()
    drive = measure_drive(check)
    layers, why_not = layers_for(drive, machine.memory_available())
    if layers is None:
        raise Skipped(why_not)
    words = ["--layers", str(layers), "--hidden", str(HIDDEN), "--heads", "16", "--seq", "1024",
             "--batch", "8", "--steps", str(STEPS), "--seed", "1", "--checkpointing",
             "--trace", os.path.join(check.out, "trace.json"),
             "--set", f"headrace.device_budget_bytes={GIB * layers // 24}",
             "--set", f"headrace.host_budget_bytes={host_budget(layers)}",
             *training.placed("nvme", drive["folder"])]
    report = check.train("does-not-fit", *words)
    seconds = step_seconds(report)
    parameters, tokens = report["parameters"], 8 * 1024
    check.so_far = {"parameters": parameters, "state_bytes": STATE * parameters, "drive": drive,
                    "device_planned_bytes": report["memory"]["device_planned_bytes"],
                    "device_peak_bytes": report["memory"]["device_peak_bytes"],
                    "seconds_per_step": seconds, "flops": 8 * parameters * tokens / seconds}
    return {**check.so_far, "matmul_flops": matmul_flops(check), "wanted_share": 0.6}


def matmul_flops(check):
    code = ("import torch,time\na=torch.randn(8192,8192,device='cuda',dtype=torch.bfloat16)\n"
            "for _ in range(5): a@a\ntorch.cuda.synchronize()\nt=time.time()\n"
            "for _ in range(20): a@a\ntorch.cuda.synchronize()\n"
            "print(20*2*8192**3/(time.time()-t))\n")
    more = {"env": dict(os.environ, PYTHONPATH=check.torch)} if check.options.torch else {}
    try:
        return float(check.run([sys.executable, "-c", code], "matmul", **more).split()[-1])
    except (Failed, ValueError):
        return None


def step_seconds(report):
    """Of the steps in the middle: the first warms up, the last has two updates where they are
    deferred."""
    return middle(step["seconds"] for step in report["steps"][1:-1])


def middle(numbers):
    """Their median, the upper one of two."""
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]
