# SPDX-License-Identifier: Apache-2.0
"""Optimizers of torch whose state lives in memory or on drives, by plan. docs/python.md shows them.

The parameters stay torch's own. This is the only part of headrace that imports torch.
"""
from ._process_group import ProcessGroup
from ._rules import SGD, Adagrad, Adam, AdamW, Lion

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lion", "ProcessGroup"]
