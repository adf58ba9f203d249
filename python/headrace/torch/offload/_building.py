# SPDX-License-Identifier: Apache-2.0
"""headrace.building(): a model that is made with its parameters in files, which serve as memory.

A parameter moves when its module registers it, which most modules do before they fill it: so there
is memory for one parameter at a time. It stays an ordinary tensor, over a mapping of a file that
has no name any more. The system writes its pages out where memory is short. Whoever fills, ties or
writes it later does so as in memory, with the same random numbers. offload() takes the values from
there, group by group, and each parameter's part of the file is given back with it.

A tensor that the program still uses when it becomes a parameter moves a little later, and at the
latest at the end. While such a model lives, what to() and half() convert moves to its folder again.
"""
from __future__ import annotations

import contextlib
import mmap
import os
import threading
import warnings
import weakref
from typing import Any, Callable, Iterator, Optional

import torch
from torch.nn.modules.module import (register_module_module_registration_hook,
                                     register_module_parameter_registration_hook)

from .._spaces import check_folder, file_in, give_memory_back
from . import _private
from ._wrapped import is_wrapped

_LEAST_BYTES, _MOST_BYTES = 16 << 20, 1 << 30  # of a file; each is twice as large as the last one
_SWEEP_BYTES = 64 << 20  # of parameters between two looks at those that could not move
_FREED_BYTES = 16 << 20  # of values between two returns of freed memory
_ALIGNMENT = 64  # as torch aligns memory
_NO_SPACE = ("building() needs {} bytes in {} for parameters: {}; the model was not made. Free "
             "space there, or name another folder.")
_NO_SPACE_TO_CONVERT = ("a parameter that headrace.building() has made needs {} bytes in {} to be "
                        "converted: {}; it and those after it are as they were. Free space there, "
                        "and convert the model again.")


class _File(mmap.mmap):
    """The mapping of one, and the parts that tensors have. It ends with the last of them."""

    folder: str
    address: int
    taken = 0  # bytes

    def place(self, size_bytes: int) -> memoryview:
        start = self.taken
        self.taken = -(-(start + size_bytes) // _ALIGNMENT) * _ALIGNMENT
        part = memoryview(self)[start:start + size_bytes]
        weakref.finalize(part, _give_back, os.getpid(), self, start,
                         start + size_bytes).atexit = False
        return part


def _give_back(process: int, file: _File, start: int, end: int) -> None:
    """The memory and the space of the whole pages in there, which nothing uses any more. A forked
    child's end is not this process's."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and os.getpid() == process:
        with contextlib.suppress(OSError):  # not every file system can
            file.madvise(mmap.MADV_REMOVE, first, last - first)


_files: dict[int, "weakref.ref[_File]"] = {}  # by address


def _file_of(tensor: torch.Tensor) -> Optional[_File]:
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # it has no memory, as those that are parked
        return None
    for start, weak in list(_files.items()):
        file = weak()
        if file is None:
            _files.pop(start, None)
        elif start <= address < start + len(file):
            return file
    return None


class Files:
    """Makes tensors in files of one folder."""

    def __init__(self, folder: str, no_space: str = _NO_SPACE) -> None:
        """no_space: with places for the bytes, the folder and the cause."""
        self.folder, self._no_space = folder, no_space
        self._freed_bytes = 0
        self._last: Optional[_File] = None
        self._next_bytes = _LEAST_BYTES

    def tensor(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        size_bytes = dtype.itemsize * torch.Size(shape).numel()
        file = self._last
        if file is None or len(file) - file.taken < size_bytes:
            file = self._last = self._made(size_bytes)
        return torch.frombuffer(file.place(size_bytes), dtype=dtype).view(shape)

    def give(self, parameter: torch.Tensor, dtype: torch.dtype) -> None:
        """Its values, and frees the memory that they had."""
        with torch.no_grad():
            values = parameter.data
            parameter.data = self.tensor(values.shape, dtype).copy_(values)
            self._freed_bytes += values.nbytes
            del values
        if self._freed_bytes > _FREED_BYTES:
            self._freed_bytes = 0
            give_memory_back()

    def _made(self, size_bytes: int) -> _File:
        size_bytes = -(-max(size_bytes, self._next_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._next_bytes = min(2 * self._next_bytes, _MOST_BYTES)
        with file_in(self.folder, size_bytes, self._no_space) as file:
            made = _File(file.fileno(), size_bytes)
        made.folder = self.folder
        made.address = torch.frombuffer(made, dtype=torch.uint8).data_ptr()
        _files[made.address] = weakref.ref(made)
        _conversions.watch()
        weakref.finalize(made, _conversions.settle).atexit = False
        return made


class _Conversions:
    """torch's to(), half() and others put what they convert in memory. While there are parameters
    in files, those of a module go back to their folder before the next module is converted."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may end a file within
        self._here = threading.local()
        self._undo: Optional[Callable[[], None]] = None
        self._told: list[Callable[[Any], None]] = []  # of each module
        self._asked: list[weakref.WeakMethod] = []  # before anything is converted

    def ask(self, may_convert: Callable[..., None]) -> Callable[[], None]:
        """A method, which gets the module and how its tensors are converted, and raises against
        it. Ends with its object, or with what is returned."""
        def end(*_: Any) -> None:
            with self._lock:
                self._asked = [one for one in self._asked if one is not weak]
                self.settle()

        weak = weakref.WeakMethod(may_convert, end)
        with self._lock:
            self._asked.append(weak)
        self.watch()
        return end

    def tell(self, converted: Callable[[Any], None]) -> Callable[[], None]:
        """Also of parameters that are in no file. Returns what ends it."""
        def end() -> None:
            self._told.remove(converted)
            self.settle()

        self._told.append(converted)
        self.watch()
        return end

    def watch(self) -> None:
        with self._lock:
            if self._undo is None:
                self._undo = _private.around_conversions(self._run)

    def settle(self) -> None:
        """torch's own again, with the last file."""
        with self._lock:
            used = self._told or any(weak() is not None for weak in self._asked) or \
                any(weak() is not None for weak in list(_files.values()))
            if self._undo is not None and not used:
                self._undo()
                self._undo = None

    def _run(self, own: Callable[..., Any], module: Any, *arguments: Any, **named: Any) -> Any:
        if hasattr(self._here, "files"):
            return self._convert(own, module, *arguments, **named)
        for weak in list(self._asked):
            may_convert = weak()
            if may_convert is not None:
                may_convert(module, *arguments, **named)
        self._here.files = {}  # by folder, for all modules of this call
        try:
            return self._convert(own, module, *arguments, **named)
        finally:
            del self._here.files

    def _convert(self, own: Callable[..., Any], module: Any, *arguments: Any, **named: Any) -> Any:
        before = {name: (folder, one.data) for name, one in module._parameters.items()
                  if (folder := folder_of(one)) is not None}
        result = own(module, *arguments, **named)
        try:
            for name, (folder, _) in before.items():
                self._keep(module, name, folder)
        except BaseException:
            for name, (_, values) in before.items():
                if folder_of(module._parameters[name]) is None:
                    module._parameters[name].data = values
            raise
        for converted in list(self._told):
            converted(module)
        return result

    def _keep(self, module: Any, name: str, folder: str) -> None:
        parameter = module._parameters[name]
        if not _is_here(parameter) or parameter.is_shared() or _file_of(parameter) is not None:
            return  # on another device, given to other processes, or as it was
        why = _why_not(parameter)
        if why is None:
            files = self._here.files
            files.setdefault(folder, Files(folder, _NO_SPACE_TO_CONVERT)).give(parameter,
                                                                              parameter.dtype)
        else:
            warnings.warn(f"'{name}' of a {type(module).__name__} {why} after its conversion, so "
                          "it is in memory now. Make it of a plain row-major tensor of its own.",
                          stacklevel=6)


_conversions = _Conversions()
before_conversions = _conversions.ask


class Building(contextlib.AbstractContextManager):
    """Serves the modules that any thread makes meanwhile."""

    def __init__(self, folder: str) -> None:
        self._files = Files(folder)
        self._lock = threading.RLock()
        self._seen: list = []  # weak references to modules
        self._twice = self._once = 0  # of those, how many sweeps have looked at
        self._since_bytes = 0
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> None:
        check_folder(self._files.folder, "nvme", what="model")
        with contextlib.ExitStack() as scope:
            of_parameters = register_module_parameter_registration_hook(self._registered)
            scope.callback(of_parameters.remove)
            of_modules = register_module_module_registration_hook(self._joined)
            scope.callback(of_modules.remove)
            scope.callback(_private.telling_of_copies(self._copied))
            scope.callback(_conversions.tell(self._converted))
            self._scope = scope.pop_all()

    def __exit__(self, *exception: Any) -> None:
        self._scope.close()
        if exception[0] is None:
            self._finish()

    def take(self, module: torch.nn.Module) -> None:
        """One that was made before."""
        check_folder(self._files.folder, "nvme", what="model")
        self._note(module)
        self._finish()

    def _finish(self) -> None:
        left = list(self._sweep(0).values())
        self._seen, self._files = [], Files(self._files.folder)
        if left:
            more = f", and so do {len(left) - 1} more" if len(left) > 1 else ""
            warnings.warn(f"parameter {left[0]}, so it stays in memory until offload(){more}. Make "
                          "it of a plain row-major tensor of its own, such as "
                          "values.contiguous().clone().", stacklevel=4)

    # ---- what torch tells ----
    def _registered(self, module: torch.nn.Module, _name: str, parameter: Any) -> None:
        with self._lock:
            self._note(module)
            if not _is_here(parameter):
                return
            self._since_bytes += parameter.nbytes
            if self._since_bytes > _SWEEP_BYTES:
                start, self._twice, self._once = self._twice, self._once, len(self._seen)
                self._since_bytes = 0
                self._sweep(start)
            self._move(parameter)

    def _joined(self, module: torch.nn.Module, _name: str, child: Any) -> None:
        with self._lock:
            self._note(module)
            if child is not None:
                self._note(child)

    def _copied(self, parameter: Any) -> None:
        with self._lock:
            self._move(parameter)

    def _converted(self, module: Any) -> None:
        with self._lock:
            self._note(module)
            for parameter in module._parameters.values():
                self._move(parameter)

    def _note(self, module: torch.nn.Module) -> None:
        if not self._seen or self._seen[-1]() is not module:
            self._seen.append(weakref.ref(module))

    # ---- moves ----
    def _sweep(self, start: int) -> dict:
        """Moves what can move by now, of the modules from a number on. Returns what stays, with its
        name and why."""
        left: dict = {}
        for one in self._modules_from(start):
            for name, parameter in one._parameters.items():
                why = self._move(parameter)
                if why is not None:
                    left.setdefault(parameter, f"'{name}' of a {type(one).__name__} {why}")
        return left

    def _modules_from(self, start: int) -> Iterator[torch.nn.Module]:
        known: set = set()
        for weak in self._seen[start:]:
            module = weak()
            if module is not None:
                # Also those that were made elsewhere.
                yield from (one for _, one in module.named_modules(memo=known))

    def _move(self, parameter: Any) -> Optional[str]:
        """Returns why it stays in host memory; None: it does not."""
        if not _is_here(parameter) or _file_of(parameter) is not None:
            return None
        why = _why_not(parameter)
        if why is None:
            self._files.give(parameter, parameter.dtype)
        return why


def _is_here(parameter: Any) -> bool:
    """Whether it takes host memory."""
    return parameter is not None and not torch.nn.parameter.is_lazy(parameter) \
        and parameter.device.type == "cpu" and parameter.numel() > 0


def _why_not(parameter: torch.Tensor) -> Optional[str]:
    if type(parameter) is not torch.nn.Parameter or type(parameter.data) is not torch.Tensor \
            or is_wrapped(parameter):
        return f"is a {type(parameter).__name__} over a {type(parameter.data).__name__}"
    if parameter.layout != torch.strided or not parameter.is_contiguous():
        return "is not row-major"
    storage = parameter.untyped_storage()
    if _private.uses(storage) > 2 or storage.nbytes() > parameter.nbytes:  # its own, and this one
        return "shares its memory with another tensor"
    return None


# ---- of a model that was made so ----
def folder_of(parameter: torch.Tensor) -> Optional[str]:
    """Where its file was made; None: it is in none."""
    if not _is_here(parameter) or parameter.layout != torch.strided or is_wrapped(parameter):
        return None
    file = _file_of(parameter)
    return None if file is None else file.folder


def convert(parameters: Any, dtype: torch.dtype) -> None:
    """Those that are in files, one at a time, and they stay there."""
    files: dict[str, Files] = {}
    for one in parameters:
        folder = folder_of(one)
        if folder is not None and one.is_floating_point() and one.dtype != dtype:
            files.setdefault(folder, Files(folder, _NO_SPACE_TO_CONVERT)).give(one, dtype)
