# SPDX-License-Identifier: Apache-2.0
"""headrace.offload(), building() and gathered(). torch is imported when one of them is called."""
from __future__ import annotations

from typing import Any, ContextManager, Optional, Union

from ._collective import Collective


def offload(model: Any, config: Any = None, *, nvme: Optional[str] = None,
            host_budget: Union[int, str, None] = None, blocks: Any = "auto",
            optimizer: Optional[str] = None, params: Any = None, snapshots: Optional[str] = None,
            device: Any = None, collective: Optional[Collective] = None,
            **options: Any) -> tuple:
    """Moves the parameters of a torch module, and their optimizer, into an engine. Returns the
    module itself, which trains as before, and its optimizer, a torch.optim.Optimizer.

    config: settings of the engine (docs/settings.md), as a dict or a file.
    nvme: a folder on a drive for weights and state; None: in memory, unless config says otherwise.
    host_budget: with nvme, how much may stay in memory, such as "8GiB".
    blocks: what is brought into memory together. "auto": the repeated layers; or a class, a list of
        modules, or a function of a module's name and the module.
    optimizer, and its options, such as lr: "AdamW", "Adam", "Adagrad", "Lion" or "SGD".
    params: groups with options of their own, as torch.optim takes them; None: one group.
    device: where the model computes, such as "cuda"; None: where its parameters are.
    snapshots: a folder; the optimizer's state_dict() then saves there, and holds a reference.
    collective: this rank's way to the others, if several processes train the model, such as
        headrace.torch.ProcessGroup(). None: all ranks of torch.distributed, if it is initialized.
    After an error, the model is as it was. docs/python.md says what an offloaded model does.
    """
    from .torch import offload as rooms
    return rooms.offload(model, config, nvme=nvme, host_budget=host_budget, blocks=blocks,
                         optimizer=optimizer, params=params, snapshots=snapshots,
                         device=device, collective=collective, **options)


def building(nvme: str) -> ContextManager[None]:
    """Within `with`, modules are made with their parameters in files in the folder nvme, which
    serve as memory: so a model is made that does not fit in memory. Its values are those that it
    has without. offload() takes them from there."""
    from .torch import offload as rooms
    return rooms.building(nvme)


def gathered(what: Any, *, modify: bool = False,
             of_rank: Optional[int] = None) -> ContextManager[Any]:
    """Within `with`, the parameters of a module, or one parameter, or several, can be read. With
    modify, they can be written, and the engine takes the values at the end; after an exception, it
    keeps its own. What is not offloaded is left alone. With several ranks, all of them write the
    same values, or those of the rank of_rank count."""
    from .torch import offload as rooms
    return rooms.gathered(what, modify=modify, of_rank=of_rank)
