# SPDX-License-Identifier: Apache-2.0
"""capped_building_test.py FOLDER: a model of three times the memory that its process may use is
made within headrace.building(), offloaded, and trained for a step, or converted to another dtype.
FOLDER lies on a drive."""
import contextlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zlib

sys.dont_write_bytecode = True
os.environ["OMP_NUM_THREADS"] = "1"
if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)
import torch  # noqa: E402

import headrace  # noqa: E402
import headrace.torch  # noqa: E402

WIDTH, LAYERS = 2048, 97
CAP_MIB = 512
CAP = pathlib.Path(__file__).parents[2] / "tools/bench/memory_cap.sh"


class Layer(torch.nn.Module):
    """Weights that are frozen, and biases that are trained: gradients lie in memory."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        torch.nn.init.normal_(self.linear.weight, std=0.02)
        self.linear.weight.requires_grad_(False)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


def checksums(model):
    found = []
    for layer in model:
        with headrace.gathered(layer):
            found += [zlib.crc32(one.detach().view(torch.uint8).numpy())
                      for one in layer.parameters()]
    return zlib.crc32(repr(found).encode())


def child(folder, what):
    torch.manual_seed(0)
    with headrace.building(folder) if folder else contextlib.nullcontext():
        model = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
    if what == "convert":
        print("values", checksums(model.bfloat16()), checksums(model.float()))
    else:
        train(model, folder)


def train(model, folder):
    before = checksums(model)
    if folder:
        model, optimizer = headrace.offload(model, nvme=folder, lr=1e-2)
    else:
        optimizer = headrace.torch.AdamW(
            [one for one in model.parameters() if one.requires_grad], lr=1e-2)
    x = torch.ones(2, WIDTH)
    for layer in model:
        x = layer(x)
    x.square().mean().backward()
    optimizer.step()
    print("values", before, checksums(model), x.sum().item())
    if folder:
        optimizer.close()


def run(before, folder, what="train"):
    return subprocess.run([*before, sys.executable, __file__, "--child", folder, what], check=False,
                          capture_output=True, text=True, timeout=500)


class Building(unittest.TestCase):
    def test_trains_under_a_cap_of_a_third_of_the_model_with_the_values_of_one_in_memory(self):
        self.assertGreaterEqual(LAYERS * 4 * WIDTH**2, 3 * CAP_MIB << 20)
        self.assert_same_under_the_cap("train")
        self.assertEqual(run([CAP, str(CAP_MIB)], "").returncode, 137)  # killed

    def test_converts_under_the_same_cap(self):
        self.assert_same_under_the_cap("convert")

    def assert_same_under_the_cap(self, what):
        expected = run([], "", what)
        self.assertEqual(expected.returncode, 0, expected.stderr[-2000:])
        self.assertRegex(expected.stdout, r"^values \d+ \d+")
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            capped = run([CAP, str(CAP_MIB)], folder, what)
        self.assertEqual(capped.returncode, 0, capped.stderr[-2000:])
        self.assertEqual(capped.stdout, expected.stdout)


def main():
    global FOLDER
    if sys.argv[1] == "--child":
        return child(*sys.argv[2:])
    if os.geteuid() != 0 or subprocess.run([CAP, str(CAP_MIB), "true"], check=False,
                                           capture_output=True).returncode != 0:
        print("memory_cap.sh needs root and the memory controller of control groups")
        sys.exit(77)
    FOLDER = os.path.abspath(sys.argv[1])
    return unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
