#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the steps that `headrace sim` simulates with those of train_gpt on several ranks.

  tools/bench/shaped_link.sh 800 tools/bench/sim_against_worlds.py --text FILE [--worlds 2,3,4]
      [--rounds N] [--steps N] [--nvme DIR] [--build FOLDER] [--json FILE]

Each round measures, one after the other and for each number of ranks:
- the link: `headrace bench ranks` by as many ranks, over torch's Gloo, while as many others
  compute. The time of a call, the bytes per second into a rank and those that a core carries are
  fitted to it;
- the ranks' own arithmetic: as many separate runs of train_gpt at once, all in memory, which share
  the CPUs as ranks do;
- the world: forward, backward and update of train_gpt on so many ranks.
The simulation gets the first two, of the arithmetic the mean of before and after. A run for which
both alone would give steps that differ by more than 10 % is discarded and counted. Wants an
otherwise idle machine. Ends with 1 where a median is off by more than 10 %.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from against_ranks import end, free_port
from measured import (NVME, ROOT, flops_reached, mean, median, options_of, predictions,
                      programs_in)

SHAPE = {"layers": 8, "hidden": 512, "heads": 8}
BATCH, SEQUENCE = 4, 128
HOST = ["zero_optimization.stage=3", "zero_optimization.offload_param.device=cpu",
        "zero_optimization.offload_optimizer.device=cpu"]
ALWAYS = ["headrace.update_threads=1", "gradient_clipping=1.0"]
# What it is called, settings, micro-batches.
CASES = [("memory", HOST, 1), ("memory, 2 micro-batches", HOST, 2),
         ("memory, barrier", HOST + ["headrace.update_mode=barrier"], 1),
         ("memory, stage 2", ["zero_optimization.stage=2", *HOST[1:]], 1)]
ON_NVME = ("NVMe", NVME, 1)
# Sizes of shards of these groups, and a small one for the time of a call.
SIZES = "1k,256k,1M,4M"


def read_options():
    options = options_of(__doc__)
    options.add_argument("--text", required=True, type=pathlib.Path)
    options.add_argument("--worlds", default="2,3,4", help="numbers of ranks (2,3,4)")
    options.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    options.add_argument("--steps", type=int, default=8, help="steps of each run (8)")
    options.add_argument("--cases", metavar="NAME;...",
                         help=f"of {'; '.join(case[0] for case in CASES)} (all)")
    options.add_argument("--nvme", type=pathlib.Path, help="folder on a drive, for one more case")
    options.add_argument("--build", default=str(ROOT / "build/release"), metavar="FOLDER")
    options.add_argument("--json", type=pathlib.Path, metavar="FILE")
    asked = options.parse_args()
    known = {case[0]: case for case in CASES + ([ON_NVME] if asked.nvme else [])}
    wanted = [word.strip() for word in asked.cases.split(";")] if asked.cases else list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        options.error(f"no such case: {'; '.join(unknown)}; nothing was started. Give some of "
                      f"these, with semicolons between them: {'; '.join(known)}")
    asked.cases = [known[name] for name in wanted]
    worlds = asked.worlds.split(",")
    if not all(word.isdecimal() and int(word) >= 2 for word in worlds):
        options.error(f"--worlds {asked.worlds}: nothing was started. Give numbers from 2 on, "
                      "with commas between them: 2,3,4")
    asked.worlds = [int(word) for word in worlds]
    if not asked.text.is_file():
        options.error(f"--text {asked.text} is no file; nothing was started")
    return asked


class Worlds:
    def __init__(self, asked, work):
        self.asked, self.work = asked, work
        self.bin = programs_in(asked.build)
        self.model = work / "model"
        self.together([self.train(HOST, 1, 1, "--save", self.model)], ranks=False)

    def train(self, settings, micro_batches, steps, *more):
        words = [self.bin / "train_gpt", "--text", self.asked.text, "--batch", BATCH, "--seq",
                 SEQUENCE, "--steps", steps, "--threads", 1, "--eval-batches", 1,
                 "--accumulation", micro_batches, "--no-progress"]
        words += [word for key, value in SHAPE.items() for word in (f"--{key}", value)]
        words += [word for one in self.placed(settings) for word in ("--set", one)]
        return [*words, *more]

    def placed(self, settings):
        """With what both a run and its simulation take."""
        parts = [one.split(".device=nvme")[0] for one in settings if ".device=nvme" in one]
        return [*ALWAYS, *settings, *(f"{part}.nvme_path={self.asked.nvme}" for part in parts)]

    def together(self, commands, ranks):
        """Runs them at once; the first one's report. As ranks of one world, or each alone."""
        report, started, port = self.work / "report.json", [], free_port()
        report.unlink(missing_ok=True)
        try:
            for rank, words in enumerate(commands):
                world = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port,
                         "WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1",
                         "GLOO_SOCKET_IFNAME": "lo"} if ranks else {}
                launched = ["--ranks", "torch"] if ranks else \
                    ["--ranks", "none"] if "train_gpt" in str(words[0]) else []
                to = ["--json", report] if rank == 0 else []
                started.append(subprocess.Popen(
                    [str(word) for word in [*words, *launched, *to]], stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE, text=True, start_new_session=True,
                    env={**os.environ, **world, "OMP_NUM_THREADS": "1",
                         "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}))
            said = [one.communicate()[1] for one in started]
        finally:
            for one in started:
                if one.poll() is None:
                    end(one)
        if any(one.returncode for one in started):
            sys.exit(f"{' '.join(map(str, commands[0]))} ended with "
                     f"{[one.returncode for one in started]}:\n{said[0][-3000:]}")
        return json.loads(report.read_text())

    def link(self, ranks):
        """Bytes per second into a rank, and the seconds of a call: a line through the sizes."""
        words = [self.bin / "headrace", "bench", "ranks", "--sizes", SIZES, "--rounds", 3,
                 "--seconds", "0.5"]
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                  for _ in range(ranks)]
        try:
            rows = self.together([words] * ranks, ranks=True)["rows"]
        finally:
            for other in others:
                other.kill()
        rows = [(row["bytes"] * (ranks - 1), statistics.median(row["seconds"]),
                 statistics.median(row["cpu_seconds"])) for row in rows
                if row["call"] in ("all_gather", "all_to_all")]
        call = statistics.mean(seconds for size, seconds, _ in rows if size < 65536)
        large = [row for row in rows if row[0] >= 1 << 20]
        return {"network": statistics.mean(size / (seconds - call) for size, seconds, _ in large),
                "transport": statistics.mean(size / cpu for size, _, cpu in large), "call": call}

    def simulate(self, ranks, settings, micro_batches, rates):
        machine = self.work / "machine.json"
        machine.write_text(json.dumps({"name": "one rank", "gpus": 0, "cpus": 1, **rates}))
        settings = [*self.placed(settings), "headrace.host_budget_bytes=0"]
        words = [word for one in settings for word in ("--set", one)]
        return self.together([[self.bin / "headrace", "sim", self.model, "--machine", machine,
                               "--nodes", ranks, "--seq", SEQUENCE, "--batch", BATCH,
                               "--accumulation", micro_batches, *words]],
                             ranks=False)["worlds"][0]["prediction_of_one_rank"]

    def arithmetic(self, ranks):
        """What a rank reaches while so many compute at once: of runs in memory, each alone."""
        settings = HOST + ["headrace.update_mode=barrier"]
        run = self.together([self.train(settings, 1, self.asked.steps)] * ranks, ranks=False)
        memory = 10e9 / max(1, ranks / os.cpu_count())
        update = run["parameters"] / median(run, "update_s")
        rates = {"memory": memory, "update": update, "update_checked": update}

        def computing(rate):
            return self.simulate(1, settings, 1, {**rates, "flops": rate, "backward_flops": rate})

        return {**rates, **flops_reached(run, computing)}

    def measure(self, ranks, settings, micro_batches):
        return self.together([self.train(settings, micro_batches, self.asked.steps)] * ranks,
                             ranks=True)


def compared(worlds, ranks, settings, micro_batches, rates, run):
    phases = {key: median(run, key) for key in ("forward_s", "backward_s", "update_s")}
    step, kept, apart = predictions(
        lambda one: worlds.simulate(ranks, settings, micro_batches, one), *rates)
    return {"measured": sum(phases.values()), "simulated": step["step_seconds"], "phases": phases,
            "rates": mean(*rates), "simulation": step, "kept": kept, "apart": apart}


def main():
    asked = read_options()
    rows = {}
    with tempfile.TemporaryDirectory() as work:
        worlds = Worlds(asked, pathlib.Path(work))
        for number in range(asked.rounds):
            for ranks in asked.worlds:
                link, before = worlds.link(ranks), worlds.arithmetic(ranks)
                for name, settings, micro_batches in asked.cases:
                    run = worlds.measure(ranks, settings, micro_batches)
                    after = worlds.arithmetic(ranks)
                    rates = {**link, **before}, {**link, **after}
                    row = compared(worlds, ranks, settings, micro_batches, rates, run)
                    before = after
                    rows.setdefault((ranks, name), []).append(row)
                    print(f"round {number + 1}  {ranks} ranks  {name:24} measured "
                          f"{row['measured']:.3f} s, simulated {row['simulated']:.3f} s "
                          f"({row['apart']:+.0%}){'' if row['kept'] else '  discarded'}",
                          file=sys.stderr, flush=True)
    print(f"{'ranks':>5}  {'case':24} {'measured s':>10} {'simulated / measured':>22}")
    missed = 0
    for (ranks, name), runs in rows.items():
        runs = [run for run in runs if run["kept"]]
        if not runs:
            print(f"{ranks:5}  {name:24} {'none':>10}")
            continue
        ratios = sorted(run["simulated"] / run["measured"] for run in runs)
        middle = statistics.median(ratios)
        missed += abs(middle - 1) > 0.10
        print(f"{ranks:5}  {name:24} {statistics.median(run['measured'] for run in runs):10.3f} "
              f"{middle:10.3f} [{ratios[0]:.3f}, {ratios[-1]:.3f}]")
    discarded = sum(not run["kept"] for runs in rows.values() for run in runs)
    print(f"{discarded} runs discarded, whose steps by the arithmetic before and after differ by "
          "over 10 %")
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "rows": [
            {"ranks": ranks, "case": name, "runs": runs} for (ranks, name), runs in rows.items()]},
            indent=2))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
