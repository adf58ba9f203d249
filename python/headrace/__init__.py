# SPDX-License-Identifier: Apache-2.0
"""headrace: trains models that do not fit into memory. docs/python.md shows its uses.

headrace.Engine serves numpy and every other framework; headrace.torch has the optimizers for torch,
and is the only part that imports torch. headrace.offload() is for models of torch that do not fit.
"""
from . import _ends  # noqa: F401
from ._collective import Collective
from ._config import __version__, show_config
from ._engine import Engine, Gathered, Group, Parameter, StepResult
from ._errors import (ArgumentError, ConfigError, Corrupt, Error, Interrupted, IoError, IoStalled,
                      NoSpace, NoSuchFile, NotFinite, NotFound, OutOfBudget, PeerLost, Unsupported,
                      WrongState)
from ._offload import building, gathered, offload

__all__ = ["ArgumentError", "Collective", "ConfigError", "Corrupt", "Engine", "Error", "Gathered",
           "Group", "Interrupted", "IoError", "IoStalled", "NoSpace", "NoSuchFile", "NotFinite",
           "NotFound", "OutOfBudget", "Parameter", "PeerLost", "StepResult", "Unsupported",
           "WrongState", "__version__", "building", "gathered", "offload", "show_config"]
