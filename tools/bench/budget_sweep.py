#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains under host budgets from the smallest that a plan accepts to all in memory.

  tools/bench/budget_sweep.py --nvme DIR [--rounds N] [--steps N] [--seq N] [--budgets N]
                              [--build FOLDER] [--json FILE]

Prints, budget by budget, what a step took (median, least and most of the rounds) beside what
`headrace plan` predicts from this machine's ceilings, the bytes held, and the bytes moved per
parameter and step; `python3 scripts/report budgets` draws them from the --json. Rounds go up and
down in turn. Wants an otherwise idle machine. Ends with 1 where more memory moves more bytes, or a
run holds more than its budget.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from measured import NVME, Tools, add_options, budget_of, mean, median, options_of

SHAPE = {"layers": 16, "hidden": 512, "heads": 8}


def ceilings(tools):
    rates = tools.rates()
    return {**rates, **tools.flops(SHAPE, 1, rates)}


def measure(tools, asked):
    before = ceilings(tools)
    shares = [i / (asked.budgets - 1) for i in range(asked.budgets)]
    settings = [budget_of(tools, SHAPE, 1, NVME, share, before) for share in shares]
    runs = [[] for _ in settings]
    for number in range(asked.rounds):
        order = range(len(settings)) if number % 2 == 0 else reversed(range(len(settings)))
        for i in order:
            runs[i].append(tools.train(SHAPE, 1, settings[i], asked.steps))
            print(f"round {number + 1}  budget {i + 1}  {median(runs[i][-1], 'seconds'):.3f} s",
                  file=sys.stderr, flush=True)
    # What moved the drive or memory meanwhile is in the prediction, too.
    rates = mean(before, ceilings(tools))
    return [row_of(tools.plan(SHAPE, 1, chosen, rates), chosen, all_runs)
            for chosen, all_runs in zip(settings, runs)]


def row_of(plan, chosen, runs):
    seconds = [median(run, "seconds") for run in runs]
    parameters = runs[0]["parameters"]
    # Whole runs: a deferred update's bytes are those of the step that it is met in.
    moved = [sum(step["nvme_read_bytes"] + step["nvme_written_bytes"] for step in run["steps"]) /
             len(run["steps"]) / parameters for run in runs]
    return {"budget": int(chosen[-1].split("=")[1]), "measured": statistics.median(seconds),
            "least": min(seconds), "most": max(seconds),
            "predicted": plan["prediction_of_one_rank"]["step_seconds"],
            "held_mib": runs[0]["memory"]["engine_bytes"] / 2**20,
            "moved": statistics.median(moved)}


def main():
    options = options_of(__doc__)
    add_options(options, rounds=3)
    options.add_argument("--budgets", type=int, default=9)
    options.add_argument("--svg", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.svg:
        options.error("--svg: plots are drawn from the JSON. Give --json FILE, then run "
                      "`python3 scripts/report budgets FILE PLOT.svg`.")
    with tempfile.TemporaryDirectory() as work:
        rows = measure(Tools(asked, pathlib.Path(work)), asked)
    print(f"{'budget MiB':>10} {'held MiB':>9} {'measured s':>10} {'least':>6} {'most':>6} "
          f"{'predicted s':>11} {'bytes moved':>11}")
    for row in rows:
        print(f"{row['budget'] / 2**20:10.1f} {row['held_mib']:9.1f} {row['measured']:10.3f} "
              f"{row['least']:6.3f} {row['most']:6.3f} {row['predicted']:11.3f} "
              f"{row['moved']:11.2f}")
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "program": "budget_sweep",
                                          "rows": rows}, indent=2))
    rises = any(b["moved"] > 1.001 * a["moved"] for a, b in zip(rows, rows[1:]))
    over = any(row["held_mib"] * 2**20 > row["budget"] for row in rows)
    sys.exit(1 if rises or over else 0)


if __name__ == "__main__":
    main()
