#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains with a store on a real file system, cuts the power at random moments, and resumes.

  sudo power_loss.py --program TRAIN_GPT --headrace HEADRACE --scratch FOLDER [--file-system ext4]
                     [--points 200] [--seed N]

The file system lies on a loop device whose writes and flushes are recorded (recorded_disk.py). One
run is killed once and goes on to its end. A point is a place in that record: the drive then holds
what was written before the last flush, and of each later write all, nothing, or some of its sectors
of 512 bytes. Each such drive is mounted again. `headrace store verify` must find no damage, and the
run must resume at the last step but one that had returned, or later, and end with the hashes of a
run that nothing disturbed.

Needs root, /dev/fuse, loop devices, mkfs of the file system, fusepy and libfuse 2. It is run by
hand: 200 points take some ten minutes. An image that the file system refuses to mount says nothing
about the store: it is counted, and more than one in fifty fails.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from recorded_disk import FLUSH, read_record

SECTOR = 512
STEPS, KILLED_AFTER = 14, 6
TRAIN = ["--layers", "2", "--hidden", "64", "--heads", "4", "--seq", "32", "--batch", "2",
         "--steps", str(STEPS), "--set", "headrace.trainer_state_bytes=64KiB"]
MKFS = {"ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard"], "xfs": ["mkfs.xfs", "-q", "-f", "-K"]}
# An image is a copy: XFS does not mount it while a copy of the same name is mounted elsewhere.
MOUNT = {"ext4": ["mount"], "xfs": ["mount", "-o", "nouuid"]}


class NotMounted(Exception):
    """The file system refused the drive: the words of mount."""


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options).stdout


@contextlib.contextmanager
def recorded(image, record, folder):
    mount = folder / "fuse"
    mount.mkdir()
    server = subprocess.Popen([sys.executable, pathlib.Path(__file__).with_name("recorded_disk.py"),
                               mount, image, record])
    while not (mount / "disk").exists():
        if server.poll() is not None:
            sys.exit("recorded_disk.py ended: are /dev/fuse, fusepy and libfuse 2 there?")
        time.sleep(.05)
    try:
        yield mount / "disk"
    finally:
        run("umount", mount)
        server.wait()


@contextlib.contextmanager
def mounted(disk, folder, file_system):
    device = run("losetup", "--find", "--show", disk).strip()
    mount = folder / "drive"
    mount.mkdir(exist_ok=True)
    try:
        try:
            run(*MOUNT[file_system], device, mount)
        except subprocess.CalledProcessError as error:
            raise NotMounted(error.stdout.strip()) from error
        try:
            yield mount
        finally:
            run("umount", mount)
    finally:
        run("losetup", "--detach", device)


def settings(drive):
    place = {"device": "nvme", "nvme_path": str(drive)}
    return json.dumps({"zero_optimization": {"offload_optimizer": place, "offload_param": place}})


class Trainer:
    """train_gpt with its store on `drive`."""

    def __init__(self, program, folder, drive):
        self.config, self.report = folder / "offload.json", folder / "report.json"
        self.config.write_text(settings(drive))
        self.command = [program, "--config", self.config, *TRAIN, "--json", self.report]

    def start(self, *more):
        return subprocess.Popen([*self.command, *more], stdout=subprocess.PIPE, text=True,
                                stderr=subprocess.STDOUT)

    def finish(self, *more):
        """The report, or the words of a run that failed."""
        self.report.unlink(missing_ok=True)
        process = self.start(*more)
        words = process.communicate(timeout=300)[0]
        return json.loads(self.report.read_text()) if process.returncode == 0 else words


def follow(process, record, returned, kill_after=None):
    """Notes after which byte of the record each step had returned."""
    words = ""
    for line in process.stdout:
        words += line
        step = re.match(r"step (\d+)/", line)
        if not step:
            continue
        returned.append((record.stat().st_size, int(step.group(1))))
        if kill_after and int(step.group(1)) >= kill_after:
            process.send_signal(signal.SIGKILL)
    process.wait()
    if not kill_after and process.returncode != 0:
        sys.exit(f"the run that is recorded ended with {process.returncode}:\n{words}")


def record_run(asked, image, folder):
    """The record's requests, and what had returned after which byte of it."""
    record, returned = folder / "record", []
    with recorded(image, record, folder) as disk, mounted(disk, folder, asked.file_system) as drive:
        trainer = Trainer(asked.program, folder, drive)
        follow(trainer.start("--store", "power"), record, returned, KILLED_AFTER)
        follow(trainer.start("--store", "power"), record, returned)
    return list(read_record(record)), returned


def tear(kept, offset, data, dice):
    """Writes all of a write that no flush followed, nothing of it, or some of its sectors."""
    fate = dice.choice(("all", "nothing", "some"))
    for at in range(0, len(data) if fate != "nothing" else 0, SECTOR):
        if fate == "all" or dice.random() < .5:
            os.pwrite(kept, data[at:at + SECTOR], offset + at)


def images(base, requests, points, dice, folder):
    """For each point, in order, an image of what the drive may hold."""
    sure, lost = folder / "sure", folder / "lost"
    shutil.copyfile(base, sure)
    fd, begun, pending = os.open(sure, os.O_RDWR), 0, []
    for point in points:
        for kind, offset, data, _ in requests[begun:point]:
            if kind == FLUSH:
                for write in pending:
                    os.pwrite(fd, write[1], write[0])
                pending = []
            else:
                pending.append((offset, data))
        begun = point
        run("cp", "--sparse=always", "--reflink=auto", sure, lost)
        kept = os.open(lost, os.O_RDWR)
        for offset, data in pending:
            tear(kept, offset, data, dice)
        os.close(kept)
        yield point, len(pending), lost
    os.close(fd)


def resume(asked, image, folder):
    """The faults of a drive after its power failed; the step at which the run resumed."""
    with mounted(image, folder, asked.file_system) as drive:
        stores = run(asked.headrace, "store", "list", drive)
        if "power" in stores:
            checked = subprocess.run([asked.headrace, "store", "verify", "power", drive], text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            not_made_yet = checked.returncode == 2 and "has no files" in checked.stdout
            if checked.returncode != 0 and not not_made_yet:
                return f"headrace store verify: {checked.returncode}\n{stores}{checked.stdout}"
        return Trainer(asked.program, folder, drive).finish("--store", "power")


def judge(report, undisturbed, floor):
    if isinstance(report, str):
        return f"the run did not end:\n{report}"
    step = report.get("resumed_from") or 0
    if step < floor:
        return f"resumed after step {step}; step {floor + 1} had returned"
    if report["hash"] != undisturbed["hash"]:
        return f"resumed after step {step} with {report['hash']}, not {undisturbed['hash']}"
    return ""


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", required=True, type=pathlib.Path)
    parser.add_argument("--headrace", required=True, type=pathlib.Path)
    parser.add_argument("--scratch", required=True, type=pathlib.Path)
    parser.add_argument("--file-system", choices=sorted(MKFS), default="ext4")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    return parser.parse_args()


def main():
    asked = options()
    os.environ["OMP_NUM_THREADS"] = "1"
    dice = random.Random(asked.seed)
    print(f"{asked.file_system}, seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as name:
        folder = pathlib.Path(name)
        base, image = folder / "base", folder / "image"
        with open(base, "wb") as file:
            file.truncate(400 << 20)
        run(*MKFS[asked.file_system], base)
        shutil.copyfile(base, image)
        undisturbed = Trainer(asked.program, folder, folder).finish()
        if isinstance(undisturbed, str):
            sys.exit(undisturbed)
        requests, returned = record_run(asked, image, folder)
        flushes = sum(request[0] == FLUSH for request in requests)
        print(f"recorded {len(requests) - flushes} writes and {flushes} flushes", flush=True)
        points = sorted(dice.randrange(1, len(requests) + 1) for _ in range(asked.points))
        faults, steps, unmounted = 0, [], 0
        for point, pending, lost in images(base, requests, points, dice, folder):
            reached = requests[point][3] if point < len(requests) else float("inf")
            floor = max((step - 1 for at, step in returned if at <= reached), default=0)
            try:
                report = resume(asked, lost, folder)
            except NotMounted as error:
                print(f"request {point}, {pending} writes not flushed: {error}", flush=True)
                unmounted += 1
                continue
            fault = judge(report, undisturbed, floor)
            faults += bool(fault)
            if fault:
                print(f"request {point}, {pending} writes not flushed: {fault}", flush=True)
            else:
                steps.append(report.get("resumed_from") or 0)
    print(f"{asked.points} points: {faults} faults, {unmounted} not mounted; resumed after steps "
          f"{ {step: steps.count(step) for step in sorted(set(steps))} }")
    sys.exit(1 if faults or unmounted * 50 > asked.points else 0)


if __name__ == "__main__":
    main()
