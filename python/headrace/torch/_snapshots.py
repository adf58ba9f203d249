# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer as checkpoints in a folder, and references to them.

A reference has primitives only, so that torch.load(..., weights_only=True) reads it.
"""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import uuid
from typing import Any, Callable, Mapping, Optional, Sequence

import torch

from .. import _c
from .._errors import ArgumentError, Corrupt, NoSuchFile, Unsupported
from ._engine_part import EnginePart
from ._spaces import check_folder

REFERENCE = "headrace"  # its key in a state_dict
FORMAT = 1


def folder_of(path: Any, number: int) -> pathlib.Path:
    return pathlib.Path(path, f"engine{number}")


class Snapshots:
    """Saves at most once between two changes of values: several calls of state_dict() share a
    snapshot."""

    def __init__(self, folder: Optional[str]) -> None:
        check_folder(folder, "snapshots", makes_it=True)
        self._folder = folder
        self._latest: Optional[dict] = None
        self._generations: list = []  # of the parts, when it was saved

    @property
    def wanted(self) -> bool:
        return self._folder is not None

    def outdate(self) -> None:
        self._latest = None

    def save(self, parts: Sequence[EnginePart], flat: Sequence[torch.Tensor], rule: str,
             of_all: Callable[[str], str]) -> dict:
        """of_all: of each rank's name the one that all ranks use."""
        generations = [part.generation() for part in parts]
        if self._latest is None or self._generations != generations \
                or not os.path.isdir(self._latest["snapshot"]):
            self._latest = self._saved(parts, flat, rule, of_all(uuid.uuid4().hex))
            self._generations = generations
        return dict(self._latest)

    def _saved(self, parts: Sequence[EnginePart], flat: Sequence[torch.Tensor], rule: str,
               name: str) -> dict:
        path = os.path.join(str(self._folder), name)
        os.makedirs(path, exist_ok=True)
        try:
            for number, part in enumerate(parts):
                part.save_checkpoint(folder_of(path, number), name.encode())
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        indices = {parameter: index for index, parameter in enumerate(flat)}
        return {"format": FORMAT, "rule": rule, "id": name, "snapshot": path,
                "parts": [[indices[entry.parameter] for entry in part.entries] for part in parts]}


def check_reference(reference: Any, parameters: int, rule: str) -> None:
    """Refuses what cannot be loaded, before anything changes."""
    if not isinstance(reference, Mapping) or not {"format", "id", "snapshot",
                                                  "parts"} <= set(reference):
        raise ArgumentError(f"the state_dict has no whole reference under '{REFERENCE}'; nothing "
                            "was loaded. Load what state_dict() has given.")
    numbers = [index for part in reference["parts"] for index in part]
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers) \
            or not all(reference["parts"]):
        raise ArgumentError("the reference in the state_dict names parameters twice, or none; "
                            "nothing was loaded. Load what state_dict() has given.")
    if reference.get("rule", rule) != rule:
        raise ArgumentError(f"the state_dict is of {reference['rule']}, and this optimizer of "
                            f"{rule}; nothing was loaded. Load it into the same rule.")
    if reference["format"] != FORMAT:
        raise Unsupported(f"the state_dict has format {reference['format']}, and this headrace "
                          f"reads {FORMAT}; nothing was loaded. Install the newer headrace.")
    if max(numbers) >= parameters:
        raise ArgumentError(f"the state_dict is of more parameters than the {parameters} of this "
                            "optimizer; nothing was loaded. Load the state of the same model.")
    if not os.path.isdir(reference["snapshot"]):
        raise NoSuchFile(f"{reference['snapshot']} is no folder, and the state_dict refers to it; "
                         "nothing was loaded. Bring the folder back, or put the path where it is "
                         f"now into state_dict['{REFERENCE}']['snapshot'].",
                         _c.HEADRACE_NOT_FOUND, 2)


    for number in range(len(reference["parts"])):
        _refuse_another(folder_of(reference["snapshot"], number), reference["id"])


def _refuse_another(path: pathlib.Path, wanted: str) -> None:
    try:
        found = (path / "trainer_state.bin").read_text("ascii", "replace")
    except OSError:
        return  # load_parts() says what is missing
    if found != wanted:
        raise Corrupt(f"{path} is of another run: it is of the snapshot {found[:32]}, "
                      f"{step_in(path)}, and the state_dict of the snapshot {wanted}; nothing was "
                      f"loaded. Give the folder of {wanted}: state_dict['{REFERENCE}']['snapshot'] "
                      "has its path.")


def step_in(checkpoint: Any) -> str:
    """For the text of an error."""
    try:
        with open(pathlib.Path(checkpoint, "manifest.json"), encoding="utf-8") as file:
            parameters = json.loads(file.readline())["parameters"]
        return f"step {max(one['step'] for one in parameters)}"
    except (OSError, ValueError, KeyError, TypeError):
        return "of no step that can be read"


def load_parts(reference: Mapping[str, Any], parts: Sequence[EnginePart]) -> None:
    for number, part in enumerate(parts):
        part.load_checkpoint(folder_of(reference["snapshot"], number))
