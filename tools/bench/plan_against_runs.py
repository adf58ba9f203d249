#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what `headrace plan` predicts with what train_gpt measures, setting by setting.

  tools/bench/plan_against_runs.py --nvme DIR [--rounds N] [--steps N] [--build FOLDER]
                                   [--json FILE]

Before and after each run the ceilings are measured: the drive (headrace bench), the update
(headrace bench optimizer), and the trainer's own arithmetic (the same model and batch, all in
memory). The prediction is made from the mean of both. A round whose drive ceilings differ by more
than 10 % is discarded and counted. Wants an otherwise idle machine. Ends with 1 where a median is
off by more than 10 % in seconds, or 2 % in bytes held.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NVME = ["zero_optimization.stage=3", "zero_optimization.offload_optimizer.device=nvme",
        "zero_optimization.offload_param.device=nvme"]
STATE = ["zero_optimization.offload_optimizer.device=nvme"]
SMALL = {"layers": 8, "hidden": 384, "heads": 6}
MIDDLE = {"layers": 16, "hidden": 512, "heads": 8}
LARGE = {"layers": 16, "hidden": 768, "heads": 12}

# What it is called, the model, the batch, settings, and the share of the budget between the
# smallest plan and all in memory (None: no budget).
SETTINGS = [
    ("nothing resident", MIDDLE, 1, NVME, None),
    ("nothing resident, batch 4", MIDDLE, 4, NVME, None),
    ("nothing resident, barrier", MIDDLE, 1, NVME + ["headrace.update_mode=barrier"], None),
    ("state on NVMe", MIDDLE, 1, STATE, None),
    ("budget 1/2", MIDDLE, 1, NVME, 0.5),
    ("budget 3/4, batch 4", MIDDLE, 4, NVME, 0.75),
    ("small, nothing resident", SMALL, 2, NVME, None),
    ("large, nothing resident", LARGE, 1, NVME, None),
    ("large, budget 1/3", LARGE, 1, NVME, 0.33),
    ("large, barrier, batch 2", LARGE, 2, NVME + ["headrace.update_mode=barrier"], None),
]
SEQUENCE = 128


class Tools:
    def __init__(self, asked, work):
        self.bin = pathlib.Path(asked.build) / "bin"
        self.drive, self.steps, self.work = str(asked.nvme), asked.steps, work
        self.models = {}

    def run(self, *words):
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (0, 2) or not done.stdout.strip().startswith("{"):
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
        return self.run(self.bin / "train_gpt", *words, "--batch", batch, "--seq", SEQUENCE,
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
        words = [word for setting in [*settings, *self.paths(settings)]
                 for word in ("--set", setting)]
        return self.run(self.bin / "headrace", "plan", self.model(shape), "--machine", machine,
                        "--seq", SEQUENCE, "--batch", batch, *words, "--json", "-")

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
        # Weight, residual and two moments, verified and computed: 24 bytes of checksums.
        return {"update": 1e9 / ns[False], "update_checked": 1e9 / ns[True],
                "verify": 24e9 / max(ns[True] - ns[False], 0.01), "memory": memory}

    def flops(self, shape, batch, rates):
        """Of the trainer: from a run in memory, whose arithmetic a plan counts as well."""
        run = self.train(shape, batch, [], self.steps)
        seconds = median(run, "forward_s") + median(run, "backward_s")
        plan = self.plan(shape, batch, ["headrace.host_budget_bytes=0"],
                         {**rates, "flops": 1e12})["prediction_of_one_rank"]
        compute = sum(plan[phase]["busy_seconds"]["compute"] for phase in ("forward", "backward"))
        return 1e12 * compute / seconds


def median(run, key):
    # The first two warm caches, and the last has two updates where they are deferred.
    return statistics.median(step[key] for step in run["steps"][2:-1])


def mean(before, after):
    return {key: (before[key] + after[key]) / 2 for key in before}


def differ(before, after):
    return max(abs(before[key] / after[key] - 1) for key in before)


def budget_of(tools, shape, batch, settings, share, rates):
    if share is None:
        return settings
    report = tools.plan(shape, batch, settings + [f"headrace.host_budget_bytes={1 << 40}"], rates)
    least = report["plan_of_one_rank"]["smallest_host_bytes"]
    most = report["plan_of_one_rank"]["host_bytes"]
    return settings + [f"headrace.host_budget_bytes={int(least + share * (most - least))}"]


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--nvme", required=True, type=pathlib.Path)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--build", default=str(ROOT / "build/release"))
    options.add_argument("--json", type=pathlib.Path)
    asked = options.parse_args()
    rows, discarded = {}, 0
    with tempfile.TemporaryDirectory() as work:
        tools = Tools(asked, pathlib.Path(work))
        for number in range(asked.rounds):
            before = tools.drive_rates()
            update = tools.update_rates()
            for name, shape, batch, settings, share in SETTINGS:
                rough = {**before, **update, "flops": 1e11}
                chosen = budget_of(tools, shape, batch, settings, share, rough)
                flops = tools.flops(shape, batch, {**before, **update})
                run = tools.train(shape, batch, chosen, asked.steps)
                after = tools.drive_rates()
                kept = differ(before, after) <= 0.10
                rates = {**mean(before, after), **update, "flops": flops}
                plan = tools.plan(shape, batch, chosen, rates)
                row = {"predicted": plan["prediction_of_one_rank"]["step_seconds"],
                       "measured": median(run, "seconds"),
                       "planned_bytes": plan["plan_of_one_rank"]["host_bytes"],
                       "held_bytes": run["memory"]["engine_bytes"], "rates": rates,
                       "prediction": plan["prediction_of_one_rank"], "kept": kept,
                       "phases": {key: median(run, key)
                                  for key in ("forward_s", "backward_s", "update_s")}}
                print(f"round {number + 1}  {name:28} predicted {row['predicted']:.3f} "
                      f"measured {row['measured']:.3f} {'' if kept else 'discarded'}",
                      file=sys.stderr, flush=True)
                discarded += not kept
                rows.setdefault(name, []).append(row)
                before = after
    print(f"{'setting':28} {'rounds':>6} {'measured s':>10} {'predicted s':>11} {'ratio':>6} "
          f"{'held MiB':>9} {'planned':>9} {'ratio':>6}")
    missed = 0
    for name, all_rows in rows.items():
        kept = [row for row in all_rows if row["kept"]]
        if not kept:
            print(f"{name:28} {'none':>6}")
            continue
        measured = statistics.median(row["measured"] for row in kept)
        seconds = statistics.median(row["predicted"] / row["measured"] for row in kept)
        held = statistics.median(row["held_bytes"] for row in kept)
        planned = statistics.median(row["planned_bytes"] for row in kept)
        missed += abs(seconds - 1) > 0.10 or abs(planned / held - 1) > 0.02
        print(f"{name:28} {len(kept):6} {measured:10.3f} {measured * seconds:11.3f} {seconds:6.3f} "
              f"{held / 2**20:9.1f} {planned / 2**20:9.1f} {planned / held:6.3f}")
    print(f"{discarded} runs discarded, whose drive ceilings before and after differ by more than "
          f"10 %")
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "rows": rows,
                                          "discarded": discarded}, indent=2))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
