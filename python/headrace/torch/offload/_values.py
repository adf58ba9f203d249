# SPDX-License-Identifier: Apache-2.0
"""Values of an offloaded model in and out: gathered(), state_dict() and load_state_dict().

What is changed lies in memory of torch's own meanwhile, and goes into the engine as weights at the
end: moments and step counts stay, and so do the masters of elements whose bits did not change.
"""
from __future__ import annotations

import contextlib
import functools
import weakref
import zlib
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Optional

import torch

from ..._errors import ArgumentError, PeerLost, WrongState
from ..._library import unbroken
from .._part import memory_of
from .._spaces import space_for
from ._device import CPU
from ._groups import OffloadedGroup, Slot, has_bytes_of, quoted
from ._hooks import Hook
from ._wrapped import form_of, part_at

if TYPE_CHECKING:
    from ._offload import Offload


# ---- gathered() ----
@contextlib.contextmanager
def read_scope(offload: "Offload", parameters: list) -> Iterator[None]:
    """A write is found by its bytes, so that one through .data or numpy() is found too."""
    bound: list = []
    slots = [slot for parameter in parameters for slot in offload.slots_of(parameter)]

    def bind(group: OffloadedGroup) -> None:
        offload.passes.bind(group)
        group.scopes += 1
        bound.append(group)

    try:
        for group in offload.groups_of(parameters):
            unbroken(functools.partial(bind, group))
        sums = [_checksum(slot) for slot in slots]
        yield
        written = [slot for slot, before in zip(slots, sums) if _checksum(slot) != before]
    finally:
        for group in bound:
            group.scopes -= 1
            offload.passes.release(group)
    if written:
        written[0].group.spoil(written[0])


def _checksum(slot: Slot) -> int:
    return checksum(slot.parameter.detach().cpu())


def checksum(tensor: torch.Tensor) -> int:
    """Of the bytes of a row-major one in host memory."""
    return zlib.crc32(memory_of(tensor))


@contextlib.contextmanager
def modify_scope(offload: "Offload", parameters: list, of_rank: Optional[int]) -> Iterator[None]:
    """After an exception, the engine's values are as they were. of_rank: see gathered()."""
    slots = [slot for parameter in parameters for slot in offload.slots_of(parameter)]
    offload.require_none_in_use("gathered() for changing")
    offload.ranks.refuse_unknown(of_rank)
    for slot in slots:
        slot.group.refuse_spoiled()
    try:
        with _taken_together(offload, slots, of_rank):
            begin_changes(slots)
            yield
            offload.refuse_replaced()
            for slot in slots:
                _check_change(slot)
    except BaseException:
        for slot in slots:
            drop_change(slot)
        with contextlib.suppress(PeerLost):  # what came first is the cause
            _bind_kept(slots)
        raise
    end_changes(slots)


@contextlib.contextmanager
def _taken_together(offload: "Offload", slots: list, of_rank: Optional[int]) -> Iterator[None]:
    """Several ranks go on with a change, or none does: each gives the engine a part of the new
    values. of_rank: whose values they are; None: all have the same."""
    ranks, what = offload.ranks, _named(slots)
    try:
        yield
    except BaseException as error:
        if ranks.several and not isinstance(error, PeerLost):
            with contextlib.suppress(PeerLost):  # what came first is the cause
                ranks.end_change(what, error)
        raise
    if not ranks.several:
        return
    for slot in slots:
        slot.parameter.data = slot.parameter.data.contiguous()
    ranks.end_change(what, None)
    if of_rank is None:
        ranks.refuse_other_values([slot.full_name for slot in slots],
                                  [checksum(slot.parameter.data) for slot in slots])
        return
    for slot in slots:
        ranks.values_of(of_rank, slot.parameter.data)


def _named(slots: list) -> str:
    names = [f"'{slot.full_name}'" for slot in slots[:3]]
    return ", ".join(names) + (f" and {len(slots) - 3} more" if len(slots) > 3 else "")


def begin_changes(slots: Iterable[Slot], to_load: bool = False) -> None:
    """to_load: all values are replaced, so a write to the old ones is forgotten."""
    for group, own in _by_group(slot for slot in slots if not slot.changing):
        for slot in own:
            slot.refuse_replaced()
        if group.bindings > int(group.kept):
            raise WrongState(f"{quoted(group.name)} is in use, so '{own[0].full_name}' cannot be "
                             "changed; it was not. Do it outside of forward, backward and other "
                             "scopes.")
        if group.kept and group.bindings:
            group.release_to_load() if to_load else group.release()
        if group.spoiled:  # there is no value; end_changes() waits for the whole group
            for slot in own:
                _begin_change(slot, _nothing(slot))
            continue
        with group.reader() as read:
            for slot in own:
                _begin_change(slot, _copy_of(slot, read))


def _begin_change(slot: Slot, space: torch.Tensor) -> None:
    slot.parameter.data = space.to(slot.group.device)
    slot.changing = True


def _nothing(slot: Slot) -> torch.Tensor:
    space = torch.zeros(slot.shape, dtype=slot.dtype, device=CPU)
    return space if slot.kind == "u8" else space.fill_(torch.nan)


def _copy_of(slot: Slot, read: Callable[[Slot, torch.Tensor], None]) -> torch.Tensor:
    space = torch.empty(slot.shape, dtype=slot.dtype, device=CPU)
    read(slot, space)
    return space


def drop_change(slot: Slot) -> None:
    if slot.changing:
        slot.follow()
        slot.park()
        slot.changing = False


def _check_change(slot: Slot) -> None:
    slot.follow()
    found = slot.parameter.data
    if (found.dtype, found.shape, found.device) != (slot.dtype, slot.shape, slot.group.device):
        raise ArgumentError(
            f"'{slot.full_name}' is now {found.dtype} of shape {tuple(found.shape)} on "
            f"{found.device}, and was {slot.dtype} of {tuple(slot.shape)} on {slot.group.device}; "
            "nothing was changed. Copy values into it: p.copy_(...).")


def end_changes(slots: Iterable[Slot]) -> None:
    """Takes the new values. Those that an error leaves out keep torch's memory: a repetition of the
    change takes them."""
    slots = [slot for slot in slots if slot.changing]
    for slot in slots:
        if not slot.group.spoiled:
            slot.group.load_weights(slot, slot.parameter.data.contiguous().cpu())
            drop_change(slot)
    for group in _groups_of(slots):
        if group.spoiled:
            _load_whole(group)
        group.outdate()
    _bind_kept(slots)


def _load_whole(group: OffloadedGroup) -> None:
    """Once all its parameters have new values."""
    if not all(slot.changing for slot in group.slots):
        return
    values = {slot.name: slot.parameter.data.contiguous().cpu() for slot in group.slots}
    group.group.load({name: memory_of(tensor) for name, tensor in values.items()})
    group.spoiled = False
    for slot in group.slots:
        drop_change(slot)


def _groups_of(slots: Iterable[Slot]) -> list[OffloadedGroup]:
    return list({id(slot.group): slot.group for slot in slots}.values())


def _by_group(slots: Iterable[Slot]) -> list[tuple]:
    """Each group with those of its slots."""
    listed = list(slots)
    return [(group, [slot for slot in listed if slot.group is group])
            for group in _groups_of(listed)]


def _bind_kept(slots: Iterable[Slot]) -> None:
    for group in _groups_of(slots):
        if group.kept and group.bindings == 0 and not any(one.changing for one in group.slots):
            group.bind()


# ---- state_dict() and load_state_dict(), in the hooks of each module that has parameters ----
def watch(offload: "Offload") -> list:
    """Returns handles that remove the hooks."""
    hooks: list = []
    ties = _Ties(offload)
    for module in offload.model.modules():
        own = {name: offload.slots_of(parameter)
               for name, parameter in module._parameters.items()
               if parameter is not None and offload.has(parameter)}
        if own:
            hooks += _watch_module(offload, module, own, ties)
    return hooks


def _watch_module(offload: "Offload", module: torch.nn.Module, own: dict, ties: "_Ties") -> list:
    def after_state_dict(_module: Any, state_dict: dict, prefix: str, _metadata: Any) -> None:
        present = {name: slots for name, slots in own.items() if prefix + name in state_dict}
        for name, slots in present.items():
            if module._parameters.get(name) is not slots[0].whole:
                raise Slot.replaced(prefix + name)
        copies = ties.snapshots(slot for slots in present.values() for slot in slots)
        for name, slots in present.items():
            whole, form = slots[0].whole, form_of(slots[0].whole)
            parts = {slot.part: copies[slot] for slot in slots}
            state_dict[prefix + name] = parts[""] if form is None else form.rebuilt(
                lambda path: parts[path] if path in parts else part_at(whole, path).clone())

    def before_load(_module: Any, state_dict: dict, prefix: str, metadata: Any,
                    *_lists: Any) -> None:
        if metadata.get("assign_to_params_buffers"):
            raise ArgumentError("load_state_dict(assign=True) would put other tensors in place "
                                "of the parameters that headrace has; nothing was loaded. "
                                "Leave assign out.")
        offload.forward.end_broken()
        begin_changes((slot for name, slots in own.items() if prefix + name in state_dict
                       for slot in slots), to_load=True)

    def after_load(_module: Any, _incompatible: Any) -> None:
        changed = [slot for slots in own.values() for slot in slots if slot.changing]
        if not changed:
            return
        with _taken_together(offload, changed, None):
            for slot in changed:
                _check_change(slot)
        end_changes(changed)

    return [module.register_state_dict_post_hook(Hook(after_state_dict)),
            module.register_load_state_dict_pre_hook(Hook(before_load)),
            module.register_load_state_dict_post_hook(Hook(after_load))]


class _Ties:
    """Copies of values for state_dict(). A parameter with several names has one copy for all of
    them, as long as it lives and neither side was written: so writers see that they are one."""

    def __init__(self, offload: "Offload") -> None:
        self._folder = offload.folder
        names: dict = {}
        for name, parameter in offload.model.named_parameters(remove_duplicate=False):
            names.setdefault(parameter, []).append(name)
        self._tied = {parameter for parameter, given in names.items() if len(given) > 1}
        # By slot: the copy, its version, and the generation of the values; None: they change.
        self._last: dict = {}

    def snapshots(self, slots: Iterable[Slot]) -> dict[Slot, torch.Tensor]:
        copies = {}
        for group, own in _by_group(slots):
            read = None
            with contextlib.ExitStack() as scope:
                # Not only where it is needed: that may differ between ranks.
                if not all(slot.changing for slot in own):
                    read = scope.enter_context(group.reader())
                for slot in own:
                    copies[slot] = self._snapshot(slot, read)
        return copies

    def _snapshot(self, slot: Slot, read: Any) -> torch.Tensor:
        if slot.whole not in self._tied:
            return self._copy(slot, read)
        found = self._found(slot)
        if found is None:
            found = self._copy(slot, read)
            generation = None if slot.changing else slot.group.generation
            self._last[slot] = (weakref.ref(found), found._version, generation)
        return found

    def _found(self, slot: Slot) -> Optional[torch.Tensor]:
        weak, version, generation = self._last.get(slot, (lambda: None, 0, 0))
        found = weak()
        if found is None or found._version != version:
            return None
        is_same = has_bytes_of(slot.parameter, found) if slot.changing \
            else generation == slot.group.generation
        return found if is_same else None

    def _copy(self, slot: Slot, read: Any) -> torch.Tensor:
        space = space_for(self._folder, slot.shape, slot.dtype)
        if slot.changing:
            return space.copy_(slot.parameter.detach())
        read(slot, space)
        return space
