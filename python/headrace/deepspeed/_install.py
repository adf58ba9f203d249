# SPDX-License-Identifier: Apache-2.0
"""How DeepSpeed finds our operations: OpBuilder.load() takes what its table has."""
from __future__ import annotations

import importlib
import sys
import types
from typing import Any, Optional

from .._errors import Unsupported
from ._on_import import when_imported

_BUILDER = "deepspeed.ops.op_builder.builder"
_PINNED = "_deepspeed_pin_memory_op_module"  # DeepSpeed's own cache, in sys
OPERATIONS = {"async_io": "_async_io", "pin_memory": "_pinned", "cpu_adam": "_adam",
              "cpu_adagrad": "_adagrad", "cpu_lion": "_lion"}


class _Operation(types.ModuleType):
    """What DeepSpeed takes for a compiled module. It has no __file__: DeepSpeed would dlopen() that
    of pin_memory."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        module = importlib.import_module("." + OPERATIONS[name], __package__)
        self.__dict__.update({key: getattr(module, key) for key in module.__all__})

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        raise AttributeError(
            f"headrace's {self.__name__} has no {key}, which this version of DeepSpeed asks for; "
            "it was tried with 0.19.8. Leave HEADRACE_DEEPSPEED and headrace.deepspeed away for "
            "DeepSpeed's own operations.")


def _fill(module: types.ModuleType) -> None:
    builder = getattr(module, "OpBuilder", None)
    table = getattr(builder, "_loaded_ops", None)
    if builder is None or not isinstance(table, dict):
        raise Unsupported("this version of DeepSpeed has no OpBuilder._loaded_ops, so headrace "
                          "cannot serve its operations; it was tried with 0.19.8. Leave "
                          "HEADRACE_DEEPSPEED and headrace.deepspeed away.")
    taken = [name for name in OPERATIONS if name in table
             and not isinstance(table[name], _Operation)]
    if taken:
        raise Unsupported(f"DeepSpeed has loaded its own {', '.join(taken)} in this process, and "
                          "would use both; nothing was replaced. Import headrace.deepspeed before "
                          "the first deepspeed.initialize().")
    table.update({name: _Operation(name) for name in OPERATIONS if name not in table})
    setattr(sys, _PINNED, table["pin_memory"])
    _say_compatible(builder)


def _say_compatible(builder: Any) -> None:
    """ds_report and ds_io ask whether libaio's headers are there, which ours does not need."""
    own = builder.has_function

    def has_function(self: Any, function: str, *arguments: Any, **named: Any) -> Any:
        return self.name == "async_io" or own(self, function, *arguments, **named)

    builder.has_function = has_function


def _builder() -> Optional[types.ModuleType]:
    return sys.modules.get(_BUILDER)


def install() -> None:
    """May be called again, and before or after `import deepspeed`."""
    if not installed():
        when_imported(_BUILDER, _fill)


def installed() -> bool:
    """Whether DeepSpeed, which is imported, uses our operations."""
    module = _builder()
    table = getattr(getattr(module, "OpBuilder", None), "_loaded_ops", {})
    return all(isinstance(table.get(name), _Operation) for name in OPERATIONS)
