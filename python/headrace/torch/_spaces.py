# SPDX-License-Identifier: Apache-2.0
"""Memory for the tensors of a state_dict: torch's own, or files that vanish with the tensors."""
from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import tempfile
from typing import Any, Iterator, Optional

import torch

from .._errors import IoError, NoSpace, NoSuchFile


def check_folder(folder: Optional[str], argument: str, makes_it: bool = False,
                 what: str = "optimizer") -> None:
    """Raises if no file can be made there. makes_it: the folder may be missing, and its use makes
    it."""
    if folder is None:
        return
    place = folder
    while makes_it and not os.path.exists(place):
        place = os.path.dirname(place)
    try:
        tempfile.TemporaryFile(prefix="headrace-", dir=place).close()
    except OSError as error:
        raise _kind_of(error)(
            f"{argument} is {folder}, and no file can be made in {place}: {error.strerror}; the "
            f"{what} was not made. Create the folder (mkdir -p) or allow writing there, or name "
            "another one.", errno=error.errno) from error


def _kind_of(error: OSError) -> type[IoError]:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NoSuchFile
    return NoSpace if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else IoError


def space_for(folder: Optional[str], shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """folder: where files serve as memory, which the system can write out; None: memory."""
    elements = math.prod(shape)
    if folder is None or elements == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    size_bytes = dtype.itemsize * elements
    with file_in(folder, size_bytes, "state_dict() needs {} bytes in {} for a tensor: {}; the "
                 "optimizer is as it was. Bring the folder back, or free space there.") as file:
        return torch.from_file(file.name, shared=True, size=elements, dtype=dtype,
                               device="cpu").view(shape)


@contextlib.contextmanager
def file_in(folder: str, size_bytes: int, error_text: str) -> Iterator[Any]:
    """A file whose space is reserved, and which is gone afterwards but for what has mapped it.
    error_text: with places for the bytes, the folder and the cause."""
    try:
        file = tempfile.NamedTemporaryFile(prefix="headrace-state-", dir=folder)
        space = os.fstatvfs(file.fileno())
        if space.f_blocks and size_bytes > space.f_bavail * space.f_frsize:
            # Not tried: an attempt would fill the drive before it failed.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # Not only sized: a write to a mapping that finds the drive full is a SIGBUS.
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    except OSError as error:
        raise _kind_of(error)(error_text.format(size_bytes, folder, error.strerror),
                              errno=error.errno) from error
    with file:
        yield file


def give_memory_back() -> None:
    """glibc keeps much of what was freed for the next allocations, and small ones soon divide
    it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
