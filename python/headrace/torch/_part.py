# SPDX-License-Identifier: Apache-2.0
"""Parameters of torch that are updated together: what both kinds of parts have in common."""
from __future__ import annotations

import ctypes
import math
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional

import torch

from .._errors import ArgumentError, Unsupported, WrongState

NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def with_dtype(settings: Mapping[str, Any], kinds: Iterable[str]) -> dict:
    """A model of bf16 is one where no setting says what the model is."""
    said = any(key in settings for key in ("bf16", "bfloat16", "fp16"))
    return dict(settings) if said or "bf16" not in kinds \
        else {**settings, "bf16": {"enabled": True}}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The shard of this rank, of a tensor that is divided among ranks (FSDP2's DTensor)."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def shaped_as(tensor: torch.Tensor, shard: torch.Tensor) -> torch.Tensor:
    """The inverse: `shard` as this rank's part of a tensor that is divided as `tensor`."""
    if not hasattr(tensor, "to_local"):
        return shard
    from torch.distributed.tensor import DTensor  # where there is one, it is loaded
    return DTensor.from_local(shard, tensor.device_mesh, tensor.placements, run_check=False,
                              shape=tensor.shape, stride=tensor.stride())


class Entry(NamedTuple):
    """A parameter of torch, and its place when its state was made. It may move to another of
    torch's param_groups later."""

    parameter: torch.Tensor
    name: str  # within its group
    set_index: int  # of torch's param_groups
    number: Optional[int] = None  # there, if the program gave it no name

    @property
    def title(self) -> str:
        """For messages: what the program can find."""
        if self.number is None:
            return f"'{self.name}'"
        return (f"parameter {self.number} of param_groups[{self.set_index}] of shape "
                f"{tuple(self.parameter.shape)}")

    @property
    def values(self) -> torch.Tensor:
        """What this rank updates."""
        return local(self.parameter.detach())


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether several of its elements are one."""
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape))


def check(entry: Entry) -> None:
    """Raises Unsupported for a parameter that no engine can update."""
    found, parameter = None, entry.values
    if parameter.device.type not in ("cpu", "cuda"):
        found = f"is on {parameter.device}"
    elif parameter.dtype not in NAMES:
        found = f"has the dtype {parameter.dtype}"
    elif parameter.layout != torch.strided or type(parameter) is not torch.Tensor:
        found = f"is a {type(parameter).__name__} of layout {parameter.layout}"
    elif is_expanded(parameter):
        found = "is expanded, so that several of its elements are one"
    if found is not None:
        raise Unsupported(
            f"{entry.title} {found}, and headrace.torch updates dense float32, bfloat16 and "
            "float16 parameters on the CPU and on NVIDIA GPUs; nothing was updated. Give this "
            "parameter to an optimizer of torch.optim.")


def check_apart(entries: Iterable[Entry]) -> None:
    """Raises ArgumentError for parameters with common elements: each has state of its own."""
    for spans in _overlapping(map(_span_of, entries)):
        common = _with_common_elements(spans)
        if common is not None:
            one, other = common
            raise ArgumentError(f"{one.title} and {other.title} share memory, and each would be "
                                "kept and updated by itself; nothing was updated. Give the tensor "
                                "that both are views of, or one of them memory of its own, with "
                                "clone().")


class _Span(NamedTuple):
    """Where a parameter lies: runs of bytes without gaps, which are repeated at steps."""

    device: str
    first: int
    end: int
    run_bytes: int
    repeats: list  # (how often, step in bytes)
    title: str


def _span_of(entry: Entry) -> _Span:
    values = entry.values
    run = values.element_size()
    repeats: list = []
    for stride, size in sorted(zip(values.stride(), values.shape)):
        step = stride * values.element_size()
        if step == run and not repeats:
            run *= size
        elif size > 1 and step > 0:
            repeats.append((size, step))
    first = values.data_ptr()
    end = first + run + sum((size - 1) * step for size, step in repeats)
    return _Span(str(values.device), first, end if values.numel() > 0 else first, run, repeats,
                 entry.title)


def _overlapping(spans: Iterable[_Span]) -> Iterator[list]:
    """Each of several spans that overlap, by themselves or through others."""
    together: list = []
    for span in sorted((one for one in spans if one.first < one.end), key=lambda one: one[:2]):
        if together and (span.device != together[0].device
                         or span.first >= max(one.end for one in together)):
            if len(together) > 1:
                yield together
            together = []
        together.append(span)
    if len(together) > 1:
        yield together


def _with_common_elements(spans: list) -> Optional[tuple]:
    """Two of them, or None: slices of one tensor may be interleaved. Marks the bytes of each, where
    one mark is for as many as all runs and steps are multiples of."""
    dense = [span for span in spans if not span.repeats]
    for one, other in zip(dense, dense[1:]):
        if other.first < one.end:
            return one, other
    base = spans[0].first
    unit_bytes = math.gcd(*(size for one in spans for size in (
        one.first - base, one.run_bytes, *(step for _, step in one.repeats))))
    taken = torch.zeros((max(one.end for one in spans) - base) // unit_bytes, dtype=torch.bool,
                        device="cpu")

    def units_of(span: _Span) -> torch.Tensor:
        return taken.as_strided([*(size for size, _ in span.repeats), span.run_bytes // unit_bytes],
                                [*(step // unit_bytes for _, step in span.repeats), 1],
                                (span.first - base) // unit_bytes)

    for at, span in enumerate(spans):
        if units_of(span).any():
            taken.zero_()
            units_of(span).fill_(True)
            return next(one for one in spans[:at] if units_of(one).any()), span
        units_of(span).fill_(True)
    return None


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_neg().contiguous()


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return row_major(tensor).view(_BITS[tensor.dtype])


def memory_of(tensor: torch.Tensor) -> ctypes.Array:
    """The bytes of a row-major tensor; the caller keeps the tensor."""
    size_bytes = tensor.numel() * tensor.element_size()
    return (ctypes.c_ubyte * size_bytes).from_address(tensor.data_ptr())


def gradient_of(entry: Entry) -> torch.Tensor:
    """Its gradient, row-major and of a dtype that the rules read."""
    gradient, values = local(entry.parameter.grad), local(entry.parameter)
    if gradient.layout != torch.strided:
        raise Unsupported(
            f"the gradient of {entry.title} is of layout {gradient.layout}, and headrace.torch "
            "takes dense ones; nothing was updated. Make it dense, such as with sparse=False.")
    if gradient.dtype not in NAMES:
        raise Unsupported(
            f"the gradient of {entry.title} has the dtype {gradient.dtype}, and headrace.torch "
            "takes float32, bfloat16 and float16; nothing was updated. Convert it.")
    if (gradient.shape, gradient.device) != (values.shape, values.device):
        raise ArgumentError(
            f"the gradient of {entry.title} has the shape {tuple(gradient.shape)} on "
            f"{gradient.device}, and the parameter {tuple(values.shape)} on {values.device}; "
            "nothing was updated. Clear the gradients after a parameter has changed.")
    return row_major(gradient)


def _form_of(parameter: torch.Tensor) -> tuple:
    return parameter.dtype, parameter.shape, parameter.device


def _words(form: tuple) -> str:
    dtype, shape, device = form
    return f"{dtype} of shape {tuple(shape)} on {device}"


class Part:
    """Some parameters, and their state. A kind gives what raises NotImplementedError here."""

    _FOR_ANOTHER_FORM = "Make a new optimizer after such a change."

    def __init__(self, entries: list) -> None:
        self.entries = entries
        self._names = {entry.parameter: entry.name for entry in entries}
        self.titles = {entry.parameter: entry.title for entry in entries}
        self._forms = {entry.parameter: _form_of(entry.parameter) for entry in entries}

    def name_of(self, parameter: torch.Tensor) -> str:
        return self._names[parameter]

    def step(self, constants: Mapping[torch.Tensor, dict]) -> list:
        """One update of the parameters that have a gradient and are neither frozen nor removed from
        the optimizer; returns them. constants: of each parameter of the optimizer, the fields of
        headrace_hyperparameters; those of a param_group are one object."""
        self.refuse_other_forms()
        due = [entry for entry in self.entries
               if entry.parameter.grad is not None and entry.parameter.requires_grad
               and entry.parameter in constants]
        if not due or not self._update(due, constants):
            return []
        return [entry.parameter for entry in due]

    def refuse_save(self) -> None:
        self.refuse_other_forms()
        self.refuse_mixed("saved")

    def refuse_mixed(self, done: str) -> None:
        """If a load of its state ended in the middle."""

    def refuse_other_forms(self) -> None:
        """An update would take bits of another dtype, or addresses of another device, for its
        own."""
        for parameter, form in self._forms.items():
            if _form_of(parameter) != form:
                raise WrongState(
                    f"{self.titles[parameter]} is now {_words(_form_of(parameter))}, "
                    f"and was {_words(form)} when its state was made; nothing was done. "
                    f"{self._FOR_ANOTHER_FORM}")

    def _update(self, due: list, constants: Mapping[torch.Tensor, dict]) -> bool:
        """False: skipped, for a gradient is not finite."""
        raise NotImplementedError

    # ---- state: a content is one of the engine's ----
    def store(self, parameter: torch.Tensor, content: str, into: torch.Tensor) -> None:
        raise NotImplementedError

    def load(self, parameter: torch.Tensor, content: str, values: torch.Tensor) -> None:
        raise NotImplementedError

    def generation(self) -> int:
        """Of the weights that it saves and loads. Those of the program are not among them."""
        return 0

    def steps(self, parameter: torch.Tensor) -> int:
        raise NotImplementedError

    def set_steps(self, parameter: torch.Tensor, steps: int) -> None:
        raise NotImplementedError

    # ---- reports, life ----
    def plan(self) -> dict:
        raise NotImplementedError

    def stats(self) -> dict:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def non_finite(parameters: Iterable[Any]) -> Optional[torch.Tensor]:
    """The first parameter whose gradient holds NaN or infinity."""
    for parameter in parameters:
        if parameter.grad is not None and not torch.isfinite(local(parameter.grad)).all():
            return parameter
    return None
