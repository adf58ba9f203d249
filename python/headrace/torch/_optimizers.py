# SPDX-License-Identifier: Apache-2.0
"""What the optimizers of torch have in common. Their parameters are divided into parts, by when
they came; each is updated by an engine, or in memory without one."""
from __future__ import annotations

import copy
import os
import tempfile
from collections import Counter
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

import torch

from .._errors import ArgumentError, NotFinite, Unsupported, WrongState
from ._engine_part import EnginePart
from ._memory_part import MemoryPart
from ._part import Entry, Part, check, local, non_finite, shaped_as
from ._snapshots import REFERENCE, Snapshots, check_reference, load_parts


def _merged(config: Mapping[str, Any], rule: str, nvme: Optional[str]) -> dict:
    """The settings of the engines. Updates end within step(), for torch reads the weights then."""
    settings = copy.deepcopy(dict(config))
    own = settings.setdefault("headrace", {})
    for key, value in (("optimizer", rule), ("update_mode", "barrier")):
        if own.setdefault(key, value) != value:
            raise ArgumentError(f"config sets headrace.{key} to {own[key]!r}, and this optimizer "
                                f"needs {value!r}; it was not made. Leave the key out.")
    if nvme is not None:
        zero = settings.setdefault("zero_optimization", {})
        if "offload_optimizer" in zero:
            raise ArgumentError("both nvme and zero_optimization.offload_optimizer of config "
                                "place the state; the optimizer was not made. Give one of them.")
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": os.fspath(nvme)}
    return settings


class Offloaded(torch.optim.Optimizer):
    """What the optimizers have in common. A rule gives _RULE, _CONTENTS and _constants()."""

    _RULE: str
    _KEYS: tuple = ("step",)  # further ones of torch's state
    _CONTENTS: Mapping[str, str]  # by its name in torch's state, the engine's

    def __init__(self, params: Any, defaults: dict, nvme: Optional[str],
                 config: Optional[Mapping[str, Any]], snapshots: Optional[str]) -> None:
        self._settings = _merged(config or {}, self._RULE, nvme)
        self._folder = nvme  # of the files behind state_dict()
        self._snapshots = Snapshots(snapshots)
        self._parts: list[Part] = []
        self._part_of: dict[torch.Tensor, Part] = {}
        # Parameters without elements (on this rank) have no part. torch counts their steps too, and
        # its distributed checkpoints miss state that some ranks lack.
        self._empty: dict[torch.Tensor, int] = {}
        self._closed = False
        super().__init__(params, defaults)

    def _constants(self, group: Mapping[str, Any]) -> dict:
        """The fields of headrace_hyperparameters for a param_group."""
        raise NotImplementedError

    def add_param_group(self, param_group: dict) -> None:
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        try:
            self._constants(self.param_groups[index])
            for entry in self._entries([index]):
                if entry.parameter.requires_grad:
                    check(entry.parameter, entry.name)
        except Exception:
            del self.param_groups[index]
            raise

    def _entries(self, indices: Iterable[int]) -> Iterator[Entry]:
        known = Counter(name for group in self.param_groups
                        for name in group.get("param_names", ()))
        for index in indices:
            parameters = self.param_groups[index]["params"]
            names = self.param_groups[index].get("param_names")
            for name, parameter in zip(names or (f"{index}_{i}" for i in range(len(parameters))),
                                       parameters):
                # torch's names are those of a group.
                yield Entry(parameter, f"{index}_{name}" if known[name] > 1 else name, index)

    def _all_entries(self) -> Iterator[Entry]:
        return self._entries(range(len(self.param_groups)))

    # ---- a step ----
    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Updates every parameter that has a gradient. The first call allocates the state."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._register()
        if self._skips_all():
            return loss
        constants = self._all_constants()
        self._snapshots.outdate()
        try:
            updated = [parameter for part in self._parts for parameter in part.step(constants)]
        except NotFinite as error:  # its advice is for the engine's caller
            raise self._not_finite(non_finite(self._part_of)) from error
        if updated or not self._parts:
            updated += self._count_empty()
        self._show_steps(updated)
        return loss

    def _count_empty(self) -> list:
        empty = [entry.parameter for entry in self._all_entries()
                 if entry.parameter.grad is not None and entry.values.numel() == 0]
        for parameter in empty:
            self._empty[parameter] = self._empty.get(parameter, 0) + 1
        return empty

    def _all_constants(self) -> dict:
        return {index: self._constants(group) for index, group in enumerate(self.param_groups)}

    def _show_steps(self, parameters: Iterable[torch.Tensor]) -> None:
        """The parts count; `state` shows it, as other programs expect."""
        counts = [(parameter, self._steps(parameter)) for parameter in parameters]
        shown = torch.tensor([float(steps) for _, steps in counts], device="cpu").unbind()
        for (parameter, steps), tensor in zip(counts, shown):
            if steps > 0:
                self.state[parameter]["step"] = tensor

    def _steps(self, parameter: torch.Tensor) -> int:
        part = self._part_of.get(parameter)
        return part.steps(parameter) if part is not None else self._empty.get(parameter, 0)

    def _skips_all(self) -> bool:
        """A part updates all of its parameters or none. With several, torch looks first."""
        found = non_finite(self._part_of) if len(self._parts) > 1 else None
        if found is not None and not self._skips():
            raise self._not_finite(found)
        return found is not None

    def _not_finite(self, found: Optional[torch.Tensor]) -> NotFinite:
        name = next((entry.name for entry in self._all_entries() if entry.parameter is found), "?")
        return NotFinite(
            f"the gradient of '{name}' holds NaN or infinity; nothing was updated. Lower the rate, "
            'scale the loss, or skip such steps: config={"headrace": {"non_finite": "skip"}}.')

    def _skips(self) -> bool:
        return self._settings["headrace"].get("non_finite") == "skip"

    def _register(self, must: bool = False) -> None:
        """Makes a part, on each device, of the parameters that are in none, once one of them has a
        gradient."""
        if self._closed:
            raise WrongState("this optimizer is closed, and its state is gone. Make another one.")
        new = [entry for entry in self._all_entries() if entry.parameter not in self._part_of
               and entry.parameter.requires_grad and entry.values.numel() > 0]
        if not new or not (must or any(entry.parameter.grad is not None for entry in new)):
            return
        devices: dict = {}
        for entry in new:
            devices.setdefault(entry.values.device, []).append(entry)
        for device, entries in devices.items():
            is_plain = self._is_plain() and device.type == "cpu"
            self._add_part(entries, self._in_memory if is_plain else self._with_engine)

    def _add_part(self, new: list, make: Callable[[list], Part]) -> None:
        for entry in new:
            check(entry.parameter, entry.name)
        part = make(new)
        self._parts.append(part)
        self._part_of.update({entry.parameter: part for entry in new})

    def _is_plain(self) -> bool:
        """All in memory, by no setting but these: what needs an engine is not asked for."""
        plain = {"optimizer", "update_mode", "non_finite"}
        return (not self._snapshots.wanted and set(self._settings) == {"headrace"}
                and set(self._settings["headrace"]) <= plain
                and self._settings["headrace"].get("non_finite", "stop") in ("stop", "skip"))

    def _in_memory(self, new: list) -> Part:
        return MemoryPart(new, self._RULE, self._skips())

    def _with_engine(self, new: list) -> Part:
        first_group = sum(part.group_count for part in self._parts
                          if isinstance(part, EnginePart))
        return EnginePart(new, self._settings, self._all_constants(), first_group)

    # ---- state ----
    def state_dict(self) -> dict:
        """Without `snapshots`, full_state_dict(). With it: saves the state below that folder, and
        gives a reference to it and the param_groups. Before the first step, there is no state."""
        if not self._snapshots.wanted or not self._parts:
            return self.full_state_dict()
        packed = super().state_dict()
        return {**packed, "state": {}, REFERENCE: self._snapshots.save(self._parts, self._flat())}

    def full_state_dict(self) -> dict:
        """As torch's own rule gives it, so that each loads the other's. With `nvme`, the tensors
        are files there, which the system can write out, and which vanish with the tensors."""
        self._show_steps(self._flat())  # Ctrl-C may have come just after an update
        packed = super().state_dict()
        state = {index: {**self.state[parameter], **self._contents(parameter)}
                 for index, parameter in enumerate(self._flat()) if parameter in self.state}
        return {**packed, "state": state}

    def _flat(self) -> list:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _contents(self, parameter: torch.Tensor) -> dict:
        """Moments, and the master of a 16-bit weight, which torch does not have."""
        masters = {} if parameter.dtype == torch.float32 else {"master": "master"}
        tensors = {}
        for name, content in {**self._CONTENTS, **masters}.items():
            space = self._space_for(local(parameter.detach()))
            if parameter in self._part_of:
                self._part_of[parameter].store(parameter, content, space)
            tensors[name] = shaped_as(parameter, space)
        return tensors

    def _space_for(self, values: torch.Tensor) -> torch.Tensor:
        if self._folder is None or values.numel() == 0:
            return torch.empty(values.shape, dtype=torch.float32, device="cpu")
        with tempfile.NamedTemporaryFile(prefix="headrace-state-", dir=self._folder) as file:
            # Reserved, not only sized: a write to a mapping that finds the drive full is a SIGBUS.
            os.posix_fallocate(file.fileno(), 0, 4 * values.numel())
            return torch.from_file(file.name, shared=True, size=values.numel(),
                                   dtype=torch.float32, device="cpu").view(values.shape)

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """Takes state_dict() and full_state_dict() of this class, or the state of torch's optimizer
        of the same rule. After an error in the load itself, there is no state, as before the first
        step."""
        state, reference = self._state_in(state_dict), state_dict.get(REFERENCE)
        self._check_state(state)
        if reference is not None:
            check_reference(reference, len(self._flat()))
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        self._drop_parts()
        try:
            if reference is not None:
                self._load_snapshot(reference)
            elif state:
                self._load_state(state)
        except BaseException:
            self._drop_parts()  # half of a state would pass for a whole one
            raise

    def _state_in(self, state_dict: Mapping[str, Any]) -> dict:
        """By number of the parameter. Its groups say in which order it names them: with numbers, or
        with names, as torch's distributed checkpoints do."""
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        numbers = {key: number for number, key in enumerate(keys)}
        unknown = [key for key in state_dict["state"] if key not in numbers]
        if unknown or len(keys) != len(self._flat()):
            what = f"has state of parameter {unknown[0]}, which is in none of its groups" \
                if unknown else f"is of {len(keys)} parameters"
            raise ArgumentError(f"the state_dict {what}, and this optimizer has "
                                f"{len(self._flat())}; nothing was loaded. Load the state of the "
                                "same model.")
        return {numbers[key]: values for key, values in state_dict["state"].items()}

    def _load_state(self, state: Mapping[int, Any]) -> None:
        self._register(must=True)
        flat = self._flat()
        for index, values in state.items():
            self._load_one(flat[index], values)

    def _load_snapshot(self, reference: Mapping[str, Any]) -> None:
        """Divides the parameters among engines as they were, and loads each."""
        entries = list(self._all_entries())
        for indices in reference["parts"]:
            self._add_part([entries[index] for index in indices], self._with_engine)
        load_parts(reference, self._parts)
        self._show_steps(self._part_of)

    def _check_state(self, state: dict) -> None:
        flat = self._flat()
        for index, values in state.items():
            missing = {*self._KEYS, *self._CONTENTS} - set(values)
            if missing or "max_exp_avg_sq" in values:
                raise ArgumentError(f"the state of parameter {index} "
                                    + (f"lacks {', '.join(sorted(missing))}" if missing else
                                       "is of amsgrad")
                                    + f"; nothing was loaded. Load the state of {self._RULE}.")
            for name in self._CONTENTS:
                if values[name].shape != flat[index].shape:
                    raise ArgumentError(f"{name} of parameter {index} has the shape "
                                        f"{tuple(values[name].shape)}, and the parameter has "
                                        f"{tuple(flat[index].shape)}; nothing was loaded. Load the "
                                        "state of the same model.")

    def _load_one(self, parameter: torch.Tensor, values: Mapping[str, Any]) -> None:
        if local(parameter.detach()).numel() == 0:
            self._empty[parameter] = int(values.get("step", 1))
            self._show_steps([parameter])
            return
        part = self._part_of.get(parameter)
        if part is None:
            raise Unsupported("there is state for a parameter that is frozen now; no state "
                              "was loaded. Set requires_grad first, and load again.")
        if parameter.dtype != torch.float32 and "master" in values:
            part.load(parameter, "master", local(values["master"]))
        for name, content in self._CONTENTS.items():
            part.load(parameter, content, local(values[name]))
        part.set_steps(parameter, int(values.get("step", 1)))  # torch's SGD does not count
        self._show_steps([parameter])

    # ---- reports, life ----
    def plan(self) -> list:
        """What each engine holds, and where; nothing before the first step."""
        return [part.plan() for part in self._parts]

    def stats(self) -> list:
        return [part.stats() for part in self._parts]

    def _drop_parts(self) -> None:
        self._snapshots.outdate()
        for part in self._parts:
            part.close()
        self._parts, self._part_of, self._empty = [], {}, {}
        self.state.clear()

    def close(self) -> None:
        """Frees state, threads and files. The parameters keep their values."""
        self._drop_parts()
        self._closed = True

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError(f"a headrace.torch.{type(self).__name__} cannot be copied or pickled: its "
                        "state is in an engine. Use state_dict() and load_state_dict().")
