#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what `headrace plan` predicts with what train_gpt measures, setting by setting.

  tools/bench/plan_against_runs.py --nvme DIR [--rounds N] [--steps N] [--seq N]
                                   [--build FOLDER] [--json FILE]

Before and after each run the ceilings are measured: the drive (headrace bench), the update
(headrace bench optimizer), and the trainer's own arithmetic (the same model and batch, all in
memory). The prediction is made from the mean of both. A run whose predictions from the first and
from the last ceilings differ by more than 10 % is discarded and counted. Wants an otherwise idle
machine. Ends with 1 where a median is off by more than 10 % in seconds, or 2 % in bytes held.
"""
import json
import pathlib
import statistics
import sys
import tempfile

from measured import (NVME, STATE, Tools, add_options, budget_of, mean, median, options_of,
                      predictions)

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


def compared(tools, of_run, rates, run):
    step, kept, apart = predictions(
        lambda one: tools.plan(*of_run, one)["prediction_of_one_rank"], *rates)
    rates = mean(*rates)
    return {"predicted": step["step_seconds"], "measured": median(run, "seconds"),
            "planned_bytes": tools.plan(*of_run, rates)["plan_of_one_rank"]["host_bytes"],
            "held_bytes": run["memory"]["engine_bytes"], "rates": rates, "prediction": step,
            "kept": kept, "apart": apart,
            "phases": {key: median(run, key) for key in ("forward_s", "backward_s", "update_s")}}


def main():
    options = options_of(__doc__)
    add_options(options, rounds=3)
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
                # Its own arithmetic closest to the run, which it moves with most.
                first = tools.flops(shape, batch, rough)
                run = tools.train(shape, batch, chosen, asked.steps)
                last = tools.flops(shape, batch, rough)
                after = tools.drive_rates()
                rates = {**before, **update, **first}, {**after, **update, **last}
                row = compared(tools, (shape, batch, chosen), rates, run)
                print(f"round {number + 1}  {name:28} predicted {row['predicted']:.3f} "
                      f"({row['apart']:+.0%}) measured {row['measured']:.3f} "
                      f"{'' if row['kept'] else 'discarded'}", file=sys.stderr, flush=True)
                discarded += not row["kept"]
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
    print(f"{discarded} runs discarded, whose predictions from before and after differ by over "
          "10 %")
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "rows": rows,
                                          "discarded": discarded}, indent=2))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
