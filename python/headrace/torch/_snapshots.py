# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer as checkpoints in a folder, and references to them.

A reference has primitives only, so that torch.load(..., weights_only=True) reads it.
"""
from __future__ import annotations

import os
import pathlib
import uuid
from typing import Any, Mapping, Optional, Sequence

import torch

from .. import _c
from .._errors import ArgumentError, Corrupt, NoSuchFile, Unsupported
from ._engine_part import EnginePart

REFERENCE = "headrace"  # its key in a state_dict
FORMAT = 1


def _folder_of(path: Any, number: int) -> pathlib.Path:
    return pathlib.Path(path, f"engine{number}")


class Snapshots:
    """Saves at most once between two steps: several calls of state_dict() share a snapshot."""

    def __init__(self, folder: Optional[str]) -> None:
        self._folder = None if folder is None else os.path.abspath(folder)
        self._latest: Optional[dict] = None

    @property
    def wanted(self) -> bool:
        return self._folder is not None

    def outdate(self) -> None:
        self._latest = None

    def save(self, parts: Sequence[EnginePart], flat: Sequence[torch.Tensor]) -> dict:
        if self._latest is None or not os.path.isdir(self._latest["snapshot"]):
            self._latest = self._saved(parts, flat)
        return dict(self._latest)

    def _saved(self, parts: Sequence[EnginePart], flat: Sequence[torch.Tensor]) -> dict:
        name = uuid.uuid4().hex
        path = os.path.join(str(self._folder), name)
        os.makedirs(path)
        for number, part in enumerate(parts):
            part.engine.save_checkpoint(_folder_of(path, number), trainer_state=name.encode())
        indices = {parameter: index for index, parameter in enumerate(flat)}
        return {"format": FORMAT, "id": name, "snapshot": path,
                "parts": [[indices[entry.parameter] for entry in part.entries] for part in parts]}


def check_reference(reference: Mapping[str, Any], parameters: int) -> None:
    """Refuses what cannot be loaded, before anything changes."""
    if reference["format"] != FORMAT:
        raise Unsupported(f"the state_dict has format {reference['format']}, and this headrace "
                          f"reads {FORMAT}; nothing was loaded. Install the newer headrace.")
    if max((index for part in reference["parts"] for index in part), default=-1) >= parameters:
        raise ArgumentError(f"the state_dict is of more parameters than the {parameters} of this "
                            "optimizer; nothing was loaded. Load the state of the same model.")
    if not os.path.isdir(reference["snapshot"]):
        raise NoSuchFile(f"{reference['snapshot']} is no folder, and the state_dict refers to it; "
                         "nothing was loaded. Bring the folder back, or put the path where it is "
                         f"now into state_dict['{REFERENCE}']['snapshot'].",
                         _c.HEADRACE_NOT_FOUND, 2)


def load_parts(reference: Mapping[str, Any], parts: Sequence[EnginePart]) -> None:
    for number, part in enumerate(parts):
        path = _folder_of(reference["snapshot"], number)
        if part.engine.load_checkpoint(path) != reference["id"].encode():
            raise Corrupt(f"{path} is of another state_dict than this one; no state was loaded. "
                          f"Give the folder of the snapshot {reference['id']}.")
