# SPDX-License-Identifier: Apache-2.0
"""The parameters of one group as torch sees them: parked, bound, or being changed.

Parked, a parameter has its shape and dtype, but no memory: torch raises a text at each use. Bound,
it is a view of the bytes that the engine gathered. Each binding has a storage of its own, which is
guarded once the binding has ended: a tensor that somebody kept raises too, and never shows the
bytes of another group. Being changed, it has memory of torch's own, until the values go back into
the engine (_values.py).
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from typing import Any, Callable, ContextManager, Iterator, Optional

import torch

from ..._engine import Engine, Gathered, Group
from ..._errors import Unsupported, WrongState
from ..._library import unbroken
from .._part import NAMES, memory_of
from . import _private
from ._building import Files, folder_of
from ._device import stream_of
from ._wrapped import part_at

_WITH_RANKS = (
    " With several ranks, no trainer may move or wrap the model: leave it out of "
    "Accelerator.prepare(); Hugging Face's Trainer needs headrace.transformers.offload(trainer).")


def full_name(group: str, name: str) -> str:
    return f"{group}.{name}" if group else name


def quoted(group: str) -> str:
    return f"'{group}'" if group else "the rest of the model"


class Slot:
    """One parameter of a group, or one of the tensors of which it consists (_wrapped.py)."""

    def __init__(self, group: "OffloadedGroup", index: int, member: Any) -> None:
        self.group, self.index = group, index
        self.whole, self.part = member.parameter, member.part
        self.parameter = parameter = part_at(member.parameter, member.part)
        self.name = f"{member.name}.{member.part}" if member.part else member.name
        self.full_name = full_name(group.name, self.name)
        self.dtype, self.shape, self.frozen = (parameter.dtype, parameter.shape,
                                               not parameter.requires_grad)
        # In the engine: a dtype that it updates, or the bytes of any other.
        self.kind = NAMES.get(self.dtype, "u8")
        self.stride = parameter.stride()
        self.version = parameter._version
        self.offset = 0  # elements, in the section of its dtype
        self.changing = False  # it has memory of torch's own
        self.owner, self.attribute = _owner_of(group.root, member.name)
        self._parked: Optional[torch.Tensor] = None
        self.folder = folder_of(parameter)  # of the file that it is made in (_building.py)

    def engine_shape(self) -> tuple:
        if self.kind != "u8" or self.dtype.itemsize == 1:
            return tuple(self.shape)
        *rows, last = self.shape or (1,)
        return (*rows, last * self.dtype.itemsize)

    def parked(self) -> torch.Tensor:
        if self._parked is None:
            self._parked = self._without_memory(
                "is parked: its values are in headrace's engine, so nothing was read or written. "
                "Use it in the forward pass of its block, or within headrace.gathered(module), "
                "with modify=True to write." + (_WITH_RANKS if self.group.joins else ""))
        return self._parked

    def park(self) -> None:
        self.parameter.data = self.parked()

    def lose_values(self, cause: str) -> None:
        self._parked = self._without_memory(f"has no values: {cause}")
        self.park()

    def settle(self) -> bool:
        """Whether the model still has it. Module.to() and others put new tensors over the same
        memory into one that consists of tensors: those are followed."""
        if self.owner._parameters.get(self.attribute) is not self.whole:
            return False
        now = part_at(self.whole, self.part)
        if now is not self.parameter and self._is_alias(now):
            self.parameter, self.version = now, now._version
        return now is self.parameter

    def refuse_replaced(self) -> None:
        """The engine does not have what stands in its place."""
        if not self.settle():
            raise self.replaced(self.full_name)

    @staticmethod
    def replaced(name: str) -> WrongState:
        return WrongState(
            f"'{name}' is another tensor than the one that headrace.offload() took: it "
            "would be neither trained nor saved, and nothing was done. Write values within "
            "headrace.gathered(module, modify=True); after optimizer.restore(), parameters may be "
            "replaced.")

    def refuse_conversion(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Of a parameter that is parked it would fail, and of one that is bound it would succeed.
        What leaves dtype, device and layout as they are is none."""
        probe, why = self._without_memory("is not there to be converted."), None
        try:
            converted = convert(probe)
            changes = not isinstance(converted, torch.Tensor) or _private.identity(
                converted.untyped_storage()) != _private.identity(probe.untyped_storage())
        except Exception as error:
            changes, why = True, error
        if changes:
            raise WrongState(
                f"parameter '{self.full_name}' is in headrace's engine, so the model cannot be "
                "converted or moved, such as by float() or cuda(); nothing was changed. Call "
                "optimizer.restore(), convert the model, and offload it again, with device=... for "
                "another device; to() of its own dtype and device works."
                + (_WITH_RANKS if self.group.joins else "")) from why

    def _is_alias(self, other: torch.Tensor) -> bool:
        return other.layout == torch.strided and \
            (other.dtype, other.shape, other.stride()) == (self.dtype, self.shape, self.stride) \
            and _private.identity(other.untyped_storage()) == self.memory()

    def follow(self) -> None:
        """While it is being changed: the tensor that the program has put there has the values."""
        self.parameter = part_at(self.whole, self.part)

    def memory(self) -> int:
        """The identity of its present storage."""
        return _private.identity(self.parameter.untyped_storage())

    def refuse_other_memory(self) -> None:
        """After p.data = x, x would be lost."""
        if self.memory() != _private.identity(self.parked().untyped_storage()):
            raise WrongState(
                f"'{self.full_name}' was given other memory (p.data = ...) while headrace's engine "
                "had its values: the engine does not have those, and the block was not run. Write "
                "within headrace.gathered(module, modify=True).")

    def _without_memory(self, text: str) -> torch.Tensor:
        storage = _private.storage_at(0, self.group.device,
                                      self.dtype.itemsize * self.shape.numel())
        view = _view(storage, self.dtype, 0, self.shape, self.stride)
        _private.guard(storage, f"parameter '{self.full_name}' {text}")
        return view

    def __repr__(self) -> str:
        return f"<{self.full_name} of {quoted(self.group.name)}>"


def _view(storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: Any,
          stride: Any) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)


def has_bytes_of(values: torch.Tensor, copy: torch.Tensor) -> bool:
    own = values.detach().cpu()
    return (own.dtype, own.shape) == (copy.dtype, copy.shape) and \
        torch.equal(own.flatten().view(torch.uint8), copy.flatten().view(torch.uint8))


def _owner_of(root: torch.nn.Module, name: str) -> tuple:
    """The module that has the parameter, and its name there."""
    path, _, attribute = name.rpartition(".")
    return root.get_submodule(path), attribute


def _outside_inference_mode() -> ContextManager[None]:
    """Tensors that are made within it could not be trained."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() \
        else contextlib.nullcontext()


class OffloadedGroup:
    """One group of the engine. Its bindings are counted: forward, backward and scopes overlap.
    Threads: under the lock of all groups (_offload.py)."""

    def __init__(self, name: str, module: Optional[torch.nn.Module], members: list, kept: bool,
                 device: torch.device, model: torch.nn.Module) -> None:
        self.name, self.module, self.kept, self.device = name, module, kept, device
        self.root = model if module is None else module  # names of members begin there
        self.slots = [Slot(self, index, member) for index, member in enumerate(members)]
        self.bindings = 0
        self.scopes = 0  # those of the bindings that gathered() has made
        self.binds = 0  # since the start: what a step costs is seen in it
        self.stale_aliases = 0  # tensors of an ended binding that somebody kept
        self.generation = 0  # of the values: saved tensors of an older one are refused
        self.spoiled = False  # written behind the engine's back, until it is loaded as a whole
        self.is_back = False  # its parameters are torch's own again
        self.masters: dict[Slot, torch.Tensor] = {}  # see remember()
        self.hold: Any = None  # of a backward pass (_backward.py)
        self._dtypes = {slot.kind: slot.dtype for slot in self.slots}
        self._storages: dict[str, torch.UntypedStorage] = {}  # by kind of slots
        self._sections: dict[int, str] = {}  # by identity of those storages
        self._gathered: Optional[Gathered] = None

    def attach(self, engine: Engine, group: Group, joins: bool) -> None:
        """After freeze(). joins: each of several ranks has a part of the values."""
        self.engine, self.group, self.joins = engine, group, joins
        for slot in self.slots:
            slot.offset = engine.section_offset_bytes(slot.full_name) // slot.dtype.itemsize

    # ---- bound and parked ----
    def bind(self, at_end: bool = False) -> None:
        """Undo each call with one release(). at_end: parameters may have been replaced."""
        changing = next((slot for slot in self.slots if slot.changing), None)
        if changing is not None:
            raise WrongState(
                f"{quoted(self.name)} was used while '{changing.full_name}' is being changed: its "
                "values are not the engine's yet. End the scope of headrace.gathered() first; if "
                "a load_state_dict() ended in the middle, repeat it.")
        if self.bindings == 0:
            if _private.is_in_func_transform():
                raise Unsupported(
                    f"{quoted(self.name)} was used within torch.func.grad(), jvp() or a function "
                    "made of them, which would keep its memory; nothing was read. Use "
                    "torch.autograd.grad(), or a model that optimizer.restore() has given back.")
            unbroken(lambda: self._bind(at_end))
        else:
            self.bindings += 1

    def refuse_replaced(self) -> None:
        for slot in self.slots:
            slot.refuse_replaced()

    def _bind(self, at_end: bool) -> None:
        for slot in self.slots:
            if not slot.settle() and not at_end:
                raise slot.replaced(slot.full_name)
            slot.refuse_other_memory()
        gathered = self.group.gather(stream_of(self.device))
        with _outside_inference_mode():
            wholes = {kind: self._whole(gathered, kind) for kind in self._dtypes}
            for slot in self.slots:
                whole = wholes[slot.kind]
                slot.parameter.data = \
                    whole.as_strided(slot.shape, slot.stride, slot.offset) \
                    if whole.dtype == slot.dtype else \
                    self.view(slot.kind, slot.dtype, slot.offset, slot.shape, slot.stride)
                slot.version = slot.parameter._version
        self._gathered = gathered
        _bound.add(self)
        self.bindings = 1
        self.binds += 1

    def _whole(self, gathered: Gathered, kind: str) -> torch.Tensor:
        address, size_bytes = gathered.section(kind)
        self._storages[kind] = _private.storage_at(address, self.device, size_bytes)
        self._sections[_private.identity(self._storages[kind])] = kind
        dtype = self._dtypes[kind]
        return _view(self._storages[kind], dtype, 0, (size_bytes // dtype.itemsize,), (1,))

    def release(self) -> None:
        if self.bindings > 1:
            self.bindings -= 1
            return
        written = self.written()
        unbroken(self._release)
        if written is not None and not self.spoiled:  # else the engine says it at each use
            self.spoil(written)

    def release_to_load(self) -> None:
        """What the program has written to a parameter is to be replaced."""
        try:
            self.release()
        except WrongState:
            if not self.spoiled:
                raise

    def _release(self) -> None:
        self.bindings = 0
        with _outside_inference_mode():
            for slot in self.slots:
                slot.park()
        for storage in self._storages.values():
            self.stale_aliases += _private.uses(storage) > 1
        self.guard(f"this tensor is a view of a parameter of {quoted(self.name)}, from a binding "
                   "that has ended; its memory may hold other values. Copy what you keep with "
                   "clone() while the block runs. What a function or a hook within the block "
                   "keeps by itself until backward, as those of bitsandbytes and save_on_cpu() "
                   "do, is there in a block that is run by torch.utils.checkpoint with "
                   "use_reentrant=True.")
        self._storages, self._sections = {}, {}
        self._gathered.release()
        self._gathered = None
        _bound.discard(self)

    def drop_bindings(self) -> None:
        """At the end, when nobody asks for the values any more."""
        if self.bindings:
            unbroken(self._release)

    def take_back(self) -> None:
        """Gives the parameters memory of torch's own again; nothing of this is used after it. One
        that was replaced gets its values too, and the model keeps the program's."""
        self.bind(at_end=True)
        try:
            values = self._copies()
        finally:
            self.release()

        def give() -> None:
            for slot, own in zip(self.slots, values):
                slot.parameter.data = own
            self.is_back = True

        unbroken(give)

    def _copies(self) -> list:
        """In torch's memory, or in files again."""
        files = {slot.folder: Files(slot.folder) for slot in self.slots if slot.folder is not None}
        return [slot.parameter.data.clone() if slot.folder is None else
                files[slot.folder].tensor(slot.shape, slot.dtype).copy_(slot.parameter.data)
                for slot in self.slots]

    def guard(self, text: str) -> None:
        for storage in self._storages.values():
            _private.guard(storage, text)

    @contextlib.contextmanager
    def reader(self) -> Iterator[Callable[[Slot, torch.Tensor], None]]:
        """A function that copies a slot's values into a row-major tensor in host memory. Several
        ranks join them for it, so all of them make this call."""
        def store(slot: Slot, space: torch.Tensor) -> None:
            self.engine.store(slot.full_name, "weight", memory_of(space))

        def copy(slot: Slot, space: torch.Tensor) -> None:
            ctypes.memmove(memory_of(space), gathered.raw(slot.name), space.nbytes)

        if not self.joins:
            yield store
            return
        with self.group.gather() as gathered:
            yield copy

    # ---- the two loads of a resume, in any order ----
    def remember(self, slot: Slot, master: torch.Tensor, weights: torch.Tensor) -> None:
        """Keeps a loaded master that does not round to the weights: the engine has made new ones
        of those. load_weights() tries it with later weights, until training goes on."""
        # With several ranks always: all of them have to make the same loads.
        if self.joins or not has_bytes_of(master.to(weights.dtype), weights):
            self.masters[slot] = master
        else:
            self.masters.pop(slot, None)

    def load_weights(self, slot: Slot, weights: torch.Tensor) -> None:
        master = self.masters.get(slot)
        if master is not None:
            self.engine.load_content(slot.full_name, "master", memory_of(master))
        self.engine.load_content(slot.full_name, "weight", memory_of(weights))
        if master is not None:
            self.remember(slot, master, weights)

    # ---- writes that the engine cannot see ----
    def written(self) -> Optional[Slot]:
        """A parameter that an operator of torch has written while it was bound, or that has other
        memory than the binding's."""
        return next((slot for slot in self.slots if slot.parameter._version != slot.version
                     or slot.memory() not in self._sections), None)

    def spoil(self, slot: Slot) -> None:
        text = (f"parameter '{slot.full_name}' was written while it was bound for reading: the "
                "engine's masters and its drive do not have the change, so nothing goes on with "
                "it. Load the model's values with load_state_dict() (the moments of this block "
                "then begin anew), and write within headrace.gathered(module, modify=True).")
        slot.version = slot.parameter._version
        self.spoiled, self.masters = True, {}
        self.engine.mark_written(self.group, text)
        raise WrongState(text)

    def refuse_spoiled(self) -> None:
        if self.spoiled:
            raise WrongState(f"a parameter of {quoted(self.name)} was written while it was bound "
                             "for reading, so its values are lost; nothing was done. Load the "
                             "model's values with load_state_dict().")

    # ---- what a backward pass needs ----
    def section_of(self, tensor: torch.Tensor) -> Optional[str]:
        """The section in whose present storage the tensor lies."""
        if tensor.layout != torch.strided:
            return None
        return self._sections.get(_private.identity(tensor.untyped_storage()))

    def view(self, section: str, dtype: torch.dtype, offset: int, shape: Any,
             stride: Any) -> torch.Tensor:
        return _view(self._storages[section], dtype, offset, shape, stride)

    def outdate(self) -> None:
        """After an update or a load: autograd refuses graphs over the old values."""
        self.generation += 1
        torch.autograd.graph.increment_version([slot.parameter for slot in self.slots])
        for slot in self.slots:
            slot.version = slot.parameter._version


# The engine's memory is not mapped in a forked child, such as a data loader's.
_bound: "weakref.WeakSet[OffloadedGroup]" = weakref.WeakSet()


def _guard_in_child() -> None:
    for group in list(_bound):
        group.guard(f"{quoted(group.name)} was bound when this process was forked, and the "
                    "engine's memory is its parent's alone. Copy what the child needs before.")


os.register_at_fork(after_in_child=_guard_in_child)
