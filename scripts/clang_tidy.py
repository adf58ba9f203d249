# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the library, its programs and the examples.

    clang_tidy.py TOOL BUILD [JOBS]

BUILD has compile_commands.json. If the build joins sources, clang-tidy reads the joined files, so
that a header is read once per folder. Tests and sources that include torch are left out.

Prints each fault once, and ends with 1 if there is one or a file does not compile.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

FOLDERS = ("src", "tools", "examples")
# Of gcc alone; warnings are the compiler's business, not this check's.
UNKNOWN = re.compile(r"-W.*|-fno-gnu-unique")
FAULT = re.compile(r"(?:error|warning): .*\[[\w.,-]+\]$|error: ")


def chosen(entries, root, build):
    """The entries that clang-tidy reads, each file once, with flags that it knows."""
    seen = {}
    for entry in entries:
        file = pathlib.Path(entry["directory"], entry["file"])
        place = file.relative_to(build if file.is_relative_to(build) else root)
        words = shlex.split(entry["command"])
        if place.parts[0] not in FOLDERS or file.suffix not in (".cpp", ".cxx"):
            continue
        if "_test" in str(place) or any("/torch/" in word for word in words):
            continue
        words = [word for word in words if not UNKNOWN.fullmatch(word)] + ["-w"]
        seen.setdefault(file, {**entry, "command": shlex.join(words)})
    return list(seen.values())


def faults(output):
    """Each fault with the lines that belong to it, once."""
    found, lines = {}, None
    for line in output.splitlines():
        if FAULT.search(line):
            lines = [] if line not in found else None
            found.setdefault(line, lines)
        elif lines is not None and not line.startswith("Suppressed "):
            lines.append(line)
    return found


def main(words):
    tool, build = words[0], pathlib.Path(words[1]).resolve()
    jobs = int(words[2]) if len(words) > 2 else os.cpu_count()
    root = pathlib.Path(__file__).resolve().parents[1]
    database = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    entries = chosen(database, root, build)
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "compile_commands.json").write_text(json.dumps(entries),
                                                                 encoding="utf-8")

        def run(entry):
            return subprocess.run(
                [tool, "-p", folder, "--quiet", f"--config-file={root / '.clang-tidy'}",
                 entry["file"]], capture_output=True, text=True, check=False)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            results = list(pool.map(run, entries))
    found = {}
    for entry, result in zip(entries, results):
        found.update(faults(result.stdout))
        if result.returncode != 0 and not faults(result.stdout):
            found[f"{entry['file']}: clang-tidy ended with {result.returncode}"] = [result.stderr]
    for fault, lines in found.items():
        print(fault, *lines, sep="\n")
    print(f"{len(entries)} files, {len(found)} faults")
    return 1 if found or not entries else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
