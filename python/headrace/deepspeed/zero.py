# SPDX-License-Identifier: Apache-2.0
"""deepspeed.zero for headrace's engine: Init and GatheredParameters. torch is imported when one of
them is used."""
from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, Optional

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


class Init(contextlib.AbstractContextManager):
    """For deepspeed.zero.Init: modules are made with their parameters in files, which serve as
    memory, and initialize() takes them from there. The folder is config's
    zero_optimization.offload_param.nvme_path. Without config, it is that of tempfile. With a config
    that has parameters elsewhere, they are made in memory. Values, dtypes and the random numbers
    are those of a model that is made without."""

    def __init__(self, module: Any = None, data_parallel_group: Any = None,
                 mem_efficient_linear: bool = True, remote_device: Any = None,
                 pin_memory: bool = False, config_dict_or_path: Any = None, config: Any = None,
                 enabled: bool = True, dtype: Any = None, mpu: Any = None, **_others: Any) -> None:
        del data_parallel_group, mem_efficient_linear, remote_device, pin_memory, dtype, mpu
        given = config_dict_or_path if config_dict_or_path is not None else config
        self._scope = contextlib.ExitStack()
        self._folder = _folder(given) if enabled else None
        if module is not None and self._folder is not None:
            _building(self._folder).take(module)

    def __enter__(self) -> None:
        if self._folder is not None:
            self._scope.enter_context(_building(self._folder))

    def __exit__(self, *exception: Any) -> Any:
        return self._scope.__exit__(*exception)


def _building(folder: str) -> Any:
    from ..torch.offload import building
    return building(folder)


def _folder(config: Any) -> Optional[str]:
    """None: parameters are made in memory."""
    if config is None:
        return _default_folder()
    from ._config import read
    zero = read(None, config, None).get("zero_optimization") or {}
    place = zero.get("offload_param") or {}
    if place.get("device") != "nvme" or not place.get("nvme_path"):
        return None
    return os.path.expandvars(os.path.expanduser(place["nvme_path"]))


def _default_folder() -> Optional[str]:
    folder = tempfile.gettempdir()
    kind = _file_system_of(folder)
    if kind not in _IN_MEMORY:
        return folder
    warnings.warn(f"deepspeed.zero.Init() was given no config, and {folder} is memory ({kind}), so "
                  "the model is in memory as a whole until initialize(). Give it "
                  "config_dict_or_path with offload_param.nvme_path, or set TMPDIR to a folder on "
                  "a drive.", stacklevel=4)
    return None


def _file_system_of(folder: str) -> Optional[str]:
    """Such as "ext4"; None: it is not known."""
    number = os.stat(folder).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if before.split()[2] == device:
                return after.split()[0]
    return None


class GatheredParameters(contextlib.AbstractContextManager):
    """For deepspeed.zero.GatheredParameters: headrace.gathered(). Of parameters that are not
    offloaded, each rank has its own; after the scope, they are those of modifier_rank on all."""

    def __init__(self, params: Any, modifier_rank: Any = None, fwd_module: Any = None,
                 enabled: bool = True) -> None:
        del fwd_module
        if enabled and isinstance(params, Iterator):  # which can be read once
            params = list(params)
        self._what, self._rank, self._enabled = params, modifier_rank, enabled
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> Any:
        if self._enabled:
            from ..torch.offload import gathered
            self._scope.enter_context(gathered(self._listed(), modify=self._rank is not None,
                                               of_rank=self._rank))
        return self._what

    def __exit__(self, *exception: Any) -> Any:
        result = self._scope.__exit__(*exception)
        if self._enabled and self._rank is not None and exception[0] is None:
            from ..torch.offload import spread
            spread(self._listed(), self._rank)
        return result

    def _listed(self) -> Any:
        import torch
        if isinstance(self._what, (torch.nn.Module, torch.Tensor)):
            return self._what
        return [one for one in self._what if one is not None]
