# SPDX-License-Identifier: Apache-2.0
"""What save_checkpoint() keeps beside weights and state: the param_groups, and the model's buffers.

The engine's trainer_state has it: a header, this part as torch.save() writes it, and the caller's
bytes. It is read with weights_only, so that a load executes no code.
"""
from __future__ import annotations

import io
import itertools
import numbers
import os
import pathlib
import pickle
import struct
from typing import Any, Iterator, Optional

import torch

from ..._errors import ArgumentError, Corrupt, Unsupported
from .._part import is_expanded
from . import _private

_MAGIC = b"headrace.offload"
_VERSION = 1
_HEADER = struct.Struct("<16sIQ")  # the magic, the version, and the bytes of the part
_NO_DATA = (pickle.PickleError, AttributeError, TypeError)  # pickle raises each of them
_OF_TORCH = ("params", "param_names")  # of a group: they say which parameters it has


# ---- bytes ----
def packed(state: dict) -> bytes:
    try:
        return _packed(state)
    except _NO_DATA as error:
        places = (_place_of_code(value, key) for key, value in state.items())
        raise ArgumentError(f"{next(filter(None, places))}, which a load would have to execute "
                            "code for; nothing was saved. Keep to numbers, texts, tensors, and "
                            "lists and dicts of them.") from error


def _packed(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    unpacked(out.getvalue())
    return out.getvalue()


def _place_of_code(value: Any, place: str) -> Optional[str]:
    """The innermost one. None: all of it is data."""
    try:
        _packed(value)
        return None
    except _NO_DATA:
        parts: Any = value.items() if isinstance(value, dict) else \
            enumerate(value) if isinstance(value, (list, tuple)) else ()
        found = (_place_of_code(part, f"{place}[{key!r}]") for key, part in parts)
        return next(filter(None, found), f"{place} is a {type(value).__name__}")


def unpacked(blob: bytes) -> Any:
    return torch.load(io.BytesIO(blob), weights_only=True)


def wrapped(own: dict, given: bytes) -> bytes:
    packed({key: value for key, value in own.items() if key != "buffers"})  # are data in any case
    out = io.BytesIO()
    torch.save(own, out)
    part = out.getbuffer()
    return b"".join((_HEADER.pack(_MAGIC, _VERSION, part.nbytes), part, given))


def unwrapped(blob: bytes, directory: Any) -> tuple[Optional[dict], bytes]:
    """This part and the caller's bytes. None: they are all that was saved."""
    if not blob.startswith(_MAGIC):
        return None, blob
    try:
        _, version, size_bytes = _HEADER.unpack_from(blob)
        end = _HEADER.size + size_bytes
        own = _checked(unpacked(blob[_HEADER.size:end])) if version == _VERSION else {}
    except Exception as error:  # whatever damaged bytes make of torch.load()
        raise Corrupt(f"{directory}: the param_groups and buffers in trainer_state.bin cannot be "
                      "read; nothing was loaded. Look for damage: headrace checkpoint verify.") \
            from error
    if version != _VERSION:
        raise Unsupported(f"{directory} has param_groups and buffers of format {version}, and this "
                          f"headrace reads {_VERSION}; nothing was loaded. Install the newer "
                          "headrace.")
    return own, blob[end:]


def _checked(own: dict) -> dict:
    for key, kind in (("param_groups", list), ("members", list), ("buffers", dict)):
        if not isinstance(own[key], kind):
            raise TypeError(key)
    return own


def in_checkpoint(directory: Any) -> tuple[Optional[dict], bytes]:
    """To be looked at before a load, which verifies the bytes."""
    try:
        blob = (folder_of(directory) / "trainer_state.bin").read_bytes()
    except (OSError, ValueError):
        return None, b""  # the load says what is missing
    return unwrapped(blob, directory)


def folder_of(directory: Any) -> pathlib.Path:
    """That of the checkpoint, which `latest` may name."""
    folder = pathlib.Path(os.fsdecode(directory))
    latest = folder / "latest"
    if (folder / "manifest.json").exists() or not latest.exists():
        return folder
    return folder / latest.read_text(encoding="utf-8").removesuffix("\n")


# ---- what it holds ----
def of(model: torch.nn.Module, groups: list) -> dict:
    for name, buffer in _buffers(model):
        if type(buffer) not in (torch.Tensor, torch.nn.Buffer) or buffer.layout != torch.strided \
                or buffer.is_meta:
            raise ArgumentError(f"the buffer '{name}' is a {type(buffer).__name__} of layout "
                                f"{buffer.layout} on {buffer.device}, which a checkpoint cannot "
                                "hold; nothing was saved. Register it with persistent=False, and "
                                "save it yourself.")
    count = itertools.count()
    return {"param_groups": [{**{key: plain(value) for key, value in group.items()
                                 if key != "params"},
                              "params": [next(count) for _ in group["params"]]}
                             for group in groups],
            "members": _members(model, groups),
            "buffers": {name: buffer.detach().to("cpu", copy=True).contiguous()
                        for name, buffer in _buffers(model)}}


def plain(value: Any) -> Any:
    """Numbers of numpy, which schedules compute, as Python's: they have the same bits."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {key: plain(one) for key, one in value.items()}
    if type(value).__module__ == "numpy" and getattr(value, "dtype", None) == bool:
        return bool(value)
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) \
        else value


def _members(model: torch.nn.Module, groups: list) -> list:
    """The names of the parameters in each group."""
    name_of = {one: name for name, one in model.named_parameters()}
    return [[name_of[one] for one in group["params"] if one in name_of] for group in groups]


def _buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Those that state_dict() has too."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and _private.is_saved(module, name):
                yield f"{prefix}.{name}" if prefix else name, buffer


def refuse_another(own: dict, model: torch.nn.Module, groups: list, directory: Any) -> None:
    """Before anything is loaded. The engine compares the parameters."""
    _refuse_other_groups(own["members"], _members(model, groups), directory)
    here = {name: (buffer.shape, buffer.dtype) for name, buffer in _buffers(model)}
    there = {name: (buffer.shape, buffer.dtype) for name, buffer in own["buffers"].items()}
    for name, buffer in _buffers(model):
        if is_expanded(buffer) and name in there and here[name] == there[name] \
                and not torch.equal(buffer.cpu(), own["buffers"][name]):
            raise ArgumentError(f"the buffer '{name}' has elements that share memory, and other "
                                f"values in {directory}; nothing was loaded. Give it memory of "
                                "its own: buffer.clone().")
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise ArgumentError(
                f"the buffer '{name}' is {_words(there.get(name))} in {directory}, and "
                f"{_words(here.get(name))} in the model; nothing was loaded. Load it into the "
                "model that was saved.")


def _refuse_other_groups(saved: list, here: list, directory: Any) -> None:
    number_in = {name: number for number, names in enumerate(saved) for name in names}
    found = ""
    for number, names in enumerate(here):
        for name in names:
            if not found and number_in.get(name, number) != number:
                found = f"'{name}' is in group {number_in[name]} there, and in {number} here"
    if not found and len(saved) != len(here):
        found = f"there are {len(saved)} there, and {len(here)} here"
    if found:
        raise ArgumentError(f"the optimizer in {directory} has its parameters in other groups than "
                            f"this one, so rates and decays would go to others: {found}; nothing "
                            "was loaded. Make the groups as they were, in the same order.")


def _words(form: Optional[tuple]) -> str:
    return "missing" if form is None else f"{form[1]} of shape {tuple(form[0])}"


def take(own: dict, model: torch.nn.Module, groups: list) -> None:
    with torch.no_grad():
        for name, buffer in _buffers(model):
            if not is_expanded(buffer):  # else it has these values already
                buffer.copy_(own["buffers"][name])
    for group, saved in zip(groups, own["param_groups"]):
        group.update({key: _as_here(value, group.get(key)) for key, value in saved.items()
                      if key not in _OF_TORCH})


def _as_here(value: Any, now: Any) -> Any:
    """A rate that is a tensor is on its device."""
    both = isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor)
    return value.to(now.device) if both else value
