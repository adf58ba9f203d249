# SPDX-License-Identifier: Apache-2.0
"""doc_test.py FOLDER: runs the Python blocks of docs/python.md in their order, as one program in
which `folder` is a folder on a drive."""
import importlib.util
import os
import pathlib
import re
import sys
import tempfile

sys.dont_write_bytecode = True
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/python.md"
FEWEST = 3


def main():
    for needed in ("numpy", "torch"):
        if importlib.util.find_spec(needed) is None:
            print(f"{needed} is not installed")
            return 77
    page = PAGE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", page, re.M | re.S))
    if len(blocks) < FEWEST:
        print(f"{PAGE} has {len(blocks)} blocks, and had at least {FEWEST}")
        return 1
    with tempfile.TemporaryDirectory(dir=os.path.abspath(sys.argv[1])) as folder:
        names = {"folder": folder}
        for block in blocks:
            # Empty lines before it: an error then names the line of the page.
            text = "\n" * (page.count("\n", 0, block.start(1))) + block[1]
            exec(compile(text, str(PAGE), "exec"), names)
    return 0


sys.exit(main())
