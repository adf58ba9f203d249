# SPDX-License-Identifier: Apache-2.0
"""`import torch` calls autoload() in every process (an entry point of torch.backends). It does
nothing without HEADRACE_DEEPSPEED=1, and imports nothing until then."""
import os


def autoload():
    wanted = os.environ.get("HEADRACE_DEEPSPEED", "0")
    if wanted not in ("", "0", "1"):
        raise ValueError(f"HEADRACE_DEEPSPEED is {wanted!r}, which is neither 0 nor 1; DeepSpeed's "
                         "operations were left alone. Set it to 1 for those of headrace.")
    if wanted == "1":
        import headrace.deepspeed  # noqa: F401
