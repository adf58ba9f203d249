# SPDX-License-Identifier: Apache-2.0
"""Starts train_gpt as worlds of several processes, and says where they differ from one rank.

    worlds.py --program BUILD/bin/train_gpt --scratch DIR [--failing-drive LIBRARY]
              [--mpirun openmpi=PATH] [--mpirun mpich=PATH] [--torchrun PATH] [--part NAME]...
              [--points N] [--seed S]

  hashes    one rank, worlds over Gloo (started by hand, and by torchrun) and over each MPI: the
            same hashes, losses and saved weights, in memory, on a drive, with checkpointing and
            with a budget
  places    what ranks of one machine take of its CPUs and memory, bound and unbound, and each
            process's peak against the plan
  refusals  a rank beyond the world, two of one rank, two launchers, a port that is taken, a rank
            that never comes, ranks with other options
  failures  each way in which a rank can fail, once over Gloo and once over each MPI
  stores    a world with --store, of which a rank is killed between steps, goes on to the bits of an
            undisturbed rank, over Gloo and over each MPI
  points    N seeded failures: how, which rank, and when (0 unless --points is given)

Every process of a world has to end within the bound of its failure and to name rank and cause, and
nothing may be left: no process, no file on the drive, no shared memory. State lies below --scratch,
which is made if it is missing.
Ends with 0, or with 1 naming what did not hold.
"""
import argparse
import contextlib
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

MICRO_BATCHES = 12
# Each rank of 3 owns a part of it: shards are whole blocks of 65,536 elements.
MODEL = ["--layers", "2", "--hidden", "160", "--heads", "2", "--seq", "32"]
# Large enough that 2 % of a rank's plan is more than what an allocator keeps.
LARGER = ["--layers", "12", "--hidden", "512", "--heads", "8", "--seq", "16", "--checkpointing"]
# What torch, MPI and a loaded machine may add to the bounds that docs/ranks.md promises.
SLACK_S = 60
DEADLINE_S = 10  # of the worlds that wait for a rank
PARTS = ["hashes", "places", "refusals", "stores", "failures"]


class Fault(Exception):
    """Something did not hold."""


def require(condition, what):
    if not condition:
        raise Fault(what)


HELD_PORTS = []


def free_port():
    """Stays bound, without a listener, so that no other program is given it by chance. A server
    that sets SO_REUSEADDR can listen there, as torch's store does."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    HELD_PORTS.append(held)
    return held.getsockname()[1]


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


# ---- processes ----

def environment_of(process):
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return {}
    return dict(word.decode(errors="replace").split("=", 1) for word in words if b"=" in word)


class World:
    """Processes that are started together, and what becomes of them."""
    started = 0

    def __init__(self, place):
        World.started += 1
        self.mark = f"{os.getpid()}.{World.started}"
        self.place = tempfile.mkdtemp(prefix="world.", dir=place)
        self.drive = os.path.join(self.place, "drive")
        os.mkdir(self.drive)
        self.segments = os.path.join(self.place, "segments")
        os.mkdir(self.segments)
        self.shared_memory_before = self.shared_memory()
        self.processes = []
        self.ended = {}
        self.begin = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.members():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(process, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        shutil.rmtree(self.place, ignore_errors=True)

    def members(self):
        """Every process of this world, its launcher's too."""
        all_processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [process for process in all_processes
                if environment_of(process).get("HEADRACE_TEST_WORLD") == self.mark]

    def start(self, words, variables):
        environment = dict(os.environ, HEADRACE_TEST_WORLD=self.mark, OMP_NUM_THREADS="1",
                           GLOO_SOCKET_IFNAME="lo", TMPDIR=self.place, **variables)
        output = open(os.path.join(self.place, f"said.{len(self.processes)}"), "wb")
        with output:
            self.processes.append(subprocess.Popen(words, env=environment, stdout=output,
                                                   stderr=subprocess.STDOUT, cwd=self.place,
                                                   stdin=subprocess.DEVNULL))

    def said(self, index=None):
        """What one process has printed, or all."""
        places = range(len(self.processes)) if index is None else [index]
        return "".join(read(os.path.join(self.place, f"said.{i}")) for i in places)

    def poll(self):
        for index, process in enumerate(self.processes):
            if index not in self.ended and process.poll() is not None:
                self.ended[index] = time.monotonic()

    def wait_for(self, words, bound=120):
        end = time.monotonic() + bound
        while not re.search(words, self.said()):
            self.poll()
            require(len(self.ended) < len(self.processes),
                    f"all ended before '{words}':\n{self.said()}")
            require(time.monotonic() < end, f"no '{words}' in {bound} s:\n{self.said()}")
            time.sleep(0.02)

    def wait(self, bound, but=()):
        """Until all have ended, `but` those. Returns exit codes by process."""
        end = time.monotonic() + bound
        wanted = set(range(len(self.processes))) - set(but)
        while not wanted <= set(self.ended):
            self.poll()
            require(time.monotonic() < end, f"not ended in {bound:.0f} s: processes "
                    f"{sorted(wanted - set(self.ended))}\n{self.said()}")
            time.sleep(0.005)
        return [process.returncode for process in self.processes]

    def shared_memory(self):
        """Open MPI's segments of this world, and whatever else has no folder of its own. Folders,
        and what Python's multiprocessing has there, are other programs'."""
        names = [name for name in os.listdir("/dev/shm")
                 if not name.startswith(("vader_", "sem.mp-"))
                 and not os.path.isdir(os.path.join("/dev/shm", name))]
        return set(names + os.listdir(self.segments))

    def require_nothing_left(self):
        end = time.monotonic() + 5  # a launcher's children end after it
        while self.members() and time.monotonic() < end:
            time.sleep(0.05)
        require(not self.members(), f"processes are left: {self.members()}\n{self.said()}")
        files = [os.path.join(folder, name) for folder, _, names in os.walk(self.drive)
                 for name in names if name != "headrace.lock"]
        require(not files, f"left on the drive: {files}\n{self.said()}")
        while self.shared_memory() - self.shared_memory_before and time.monotonic() < end:
            time.sleep(0.05)
        left = self.shared_memory() - self.shared_memory_before
        require(not left, f"left in shared memory: {sorted(left)}\n{self.said()}")


class Launcher:
    """How a world is started: a function(world, size, words, variables of one rank)."""

    def __init__(self, name, path=None):
        self.name, self.path = name, path

    def start(self, world, size, words, of_rank=None, options=()):
        of_rank = of_rank or {}
        if self.name == "gloo":
            port = str(free_port())
            for rank in range(size):
                own, more = of_rank.get(rank, ({}, []))
                world.start(words + more, {"RANK": str(rank), "WORLD_SIZE": str(size),
                                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **own})
            return
        if self.name == "torchrun":
            world.start([self.path, "--nproc-per-node", str(size), "--master-port",
                         str(free_port()), "--no-python", *words], {})
            return
        world.start(self.words(size, words, of_rank, options), {
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_MCA_btl_vader_backing_directory": world.segments, "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})

    def words(self, size, words, of_rank, options):
        """One block of words for each rank, apart from one another by a colon."""
        line = [self.path]
        if self.name == "openmpi":
            line += ["--oversubscribe", *(options or ("--bind-to", "none"))]
        else:
            line += options
        for rank in range(size):
            own, more = of_rank.get(rank, ({}, []))
            line += [":"] if rank else []
            line += ["-n", "1", "env"] + [f"{name}={value}" for name, value in own.items()]
            line += words + more
        return line

    def process_of(self, world, rank):
        found = self.rank_processes(world)
        require(rank in found, f"{self.name}: no process of rank {rank}, only of {sorted(found)}\n"
                + world.said())
        return found[rank]

    def rank_processes(self, world):
        """Process number by rank, of the program's own processes."""
        found = {}
        for process in world.members():
            variables = environment_of(process)
            rank = variables.get({"gloo": "RANK", "openmpi": "OMPI_COMM_WORLD_RANK",
                                  "mpich": "PMI_RANK"}[self.name])
            try:
                program = os.readlink(f"/proc/{process}/exe")
            except OSError:
                continue
            if rank is not None and os.path.basename(program) == "train_gpt":
                found[int(rank)] = process
        return found


# ---- a run ----

class Check:
    def __init__(self, options):
        self.options = options
        self.scratch = tempfile.mkdtemp(prefix="headrace-worlds-", dir=options.scratch)
        self.text = os.path.join(self.scratch, "text.txt")
        words = ["def ", "return ", "self.", "value", " = ", "(x)\n", "    ", "import ", "None"]
        source = random.Random(17)
        with open(self.text, "w", encoding="utf-8") as file:
            file.write("".join(source.choice(words) for _ in range(15000)))
        self.stored = os.path.join(self.scratch, "stored.safetensors")  # by the last world
        self.gloo = Launcher("gloo")
        self.mpis = [Launcher(*pair.split("=", 1)) for pair in options.mpirun]
        self.launchers = [self.gloo] + self.mpis
        takes_torchrun = {"hashes", "places"} & set(options.part)
        self.torchruns = self.find_torchrun(options.torchrun) if takes_torchrun else []
        self.hash_of_one = ""

    @staticmethod
    def find_torchrun(path):
        """None where there is none, or where its torch cannot be imported."""
        if not path:
            print("torchrun: skipped, there is none in PATH; give --torchrun PATH")
            return []
        tried = subprocess.run([path, "--help"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            print(f"torchrun: skipped, it does not start: {tried.stderr.strip()[-200:]}")
            return []
        return [Launcher("torchrun", path)]

    def close(self):
        shutil.rmtree(self.scratch, ignore_errors=True)

    def words(self, world, steps, more=()):
        return [self.options.program, *MODEL, "--threads", "1", "--text", self.text,
                "--no-progress", "--steps", str(steps), "--eval-batches", "3",
                "--set", f"train_batch_size={MICRO_BATCHES}",
                "--set", "train_micro_batch_size_per_gpu=1",
                *([] if "--store" in more else ["--set", "headrace.allow_memory_backed=true"]),
                *[word.replace("DRIVE", world.drive).replace("PLACE", world.place)
                  for word in more]]

    # ---- hashes ----

    NVME = ["--set", "zero_optimization.stage=3",
            "--set", "zero_optimization.offload_optimizer.device=nvme",
            "--set", "zero_optimization.offload_optimizer.nvme_path=DRIVE",
            "--set", "zero_optimization.offload_param.device=nvme",
            "--set", "zero_optimization.offload_param.nvme_path=DRIVE",
            "--set", "headrace.tile_elements=65536"]
    KINDS = {"memory": [],
             "nvme, checkpointing": NVME + ["--checkpointing"],
             "nvme, deferred updates": NVME + ["--set", "headrace.update_mode=defer"],
             "optimizer on nvme": NVME[2:6],
             "a drive for each rank": NVME + ["--set",
                                              "zero_optimization.offload_optimizer.nvme_path="
                                              "DRIVE/{local_rank}", "--set",
                                              "zero_optimization.offload_param.nvme_path="
                                              "DRIVE/{local_rank}"]}

    def outcome(self, launcher, size, more):
        """Hashes, losses and the digest of the weights that were saved."""
        with World(self.scratch) as world:
            for rank in range(4):
                os.mkdir(f"{world.drive}/{rank}")
            more = [*more, "--save", "PLACE/saved", "--json", "PLACE/report.json"]
            words = self.words(world, 3, more)
            if launcher is None:
                world.start(words, {})
            else:
                launcher.start(world, size, words)
            codes = world.wait(180)
            require(not any(codes), f"exit codes {codes}\n{world.said()}")
            for rank in range(1, len(codes)):
                for line in world.said(rank).splitlines():
                    require(f"[rank {rank}] warning: " in line, f"rank {rank} spoke:\n{line}")
            report = json.loads(read(f"{world.place}/report.json"))
            require(launcher is None or f"{size} rank" in world.said(),
                    f"the number of ranks is not printed:\n{world.said()}")
            with open(f"{world.place}/saved/model.safetensors", "rb") as file:
                weights = file.read()
            with open(self.stored, "wb") as file:
                file.write(weights)
            saved = hashlib.sha256(weights).hexdigest()
            world.require_nothing_left()
            return {"hash": report["hash"], "eval loss": report["eval_loss"], "saved": saved,
                    "losses": [step["loss"] for step in report["steps"]]}

    def require_same(self, launcher, size, kind, one, got):
        for name, value in one.items():
            require(got[name] == value, f"{launcher.name}, {size} ranks, {kind}: {name} "
                    f"{got[name]}, with one rank {value}")
        print(f"  {launcher.name}, {size} ranks, {kind}: the same")

    def hashes(self):
        one = self.outcome(None, 1, [])
        print(f"  one rank: {one['hash']}")
        cells = [(launcher, size, "memory") for launcher in self.launchers
                 for size in ((1, 2, 3) if launcher is self.gloo else (4,))]
        cells += [(launcher, 2, "memory") for launcher in self.torchruns]
        cells += [(self.gloo, 2, kind) for kind in self.KINDS if kind != "memory"]
        for launcher, size, kind in cells:
            got = self.outcome(launcher, size, self.KINDS[kind])
            self.require_same(launcher, size, kind, one, got)
        from_stored = ["--init", os.path.join(self.scratch, "start.safetensors")]
        os.rename(self.stored, from_stored[1])
        one = self.outcome(None, 1, from_stored)
        got = self.outcome(self.gloo, 3, [*self.NVME, *from_stored])
        self.require_same(self.gloo, 3, "nvme, from stored weights", one, got)

    # ---- places ----

    def report_of(self, launcher, size, options=(), before=()):
        """Rank 0's report. `options`: mpirun's; `before`: words before the program's."""
        with World(self.scratch) as world:
            words = [*before, *self.words(world, 2, [*LARGER, *self.NVME, "--set",
                                                     "headrace.host_budget_bytes=auto",
                                                     "--json", "PLACE/report.json"])]
            launcher.start(world, size, words, options=options)
            codes = world.wait(180)
            require(not any(codes), f"{launcher.name}: exit codes {codes}\n{world.said()}")
            world.require_nothing_left()
            return json.loads(read(f"{world.place}/report.json"))

    def activation_bytes(self):
        """What forward and backward take: of one process that holds all and has no engine."""
        with World(self.scratch) as world:
            world.start(self.words(world, 1, [*LARGER, "--plain", "--json", "PLACE/report.json"]),
                        {})
            codes = world.wait(180)
            require(not any(codes), f"--plain: exit codes {codes}\n{world.said()}")
            return json.loads(read(f"{world.place}/report.json"))["memory"]["activations_bytes"]

    @staticmethod
    def require_as_planned(where, ranks, activations):
        """What each engine holds, and its process at most: beside what that held before it was
        made (torch, MPI), and what forward and backward take."""
        columns = [ranks[what]["by_rank"] for what in (
            "planned_bytes", "engine_bytes", "peak_rss_bytes", "baseline_rss_bytes")]
        for rank, (planned, held, peak, before) in enumerate(zip(*columns)):
            require(held <= 1.02 * planned, f"{where}: {held} bytes held, {planned} planned")
            above = peak - before - activations
            require(above <= 1.02 * planned, f"{where}: rank {rank} had {peak} bytes at most, "
                    f"{before} before, {activations} of activations, {planned} planned")
            print(f"    rank {rank}: {planned / 2**20:.1f} MiB planned, engine {held / planned:.3f}"
                  f" of it, process at most {above / planned:.3f} of it, above "
                  f"{before / 2**20:.1f} MiB before and {activations / 2**20:.1f} MiB of "
                  "activations")

    def places(self):
        """What ranks of one machine share: its CPUs and its memory, and each keeps to its plan."""
        alone = self.report_of(self.gloo, 1)
        activations = self.activation_bytes()
        cpus = len(os.sched_getaffinity(0))
        cases = [(self.gloo, "bare", (), ())]
        if shutil.which("taskset"):
            cases.append((self.gloo, "bound to one CPU", (), ("taskset", "-c", "0")))
        cases += [(launcher, "bare", (), ()) for launcher in self.torchruns]
        for mpi in self.mpis:
            cases.append((mpi, "unbound", ("--bind-to", "none"), ()))
            if cpus > 1:
                cases.append((mpi, "bound to cores", ("--bind-to", "core"), ()))
        for launcher, name, options, before in cases:
            for _ in range(3):  # other programs take memory, and give it back
                report = self.report_of(launcher, 2, options=options, before=before)
                share = (report["plan_totals"]["host_left_bytes"]
                         / alone["plan_totals"]["host_left_bytes"])
                if 0.3 < share < 0.7:
                    break
                alone = self.report_of(self.gloo, 1)
            where = f"{launcher.name}, {name}"
            update, ranks = report["lanes"]["update"], report["ranks"]
            wanted = max(1, cpus // 2) if "bound to" not in name else 1
            require(update["threads"] == wanted, f"{where}: {update}")
            require(0.3 < share < 0.7, f"{where}: a rank's share of the memory is {share:.2f}")
            print(f"  {where}: {update['threads']} update threads ({update['threads_source']}), "
                  f"{share:.2f} of the memory left to one rank "
                  f"({report['plan_totals']['host_left_source']})")
            self.require_as_planned(where, ranks, activations)

    # ---- refusals ----

    def refused(self, name, starts, says, bound=SLACK_S + DEADLINE_S, quiet=False,
                refused=None):
        """`starts`: words after the line and variables, by process. All end with 2 or 1, or
        as many as one of `refused` says, and the others with 0."""
        with World(self.scratch) as world:
            for more, variables in starts:
                world.start(self.words(world, 3, ["--rank-deadline", str(DEADLINE_S), *more]),
                            variables)
            codes = world.wait(bound)
            failed = [code for code in codes if code != 0]
            good = (all(code in (1, 2) for code in failed)
                    and len(failed) in (refused or [len(codes)]))
            require(good, f"{name}: exit codes {codes}\n" + world.said())
            require(re.search(says, world.said()), f"{name}: no '{says}' in\n{world.said()}")
            world.require_nothing_left()
            if quiet:
                return
            print(f"  {name}: exit codes {codes}")
            for line in world.said().splitlines():
                print(f"    {line}")

    @staticmethod
    def place(rank, size, port):
        return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port)}

    def refusals(self):
        self.refused("a rank beyond the world", [([], self.place(5, 3, free_port()))],
                     "RANK is '5'")
        self.refused("half of a launch", [([], {"RANK": "0"})], "WORLD_SIZE")
        self.refused("two launchers", [([], {**self.place(0, 2, free_port()),
                                             "OMPI_COMM_WORLD_RANK": "1",
                                             "OMPI_COMM_WORLD_SIZE": "2"})],
                     "RANK and WORLD_SIZE say rank 0 of 2, but Open MPI says rank 1 of 2")
        port = free_port()
        self.refused("a rank that never comes", [([], self.place(0, 2, port))], "rank 1")
        self.refused("no store", [([], self.place(1, 2, free_port()))], "MASTER_ADDR")
        port = free_port()
        self.refused("two of rank 1", [([], self.place(rank, 3, port)) for rank in (0, 1, 1)],
                     "rank 1|rank 2")
        port = free_port()
        self.refused("ranks with other options",
                     [([], self.place(0, 2, port)), (["--seed", "5"], self.place(1, 2, port))],
                     "rank 1 was started with --seed 5, rank 0 with --seed 1; no step")
        port = free_port()
        self.refused("ranks with other settings",
                     [([], self.place(0, 2, port)),
                      (["--set", "headrace.tile_elements=131072"], self.place(1, 2, port))],
                     "tile_elements")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused("a port that is taken",
                         [([], self.place(rank, 2, port)) for rank in (0, 1)], str(port))
        self.refused("--plain", [(["--plain"], self.place(0, 2, free_port()))], "--plain")
        for name, mpi, variables in (
                ("PMIx", "Open MPI", {"PMIX_RANK": "1"}),
                ("PMIx", "Open MPI", {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0",
                                      "SLURM_NTASKS": "2"}),
                ("PMI", "MPICH", {"PMI_RANK": "1", "PMI_SIZE": "2"}),
                ("Open MPI", "Open MPI", {"OMPI_COMM_WORLD_RANK": "1",
                                          "OMPI_COMM_WORLD_SIZE": "2"}),
                ("Slurm", "Open MPI", {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0",
                                       "SLURM_NTASKS": "2"})):
            if len(self.mpis) == 2:
                self.refused(f"variables of {name}, and no launcher", [([], variables)],
                             f"{name}'s variables say that this is rank [01].*, but the {mpi} that "
                             "this program loaded says rank 0 of 1")

    # ---- failures ----

    def drive_failure(self, place, how):
        """An EIO, or the end of the process with exit code 0 in the middle of a write."""
        return {"LD_PRELOAD": self.options.failing_drive, "FAILING_DRIVE_CALL": "pwrite",
                "FAILING_DRIVE_ERRNO": {"drive": "5", "exit": "0"}[how],
                "FAILING_DRIVE_AFTER": "3",
                "FAILING_DRIVE_TRIGGER": f"{place}/fail", "HEADRACE_IO_QUEUE": "threads"}

    def fail_once(self, launcher, size, victim, how, delay):
        """Seconds from the failure to the end of the last of the others."""
        with World(self.scratch) as world:
            deadline = DEADLINE_S if how == "stop" else 600
            words = self.words(world, 100000, self.NVME + ["--rank-deadline", str(deadline)])
            words.remove("--no-progress")
            launcher.start(world, size, words, {
                victim: (self.drive_failure(world.place, how) if how in ("drive", "exit") else {},
                         [])})
            world.wait_for("step 1/")
            time.sleep(delay)
            process = launcher.process_of(world, victim)
            # Under MPI the one process here is the launcher.
            but = [victim] if how == "stop" and launcher is self.gloo else []
            bound = SLACK_S + (DEADLINE_S if how == "stop" else 2)
            begin = time.monotonic()
            if how in ("drive", "exit"):
                with open(f"{world.place}/fail", "w", encoding="utf-8"):
                    pass
            else:
                number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM,
                          "interrupt": signal.SIGINT}[how]
                os.kill(process, number)
            if how == "stop" and launcher is not self.gloo:
                # mpirun waits for a process that stands still, whatever the others do.
                end = time.monotonic() + bound
                while set(launcher.rank_processes(world)) - {victim}:
                    require(time.monotonic() < end, f"not ended in {bound} s\n{world.said()}")
                    time.sleep(0.01)
                seconds = time.monotonic() - begin
            else:
                world.wait(bound, but)
                seconds = time.monotonic() - begin
            if how == "stop":
                try:
                    os.kill(process, signal.SIGCONT)
                except ProcessLookupError:
                    pass  # its launcher has killed it
            codes = world.wait(SLACK_S)
            self.require_named(launcher, world, size, victim, how, codes)
            # The launchers kill the other ranks too, at times before these have cleaned up.
            if how == "exit" or (launcher is not self.gloo and how in ("stop", "kill")):
                self.reclaim(world)
            world.require_nothing_left()
            return seconds

    def reclaim(self, world):
        """Ranks were killed, or ended by their transport in a transfer to one that stands still:
        the next run removes what they left."""
        world.start(self.words(world, 1, self.NVME), {})
        require(world.wait(60)[-1] == 0, f"the run after it failed:\n{world.said()}")

    def require_named(self, launcher, world, size, victim, how, codes):
        said = world.said()
        where = f"{launcher.name}, {how}, rank {victim} of {size}"
        if how == "exit" and launcher.name == "mpich":
            return  # its mpirun takes exit code 0 of one rank for the end of all, without a word
        own_code = victim if how == "exit" and launcher is self.gloo else None
        require(all(code for rank, code in enumerate(codes) if rank != own_code),
                f"{where}: exit codes {codes}\n{said}")
        require("terminate called" not in said and "Segmentation" not in said,
                f"{where}: a crash\n{said}")
        causes = {"kill": f"rank {victim}|signal 9|No such process", "stop": f"rank {victim}",
                  "exit": f"rank {victim}|without calling|exited|BAD TERMINATION",
                  "term": "SIGTERM|interrupted", "interrupt": "SIGINT|interrupted", "drive": "EIO"}
        if launcher is not self.gloo:
            require(re.search(causes[how], said), f"{where}: no '{causes[how]}' in\n{said}")
            return
        for rank in range(size):
            if rank == victim:
                continue
            own = world.said(rank)
            require(re.search(causes[how], own) and f"rank {victim}" in own,
                    f"{where}: rank {rank} names neither rank nor cause:\n{said}")

    def hows(self):
        return ["kill", "stop", "term", "interrupt"] + (
            ["drive", "exit"] if self.options.failing_drive else [])

    def late_once(self, launcher, size, victim, delay):
        """A rank stands still, and goes on before the deadline: nothing is different."""
        with World(self.scratch) as world:
            more = [*self.NVME, "--rank-deadline", "60", "--json", "PLACE/report.json"]
            words = self.words(world, 12, more)
            words.remove("--no-progress")
            launcher.start(world, size, words)
            world.wait_for("step 1/")
            time.sleep(delay / 10)
            process = launcher.process_of(world, victim)
            os.kill(process, signal.SIGSTOP)
            time.sleep(1)
            os.kill(process, signal.SIGCONT)
            begin = time.monotonic()
            codes = world.wait(SLACK_S)
            where = f"{launcher.name}, late, rank {victim} of {size}"
            require(not any(codes), f"{where}: exit codes {codes}\n{world.said()}")
            world.require_nothing_left()
            self.require_undisturbed(world, where)
            return time.monotonic() - begin

    def store_once(self, launcher, size, victim, step):
        with World(self.scratch) as world:
            more = [*self.NVME, "--store", "run", "--json", "PLACE/report.json"]
            words = self.words(world, 12, more)
            words.remove("--no-progress")
            launcher.start(world, size, words)
            world.wait_for(f"step {step}/")
            os.kill(launcher.process_of(world, victim), signal.SIGKILL)
            codes = world.wait(SLACK_S)
            where = f"{launcher.name}, rank {victim} of {size} killed after step {step}"
            require(any(codes), f"{where}: the world has ended\n{world.said()}")
            killed = len(codes)
            launcher.start(world, size, words)
            codes = world.wait(180)[killed:]
            require(not any(codes), f"{where}: exit codes {codes}\n{world.said()}")
            resumed = re.search(r"goes on after step (\d+)", world.said(killed))
            require(resumed and int(resumed[1]) >= step - 1, f"{where}:\n{world.said()}")
            self.require_undisturbed(world, where)
            print(f"  {where}: went on after step {resumed[1]}, the same hashes")

    def stores(self):
        for launcher in self.launchers:
            self.store_once(launcher, 2, 1, 3)
        self.store_once(self.gloo, 3, 0, 5)

    def require_undisturbed(self, world, where):
        got = json.loads(read(f"{world.place}/report.json"))["hash"]
        require(got == self.undisturbed(), f"{where}: {got}, of one rank {self.undisturbed()}")

    def undisturbed(self):
        if not self.hash_of_one:
            with World(self.scratch) as world:
                world.start(self.words(world, 12, ["--json", "PLACE/report.json"]), {})
                require(world.wait(180) == [0], world.said())
                self.hash_of_one = json.loads(read(f"{world.place}/report.json"))["hash"]
        return self.hash_of_one

    def refused_once(self, how, size, victim):
        """A rank that the others do not expect: all end, and one of them says why."""
        begin = time.monotonic()
        port = free_port()
        with socket.socket() as taken:
            places = [self.place(rank, size, port) for rank in range(size)]
            if how == "port":
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind(("127.0.0.1", port))
                taken.listen()
            elif how == "wrong rank":
                places[victim] = self.place(size + 1, size, port)
            elif how == "twice":
                places.append(self.place(victim, size, port))
            says = {"port": str(port), "wrong rank": f"RANK is '{size + 1}'",
                    "twice": f"rank {victim}|rank {size}|cannot serve"}[how]
            # Of two ranks 0 one serves the store, and trains with the others. Of two others, the
            # second may come while the ranks meet, which ends them, or after they have met.
            refused = {"twice": [1] if victim == 0 else [1, size + 1]}.get(how)
            self.refused(how, [([], place) for place in places], says, quiet=True,
                         refused=refused)
        return time.monotonic() - begin

    def failures(self):
        for launcher in self.launchers:
            for how in self.hows():
                seconds = self.fail_once(launcher, 3, 1, how, 0)
                print(f"  {launcher.name}, {how}, rank 1 of 3: ended after {seconds:.2f} s")

    def points(self):
        chance = random.Random(self.options.seed)
        print(f"  seed {self.options.seed}")
        times = {}
        for point in range(self.options.points):
            launcher = chance.choice(self.launchers)
            size = chance.choice([2, 3])
            victim = chance.randrange(size)
            how = chance.choice(self.hows() + ["late", "port", "wrong rank", "twice"])
            if how in ("port", "wrong rank", "twice"):
                launcher = self.gloo  # under mpirun, MPI gives the ranks their places
            delay = chance.uniform(0, 0.3)
            where = f"{point}: {launcher.name}, {how}, rank {victim} of {size}, at {delay:.3f} s"
            try:
                if how == "late":
                    seconds = self.late_once(launcher, size, victim, delay)
                elif how in ("port", "wrong rank", "twice"):
                    seconds = self.refused_once(how, size, victim)
                else:
                    seconds = self.fail_once(launcher, size, victim, how, delay)
            except Fault as fault:
                raise Fault(f"{where}: {fault}") from fault
            times.setdefault((launcher.name, how), []).append(seconds)
            print(f"  {where}: ended after {seconds:.2f} s", flush=True)
        for (name, how), all_seconds in sorted(times.items()):
            ordered = sorted(all_seconds)
            print(f"  {name}, {how}: {len(ordered)} points, median "
                  f"{ordered[len(ordered) // 2]:.2f} s, most {ordered[-1]:.2f} s")


def from_here(options):
    """Makes the scratch folder, and paths absolute: a world's processes run in another folder."""
    options.program = os.path.abspath(options.program)
    options.scratch = os.path.abspath(options.scratch)
    os.makedirs(options.scratch, exist_ok=True)
    if options.failing_drive:
        options.failing_drive = os.path.abspath(options.failing_drive)
    # A name without a folder is found in PATH.
    if options.torchrun and os.sep in options.torchrun:
        options.torchrun = os.path.abspath(options.torchrun)
    options.mpirun = [f"{kind}={os.path.abspath(path) if os.sep in path else path}"
                      for kind, path in (pair.split("=", 1) for pair in options.mpirun)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--program", required=True, metavar="PATH", help="train_gpt, as built")
    parser.add_argument("--scratch", required=True, metavar="DIR",
                        help="folder for all state, on a drive; made if missing")
    parser.add_argument("--failing-drive", metavar="LIBRARY",
                        help="libfailing_drive.so, as ./check builds it, for ranks whose drive "
                        "fails [without it, none does]")
    parser.add_argument("--mpirun", action="append", default=[], metavar="KIND=PATH",
                        help="openmpi=PATH or mpich=PATH, for worlds over this MPI, whose module "
                        "is beside the program; may be repeated [none]")
    parser.add_argument("--torchrun", metavar="PATH", default=shutil.which("torchrun"),
                        help="for the parts hashes and places [the one in PATH]")
    parser.add_argument("--part", action="append", choices=[*PARTS, "points"],
                        help="may be repeated [all but points]")
    parser.add_argument("--points", type=int, default=0, metavar="N",
                        help="number of failures of the part points [0]")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), metavar="S",
                        help="which failures these are [another each time]")
    options = parser.parse_args()
    for pair in options.mpirun:
        if "=" not in pair:
            parser.error(f"--mpirun {pair} does not say which MPI it starts. Give openmpi={pair} "
                         f"or mpich={pair}.")
    if not os.path.isfile(options.program):
        parser.error(f"--program {options.program} is no file. Give train_gpt, as built.")
    options.part = options.part or PARTS
    from_here(options)
    check = Check(options)
    try:
        for part in options.part:
            print(f"{part}:", flush=True)
            getattr(check, part)()
    except Fault as fault:
        print(f"worlds: {fault}")
        return 1
    finally:
        check.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
