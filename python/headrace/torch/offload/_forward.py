# SPDX-License-Identifier: Apache-2.0
"""The hooks around a block's forward pass: bind before, release after, also after an exception.

Recomputation in checkpoints runs a block's forward pass within a backward pass: the backward pass
then holds the group until it has come through the block.
"""
from __future__ import annotations

import dataclasses
import threading
from typing import Any, Iterator, Mapping, Optional

import torch

from . import _private
from ._backward import Call, Passes
from ._groups import OffloadedGroup
from ._hooks import Hook


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors_in(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors_in(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))  # it may be unset


def are_ours(hooks: Optional[tuple]) -> bool:
    return hooks is not None and isinstance(getattr(hooks[0], "__self__", None), Call)


def are_of_checkpoint(hooks: tuple) -> bool:
    return getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"


class _Frame:
    """A forward pass of a block that has begun."""

    def __init__(self, group: OffloadedGroup) -> None:
        self.group = group
        self.call: Optional[Call] = None
        self.inputs: list = []
        self.hooks: Optional[torch.autograd.graph.saved_tensors_hooks] = None

    def outputs_in(self, result: Any) -> list:
        """Without inputs that the block hands on: a gradient reaches those from elsewhere too."""
        inputs = {id(tensor) for tensor in self.inputs}
        return [tensor for tensor in tensors_in(result) if id(tensor) not in inputs]

    def end(self) -> None:
        if self.hooks is not None:
            self.hooks.__exit__(None, None, None)
            self.hooks = None

    def end_lost_scope(self) -> None:
        """If a scope of the program's hooks, around ours, has ended by now, it has ended ours
        instead."""
        if self.hooks is not None and self.call is not None and self.call.outer is not None \
                and _private.saved_tensor_hooks() == self.call.outer:
            _private.pop_saved_tensor_hooks()


class Forward:
    def __init__(self, groups: list, passes: Passes, lock: Any) -> None:
        self._groups, self._passes, self._lock = groups, passes, lock
        self._frames: dict[int, list[_Frame]] = {}  # by thread: those that are open

    def _mine(self) -> list[_Frame]:
        return self._frames.setdefault(threading.get_ident(), [])

    def watch(self, group: OffloadedGroup) -> list:
        """Returns handles that remove the hooks."""
        module = group.module
        before = Hook(lambda _module, arguments, named: self._before(group, arguments, named))
        after = Hook(lambda _module, _arguments, _named, result: self._after(group, result))
        return [module.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
                module.register_forward_hook(after, with_kwargs=True, always_call=True)]

    def _before(self, group: OffloadedGroup, arguments: tuple, named: dict) -> None:
        group.refuse_replaced()
        frame = _Frame(group)
        with self._lock:  # another thread must see the binding with its frame
            self._passes.bind(group)
            self._mine().append(frame)
        try:
            if torch.is_grad_enabled():
                self._begin(frame, [*tensors_in(arguments), *tensors_in(named)])
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        with self._lock:
            self._passes.release(self._mine().pop().group)

    def _begin(self, frame: _Frame, inputs: list) -> None:
        outer = _private.saved_tensor_hooks()
        frame.call = Call(self._passes, frame.group, outer)
        frame.call.watch_inputs(inputs)
        frame.inputs = inputs
        if _private.backward_pass() != -1:
            self._passes.reached(frame.call)  # recomputed: backward comes next
        # A checkpoint's save nothing, and count what they are given.
        if outer is None or not (are_ours(outer) or are_of_checkpoint(outer)):
            frame.hooks = torch.autograd.graph.saved_tensors_hooks(frame.call.pack,
                                                                   frame.call.unpack)
            frame.hooks.__enter__()

    def _after(self, group: OffloadedGroup, result: Any) -> None:
        """result: None after an exception."""
        frames = self._mine()
        if not frames or frames[-1].group is not group:
            return  # the pass did not begin
        frame = frames[-1]
        frame.end()
        try:
            if frame.call is not None and torch.is_grad_enabled():
                frame.call.watch_outputs(frame.outputs_in(result))
        finally:
            self._leave()

    def end_broken(self) -> None:
        """Outside of all passes: ends what an exception has left open. torch calls no hook of a
        forward pass that Ctrl-C ends."""
        if _private.backward_pass() != -1:
            return
        while self._mine():
            self._mine()[-1].end_lost_scope()
            self._leave()
        del self._frames[threading.get_ident()]
        while are_ours(_private.saved_tensor_hooks()):
            _private.pop_saved_tensor_hooks()
        with self._lock:
            if self._passes.end_broken() and not any(list(self._frames.values())):
                self._end_lost_bindings()

    def _end_lost_bindings(self) -> None:
        """Of passes that Ctrl-C ended between two lines of this package."""
        for group in self._groups:
            while group.bindings > group.scopes + int(group.kept):
                group.release()
