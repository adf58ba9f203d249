# SPDX-License-Identifier: Apache-2.0
"""Starts the package by its folder: `python3 scripts/report page REPORT.json`."""
import pathlib
import sys

sys.dont_write_bytecode = True  # the folder may be another user's
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from report.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
