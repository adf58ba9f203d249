# SPDX-License-Identifier: Apache-2.0
"""Trains the reference trainer on each kind of CPU that this one can pretend to be.

    cpu_kinds.py --program TRAIN_GPT --scratch DIR [--torch-tests PROGRAM]

A kind is what LibTorch's own loops are compiled for (ATEN_CPU_CAPABILITY), what its libraries of
products may use (ONEDNN_MAX_CPU_ISA, MKL_ENABLE_INSTRUCTIONS), and what Headrace's loops may use
(HEADRACE_SIMD). Within a kind the run on NVMe has to give the bits of the run in memory, and kinds
that differ in HEADRACE_SIMD alone have to give the same bits. Between other kinds bits may differ:
LibTorch sums in another order. Prints a row per kind, those that this CPU cannot pretend to be
among them, and ends 1 where one failed.
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

# What each level asks of the CPU, in the words of /proc/cpuinfo.
ATEN = {"default": [], "avx2": ["avx2", "fma"],
        "avx512": ["avx512f", "avx512bw", "avx512dq", "avx512vl"]}
ONEDNN = {"SSE41": ["sse4_1"], "AVX2": ["avx2"], "AVX512_CORE": ATEN["avx512"],
          "AVX512_CORE_BF16": ["avx512_bf16"], "AVX512_CORE_AMX": ["amx_bf16", "amx_int8"]}
MKL = {"SSE4_2": ["sse4_2"], "AVX2": ["avx2"]}
SIMD = {"scalar": [], "avx2": ["avx2", "fma", "f16c"], "avx512": ATEN["avx512"]}
KINDS = (
    [{"ATEN_CPU_CAPABILITY": level} for level in ATEN] +
    [{"ONEDNN_MAX_CPU_ISA": level} for level in ONEDNN] +
    [{"ATEN_CPU_CAPABILITY": level, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"} for level in ATEN] +
    [{"MKL_ENABLE_INSTRUCTIONS": level} for level in MKL] +
    [{"HEADRACE_SIMD": level} for level in SIMD])
PRODUCTS = {"AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_AMX"}  # bf16's own are tried there too
MODEL = ("--no-progress --layers 2 --hidden 64 --heads 2 --seq 32 --batch 2 --steps 4 "
         "--eval-batches 1 --seed 1").split()
# The adapter's own core: that it trains as torch does, in and out of memory.
TORCH_CORE = "*/Training.*:*/OffloadTypes.*:*/InPlace.*:LinearInF32.*"


def cpu_flags():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((set(line.split(":", 1)[1].split()) for line in file
                     if line.startswith("flags")), set())


def lacking(kind, flags):
    tables = {"ATEN_CPU_CAPABILITY": ATEN, "ONEDNN_MAX_CPU_ISA": ONEDNN,
              "MKL_ENABLE_INSTRUCTIONS": MKL, "HEADRACE_SIMD": SIMD}
    return [need for key, level in kind.items() for need in tables[key][level]
            if need not in flags]


def settings(place, folder):
    if place == "memory":
        return []
    words = ["zero_optimization.stage=3", "headrace.allow_memory_backed=true"]
    for part in ["optimizer", "param"]:
        key = f"zero_optimization.offload_{part}"
        words += [f"{key}.device=nvme", f"{key}.nvme_path={folder}"]
    return [word for setting in words for word in ("--set", setting)]


def run(program, kind, place, folder, text, products):
    report = folder / "report.json"
    ran = subprocess.run(
        [program, *MODEL, "--text", text, "--json", report, "--products", products,
         *settings(place, folder)],
        env={**clean_environment(), **kind}, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"{place}: exit {ran.returncode}: {ran.stderr.strip()[-400:]}")
    return json.loads(report.read_text(encoding="utf-8"))


def clean_environment():
    known = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "HEADRACE_SIMD",
             "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"}
    return {name: value for name, value in os.environ.items() if name not in known}


class Faults(list):
    def add(self, where, what):
        self.append(where)
        print(f"FAILED {where}: {what}", flush=True)


def name_of(kind):
    return " ".join(f"{key}={value}" for key, value in kind.items()) or "as it is"


def train(program, kind, folder, text, products, faults):
    """The hashes of the run in memory; None where something failed, which is said."""
    where = f"{name_of(kind)} --products {products}"
    try:
        nvme, memory = (run(program, kind, place, folder, text, products)
                        for place in ("nvme", "memory"))
    except (RuntimeError, OSError, ValueError) as error:
        faults.add(where, error)
        return None
    if nvme["hash"] != memory["hash"]:
        faults.add(where, f"on NVMe {nvme['hash']}, in memory {memory['hash']}")
    if products != "auto" and memory["options"]["products_in"] != products:
        faults.add(where, f"products in {memory['options']['products_in']}")
    if nvme["steps"][-1]["nvme_read_bytes"] == 0:
        faults.add(where, "the run on NVMe read nothing from there")
    print(f"  identical  {where}: {memory['hash']['parameters'][:8]}, "
          f"products in {memory['options']['products_in']}", flush=True)
    return memory["hash"]


def check_torch(program, kind, faults):
    ran = subprocess.run([program, f"--gtest_filter={TORCH_CORE}"], capture_output=True, text=True,
                         env={**clean_environment(), **kind, "OMP_NUM_THREADS": "1"}, check=False)
    passed = re.search(r"\[  PASSED  \] (\d+) tests?", ran.stdout)
    if ran.returncode != 0 or not passed or int(passed[1]) == 0:
        faults.add(f"{name_of(kind)}, LibTorch's tests", ran.stdout[-2000:] + ran.stderr[-400:])
    else:
        print(f"  {passed[1]} passed  {name_of(kind)}, LibTorch's tests", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--torch-tests")
    options = parser.parse_args()
    flags, faults, ran = cpu_flags(), Faults(), 0
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cpu-kinds-", dir=options.scratch))
    try:
        text = folder / "text.txt"
        text.write_text("".join(f"line {i}: {i * i % 977}\n" for i in range(3000)),
                        encoding="utf-8")
        of_simd = {}
        for kind in [{}, *KINDS]:
            need = lacking(kind, flags)
            if need:
                print(f"  not here   {name_of(kind)}: this CPU lacks {' '.join(need)}", flush=True)
                continue
            ran += 1
            hashes = train(options.program, kind, folder, text, "auto", faults)
            if hashes and set(kind) <= {"HEADRACE_SIMD"}:
                of_simd[name_of(kind)] = hashes
            if kind.get("ONEDNN_MAX_CPU_ISA") in PRODUCTS:
                for products in ["bf16", "f32"]:
                    train(options.program, kind, folder, text, products, faults)
            if "MKL_ENABLE_INSTRUCTIONS" in kind:  # multiplies f32 alone
                train(options.program, kind, folder, text, "f32", faults)
            if options.torch_tests and set(kind) == {"ATEN_CPU_CAPABILITY"}:
                check_torch(options.torch_tests, kind, faults)
        if len({json.dumps(hashes) for hashes in of_simd.values()}) > 1:
            faults.add("HEADRACE_SIMD", f"kinds differ: {of_simd}")
    finally:
        shutil.rmtree(folder)
    print(f"{ran} kinds run, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
