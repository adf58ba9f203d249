# SPDX-License-Identifier: Apache-2.0
"""Settings as C takes them, and what errors call them."""
from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Any, Iterator, Mapping

from ._errors import ArgumentError, ConfigError, Unsupported

# What C calls a text, with a place in it that no caller has seen; and names given here.
_NAMES = re.compile(r"^(?:settings_json:\d+:\d+|settings|config): ", re.MULTILINE)


def json_of(settings: Any) -> bytes:
    try:
        return json.dumps(settings, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"the settings cannot be written as JSON: {error}; nothing was made. "
                            "Give a dict of numbers, texts, lists and dicts.") from error


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def whole_path(folder: Any, argument: str, unchanged: str) -> str:
    """The absolute path of a folder. An empty one would be the working directory."""
    if not isinstance(folder, (str, bytes, os.PathLike)) or not os.fspath(folder):
        raise ArgumentError(f"{argument} is {folder!r}; {unchanged}. Give the path of a folder on "
                            f"a drive, or leave {argument} out.")
    return os.path.abspath(os.path.expanduser(os.fsdecode(folder)))


def refuse_durable(settings: Mapping[str, Any], unchanged: str) -> None:
    """The values of torch's parameters come first here, and would replace those of the store."""
    own = settings.get("headrace")
    durable = own.get("durable", "none") if isinstance(own, Mapping) else "none"
    if durable != "none":
        raise Unsupported(f"config sets headrace.durable to {durable!r}, and parameters of torch "
                          "begin with their own values, which would replace those of the store; "
                          f"{unchanged}. Leave the key out, and save between steps: "
                          "save_checkpoint(), or state_dict() with snapshots, can be killed at any "
                          "moment. headrace.Engine goes on from a store.")


def renamed(text: str, name: Any) -> str:
    """`text` with `name` for what the caller gave."""
    return _NAMES.sub(lambda _: f"{name}: ", text)


@contextlib.contextmanager
def called(name: Any) -> Iterator[None]:
    """Within, errors in settings are errors in `name`: an argument or a file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(renamed(error.text, name), error.code, error.errno) from None
