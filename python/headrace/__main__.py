# SPDX-License-Identifier: Apache-2.0
"""python -m headrace: the program `headrace` that came with this package. Beside its subcommands,
`report` draws pages of what the program measured."""
from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Optional


def _program() -> Optional[str]:
    """Of this environment, wherever its scripts lie; it need not be on PATH."""
    try:
        files = importlib.metadata.files("headrace") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    # The other files of that name are below the package's own folder.
    scripts = [file for file in files if file.name == "headrace" and file.parts[0] == ".."]
    return str(scripts[0].locate()) if scripts else None


def _report() -> int:
    try:
        from headrace.report.main import main as report
    except ImportError:
        sys.exit("the reports are not part of this installation, so nothing was drawn. Install the "
                 "wheel, or run `python3 scripts/report` in Headrace's folder.")
    del sys.argv[1]
    return report()


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        sys.exit(_report())
    program = os.environ.get("HEADRACE_PROGRAM") or _program()
    if program is None:
        sys.exit("the program headrace is not part of this installation, so nothing was run. "
                 "Install the wheel, or set HEADRACE_PROGRAM to its path.")
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{program}: {error.strerror}; nothing was run. Install the wheel again, or set "
                 "HEADRACE_PROGRAM to the program's path.")


if __name__ == "__main__":
    main()
