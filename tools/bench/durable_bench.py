#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what headrace.durable costs a step, and how long a run takes to resume.

  tools/bench/durable_bench.py --nvme DIR [--params N] [--rounds N] [--steps N] [--batch N]
                               [--resident PERCENT...] [--build FOLDER] [--json FILE]

Each round trains the same steps with durable "none" and with "step", in turn first: once with
nothing resident and once with 30 % of what a budget can keep. It gives the median and the spread of
the rounds' ratios of seconds per step, and the bytes that each parameter moves per step. Then the
store is opened for one more step, and the time from the start of the process to the end of that
step is set beside the one of the same start without a store, and beside the resident bytes at the
drive's read rate. Fewer than 9 rounds are a trial and no result. Run it on a quiet machine, and
under steady_drive.sh if the drive's own rate swings.
"""
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

from measured import NVME, Tools, add_options, budget_of, median, options_of

ENOUGH_ROUNDS = 9
RESIDENT = ("parameters", "optimizer state")  # rows of a plan
STORE = "durable-bench"


def shape_of(parameters):
    """A GPT of about that many parameters: 12 * layers * hidden^2, heads of 64."""
    hidden = 64
    while 12 * layers_of(hidden) * hidden * hidden < parameters:
        hidden += 64
    layers = max(1, round(parameters / (12 * hidden * hidden)))
    return {"layers": layers, "hidden": hidden, "heads": hidden // 64}


def layers_of(hidden):
    return max(2, hidden * 24 // 1024)


def remove_store(tools):
    shutil.rmtree(pathlib.Path(tools.drive) / f"headrace-{os.getuid()}" / f"store-{STORE}",
                  ignore_errors=True)


def bytes_per_parameter(run):
    """What a step moved, without the first, which begins a prediction, and the last."""
    return {way: statistics.median(step[f"nvme_{way}_bytes"] for step in run["steps"][1:-1])
            / run["parameters"] for way in ("read", "written")}


def train(tools, shape, batch, settings, durable):
    more = ["headrace.durable=step"] if durable else []
    remove_store(tools)
    return tools.train(shape, batch, settings + more, tools.steps,
                       *(["--store", STORE] if durable else []))


def one_round(tools, shape, batch, settings, durable_first):
    runs = {durable: train(tools, shape, batch, settings, durable)
            for durable in ((True, False) if durable_first else (False, True))}
    seconds = {durable: median(run, "seconds") for durable, run in runs.items()}
    return {"none_seconds": seconds[False], "step_seconds": seconds[True],
            "ratio": seconds[True] / seconds[False],
            "none_bytes": bytes_per_parameter(runs[False]),
            "step_bytes": bytes_per_parameter(runs[True]),
            "same_hashes": runs[True]["hash"] == runs[False]["hash"],
            "resident_bytes": sum(row["bytes"] for row in runs[True]["plan"]
                                  if row["tier"] == "host" and row["what"] in RESIDENT)}


def seconds_to_first_step(tools, shape, batch, settings, steps, *more):
    begin = time.monotonic()
    run = tools.train(shape, batch, settings, steps, *more)
    return time.monotonic() - begin, run


def resume(tools, shape, batch, settings, read_rate, resident_bytes):
    """Without a store a start fills in its values, with one it reads them: the rest is alike."""
    fresh, _ = seconds_to_first_step(tools, shape, batch, settings, 1)
    remove_store(tools)
    store = [settings + ["headrace.durable=step"], 1, "--store", STORE]
    seconds_to_first_step(tools, shape, batch, *store)
    store[1] = 2
    again, run = seconds_to_first_step(tools, shape, batch, *store)
    if run["resumed_from"] != 1:
        sys.exit(f"the run went on after step {run['resumed_from']}, not 1: nothing was measured")
    remove_store(tools)
    return {"fresh_seconds": fresh, "resumed_seconds": again,
            "resident_read_seconds": resident_bytes / read_rate}


def measure(tools, asked, shape, share, rates):
    settings = budget_of(tools, shape, asked.batch, NVME, share, rates)
    rounds = []
    for number in range(asked.rounds):
        rounds.append(one_round(tools, shape, asked.batch, settings, number % 2 == 0))
        print(f"  round {number + 1}: {rounds[-1]['ratio']:.3f}", flush=True)
    ratios = [row["ratio"] for row in rounds]
    bytes_of = {durable: {way: statistics.median(row[f"{durable}_bytes"][way] for row in rounds)
                          for way in ("read", "written")} for durable in ("none", "step")}
    return {"resident_share": share or 0, "ratio": statistics.median(ratios),
            "ratio_least": min(ratios), "ratio_most": max(ratios), "rounds": rounds,
            "bytes_per_parameter": bytes_of,
            "same_hashes": all(row["same_hashes"] for row in rounds),
            "resume": resume(tools, shape, asked.batch, settings, rates["nvme_read"],
                             rounds[-1]["resident_bytes"])}


def tell(row):
    print(f"{row['resident_share']:.0%} resident: durable step / none {row['ratio']:.3f} "
          f"[{row['ratio_least']:.3f}, {row['ratio_most']:.3f}]")
    for durable, moved in row["bytes_per_parameter"].items():
        print(f"  durable {durable}: {moved['read']:.2f} B read, {moved['written']:.2f} B written "
              "per parameter and step")
    times = row["resume"]
    print(f"  process start to the end of one step: {times['fresh_seconds']:.2f} s new, "
          f"{times['resumed_seconds']:.2f} s resumed; the resident bytes at the drive's read "
          f"rate take {times['resident_read_seconds']:.2f} s", flush=True)


def main():
    options = options_of(__doc__)
    add_options(options, rounds=ENOUGH_ROUNDS)
    options.add_argument("--params", type=float, default=353e6)
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--resident", type=int, nargs="+", default=[0, 30], metavar="PERCENT",
                         help="of what can be resident; each is a measurement of its own")
    asked = options.parse_args()
    if asked.steps < 5:
        sys.exit("--steps below 5 leaves no step between the first and the last; nothing was "
                 "run. Give 5 or more.")
    shape = shape_of(asked.params)
    with tempfile.TemporaryDirectory() as work:
        tools = Tools(asked, pathlib.Path(work))
        rates = tools.drive_rates()  # of a plan only its sizes are used, which need no others
        rows = []
        for percent in asked.resident:
            print(f"{shape}, {percent}% resident", flush=True)
            rows.append(measure(tools, asked, shape, percent / 100 or None, rates))
            tell(rows[-1])
        remove_store(tools)
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "shape": shape, "rows": rows},
                                         indent=2))
    if asked.rounds < ENOUGH_ROUNDS:
        print(f"{asked.rounds} rounds are a trial: {ENOUGH_ROUNDS} or more are a result")
    if not all(row["same_hashes"] for row in rows):
        sys.exit("durable runs ended with other hashes than the others: that is a defect")


if __name__ == "__main__":
    main()
