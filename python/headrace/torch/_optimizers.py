# SPDX-License-Identifier: Apache-2.0
"""What the optimizers of torch have in common. Their parameters are divided into parts, by when
they came; each is updated by an engine, or in memory without one."""
from __future__ import annotations

import contextlib
import copy
import sys
from collections import Counter
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

import torch

from .._engine import resolved
from .._errors import ArgumentError, Error, NotFinite, WrongState
from .._library import unbroken
from .._settings import called, refuse_durable, whole_path
from ._engine_part import EnginePart
from ._given_state import by_number, check_groups, check_state
from ._memory_part import MemoryPart
from ._part import Entry, Part, check, check_apart, local, non_finite, shaped_as
from ._snapshots import REFERENCE, Snapshots, check_reference, load_parts
from ._spaces import check_folder, space_for


# Settings that a trainer of DeepSpeed's kind follows, and an optimizer of torch cannot.
_OF_A_TRAINER = {
    "gradient_clipping": "Clip with torch.nn.utils.clip_grad_norm_() before step().",
    "gradient_accumulation_steps": "Call step() after several backward passes.",
    "optimizer": "Give its parameters to the optimizer.",
    "scheduler": "Use one of torch.optim.lr_scheduler."}
def _whole_path(folder: Any, argument: str) -> Optional[str]:
    return None if folder is None else whole_path(folder, argument, "the optimizer was not made")


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raises what the first step() would."""
    with called("config"):
        whole = resolved(settings)
    if any(tier["device"] == "nvme" for key, tier in whole["zero_optimization"].items()
           if key.startswith("offload_")):
        for path in whole["headrace"]["nvme_paths"]:
            check_folder(_whole_path(path, "nvme_path"), "nvme_path")


def _merged(config: Mapping[str, Any], rule: str, nvme: Optional[str]) -> dict:
    """The settings of the engines. Updates end within step(), for torch reads the weights then."""
    settings = copy.deepcopy(dict(config))
    refuse_durable(settings, "the optimizer was not made")
    for key, help_text in _OF_A_TRAINER.items():
        off = 1 if key == "gradient_accumulation_steps" else 0
        if settings.get(key) not in (None, off):
            raise ArgumentError(f"config has {key}, which an optimizer of torch does not follow; "
                                f"it was not made. {help_text}")
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
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": nvme}
    return settings


# They name the state's parameters, and drop what else a state_dict has, such as a reference.
_NAMES_PARAMETERS = {"torch.distributed.checkpoint.state_dict",
                     "torch.distributed.fsdp.fully_sharded_data_parallel"}


def _is_for_parameters_by_name() -> bool:
    """Whether such a function calls the caller, perhaps through a wrapped optimizer."""
    frame = sys._getframe(1).f_back
    for _ in range(3):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") in _NAMES_PARAMETERS:
            return True
        frame = frame.f_back
    return False


class Offloaded(torch.optim.Optimizer):
    """What the optimizers have in common. A rule gives _RULE, _CONTENTS and _constants()."""

    _RULE: str
    _KEYS: tuple = ("step",)  # further ones of torch's state
    _CONTENTS: Mapping[str, str]  # by its name in torch's state, the engine's

    def __init__(self, params: Any, defaults: dict, nvme: Optional[str],
                 config: Optional[Mapping[str, Any]], snapshots: Optional[str]) -> None:
        self._options = set(defaults) - {"maximize", "decoupled_weight_decay"}  # older torch's lack
        self._folder = _whole_path(nvme, "nvme")  # of the files behind state_dict() too
        self._settings = _merged(config or {}, self._RULE, self._folder)
        check_folder(self._folder, "nvme")
        if config:
            _check_settings(self._settings)
        self._snapshots = Snapshots(_whole_path(snapshots, "snapshots"))
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
            given = self.param_groups[index]["params"]
            if len(set(given)) < len(given):
                raise ArgumentError("a parameter is listed twice in one param_group, and would be "
                                    "updated twice; nothing was added. List it once.")
            for entry in self._entries([index]):
                if entry.parameter.requires_grad:
                    check(entry)
        except Exception:
            del self.param_groups[index]
            raise

    def _entries(self, indices: Iterable[int]) -> Iterator[Entry]:
        known = Counter(name for group in self.param_groups
                        for name in group.get("param_names", ()))
        for index in indices:
            parameters = self.param_groups[index]["params"]
            names = self.param_groups[index].get("param_names")
            if not names:
                yield from (Entry(parameter, f"{index}_{number}", index, number)
                            for number, parameter in enumerate(parameters))
                continue
            for name, parameter in zip(names, parameters):
                # torch's names are those of a group.
                yield Entry(parameter, f"{index}_{name}" if known[name] > 1 else name, index)

    def _all_entries(self) -> Iterator[Entry]:
        return self._entries(range(len(self.param_groups)))

    # ---- a step ----
    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Updates every parameter that has a gradient. The first call allocates the state."""
        return self._step(closure)

    def _step(self, closure: Optional[Callable[[], Any]]) -> Any:
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
            self._update(constants)
        except NotFinite as error:  # its advice is for the engine's caller
            raise self._not_finite_of(error) from error
        except BaseException:  # such as Ctrl-C, which is raised once an update has ended
            with contextlib.suppress(Error):
                unbroken(lambda: self._show_steps(self._flat()))
            raise
        return loss

    def _update(self, constants: Mapping[torch.Tensor, dict]) -> None:
        updated = [parameter for part in self._parts for parameter in part.step(constants)]
        if updated or not self._parts:
            updated += self._count_empty()
        self._show_steps(updated)

    def _count_empty(self) -> list:
        empty = [entry.parameter for entry in self._all_entries()
                 if entry.parameter.grad is not None and entry.values.numel() == 0]
        for parameter in empty:
            self._empty[parameter] = self._empty.get(parameter, 0) + 1
        return empty

    def _all_constants(self) -> dict:
        """By parameter, as the param_groups are now; those of a group share one dict."""
        of: dict = {}
        for group in self.param_groups:
            constants = self._constants(group)
            of.update((parameter, constants) for parameter in group["params"])
        return of

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

    def _first_non_finite(self) -> Optional[torch.Tensor]:
        return non_finite(self._part_of)

    def _not_finite_of(self, error: NotFinite) -> NotFinite:
        del error
        return self._not_finite(self._first_non_finite())

    def _not_finite(self, found: Optional[torch.Tensor]) -> NotFinite:
        return self._not_finite_in("a parameter" if found is None
                                   else self._part_of[found].titles[found])

    @staticmethod
    def _not_finite_in(title: str) -> NotFinite:
        return NotFinite(
            f"the gradient of {title} holds NaN or infinity; nothing was updated. Lower the rate, "
            'scale the loss, or skip such steps: config={"headrace": {"non_finite": "skip"}}.' +
            ("" if title.endswith("'") else " An optimizer that is given named_parameters() says "
             "the name."))

    def _skips(self) -> bool:
        return self._settings["headrace"].get("non_finite") == "skip"

    def _register(self, must: bool = False, having_state: Iterable[torch.Tensor] = ()) -> None:
        """Makes a part, on each device, of the parameters that are in none, once one of them has a
        gradient. having_state: included, even if frozen."""
        self._refuse_closed("step()")
        new = [entry for entry in self._all_entries() if entry.parameter not in self._part_of
               and (entry.parameter.requires_grad or entry.parameter in having_state)
               and entry.values.numel() > 0]
        if not new or not (must or any(entry.parameter.grad is not None for entry in new)):
            return
        devices: dict = {}
        for entry in new:
            devices.setdefault(entry.values.device, []).append(entry)
        for device, entries in devices.items():
            is_plain = self._is_plain() and device.type == "cpu"
            self._add_part(entries, self._in_memory if is_plain else self._with_engine)

    def _refuse_closed(self, call: str) -> None:
        """Nothing would pass for a state from before the first step."""
        if self._closed:
            raise WrongState(f"{call} of an optimizer that is closed, and its state is gone; "
                             "nothing was done. Call it before close(), or make another one.")

    def _add_part(self, new: list, make: Callable[[list], Part]) -> None:
        for entry in new:
            check(entry)
        check_apart([*new, *(entry for part in self._parts for entry in part.entries)])
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
        gives a reference to it and the param_groups. Before the first step, there is no state.
        torch.distributed.checkpoint, which would lose the reference, gets full_state_dict()."""
        self._refuse_closed("state_dict()")
        if not self._snapshots.wanted or not self._parts or _is_for_parameters_by_name():
            return self.full_state_dict()
        for part in self._parts:
            part.refuse_save()
        packed = self._packed()
        reference = self._snapshots.save(self._parts, self._flat(), self._RULE, self._of_all)
        empty = {index: self._empty[parameter] for index, parameter in enumerate(self._flat())
                 if parameter in self._empty}
        return self._through(self._optimizer_state_dict_post_hooks,
                             {**packed, "state": {}, REFERENCE: {**reference, "empty": empty}})

    def _of_all(self, text: str) -> str:
        """What all ranks use in the place of a text of their own."""
        return text

    def full_state_dict(self) -> dict:
        """As torch's own rule gives it, so that each loads the other's. With `nvme`, the tensors
        are files there, which the system can write out, and which vanish with the tensors."""
        self._refuse_closed("full_state_dict()")
        for part in self._parts:
            part.refuse_save()
        self._show_steps(self._flat())  # Ctrl-C may have come just after an update
        packed = self._packed()
        state = {index: {**self.state[parameter], **self._contents(parameter)}
                 for index, parameter in enumerate(self._flat()) if parameter in self.state}
        return self._through(self._optimizer_state_dict_post_hooks, {**packed, "state": state})

    def _packed(self) -> dict:
        """torch's state_dict(), without the parts' state. Pre-hooks run here; post-hooks do not,
        since they are to see the whole: _through()."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)  # first: it may register others
        with self._without_hooks("_optimizer_state_dict_pre_hooks",
                                 "_optimizer_state_dict_post_hooks"):
            return super().state_dict()

    def _through(self, hooks: Mapping[int, Callable], state_dict: dict) -> dict:
        """What the hooks make of it: each changes it, or returns another."""
        for hook in hooks.values():
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    @contextlib.contextmanager
    def _without_hooks(self, *kinds: str) -> Iterator[None]:
        hooks = {kind: getattr(self, kind) for kind in kinds}
        self.__dict__.update((kind, type(own)()) for kind, own in hooks.items())
        try:
            yield
        finally:
            self.__dict__.update(hooks)

    def _flat(self) -> list:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def names_of_state(self) -> Iterator[tuple[torch.Tensor, list]]:
        """By parameter that is trained, what full_state_dict() has once it has been updated."""
        for parameter in self._flat():
            if parameter.requires_grad:
                yield parameter, ["step", *self._contents_of(parameter)]

    def _contents_of(self, parameter: torch.Tensor) -> dict:
        """Moments, and the master of a 16-bit weight, which torch does not have."""
        masters = {} if parameter.dtype == torch.float32 else {"master": "master"}
        return {**self._CONTENTS, **masters}

    def _contents(self, parameter: torch.Tensor) -> dict:
        tensors = {}
        for name, content in self._contents_of(parameter).items():
            space = space_for(self._folder, local(parameter.detach()).shape, torch.float32)
            if parameter in self._part_of:
                self._part_of[parameter].store(parameter, content, space)
            tensors[name] = shaped_as(parameter, space)
        return tensors

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """Takes state_dict() and full_state_dict() of this class, or the state of torch's optimizer
        of the same rule. After an error in the load itself, there is no state, as before the first
        step."""
        self._refuse_closed("load_state_dict()")
        state_dict = self._through(self._optimizer_load_state_dict_pre_hooks, dict(state_dict))
        with self._without_hooks("_optimizer_load_state_dict_pre_hooks",
                                 "_optimizer_load_state_dict_post_hooks"):
            self._load(state_dict)
        for after_load in self._optimizer_load_state_dict_post_hooks.values():
            after_load(self)

    def _load(self, state_dict: dict) -> None:
        """Between the hooks."""
        flat, reference = self._flat(), state_dict.get(REFERENCE)
        state = by_number(state_dict, len(flat))
        check_groups(state_dict["param_groups"], self._options,
                     self.defaults.get("decoupled_weight_decay"), self._RULE)
        check_state(state, flat, self._KEYS, self._CONTENTS, self._RULE)
        if REFERENCE in state_dict:
            check_reference(reference, len(flat), self._RULE)
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        self._drop_parts()
        try:
            if reference is not None:
                self._load_snapshot(reference)
            elif state:
                self._load_state(state)
        except BaseException as error:
            note = self._end_broken_load()
            if note and hasattr(error, "add_note"):
                error.add_note(note)
            raise

    def _end_broken_load(self) -> str:
        """Half of a state would pass for a whole one. Returns what the user has to know."""
        self._drop_parts()
        return "This optimizer has no state now: load one, or it begins anew."

    def _load_state(self, state: Mapping[int, Any]) -> None:
        flat = self._flat()
        self._register(must=True, having_state={flat[index] for index in state})
        for index, values in state.items():
            self._load_one(flat[index], values)

    def _load_snapshot(self, reference: Mapping[str, Any]) -> None:
        """Divides the parameters among engines as they were, and loads each."""
        entries = list(self._all_entries())
        for indices in reference["parts"]:
            self._add_part([entries[index] for index in indices], self._with_engine)
        load_parts(reference, self._parts)
        self._empty = {entries[index].parameter: steps
                       for index, steps in reference.get("empty", {}).items()}
        self._show_steps([*self._part_of, *self._empty])

    def _load_one(self, parameter: torch.Tensor, values: Mapping[str, Any]) -> None:
        if local(parameter.detach()).numel() == 0:
            self._empty[parameter] = int(values.get("step", 1))
            self._show_steps([parameter])
            return
        part = self._part_of[parameter]
        if parameter.dtype != torch.float32 and "master" in values:
            part.load(parameter, "master", local(values["master"]))
        for name, content in self._CONTENTS.items():
            part.load(parameter, content, local(values[name]))
        part.set_steps(parameter, int(values.get("step", 1)))  # torch's SGD does not count
        self._show_steps([parameter])

    # ---- reports, life ----
    def plan(self) -> list:
        """What each engine holds, and where; nothing before the first step."""
        self._refuse_closed("plan()")
        return [part.plan() for part in self._parts]

    def stats(self) -> list:
        self._refuse_closed("stats()")
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
