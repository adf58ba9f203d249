# SPDX-License-Identifier: Apache-2.0
"""Configures and builds what tools/gpu_check runs, for this machine or for a pack."""
import os
import re
import subprocess

from gpu_check.check import Failed

TARGETS = ["device_cuda_test", "cuda_update_test", "cuda_exactness_test", "nccl_on_gpu_test",
           "headrace_program", "headrace_shared"]

# As ./check builds: a folder's sources are one, which takes half the time.
JOINED = ["-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0",
          "-DCMAKE_CXX_FLAGS=-Wno-subobject-linkage"]


def from_setup(root, script):
    """What scripts/setup.sh, which ./check goes by too, prints to `script`."""
    found = subprocess.run(
        ["bash", "-c", ". scripts/steps.sh; . scripts/setup.sh; " + script],
        cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return (found.stdout.strip().split("\n") or [""])[-1]


def toolkit(root):
    """The folder of this machine's CUDA toolkit, or of the one that ./check has fetched."""
    return from_setup(root, 'find_cuda; echo "$cuda_root"')


def linkable_torch(root):
    """Python's, or the one in the cache: to link against it takes no GPU part."""
    return from_setup(root, 'find_torch; echo "$torch_root"')


def configure_command(root, build, torch, architectures):
    cuda = toolkit(root)
    if not cuda:
        raise Failed("no CUDA toolkit: install one, or let ./check --leg release fetch it")
    command = ["cmake", "-S", root, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
               "-DHEADRACE_CUDA=ON", "-DHEADRACE_JOINED=ON", "-DHEADRACE_TORCH_ROOT=" + torch,
               "-DHEADRACE_CUDA_ROOT=" + cuda, *JOINED]
    return command + (["-DHEADRACE_CUDA_ARCHITECTURES=" + architectures] if architectures else [])


def build(check):
    has_gpu = os.path.exists("/dev/nvidia0") or os.path.exists("/dev/nvidiactl")
    folder = check.options.build
    check.run(configure_command(check.root, folder, check.torch, "native" if has_gpu else ""),
              "configure")
    check.run(["cmake", "--build", folder, "--target", *targets(folder, check.torch)], "build")
    return {"torch": check.torch, "architectures": "native" if has_gpu else "default"}


def targets(build_folder, torch):
    """All that there is for a GPU: newer checkouts have more of it."""
    more = [name for name in gpu_tests(build_folder, None) if name not in TARGETS]
    return TARGETS + more + (["train_gpt"] if torch else [])


def gpu_tests(build_folder, pack):
    """Test programs with CTest's label gpu; of a pack, all that it has."""
    if pack:
        return sorted(os.listdir(os.path.join(build_folder, "tests", "bin")))
    try:
        listed = subprocess.run(["ctest", "--test-dir", build_folder, "-N", "-L", "^gpu$"],
                                text=True, capture_output=True, check=False).stdout
    except OSError:
        return []
    return sorted(name for name in re.findall(r"Test +#\d+: (\w+)", listed)
                  if name != "gpu_check_test" and not name.endswith("_simulated_test"))


def cached(build_folder, name):
    """A variable of CMake's cache; "" where it is not set."""
    with open(os.path.join(build_folder, "CMakeCache.txt"), encoding="utf-8") as file:
        found = re.search(rf"^{name}:[A-Z]+=(.*)$", file.read(), re.MULTILINE)
    return found[1] if found else ""
