# SPDX-License-Identifier: Apache-2.0
"""Parameters of torch that one engine updates, with state in every tier.

f32 weights on the CPU are lent to the engine, which updates them where they are, and so are all
gradients on the CPU. Of other parameters, the engine has weights of its own, beside torch's, in
host memory. Before an update, those that the program has written since the last one are given to
the engine; after it, the new ones are copied to torch. Where torch's are on a GPU, the engine's are
gathered there, to be compared and copied.
"""
from __future__ import annotations

import bisect
import contextlib
from typing import Any, Iterable, Iterator, Mapping

import torch

from .._engine import DTYPES, Engine, Gathered, Group, Parameter
from .._errors import ArgumentError, Error, Interrupted, Unsupported, WrongState
from .._library import unbroken
from ._hyperparameter_sets import HyperparameterSets
from ._part import (NAMES, Entry, Part, bits_of, check_apart, gradient_of, memory_of,
                    row_major, with_dtype)
from ._words import words

# Elements per group of the engine: its gathers and updates take a group at a time.
_GROUP_ELEMENTS = 1 << 25


def _may_lend(entry: Entry) -> bool:
    """Whether an engine can update its weights where they are. 16-bit weights have masters, which
    writes of the program would not reach."""
    return (entry.values.device.type == "cpu" and entry.values.dtype == torch.float32
            and _is_plain(entry.values))


def _is_plain(values: torch.Tensor) -> bool:
    """Its memory holds its elements, in order. With torch's negative bit, it holds others."""
    return values.is_contiguous() and not values.is_neg()


def _bundles(entries: Iterable[Entry]) -> Iterator[list]:
    """The entries in their order, with at most _GROUP_ELEMENTS together unless one has more: f32
    first, which may be lent. On every device the same, so that a snapshot loads on another."""
    entries = list(entries)
    for is_f32 in (True, False):
        yield from _cut([entry for entry in entries
                         if (entry.values.dtype == torch.float32) == is_f32])


def _cut(entries: list) -> Iterator[list]:
    bundle: list = []
    elements = 0
    for entry in entries:
        if bundle and elements + entry.values.numel() > _GROUP_ELEMENTS:
            yield bundle
            bundle, elements = [], 0
        bundle.append(entry)
        elements += entry.values.numel()
    if bundle:
        yield bundle


def _bytes_on_host(values: torch.Tensor) -> torch.Tensor:
    return row_major(values).cpu()


def _is_wider(entry: Entry) -> bool:
    """Whether its gradient has more bits than the parameter."""
    gradient, parameter = entry.parameter.grad, entry.parameter
    return gradient is not None and gradient.dtype != parameter.dtype \
        and parameter.dtype != torch.float32


def _has_bits_of(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """One truth value where they are, so that a GPU is waited for once and not for each."""
    if values.device.type == "cpu":
        return torch.tensor(torch.equal(bits_of(values), bits_of(weights)), device="cpu")
    return (bits_of(values) == bits_of(weights)).all()


class EnginePart(Part):
    """One engine and its parameters, which are all on one device."""

    def __init__(self, entries: list, settings: dict, constants: Mapping[torch.Tensor, dict],
                 first_group: int) -> None:
        super().__init__(entries)
        self._device = entries[0].values.device
        self._titles: dict = {}  # by the engine's name
        self.engine = Engine(with_dtype(settings, [NAMES[one.values.dtype] for one in entries]),
                             gpu=self._device.index,  # a CPU has none
                             words=words(self._titles, {}))
        # By the param_group in which a parameter was when it came.
        first = {entry.set_index: constants[entry.parameter] for entry in entries}
        self._set_numbers = {index: self.engine.add_hyperparameters(**values)
                             for index, values in first.items()}
        self._sets = HyperparameterSets(self.engine, self._set_numbers, first)
        self._lends_gradients = self._device.type == "cpu"
        self._addresses: dict = {}  # of the weights that are lent, by parameter; None: not yet
        self._ranges: list = []  # of their memory, in rising order
        self._wide: set = set()  # parameters whose gradients the engine keeps in f32
        self._groups: list[tuple[Group, list]] = []
        self._behind: list[tuple[Group, list]] = []  # updated, and not yet copied to torch
        self._written: list[Entry] = []  # written by the program, and not yet given to the engine
        for number, bundle in enumerate(_bundles(entries), first_group):
            self._add_group(f"group{number}", bundle)
        self.engine.freeze()
        for group, bundle in self._groups:
            self._load(group, bundle)

    @property
    def group_count(self) -> int:
        return len(self._groups)

    def _add_group(self, name: str, bundle: list) -> None:
        names = [entry.name for entry in bundle]
        if len(set(names)) < len(names):
            twice = next(one for one in names if names.count(one) > 1)
            raise ArgumentError(f"two parameters have the name '{twice}'; the optimizer was not "
                                "made. Give each a name of its own.")
        group = self.engine.add_group(name, {
            entry.name: Parameter(tuple(entry.values.shape), NAMES[entry.parameter.dtype],
                                  self._set_numbers[entry.set_index]) for entry in bundle})
        if all(map(_may_lend, bundle)):
            self.engine.expect_lent_weights(group)
            self._addresses.update((entry.parameter, None) for entry in bundle)
        if self._lends_gradients:
            self.engine.expect_lent_gradients(group)
        elif any(_is_wider(entry) for entry in bundle):
            self.engine.expect_repeated_gradients(group)  # otherwise it would round them
            self._wide.update(entry.parameter for entry in bundle)
        self._groups.append((group, bundle))
        self._names.update({entry.parameter: f"{name}.{entry.name}" for entry in bundle})
        self._titles.update({f"{name}.{entry.name}": entry.title for entry in bundle})

    def _is_lent(self, bundle: list) -> bool:
        """Those of a group are all lent, or none."""
        return bundle[0].parameter in self._addresses

    def _lend(self, bundle: list) -> None:
        """Says where the weights are, if they moved: `parameter.data` may be another tensor."""
        moved = False
        for entry in bundle:
            values = entry.values
            if not _is_plain(values):
                raise WrongState(
                    f"{entry.title} has the strides {values.stride()} now"
                    f"{', and the negative bit' if values.is_neg() else ''}, and was row-major "
                    "when its state was made; nothing was done. Give it memory of its own: "
                    "p.data = p.data.clone(memory_format=torch.contiguous_format).")
            if self._addresses[entry.parameter] != values.data_ptr():
                self.engine.lend_weights_at(self._names[entry.parameter], values.data_ptr())
                self._addresses[entry.parameter] = values.data_ptr()
                moved = True
        if moved:
            self._note_ranges(bundle)

    def _note_ranges(self, moved: list) -> None:
        lent = [entry for entry in self.entries if self._addresses.get(entry.parameter)]
        self._ranges = sorted((self._addresses[entry.parameter], entry.values.nbytes, entry.title)
                              for entry in lent)
        try:
            check_apart(lent)
        except ArgumentError:
            self._addresses.update((entry.parameter, None) for entry in moved)  # look again
            raise

    def _refuse_in_weights(self, gradient: torch.Tensor, title: str) -> None:
        """The update would write over what it still reads."""
        first, end = gradient.data_ptr(), gradient.data_ptr() + gradient.nbytes
        at = bisect.bisect_left(self._ranges, (end,)) - 1
        if at >= 0 and first < self._ranges[at][0] + self._ranges[at][1]:
            raise ArgumentError(f"the gradient of {title} shares memory with the weights of "
                                f"{self._ranges[at][2]}; nothing was updated. Give it memory of "
                                "its own, such as with clone().")

    def _lend_all(self) -> None:
        for _, bundle in self._groups:
            if self._is_lent(bundle):
                self._lend(bundle)

    def _load(self, group: Group, bundle: list) -> None:
        if self._is_lent(bundle):
            self._lend(bundle)
        given = {entry.name: _bytes_on_host(entry.values) for entry in bundle}
        group.load({name: memory_of(tensor) for name, tensor in given.items()})

    def _update(self, due: list, constants: Mapping[torch.Tensor, dict]) -> bool:
        self._sets.update(
            [(entry.set_index, entry.title, entry.parameter) for entry in due], constants,
            "Their state on a drive has one set of options: save the state, make a new optimizer "
            "with the new groups, and load it there.")
        parameters = {entry.parameter for entry in due}
        bundles = [(group, [entry for entry in bundle if entry.parameter in parameters])
                   for group, bundle in self._groups]
        return self._update_bundles([(group, bundle) for group, bundle in bundles if bundle])

    def _update_bundles(self, due: list) -> bool:
        self._load_written()
        self._catch_up()
        own = [(group, bundle) for group, bundle in due if not self._is_lent(bundle)]
        for group, bundle in own:
            self._take_writes(group, bundle)
        lent = [bundle for _, bundle in due if self._is_lent(bundle)]
        for bundle in lent:
            self._lend(bundle)
        before = self.steps(due[0][1][0].parameter)
        try:
            given = [self._give_gradient(entry) for _, bundle in due for entry in bundle]
            skipped = unbroken(lambda: self._step_and_copy(lent, own))
            del given  # lent until here
        except BaseException as error:
            self._note_if_made(due, own, before)
            self._take_gradients_back(error)
            raise
        return not skipped

    def _note_if_made(self, due: list, own: list, before: int) -> None:
        """An exception of another signal's handler may come between the engine's step and what
        follows it."""
        with contextlib.suppress(Error):  # an engine that has failed
            if self.steps(due[0][1][0].parameter) != before and not self._behind:
                self._behind = list(own)

    def _take_gradients_back(self, error: BaseException) -> None:
        """torch has them, and gives them again."""
        try:
            self.engine.discard_gradients()
        except Error:  # the engine has failed, in the middle of an update
            if self._addresses and hasattr(error, "add_note"):
                error.add_note("Some of the model's weights may be updated and some not, as with "
                               "the state: go on from the last checkpoint.")

    def _step_and_copy(self, lent: list, own: list) -> bool:
        # A set's learning_rate_scale is its whole rate, so that no product is rounded.
        skipped = self.engine.step(1.0).skipped
        self._behind = [] if skipped else list(own)
        if not skipped:  # autograd refuses graphs over the old values
            torch.autograd.graph.increment_version(
                [entry.parameter for bundle in lent for entry in bundle])
        self._catch_up()
        return skipped

    def _catch_up(self) -> None:
        """Copies the weights of the last update. If that failed, the next step does it: otherwise
        the old weights would pass for written ones."""
        while self._behind:
            try:
                self._copy_back(*self._behind[0])
            except Interrupted:
                continue
            self._behind.pop(0)

    def _stream(self) -> int:
        if self._device.type == "cpu":
            return 0
        return torch.cuda.current_stream(self._device).cuda_stream

    def _weights(self, group: Group, bundle: list) -> Iterator[tuple]:
        """Each entry with the engine's weights. They are valid until the loop's next round."""
        with group.gather(self._stream()) as gathered:
            for entry in bundle:
                yield entry, self._tensor(gathered, entry).view(entry.values.shape)

    def _tensor(self, gathered: Gathered, entry: Entry) -> torch.Tensor:
        dtype = entry.values.dtype
        if self._device.type == "cpu":
            return torch.frombuffer(gathered.raw(entry.name), dtype=dtype)
        return torch.as_tensor(gathered[entry.name], device=self._device).view(dtype)

    def _take_writes(self, group: Group, bundle: list) -> None:
        """Compares bits, not versions: a write to `parameter.data` has no version."""
        equal = torch.stack([_has_bits_of(entry.values, weights)
                             for entry, weights in self._weights(group, bundle)])
        self._written = [entry for entry, same in zip(bundle, equal.tolist()) if not same]
        self._load_written()

    def _load_written(self) -> None:
        """The engine gathers nothing while a load has ended in the middle, so the next step begins
        with those that are left."""
        while self._written:
            entry = self._written[0]
            given = _bytes_on_host(entry.values)
            self.engine.load_content(self._names[entry.parameter], "weight", memory_of(given))
            self._written.pop(0)

    def _give_gradient(self, entry: Entry) -> torch.Tensor:
        """Returns what has to live until the engine's step ends."""
        name = self._names[entry.parameter]
        given = gradient_of(entry)
        dtype = DTYPES[NAMES[given.dtype]]
        if self._lends_gradients:
            self._refuse_in_weights(given, entry.title)
            self.engine.lend_gradient_at(name, given.data_ptr(), dtype)
            return given
        if _is_wider(entry) and entry.parameter not in self._wide:
            raise Unsupported(
                f"the gradient of {entry.title} is {given.dtype}, and was {entry.parameter.dtype} "
                "in the first step, so there is no room for its bits; nothing was updated. Use "
                "one dtype of gradients from the first step on.")
        self.engine.add_gradient_at(name, given.data_ptr(), dtype, self._stream())
        return given

    def _copy_back(self, group: Group, bundle: list) -> None:
        for entry, weights in self._weights(group, bundle):
            entry.values.copy_(weights)

    # ---- state ----
    def store(self, parameter: torch.Tensor, content: str, into: torch.Tensor) -> None:
        self.engine.store(self._names[parameter], content, memory_of(into))

    def load(self, parameter: torch.Tensor, content: str, values: torch.Tensor) -> None:
        given = _bytes_on_host(values.to(torch.float32))
        self.engine.load_content(self._names[parameter], content, memory_of(given))

    def set_steps(self, parameter: torch.Tensor, steps: int) -> None:
        self.engine.set_step_count(self._names[parameter], steps)

    def steps(self, parameter: torch.Tensor) -> int:
        return self.engine.step_count(self._names[parameter])

    def save_checkpoint(self, directory: Any, trainer_state: bytes) -> None:
        self._lend_all()
        self.engine.save_checkpoint(directory, trainer_state=trainer_state)

    def load_checkpoint(self, directory: Any) -> bytes:
        """The state alone. What the checkpoint has of the weights that are lent goes to a place
        where nobody reads it: the program's own values are the ones to train on."""
        lent = [entry for entry in self.entries if entry.parameter in self._addresses]
        largest = max((entry.values.numel() for entry in lent), default=0)
        nowhere = torch.empty(largest, dtype=torch.float32, device="cpu")
        try:
            for entry in lent:
                self.engine.lend_weights_at(self._names[entry.parameter], nowhere.data_ptr())
                self._addresses[entry.parameter] = None
            return self.engine.load_checkpoint(directory)
        finally:
            self._lend_all()

    def plan(self) -> dict:
        return self.engine.plan()

    def stats(self) -> dict:
        return self.engine.stats()

    def close(self) -> None:
        self.engine.close()
