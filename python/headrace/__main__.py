# SPDX-License-Identifier: Apache-2.0
"""python -m headrace: the program `headrace` that came with this package."""
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


def main() -> None:
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
