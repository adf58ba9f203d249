# SPDX-License-Identifier: Apache-2.0
"""measured.py: runs of train_gpt, predictions of `headrace plan` and the ceilings of this machine,
for the scripts beside it that compare them."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NVME = ["zero_optimization.stage=3", "zero_optimization.offload_optimizer.device=nvme",
        "zero_optimization.offload_param.device=nvme"]
STATE = ["zero_optimization.offload_optimizer.device=nvme"]


def options_of(doc):
    """doc: of the script; its first paragraph, its usage, and what it does."""
    first, _, *rest = doc.split("\n\n")
    return argparse.ArgumentParser(description=first, epilog="\n\n".join(rest))


def programs_in(build):
    """The folder of headrace and train_gpt. Ends the script with 2 where they are not there."""
    folder = pathlib.Path(build) / "bin"
    for name in ("headrace", "train_gpt"):
        if not (folder / name).is_file():
            print(f"{folder / name} is not there; nothing was started. Build it, or give --build: "
                  "cmake --build build/release --target headrace_program train_gpt",
                  file=sys.stderr)
            sys.exit(2)
    return folder


def add_options(options, rounds):
    options.add_argument("--nvme", required=True, type=pathlib.Path,
                         help="folder on the drive to measure")
    options.add_argument("--rounds", type=int, default=rounds, help=f"rounds ({rounds})")
    options.add_argument("--steps", type=int, default=10, help="steps of each run (10)")
    options.add_argument("--seq", type=int, default=128, help="tokens of a sequence (128)")
    options.add_argument("--build", default=str(ROOT / "build/release"),
                         help="folder with bin/headrace and bin/train_gpt (build/release)")
    options.add_argument("--json", type=pathlib.Path, help="file for the results")


class Tools:
    def __init__(self, asked, work):
        self.bin = programs_in(asked.build)
        self.drive, self.steps, self.work = str(asked.nvme), asked.steps, work
        self.sequence = asked.seq
        self.models = {}

    def run(self, *words, accepted=(0,)):
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode not in accepted or not done.stdout.strip().startswith("{"):
            sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n"
                     f"{done.stderr[-2000:]}{done.stdout[-500:]}")
        return json.loads(done.stdout)

    def paths(self, settings):
        sections = [key.split(".device=nvme")[0] for key in settings if ".device=nvme" in key]
        return [f"{section}.nvme_path={self.drive}" for section in sections]

    def train(self, shape, batch, settings, steps, *more):
        words = [word for key, value in shape.items() for word in (f"--{key}", value)]
        for setting in ["gradient_clipping=1.0", *settings, *self.paths(settings)]:
            words += ["--set", setting]
        return self.run(self.bin / "train_gpt", *words, "--batch", batch, "--seq", self.sequence,
                        "--steps", steps, "--eval-batches", 1, "--json", "-", *more)

    def model(self, shape):
        name = "-".join(str(value) for value in shape.values())
        if name not in self.models:
            folder = self.work / name
            self.train(shape, 1, [], 1, "--save", folder)
            self.models[name] = folder
        return self.models[name]

    def plan(self, shape, batch, settings, rates):
        machine = self.work / "machine.json"
        machine.write_text(json.dumps({"name": "this machine", "gpus": 0, "cpus": 2, **rates}))
        settings = [*settings, *self.paths(settings)]
        # As in a run. Where nothing is said, a plan may place all on NVMe, within an "auto" budget.
        for key, default in (("headrace.host_budget_bytes", "0"),
                             ("zero_optimization.offload_param.device", "none"),
                             ("zero_optimization.offload_optimizer.device", "none")):
            if not any(setting.startswith(key) for setting in settings):
                settings.append(f"{key}={default}")
        words = [word for setting in settings for word in ("--set", setting)]
        return self.run(self.bin / "headrace", "plan", self.model(shape), "--machine", machine,
                        "--seq", self.sequence, "--batch", batch, *words, "--json", "-",
                        accepted=(0, 2))  # 2: does not fit, and what would

    def drive_rates(self):
        report = self.run(self.bin / "headrace", "bench", self.drive, "--rw", "read,write,rw",
                          "--bs", "1M", "--iodepth", 16, "--runtime", "4s", "--json", "-")
        rates = report["ceiling_bytes_per_second"]
        return {"nvme_read": rates["read"], "nvme_write": rates["write"],
                "nvme_mixed": rates["rw"]}

    def update_rates(self):
        report = self.run(self.bin / "headrace", "bench", "optimizer", "--rule", "adamw",
                          "--weight", "bf16-split", "--moments", "f32", "--checksum",
                          "--runtime", "6s", "--json", "-")
        ns = {row["checksums"]: row["ns_per_parameter"]["median"] for row in report["rows"]}
        memory = next(row["bytes_per_second"]["median"] for row in report["rows"]
                      if not row["checksums"])
        return {"update": 1e9 / ns[False], "update_checked": 1e9 / ns[True], "memory": memory}

    def rates(self):
        return {**self.drive_rates(), **self.update_rates()}

    def flops(self, shape, batch, rates):
        """Of the trainer, forward and backward: from a run in memory. A plan says how much
        arithmetic each is, and what passes over gradients take beside it, at any rate."""
        run = self.train(shape, batch, [], self.steps)

        def computing(rate):
            plan = self.plan(shape, batch, ["headrace.host_budget_bytes=0"],
                             {**rates, "flops": rate, "backward_flops": rate})
            return plan["prediction_of_one_rank"]

        return flops_reached(run, computing)


def flops_reached(run, computing):
    """Of forward and backward. computing(): a prediction of the run's step at a rate."""
    plans = computing(1e12), computing(2e12)

    def reached(phase):
        at_one, at_two = (plan[phase]["busy_seconds"]["compute"] for plan in plans)
        flop = (at_one - at_two) * 2e12
        return flop / (median(run, f"{phase}_s") - (at_one - flop / 1e12))

    return {"flops": reached("forward"), "backward_flops": reached("backward")}


def median(run, key):
    # The first two warm caches, and the last has two updates where they are deferred.
    return statistics.median(step[key] for step in run["steps"][2:-1])


def mean(before, after):
    return {key: (before[key] + after[key]) / 2 for key in before}


# How far apart two predictions of a run may be, from the rates before it and after it. If they are
# further apart, the machine changed meanwhile.
MOST_APART = 0.10


def predictions(predict, before, after):
    """Of a run between both rates: from their mean, whether it counts, and how far apart."""
    first, last = predict(before)["step_seconds"], predict(after)["step_seconds"]
    apart = first / last - 1
    return predict(mean(before, after)), abs(apart) <= MOST_APART, apart


def budget_of(tools, shape, batch, settings, share, rates):
    if share is None:
        return settings
    report = tools.plan(shape, batch, settings + [f"headrace.host_budget_bytes={1 << 40}"], rates)
    # Of the engine's bookkeeping `headrace plan` counts a part only.
    least = 1.002 * report["plan_of_one_rank"]["smallest_host_bytes"]
    most = 1.002 * report["plan_of_one_rank"]["host_bytes"]
    return settings + [f"headrace.host_budget_bytes={int(least + share * (most - least))}"]
