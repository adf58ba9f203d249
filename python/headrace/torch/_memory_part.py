# SPDX-License-Identifier: Apache-2.0
"""Parameters of torch whose whole state is in memory: the rule updates torch's own weights, and
reads torch's own gradients, with the bits of an engine (headrace_optimizer of headrace/c.h)."""
from __future__ import annotations

import ctypes
from typing import Any, Mapping

import torch

from .. import _c
from .._cpu_optimizer import CpuOptimizer
from .._engine import DTYPES
from .._library import call, new, unbroken
from ._part import NAMES, Entry, Part, bits_of, gradient_of, row_major

RULES = {"adamw": _c.HEADRACE_ADAMW, "adam": _c.HEADRACE_ADAM, "adagrad": _c.HEADRACE_ADAGRAD,
         "lion": _c.HEADRACE_LION, "sgd": _c.HEADRACE_SGD,
         "sgd_momentum": _c.HEADRACE_SGD_MOMENTUM}
_MOMENTS = {"exp_avg": 0, "exp_avg_sq": 1}


class _Masters:
    """Of a 16-bit parameter, in f32: for bf16 as the residuals of headrace/cpu_optimizer.hpp. They
    do not show what the program has written, so `weights` are those after the last update."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self._is_split = parameter.dtype == torch.bfloat16
        self.values = torch.empty(parameter.shape,
                                  dtype=torch.int16 if self._is_split else torch.float32,
                                  device="cpu")
        self.weights = row_major(parameter).clone()

    def take_writes(self, weight: torch.Tensor) -> None:
        """Elements that the program has written begin a new master; the others keep theirs."""
        if torch.equal(bits_of(weight), bits_of(self.weights)):
            return
        written = bits_of(weight) != bits_of(self.weights)
        self.values[written] = 0 if self._is_split else weight[written].float()
        self.weights.copy_(weight)

    def full(self) -> torch.Tensor:
        if not self._is_split:
            return self.values
        high = bits_of(self.weights).int() << 16
        return (high + self.values.int()).view(torch.float32)

    def set_full(self, values: torch.Tensor) -> None:
        if not self._is_split:
            self.values.copy_(values)
            self.weights.copy_(values)
            return
        bits = row_major(values.float()).view(torch.int32)
        high = (bits + 0x8000) >> 16  # modulo 2^32
        self.weights.copy_(high.to(torch.int16).view(torch.bfloat16))
        self.values.copy_((bits - (high << 16)).to(torch.int16))


class _State:
    """Of one parameter."""

    def __init__(self, optimizer: CpuOptimizer, entry: Entry) -> None:
        values = entry.values
        self.steps = 0
        form = {"dtype": DTYPES[NAMES[values.dtype]], "elements": values.numel(),
                "layout": _c.HEADRACE_MASTER_SPLIT if values.dtype == torch.bfloat16
                else _c.HEADRACE_MASTER_F32}
        sizes = new(_c.headrace_state_bytes)
        call("optimizer_state_bytes", optimizer.handle, form["dtype"], form["layout"],
             values.numel(), ctypes.byref(sizes))
        self.moments = [torch.empty(values.shape, dtype=torch.float32, device="cpu")
                        for size in sizes.moment if size > 0]
        self.masters = _Masters(values) if values.dtype != torch.float32 else None
        # Filled in anew for each step: to make a struct takes longer than a small update.
        self._arrays = new(_c.headrace_parameter_state, name=entry.name.encode(), **form)
        self._inputs = new(_c.headrace_parameter_update)
        for at, moment in enumerate(self.moments):
            self._arrays.moment[at] = moment.data_ptr()
        if self.masters is not None:
            self._arrays.master = self.masters.values.data_ptr()

    def tensors(self) -> list:
        own = [] if self.masters is None else [self.masters.values, self.masters.weights]
        return self.moments + own

    def arrays(self, weight: torch.Tensor) -> Any:
        self._arrays.weight = weight.data_ptr()
        return self._arrays

    def inputs(self, gradient: torch.Tensor, hyperparameters: Any) -> Any:
        inputs = self._inputs
        inputs.gradient, inputs.t = gradient.data_ptr(), self.steps + 1
        inputs.gradient_dtype = DTYPES[NAMES[gradient.dtype]]
        inputs.hyperparameters = hyperparameters
        return inputs


class MemoryPart(Part):
    def __init__(self, entries: list, rule: str, skips: bool) -> None:
        super().__init__(entries)
        self._optimizer = CpuOptimizer(rule=RULES[rule], skip_non_finite=int(skips))
        self._skipped = 0
        try:
            self._states = {entry.parameter: _State(self._optimizer, entry) for entry in entries}
            self._initialise()
        except BaseException:
            self.close()
            raise

    def _initialise(self) -> None:
        weights = [row_major(entry.values) for entry in self.entries]
        self._optimizer.initialize([self._states[entry.parameter].arrays(weight)
                                    for entry, weight in zip(self.entries, weights)])

    # ---- a step ----
    def _update(self, due: list, constants: Mapping[torch.Tensor, dict]) -> bool:
        values = [entry.values for entry in due]
        weights = [row_major(one) for one in values]  # those that are strided: copies
        gradients = [gradient_of(entry) for entry in due]
        states = [self._states[entry.parameter] for entry in due]
        for state, weight in zip(states, weights):
            if state.masters is not None:
                state.masters.take_writes(weight)
        sets: dict = {}
        for of_group in constants.values():
            if id(of_group) not in sets:
                sets[id(of_group)] = ctypes.pointer(new(_c.headrace_hyperparameters, **of_group))
        arrays = [state.arrays(weight) for state, weight in zip(states, weights)]
        inputs = [state.inputs(gradient, sets[id(constants[entry.parameter])])
                  for entry, state, gradient in zip(due, states, gradients)]

        def update() -> bool:
            if self._optimizer.step(arrays, inputs).skipped:
                self._skipped += 1
                return False
            self._finish(due, values, states, weights)
            return True

        return unbroken(update)

    @staticmethod
    def _finish(due: list, values: list, states: list, weights: list) -> None:
        for state in states:
            state.steps += 1
        for entry, own, state, weight in zip(due, values, states, weights):
            if state.masters is not None:
                state.masters.weights.copy_(weight)
            if weight.data_ptr() != own.data_ptr():
                own.copy_(weight)
            else:
                torch.autograd.graph.increment_version(entry.parameter)

    # ---- state ----
    def store(self, parameter: torch.Tensor, content: str, into: torch.Tensor) -> None:
        state = self._states[parameter]
        into.copy_(state.masters.full() if content == "master" and state.masters is not None
                   else state.moments[_MOMENTS[content]])

    def load(self, parameter: torch.Tensor, content: str, values: torch.Tensor) -> None:
        state = self._states[parameter]
        if content == "master" and state.masters is not None:
            state.masters.set_full(values)
        else:
            state.moments[_MOMENTS[content]].copy_(values)

    def steps(self, parameter: torch.Tensor) -> int:
        return self._states[parameter].steps

    def set_steps(self, parameter: torch.Tensor, steps: int) -> None:
        self._states[parameter].steps = steps

    # ---- reports, life ----
    def plan(self) -> dict:
        """With the names of an engine's plan."""
        size = sum(tensor.nbytes for state in self._states.values() for tensor in state.tensors())
        return {"rows": [{"what": "optimizer state", "tier": "host", "bytes": size}],
                "host_bytes": size, "device_bytes": 0, "nvme_bytes": 0,
                "parameters": sum(entry.values.numel() for entry in self.entries)}

    def stats(self) -> dict:
        return {"steps_skipped": self._skipped, "nvme_read_bytes": 0, "nvme_written_bytes": 0}

    def close(self) -> None:
        self._optimizer.close()
