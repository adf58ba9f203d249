# SPDX-License-Identifier: Apache-2.0
"""doc_test.py FOLDER: runs the Python blocks of docs/python.md in their order, as one program in
which `folder` is a folder on a drive, and the notebooks of examples/python in such a folder."""
import importlib.util
import json
import os
import pathlib
import re
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/python.md"
FEWEST = 3


def main():
    for needed in ("numpy", "torch"):
        if importlib.util.find_spec(needed) is None:
            print(f"{needed} is not installed")
            return 77
    with tempfile.TemporaryDirectory(dir=os.path.abspath(sys.argv[1])) as folder:
        return run_page(folder) or run_notebooks(folder)


def run_page(folder):
    page = PAGE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", page, re.M | re.S))
    if len(blocks) < FEWEST:
        print(f"{PAGE} has {len(blocks)} blocks, and had at least {FEWEST}")
        return 1
    names = {"folder": folder}
    for block in blocks:
        # Empty lines before it: an error then names the line of the page.
        text = "\n" * (page.count("\n", 0, block.start(1))) + block[1]
        exec(compile(text, str(PAGE), "exec"), names)
    return 0


def run_notebooks(folder):
    os.chdir(folder)
    notebooks = sorted((ROOT / "examples/python").glob("*.ipynb"))
    for path in notebooks:
        names = {}
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for number, cell in enumerate(cells):
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{path}, cell {number}", "exec"), names)
    return 0 if notebooks else 1


sys.exit(main())
