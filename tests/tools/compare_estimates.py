#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`headrace estimate` against DeepSpeed's own functions: 60 settings, 8 rows each.

    pip download --no-deps --no-binary :all: deepspeed==0.19.8 && tar xzf deepspeed-0.19.8.tar.gz
    compare_estimates.py --headrace build/release/bin/headrace --deepspeed deepspeed-0.19.8

Needs neither torch nor an installed DeepSpeed: of its sources the two functions alone are run.
"""
import argparse
import ast
import itertools
import json
import pathlib
import subprocess
import sys

MODELS = ["gpt2-xl", "t5-3b", "llama-3-8b", "llama-3.1-405b", None]  # None: counts, odd ones
COUNTS = ["--parameters", "1234567891", "--largest-layer", "98765431"]
GPUS, NODES = [1, 4, 7, 8], [1, 3, 16]


def function_of(source, name):
    tree = ast.parse(source.read_text())
    tree.body = [node for node in tree.body
                 if isinstance(node, ast.FunctionDef) and node.name == name]
    space = {}
    exec(compile(tree, str(source), "exec"), space)  # noqa: S102
    return space[name]


def estimated(headrace, model, gpus, nodes):
    words = [headrace, "estimate"] + ([model] if model else COUNTS)
    words += ["--gpus", str(gpus), "--nodes", str(nodes), "--json", "-"]
    run = subprocess.run(words, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(words)}: {run.returncode}\n{run.stderr}")
    return json.loads(run.stdout)


def wanted(zero2, zero3, report, row):
    common = {"total_params": report["parameters"], "num_gpus_per_node": report["gpus_per_node"],
              "num_nodes": report["nodes"], "cpu_offload": row["offload_optimizer"] == "cpu",
              "additional_buffer_factor": report["buffer_factor"]}
    if row["stage"] == 2:
        return zero2(**common)
    return zero3(**common, largest_layer_params=report["largest_layer_parameters"],
                 cpu_offload_params=row["offload_param"] == "cpu", zero_init=row["zero_init"])[:2]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headrace", required=True)
    parser.add_argument("--deepspeed", required=True, type=pathlib.Path, help="its source folder")
    options = parser.parse_args()
    zero = options.deepspeed / "deepspeed/runtime/zero"
    zero2 = function_of(zero / "stage_1_and_2.py", "estimate_zero2_model_states_mem_needs")
    zero3 = function_of(zero / "stage3.py", "estimate_zero3_model_states_mem_needs")
    rows, most = 0, 0.0
    for model, gpus, nodes in itertools.product(MODELS, GPUS, NODES):
        report = estimated(options.headrace, model, gpus, nodes)
        for row in report["deepspeed"]:
            if row.get("versions", "").startswith("to "):
                continue  # what it had before
            ours = row["host_bytes_per_node"], row["bytes_per_gpu"]
            theirs = wanted(zero2, zero3, report, row)
            off = max(abs(a - b) for a, b in zip(ours, theirs))
            rows, most = rows + 1, max(most, off)
            # Theirs are cut to whole bytes, each term for itself, of numbers up to 2^46.
            if off > 1.1:
                sys.exit(f"{model} on {nodes} x {gpus}: {row['formula']}: {ours}, not {theirs}")
    if rows != 480:
        sys.exit(f"{rows} rows, and 480 are wanted")
    version = (options.deepspeed / "version.txt").read_text().strip()
    print(f"{rows} rows equal to DeepSpeed {version}, to {most:.2f} bytes")


if __name__ == "__main__":
    main()
