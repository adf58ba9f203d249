# SPDX-License-Identifier: Apache-2.0
"""Opens checkpoints with the package safetensors, which did not write them.

    safetensors_test.py CHECKPOINT_TEST    the test program that leaves the folders

Ends 77, which CTest lists as skipped, where safetensors or numpy is missing.
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    from safetensors import safe_open
    from safetensors.numpy import load_file
except ImportError as error:
    print(f"skipped: {error}; to run it: pip install safetensors numpy")
    sys.exit(77)


def expect(actual, expected, what):
    if actual != expected:
        sys.exit(f"{what}: {actual} instead of {expected}")


def check_values(folder):
    model = load_file(folder + "/model.safetensors")
    state = load_file(folder + "/optimizer.safetensors")
    print({name: (str(t.dtype), t.tolist()) for name, t in {**model, **state}.items()})
    expect(sorted(model), ["w"], "names of weights")
    expect(sorted(state), ["exp_avg.w", "exp_avg_sq.w", "master.w", "step.w"], "names of states")
    expect((str(state["step.w"].dtype), state["step.w"].tolist()), ("int64", 0), "step.w")
    values = numpy.arange(6, dtype=numpy.float32).reshape(2, 3) + numpy.float32(0.5)
    for tensor in model["w"], state["master.w"]:
        expect((str(tensor.dtype), tensor.tolist()), ("float32", values.tolist()), "weight")
    for name in "exp_avg.w", "exp_avg_sq.w":
        expect(state[name].tolist(), numpy.zeros((2, 3)).tolist(), name)


def check_trained(folder):
    """bf16, which numpy lacks: shapes and dtypes as the manifest has them, masters beside them."""
    with open(folder + "/manifest.json", encoding="utf-8") as file:
        parameters = json.loads(file.readline())["parameters"]
    with safe_open(folder + "/model.safetensors", "numpy") as model:
        expect(sorted(model.keys()), sorted(p["name"] for p in parameters), "names of weights")
        for p in parameters:
            piece = model.get_slice(p["name"])
            expect((piece.get_dtype(), piece.get_shape()), (p["dtype"], p["shape"]), p["name"])
    state = load_file(folder + "/optimizer.safetensors")
    for p in parameters:
        master = state["master." + p["name"]]
        expect((str(master.dtype), list(master.shape)), ("float32", p["shape"]), p["name"])
    if not any(state["exp_avg." + p["name"]].any() for p in parameters):
        sys.exit("a trained run has moments of zeros only")
    print(f"{len(parameters)} weights and {len(state)} tensors of state read")


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "--gtest_filter=CheckpointExample.LeavesFoldersForOtherPrograms"],
                       env={**os.environ, "HEADRACE_CHECKPOINT_FOLDER": folder}, check=True,
                       stdout=subprocess.DEVNULL)
        check_values(folder + "/values")
        check_trained(folder + "/trained")


if __name__ == "__main__":
    main(sys.argv[1])
