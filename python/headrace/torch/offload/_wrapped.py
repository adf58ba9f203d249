# SPDX-License-Identifier: Apache-2.0
"""Tensors that consist of other tensors, such as a quantised weight of torchao: codes and scales.

torch's own protocol takes them apart (__tensor_flatten__) and puts others together
(__tensor_unflatten__). The tensors within stay the same objects, so each is parked and bound as a
parameter of its own is.
"""
from __future__ import annotations

from typing import Any, Callable, Iterator, NamedTuple, Optional

import torch


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Not those of FSDP2, which are divided among ranks."""
    return hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "to_local")


def parts_of(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors within, with their paths, such as "qdata"; of others, itself with ""."""
    if not is_wrapped(tensor):
        yield "", tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        for path, part in parts_of(getattr(tensor, name)):
            yield f"{name}.{path}" if path else name, part


def part_at(tensor: torch.Tensor, path: str) -> torch.Tensor:
    for name in path.split(".") if path else ():
        tensor = getattr(tensor, name)
    return tensor


class Form(NamedTuple):
    """A tensor without the tensors within."""

    kind: type
    context: Any
    size: Any
    stride: Any
    within: dict  # by name: None if it is no wrapped one itself

    def rebuilt(self, part: Callable[[str], torch.Tensor], above: str = "") -> torch.Tensor:
        """A tensor of this form over part(path)."""
        within = {name: part(above + name) if form is None
                  else form.rebuilt(part, f"{above}{name}.") for name, form in self.within.items()}
        return self.kind.__tensor_unflatten__(within, self.context, self.size, self.stride)


def form_of(tensor: torch.Tensor) -> Optional[Form]:
    """None: it consists of no others."""
    if not is_wrapped(tensor):
        return None
    names, context = tensor.__tensor_flatten__()
    return Form(type(tensor), context, tensor.size(), tensor.stride(),
                {name: form_of(getattr(tensor, name)) for name in names})
