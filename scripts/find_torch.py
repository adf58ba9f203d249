# SPDX-License-Identifier: Apache-2.0
"""Says whether a torch can be linked against, without importing it (which takes seconds).

    find_torch.py [--gpu]         looks at the torch of the Python that runs this
    find_torch.py [--gpu] FOLDER  looks at FOLDER/torch
                  --gpu           also for its CUDA part and the packages that that needs

Prints the folder that holds torch/ and ends 0; else says why not on stderr and ends 1.
"""
import glob
import importlib.util
import os
import re
import sys

OLDEST = (2, 7)  # the first whose wheels all have the new C++ ABI
# Asked of torch's CUDA part by the adapter (include/headrace/torch): older ones compile, and throw
# at the first call.
CUDA_GUARD = "include/c10/cuda/impl/CUDAGuardImpl.h"
CUDA_GUARD_HAS = "getStreamNativeHandle"


def refuse(why):
    print(why, file=sys.stderr)
    sys.exit(1)


def installed_root():
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        refuse(f"{sys.executable} has no torch")
    return os.path.dirname(os.path.dirname(os.path.realpath(spec.origin)))


def version_of(root):
    with open(os.path.join(root, "torch", "version.py"), encoding="utf-8") as file:
        found = re.search(r"__version__\s*=\s*['\"](\d+)\.(\d+)([^'\"]*)", file.read())
    if not found:
        refuse(f"{root}/torch/version.py names no version")
    return (int(found[1]), int(found[2])), f"{found[1]}.{found[2]}{found[3]}"


def require_gpu_part(root, text):
    """libtorch_cuda.so and the largest of what it links."""
    if not os.path.isfile(os.path.join(root, "torch", "lib", "libtorch_cuda.so")):
        refuse(f"{root}/torch {text} has no CUDA part")
    with open(os.path.join(root, "torch", CUDA_GUARD), encoding="utf-8") as file:
        if CUDA_GUARD_HAS not in file.read():
            refuse(f"{root}/torch {text} has no {CUDA_GUARD_HAS} in {CUDA_GUARD}, so its CUDA "
                   "streams cannot be shared; torch 2.11 has it")
    for name in ("libcublas.so", "libcublasLt.so", "libcudnn.so", "libcufft.so", "libcusolver.so",
                 "libcusparse.so", "libnccl.so", "libnvrtc.so", "libcusparseLt.so"):
        places = [f"{root}/nvidia/*/lib/{name}*", f"{root}/*/lib/{name}*",
                  f"{root}/torch/lib/{name}*"]
        if not any(glob.glob(place) for place in places):
            refuse(f"{root}/torch {text} needs {name} for its CUDA part, which is not here")


def main():
    words = [word for word in sys.argv[1:] if word != "--gpu"]
    root = words[0] if words else installed_root()
    needed = ["version.py", "include/torch/csrc/api/include/torch/torch.h",
              "include/ATen/ATen.h", "lib/libtorch_cpu.so", "lib/libc10.so"]
    for name in needed:
        if not os.path.isfile(os.path.join(root, "torch", name)):
            refuse(f"{root}/torch has no {name}")
    number, text = version_of(root)
    if number < OLDEST:
        refuse(f"{root}/torch is {text}; {OLDEST[0]}.{OLDEST[1]} or newer is needed")
    with open(os.path.join(root, "torch", "lib", "libc10.so"), "rb") as file:
        if b"__cxx11" not in file.read():
            refuse(f"{root}/torch {text} has the C++ ABI from before gcc 5")
    with open(os.path.join(root, "torch", "lib", "libtorch_cpu.so"), "rb") as file:
        head = file.read(20)
    machine = {"x86_64": 62, "aarch64": 183}.get(os.uname().machine)
    if machine is not None and int.from_bytes(head[18:20], "little") != machine:
        refuse(f"{root}/torch {text} is built for another processor than {os.uname().machine}")
    # A CUDA build of the CPU library links two CUDA libraries, which come in packages of their own.
    if glob.glob(os.path.join(root, "torch", "lib", "libtorch_cuda.so")):
        for name in ("libcudart.so", "libcupti.so"):
            places = [f"{root}/nvidia/*/lib/{name}*", f"{root}/torch/lib/{name}*",
                      f"{sys.prefix}/lib/{name}*"]
            if not any(glob.glob(place) for place in places):
                refuse(f"{root}/torch {text} needs {name}, which does not lie beside it")
    if "--gpu" in sys.argv[1:]:
        require_gpu_part(root, text)
    print(root)


main()
