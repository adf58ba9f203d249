# SPDX-License-Identifier: Apache-2.0
"""Which parameter goes into which group: each block is a group, and the rest is one more.

A block is a module whose parameters are needed together, such as a layer of a transformer. What
lies outside of all blocks, or in several (a tied weight), forms the group of the rest, which is
always in memory.
"""
from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence, Union

import torch

from ..._errors import ArgumentError, Unsupported
from .._part import NAMES, Entry, check_apart
from ._wrapped import is_wrapped, part_at, parts_of

Blocks = Union[str, type, Sequence[torch.nn.Module], Callable[[str, torch.nn.Module], bool]]
_WORTH_BLOCKS = 0.05  # of the model's parameters
REST = ""  # the group's name: its parameters then have the model's names, as those of blocks


class Member(NamedTuple):
    """A parameter, and the first place at which the model has it; or one of its tensors."""

    name: str  # within its group
    parameter: torch.nn.Parameter
    part: str = ""  # the path of the tensor in it (_wrapped.py)


class Division(NamedTuple):
    """A group to be made."""

    name: str
    module: Optional[torch.nn.Module]  # the block; None: the rest
    members: list
    tied_to_blocks: bool  # several blocks use one of its parameters


def divide(model: torch.nn.Module, blocks: Blocks) -> list[Division]:
    _refuse_foreign(model)
    found = dict(_blocks_of(model, blocks))
    places = _places(model, found)
    divisions = [Division(name, module, _members_of(places, name), False)
                 for name, module in found.items()]
    rest = [Member(names[0], parameter, part) for parameter, names, owners in places
            if len(owners) != 1 or None in owners for part in _paths_in(parameter)]
    tied = any(len(owners - {None}) > 1 for _, _, owners in places)
    divisions.append(Division(REST, None, rest, tied))
    _check(places)
    return [division for division in divisions if division.members]


def _places(model: torch.nn.Module, blocks: dict) -> list[tuple]:
    """Each parameter with its names and the names of the blocks that have it (None: no block).
    Those without elements have no bytes to move, and stay torch's."""
    found: dict = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = next((block for block in blocks if name.startswith(block + ".")), None)
        names, owners = found.setdefault(parameter, ([], set()))
        names.append(name)
        owners.add(owner)
    return [(parameter, *value) for parameter, value in found.items() if parameter.numel() > 0]


def _members_of(places: Iterable[tuple], block: str) -> list[Member]:
    return [Member(names[0][len(block) + 1:], parameter, part)
            for parameter, names, owners in places if owners == {block}
            for part in _paths_in(parameter)]


def _paths_in(parameter: torch.Tensor) -> list[str]:
    """Of its tensors that have elements."""
    return [path for path, part in parts_of(parameter) if part.numel() > 0]


# ---- which modules are blocks ----
def _blocks_of(model: torch.nn.Module, blocks: Blocks) -> list[tuple]:
    if isinstance(blocks, str):
        found = _automatic(model, blocks)
    elif isinstance(blocks, type):
        found = _outermost(model, lambda _, module: isinstance(module, blocks))
    elif callable(blocks) and not isinstance(blocks, torch.nn.Module):
        found = _outermost(model, blocks)
    else:
        found = _listed(model, blocks)
    if not found:
        raise ArgumentError(
            f"no blocks were found in {type(model).__name__} by blocks={blocks!r}; the model is as "
            "it was. Give the class of the repeated layer, a list of modules, or a function of a "
            "module's name and the module.")
    return found


def _automatic(model: torch.nn.Module, blocks: str) -> list[tuple]:
    if blocks != "auto":
        raise ArgumentError(f"blocks is the text {blocks!r}; the model is as it was. Give "
                            "\"auto\", a class, a list of modules or a function.")
    named = set(getattr(model, "_no_split_modules", None) or ())  # of transformers
    found: list = []
    names = {module: name for name, module in model.named_modules()}
    for layer in _repeated(model):
        _add(found, names[layer], layer)
    for name, module in model.named_modules():
        if type(module).__name__ in named:
            _add(found, name, module)
    places = {name: place for place, name in enumerate(names.values())}
    return sorted(found, key=lambda block: places[block[0]])


def automatic_or_leaves(model: torch.nn.Module) -> Blocks:
    """For a program that cannot say: "auto", or where that finds none, each module that has
    parameters and no such module in it."""
    if _automatic(model, "auto"):
        return "auto"
    leaves = [module for module in model.modules()
              if _elements(module) > 0 and not any(map(_elements, module.children()))]
    if leaves == [model]:
        raise ArgumentError(f"the model is a single {type(model).__name__}, and what is brought "
                            "and taken away are modules within a model; it is as it was. Put it "
                            "into another module, such as torch.nn.Sequential(model).")
    return leaves


def _repeated(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The layers: the members of lists that have several of one class. The list with the most
    parameters comes first, since a list within a layer, such as of experts, is of no use then. What
    is small, such as a head of two layers, is not worth a block."""
    lists = [(sum(map(_elements, _alike(module))), module) for module in model.modules()
             if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential))]
    least = _WORTH_BLOCKS * _elements(model)
    for elements, one in sorted(lists, key=lambda pair: -pair[0]):
        if elements >= least:
            yield from one if isinstance(one, torch.nn.ModuleList) else _alike(one)


def _alike(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Those of a class that occurs more than once."""
    kinds = Counter(map(type, modules))
    return [module for module in modules if kinds[type(module)] > 1]


def _add(found: list, name: str, module: torch.nn.Module) -> None:
    """Unless it has no parameters, is in a block, or has one in it."""
    related = any(name == block or name.startswith(block + ".") or block.startswith(name + ".")
                  for block, _ in found)
    if name and not related and _elements(module) > 0:
        found.append((name, module))


def _elements(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _outermost(model: torch.nn.Module,
               chosen: Callable[[str, torch.nn.Module], bool]) -> list[tuple]:
    found: list = []
    for name, module in model.named_modules():
        inside = any(name.startswith(block + ".") for block, _ in found)
        if name and not inside and chosen(name, module):
            found.append((name, module))
    return found


def _listed(model: torch.nn.Module, blocks: Any) -> list[tuple]:
    wanted = list(blocks)
    names = {module: name for name, module in model.named_modules()}
    for module in wanted:
        if not names.get(module):
            raise ArgumentError(f"blocks lists a {type(module).__name__} that is no module within "
                                "the model; the model is as it was. List modules of it.")
    found = [(names[module], module) for module in wanted]
    for name, _ in found:
        outer = next((other for other, _ in found if name.startswith(other + ".")), None)
        if outer is not None or [other for other, _ in found].count(name) > 1:
            raise ArgumentError(f"blocks lists '{name}', which is '{outer or name}' or within it; "
                                "the model is as it was. List each part of the model once.")
    return found


# ---- what cannot be offloaded ----
def _refuse_foreign(model: torch.nn.Module) -> None:
    """What has no values of its own yet, or not here."""
    for name, parameter in model.named_parameters():
        found = "has no shape yet" if isinstance(
            parameter, torch.nn.parameter.UninitializedParameter) else \
            "is divided among ranks by DeepSpeed" if hasattr(parameter, "ds_id") else None
        if found is not None:
            raise Unsupported(f"parameter '{name}' {found}; the model is as it was. Offload a "
                              "model that has run once, and without deepspeed.zero.Init().")


def _check(places: Sequence[tuple]) -> None:
    for parameter, names, _ in places:
        fault = next(_faults_of_wrapped(parameter) if is_wrapped(parameter) else _faults(parameter),
                     None)
        if fault is not None:
            raise Unsupported(f"parameter '{names[0]}' {fault[0]}; the model is as it was. "
                              f"{fault[1]}")
    check_apart([Entry(part, f"{names[0]}.{path}" if path else names[0], 0)
                 for parameter, names, _ in places for path, part in parts_of(parameter)])


def _faults_of_wrapped(parameter: torch.Tensor) -> Iterator[tuple[str, str]]:
    if parameter.requires_grad:
        yield (f"is a trained {type(parameter).__name__}",
               "Freeze it with requires_grad_(False), and train an adapter beside it.")
    kind = type(parameter).__name__
    for path, part in parts_of(parameter):
        if part_at(parameter, path) is not part:
            yield (f"is a {kind} whose {path} is made anew at each access, so it cannot be parked",
                   "Let it be a tensor that the weight keeps.")
        for fault, help_text in _faults(part):
            yield f"is a {kind} whose {path} {fault}", help_text


def _faults(parameter: torch.nn.Parameter) -> Iterator[tuple[str, str]]:
    if parameter.device.type == "meta":
        yield ("is on the meta device, so it has no values",
               "Load the model first: from_pretrained() on the CPU maps its files, and does not "
               "read them.")
    is_plain = type(parameter) in (torch.nn.Parameter, torch.Tensor) or not parameter.requires_grad
    if not is_plain or type(parameter.data) not in (torch.Tensor, type(parameter)):
        yield (f"is a {type(parameter).__name__} over a {type(parameter.data).__name__}, which "
               "has more than its elements",
               "Offload a model of plain tensors, not sharded by FSDP2.")
    elif parameter.numel() > 0 and parameter.device.type != "meta" \
            and parameter.layout == torch.strided and parameter.data_ptr() == 0:
        yield (f"is a {type(parameter).__name__} without memory of its own, and does not say "
               "which tensors it consists of",
               "Give its class __tensor_flatten__() and __tensor_unflatten__().")
    if parameter.is_quantized:
        yield (f"has the dtype {parameter.dtype}, of torch's older quantisation",
               "Keep its codes in int8 or uint8, and scales beside it.")
    if parameter.is_inference():
        yield ("was made in torch.inference_mode(), so it cannot be trained",
               "Make or load the model outside of it.")
    if parameter.dtype not in NAMES and parameter.requires_grad:
        yield (f"has the dtype {parameter.dtype} and is trained",
               "Convert it to float32, bfloat16 or float16, or freeze it: requires_grad_(False).")
    if parameter.layout != torch.strided or not parameter.is_contiguous():
        yield ("is not row-major (channels_last, transposed, a slice or sparse), and would lose "
               "its strides", "Give it memory of its own, with contiguous().")
