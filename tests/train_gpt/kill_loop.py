#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the loop of docs/durable.md that kills train_gpt at 20 random moments, as it stands there.

  kill_loop.py --program TRAIN_GPT --scratch FOLDER

Fails unless the killed run ends with the hashes of the undisturbed one, each kill repeated at most
one step that had returned, and enough of the runs were killed while they trained.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNS = 20
SETTINGS = {"zero_optimization": {key: {"device": "nvme"} for key in
                                  ("offload_optimizer", "offload_param")}}


def loop_of_doc():
    text = (ROOT / "docs/durable.md").read_text()
    found = re.search(r"<!-- run: tests/train_gpt/kill_loop\.py -->\n```sh\n(.*?)```\n", text, re.S)
    if not found:
        sys.exit("docs/durable.md has no loop for this test: nothing was run. Put it back there.")
    return found.group(1)


def run_loop(program, folder):
    for section in SETTINGS["zero_optimization"].values():
        section["nvme_path"] = str(folder)
    (folder / "offload.json").write_text(json.dumps(SETTINGS))
    path = f"{pathlib.Path(program).resolve().parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", loop_of_doc()], cwd=folder, check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"})
    print(done.stdout, end="")
    if done.returncode != 0:
        sys.exit(f"the loop ended with {done.returncode}")


def repeats(folder):
    """Of each kill: the steps that had returned and were made again."""
    counts, returned = [], 0
    for run in range(1, RUNS + 2):
        log = (folder / f"run-{run}.log").read_text(errors="replace")
        resumed = re.search(r"goes on after step (\d+)", log)
        start = int(resumed.group(1)) if resumed else 0
        if run > 1:
            counts.append(returned - start)
        steps = [int(step) for step in re.findall(r"^step (\d+)/", log, re.M)]
        returned = max(steps, default=start)
        if steps and steps[0] != start + 1:
            sys.exit(f"run {run} goes on after step {start} and makes step {steps[0]}:\n{log}")
    return counts


def judge(folder):
    killed, whole = (json.loads((folder / f"{name}.json").read_text())
                     for name in ("killed", "undisturbed"))
    counts = repeats(folder)
    print(f"steps repeated per kill: {counts}; the last run went on after step "
          f"{killed['resumed_from']}")
    faults = []
    if killed["hash"] != whole["hash"]:
        faults.append(f"the killed run has {killed['hash']}, the undisturbed one {whole['hash']}")
    if max(counts) > 1:
        faults.append(f"a kill repeated {max(counts)} steps that had returned")
    if killed["resumed_from"] < RUNS // 2:
        faults.append("the runs were killed too early to have committed anything")
    if killed["resumed_from"] >= killed["steps_completed"]:
        faults.append("the runs ended before they were killed: make the loop's model larger")
    return faults


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--program", required=True)
    options.add_argument("--scratch", required=True)
    asked = options.parse_args()
    if not all(shutil.which(tool) for tool in ("bash", "shuf", "seq", "grep")):
        print("bash, seq, shuf and grep are needed")
        sys.exit(77)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as folder:
        run_loop(asked.program, pathlib.Path(folder))
        faults = judge(pathlib.Path(folder))
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
