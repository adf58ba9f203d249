# SPDX-License-Identifier: Apache-2.0
"""What every part of tools/gpu_check stands on: where programs lie, and how they are run."""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from gpu_check import machine


class Skipped(Exception):
    """A part that cannot run here; its text says why."""


class Failed(Exception):
    """A part that ran and did not give what it should."""


class SanitizerBroke(Failed):
    """compute-sanitizer itself came to an end, and says nothing of the program under it."""


class Ended(BaseException):
    """A signal asked this program to end."""

    def __init__(self, number):
        super().__init__(f"SIG{signal.Signals(number).name[3:]}")
        self.number = number


class Check:
    """One run: its options, its folders, and what is known of the machine so far.

    root     the checkout, or the pack
    pack     what pack.json says; None in a checkout
    gpu      the GPU's name; "" and the reason in `missing` where there is none
    torch    the folder that holds torch/; "" and the reason in `no_torch` where it cannot serve
    so_far   what the part under way has found: in the report even where it does not end
    """

    def __init__(self, options, root, pack, scratch):
        self.options = options
        self.root = root
        self.pack = pack
        self.started = time.monotonic()
        self.out = options.out or os.path.join(scratch, "out")
        os.makedirs(self.out, exist_ok=True)
        # Tests leave swap files where they are started, so not in a pack, which may be read only.
        self.place = tempfile.mkdtemp(prefix="gpu_check-",
                                      dir=options.nvme or machine.folder_on_a_drive(scratch))
        self.folders = [self.place]  # are gone at the end
        self.nvme = os.path.join(self.place, "nvme")
        self.drive = None
        self.gpu, self.missing = "", "nobody has looked yet"
        self.cannot_start = machine.cannot_start(pack) if pack else ""
        found = machine.find_torch(options.torch, root, pack)
        self.torch, self.no_torch, self.torch_version = found
        self.so_far = {}
        self.most = float("inf")  # seconds for a program of the part under way

    def left(self):
        return self.options.limit - (time.monotonic() - self.started)

    # ---- what a part needs ----

    def need_gpu(self):
        if not self.gpu:
            raise Skipped(self.missing)

    def need_torch(self):
        if not self.torch:
            raise Skipped(self.no_torch)

    def program(self, *where):
        if self.cannot_start:
            raise Skipped(self.cannot_start)
        path = os.path.join(self.options.build, *where)
        if not os.path.exists(path):
            raise Failed(f"{path} is not there: it was not built")
        return path

    # ---- running programs ----

    def environment(self, **more):
        """Where programs find torch, NVIDIA's packages beside it, and what the pack brought."""
        folders = machine.library_folders(self.torch)
        if self.pack:
            folders.append(os.path.join(self.root, "lib"))
        folders += [path for path in [os.environ.get("LD_LIBRARY_PATH")] if path]
        return dict(os.environ, LD_LIBRARY_PATH=":".join(folders), **more)

    def run(self, command, log, wanted=(0,), **more):
        """Its output, also in a log. Failed with the log's end where it ends otherwise."""
        path = os.path.join(self.out, log + ".log")
        seconds = max(min(self.left(), self.most), 1)
        more.setdefault("cwd", self.place)
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write("$ " + " ".join(command) + "\n")
            file.flush()
            process = started(command, file, **more)
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                end(process)
                if seconds == self.most:
                    raise Failed(f"{os.path.basename(command[0])} did not end within {seconds:.0f} "
                                 f"s and was ended, so that other parts have time: see {log}.log"
                                 ) from None
                raise Skipped(f"--limit came before its end, after {seconds:.0f} s") from None
            except BaseException:
                end(process)
                raise
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if status not in wanted:
            tail = "\n".join(text.strip().splitlines()[-15:])
            raise Failed(f"{os.path.basename(command[0])} ended {status}:\n{tail}")
        return text

    def gtest(self, name, *words):
        """A test program's summary."""
        self.need_gpu()
        if self.pack and "tests/bin/" + name in self.pack["use_torch"]:
            self.need_torch()
        text = self.run([self.program("tests", "bin", name), *words], name, wanted=(0, 77),
                        env=self.environment())
        if "[  PASSED  ]" not in text:
            raise Skipped(text.strip().splitlines()[-1])
        found = {"summary": [line for line in text.splitlines() if line.startswith("[=====")][-1]}
        skipped = sorted(set(re.findall(r"^\[  SKIPPED \] (\S+)$", text, re.MULTILINE)))
        return {**found, "skipped_tests": skipped} if skipped else found

    def train_command(self, report, *words):
        self.need_gpu()
        self.need_torch()
        text = os.path.dirname(os.__file__)  # Python's own sources, wherever they lie
        return [self.program("bin", "train_gpt"), "--text", text, "--device", "cuda",
                "--eval-batches", "0", "--no-progress", *words, "--json", report]

    def train(self, name, *words, **environment):
        """train_gpt's report."""
        report = os.path.join(self.out, name + ".json")
        self.run(self.train_command(report, *words), "train_gpt-" + name,
                 env=self.environment(**environment))
        return read_json(report)

    def train_and_kill(self, name, seconds, *words):
        """Ends train_gpt by SIGKILL after that time, wherever it is."""
        command = self.train_command(os.path.join(self.out, name + ".json"), *words)
        with open(os.path.join(self.out, f"train_gpt-{name}.log"), "w", encoding="utf-8") as file:
            process = started(command, file, cwd=self.place, env=self.environment())
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def sanitizer(self, tool, command, log, *words):
        """compute-sanitizer's `tool` over a command; Failed where it finds anything."""
        program = (shutil.which("compute-sanitizer") or
                   shutil.which("compute-sanitizer", path="/usr/local/cuda/bin"))
        if not program:
            raise Skipped("compute-sanitizer is not here; it comes with the CUDA toolkit")
        text = self.run([program, "--tool", tool, "--error-exitcode", "9", *words, *command],
                        f"sanitizer-{tool}-{log}", wanted=tuple(range(-64, 256)),
                        env=self.environment())
        if "Device not supported" in text:
            raise Skipped("compute-sanitizer does not support this GPU or its container")
        if "Internal Sanitizer Error" in text:
            raise SanitizerBroke("\n".join(text.strip().splitlines()[1:6]))
        # racecheck has a summary of its own.
        if not re.search(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", text):
            raise Failed("\n".join(text.strip().splitlines()[-15:]))


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def started(command, file, **more):
    """A program in a session of its own, so that end() reaches what it starts."""
    return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL, start_new_session=True, **more)


def end(process):
    """Ends a program and what it started, within some seconds."""
    for number, seconds in ((signal.SIGTERM, 3), (signal.SIGKILL, 3)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
