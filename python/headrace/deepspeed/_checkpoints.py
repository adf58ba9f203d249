# SPDX-License-Identifier: Apache-2.0
"""save_checkpoint() and load_checkpoint(): a folder per step, in the engine's own format.

DIRECTORY/latest names the newest. DIRECTORY/global_step8 is what `headrace checkpoint inspect`
reads: weights, masters and moments, groups and buffers; the loop's own state belongs to it, as
bytes that torch.load() reads without executing code.
"""
from __future__ import annotations

import glob
import os
import pathlib
import shutil
from typing import Any, Callable, Optional

from .. import _c
from .._errors import ArgumentError, NoSuchFile
from ..torch.offload import _trainer_state
from ..torch.offload._ranks import Ranks

_LATEST = "latest"
_OURS = ".headrace-"  # begins the names of folders that only this file makes and removes
_OF_A_CHECKPOINT = ("manifest.json", "trainer_state.bin", "model.safetensors.index.json")


def loop_state_of(given: bytes) -> Optional[dict]:
    """None: the bytes are another program's, such as of offload() or `headrace checkpoint
    convert`."""
    try:
        state = _trainer_state.unpacked(given)
    except Exception:  # torch.load() raises what it likes for other bytes
        return None
    return state if isinstance(state, dict) and "micro_steps" in state else None


def folder_to_save(directory: Any, tag: Any) -> pathlib.Path:
    """A folder of the tag's own, below the directory."""
    text = str(tag)
    parts = pathlib.PurePath(text).parts
    folder = pathlib.Path(directory, text)
    why = None
    if not parts or ".." in parts or pathlib.PurePath(text).is_absolute() or text != text.strip() \
            or folder.name == _LATEST:
        why = f"is no name of a folder of its own below {directory}"
    elif folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        why = f"is a file or link in {directory}, which stays"
    elif folder.name.startswith(_OURS):
        why = "begins as the folders in which headrace replaces a checkpoint, which it removes"
    if why is not None:
        raise ArgumentError(f"the tag '{tag}' {why}; nothing was saved. Give another tag.")
    return folder


def save_to(folder: pathlib.Path, call: str, ranks: Ranks,
            save: Callable[[pathlib.Path], None]) -> None:
    """A tag that is there is replaced once the new one is whole: at any moment one of them is, and
    folder_to_load() finds it. All ranks save; rank 0 makes and names the folders."""
    new, old = _beside(folder)
    with ranks.agreed(call):
        os.makedirs(folder.parent, exist_ok=True)
        if ranks.rank == 0:
            _finish_replacing(folder)
            shutil.rmtree(new, ignore_errors=True)
    replaces = folder.exists()
    save(new if replaces else folder)
    if replaces and ranks.rank == 0:
        os.rename(folder, old)
        _finish_replacing(folder)


def _beside(folder: pathlib.Path) -> tuple:
    return (folder.with_name(f"{_OURS}new-{folder.name}"),
            folder.with_name(f"{_OURS}old-{folder.name}"))


def _finish_replacing(folder: pathlib.Path) -> None:
    """A new one and no checkpoint: a kill came between the two renames. Neither: it came later,
    and the checkpoint has another name by now."""
    new, old = _beside(folder)
    if not old.is_dir():
        return
    if not folder.exists() and new.is_dir():
        os.rename(new, folder)
    for entry in list(os.scandir(old)) if folder.is_dir() else []:
        if entry.name not in _OF_A_CHECKPOINT and not entry.name.endswith(".safetensors") \
                and not (folder / entry.name).exists():
            os.rename(entry.path, folder / entry.name)  # the program's
    shutil.rmtree(old)


def note_latest(directory: Any, tag: Any) -> None:
    """Names the checkpoint once it is whole."""
    target = pathlib.Path(directory, _LATEST)
    part = target.with_name(f".{_LATEST}.{os.getpid()}")
    with open(part, "w", encoding="utf-8") as file:
        file.write(str(tag))
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, target)


def folder_to_load(directory: Any, tag: Optional[Any], ranks: Ranks) -> Optional[pathlib.Path]:
    """None: there is no checkpoint, and no tag was asked for."""
    latest = pathlib.Path(directory, _LATEST)
    if tag is None:
        if not latest.is_file():
            return None
        tag = latest.read_text(encoding="utf-8").strip()
    folder = pathlib.Path(directory, str(tag))
    if ranks.rank == 0:
        _finish_replacing(folder)
    ranks.meet()
    if not folder.is_dir():
        raise NoSuchFile(f"there is no checkpoint '{tag}' in {directory}; nothing was loaded. "
                         f"These are there: {_tags_in(directory)}.", _c.HEADRACE_NOT_FOUND, 2)
    if glob.glob(os.path.join(glob.escape(str(folder)), "*_model_states.pt")):
        raise ArgumentError(f"{folder} is a checkpoint of DeepSpeed's own engine; nothing was "
                            "loaded. Make a universal one of it with DeepSpeed's "
                            "ds_to_universal.py, and convert that: headrace checkpoint convert.")
    return folder


def _tags_in(directory: Any) -> str:
    found = sorted(entry.name for entry in os.scandir(directory)
                   if entry.is_dir() and not entry.name.startswith(_OURS)) \
        if os.path.isdir(directory) else []
    return ", ".join(found[:20]) or "none"
