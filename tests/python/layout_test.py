# SPDX-License-Identifier: Apache-2.0
"""layout_test.py COMPILER FOLDER: _c.py is what generate_c.py writes of headrace/c.h, and what a C
compiler makes of that header: sizes, offsets, numbers, and the effect of each _init()."""
import ctypes
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
GENERATOR = ROOT / "python/tools/generate_c.py"
HEADER = (ROOT / "include/headrace/c.h").read_text(encoding="utf-8")


def loaded(path):
    spec = importlib.util.spec_from_file_location("loaded_" + path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


c = loaded(ROOT / "python/headrace/_c.py")
NUMBERS = sorted(name for name in vars(c) if name.startswith("HEADRACE_"))
STRUCTS = {struct.__name__: struct for struct in c.STRUCTS}
INITS = sorted(name for name in STRUCTS if f" {name}_init(" in HEADER and name != "headrace_error")


def program():
    yield "#include <headrace/c.h>\n#include <stdio.h>\n#include <string.h>\n"
    yield "int main(void) {\n printf(\"{\");\n"
    for name in NUMBERS:
        yield f' printf("\\"{name}\\":%lld,", (long long){name});\n'
    for name, struct in STRUCTS.items():
        yield f' printf("\\"{name}\\":%zu,", sizeof({name}));\n'
        for field, *_ in struct._fields_:
            yield (f' printf("\\"{name}.{field}\\":[%zu,%zu],", offsetof({name}, {field}), '
                   f'sizeof((({name}*)0)->{field}));\n')
    for name in INITS:
        yield (f" {{ {name} s; size_t i; memset(&s, 0, sizeof s); {name}_init(&s);"
               f' printf("\\"{name}_init\\":\\"");'
               ' for (i = 0; i < sizeof s; ++i) printf("%02x", ((unsigned char*)&s)[i]);'
               ' printf("\\","); }\n')
    yield ' printf("\\"end\\":0}");\n return 0;\n}\n'


def facts_of_the_compiler():
    with tempfile.TemporaryDirectory() as folder:
        source, binary = pathlib.Path(folder, "facts.c"), pathlib.Path(folder, "facts")
        source.write_text("".join(program()), encoding="utf-8")
        subprocess.run([*COMPILER, "-x", "c", "-std=c99", f"-I{ROOT / 'include'}", source, "-o",
                        binary], check=True)
        return json.loads(subprocess.run([binary], check=True, capture_output=True).stdout)


class Layout(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.facts = facts_of_the_compiler()

    def test_the_file_is_what_the_generator_writes(self):
        done = subprocess.run([sys.executable, GENERATOR, "--check", ROOT], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_older_file_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("include/headrace/c.h", "python/headrace/_c.py"):
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True)
                path.write_text((ROOT / name).read_text(encoding="utf-8").replace(
                    "HEADRACE_FAILED = 14", "HEADRACE_FAILED = 15", name.endswith(".h")),
                    encoding="utf-8")
            done = subprocess.run([sys.executable, GENERATOR, "--check", folder],
                                  capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("run python/tools/generate_c.py", done.stderr)

    def test_numbers_equal_those_of_the_compiler(self):
        self.assertGreater(len(NUMBERS), 25)
        for name in NUMBERS:
            self.assertEqual(getattr(c, name), self.facts[name], name)

    def test_sizes_and_offsets_equal_those_of_the_compiler(self):
        self.assertGreater(len(STRUCTS), 12)
        for name, struct in STRUCTS.items():
            self.assertEqual(ctypes.sizeof(struct), self.facts[name], name)
            for field, *_ in struct._fields_:
                found = getattr(struct, field)
                self.assertEqual([found.offset, found.size], self.facts[f"{name}.{field}"],
                                 f"{name}.{field}")

    def test_new_structs_have_the_bytes_that_init_gives(self):
        self.assertGreater(len(INITS), 8)
        for name in INITS:
            struct = STRUCTS[name]
            made = struct(struct_size=ctypes.sizeof(struct), **struct.defaults)
            self.assertEqual(bytes(made).hex(), self.facts[name + "_init"], name)

    def test_every_struct_and_function_of_the_header_is_there(self):
        for name in set(re.findall(r"\} (headrace_\w+);", HEADER)):
            self.assertIn(name, STRUCTS)
        for name in set(re.findall(r"\b(headrace_\w+)\(", HEADER)):
            if not name.endswith("_init") and f"(*{name})" not in HEADER:
                self.assertIn(name, c.FUNCTIONS)


if __name__ == "__main__":
    COMPILER = sys.argv[1:-1]
    unittest.main(argv=sys.argv[:1])
