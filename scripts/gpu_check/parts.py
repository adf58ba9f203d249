# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/gpu_check in their order: the machine, what is right, what is fast."""
import os
import shutil
import sys

from gpu_check import building, machine, speed, training
from gpu_check.check import Skipped

FULL, QUICK = "in full", "--quick"
BOTH = "in full and --quick"


def look_at_machine(check):
    found = machine.facts()
    found["swap_files"] = {"folder": check.place, "file_system": machine.file_system(check.place),
                           "free_bytes": machine.free_bytes(check.place)}
    found["torch"] = check.torch_version or check.no_torch
    smi = shutil.which("nvidia-smi")
    if smi:
        found["nvidia_smi"] = check.run(
            [smi, "--query-gpu=name,memory.total,driver_version,pcie.link.gen.max,"
             "pcie.link.width.max", "--format=csv,noheader"], "nvidia-smi",
            wanted=tuple(range(256))).splitlines()[1:]
    return found


def build(check):
    if check.options.no_build:
        raise Skipped("--no-build")
    return building.build(check)


def look(check):
    """What the build itself sees of the GPU: the parts below go by it."""
    check.missing = check.cannot_start or "no GPU: the part 'look' failed"
    text = check.run([check.program("tests", "bin", "device_cuda_test"), "--gtest_list_tests"],
                     "look", wanted=(0, 77), env=check.environment())
    reason = [line for line in text.splitlines() if line.startswith("skipped: ")]
    if reason:
        check.missing = "no GPU: " + reason[0][len("skipped: "):].split(": ")[0]
        raise Skipped(check.missing)
    names = check.run([shutil.which("nvidia-smi") or "true", "-L"], "gpus").splitlines()[1:]
    check.gpu, check.missing = names[0] if names else "a GPU", ""
    return {"gpu": check.gpu}


def on_gpu(*programs):
    """Test programs on the GPU; those that this build does not have are passed over."""
    def work(check):
        check.need_gpu()
        there = [name for name in programs
                 if os.path.exists(os.path.join(check.options.build, "tests", "bin", name))]
        if not there and not check.cannot_start:
            raise Skipped(f"{programs[0]} is not built here")
        skipped = []
        for name in there:
            try:
                check.so_far[name] = check.gtest(name)
            except Skipped as why:
                check.so_far[name] = {"skipped": str(why)}
                skipped.append(str(why))
        if len(skipped) == len(there):
            raise Skipped(skipped[0] if skipped else check.cannot_start)
        return check.so_far
    return work


def others(check):
    """Tests on the GPU that have no part of their own."""
    check.need_gpu()
    own = {name for part in PARTS for name in part.programs}
    there = [name for name in building.gpu_tests(check.options.build, check.pack)
             if name not in own]
    if not there:
        raise Skipped("there are none that have no part of their own")
    return on_gpu(*there)(check)


def python(check):
    """The package's tests, with models on the GPU."""
    check.need_gpu()
    check.need_torch()
    environment = check.environment(
        HEADRACE_LIBRARY=check.program("libheadrace.so"), HEADRACE_TEST_DEVICE="cuda",
        PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=os.pathsep.join(
            [os.path.join(check.root, "python"), *filter(None, [os.environ.get("PYTHONPATH")])]))
    os.makedirs(check.nvme, exist_ok=True)
    for name in ("torch_test", "offload_gpu_test", "trainers_test"):
        test = os.path.join(check.root, "tests", "python", name + ".py")
        text = check.run([sys.executable, test, check.nvme], name, wanted=(0, 77), env=environment)
        if "Ran " not in text:
            raise Skipped(text.strip().splitlines()[-1])
        check.so_far[name] = " ".join(text[text.rindex("Ran "):].split())
    return check.so_far


def sanitized(tool):
    def work(check):
        check.need_gpu()
        # Allocations that have to fail count as errors there.
        for test, only in (
                ("device_cuda_test", "Landing.*Dtypes:Landing.Sums*:*Conformance*1-*SaysNoTo*"),
                ("cuda_update_test", "*EveryKind:*AcrossRandomBlocks")):
            check.sanitizer(tool, [check.program("tests", "bin", test), "--gtest_filter=" + only],
                            test)
        return {"errors": 0}
    return work


class Part:
    """`work`: what it does with a Check; seconds that it may need; whether --quick has it; or the
    test programs that it runs."""

    def __init__(self, name, work, seconds, runs=FULL, programs=()):
        self.name, self.seconds, self.runs, self.programs = name, seconds, runs, programs
        self.group = "speed" if getattr(work, "__module__", "") == speed.__name__ else "correctness"
        self.work = work or on_gpu(*programs)
        # A program that hangs takes no other part's time. How long a build takes is the machine's.
        self.most = float("inf") if name == "build" else 30 + 2 * seconds


PARTS = [
    Part("machine", look_at_machine, 5, BOTH),
    Part("build", build, 60, BOTH),
    Part("look", look, 5, BOTH),
    Part("conformance", None, 20, BOTH, ["device_cuda_test", "cuda_pin_refusal_test"]),
    Part("updates", None, 20, BOTH, ["cuda_update_test"]),
    Part("two steps", training.two_steps, 15, QUICK),
    Part("exactness", None, 40, FULL, ["cuda_exactness_test"]),
    Part("trained exactness", training.trained_exactness, 110),
    Part("kept training", training.kept_training, 60),
    Part("adapter", None, 60, FULL, ["torch_place_on_gpu_test"]),
    Part("nccl", None, 30, BOTH, ["nccl_on_gpu_test"]),
    Part("nccl of several processes", None, 120, FULL, ["nccl_two_ranks_on_gpu_test"]),
    Part("ranks on one GPU", None, 20, FULL, ["ranks_on_cuda_test"]),
    Part("python", python, 150),
    Part("tools", None, 20, FULL, ["headrace_gpu_tools_test"]),
    Part("other tests", others, 40),
    Part("memcheck", sanitized("memcheck"), 20),
    Part("racecheck", sanitized("racecheck"), 20),
    Part("memcheck of training",
         training.sanitized("memcheck", "--report-api-errors", "no"), 60),
    Part("racecheck of training", training.sanitized("racecheck", *training.OUR_KERNELS), 60),
    Part("copies", speed.copies, 60),
    Part("update speed", speed.update_speed, 40),
    Part("model that fits", speed.model_that_fits, 120),
    Part("hardware queues", speed.hardware_queues, 40),
    Part("drive", speed.measure_drive, 8),
    Part("model that does not fit", speed.model_that_does_not, 120),
    Part("synccheck", sanitized("synccheck"), 20),
    Part("initcheck", sanitized("initcheck"), 20),
]


def chosen(options, packed):
    """Those that this run is about; always the machine, and without 'look' no part knows a GPU."""
    wanted = QUICK if options.quick else FULL
    named = {"machine", "look", *(options.only or [])}
    if "speed" in named:
        named.add("build")
    return [part for part in PARTS
            if not (packed and part.name == "build") and
            (part.name in named or part.group in named and wanted in part.runs
             if options.only else wanted in part.runs)]


def describe():
    return "\n".join(f"{part.name:26} {part.seconds:4} s  {part.group:12} {part.runs}"
                     for part in PARTS)
