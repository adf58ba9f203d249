# SPDX-License-Identifier: Apache-2.0
"""activation_checkpointing.cpu_checkpointing: what checkpoints keep for backward, in host memory.

A checkpoint (torch.utils.checkpoint, of either kind) keeps the inputs of what it runs, and nothing
else. Each of them is copied to host memory when torch saves it, and back when backward asks for it.
What a recomputation saves is needed at once, and stays on the device; so do parameters, which are
there anyway, and integers. On a GPU, a stream of its own makes the copies, and the inputs of the
checkpoint before come back while one is recomputed.

As long as an offloaded model has the setting, all checkpoints of the process are served that have
inputs on its device: torch does not say which model a checkpoint belongs to.
"""
from __future__ import annotations

import threading
import warnings
import weakref
from typing import Any, Callable, NamedTuple, Optional

import torch

from ..._errors import OutOfBudget, Unsupported
from . import _private
from ._backward import Foreign, Packed, foreign, refuse_changed
from ._forward import are_of_checkpoint, are_ours

KEY = "activation_checkpointing.cpu_checkpointing"


class Copies:
    """Between a GPU and pinned host memory, in the order of one stream."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def out(self, tensor: torch.Tensor) -> torch.Tensor:
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)
        return host

    def begin(self, host: torch.Tensor, size: Any, stride: Any) -> Any:
        """Of a copy back; ready() has its result."""
        with torch.cuda.stream(self._stream):
            tensor = torch.empty_strided(size, stride, dtype=host.dtype, device=self._device)
            tensor.copy_(host, non_blocking=True)
            return tensor, self._stream.record_event()

    def ready(self, begun: Any) -> torch.Tensor:
        tensor, event = begun
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        tensor.record_stream(stream)
        return tensor


class _Form(NamedTuple):
    """Of a tensor on the device, and of what is copied of it: expanded dimensions once."""

    shape: Any
    size: Any
    stride: Any


def _without_expansion(tensor: torch.Tensor) -> torch.Tensor:
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two of its elements may be one, as in a sliding window."""
    end = 0
    for stride, size in sorted((stride, size) for stride, size
                               in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride <= end:
            return True
        end += stride * (size - 1)
    return False


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """One that has the tensor's version at any time, also when only another view of it lives."""
    counter = tensor.detach()
    counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return counter


class Kept:
    """One tensor in host memory."""

    def __init__(self, of: "HostCheckpoints", tensor: torch.Tensor) -> None:
        base = _without_expansion(tensor.detach())
        self._of, self._form = of, _Form(tensor.shape, base.shape, base.stride())
        self._source, self._version = weakref.ref(tensor), tensor._version
        self._counter = _without_memory(tensor)
        self._begun: Any = None
        self._size_bytes = 0  # for __del__, if what follows fails
        self._host = of.copied_out(base)
        self._size_bytes = of.count(base.nbytes)

    def __del__(self) -> None:
        if self._size_bytes:
            self._of.count(-self._size_bytes)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether it is a copy of it: layers are given one mask."""
        return self._source() is tensor and self._version == tensor._version

    def begin(self) -> None:
        if self._begun is None:
            self._begun = self._of.copies.begin(self._host, self._form.size, self._form.stride)

    def back(self) -> torch.Tensor:
        """Refuses, as torch does, if the tensor has changed since: the copy may have part of it."""
        refuse_changed(self._counter, self._version, self._form.shape)
        self.begin()
        begun, self._begun = self._begun, None
        return self._of.copies.ready(begun).expand(self._form.shape)


class _Checkpoint:
    """One checkpoint, whose inputs are saved within save()."""

    def __init__(self, of: "HostCheckpoints", outer: Optional[tuple],
                 before: Optional["_Checkpoint"]) -> None:
        self._of, self._outer = of, outer
        self._before = weakref.ref(before) if before is not None else lambda: None
        self._inputs: set = set()
        self._kept: list[Kept] = []

    def save(self, run: Callable, arguments: tuple) -> Any:
        self._inputs = {id(one) for one in arguments}
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                return run(*arguments)
        finally:
            self._inputs = set()

    def _pack(self, tensor: torch.Tensor) -> Any:
        if id(tensor) in self._inputs and self._of.takes(tensor) and not self._is_bound(tensor):
            return self._copy_of(tensor)
        if self._outer is not None:
            return Packed(self._outer[0](tensor), self._outer[1])
        return foreign(tensor)

    def _is_bound(self, tensor: torch.Tensor) -> bool:
        """Whether it is a parameter of the block around, or a view of one."""
        return self._outer is not None and \
            self._outer[0].__self__.group.section_of(tensor) is not None

    def _copy_of(self, tensor: torch.Tensor) -> Kept:
        before = self._before()
        known = next((one for one in before._kept if one.has(tensor)), None) if before else None
        self._kept.append(known or Kept(self._of, tensor))
        return self._kept[-1]

    def _unpack(self, saved: Any) -> torch.Tensor:
        if type(saved) is Packed:
            return saved.unpack(saved.value)
        if type(saved) is Foreign:
            return saved.checked()
        tensor = saved.back()
        before = self._before()
        for one in before._kept if before is not None else ():
            one.begin()  # backward comes to that one next
        return tensor


class HostCheckpoints:
    """The setting, for one offloaded model."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.RLock()  # Kept.__del__ may come at any time
        self._seen = 0  # checkpoints
        self._has_warned = False
        self._bytes = self._most_bytes = 0
        self._last: Callable[[], Optional[_Checkpoint]] = lambda: None
        self.copies: Any = Copies(device) if device.type == "cuda" else None

    def start(self) -> None:
        if self.copies is None:
            warnings.warn(f"config has {KEY}, and the model computes on the CPU: what checkpoints "
                          "keep is in host memory already, so nothing is copied. Remove the key, "
                          "or train on a GPU.", stacklevel=5)
        _begin(self)

    def stop(self) -> None:
        _end(self)

    def report(self) -> dict:
        return {"checkpoints": self._seen, "host_bytes": self._bytes,
                "host_bytes_most": self._most_bytes}

    def warn_unused(self) -> None:
        """At a step: backward has come through all checkpoints that there are."""
        if self._seen == 0 and not self._has_warned:
            self._has_warned = True
            warnings.warn(f"config has {KEY}, and no torch.utils.checkpoint ran before the first "
                          "step(), so nothing of the forward pass is kept in host memory. Turn "
                          "checkpointing on, such as with model.gradient_checkpointing_enable(), "
                          "or remove the key.", stacklevel=2)

    # ---- of a checkpoint ----
    def serves(self, arguments: tuple) -> bool:
        return any(isinstance(one, torch.Tensor) and one.device == self._device
                   for one in arguments)

    def save(self, run: Callable, arguments: tuple) -> Any:
        outer = _private.saved_tensor_hooks()
        if outer is not None and are_of_checkpoint(outer):
            return run(*arguments)  # it lies in another one, which keeps nothing of it
        self._seen += 1
        if self.copies is None or outer is not None and not are_ours(outer):
            return run(*arguments)  # what hooks of the program are given, they keep
        checkpoint = _Checkpoint(self, outer, self._last())
        self._last = weakref.ref(checkpoint)
        return checkpoint.save(run, arguments)

    def takes(self, tensor: torch.Tensor) -> bool:
        is_plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided \
            and not tensor.is_conj() and not tensor.is_neg()
        return is_plain and tensor.device == self._device and tensor.is_floating_point() \
            and tensor.numel() > 0 and not (tensor.is_leaf and tensor.requires_grad) \
            and not _overlaps(_without_expansion(tensor))

    def copied_out(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            return self.copies.out(tensor)
        except (RuntimeError, MemoryError) as error:
            raise OutOfBudget(
                f"{KEY}: {tensor.nbytes} bytes for an input of a checkpoint, beside "
                f"{self._bytes} for others, could not be had in pinned host memory ({error}); the "
                "forward pass ended. Give smaller batches, or remove the key.") from error

    def count(self, size_bytes: int) -> int:
        with self._lock:
            self._bytes += size_bytes
            self._most_bytes = max(self._most_bytes, self._bytes)
        return size_bytes


# ---- those of the process ----
_active: list[HostCheckpoints] = []
_undo: Optional[Callable[[], None]] = None


def _begin(one: HostCheckpoints) -> None:
    global _undo
    if _undo is None:
        try:
            _undo = _private.around_checkpoints(_save)
        except AttributeError as error:
            raise Unsupported(f"config has {KEY}, and torch {torch.__version__} saves the inputs "
                              f"of checkpoints in another way than torch 2.11 ({error}); the model "
                              "is as it was. Remove the key.") from error
    _active.append(one)


def _end(one: HostCheckpoints) -> None:
    global _undo
    if one in _active:
        _active.remove(one)
    if not _active and _undo is not None:
        _undo()
        _undo = None


def _save(run: Callable, *arguments: Any) -> Any:
    """In place of torch's own call, in which the inputs are saved."""
    if torch.is_grad_enabled() and _private.backward_pass() == -1:
        for one in list(_active):
            if one.serves(arguments):
                return one.save(run, arguments)
    return run(*arguments)
