# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed, unmodified, on headrace's I/O and CPU optimizers. docs/python.md describes it.

Importing this puts operations of headrace into DeepSpeed's table of loaded ones, now or when
DeepSpeed is imported. DeepSpeed then compiles none of them.
"""
from ._install import OPERATIONS, install, installed

install()

__all__ = ["OPERATIONS", "install", "installed"]
