# SPDX-License-Identifier: Apache-2.0
"""Checks what the compiler does not: rooms, headers alone, widths, licences, docs, prose.

    tidy.py text ROOT                      everything that is read off the text
    tidy.py headers ROOT COMPILER          each public header compiles alone
    tidy.py torch-headers ROOT COMPILER TORCH_ROOT   those of the LibTorch adapter do

Prints each fault as FILE:LINE: what, and ends 1 where there is one.

Code in docs is a copy of code that is compiled: a ```cpp block of README.md or docs/ follows a
line `<!-- compiled: FILE -->` or `<!-- compiled: FILE NAME -->` and equals that file, or its lines
between `// [NAME]` and `// [/NAME]`. A ```text block after `<!-- printed: FILE -->` equals that
file. On a line that names a test as `program_test: Suite.Test`, every such name is a test's.

Prose is the text of README.md, CONTRIBUTING.md and docs/, and the comments of sources outside
tests/. It has none of PHRASES; code in backticks does not count. Pages and public headers have none
of OPENINGS either: elsewhere, a comment may be a noun clause. A sentence of the pages has at most
LONGEST words, tables, headings and blocks of code left out, and their links lead to files and
headings.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import textwrap



def rooms_of(root):
    """In the order of CMakeLists.txt, which is the order in which a room may include another."""
    text = (root / "CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"set\(headrace_rooms ([^)]*)\)", text)[1].split()


ROOMS = rooms_of(pathlib.Path(__file__).resolve().parents[2])
CODE = {".cpp", ".hpp", ".h", ".c"}
SCRIPTS = {".py", ".sh", ".cmake", ".in"}
NAMED = {"CMakeLists.txt", "quickstart", "check", "run", "keys.txt"}
FOLDERS = ["src", "include", "tests", "tools", "examples", "scripts", "cmake", "python", ".ci"]
WIDTH = 100
FUNCTION_LINES = 40
FUNCTION = re.compile(r"(?!(?:namespace|struct|class|enum|union|extern)\b)\w.*\(.*\{$")
LICENCE = "SPDX-License-Identifier: Apache-2.0"
TORCH_ALLOWED = ("include/headrace/torch/", "examples/", "tests/torch/",
                 "tests/install/consumer_torch/", "tools/bench/adapter_rounds.cpp",
                 "tools/ranks/gloo_module.cpp", "tools/train_gpt/")
TEST = re.compile(r"^TEST(?:_[FP])?\((\w+), (\w+)\)", re.MULTILINE)
PROGRAM = re.compile(r"`\w+_test: ")
NAMED_TEST = re.compile(r"[`/ ]([A-Z]\w+)\.([A-Z]\w+)(?:/[\w*]+)?`")
TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)(?: final)?(?: :.*)?\s*\{")
COMMENT = re.compile(r"^(.*?)(?://|/\*|^ \*(?!/)) ?(.*?)(?:\*/)?$")
MARK = re.compile(r"^\s*// \[/?\w+\]$")
STARTED = re.compile(r'start_thread\(\s*"(headrace-\w+)"( \+)?')
PUBLIC_THREAD = re.compile(r'"(headrace-\w+)"')  # public headers have no other such names
TEAM = re.compile(r'\.name = "(headrace-\w+)"')  # of a ThreadTeam, which adds numbers
LABELS = re.compile(r"(?<!\[)\bLABELS \"?([a-z_;]+)")
LEFT_OUT = re.compile(r"ctest -LE '([^']*)'")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


# What to write instead of a phrase.
PHRASES = [(re.compile(phrase), instead) for phrase, instead in [
    (r"\b(?:is|are|was|were|being) told\b", "the one that says it as the subject"),
    (r"\b(?:is|are|was|were) said\b", "the one that says it as the subject"),
    (r"\b[Hh]angs? on\b", "depends on"),
    (r"\bto be had\b", "available"),
    (r"\bfor good\b", "the time that it lasts"),
    (r"\b(?:is|are|was|were|be|become|becomes|became) others\b", "differ, or change"),
    (r"\bhow manieth\b", "the number of"),
    (r"\b[Mm]ends?\b", "fixes"),
    (r"\b(?:is|are|was|were) given up\b", "who gives it up"),
    (r"\bgives? way\b", "what replaces it"),
    (r"\bat hand\b", "what is there"),
    (r"\bThe other way,", "the alternative, or the cost, as a sentence"),
    (r"\b[Bb]eaten:", "the alternative, as a sentence"),
    (r"\bends? (?:(?:in|with) [0-9]|in (?:code|k[A-Z]))", "exits with, or fails with"),
    (r"\bnothing else of ours\b|\bof ours\b", "Headrace's"),
    (r"\bfor want of\b", "without"),
    (r"\bthat would do\b", "sufficient"),
]]
OPENINGS = [(re.compile(phrase), "a noun as the subject") for phrase in [
    r"(?:^|[.;] )Who(?:ever)? \w+(?![^.]*\?)",
    r"(?:^|[.;] )What(?:ever)? \w+(?![^.]*\?)",
]]
LONGEST = 40
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*\[]*[A-Za-z0-9])")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
NO_PROSE = ("#", "<!--", "![")


def files(root):
    for path in sorted(root.iterdir()):
        if path.is_file() and (path.name in NAMED or path.suffix in CODE | SCRIPTS):
            yield path
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and (path.suffix in CODE | SCRIPTS or path.name in NAMED):
                yield path


def text_faults(root):
    for path in files(root):
        name = path.relative_to(root).as_posix()
        lines = path.read_text(encoding="utf-8").splitlines()
        yield from width_faults(name, lines)
        if not any(LICENCE in line for line in lines[:2]):
            yield f"{name}:1: its first line is not the licence: {LICENCE}"
        if path.suffix in CODE:
            yield from include_faults(name, lines)
            yield from length_faults(name, lines)
    yield from twice_named_faults(root)
    yield from room_table_faults(root)
    yield from thread_table_faults(root)
    yield from label_faults(root)
    tests = {match for path in files(root) if path.name.endswith("_test.cpp")
             for match in TEST.findall(path.read_text(encoding="utf-8"))}
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if path.is_file():
            yield from doc_faults(root, path)
            yield from named_test_faults(root, path, tests)
    yield from prose_faults(root)


def prose_faults(root):
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]
    for path in pages:
        if not path.is_file():
            continue
        name = path.relative_to(root).as_posix()
        for number, text in page_paragraphs(path.read_text(encoding="utf-8").splitlines()):
            yield from phrase_faults(name, number, text, PHRASES + OPENINGS)
            yield from link_faults(path, name, number, text)
            if not text.startswith("|"):
                yield from sentence_faults(name, number, text)
    for folder in ["include", "src", "tools", "examples"]:
        phrases = PHRASES + OPENINGS if folder == "include" else PHRASES
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in CODE | {".cu"}:
                continue
            name = path.relative_to(root).as_posix()
            for number, text in comments(path.read_text(encoding="utf-8").splitlines()):
                yield from phrase_faults(name, number, text, phrases)


def page_paragraphs(lines):
    """The paragraphs, list items and rows of a page, each with the number of its first line."""
    first, words, in_block = 0, [], False
    for number, line in enumerate([*lines, ""], 1):
        line = line.strip()
        fence = line.startswith("```")
        left_out = in_block or fence or line.startswith(NO_PROSE)
        item = re.match(r"(?:[-*]|\d+\.) ", line)
        if words and (not line or left_out or item or line.startswith("|")):
            yield first, " ".join(words)
            words = []
        in_block = in_block != fence
        if not line or left_out:
            continue
        if not words:
            first = number
        words.append(line[item.end():] if item else line)


def comments(lines):
    """The comments of a header, those on consecutive lines together."""
    first, words = 0, []
    for number, line in enumerate([*lines, ""], 1):
        found = COMMENT.match(line)
        if words and not (found and found[1].strip() == ""):
            yield first, " ".join(words)
            words = []
        if not found:
            continue
        if not words:
            first = number
        words.append(found[2].strip())


def link_faults(path, name, number, text):
    for file, anchor in LINK.findall(re.sub(r"`[^`]*`(?!\])", "code", text)):
        target = path.parent / file if file else path
        if not target.exists():
            yield f"{name}:{number}: the link leads nowhere: there is no {file}"
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8").splitlines()):
            yield f"{name}:{number}: the link leads nowhere: {target.name} has no heading #{anchor}"


def anchors(lines):
    """The headings of a page, as GitHub names them in links."""
    headings = [re.match(r"#+ (.*)", line) for line in lines]
    return {re.sub(r"[^\w\- ]", "", found[1].lower()).replace(" ", "-")
            for found in headings if found}


def phrase_faults(name, number, text, phrases):
    text = re.sub(r"`[^`]*`", "code", text)
    for phrase, instead in phrases:
        found = phrase.search(text)
        if found:
            yield f'{name}:{number}: "{found[0].strip(" .;")}": write {instead}'


def sentence_faults(name, number, text):
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", text))
    for sentence in SENTENCE_END.split(text):
        words = len([word for word in sentence.split() if re.search(r"\w", word)])
        if words > LONGEST:
            yield (f"{name}:{number}: a sentence of {words} words, at most {LONGEST}: "
                   f"{sentence[:40]}...")


def twice_named_faults(root):
    """Of one namespace and program: the linker would take the functions of one for both."""
    seen = {}
    for folder in ["tools/headrace", "tools/machine", "tools/measure", "tools/program"]:
        for path in sorted((root / folder).rglob("*.hpp")):
            name = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                found = TYPE.match(line)
                if found and seen.setdefault(found[1], name) != name:
                    yield f"{name}:{number}: {found[1]} is another type in {seen[found[1]]}"


def width_faults(name, lines):
    for number, line in enumerate(lines, 1):
        if len(line) > WIDTH:
            yield f"{name}:{number}: {len(line)} columns, at most {WIDTH}"


def length_faults(name, lines):
    """By clang-format's layout: a function of a namespace begins and ends in the first column."""
    if name.startswith("tests/"):
        return
    begin = 0
    for number, line in enumerate(lines, 1):
        if line == "}" and begin:
            if number - begin >= FUNCTION_LINES:
                yield (f"{name}:{begin}: a function of {number - begin + 1} lines, "
                       f"at most {FUNCTION_LINES}")
            begin = 0
        elif not begin and FUNCTION.match(line):
            begin = number


def room_table_faults(root):
    page = root / "docs" / "architecture.md"
    if not page.is_file():
        return
    table = re.search(r"^\| room \| holds \|\n\|---\|---\|\n((?:\|.*\n)*)",
                      page.read_text(encoding="utf-8"), re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \|", table[1], re.MULTILINE) if table else None
    if rows is not None and rows != ROOMS:
        yield f"docs/architecture.md: its rooms are {', '.join(rows)}; CMake's {', '.join(ROOMS)}"


def thread_table_faults(root):
    """docs/architecture.md lists the threads that the library starts; <n> stands for a number."""
    page = root / "docs" / "architecture.md"
    if not page.is_file():
        return
    listed = set()
    for row in re.findall(r"^ *\| (`headrace-.*?) \|", page.read_text(encoding="utf-8"),
                          re.MULTILINE):
        listed |= set(re.findall(r"`(headrace-[^`]+)`", row))
    started = set()
    for path in sorted((root / "src").rglob("*.cpp")):
        text = path.read_text(encoding="utf-8")
        for name, number in STARTED.findall(text):
            started.add(name + ("<n>" if number else ""))
        started |= {name + "<n>" for name in TEAM.findall(text)}
    for path in sorted((root / "include").rglob("*.hpp")):
        started |= set(PUBLIC_THREAD.findall(path.read_text(encoding="utf-8")))
    for name in sorted(listed ^ started):
        yield (f"docs/architecture.md: the thread {name} " +
               ("is in no table" if name in started else "is started nowhere"))


def label_faults(root):
    """A label of tests is a room, or CONTRIBUTING.md has it; and those that it has are in use."""
    page = root / "CONTRIBUTING.md"
    if not page.is_file():
        return
    text = page.read_text(encoding="utf-8")
    used = set()
    for path in files(root):
        if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
            for labels in LABELS.findall(path.read_text(encoding="utf-8")):
                used |= set(labels.split(";"))
    for label in sorted(used - set(ROOMS)):
        if f"`{label}`" not in text:
            yield f"CONTRIBUTING.md: does not name `{label}`, a label of tests"
    for label in LEFT_OUT.findall(text):
        for each in label.split("|"):
            if each not in used:
                yield f"CONTRIBUTING.md: no test has the label {each}"


def include_faults(name, lines):
    parts = name.split("/")
    for number, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        target = found[2]
        where = f"{name}:{number}: includes {target}"
        if target.startswith(("torch/", "ATen/", "c10/", "headrace/torch/")):
            if not name.startswith(TORCH_ALLOWED):
                yield f"{where}: only {', '.join(TORCH_ALLOWED)} may include torch"
        elif parts[0] == "src":
            yield from room_faults(where, parts[1], target)
        elif parts[0] in ("include", "examples"):
            yield from public_faults(where, name, found[1], target)


def room_faults(where, room, target):
    other = target.split("/")[0] if "/" in target else room
    if room not in ROOMS:
        yield f"{where}: {room} is not in the list of rooms"
    elif other in ROOMS and ROOMS.index(other) > ROOMS.index(room):
        yield f"{where}: {other} comes after {room}; a room includes only those before it"


def public_faults(where, name, bracket, target):
    room = target.split("/")[0] if "/" in target else ""
    if room in ROOMS:
        yield f"{where}: a header of the room {room} is not public"
    if not name.startswith("include/") or name.startswith("include/headrace/torch/"):
        return
    if name.startswith("include/headrace/mpi") and target in ("mpi.h", "pthread.h"):
        return
    if bracket == "<" and not re.fullmatch(r"[a-z_0-9]+|std(def|int|bool)\.h", target):
        yield f"{where}: public headers include only the standard library"
    if bracket == '"' and not target.startswith("headrace/"):
        yield f'{where}: public headers are included as "headrace/..."'


def region(path, name):
    """A file, or its lines between `// [name]` and `// [/name]`; None where there are none.

    Marks of other regions are left out.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    if name is not None:
        marks = [number for number, line in enumerate(lines)
                 if line.strip() in (f"// [{name}]", f"// [/{name}]")]
        if len(marks) != 2:
            return None
        lines = [line for line in lines[marks[0] + 1:marks[1]] if not MARK.match(line)]
    return textwrap.dedent("\n".join(lines)).strip("\n")


def doc_faults(root, path):
    name = path.relative_to(root).as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = re.match(r"^```(\w*)\s*$", lines[number])
        if not fence:
            number += 1
            continue
        end = number + 1
        while end < len(lines) and not lines[end].startswith("```"):
            end += 1
        block = textwrap.dedent("\n".join(lines[number + 1:end])).strip("\n")
        source = re.match(r"^<!-- (compiled|printed): (\S+)(?: (\S+))? -->$",
                          lines[number - 1].strip() if number else "")
        where = f"{name}:{number + 1}"
        if source:
            yield from block_faults(root, where, block, source[2], source[3])
        elif fence[1] == "cpp":
            yield f"{where}: a cpp block needs `<!-- compiled: FILE [NAME] -->` on the line before"
        number = end + 1


def named_test_faults(root, path, tests):
    name = path.relative_to(root).as_posix()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not PROGRAM.search(line):
            continue
        for suite, test in NAMED_TEST.findall(line):
            if (suite, test) not in tests:
                yield f"{name}:{number}: there is no test {suite}.{test}"


def block_faults(root, where, block, file, name):
    path = root / file
    if not path.is_file():
        yield f"{where}: {file} does not exist"
        return
    expected = region(path, name)
    if expected is None:
        yield f"{where}: {file} has no lines between // [{name}] and // [/{name}]"
    elif block != expected:
        yield f"{where}: the block differs from {file}" + (f" [{name}]" if name else "")


def header_faults(root, compiler, headers, flags):
    def compile_alone(header):
        command = [*compiler.split(), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                   "-I", str(root / "include"), *flags, "-x", "c++", "-"]
        code = f'#include "{header.relative_to(root / "include").as_posix()}"\n'
        return header, subprocess.run(command, input=code, capture_output=True, text=True,
                                      check=False)

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for header, result in pool.map(compile_alone, headers):
            if result.returncode != 0:
                name = header.relative_to(root).as_posix()
                words = textwrap.indent(result.stderr[:2000], "    ")
                yield f"{name}:1: does not compile alone:\n{words}"


def public_headers(root):
    folder = root / "include" / "headrace"
    # Those of torch are checked apart; those of MPI need one.
    return sorted(path for path in folder.rglob("*.h*")
                  if path.parts[-2] not in ("torch", "mpi") and path.name != "mpi.hpp")


def torch_headers(root):
    # The others are theirs: torch's headers take the compiler ten seconds each time.
    folder = root / "include" / "headrace" / "torch"
    return [folder / "offload.hpp", folder / "tensors.hpp", folder / "cuda.hpp"]


def faults(words):
    root = pathlib.Path(words[1]).resolve()
    if words[0] == "text" and len(words) == 2:
        return text_faults(root)
    if words[0] == "headers" and len(words) == 3:
        return header_faults(root, words[2], public_headers(root), [])
    if words[0] == "torch-headers" and len(words) == 4:
        torch = os.path.join(words[3], "torch", "include")
        flags = ["-isystem", torch, "-isystem", f"{torch}/torch/csrc/api/include"]
        return header_faults(root, words[2], torch_headers(root), flags)
    return None


def main(words):
    found = faults(words) if len(words) > 1 else None
    if found is None:
        print(__doc__, file=sys.stderr)
        return 2
    found = list(found)
    for fault in found:
        print(fault)
    print(f"{len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
