# SPDX-License-Identifier: Apache-2.0
"""Which groups a backward pass holds, and what autograd saves of a block's forward pass.

Autograd saves tensors for backward, among them a block's parameters and views of them. Of those it
keeps the place here, not the bytes: the group is parked between forward and backward, and the place
is looked up in the binding that the backward pass makes. Hooks of the program's around the block,
such as save_on_cpu(), get the other tensors.

A pass binds a group when the first gradient reaches an output of the block, or something that was
saved is needed. It holds the group until all gradients of its trained parameters and of the block's
inputs have come. (Those of the parameters alone would not do: a frozen weight is read on the way to
the inputs.) What never comes, such as the gradient of an unused parameter, ends with the pass.

Several ranks bind groups together, and a parameter may have no gradient on some of them. So there a
pass holds a group until the gradients of the block's inputs have come, and no more groups than each
rank has slots for: nothing else would let all ranks bind a group again, or none.
"""
from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, Callable, NamedTuple, Optional

import torch

from ..._errors import OutOfBudget, WrongState
from . import _private
from ._groups import OffloadedGroup, Slot, quoted
from ._wrapped import Form, form_of, parts_of

_log = logging.getLogger("headrace")


class Call:
    """One forward pass of a block, with gradients. It is the context of the tensors saved in it."""

    def __init__(self, passes: "Passes", group: OffloadedGroup,
                 outer: Optional[tuple]) -> None:
        self.passes, self.group = passes, group
        self.outer = outer  # the program's own pack and unpack
        self.inputs: dict = {}  # by number, the hook on it

    def watch_inputs(self, tensors: list) -> None:
        """An input may live longer than the graph, such as a parameter outside of all blocks: so
        its hook does not keep this call, and goes with it."""
        weak = weakref.ref(self)

        def watch(number: int) -> Any:
            def came(_gradient: torch.Tensor) -> None:
                call = weak()
                if call is not None:
                    call.passes.arrived(call.group, (call, number))
            return came

        for number, tensor in enumerate(tensors):
            if tensor.requires_grad:
                self.inputs[number] = tensor.register_hook(watch(number))

    def __del__(self) -> None:
        for hook in getattr(self, "inputs", {}).values():  # Ctrl-C may end __init__
            hook.remove()

    def watch_outputs(self, tensors: list) -> None:
        for tensor in tensors:
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(lambda _gradient: self.passes.reached(self))

    # ---- torch.autograd.graph.saved_tensors_hooks ----
    def pack(self, tensor: torch.Tensor) -> Any:
        parts = dict(parts_of(tensor))
        if all(self.group.section_of(part) is None for part in parts.values()):
            return foreign(tensor) if self.outer is None else \
                Packed(self.outer[0](tensor), self.outer[1])
        form = form_of(tensor)
        if form is not None:
            return _Wrapped(form, {path: self.pack(part) for path, part in parts.items()})
        section = self.group.section_of(tensor)
        assert section is not None  # looked above
        return _Place(section, tensor.dtype, tensor.storage_offset(), tensor.shape,
                      tensor.stride(), self.group.generation)

    def unpack(self, saved: Any) -> torch.Tensor:
        if type(saved) is Foreign:
            return saved.checked()
        if type(saved) is Packed:
            return saved.unpack(saved.value)
        if type(saved) is _Wrapped:
            return saved.form.rebuilt(lambda path: self.unpack(saved.parts[path]))
        if saved.generation != self.group.generation:
            raise WrongState(
                f"backward() over a graph from before a step or a load: {quoted(self.group.name)} "
                "has other values now. Run the forward pass again.")
        self.passes.reached(self)
        return self.group.view(saved.section, saved.dtype, saved.offset, saved.shape, saved.stride)


class _Place(NamedTuple):
    section: str
    dtype: torch.dtype
    offset: Any
    shape: Any
    stride: Any
    generation: int


class _Wrapped(NamedTuple):
    form: Form
    parts: dict  # by path, as packed


class Packed(NamedTuple):
    """By a hook of the program's."""

    value: Any
    unpack: Callable[[Any], torch.Tensor]


class Foreign(NamedTuple):
    """Of a tensor that is not the group's, what foreign() keeps."""

    tensor: torch.Tensor
    version: int

    def checked(self) -> torch.Tensor:
        refuse_changed(self.tensor, self.version)
        return self.tensor


def foreign(tensor: torch.Tensor) -> Foreign:
    """An operation may save its own result, such as relu() and softmax(). The result itself would
    keep the operation, which keeps what was packed: a cycle that no collector finds. A detached
    one has the same memory and version, and torch adds what it belongs to."""
    kept = tensor if tensor.grad_fn is None else tensor.detach()
    return Foreign(kept, kept._version)


def refuse_changed(tensor: torch.Tensor, version: int, shape: Any = None) -> None:
    """torch compares no versions of what hooks have packed. shape: if the tensor has another."""
    if tensor._version != version:
        shape = tuple(tensor.shape if shape is None else shape)
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a {tensor.dtype} of shape {shape} is at version {tensor._version}; "
            f"expected version {version} instead.")


class _Hold:
    """One binding of a group, by a pass."""

    def __init__(self, task: int, opened: int, several_ranks: bool) -> None:
        self.task, self.opened, self._several_ranks = task, opened, several_ranks
        self.calls: set = set()
        self.awaited: set = set()  # indices of slots, and inputs of calls

    def await_gradients_of(self, call: Call) -> None:
        """Those of the parameters come once for all calls, but for each call in a reentrant
        checkpoint."""
        self.calls.add(call)
        if not self._several_ranks:
            self.awaited.update(slot.index for slot in call.group.slots
                                if slot.parameter.requires_grad)
        self.awaited.update((call, number) for number in call.inputs)

    def rank(self) -> tuple:
        """The lowest is let go first when memory runs out: what awaits inputs alone, or nothing;
        and of those the oldest, which passes have left behind them."""
        return any(isinstance(key, int) for key in self.awaited), self.opened


class Passes:
    """Threads: under the lock of all groups."""

    def __init__(self, groups: list, lock: Any) -> None:
        self._groups, self._lock = groups, lock
        self._running: dict[int, list] = {}  # by task: the thread, and the gradients that came
        self._opened = 0
        self._most_bound: Optional[int] = None  # with several ranks, as the next
        self._seen: set[Slot] = set()  # that the outermost pass has brought gradients of
        self._has_warned = False
        self._partial = 0  # gradients of passes that an exception has ended

    def join_ranks(self, gather_slots: int) -> None:
        """gather_slots: the least that any rank has."""
        self._most_bound = max(1, gather_slots - sum(group.kept for group in self._groups))

    def reached(self, call: Call) -> None:
        """A gradient has reached an output of the call, or what it saved is needed."""
        with self._lock:
            group, task = call.group, _private.backward_pass()
            if task == -1:
                raise WrongState(
                    f"a tensor that autograd saved of {quoted(group.name)} was asked for outside "
                    "of backward(), and the group is parked. Ask within the backward pass.")
            if group.hold is None:
                self._bind(group)
                self._opened += 1
                group.hold = _Hold(task, self._opened, self._most_bound is not None)
                self._begin(task)
            if call not in group.hold.calls:
                group.hold.await_gradients_of(call)

    def coming(self, slot: Slot) -> bool:
        """The engine is about to be given a gradient. Returns whether it is the pass's first."""
        with self._lock:
            task = _private.backward_pass()
            self._begin(task)
            self._running[task][1] += 1
            if self._most_bound is not None:
                self._warn_of_second(slot)
            return self._running[task][1] == 1

    def _warn_of_second(self, slot: Slot) -> None:
        """Within one pass and those that run in it. Sums are in the order of arrival, then of
        ranks."""
        if slot in self._seen and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a second gradient of '%s' came in one backward pass, as from two blocks that run "
                "in checkpoint(use_reentrant=True): the results of several ranks then differ from "
                "those of one in their last bits. With use_reentrant=False they are the same.",
                slot.full_name)
        self._seen.add(slot)

    def arrived(self, group: OffloadedGroup, key: Any) -> None:
        """A gradient of the slot with this index, or of an input of a call."""
        with self._lock:
            if group.hold is not None:
                group.hold.awaited.discard(key)
                if not group.hold.awaited:
                    self._let_go(group)

    def bind(self, group: OffloadedGroup) -> None:
        with self._lock:
            self._bind(group)

    def release(self, group: OffloadedGroup) -> None:
        with self._lock:
            group.release()

    def _bind(self, group: OffloadedGroup) -> None:
        while self._is_one_too_many(group) and self._let_go_of_one():
            pass
        while True:
            try:
                return group.bind()
            except OutOfBudget:
                if not self._let_go_of_one():
                    raise

    def _is_one_too_many(self, group: OffloadedGroup) -> bool:
        if self._most_bound is None or group.bindings > 0:
            return False
        return sum(one.bindings > 0 and not one.kept for one in self._groups) >= self._most_bound

    def _let_go_of_one(self) -> bool:
        held = [group for group in self._groups
                if group.hold is not None and group.bindings == 1 and not group.kept]
        if held:
            self._let_go(min(held, key=lambda group: group.hold.rank()))
        return bool(held)

    @staticmethod
    def _let_go(group: OffloadedGroup) -> None:
        group.hold = None
        group.release()

    def _begin(self, task: int) -> None:
        if task not in self._running:
            self._running[task] = [threading.get_ident(), 0]
            _private.at_end_of_pass(lambda: self._end(task))

    def _end(self, task: int) -> None:
        with self._lock:
            self._running.pop(task, None)
            if not self._running:
                self._seen.clear()
            for group in self._groups:
                if group.hold is not None and group.hold.task == task:
                    self._let_go(group)

    # ---- passes that an exception has ended, of which torch tells nobody ----
    def end_broken(self) -> bool:
        """Call it outside of all passes of this thread. Returns whether no other thread has one."""
        me = threading.get_ident()
        with self._lock:
            for task, (thread, arrived) in list(self._running.items()):
                if thread == me:
                    self._partial += arrived
                    self._end(task)
            if self._running:
                return False
            for group in self._groups:  # of passes that Ctrl-C ended at their end
                if group.hold is not None:
                    self._let_go(group)
            return True

    def refuse_partial_gradients(self) -> None:
        if self._partial:
            raise WrongState(
                f"a backward pass ended in an exception after {self._partial} of its gradients had "
                "reached the engine: a step would train on part of a pass, and was not made. Call "
                "optimizer.zero_grad(), then go on.")

    @property
    def has_partial_gradients(self) -> bool:
        return self._partial > 0

    def forget_partial_gradients(self) -> None:
        self._partial = 0
