# SPDX-License-Identifier: Apache-2.0
"""wheel_test.py SOURCES BUILD FOLDER: makes the wheel of what is built, installs it into an empty
environment, and uses it there as who has nothing else of headrace."""
import importlib.util
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest

MOST_BYTES = 8 << 20
TORCH = importlib.util.find_spec("torch")
FIVE_LINES = textwrap.dedent("""
    import sys, torch, headrace.torch
    model = torch.nn.Linear(64, 64)
    optimizer = headrace.torch.AdamW(model.parameters(), lr=1e-3, nvme=".")
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    assert optimizer.stats(), "no engine"
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model, optimizer = headrace.offload(model, nvme=".")
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.close()
    """)
ENGINE = textwrap.dedent("""
    import array, sys
    import headrace
    assert "torch" not in sys.modules and "numpy" not in sys.modules
    with headrace.Engine(nvme=".") as engine:
        group = engine.add_group("g", {"w": ((4,), "f32")})
        engine.freeze()
        group.load({"w": array.array("f", (1, 2, 3, 4))})
        engine.add_gradient("g.w", array.array("f", (1, 1, 1, 1)))
        engine.step(0.5)
        print([round(value, 4) for value in engine.store("g.w", "weight")])
    print(headrace.__file__)
    """)


def run(*command, where, **environment):
    """Its output; nothing of this test's environment names headrace."""
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("HEADRACE_", "PYTHON"))}
    done = subprocess.run(command, cwd=where, env={**clean, **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n"
                             + done.stdout)
    return done.stdout


class Wheel(unittest.TestCase):
    """One wheel for all cases: it takes seconds to make."""

    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory(dir=FOLDER)
        cls.addClassCleanup(cls.place.cleanup)
        cls.folder = pathlib.Path(cls.place.name)
        packages = os.environ.get("PYTHONPATH", "")
        # pip's own build environment would come from the network.
        run(sys.executable, "-m", "pip", "wheel", SOURCES, "--no-deps", "--no-build-isolation",
            "--wheel-dir", "made", where=cls.folder, HEADRACE_BUILT=BUILD, PYTHONPATH=packages)
        tools = ":".join(path + "/bin" for path in packages.split(":") if path)
        made, = (cls.folder / "made").glob("*.whl")
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", "dist", made,
            where=cls.folder, PYTHONPATH=packages, PATH=tools + ":" + os.environ["PATH"])
        cls.wheel, = (cls.folder / "dist").glob("*.whl")
        run(sys.executable, "-m", "venv", "--without-pip", "env", where=cls.folder)
        cls.bin = cls.folder / "env/bin"
        run(sys.executable, "-m", "pip", "--python", cls.bin / "python", "install", "--no-index",
            cls.wheel, where=cls.folder)
        cls.elsewhere = cls.folder / "elsewhere"
        cls.elsewhere.mkdir()

    def inside(self, *command, **environment):
        return run(self.bin / command[0], *command[1:], where=self.elsewhere, **environment)

    def test_serves_every_python_and_old_systems(self):
        name = re.fullmatch(r"headrace-[0-9.]+-py3-none-manylinux_2_(\d+)_x86_64\.whl",
                            self.wheel.name)
        self.assertIsNotNone(name, self.wheel.name)
        here = int(platform.libc_ver()[1].split(".")[1])
        self.assertLessEqual(int(name[1]), 34 if here <= 36 else here)

    def test_is_small(self):
        self.assertLess(self.wheel.stat().st_size, MOST_BYTES)

    def test_shows_the_c_interface_alone(self):
        shown = run("nm", "-D", "--defined-only", BUILD + "/wheel/libheadrace.so", where=FOLDER)
        names = {line.split()[-1] for line in shown.splitlines() if " A " not in line}
        self.assertIn("headrace_engine_create", {name.split("@")[0] for name in names})
        self.assertEqual([name for name in names if not name.startswith("headrace_")], [])

    def test_brings_the_program(self):
        version = self.inside("headrace", "--version")
        self.assertIn("headrace", version)
        self.assertEqual(self.inside("python", "-m", "headrace", "--version"), version)
        self.assertIn("O_DIRECT", self.inside("python", "-m", "headrace", "doctor", "."))

    def test_brings_the_reports(self):
        self.assertIn("compare A.json B.json",
                      self.inside("python", "-m", "headrace", "report", "--help"))
        with self.assertRaisesRegex(AssertionError, "exit 2\n.*none.json"):
            self.inside("python", "-m", "headrace", "report", "compare", "none.json", "none.json")

    def test_trains_with_nothing_else_installed(self):
        output = self.inside("python", "-c", ENGINE).splitlines()
        self.assertEqual(output[0], "[0.495, 1.49, 2.485, 3.48]")
        self.assertIn(str(self.bin.parent), output[1])
        self.assertEqual(list(self.elsewhere.iterdir()), [])

    def test_is_removed_without_a_rest(self):
        inside = "import headrace, os; print(os.path.dirname(headrace.__file__))"
        package = pathlib.Path(self.inside("python", "-B", "-c", inside).strip())
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python")
        run(*pip, "uninstall", "--yes", "headrace", where=self.folder)
        try:
            left = [path for path in package.rglob("*") if path.suffix not in ("", ".pyc")]
            self.assertEqual(left, [])
            self.assertFalse((self.bin / "headrace").exists())
        finally:
            run(*pip, "install", "--no-index", self.wheel, where=self.folder)

    @unittest.skipIf(TORCH is None, "torch is not installed")
    def test_serves_torch(self):
        packages = str(pathlib.Path(TORCH.origin).parents[1]) if TORCH else ""
        self.inside("python", "-c", FIVE_LINES, PYTHONPATH=packages)
        self.assertEqual(list(self.elsewhere.iterdir()), [])

    @unittest.skipIf(TORCH is None, "torch is not installed")
    def test_reaches_deepspeed_where_it_is_asked_to(self):
        packages = str(pathlib.Path(TORCH.origin).parents[1]) if TORCH else ""
        code = "import sys, torch; print('headrace.deepspeed' in sys.modules)"
        for wanted, there in (("0", "False"), ("1", "True"), ("engine", "True")):
            output = self.inside("python", "-c", code, PYTHONPATH=packages,
                                 HEADRACE_DEEPSPEED=wanted)
            self.assertEqual(output.strip(), there)
        with self.assertRaisesRegex(AssertionError, "HEADRACE_DEEPSPEED is 'yes'"):
            self.inside("python", "-c", code, PYTHONPATH=packages, HEADRACE_DEEPSPEED="yes")


if __name__ == "__main__":
    SOURCES, BUILD, FOLDER = (os.path.abspath(path) for path in sys.argv[1:4])
    for module in ("pip", "venv", "scikit_build_core", "auditwheel"):
        if importlib.util.find_spec(module) is None:
            print(f"{module} is not installed")
            sys.exit(77)
    unittest.main(argv=sys.argv[:1])
