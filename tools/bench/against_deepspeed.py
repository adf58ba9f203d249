#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_gpt beside DeepSpeed's ZeRO-3 and plain torch on the same GPT, text, batch and threads.

  tools/bench/against_deepspeed.py --nvme DIR --text FILE [--python FILE] [--size 51|353]
                                   [--rounds N] [--budget SIZE] [--cases WORD,...]
                                   [--trainer FILE] [--build FOLDER] [--json FILE]

Each round runs every case once, one after the other; a ratio is formed within a round. --python is
one that has torch and deepspeed; docs/tools.md says how to make one, and what a round takes. They
get glibc's 2 MiB pages, which make them faster; not where headrace.offload() holds the parameters:
in 2 MiB pages, the model that it has given up would keep its memory. "start" is from exec to the
end of the first step, without the compilation of DeepSpeed's operators, for which one short run of
each mode goes ahead. "peak" is VmHWM: of the whole process for train_gpt, of the steps for the
others. Wants an otherwise idle machine, and warns before a round where it is not. Exit codes: 0
done, 1 a case failed, 2 refused before anything started, 128 + n ended by signal n, its swap files
removed.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from measured import ROOT, median

# Shape, elements of DeepSpeed's tile, measured steps of theirs and ours, and a budget with which
# the process stays under a third of DeepSpeed's peak.
SIZES = {"51": (["--layers", "16", "--hidden", "512", "--heads", "8"], 16_000_000, 8, 13, 415e6),
         "353": (["--layers", "28", "--hidden", "1024", "--heads", "16"], 50_000_000, 4, 7, 1.6e9)}
THEIRS = {"nvme": "zero3-nvme", "pipelined": "zero3-nvme-pipelined", "cpu": "zero3-cpu",
          "offload": "zero2-cpu", "torch": "ram", "optimizer-nvme": "optimizer-nvme",
          "optimizer-memory": "optimizer-memory", "model-nvme": "model-nvme",
          "model-memory": "model-memory", "nvme-on": "zero3-nvme on headrace",
          "pipelined-on": "zero3-nvme-pipelined on headrace", "cpu-on": "zero3-cpu on headrace",
          "nvme-engine": "zero3-nvme in headrace", "cpu-engine": "zero3-cpu in headrace"}
OURS = {"budget": "train_gpt, a budget", "nothing": "train_gpt, nothing resident",
        "memory": "train_gpt, in host memory"}
ABOUT = {"nvme": "ZeRO-3, parameters and optimizer state on NVMe",
         "pipelined": "the same with pipeline_read and pipeline_write",
         "cpu": "ZeRO-3, both in host memory",
         "nvme-on": "ZeRO-3 on NVMe, with the operations of headrace (docs/python.md)",
         "pipelined-on": "the same with pipeline_read and pipeline_write",
         "cpu-on": "ZeRO-3 in host memory, with the operations of headrace",
         "nvme-engine": "that program, with headrace's engine behind deepspeed.initialize()",
         "cpu-engine": "the same in host memory",
         "offload": "ZeRO-Offload: stage 2, the optimizer state in host memory",
         "optimizer-nvme": "torch with headrace.torch.AdamW, its state on NVMe (docs/python.md)",
         "optimizer-memory": "the same with its state in host memory",
         "model-nvme": "torch with headrace.offload(), model and state on NVMe (docs/python.md)",
         "model-memory": "the same with both in host memory",
         "torch": "torch alone: bf16 weights, f32 masters, a fused AdamW",
         "budget": "train_gpt on NVMe, as much in host memory as --budget lets it",
         "nothing": "train_gpt on NVMe, nothing resident",
         "memory": "train_gpt, all in host memory"}
# These need headrace's wheel in --python.
NEED_WHEEL = [case for case in ABOUT
              if case.endswith(("-on", "-engine")) or case.startswith(("optimizer-", "model-"))]
DEFAULT = [case for case in ABOUT if case not in NEED_WHEEL and case != "offload"]
RATIOS = [("budget", "nvme"), ("budget", "pipelined"), ("nothing", "nvme"),
          ("nothing", "pipelined"), ("memory", "cpu"), ("memory", "torch"), ("budget", "torch"),
          ("nvme-on", "nvme"), ("pipelined-on", "pipelined"), ("cpu-on", "cpu"),
          ("nvme-engine", "nvme"), ("nvme-engine", "pipelined"), ("nvme-engine", "model-nvme"),
          ("cpu-engine", "cpu"),
          ("optimizer-nvme", "nvme"), ("optimizer-nvme", "offload"),
          ("optimizer-memory", "offload"), ("optimizer-memory", "torch"),
          ("model-nvme", "nvme"), ("model-nvme", "pipelined"), ("model-nvme", "nothing"),
          ("model-memory", "memory")]
SHORTEST_TEXT = 2 * (128 + 1)  # bytes: train_gpt wants a sequence to train on and one held out


def end(child):
    """Ends a case and what it started. The term before the kill lets a compilation of DeepSpeed's
    operators drop its lock: later runs wait without end for one that was left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)


def timed(words, first, **variables):
    """Output, and seconds until the line that starts with `first`."""
    environment = dict(os.environ, **variables)
    began, at, lines = time.monotonic(), None, []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", env=environment, start_new_session=True) as child:
        try:
            for line in child.stdout:
                if at is None and line.strip().startswith(first):
                    at = time.monotonic() - began
                lines.append(line)
        except BaseException:
            end(child)
            raise
    if child.returncode != 0 or at is None:
        sys.exit(f"{' '.join(words)} ended with {child.returncode}:\n{''.join(lines)[-3000:]}")
    return lines, at


class Cases:
    def __init__(self, asked, work, drive):
        self.asked, self.work, self.drive = asked, work, drive
        self.shape, self.tile, self.their_steps, self.our_steps, budget = SIZES[asked.size]
        self.budget = asked.budget or int(budget)

    def theirs(self, mode, steps):
        mode, _, engine = mode.partition(" in ")
        mode, _, on_headrace = mode.partition(" on ")
        words = [self.asked.python, str(self.asked.trainer), "--mode", mode, *self.shape,
                 *(["--on-headrace"] if on_headrace else []),
                 *(["--engine-of-headrace"] if engine else []),
                 "--nvme", self.drive, "--text", str(self.asked.text),
                 "--steps", str(steps), "--sub-group", str(self.tile)]
        folder = str(pathlib.Path(self.asked.python).absolute().parent)
        offloaded = engine or mode.startswith("model-")
        lines, start = timed(words, "step 0", PYTHONUNBUFFERED="1", DS_ACCELERATOR="cpu",
                             GLIBC_TUNABLES=f"glibc.malloc.hugetlb={0 if offloaded else 1}",
                             PATH=folder + ":" + os.environ["PATH"])  # it calls ninja
        run = json.loads(lines[-1])
        middle = run["median"]
        return {"start": start, "step": middle["total_s"], "forward": middle["forward_s"],
                "backward": middle["backward_s"], "update": middle["step_s"],
                "peak_mib": run["hwm_steps_mib"], "read": run["read_bytes_per_param_step"],
                "written": run["write_bytes_per_param_step"]}

    def ours(self, case):
        settings = ["gradient_clipping=1.0", "zero_optimization.stage=3"]
        for section in ("offload_param", "offload_optimizer"):
            device = "cpu" if case == "memory" else "nvme"
            settings.append(f"zero_optimization.{section}.device={device}")
            if device == "nvme":
                settings.append(f"zero_optimization.{section}.nvme_path={self.drive}")
        if case == "budget":
            settings.append(f"headrace.host_budget_bytes={self.budget}")
        report = self.work / "run.json"
        words = [str(pathlib.Path(self.asked.build) / "bin/train_gpt"), *self.shape, "--seq", "128",
                 "--batch", "1", "--steps", str(self.our_steps), "--text", str(self.asked.text),
                 "--eval-batches", "0", "--json", str(report)]
        for setting in settings:
            words += ["--set", setting]
        _, start = timed(words, "step 1/")
        run = json.loads(report.read_text())
        report.unlink()
        count, planned = run["parameters"], run["plan_totals"]
        of = {key: median(run, key) for key in run["steps"][0] if key != "skipped"}
        return {"start": start, "step": of["seconds"], "forward": of["forward_s"],
                "backward": of["backward_s"], "update": of["update_s"],
                "peak_mib": run["memory"]["peak_rss_bytes"] / 2**20,
                "engine_mib": run["memory"]["engine_bytes"] / 2**20,
                "read": of["kernel_read_bytes"] / count,
                "written": of["kernel_written_bytes"] / count,
                "planned_moved": (planned["nvme_read_bytes_per_step"] +
                                  planned["nvme_written_bytes_per_step"]) / count,
                "resident": [planned["resident_share_of_parameters"],
                             planned["resident_share_of_state"]], "lanes": run["lanes"]}

    def run(self, case):
        return self.ours(case) if case in OURS else self.theirs(THEIRS[case], self.their_steps)

    def name(self, case):
        return OURS.get(case) or THEIRS[case]


def spread(values, digits=2):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def print_report(cases, rows, rounds):
    print(f"\n{'case':28} {'step s':>20} {'forward':>8} {'backward':>8} {'update':>7} "
          f"{'start s':>8} {'peak MiB':>8} {'read B':>7} {'written':>7}")
    for case, runs in rows.items():
        of = lambda key: statistics.median(run[key] for run in runs)
        print(f"{cases.name(case):28} {spread([run['step'] for run in runs]):>20} "
              f"{of('forward'):8.3f} {of('backward'):8.3f} {of('update'):7.3f} {of('start'):8.1f} "
              f"{of('peak_mib'):8.0f} {of('read'):7.2f} {of('written'):7.2f}")
    print(f"\nratios within a round, median [least, most] of {rounds}")
    for ours, theirs in RATIOS:
        if ours not in rows or theirs not in rows:
            continue
        pairs = list(zip(rows[ours], rows[theirs]))
        for what, key in (("step", "step"), ("start", "start"), ("peak", "peak_mib")):
            ratios = [b[key] / a[key] for a, b in pairs]
            print(f"{cases.name(theirs)} / {cases.name(ours)}, {what}: {spread(ratios)}")
    for case in ("budget", "nothing"):
        if case in rows:
            run = rows[case][-1]
            print(f"{cases.name(case)}: moved / planned bytes "
                  f"{(run['read'] + run['written']) / run['planned_moved']:.4f}, in host memory "
                  f"{100 * run['resident'][0]:.0f} % of the parameters and "
                  f"{100 * run['resident'][1]:.0f} % of the state")


def others_share():
    """Share of this process's CPUs that others take, over half a second in which no case runs."""
    def busy_and_all():
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        rows = [line.split() for line in open("/proc/stat").read().splitlines()]
        # user nice system idle iowait irq softirq steal; what follows is counted in user
        ticks = [[int(word) for word in row[1:9]] for row in rows if row[0] in mine]
        everything = sum(map(sum, ticks))
        return everything - sum(row[3] + row[4] for row in ticks), everything

    before = busy_and_all()
    time.sleep(0.5)
    busy, everything = (late - early for late, early in zip(busy_and_all(), before))
    return busy / max(everything, 1)


def warn_if_busy(number):
    share = others_share()
    if share > 0.10:
        print(f"round {number}  warning: others take {100 * share:.0f} % of the CPUs, so its "
              "figures mean little: threads of train_gpt and torch spin while a neighbour has "
              "their core. Stop what else runs here.", file=sys.stderr, flush=True)


def rounds(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' rounds measure nothing; give 1 or more")
    return int(text)


def size(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:b|([kmgtp])(i?b)?)?", text.lower())
    base = 1000 if found and found[3] == "b" else 1024
    value = int(float(found[1]) * base ** " kmgtp".index(found[2] or " ")) if found else 0
    if value == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no size above 0; give something like "
                                         "512MiB, 1GiB, 415MB or bytes")
    return value


def case_names(text):
    names = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in names if word not in ABOUT]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"no such case: '{', '.join(unknown)}'; choose from "
                                         f"{', '.join(ABOUT)}")
    return list(dict.fromkeys(names))


def program(text):
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is no program. Name the python of a venv.")
    return found


def missing_modules(python, modules):
    look = ("import importlib.util, sys; "
            "print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name)))")
    try:
        found = subprocess.run([python, "-c", look, *modules], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, check=False).stdout.split()
    except OSError:
        found = []
    return [name for name in modules if name not in found]


def fault(asked):
    """What would stop a case, and what helps; None where nothing is seen to."""
    theirs, ours = set(asked.cases) & THEIRS.keys(), set(asked.cases) & OURS.keys()
    if not os.path.isdir(asked.nvme) or not os.access(asked.nvme, os.W_OK | os.X_OK):
        return f"--nvme {asked.nvme} is no folder to write swap files to. Name one on the drive."
    if not os.path.isfile(asked.text) or not os.access(asked.text, os.R_OK):
        return f"--text {asked.text} is no file that can be read. Name a text file."
    if asked.text.stat().st_size < SHORTEST_TEXT:
        return f"--text {asked.text} is too short. Name one of {SHORTEST_TEXT} bytes or more."
    if ours and not shutil.which(pathlib.Path(asked.build).absolute() / "bin/train_gpt"):
        return (f"--build {asked.build} has no program bin/train_gpt. Build it with ./quickstart, "
                "or name the folder of a build that has it.")
    if theirs and not os.path.isfile(asked.trainer):
        return f"--trainer {asked.trainer} is no file. Leave the option out."
    without = {"torch", *(case for case in NEED_WHEEL if not case.endswith("-on"))}
    modules = ["torch", *(["deepspeed"] if theirs - without else []),
               *(["headrace"] if theirs & set(NEED_WHEEL) else [])]
    if theirs and (missing := missing_modules(asked.python, modules)):
        return (f"--python {asked.python} has no {' and no '.join(missing)}. Name one that has: "
                "python3 -m venv V && V/bin/pip install torch==2.11.0 deepspeed==0.19.8, and for "
                f"{', '.join(NEED_WHEEL)} the wheel of ./dev --wheel")
    if asked.json and (os.path.isdir(asked.json) or not os.access(asked.json.parent, os.W_OK)):
        return f"--json {asked.json} cannot be written. Name a file in a folder that is there."
    return None


class Options(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: nothing was started: {message}\n")


def read_options():
    first, _, notes = __doc__.split("\n\n")
    listed = "\n".join(f"  {case:16} {about}" for case, about in ABOUT.items())
    options = Options(description=first, epilog=f"cases:\n{listed}\n\n{notes}",
                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nvme", required=True, type=pathlib.Path, metavar="DIR",
                         help="folder for swap files on the drive to measure; left as it was")
    options.add_argument("--text", required=True, type=pathlib.Path, metavar="FILE",
                         help="what to train on: any file, its bytes are the tokens")
    options.add_argument("--python", type=program, default=sys.executable, metavar="FILE",
                         help="one that has torch and deepspeed [this one]")
    options.add_argument("--size", choices=SIZES, default="51", help="million parameters [51]")
    options.add_argument("--rounds", type=rounds, default=5, metavar="N",
                         help="times that each case runs [5]")
    options.add_argument("--budget", type=size, metavar="SIZE",
                         help="of train_gpt's engine in the case budget: 512MiB, 1GiB, 415MB or "
                         "bytes [415MB, of size 353 1.6GB]")
    options.add_argument("--cases", type=case_names, default=DEFAULT, metavar="WORD,...",
                         help="those to run, in the order given; listed below [all]")
    options.add_argument("--trainer", type=pathlib.Path, metavar="FILE",
                         default=pathlib.Path(__file__).with_name("deepspeed_trainer.py"),
                         help="what --python runs [deepspeed_trainer.py beside this file]")
    options.add_argument("--build", default=str(ROOT / "build/release"), metavar="FOLDER",
                         help="where bin/train_gpt is [build/release]")
    options.add_argument("--json", type=pathlib.Path, metavar="FILE",
                         help="file for the figures of every round")
    asked = options.parse_args()
    if cause := fault(asked):
        options.error(cause)
    return asked


def stop(number, _):
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # another would cut the cleaning short
    sys.exit(128 + number)


def measure(cases, asked):
    for case in asked.cases:
        if case in THEIRS and case != "torch":
            cases.theirs(THEIRS[case], 1)
    rows = {case: [] for case in asked.cases}
    for number in range(asked.rounds):
        warn_if_busy(number + 1)
        for case in asked.cases:
            run = cases.run(case)
            rows[case].append(run)
            print(f"round {number + 1}  {cases.name(case):28} {run['step']:.3f} s a step, "
                  f"{run['start']:.1f} s to the first, {run['peak_mib']:.0f} MiB",
                  file=sys.stderr, flush=True)
    return rows


def main():
    asked = read_options()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores one
            signal.signal(number, stop)
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory(
            dir=asked.nvme, prefix="against_deepspeed-") as drive:
        cases = Cases(asked, pathlib.Path(work), drive)
        rows = measure(cases, asked)
    print_report(cases, rows, asked.rounds)
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
