# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check and its pack, on programs that are scripts: neither GPU nor compiler is needed.

What the scripts do is said by files in $STUBS: `driver` there means that there is a GPU, `hang`
names a program that does not end by itself, `exit-NAME` holds what NAME ends with.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
from gpu_check import machine, speed  # noqa: E402
from gpu_check.check import Check, Failed  # noqa: E402

GIB = 1 << 30
TESTS = ["device_cuda_test", "cuda_pin_refusal_test", "cuda_update_test", "cuda_exactness_test",
         "torch_place_on_gpu_test", "nccl_on_gpu_test", "nccl_two_ranks_on_gpu_test",
         "ranks_on_cuda_test"]
STUB = """#!/bin/sh
name=$(basename "$0")
env > "$STUBS/environment-$name"; pwd > "$STUBS/folder-$name"
if [ ! -e "$STUBS/driver" ]; then
  echo "skipped: this machine has no NVIDIA driver (libcuda.so.1 was not found): no GPU then"
  exit 77
fi
case "$*" in *gtest_list_tests*) exit 0 ;; esac
if [ -e "$STUBS/report" ]; then cp "$(cat "$STUBS/report")" "$STUBS/report-$name"; fi
if [ "$(cat "$STUBS/hang" 2>/dev/null)" = "$name" ]; then
  echo $$ > "$STUBS/pid.part"; mv "$STUBS/pid.part" "$STUBS/pid"; exec sleep 100
fi
if [ -e "$STUBS/exit-$name" ]; then exit "$(cat "$STUBS/exit-$name")"; fi
while [ $# -gt 0 ]; do
  if [ "$1" = --json ]; then
    echo '{"steps": [1, 2], "hash": "0"}' > "$2"
  fi
  shift
done
if [ -e "$STUBS/skips" ]; then
  echo "[  SKIPPED ] A.B (3 ms)"; echo "[  SKIPPED ] 1 test, listed below:"; echo "[  SKIPPED ] A.B"
fi
echo "[==========] 3 tests ran"; echo "[  PASSED  ] 3 tests"
"""


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def make_torch(folder, version):
    write(folder / "torch" / "version.py", f"__version__ = '{version}'\n")
    write(folder / "torch" / "lib" / "libtorch_cuda.so", "")
    write(folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2", "")
    return folder


class Stubs(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="gpu_check_test-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name).resolve()
        self.stubs, self.pack = self.folder / "stubs", self.folder / "pack"
        self.json, self.archive = self.folder / "gpu.json", self.folder / "gpu.tar.gz"
        self.torch = make_torch(self.folder / "torch-root", "2.11.0+cu130")
        self.stubs.mkdir()
        write(self.folder / "path" / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: a stub'\n", 0o755)
        self.environment = dict(os.environ, STUBS=str(self.stubs), TMPDIR=str(self.folder),
                                LD_LIBRARY_PATH="/inherited",
                                PATH=f"{self.folder}/path:{os.environ['PATH']}")

    def build(self):
        """A build folder as far as --pack looks at it, with one real program."""
        build = self.folder / "build"
        for name in ["bin/headrace", "bin/train_gpt", "libheadrace.so",
                     *("tests/bin/" + name for name in TESTS)]:
            write(build / name, STUB, 0o755)
        shutil.copy(shutil.which("sleep"), build / "tests" / "bin" / "elf_on_gpu_test")
        write(build / "nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.1'\n",
              0o755)
        write(build / "CMakeCache.txt", f"HEADRACE_TORCH_ROOT:PATH={self.torch}\n"
              f"HEADRACE_NVCC:FILEPATH={build}/nvcc\nHEADRACE_CUDA_ARCHITECTURES:STRING=90\n")
        write(build / "CTestTestfile.cmake", "".join(
            f"add_test({name} true)\nset_tests_properties({name} PROPERTIES LABELS gpu)\n"
            for name in [*TESTS, "elf_on_gpu_test"]))
        return build

    def make_pack(self, *words):
        return subprocess.run(
            [ROOT / "tools" / "gpu_check", "--pack", self.pack, "--no-build", "--build",
             self.build(), *words], env=self.environment, text=True, capture_output=True,
            check=False)

    def packed(self):
        """A pack whose one real program is gone: it would only sleep."""
        made = self.make_pack()
        self.assertEqual(made.returncode, 0, made.stderr)
        (self.pack / "tests" / "bin" / "elf_on_gpu_test").unlink()

    def edit_pack(self, use_torch=(), **needs):
        path = self.pack / "pack.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        document["needs"].update(needs)
        document["use_torch"] += use_torch
        path.write_text(json.dumps(document), encoding="utf-8")

    def command(self, *words):
        return [self.pack / "tools" / "gpu_check", "--packed", "--json", self.json, "--archive",
                self.archive, *words]

    def check(self, *words, status=0):
        ran = subprocess.run(self.command(*words), env=self.environment, cwd="/", text=True,
                             capture_output=True, check=False)
        self.assertEqual(ran.returncode, status, ran.stderr)
        self.report = json.loads(self.json.read_text(encoding="utf-8"))
        self.said = ran.stderr
        return {part["name"]: part for part in self.report["parts"]}

    def start_and_hang(self, program):
        """A run that hangs in `program`."""
        write(self.stubs / "driver", "")
        write(self.stubs / "hang", program)
        process = subprocess.Popen(self.command("--quick"), env=self.environment, cwd="/",
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while not (self.stubs / "pid").exists():
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        child = int((self.stubs / "pid").read_text(encoding="utf-8"))
        self.addCleanup(end_group, child)
        return process, child


def end_group(child):
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass


class APack(Stubs):
    def test_has_all_and_says_what_it_needs(self):
        made = self.make_pack()
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("pack/tools/gpu_check --packed", made.stdout)
        document = json.loads((self.pack / "pack.json").read_text(encoding="utf-8"))
        self.assertEqual(document["torch"], "2.11.0+cu130")
        self.assertEqual(document["cuda"], "13.0")
        self.assertEqual(document["architectures"], "90")
        self.assertRegex(document["needs"]["GLIBC"], r"^2\.\d+$")
        self.assertGreater(document["bytes"], 0)
        for name in ["bin/headrace", "bin/train_gpt", "tests/bin/elf_on_gpu_test",
                     "tools/gpu_check", "scripts/gpu_check/command.py", "libheadrace.so",
                     "python/headrace/_c.py", "tests/python/torch_test.py"]:
            self.assertTrue((self.pack / name).is_file(), name)
        self.assertEqual(self.pack.stat().st_mode & 0o777, 0o755)
        self.assertEqual((self.pack / "bin" / "headrace").stat().st_mode & 0o777, 0o755)
        self.assertEqual((self.pack / "pack.json").stat().st_mode & 0o777, 0o644)

    def test_brings_no_library_of_the_systems(self):
        self.assertEqual(self.make_pack().returncode, 0)
        self.assertEqual(os.listdir(self.pack / "lib"), [])

    def test_that_is_too_large_is_refused_and_the_old_one_stays(self):
        self.assertEqual(self.make_pack().returncode, 0)
        before = (self.pack / "pack.json").read_bytes()
        made = self.make_pack("--pack-mib", "0.01")
        self.assertEqual(made.returncode, 1)
        self.assertIn("--pack-mib is 0.01", made.stderr)
        self.assertIn("tests/bin/elf_on_gpu_test", made.stderr)
        self.assertEqual((self.pack / "pack.json").read_bytes(), before)
        self.assertEqual([path.name for path in self.folder.iterdir()
                          if path.name.startswith(".gpu_pack")], [])

    def test_replaces_no_folder_of_something_else(self):
        write(self.pack / "thesis.tex", "")
        made = self.make_pack()
        self.assertEqual(made.returncode, 1)
        self.assertIn("nothing was changed", made.stderr)
        self.assertTrue((self.pack / "thesis.tex").exists())

    def test_is_run_with_packed_and_a_checkout_without(self):
        self.packed()
        for command in ([self.pack / "tools" / "gpu_check"],
                        [ROOT / "tools" / "gpu_check", "--packed"]):
            ran = subprocess.run(command, text=True, capture_output=True, check=False)
            self.assertEqual(ran.returncode, 2)
            self.assertIn("nothing was run", ran.stderr)


class ARun(Stubs):
    def test_without_a_driver_skips_all_with_the_reason(self):
        self.packed()
        parts = self.check()
        self.assertEqual(parts.pop("machine")["status"], "passed")
        for part in parts.values():
            self.assertEqual(part["status"], "skipped", part)
            self.assertIn("no NVIDIA driver (libcuda.so.1 was not found)", part["reason"])
        self.assertTrue(self.report["complete"])
        self.assertIsNone(self.report["gpu"])
        with tarfile.open(self.archive) as tar:
            self.assertIn("gpu_check/look.log", tar.getnames())
            self.assertIn("gpu_check/report.json", tar.getnames())

    def test_with_a_gpu_gives_programs_the_libraries_and_a_folder_of_their_own(self):
        self.packed()
        write(self.stubs / "driver", "")
        parts = self.check("--quick", "--torch", self.torch)
        self.assertEqual({part["status"] for part in parts.values()}, {"passed"}, parts)
        text = (self.stubs / "environment-train_gpt").read_text(encoding="utf-8")
        paths = [line for line in text.splitlines() if line.startswith("LD_LIBRARY_PATH=")]
        self.assertEqual(paths, [f"LD_LIBRARY_PATH={self.torch}/torch/lib:"
                                 f"{self.torch}/nvidia/nccl/lib:{self.pack}/lib:/inherited"])
        place = (self.stubs / "folder-train_gpt").read_text(encoding="utf-8").strip()
        self.assertNotIn(str(self.pack), place)
        self.assertFalse(os.path.exists(place))

    def test_writes_the_report_before_and_after_every_part(self):
        self.packed()
        write(self.stubs / "driver", "")
        write(self.stubs / "report", str(self.json))
        self.check("--quick")
        text = (self.stubs / "report-cuda_update_test").read_text(encoding="utf-8")
        meanwhile = json.loads(text)
        self.assertFalse(meanwhile["complete"])
        self.assertEqual(meanwhile["under_way"], "updates")
        self.assertEqual([part["name"] for part in meanwhile["parts"]],
                         ["machine", "look", "conformance"])

    def test_names_a_part_that_fails_and_goes_on(self):
        self.packed()
        write(self.stubs / "driver", "")
        write(self.stubs / "exit-device_cuda_test", "1")
        parts = self.check("--quick", status=1)
        self.assertEqual(parts["conformance"]["status"], "failed")
        self.assertEqual(parts["updates"]["status"], "passed")

    def test_prints_to_a_pipe_what_cannot_be_replaced(self):
        self.packed()
        ran = subprocess.run(self.command("--json", "/dev/stdout"), env=self.environment, text=True,
                             capture_output=True, check=False)
        self.assertTrue(json.loads(ran.stdout)["complete"])

    def test_names_tests_that_a_program_skips(self):
        self.packed()
        write(self.stubs / "driver", "")
        write(self.stubs / "skips", "")
        parts = self.check("--only", "updates")
        self.assertEqual(parts["updates"]["result"]["cuda_update_test"]["skipped_tests"], ["A.B"])

    def test_runs_every_test_once(self):
        self.packed()
        write(self.stubs / "driver", "")
        named = [word for part in ("conformance", "updates", "exactness", "adapter", "nccl",
                                   "nccl of several processes", "ranks on one GPU", "other tests")
                 for word in ("--only", part)]
        parts = self.check(*named, "--torch", self.torch)
        ran = [program for part in parts.values() for program in part.get("result", {})
               if program in TESTS]
        self.assertEqual(sorted(ran), sorted(TESTS))

    def test_is_of_what_is_right_or_of_what_is_fast(self):
        self.packed()
        right, fast = set(self.check("--only", "correctness")), set(self.check("--only", "speed"))
        self.assertEqual(right & fast, {"machine", "look"})
        self.assertEqual(right | fast, set(self.check()))
        self.assertTrue({"trained exactness", "nccl"} <= right)
        self.assertTrue({"copies", "model that does not fit"} <= fast)

    def test_knows_each_sanitizers_summary(self):
        self.packed()
        write(self.stubs / "driver", "")
        for text, status in (("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0),
                             ("RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)", 1),
                             ("ERROR SUMMARY: 0 errors", 0), ("ERROR SUMMARY: 10 errors", 1)):
            write(self.folder / "path" / "compute-sanitizer",
                  f"#!/bin/sh\necho '========= {text}'\n", 0o755)
            parts = self.check("--only", "racecheck", status=status)
            self.assertEqual(parts["racecheck"]["status"], "failed" if status else "passed")


class AnEnd(Stubs):
    def test_by_sigterm_completes_report_and_archive(self):
        self.packed()
        process, child = self.start_and_hang("cuda_update_test")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 128 + signal.SIGTERM)
        with self.assertRaises(ProcessLookupError):
            os.kill(child, 0)
        report = json.loads(self.json.read_text(encoding="utf-8"))
        self.assertTrue(report["complete"])
        self.assertEqual(report["ended_by"], "SIGTERM")
        parts = {part["name"]: part for part in report["parts"]}
        self.assertEqual(parts["conformance"]["status"], "passed")
        self.assertEqual(parts["updates"]["status"], "ended")
        self.assertIn("SIGTERM came after", parts["updates"]["reason"])
        self.assertEqual(parts["nccl"]["reason"], "SIGTERM came before it")
        with tarfile.open(self.archive) as tar:
            self.assertIn("gpu_check/cuda_update_test.log", tar.getnames())

    def test_by_sigkill_loses_the_part_under_way(self):
        self.packed()
        process, _ = self.start_and_hang("cuda_update_test")
        process.kill()
        process.wait(60)
        report = json.loads(self.json.read_text(encoding="utf-8"))
        self.assertFalse(report["complete"])
        self.assertEqual(report["under_way"], "updates")
        self.assertEqual([part["status"] for part in report["parts"]], ["passed"] * 3)
        with tarfile.open(self.archive) as tar:
            self.assertIn("gpu_check/device_cuda_test.log", tar.getnames())

    def test_by_the_limit_skips_the_part_and_what_it_has_no_time_for(self):
        self.packed()
        write(self.folder / "path" / "nvidia-smi", "#!/bin/sh\nexec sleep 100\n", 0o755)
        parts = self.check("--limit", "10")
        self.assertIn("--limit came before its end", parts["machine"]["reason"])
        self.assertIn("of --limit are left", parts["look"]["reason"])
        self.assertTrue(self.report["complete"])


    def test_of_a_program_that_hangs_leaves_time_for_others(self):
        options = argparse.Namespace(out=None, nvme=None, torch=str(self.torch), limit=100)
        check = Check(options, str(ROOT), None, str(self.folder))
        check.most = 1
        with self.assertRaisesRegex(Failed, "sleep did not end within 1 s"):
            check.run(["sleep", "100"], "hangs")


class AnotherMachine(Stubs):
    def reason(self, part, *words):
        write(self.stubs / "driver", "")
        found = self.check("--only", part, *words)[part]
        self.assertEqual(found["status"], "skipped", found)
        return found["reason"]

    def test_with_another_torch_trains_nothing(self):
        self.packed()
        other = make_torch(self.folder / "other", "2.10.0+cu130")
        reason = self.reason("two steps", "--torch", other)
        self.assertIn("torch 2.10.0+cu130", reason)
        self.assertIn("pip install torch==2.11.0", reason)

    def test_with_another_torch_runs_no_test_that_uses_it(self):
        self.packed()
        self.edit_pack(use_torch=["tests/bin/cuda_update_test"])
        other = make_torch(self.folder / "other", "2.10.0+cu130")
        self.assertIn("torch 2.10.0+cu130", self.reason("updates", "--torch", other))
        self.assertFalse((self.stubs / "environment-cuda_update_test").exists())

    def test_with_torch_for_another_cuda_is_served(self):
        self.packed()
        write(self.stubs / "driver", "")
        other = make_torch(self.folder / "other", "2.11.0+cu128")
        self.assertEqual(self.check("--only", "two steps", "--torch", other)["two steps"]["status"],
                         "passed")

    def test_with_torch_for_the_cpu_trains_nothing(self):
        self.packed()
        other = make_torch(self.folder / "other", "2.11.0+cpu")
        (other / "torch" / "lib" / "libtorch_cuda.so").unlink()
        self.assertIn("has no CUDA part", self.reason("two steps", "--torch", other))

    def test_without_torch_trains_nothing_and_says_how_to(self):
        self.packed()
        reason = self.reason("two steps", "--torch", self.folder)
        self.assertIn("has none", reason)
        self.assertIn("pip install torch==2.11.0", reason)

    def test_with_an_older_glibc_starts_nothing_and_says_so(self):
        self.packed()
        self.edit_pack(GLIBC="99.1")
        write(self.stubs / "driver", "")
        parts = self.check("--quick")
        parts.pop("machine")
        for part in parts.values():
            self.assertRegex(part["reason"], r"this machine's glibc is 2\.\d+.* programs need 99.1")
        self.assertIn("Run it in a container with glibc 99.1 or newer", self.said)
        self.assertFalse((self.stubs / "environment-device_cuda_test").exists())

    def test_with_an_older_libstdcxx_starts_nothing_and_says_so(self):
        self.packed()
        self.edit_pack(GLIBCXX="3.9.99")
        self.assertIn("has no GLIBCXX_3.9.99", self.reason("look"))


class ADrive(unittest.TestCase):
    def test_is_measured_and_left_as_it_was(self):
        with tempfile.TemporaryDirectory() as folder:
            found = machine.drive_speed(folder, seconds=0.1, most_bytes=64 << 20)
            self.assertGreater(found["write_bytes_per_second"], 0)
            self.assertGreater(found["read_bytes_per_second"], 0)
            self.assertEqual(os.listdir(folder), [])

    def test_is_known_to_be_memory(self):
        self.assertEqual(machine.file_system("/proc/self"), "proc")
        self.assertNotEqual(machine.file_system("/"), "unknown")
        kinds = [machine.file_system(folder) for folder in ("/dev/shm", "/var/tmp")]
        if kinds[0] == "tmpfs" and kinds[1] != "tmpfs":
            self.assertNotEqual(machine.folder_on_a_drive("/dev/shm"), "/dev/shm")

    def test_sizes_the_model_or_says_why_there_is_none(self):
        def layers(rate, free_gib=100, memory_gib=100, memory_backed=False):
            drive = {"folder": "/x", "memory_backed": memory_backed, "free_bytes": free_gib * GIB,
                     "read_bytes_per_second": rate, "write_bytes_per_second": rate}
            return speed.layers_for(drive, memory_gib * GIB)
        self.assertEqual(layers(3e9)[0], 24)
        self.assertEqual(layers(1e9)[0], 8)
        self.assertEqual(layers(3e9, free_gib=14)[0], 16)
        self.assertEqual(layers(3e9, memory_gib=16, memory_backed=True)[0], 8)
        none, why = layers(0.1e9)
        self.assertIsNone(none)
        self.assertIn("0.10 GB/s read", why)
        self.assertIn("--memory-backed", why)


if __name__ == "__main__":
    unittest.main()
