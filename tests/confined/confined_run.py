# SPDX-License-Identifier: Apache-2.0
"""Trains train_gpt where little is allowed, and says whether it kept to that and named its limits.

    confined_run.py --program BUILD/bin/train_gpt --torch-root DIR --scratch DIR [--large]

A control group of 2 GiB and one CPU, a process namespace of its own, io_uring_setup() refused with
EPERM by a seccomp filter, RLIMIT_MEMLOCK of 64 KiB, user 65534. State lies below --scratch, which
has to be on a drive. --large: 300 million parameters, whose state is more than the group's memory.

Ends with 0, with 1 naming what did not hold, or with 77 naming what this machine lacks: root, and
control groups for memory and CPU that may have children. Nothing of the machine's settings is
changed; the group and the folder go at the end.
"""
import argparse
import ctypes
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile

MEMORY_BYTES = 2 << 30
MEMLOCK_BYTES = 64 << 10
USER = 65534
IO_URING_SETUP = 425  # on every architecture
EPERM = 1


class Lacking(Exception):
    """What this machine does not have."""


# ---- the control group ----

def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def own_groups():
    """Controllers ("" is version 2) -> this process's folder of that hierarchy, its mount point."""
    places = {}
    for line in read("/proc/self/mountinfo").splitlines():
        left, right = line.split(" - ")
        kind, _, options = right.split(" ")[:3]
        if kind == "cgroup2":
            places[""] = left.split(" ")[3:5]
        elif kind == "cgroup":
            for word in options.split(","):
                places[word] = left.split(" ")[3:5]
    found = {}
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            if controller in places:
                shown, folder = places[controller]
                below = os.path.relpath(group, shown) if group.startswith(shown) else "."
                found[controller] = os.path.normpath(os.path.join(folder, below)), folder
    return found


def parent_of_version_2(folder, top):
    """The group itself or its nearest ancestor that gives its children memory and CPU limits."""
    while True:
        given = read(folder + "/cgroup.subtree_control").split()
        if "memory" in given and "cpu" in given:
            return folder
        if folder == top:
            raise Lacking(f"no control group up to {top} gives its children memory and CPU "
                          "limits: its cgroup.subtree_control has to list both")
        folder = os.path.dirname(folder)


class ControlGroup:
    """2 GiB and one CPU, in children of the groups that this process is in."""

    def __init__(self):
        self.folders = []
        own = own_groups()
        try:
            if "memory" in own and "cpu" in own:
                self.version = 1
                self.memory = self._child(own["memory"][0])
                cpu = self._child(own["cpu"][0])
                write(self.memory + "/memory.limit_in_bytes", str(MEMORY_BYTES))
                write(cpu + "/cpu.cfs_period_us", "100000")
                write(cpu + "/cpu.cfs_quota_us", "100000")
                self.limit_name = "memory.limit_in_bytes"
            elif "" in own:
                self.version = 2
                self.memory = self._child(parent_of_version_2(*own[""]))
                write(self.memory + "/memory.max", str(MEMORY_BYTES))
                write(self.memory + "/cpu.max", "100000 100000")
                self.limit_name = "memory.max"
            else:
                raise Lacking("no control groups for memory and CPU are mounted")
        except OSError as error:
            self.remove()
            raise Lacking(f"no control group can be made: {error}") from error
        except Lacking:
            self.remove()
            raise

    def _child(self, parent):
        folder = f"{parent}/headrace-confined-{os.getpid()}"
        if folder not in self.folders:
            os.mkdir(folder)
            self.folders.append(folder)
        return folder

    def enter(self):
        """Moves the calling process: between fork and exec."""
        for folder in self.folders:
            write(folder + "/cgroup.procs", str(os.getpid()))

    def peak_bytes(self):
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return int(read(f"{self.memory}/{name}"))

    def killed(self):
        """Processes that were ended because memory was out."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        for line in read(f"{self.memory}/{name}").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0

    def remove(self):
        for folder in self.folders:
            os.rmdir(folder)
        self.folders = []


# ---- inside: everything but the group ----

class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte),
                ("k", ctypes.c_uint)]


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]


def forbid_io_uring(libc):
    """io_uring_setup() gives EPERM from here on, as container profiles have it."""
    load_number, equal, answer = 0x20, 0x15, 0x06
    allow, fail = 0x7FFF0000, 0x00050000
    lines = (Filter * 4)(Filter(load_number, 0, 0, 0), Filter(equal, 0, 1, IO_URING_SETUP),
                         Filter(answer, 0, 0, fail | EPERM), Filter(answer, 0, 0, allow))
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    program = Program(4, lines)
    if (libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0
            or libc.prctl(set_seccomp, filter_mode, ctypes.byref(program), 0, 0) != 0):
        sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")


def must(condition, what):
    if not condition:
        sys.exit(f"not confined: {what}")


def inside(place, words):
    """Runs in the group and in namespaces of its own, as root; becomes the program."""
    libc = ctypes.CDLL(None, use_errno=True)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (MEMLOCK_BYTES, MEMLOCK_BYTES))
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    forbid_io_uring(libc)
    must(os.getuid() == USER and os.geteuid() == USER, "still another user")
    must(os.getpid() == 1, "no process namespace of its own")
    must(libc.syscall(IO_URING_SETUP, 4, None) == -1 and ctypes.get_errno() == EPERM,
         "io_uring_setup() is not refused")
    must("CapEff:\t0000000000000000" in read("/proc/self/status"), "privileges are left")
    os.chdir(place)
    os.execve(words[0], words, dict(os.environ, HOME=place, TMPDIR=place))


# ---- outside ----

def run_confined(group, options, scratch, words):
    """Runs train_gpt, seen at a place that the user may enter: returns its end, out and err."""
    place = tempfile.mkdtemp(prefix="headrace-confined-")
    os.chmod(place, 0o755)
    shown = {"bin": os.path.dirname(options.program), "torch": options.torch_root, "drive": scratch}
    try:
        script = []
        for name, folder in shown.items():
            os.mkdir(f"{place}/{name}")
            script.append(f'mount --bind "{folder}" "{place}/{name}"')
        script.append('exec "$@"')
        inner = [sys.executable, "-I", "-c", read(__file__), "--inside", place + "/drive",
                 f"{place}/bin/{os.path.basename(options.program)}"]
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
                   "sh", "-ec", "\n".join(script), "sh"] + inner
        command += [word.replace("DRIVE", place + "/drive") for word in words]
        environment = dict(os.environ, HEADRACE_LOG="info",
                           LD_LIBRARY_PATH=f"{place}/torch/torch/lib")
        return subprocess.run(command, preexec_fn=group.enter, env=environment, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        for name in shown:
            os.rmdir(f"{place}/{name}")
        os.rmdir(place)


class Findings:
    def __init__(self):
        self.failed = []

    def expect(self, condition, what):
        print(f"{'ok  ' if condition else 'FAIL'} {what}", flush=True)
        if not condition:
            self.failed.append(what)


def model_words(large, drive):
    shape = (["--layers", "24", "--hidden", "1024", "--heads", "16", "--batch", "1"] if large else
             ["--layers", "8", "--hidden", "512", "--heads", "8", "--batch", "2"])
    return shape + ["--seq", "64", "--steps", "3", "--text", f"{drive}/text", "--eval-batches", "1",
                    "--threads", "1", "--no-progress", "--json", "-"]


def settings_words(drive, budget):
    words = []
    for section in ("offload_optimizer", "offload_param"):
        words += ["--set", f"zero_optimization.{section}.device=nvme",
                  "--set", f"zero_optimization.{section}.nvme_path={drive}"]
    return words + (["--set", f"headrace.host_budget_bytes={budget}"] if budget else [])


def document_of(run):
    try:
        return json.loads(run.stdout)
    except ValueError:
        return {}


def swap_files(scratch):
    return [name for _, _, names in os.walk(scratch) for name in names if name.endswith(".swap")]


def check_training(found, group, options, scratch):
    budget = "auto" if options.large else ""
    run = run_confined(group, options, scratch,
                       model_words(options.large, "DRIVE") + settings_words("DRIVE", budget))
    report = document_of(run)
    found.expect(run.returncode == 0, f"trains (ended with {run.returncode})")
    if run.returncode != 0:
        print(run.stderr)
        return
    losses = [step["loss"] for step in report["steps"]]
    found.expect(len(losses) == 3 and all(math.isfinite(x) for x in losses), f"losses {losses}")
    peak, charged = report["memory"]["peak_rss_bytes"], group.peak_bytes()
    found.expect(peak <= MEMORY_BYTES, f"peak resident set {peak >> 20} MiB of 2048")
    found.expect(charged <= MEMORY_BYTES and group.killed() == 0,
                 f"the group's peak is {charged >> 20} MiB, nothing in it was killed")
    moved = sum(s["nvme_read_bytes"] + s["nvme_written_bytes"] for s in report["steps"])
    found.expect(moved > 0, f"{moved >> 20} MiB moved to and from the drive in the steps")
    if options.large:
        share = report["plan_totals"]["resident_share_of_state"]
        found.expect(share < 1, f"{share:.0%} of the optimizer state is resident")
    told = [line for line in run.stderr.splitlines() if "io_uring" in line]
    queue = report["lanes"]["io_queue"]
    instead = {"aio": "Linux AIO does the I/O", "threads": "threads do the I/O"}.get(queue, "?")
    found.expect(len(told) == 1 and "EPERM" in told[0] and instead in told[0],
                 f"says once that io_uring was passed over: {told}")
    reason = report["lanes"]["io_queue_reason"] or ""
    found.expect(queue == ("aio" if report["lanes"]["direct_io"] else "threads") and
                 "EPERM" in reason,
                 f"the report has queue {queue!r} and the reason")
    threads = report["lanes"]["update"]
    found.expect("1 update threads (cgroup cpu." in run.stderr and threads["threads"] == 1,
                 f"one update thread, as its limit says: {threads['threads_source']}")
    wanted = f"cgroup {group.limit_name} of {group.memory}"
    found.expect(report["plan_totals"]["host_left_source"] == wanted and wanted in run.stderr,
                 f"names the limit that governs memory: {wanted}")
    found.expect(swap_files(scratch) == [], "no swap file is left")
    if options.large:
        return
    # Not confined: another queue, other threads, the same bits.
    words = model_words(options.large, scratch) + settings_words(scratch, budget)
    free = subprocess.run([options.program] + words, check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    found.expect(free.returncode == 0 and document_of(free)["hash"] == report["hash"],
                 "equal hashes outside of all that")


def check_limit_is_named(found, group, options, scratch):
    """Gradients of 1.6 thousand million parameters are more than the group's memory."""
    words = ["--layers", "50", "--hidden", "1600", "--heads", "25", "--steps", "1", "--json", "-"]
    run = run_confined(group, options, scratch, words + settings_words("DRIVE", "auto"))
    text = document_of(run).get("error", {}).get("message", run.stderr)
    found.expect(run.returncode == 2, f"refuses what does not fit (ended with {run.returncode})")
    wanted = f"cgroup {group.limit_name} of {group.memory}"
    found.expect(wanted in text, f"names the limit that governs: {wanted}")
    if wanted not in text:
        print(text)
    found.expect(swap_files(scratch) == [], "no swap file is left")


def run_all(options):
    if os.geteuid() != 0:
        raise Lacking("root is needed to make a control group and to become another user")
    if shutil.which("unshare") is None:
        raise Lacking("unshare (util-linux) is needed")
    alone = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if alone.returncode != 0:
        raise Lacking("a process namespace of its own cannot be made: " + alone.stderr.strip())
    group = ControlGroup()
    scratch = None
    try:
        scratch = tempfile.mkdtemp(prefix="confined-", dir=options.scratch)
        os.chown(scratch, USER, USER)
        write(scratch + "/text", read(__file__) * 20)
        found = Findings()
        check_training(found, group, options, scratch)
        check_limit_is_named(found, group, options, scratch)
        return found.failed
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        group.remove()


def main():
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=os.path.realpath)
    parser.add_argument("--torch-root", required=True, type=os.path.realpath)
    parser.add_argument("--scratch", required=True, type=os.path.realpath)
    parser.add_argument("--large", action="store_true")
    try:
        failed = run_all(parser.parse_args())
    except Lacking as why:
        print(f"skipped: {why}")
        sys.exit(77)
    sys.exit(f"{len(failed)} expectations failed" if failed else 0)


if __name__ == "__main__":
    main()
