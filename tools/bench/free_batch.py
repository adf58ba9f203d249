#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a step with all on NVMe and deferred updates, above the batch at which that is free.

  tools/bench/free_batch.py --nvme DIR [--rounds N] [--steps N] [--seq N] [--margin X]
                            [--build FOLDER] [--json FILE]

The batch is --margin times what `headrace plan` says hides the drive. Each round trains the same
steps in memory and on NVMe, in turn first, with the drive's ceilings before and after. The bound
of a step is the longer of: all of the CPU's work (the step in memory); and backward, then forward
or the drive's bytes at its ceiling, whichever takes longer. Ends with 1 where the median of step /
bound is above 1.10, and says what the trainer waited for.
"""
import json
import math
import pathlib
import statistics
import sys
import tempfile

from measured import NVME, Tools, add_options, mean, median, options_of

SHAPE = {"layers": 16, "hidden": 512, "heads": 8}
SETTINGS = NVME + ["headrace.update_mode=defer"]


def batch_above_free(tools, margin, rates):
    """And the free batch, in tokens. A larger batch computes at another rate: asked twice."""
    batch, free = 1, 0
    for _ in range(2):
        flops = tools.flops(SHAPE, batch, rates)
        plan = tools.plan(SHAPE, batch, SETTINGS, {**rates, **flops})
        free = plan["prediction_of_one_rank"]["free_tokens_per_micro_batch"]
        batch = max(1, math.ceil(margin * free / tools.sequence))
    return batch, free


def measure(tools, batch, nvme_first):
    before = tools.drive_rates()
    runs = {}
    for where in ("nvme", "memory") if nvme_first else ("memory", "nvme"):
        runs[where] = tools.train(SHAPE, batch, SETTINGS if where == "nvme" else [], tools.steps)
    drive = mean(before, tools.drive_rates())
    memory, nvme = runs["memory"], runs["nvme"]
    moved = sum(nvme["plan_totals"][f"nvme_{way}_bytes_per_step"] for way in ("read", "written"))
    row = {"forward": median(memory, "forward_s"), "backward": median(memory, "backward_s"),
           "cpu": median(memory, "seconds"), "nvme": moved / drive["nvme_mixed"],
           "step": median(nvme, "seconds"), "waited": nvme["lanes"]["gather_wait"]}
    row["bound"] = max(row["cpu"], row["backward"] + max(row["forward"], row["nvme"]))
    row["ratio"] = row["step"] / row["bound"]
    return row


def main():
    options = options_of(__doc__)
    add_options(options, rounds=5)
    options.add_argument("--margin", type=float, default=1.2)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as work:
        tools = Tools(asked, pathlib.Path(work))
        rates = tools.rates()
        batch, free = batch_above_free(tools, asked.margin, rates)
        print(f"free from {free:.0f} tokens; batch {batch} x {asked.seq} = {batch * asked.seq}")
        print(f"{'round':>5} {'forward':>8} {'backward':>8} {'in memory':>9} {'drive':>6} "
              f"{'bound':>6} {'step':>6} {'ratio':>6}")
        rows = []
        for number in range(asked.rounds):
            row = measure(tools, batch, number % 2 == 0)
            rows.append(row)
            print(f"{number + 1:5} {row['forward']:8.3f} {row['backward']:8.3f} {row['cpu']:9.3f} "
                  f"{row['nvme']:6.3f} {row['bound']:6.3f} {row['step']:6.3f} "
                  f"{row['ratio']:6.3f}", flush=True)
    ratios = [row["ratio"] for row in rows]
    ratio = statistics.median(ratios)
    print(f"step / bound: {ratio:.3f} [{min(ratios):.3f}, {max(ratios):.3f}]")
    waited = [row["waited"] for row in rows]
    print(f"trainer waited, seconds a run of {asked.steps} steps: "
          f"{statistics.median(w['seconds'] for w in waited):.3f}, of which for updates "
          f"{statistics.median(w['update_seconds'] for w in waited):.3f}")
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "batch": batch, "free_tokens": free,
                                          "rows": rows}, indent=2))
    sys.exit(1 if ratio > 1.10 else 0)


if __name__ == "__main__":
    main()
