# SPDX-License-Identifier: Apache-2.0
"""scripts/find_torch.py on folders that look like torch."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CUDA_LIBRARIES = ("cublas", "cublasLt", "cudnn", "cufft", "cusolver", "cusparse", "nccl", "nvrtc",
                  "cusparseLt")
GUARD = "include/c10/cuda/impl/CUDAGuardImpl.h"


class FindTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, content in {
                "version.py": "__version__ = '2.11.0+cu130'\n",
                "include/torch/csrc/api/include/torch/torch.h": "",
                "include/ATen/ATen.h": "",
                GUARD: "void* getStreamNativeHandle(const Stream s) const override",
                "lib/libc10.so": "__cxx11",
                "lib/libtorch_cpu.so": pathlib.Path(sys.executable).resolve().read_bytes()[:64],
                "lib/libtorch_cuda.so": "",
                "lib/libcudart.so.13": "",
                "lib/libcupti.so.13": "",
        }.items():
            self.write(name, content)
        for library in CUDA_LIBRARIES:
            self.write(f"lib/lib{library}.so.1", "")

    def write(self, name, content):
        file = self.root / "torch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def find(self, *options):
        return subprocess.run([sys.executable, str(ROOT / "scripts" / "find_torch.py"), *options,
                               str(self.root)], capture_output=True, text=True, check=False)

    def test_a_whole_one_is_found(self):
        for options in ((), ("--gpu",)):
            found = self.find(*options)
            self.assertEqual((found.returncode, found.stdout), (0, f"{self.root}\n"), found.stderr)

    def test_for_a_gpu_the_adapter_needs_the_handle_of_a_stream(self):
        self.write(GUARD, "struct CUDAGuardImpl {};")
        self.assertEqual(self.find().returncode, 0)
        found = self.find("--gpu")
        self.assertEqual(found.returncode, 1)
        self.assertIn("2.11.0+cu130 has no getStreamNativeHandle in " + GUARD, found.stderr)

    def test_what_lacks_a_part_is_refused_by_its_name(self):
        (self.root / "torch/lib/libnccl.so.1").unlink()
        self.assertEqual(self.find().returncode, 0)
        self.assertIn("needs libnccl.so for its CUDA part", self.find("--gpu").stderr)
        self.write("version.py", "__version__ = '2.6.0'\n")
        self.assertIn("2.7 or newer is needed", self.find().stderr)


if __name__ == "__main__":
    unittest.main()
