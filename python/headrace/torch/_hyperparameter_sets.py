# SPDX-License-Identifier: Apache-2.0
"""The hyperparameters of an engine's parameters, as torch's param_groups have them."""
from __future__ import annotations

from typing import Iterable, Mapping

import torch

from .._engine import Engine
from .._errors import WrongState


class HyperparameterSets:
    """A set of the engine serves the parameters that came in one param_group. Those may have
    another order or another group by now, but need equal values."""

    def __init__(self, engine: Engine, sets: Mapping[int, int],
                 constants: Mapping[int, dict]) -> None:
        self._engine = engine
        self._sets = sets  # by param_group, the engine's number
        self._constants = dict(constants)  # by param_group, what the set has now

    def update(self, due: Iterable[tuple[int, str, torch.Tensor]],
               constants: Mapping[torch.Tensor, dict], what_helps: str) -> None:
        """due: the param_group in which each parameter came, its title, and itself."""
        wanted: dict = {}
        for index, title, parameter in due:
            values = constants[parameter]
            first = wanted.setdefault(index, (title, values))
            if values != first[1]:
                raise WrongState(
                    f"{first[0]} and {title} came in one param_group and are in two now, with "
                    f"other options; nothing was updated. {what_helps}")
        for index, (_, values) in wanted.items():
            if values != self._constants[index]:
                self._engine.set_hyperparameters(self._sets[index], **values)
                self._constants[index] = values
