# SPDX-License-Identifier: Apache-2.0
"""Each check of tidy.py finds the fault it is for, and leaves the right thing alone."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import clang_tidy  # noqa: E402
import tidy  # noqa: E402

LICENCE = "// " + tidy.LICENCE + "\n"


class Tree(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def text_faults(self):
        return list(tidy.text_faults(self.root))

    def assert_one(self, expected):
        found = self.text_faults()
        self.assertEqual(len(found), 1, found)
        self.assertIn(expected, found[0])


class TypesOfTheProgram(Tree):
    def test_one_name_for_two_types_fails(self):
        self.write("tools/headrace/a/a.hpp", f"// {tidy.LICENCE}\nstruct Row {{\n  int a;\n}};\n")
        self.write("tools/headrace/b/b.hpp", f"// {tidy.LICENCE}\nclass Row final {{\n}};\n")
        self.assert_one("tools/headrace/b/b.hpp:2: Row is another type in tools/headrace/a/a.hpp")

    def test_declared_again_and_in_other_programs_passes(self):
        self.write("tools/headrace/a/a.hpp", f"// {tidy.LICENCE}\nstruct Row {{\n}};\n")
        self.write("tools/headrace/b/b.hpp", f"// {tidy.LICENCE}\nstruct Row;\n")
        self.write("tools/bench/c.hpp", f"// {tidy.LICENCE}\nstruct Row {{\n}};\n")
        self.assertEqual(self.text_faults(), [])


class Includes(Tree):
    def test_downward_include_passes(self):
        self.write("src/swap/a.cpp", LICENCE + '#include "base/units.hpp"\n#include "own.hpp"\n')
        self.assertEqual(self.text_faults(), [])

    def test_upward_include_fails(self):
        self.write("src/base/a.cpp", LICENCE + '#include "swap/record.hpp"\n')
        self.assert_one("src/base/a.cpp:2: includes swap/record.hpp: swap comes after base")

    def test_unknown_room_fails(self):
        self.write("src/utils/a.cpp", LICENCE + "#include <vector>\n")
        self.assert_one("utils is not in the list of rooms")

    def test_torch_in_a_room_fails(self):
        self.write("src/engine/a.cpp", LICENCE + "#include <ATen/ATen.h>\n")
        self.assert_one("may include torch")

    def test_torch_in_the_adapter_passes(self):
        self.write("include/headrace/torch/a.hpp", LICENCE + "#include <torch/torch.h>\n")
        self.assertEqual(self.text_faults(), [])

    def test_library_in_a_public_header_fails(self):
        self.write("include/headrace/a.hpp", LICENCE + "#include <liburing.h>\n")
        self.assert_one("only the standard library")

    def test_room_in_a_public_header_fails(self):
        self.write("examples/a.cpp", LICENCE + '#include "base/units.hpp"\n')
        self.assert_one("the room base is not public")


class Functions(Tree):
    def function(self, lines):
        return LICENCE + "int f(int a) {\n" + "  ++a;\n" * (lines - 2) + "}\n"

    def test_of_forty_lines_passes(self):
        self.write("src/base/a.cpp", self.function(40))
        self.write("tests/base/a_test.cpp", self.function(60))
        self.assertEqual(self.text_faults(), [])

    def test_of_more_fails(self):
        self.write("src/base/a.cpp", self.function(20) + self.function(41).split("\n", 1)[1])
        self.assert_one("src/base/a.cpp:22: a function of 41 lines, at most 40")


class Rooms(Tree):
    def table(self, rooms):
        return "| room | holds |\n|---|---|\n" + "".join(f"| `{r}` | x |\n" for r in rooms)

    def test_as_cmake_lists_them_pass(self):
        self.write("docs/architecture.md", self.table(tidy.ROOMS))
        self.assertEqual(self.text_faults(), [])

    def test_in_another_order_fail(self):
        self.write("docs/architecture.md", self.table(tidy.ROOMS[1:] + tidy.ROOMS[:1]))
        self.assert_one("docs/architecture.md: its rooms are")


class Threads(Tree):
    TABLE = "  | `headrace-io<n>` | reads |\n  | `headrace-cuda`, `headrace-sum<n>` | x |\n"
    CODE = ('  start_thread("headrace-io" + std::to_string(i), f);\n'
            '  start_thread(\n      "headrace-cuda", f);\n')

    def test_that_the_page_lists_pass(self):
        self.write("docs/architecture.md", self.TABLE)
        self.write("src/swap/a.cpp", LICENCE + self.CODE + 'start_thread("headrace-sum" + i, f);\n')
        self.assertEqual(self.text_faults(), [])

    def test_of_a_team_are_started_by_its_name(self):
        self.write("docs/architecture.md", self.TABLE)
        self.write("src/swap/a.cpp", LICENCE + self.CODE + 'team_(8, {.name = "headrace-sum"});\n')
        self.assertEqual(self.text_faults(), [])

    def test_that_the_page_lacks_fail(self):
        self.write("docs/architecture.md", self.TABLE)
        self.write("src/swap/a.cpp", LICENCE + self.CODE + 'start_thread("headrace-sum" + i, f);\n'
                   'start_thread("headrace-new", f);\n')
        self.assert_one("the thread headrace-new is in no table")

    def test_that_the_code_lacks_fail(self):
        self.write("docs/architecture.md", self.TABLE)
        self.write("src/swap/a.cpp", LICENCE + self.CODE)
        self.assert_one("the thread headrace-sum<n> is started nowhere")

    def test_of_public_headers_that_the_page_lacks_fail(self):
        self.write("docs/architecture.md", "  | `headrace-a` | x |\n")
        self.write("include/headrace/a.hpp",
                   LICENCE + 'constexpr std::array kThreads = {"headrace-a",\n "headrace-b"};\n')
        self.assert_one("the thread headrace-b is in no table")


class Labels(Tree):
    def test_of_rooms_and_of_the_page_pass(self):
        self.write("CONTRIBUTING.md", "`slow` and `torch`: `ctest -LE 'slow'`\n")
        self.write("tests/a/CMakeLists.txt", "# " + tidy.LICENCE + "\n"
                   'headrace_test(NAME a LABELS swap)\nf(PROPERTIES LABELS "slow;torch")\n')
        self.assertEqual(self.text_faults(), [])

    def test_that_the_page_lacks_fail(self):
        self.write("CONTRIBUTING.md", "Nothing.\n")
        self.write("tests/a/CMakeLists.txt", "# " + tidy.LICENCE + "\nf(NAME a LABELS slow)\n")
        self.assert_one("CONTRIBUTING.md: does not name `slow`, a label of tests")

    def test_that_no_test_has_fail(self):
        self.write("CONTRIBUTING.md", "`slow`: `ctest -LE 'slow|old'`\n")
        self.write("tests/a/CMakeLists.txt", "# " + tidy.LICENCE + "\nf(NAME a LABELS slow)\n")
        self.assert_one("CONTRIBUTING.md: no test has the label old")


class ClangTidy(unittest.TestCase):
    def test_reads_each_source_of_the_library_once_without_flags_of_gcc(self):
        def entry(file, flags=""):
            return {"directory": "/r/build/x", "file": file,
                    "command": f"c++ -I/r/src {flags} -o a.o -c {file}"}

        root, build = pathlib.Path("/r"), pathlib.Path("/r/build/x")
        joined = "/r/build/x/src/swap/Unity/unity_0_cxx.cxx"
        found = clang_tidy.chosen(
            [entry(joined, "-Wno-restrict -fno-gnu-unique -mavx2"), entry("/r/tools/a.cpp"),
             entry("/r/tools/a.cpp"), entry("/r/tests/swap/a_test.cpp"), entry("/r/examples/a.c"),
             entry("/r/build/x/tests/swap/Unity/unity_0_cxx.cxx"),
             entry("/r/tools/b.cpp", "-isystem /wheel/torch/include")], root, build)
        self.assertEqual([each["file"] for each in found], [joined, "/r/tools/a.cpp"])
        self.assertEqual(found[0]["command"], f"c++ -I/r/src -mavx2 -o a.o -c {joined} -w")

    def test_names_each_fault_once_with_its_lines(self):
        fault = "/r/src/a.hpp:3:1: error: moved from [bugprone-use-after-move,-warnings-as-errors]"
        output = f"{fault}\n    3 | f(a);\n{fault}\n    3 | f(a);\nSuppressed 2 warnings\n"
        self.assertEqual(clang_tidy.faults(output), {fault: ["    3 | f(a);"]})
        self.assertEqual(clang_tidy.faults("2 warnings generated.\n"), {})


class Text(Tree):
    def test_long_line_fails(self):
        self.write("src/base/a.cpp", LICENCE + "// " + "x" * 98 + "\n")
        self.assert_one("a.cpp:2: 101 columns")

    def test_missing_licence_fails(self):
        self.write("tools/a.cpp", "int a;\n")
        self.assert_one("not the licence")

    def test_script_has_its_licence_on_the_second_line(self):
        self.write("check", "#!/bin/sh\n# " + tidy.LICENCE + "\n")
        self.assertEqual(self.text_faults(), [])


class Docs(Tree):
    def setUp(self):
        super().setUp()
        code = "int main() {\n  // [part]\n  int x;\n  // [/part]\n}\n"
        self.write("examples/a.cpp", LICENCE + code)

    def test_equal_block_passes(self):
        self.write("README.md", "<!-- compiled: examples/a.cpp part -->\n```cpp\nint x;\n```\n")
        self.assertEqual(self.text_faults(), [])

    def test_marks_inside_a_region_are_left_out(self):
        self.write("examples/b.cpp", LICENCE + "// [a]\nint x;\n// [b]\nint y;\n// [/b]\n// [/a]\n")
        block = "```cpp\nint x;\nint y;\n```\n"
        self.write("README.md", "<!-- compiled: examples/b.cpp a -->\n" + block)
        self.assertEqual(self.text_faults(), [])

    def test_changed_block_fails(self):
        self.write("docs/a.md", "<!-- compiled: examples/a.cpp part -->\n```cpp\nint y;\n```\n")
        self.assert_one("docs/a.md:2: the block differs")

    def test_block_without_a_source_fails(self):
        self.write("README.md", "```cpp\nint x;\n```\n")
        self.assert_one("needs `<!-- compiled:")

    def test_missing_region_fails(self):
        self.write("README.md", "<!-- compiled: examples/a.cpp none -->\n```cpp\nint x;\n```\n")
        self.assert_one("no lines between")

    def test_other_blocks_are_left_alone(self):
        self.write("README.md", "```sh\n./quickstart\n```\n```text\nout\n```\n")
        self.assertEqual(self.text_faults(), [])


class NamedTests(Tree):
    def setUp(self):
        super().setUp()
        self.write("tests/swap/a_test.cpp", LICENCE + "TEST_P(Drive, EndsWell) {\n}\n")

    def test_tests_that_exist_pass(self):
        self.write("docs/a.md", "| `a_test: Drive.EndsWell`, `All/Drive.EndsWell/*` |\n")
        self.assertEqual(self.text_faults(), [])

    def test_a_test_that_does_not_exist_fails(self):
        self.write("docs/a.md", "| x |\n| `a_test: Drive.EndsWell`, `All/Drive.EndsBadly/*` |\n")
        self.assert_one("docs/a.md:2: there is no test Drive.EndsBadly")


class Prose(Tree):
    def test_plain_sentences_pass(self):
        self.write("README.md", "The engine reads a tile. Which others? Those that differ.\n")
        self.assertEqual(self.text_faults(), [])

    def test_a_phrase_across_lines_fails(self):
        self.write("docs/a.md", "Fine.\n\n- The bits hang\n  on the seed.\n")
        self.assert_one('docs/a.md:3: "hang on": write depends on')

    def test_a_phrase_in_a_table_fails(self):
        self.write("CONTRIBUTING.md", "| a | b |\n|---|---|\n| x | not to be had |\n")
        self.assert_one("CONTRIBUTING.md:3:")

    def test_each_phrase_fails(self):
        for text in ["The trainer is told so.", "It is said once.", "It stays so for good.",
                     "Now they are others.", "The how manieth it is.", "A row with what mends it.",
                     "Fine. What was read goes.", "Who reads it gets an error.",
                     "The call is given up.", "The ring gives way.", "The stretch at hand.",
                     "The other way, it waits.", "Beaten: a lock.", "It ends in `kIo`.",
                     "It ends with 3.", "A key of ours.", "It fails for want of a name.",
                     "The budget that would do."]:
            self.write("docs/a.md", text + "\n")
            self.assert_one("docs/a.md:1:")

    def test_questions_and_code_pass(self):
        self.write("docs/a.md", "## What is next\n\nWhat is a tile? `is told` is a name.\n"
                                "```text\nit is told\n```\n")
        self.assertEqual(self.text_faults(), [])

    def test_a_phrase_in_a_public_comment_fails(self):
        self.write("include/headrace/a.hpp", LICENCE + "int a;  // none to be\n        // had\n")
        self.assert_one("include/headrace/a.hpp:2:")

    def test_a_phrase_in_a_c_comment_fails(self):
        self.write("include/headrace/c.h", "/* " + tidy.LICENCE + "\n * It is\n * told. */\n")
        self.assert_one("include/headrace/c.h:1:")

    def test_a_phrase_in_other_comments_fails(self):
        for name in ["src/base/a.cpp", "src/device/a.cu", "tools/a/a.hpp", "examples/a/a.c"]:
            self.write(name, LICENCE + "// It is\n// told.\n")
            self.assert_one(name + ':1: "is told"')
            self.write(name, LICENCE)

    def test_a_noun_clause_passes_in_other_comments_only(self):
        self.write("src/base/a.cpp", LICENCE + "// Fine. What was read.\n")
        self.assertEqual(self.text_faults(), [])
        self.write("include/headrace/a.hpp", LICENCE + "// Fine. What was read.\n")
        self.assert_one("include/headrace/a.hpp:1:")

    def test_a_phrase_in_a_comment_of_a_test_passes(self):
        self.write("tests/base/a.cpp", LICENCE + "// It is told.\n")
        self.assertEqual(self.text_faults(), [])

    def test_links_to_files_and_headings_pass(self):
        self.write("docs/b.md", "# B\n\n## `open` a file, or two\n")
        self.write("README.md", "## Up\n\n[b](docs/b.md), [c](docs/b.md#open-a-file-or-two),\n"
                                "[`d`](#up), [e](https://example.org/x#y)\n")
        self.assertEqual(self.text_faults(), [])

    def test_a_link_to_no_file_fails(self):
        self.write("docs/a.md", "[b](b.md)\n")
        self.assert_one("docs/a.md:1: the link leads nowhere: there is no b.md")

    def test_a_link_to_no_heading_fails(self):
        self.write("docs/a.md", "# A\n\n[a](#b)\n")
        self.assert_one("docs/a.md:3: the link leads nowhere: a.md has no heading #b")

    def test_a_long_sentence_fails(self):
        self.write("docs/a.md", "One two.\n\n" + "word\n" * 41 + "\n")
        self.assert_one("docs/a.md:3: a sentence of 41 words, at most 40")

    def test_sentences_lists_and_rows_are_counted_apart(self):
        words = "word " * 39 + "word"
        self.write("docs/a.md", f"{words}. {words}.\n- {words}\n- {words}\n1. {words}\n"
                                f"| {words} | {words} |\n```text\n{words} {words}\n```\n")
        self.assertEqual(self.text_faults(), [])


class Headers(Tree):
    def test_header_that_needs_another_fails(self):
        self.write("include/headrace/good.hpp", LICENCE + "#pragma once\nint a();\n")
        self.write("include/headrace/bad.hpp", LICENCE + "#pragma once\nstd::string a();\n")
        headers = tidy.public_headers(self.root)
        found = list(tidy.header_faults(self.root, COMPILER, headers, []))
        self.assertEqual(len(found), 1, found)
        self.assertIn("include/headrace/bad.hpp:1: does not compile alone", found[0])


COMPILER = sys.argv.pop(1) if len(sys.argv) > 1 else "c++"
if __name__ == "__main__":
    unittest.main()
