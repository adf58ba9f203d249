# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed, unmodified, on headrace's I/O and CPU optimizers; and headrace's own engine behind
DeepSpeed's interface. docs/python.md describes both.

Importing this puts operations of headrace into DeepSpeed's table of loaded ones, now or when
DeepSpeed is imported. DeepSpeed then compiles none of them. initialize() and take_over() need no
operations of DeepSpeed's.
"""
from __future__ import annotations

from typing import Any

from . import zero
from ._install import OPERATIONS, install, installed
from ._take_over import take_over

install()

__all__ = ["OPERATIONS", "initialize", "install", "installed", "take_over", "zero"]


def initialize(*arguments: Any, **named: Any) -> tuple:
    """As deepspeed.initialize(), with headrace's engine. Imports torch."""
    from ._initialize import initialize as made
    return made(*arguments, **named)
