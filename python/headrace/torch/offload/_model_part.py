# SPDX-License-Identifier: Apache-2.0
"""The optimizer's view of an offloaded model: one part, whose engine has the weights too."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Optional

import torch

from ..._engine import StepResult
from ..._errors import ArgumentError, WrongState
from ..._library import unbroken
from .._hyperparameter_sets import HyperparameterSets
from .._part import Part, memory_of

if TYPE_CHECKING:
    from ._gradients import Intake
    from ._groups import Slot
    from ._offload import Offload


class ModelPart(Part):
    _FOR_ANOTHER_FORM = ("Load the model's values with its load_state_dict(): they come back in "
                         "the form that they had.")

    def __init__(self, entries: list, offload: "Offload", sets: Mapping[int, int],
                 constants: Mapping[int, dict], contents: Iterable[str]) -> None:
        super().__init__(entries)
        self.offload, self.engine = offload, offload.engine
        self._sets = HyperparameterSets(self.engine, sets, constants)
        self._contents = tuple(contents)  # the engine's names of the moments
        self.mixed: Optional[str] = None  # of what, if a load has ended in the middle
        self.updates = 0  # steps that were not skipped
        self.max_norm, self.scale = 0.0, 1.0  # of the next step
        self._limit = 0.0  # what it clips to by itself
        self._norms: list[torch.Tensor] = []  # will have the norm before clipping
        self.result: Optional[StepResult] = None  # of the last one
        self._index = {entry.parameter: entry.set_index for entry in entries}
        self._names = {entry.parameter: offload.slot_of(entry.parameter).full_name
                       for entry in entries}
        self.titles = {parameter: f"'{name}'" for parameter, name in self._names.items()}

    def clip_none(self) -> None:
        self._limit, self._norms = 0.0, []

    def clip_next(self, max_norm: float) -> torch.Tensor:
        if not max_norm > 0:
            raise ArgumentError(f"max_norm is {max_norm}; nothing was clipped. Give a number above "
                                "0, or infinity for the norm alone.")
        norm = torch.tensor(math.nan)
        if not math.isinf(max_norm):
            self._limit = max_norm
        self._norms.append(norm)
        return norm

    def step(self, constants: Mapping[torch.Tensor, dict]) -> list:
        """After an error it can be repeated, and clips as it would have."""
        updated = self._step(constants, self.max_norm or self._limit)
        for norm in self._norms:
            norm.fill_(0.0 if self.result is None else self.result.gradient_norm)
        self.clip_none()
        return updated

    def _step(self, constants: Mapping[torch.Tensor, dict], max_norm: float) -> list:
        self.result = None
        self.refuse_other_forms()
        self.refuse_mixed("updated")
        gradients = self.offload.gradients_for_step()
        due = [one.slot.parameter for one in gradients.taken()]
        if not due and not self.offload.ranks.several:
            return []
        self._refuse_left_out(due, constants)
        if self.offload.ranks.several:  # another rank may have gradients of any
            due = self._trained(constants)
        self._sets.update(
            [(self._index[parameter], self.titles[parameter], parameter) for parameter in due],
            constants, "Give offload() the groups that you need: params=[...].")
        factor = gradients.factor() * self.scale / self.offload.ranks.world_size
        return unbroken(lambda: self._update_all(due, gradients, factor, max_norm))

    def _trained(self, constants: Mapping[torch.Tensor, dict]) -> list:
        return [parameter for parameter in self._index
                if parameter in constants and not self._is_frozen(parameter)]

    def refuse_mixed(self, done: str) -> None:
        if self.mixed is not None:
            raise WrongState("a load ended in the middle, so the state may be partly "
                             f"{self.mixed}; nothing was {done}. Load a whole state.")

    def refuse_save(self) -> None:
        super().refuse_save()
        changing = next((slot for slot in self.offload.slots if slot.changing), None)
        if changing is not None:
            raise WrongState(f"'{changing.full_name}' is open to changes, which its state does not "
                             "have yet; nothing was saved. Call state_dict() after the end of "
                             "headrace.gathered(..., modify=True).")

    def begin_load(self, what: str) -> None:
        """Until it has ended, the state is of two runs."""
        steps = max(map(self.steps, self._index), default=0)
        self.mixed = f"that of {what}, and partly this run's of step {steps}"

    def _update_all(self, due: list, gradients: "Intake", factor: float, max_norm: float) -> list:
        """Returns those that were updated."""
        several = self.offload.ranks.several
        before = [self.steps(parameter) for parameter in due] if several else []
        self.offload.forget_masters()
        # A set's learning_rate_scale is its whole rate, so that no product is rounded.
        with self.offload.without_slots():
            self.result = self.engine.step(1.0, gradient_scale=factor, max_norm=max_norm)
        gradients.forget()
        self.offload.note_no_gradients()
        if self.result.skipped:
            return []
        updated = [parameter for parameter, steps in zip(due, before)
                   if self.steps(parameter) != steps] if several else due
        self.updates += 1
        self.offload.outdate(updated)
        return updated

    def _refuse_left_out(self, due: list, constants: Mapping[torch.Tensor, dict]) -> None:
        for parameter in due:
            if parameter not in constants or not parameter.requires_grad:
                what = "was frozen" if parameter in constants else "left the optimizer"
                raise WrongState(
                    f"'{self._names[parameter]}' {what} after its gradient had come: the engine "
                    "updates all that it has a gradient of, and updated nothing. Call "
                    "optimizer.zero_grad() after such a change.")

    # ---- state ----
    def store(self, parameter: torch.Tensor, content: str, into: torch.Tensor) -> None:
        if self.offload.ranks.several:
            into.zero_()
        self.engine.store(self._names[parameter], content, memory_of(into))
        if self.offload.ranks.several:
            self.offload.ranks.join_parts(into)

    def load(self, parameter: torch.Tensor, content: str, values: torch.Tensor) -> None:
        given = values.detach().to(torch.float32).cpu().contiguous()
        with self.offload.unbound([parameter]):
            if content == "master":
                self._load_master(self.offload.slot_of(parameter), given)
            else:
                self.engine.load_content(self._names[parameter], content, memory_of(given))

    def _load_master(self, slot: "Slot", master: torch.Tensor) -> None:
        """The engine's weights follow its masters, and the program may have loaded others: those
        stay, and begin new masters where they differ."""
        weights: Optional[torch.Tensor] = torch.empty(slot.shape, dtype=slot.dtype, device="cpu")
        try:
            self.engine.store(slot.full_name, "weight", memory_of(weights))
        except WrongState:  # a load has ended in the middle: there are none
            weights = None

        def replace() -> None:
            self.engine.load_content(slot.full_name, "master", memory_of(master))
            if weights is None:
                slot.group.outdate()
                return
            self.engine.load_content(slot.full_name, "weight", memory_of(weights))
            slot.group.remember(slot, master, weights)

        unbroken(replace)

    def generation(self) -> int:
        return sum(group.generation for group in self.offload.groups)

    def set_steps(self, parameter: torch.Tensor, steps: int) -> None:
        self.engine.set_step_count(self._names[parameter], steps)

    def reset(self, parameters: Iterable[torch.Tensor]) -> None:
        """Their state becomes that of before the first step."""
        for parameter in parameters:
            if self._is_frozen(parameter) or self.steps(parameter) == 0:
                continue
            for content in self._contents:
                self.load(parameter, content, torch.zeros(parameter.shape))
            self.set_steps(parameter, 0)

    def _is_frozen(self, parameter: torch.Tensor) -> bool:
        return self.offload.slot_of(parameter).frozen

    def steps(self, parameter: torch.Tensor) -> int:
        return self.engine.step_count(self._names[parameter])

    def save_checkpoint(self, directory: Any, trainer_state: bytes) -> None:
        self.engine.save_checkpoint(directory, trainer_state=trainer_state)

    def load_checkpoint(self, directory: Any) -> bytes:
        return self.engine.load_checkpoint(directory)

    # ---- reports, life ----
    def plan(self) -> dict:
        return self.engine.plan()

    def stats(self) -> dict:
        return {**self.engine.stats(), "model": self.offload.counts()}

    def close(self) -> None:
        self.offload.close()
