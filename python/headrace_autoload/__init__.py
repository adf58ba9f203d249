# SPDX-License-Identifier: Apache-2.0
"""`import torch` calls autoload() in every process (an entry point of torch.backends). It does
nothing without HEADRACE_DEEPSPEED, and imports nothing until then."""
import os


def autoload():
    wanted = os.environ.get("HEADRACE_DEEPSPEED", "0")
    if wanted not in ("", "0", "1", "engine"):
        raise ValueError(f"HEADRACE_DEEPSPEED is {wanted!r}, and not 0, 1 or engine; DeepSpeed was "
                         "left alone. Set it to 1 for DeepSpeed on headrace's operations, or to "
                         "engine for headrace's engine in its place.")
    if wanted in ("1", "engine"):
        import headrace.deepspeed
        if wanted == "engine":
            headrace.deepspeed.take_over()
