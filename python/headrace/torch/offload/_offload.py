# SPDX-License-Identifier: Apache-2.0
"""A model whose parameters live in an engine: its groups, hooks and life."""
from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

import torch

from ..._engine import Engine, Group, Parameter
from ..._errors import Error, PeerLost, WrongState
from ..._library import unbroken
from .._part import memory_of
from .._spaces import give_memory_back
from . import _values
from ._backward import Passes
from ._blocks import Division
from ._building import before_conversions
from ._checkpoints import HostCheckpoints
from ._device import move_buffers
from ._forward import Forward
from ._gradients import Intake
from ._groups import OffloadedGroup, Slot, quoted
from ._hooks import Hook
from ._ranks import Ranks, refuse_late_ranks
from ._wrapped import part_at

_live: "weakref.WeakSet[Offload]" = weakref.WeakSet()


class Offload:
    def __init__(self, model: torch.nn.Module, divisions: list[Division], folder: Optional[str],
                 device: torch.device, ranks: Ranks,
                 words: Callable[[str], str], host_checkpoints: bool = False) -> None:
        ranks.refuse_gpu(device)
        self._words = words  # of errors and log lines
        self.model, self.device, self.ranks = model, device, ranks
        self.folder = folder  # for the files of state_dict(); None: it takes memory
        self.groups = [OffloadedGroup(one.name, one.module, one.members, one.module is None, device,
                                      model)
                       for one in divisions]
        self._tied = {one.name for one in divisions if one.tied_to_blocks}
        self.slots = [slot for group in self.groups for slot in group.slots]
        self._slots_of: dict[torch.Tensor, list[Slot]] = {}
        for slot in self.slots:
            self._slots_of.setdefault(slot.whole, []).append(slot)
        self._lock = threading.RLock()
        self.passes = Passes(self.groups, self._lock)
        self.forward = Forward(self.groups, self.passes, self._lock)
        self.checkpoints = HostCheckpoints(device) if host_checkpoints else None
        self._hooks: list = []
        self._ends_asking: Optional[Callable[[], None]] = None
        self._asleep = False
        self._binds_before = 0  # gradients can have come

    def has(self, parameter: torch.Tensor) -> bool:
        return parameter in self._slots_of

    def wholes_of(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Its parameters among them, and those that consist of some of them."""
        whole_of = {part_at(slot.whole, slot.part): slot.whole for slot in self.slots}
        found = [whole_of.get(one, one) for one in tensors]
        return list(dict.fromkeys(one for one in found if self.has(one)))

    def slots_of(self, parameter: torch.Tensor) -> list[Slot]:
        """Several if it consists of other tensors."""
        return self._slots_of.get(parameter, [])

    def slot_of(self, parameter: torch.Tensor) -> Slot:
        return self._slots_of[parameter][0]

    def groups_of(self, parameters: Iterable[torch.Tensor]) -> list[OffloadedGroup]:
        wanted = {id(self.slot_of(parameter).group) for parameter in parameters
                  if self.has(parameter)}
        return [group for group in self.groups if id(group) in wanted]

    # ---- the start ----
    def start(self, settings: dict, constants: Mapping[int, dict],
              set_of: Mapping[torch.Tensor, int]) -> dict:
        """Makes the engine, and moves the values into it, group by group. Returns the engine's set
        of hyperparameters by param_group. After an error the model is as it was."""
        self.engine = Engine(settings, gpu=self.device.index,  # a CPU has none
                             collective=self.ranks.collective, words=self._words)
        self.ranks.watch(self.engine)
        moved: list = []
        try:
            sets = {index: self.engine.add_hyperparameters(**values)
                    for index, values in constants.items()}
            added = [self._add(group, sets, set_of) for group in self.groups]
            self._freeze()
            if self.ranks.several:
                self.ranks.refuse_another_order([self.slot_of(one).full_name for one in set_of])
                self.passes.join_ranks(self.ranks.least(self.engine.plan()["gather_slots"]))
            for group, of_engine in zip(self.groups, added):
                group.attach(self.engine, of_engine, joins=self.ranks.several)
                self._move(group, moved)
            give_memory_back()
            move_buffers(self.model, self.device)
            self.bind_kept()
            self.note_no_gradients()
            self._watch()
        except BaseException as error:
            self.ranks.tell(error)
            self._undo(moved)
            raise
        _live.add(self)
        return sets

    def _freeze(self) -> None:
        if self.device.type != "cpu":
            torch.cuda.empty_cache()  # the engine takes its memory from the driver
        self.engine.freeze()

    def _add(self, group: OffloadedGroup, sets: Mapping[int, int],
             set_of: Mapping[torch.Tensor, int]) -> Group:
        added = self.engine.add_group(group.name, {
            slot.name: Parameter(slot.engine_shape(), slot.kind,
                                 sets.get(set_of.get(slot.whole, -1), 0), slot.frozen)
            for slot in group.slots})
        if group.kept:
            self.engine.keep_bound(added)
        # f32 sums of f32 gradients cost nothing.
        is_f32 = all(slot.frozen or slot.dtype == torch.float32 for slot in group.slots)
        if is_f32 or group.name in self._tied:
            self.engine.expect_repeated_gradients(added)
        return added

    def _move(self, group: OffloadedGroup, moved: list) -> None:
        def park() -> None:
            moved.append(group)
            for slot in group.slots:
                slot.park()

        values = {slot.name: slot.parameter.data.resolve_conj().resolve_neg().cpu()
                  for slot in group.slots}
        if self.ranks.several:
            self.ranks.refuse_other_values([slot.full_name for slot in group.slots],
                                           list(map(_values.checksum, values.values())))
        group.group.load({name: memory_of(tensor) for name, tensor in values.items()})
        unbroken(park)

    def _watch(self) -> None:
        self.intake = Intake(self.slots, self.engine, self.passes, self.ranks.several)
        self._hooks += self.intake.watch()
        for group in self.groups:
            if group.module is not None:
                self._hooks += self.forward.watch(group)
        begin = Hook(lambda _module, _arguments: self._begin_forward())
        self._hooks.append(self.model.register_forward_pre_hook(begin, prepend=True))
        self._hooks += _values.watch(self)
        self._ends_asking = before_conversions(self._refuse_conversion)
        if self.checkpoints is not None:
            self.checkpoints.start()

    def _refuse_conversion(self, module: torch.nn.Module, convert: Callable[..., Any],
                           recurse: bool = True) -> None:
        """Half of the model would be converted: torch goes from tensor to tensor."""
        for parameter in module.parameters(recurse):
            for slot in self.slots_of(parameter):
                if not slot.changing and not slot.part:  # those of several tensors are followed
                    slot.refuse_conversion(convert)

    def _undo(self, moved: list) -> None:
        try:
            self._take_back(moved)
        except Error:
            for slot in (slot for group in moved if not group.is_back for slot in group.slots):
                slot.lose_values("offload() failed, and they could not be brought back. Make or "
                                 "load the model again.")
        self._end()

    # ---- between passes ----
    def _begin_forward(self) -> None:
        self._refuse_asleep("forward")
        self.forward.end_broken()
        self.forget_masters()
        with self._lock:
            for group in self.groups:
                if group.kept:
                    group.refuse_replaced()
                    if group.bindings == 0 and not any(slot.changing for slot in group.slots):
                        group.bind()  # what a load that failed has left says so

    def bind_kept(self) -> None:
        for group in self.groups:
            if group.kept and group.bindings == 0:
                group.bind()

    def release_kept(self) -> None:
        for group in self.groups:
            if group.kept and group.bindings == 1:
                group.release()

    @contextlib.contextmanager
    def without_slots(self) -> Iterator[None]:
        """For an update: what a GPU's slots hold is old after it, and so is what ranks joined."""
        if self.device.type == "cpu" and not self.ranks.several:
            yield
            return
        self.release_kept()
        try:
            yield
        except BaseException:
            with contextlib.suppress(PeerLost):  # what came first is the cause
                self.bind_kept()
            raise
        self.bind_kept()

    @contextlib.contextmanager
    def unbound(self, parameters: Optional[Iterable[torch.Tensor]] = None) -> Iterator[None]:
        """Their groups, or None: all groups, have no binding within, also those that are always
        bound."""
        concerned = self.groups if parameters is None else self.groups_of(parameters)
        groups = [group for group in concerned if group.bindings]
        self.require_none_in_use("a load")
        for group in groups:
            group.refuse_replaced()
        for group in groups:
            group.release()
        try:
            yield
        except BaseException:
            with contextlib.suppress(Error):  # what came first is the cause
                self._bind(groups)
            raise
        self._bind(groups)

    @staticmethod
    def _bind(groups: list) -> None:
        for group in groups:
            group.bind()

    def require_none_in_use(self, call: str) -> None:
        self.forward.end_broken()
        for group in self.groups:
            changing = any(slot.changing for slot in group.slots)
            if changing or group.bindings > int(group.kept):
                raise WrongState(
                    f"{call} while {quoted(group.name)} is in use: its values would not be "
                    "current. End its scope of headrace.gathered(), and call it outside of "
                    "forward and backward.")

    def require_no_gradients(self, call: str) -> None:
        self.forward.end_broken()
        self.intake.refuse_reset()
        if self.intake.taken():
            raise WrongState(f"{call} while the engine has gradients that no step has used; "
                             "nothing was done. Call step() or zero_grad() first.")

    def refuse_replaced(self) -> None:
        """A parameter that the program put in the place of another one would not be trained."""
        for name, parameter in self.model.named_parameters():
            if not self.has(parameter) and parameter.numel() > 0:
                raise WrongState(
                    f"parameter '{name}' came into the model after offload(), so it is neither "
                    "trained nor saved; nothing was done. Bring the model back with "
                    "optimizer.restore(), change it, and offload it again; values alone can be "
                    "written within headrace.gathered(module, modify=True).")

    def refuse_replaced_kept(self) -> None:
        """Where groups are bound again after a call's work, which would then be half done."""
        for group in (one for one in self.groups if one.kept):
            group.refuse_replaced()

    def gradients_for_step(self) -> Intake:
        refuse_late_ranks(self.ranks)
        self.require_none_in_use("step()")
        self.refuse_replaced()
        self.intake.refuse_reset()
        self.passes.refuse_partial_gradients()
        self.intake.take_given()
        if self.checkpoints is not None:
            self.checkpoints.warn_unused()
        self.intake.refuse_frozen(slot for slot in self.slots if slot.part)
        self.refuse_replaced_kept()
        for group in (one for one in self.groups if one.kept):
            written = group.written() if group.bindings else None  # none: a load has failed
            if written is not None:
                group.spoil(written)
        return self.intake

    def drop_gradients(self) -> None:
        """Of several ranks, others may have gradients where this one has none."""
        self.forward.end_broken()
        if self.intake.taken() or self.passes.has_partial_gradients \
                or self.ranks.several and self._binds() > self._binds_before:
            self.intake.discard()
            self.note_no_gradients()

    def note_no_gradients(self) -> None:
        """On any rank. All of them bind the same groups, and no gradient comes without."""
        self._binds_before = self._binds()

    def _binds(self) -> int:
        return sum(group.binds for group in self.groups)

    def outdate(self, parameters: Iterable[torch.Tensor]) -> None:
        for group in self.groups_of(parameters):
            group.outdate()

    def all_loaded(self) -> None:
        """Every group has been given all of its values."""
        self.forget_masters()
        for group in self.groups:
            group.spoiled = False
            group.outdate()

    def forget_masters(self) -> None:
        for group in self.groups:
            group.masters = {}

    def counts(self) -> dict:
        kept = {} if self.checkpoints is None else {"checkpoints": self.checkpoints.report()}
        return {"binds": {group.name: group.binds for group in self.groups},
                "stale_aliases": sum(group.stale_aliases for group in self.groups), **kept}

    # ---- life ----
    def restore(self) -> None:
        self.require_none_in_use("restore()")
        self.require_no_gradients("restore()")
        self._refuse_asleep("restore()")
        self.release_kept()
        self._take_back(self.groups)
        self._end()

    @staticmethod
    def _take_back(groups: list) -> None:
        """After an error, such as too little memory, it can be repeated."""
        for group in groups:
            if not group.is_back:
                group.take_back()

    def close(self) -> None:
        self.require_none_in_use("close()")
        self._end()
        for slot in self.slots:
            slot.settle()
            slot.lose_values("close() of headrace's optimizer has dropped them. Use restore() to "
                             "keep them, or state_dict() before.")

    def _end(self) -> None:
        _live.discard(self)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._ends_asking is not None:
            self._ends_asking()
            self._ends_asking = None
        if self.checkpoints is not None:
            self.checkpoints.stop()
        if hasattr(self, "intake"):
            self.intake.forget()
        for group in self.groups:
            group.drop_bindings()
        self.engine.close()
        self.ranks.leave()

    def sleep(self, directory: Optional[str]) -> None:
        self._refuse_asleep("sleep()")
        self.require_none_in_use("sleep()")
        self.require_no_gradients("sleep()")
        self.refuse_replaced_kept()
        self.release_kept()
        try:
            self.engine.sleep(directory)
            self._asleep = True
        finally:
            if not self._asleep:
                self.bind_kept()

    def wake(self) -> None:
        self.refuse_replaced_kept()
        self.engine.wake()
        self._asleep = False
        self.bind_kept()

    def _refuse_asleep(self, call: str) -> None:
        if self._asleep:
            raise WrongState(f"{call} while the model is asleep; nothing was done. Call "
                             "optimizer.wake() first.")


def live() -> list[Offload]:
    return list(_live)
