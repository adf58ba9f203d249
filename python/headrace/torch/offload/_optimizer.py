# SPDX-License-Identifier: Apache-2.0
"""The optimizer of an offloaded model: headrace.torch's, whose only part is the model's engine."""
from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from typing import Any, Callable, Iterable, Mapping, Optional

import torch

from ..._errors import ArgumentError, Error, NotFinite, Unsupported, WrongState
from ..._library import unbroken
from .._given_state import by_number
from .._optimizers import Offloaded
from .._part import Entry
from .._rules import SGD, Adagrad, Adam, AdamW, Lion
from .._snapshots import REFERENCE, folder_of, load_parts, step_in
from . import _trainer_state
from ._model_part import ModelPart
from ._offload import Offload
from ._ranks import Ranks
from ._values import checksum

_log = logging.getLogger("headrace")


class OfModel(Offloaded):
    """What differs: the engine is there from the start, and has the weights too. Beside a rule of
    headrace.torch."""

    _part: Optional[ModelPart] = None
    end = "the model was restored or closed. Call headrace.offload() again."  # why it has no engine

    def adopt(self, offload: Offload, settings: dict, folder: Optional[str]) -> None:
        """Registers the model with its hyperparameters, and moves its values."""
        self._settings, self._folder = {"headrace": {}, **settings}, folder
        self._refuse_foreign(offload)
        entries = [entry for entry in self._all_entries() if offload.has(entry.parameter)]
        self._refuse_missing(offload, entries)
        constants = {index: self._constants(group)
                     for index, group in enumerate(self.param_groups)}
        own = self._settings["headrace"]
        if own.setdefault("optimizer", self._RULE) != self._RULE:
            raise ArgumentError(f"config sets headrace.optimizer to '{own['optimizer']}', and the "
                                f"optimizer is {type(self).__name__}; the model is as it was. "
                                "Leave the key out.")
        sets = offload.start(self._settings, constants,
                             {entry.parameter: entry.set_index for entry in entries})
        self._part = ModelPart(entries, offload, sets, constants,
                               self._CONTENTS.values())
        self._parts = [self._part]
        self._part_of = {entry.parameter: self._part for entry in entries}

    def _refuse_foreign(self, offload: Offload) -> None:
        """The engine would not train them, such as those of a loss."""
        for entry in self._all_entries():
            parameter = entry.parameter
            if parameter.requires_grad and parameter.numel() > 0 and not offload.has(parameter):
                raise ArgumentError(f"{entry.title} is given to be trained, and is no parameter of "
                                    "the model; the model is as it was. Give it to an optimizer of "
                                    "its own, or make its module a part of the model.")

    def _refuse_missing(self, offload: Offload, entries: Iterable[Entry]) -> None:
        known = {entry.parameter for entry in entries}
        for slot in offload.slots:
            if not slot.frozen and slot.parameter not in known:
                raise ArgumentError(f"'{slot.full_name}' is trained, and in no group of params; "
                                    "the model is as it was. Add it, or freeze it.")

    def add_param_group(self, param_group: dict) -> None:
        if self._part is not None:
            raise Unsupported("an offloaded model has its groups of parameters from the start; "
                              "nothing was added. Give offload() all of them: params=[...].")
        super().add_param_group(param_group)

    # ---- a step ----
    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None, *,  # type: ignore[override]
             max_norm: float = 0.0, gradient_scale: float = 1.0) -> Any:
        """Updates every parameter that has a gradient, on any rank; each rank calls it in every
        step. max_norm: the largest norm that all gradients together may have; 0: any. They are
        first multiplied by gradient_scale, and by 1 / the number of ranks."""
        self._register()
        assert self._part is not None  # _register() has looked
        self._part.max_norm, self._part.scale = max_norm, gradient_scale
        return self._step(closure)  # torch runs hooks around each step() of a class

    def clip_in_step(self, max_norm: float) -> torch.Tensor:
        """For trainers that clip before step(): the next step() clips. Returns what will have the
        norm before clipping after it, and is NaN until then."""
        self._register()
        assert self._part is not None  # _register() has looked
        return self._part.clip_next(max_norm)

    @property
    def gradient_norm(self) -> Optional[float]:
        """Of the last step(), before clipping; None: it had no gradients."""
        result = self._part.result if self._part is not None else None
        return None if result is None else result.gradient_norm

    def _register(self, *_arguments: Any, **_options: Any) -> None:
        self._refuse_closed("the call")

    def _refuse_closed(self, call: str) -> None:
        if self._closed or self._part is None:
            raise WrongState(f"this optimizer's engine is gone, so {call} did nothing: {self.end}")

    def _first_non_finite(self) -> Optional[torch.Tensor]:
        return self._offload.intake.non_finite()

    def _not_finite_of(self, error: NotFinite) -> NotFinite:
        if not self._offload.ranks.several:
            return super()._not_finite_of(error)
        # Of the sum over ranks, this rank knows what the engine says.
        found = re.match("the gradient of '(.*)' holds ", str(error))
        return error if found is None else self._not_finite_in(f"'{found[1]}'")

    @property
    def _offload(self) -> Offload:
        self._register()
        assert self._part is not None  # _register() has looked
        return self._part.offload

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients that the engine has."""
        if self._closed:
            return super().zero_grad(set_to_none)
        if not set_to_none:
            raise Unsupported("zero_grad(set_to_none=False) would need memory for zeros, and "
                              "headrace keeps none for gradients; nothing was done. Call "
                              "zero_grad().")
        self._offload.drop_gradients()
        self._part.clip_none()
        super().zero_grad(set_to_none)

    # ---- state ----
    def _load(self, state_dict: dict) -> None:
        self._offload.require_none_in_use("load_state_dict()")
        self._offload.require_no_gradients("load_state_dict()")
        self._refuse_state_of_frozen(state_dict)
        if self._offload.ranks.several and REFERENCE not in state_dict:
            self._refuse_other_state(state_dict)
        groups = self.param_groups  # a program's own, and its schedule; torch makes new ones
        try:
            super()._load(state_dict)
            if REFERENCE not in state_dict:
                if self._part.mixed is None:
                    self._part.begin_load("the state_dict")
                self._part.reset(set(self._part_of) - set(self.state))
            for group, loaded in zip(groups, self.param_groups):
                group.update(loaded)
                for key in set(group) - set(loaded):
                    del group[key]
        finally:
            self.param_groups = groups
        self._part.mixed = None

    def _refuse_state_of_frozen(self, state_dict: Mapping[str, Any]) -> None:
        flat = self._flat()
        for index in by_number(state_dict, len(flat)):
            parameter = flat[index]
            if self._offload.has(parameter) and self._offload.slot_of(parameter).frozen:
                raise ArgumentError(
                    f"the state_dict has state of '{self._offload.slot_of(parameter).full_name}', "
                    "which is frozen here, so there is no room for it; nothing was loaded. Load "
                    "the state of a run that trains the same parameters.")

    def _refuse_other_state(self, state_dict: Mapping[str, Any]) -> None:
        """Each rank gives the engine its part of every value."""
        state = by_number(state_dict, len(self._flat()))
        names, sums = [], []
        for index, parameter in enumerate(self._flat()):
            if parameter not in self._part_of:
                continue
            for key in ("step", *self._contents_of(parameter)):
                value = torch.as_tensor(state.get(index, {}).get(key, math.nan))
                names.append(f"{key} of {self._offload.slot_of(parameter).full_name}")
                sums.append(checksum(value.detach().to("cpu", torch.float32).contiguous()))
        self._offload.ranks.refuse_other_values(names, sums)

    def _drop_parts(self) -> None:
        """Before a load: the state stays until it is overwritten."""
        self._snapshots.outdate()
        self._offload.forget_masters()
        self._empty = {}
        self.state.clear()

    def _load_state(self, state: Mapping[int, Any]) -> None:
        self._part.begin_load("the state_dict")
        super()._load_state(state)

    def _end_broken_load(self) -> str:
        """A snapshot is loaded by the engine, which refuses what ended in the middle."""
        self._drop_parts()
        with contextlib.suppress(Error):  # what came first is the cause
            self._show_steps(list(self._part_of))
        return "" if self._part.mixed is None else (
            "step() refuses until a whole state is loaded. In 16 bits, the weights may then be "
            "those of that state: load others after it.")

    def _load_snapshot(self, reference: Mapping[str, Any]) -> None:
        numbers = {parameter: number for number, parameter in enumerate(self._flat())}
        if reference["parts"] != [[numbers[entry.parameter] for entry in self._part.entries]]:
            raise ArgumentError("the snapshot is of a model whose parameters are divided in "
                                "another way. Load the state of the same model and blocks.")
        path = reference["snapshot"]
        with self._offload.unbound():
            unbroken(lambda: self._load_by_engine(
                f"the snapshot {path}, {step_in(folder_of(path, 0))}",
                lambda: load_parts(reference, self._parts)))
        self._offload.bind_kept()
        self._show_steps(list(self._part_of))

    def _load_by_engine(self, what: str, load: Callable[[], Any]) -> Any:
        """After it, the caller has to take the rest of a state, and to say that it is whole."""
        before = self._part.mixed
        self._part.begin_load(what)
        try:
            loaded = load()
        except Error:  # nothing has changed, or the engine refuses all of its values
            self._part.mixed = before
            raise
        except BaseException:  # such as of a signal's handler, between two calls of the library
            with contextlib.suppress(Error):
                for group in self._offload.groups:
                    self._part.engine.mark_written(group.group, "a load ended in the middle, so "
                                                   "weights may be of two runs; load a whole state")
            raise
        self._offload.all_loaded()
        return loaded

    def _of_all(self, text: str) -> str:
        return self._offload.ranks.text_of_first(text)

    def save_checkpoint(self, directory: Any, trainer_state: bytes = b"") -> None:
        """Weights, state, param_groups and the model's persistent buffers, as a checkpoint of the
        engine (docs/checkpoints.md). Several ranks save into one folder, with the buffers and the
        trainer_state of rank 0."""
        self._offload.require_none_in_use("save_checkpoint()")
        self._offload.require_no_gradients("save_checkpoint()")  # it would lose them
        self._part.refuse_mixed("saved")
        if not isinstance(trainer_state, (bytes, bytearray, memoryview)):
            raise ArgumentError(f"trainer_state is a {type(trainer_state).__name__}; nothing was "
                                "saved. Give bytes, such as of json.dumps(...).encode().")
        own = _trainer_state.of(self._offload.model, self.param_groups)
        self._part.save_checkpoint(directory, _trainer_state.wrapped(own, trainer_state))

    def load_checkpoint(self, directory: Any) -> bytes:
        """Returns the trainer_state. If a load ends after it began to change values, the engine
        refuses them until a whole one is loaded; before that, nothing has changed."""
        own, given = self.load_checkpoint_parts(directory)
        if own is None:
            _log.warning("%s has no param_groups and no buffers: weights and state were loaded; "
                         "rates, other options and buffers are as they were", directory)
        return given

    def load_checkpoint_parts(self, directory: Any, refuse: Callable[[bytes], None] = lambda _: None
                              ) -> tuple[Optional[dict], bytes]:
        """Returns what there was of groups and buffers, and the trainer_state. Before the load,
        refuse() gets that, not yet verified, and may raise."""
        self._offload.require_no_gradients("load_checkpoint()")
        self._refuse_together(directory, refuse)
        with self._offload.unbound():
            loaded = unbroken(lambda: self._load_whole(directory))
        self._offload.bind_kept()
        return loaded

    def _refuse_together(self, directory: Any, refuse: Callable[[bytes], None]) -> None:
        """Before a load, which all ranks make or none."""
        with self._offload.ranks.agreed(f"load_checkpoint({os.fspath(directory)!r})"):
            own, given = _trainer_state.in_checkpoint(directory)
            self._refuse_another(own, directory)
            refuse(given)

    def _refuse_another(self, own: Optional[dict], directory: Any) -> None:
        if own is not None:
            _trainer_state.refuse_another(own, self._offload.model, self.param_groups, directory)

    def _load_whole(self, directory: Any) -> tuple[Optional[dict], bytes]:
        self._snapshots.outdate()
        blob = self._load_by_engine(f"{directory}, {step_in(directory)}",
                                    lambda: self._part.load_checkpoint(directory))
        own, given = _trainer_state.unwrapped(blob, directory)
        self._refuse_another(own, directory)  # the file may be another one by now
        if own is not None:
            _trainer_state.take(own, self._offload.model, self.param_groups)
        self._part.mixed = None
        self.state.clear()  # those of step 0 are not shown
        self._show_steps(list(self._part_of))
        return own, given

    # ---- for headrace.deepspeed ----
    def updates(self) -> int:
        """How many steps have updated weights."""
        self._register()
        return self._part.updates

    def was_skipped(self) -> bool:
        """Whether the last step was, since a gradient was not finite."""
        result = self._part.result if self._part is not None else None
        return result is not None and result.skipped

    @property
    def overflow(self) -> bool:
        """The same, by the name that accelerate asks for before it advances a schedule."""
        return self.was_skipped()

    def tell_scaled_gradients(self, scaled: Callable[[], bool]) -> None:
        """scaled() says, as a gradient comes in a backward pass, whether its loss was scaled."""
        self._offload.intake.scaled = scaled

    def has_unscaled_gradients(self) -> bool:
        return self._offload.intake.has_unscaled()

    def ranks(self) -> Ranks:
        return self._offload.ranks

    def model_device(self) -> torch.device:
        return self._offload.device

    def is_open(self) -> bool:
        return not self._closed

    # ---- life ----
    def restore(self) -> None:
        """Moves the values back into torch's memory, and removes every trace of the offload. The
        optimizer's state is gone: save it before."""
        self._offload.restore()
        self._forget()

    def close(self) -> None:
        """Frees state, threads and files, and the parameters' values: they stay parked. restore()
        keeps them."""
        if self._part is not None and not self._closed:
            self._offload.close()
        self._forget()

    def _forget(self) -> None:
        self._parts, self._part_of, self._empty = [], {}, {}
        self.state.clear()
        self._part, self._closed = None, True

    def sleep(self, directory: Optional[str] = None) -> None:
        """Gives memory back until wake(). What lived in memory goes to files in `directory`; None:
        the engine's folders on drives."""
        self._offload.sleep(directory)

    def wake(self) -> None:
        self._offload.wake()


class ModelAdamW(OfModel, AdamW):
    pass


class ModelAdam(OfModel, Adam):
    pass


class ModelAdagrad(OfModel, Adagrad):
    pass


class ModelLion(OfModel, Lion):
    pass


class ModelSGD(OfModel, SGD):
    pass


OF_RULE = {AdamW: ModelAdamW, Adam: ModelAdam, Adagrad: ModelAdagrad, Lion: ModelLion,
           SGD: ModelSGD}
