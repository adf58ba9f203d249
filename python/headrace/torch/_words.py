# SPDX-License-Identifier: Apache-2.0
"""Errors and log lines of an engine, for programs of torch: what they have in the place of the
calls, settings and names that C++ speaks of."""
from __future__ import annotations

import re
from typing import Callable, Mapping

_CALLS = (
    (re.compile(r"discard_gradients\(\)"), "optimizer.zero_grad()"),
    (re.compile(r"call expect_repeated_gradients\(\) for group '[^']*' before freeze\(\), or set "
                "gradient_accumulation_steps to more than 1"),
     "say how many come in a step: headrace.offload(model, {\"gradient_accumulation_steps\": n}) "
     "adds them in f32"),
    (re.compile(r"Register what Settings::parameter_dtype\(\) says, or set bf16.enabled or "
                "fp16.enabled"),
     "Convert the model, or set bf16.enabled or fp16.enabled in config"))
_OF_A_GROUP = re.compile(r"(parameter )?'(group\d+\.[^']*)'")  # a name that EnginePart has given


def words(titles: Mapping[str, str],
          arguments: Mapping[str, str]) -> Callable[[str], str]:
    """titles: by a parameter's name in the engine, what messages call it. arguments: by a setting,
    the argument that the program gave for it."""
    def title_of(found: re.Match) -> str:
        title = titles.get(found[2])
        if title is None:
            return found[0]
        return title if title.startswith("parameter ") else (found[1] or "") + title

    def reworded(text: str) -> str:
        for pattern, here in _CALLS:
            text = pattern.sub(here, text)
        for setting, argument in arguments.items():
            text = text.replace(f"settings: {setting}", argument).replace(setting, argument)
        return _OF_A_GROUP.sub(title_of, text)

    return reworded
