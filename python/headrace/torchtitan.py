# SPDX-License-Identifier: Apache-2.0
"""The optimizers of torchtitan, with their state where headrace puts it. Rule, options, groups and
schedule are those of torchtitan's configuration.

torchtitan 0.3, on the command line:
  --override.imports 'headrace.torchtitan.optimizer={"nvme": "/mnt/nvme"}'
torchtitan 0.2, in the configuration's file, for every model after this import:
  [job]
  custom_config_module = "headrace.torchtitan"
  [optimizer]
  nvme = "/mnt/nvme"    # without it, the state is in host memory
"""
import contextlib
import dataclasses
from typing import Any, Iterator, Optional

from torchtitan.components.optimizer import OptimizersContainer

from . import torch as rules
from ._errors import Unsupported
from .torch.offload._given_optimizer import of_optimizer

try:
    from torchtitan.config.override import derive, override
except ImportError:
    derive = override = None


def _made(given: Any, nvme: Optional[str], host_budget: Optional[str]) -> rules.AdamW:
    """headrace's, of the same groups."""
    rule, groups = of_optimizer(given)
    for old, new in zip(given.param_groups, groups):
        if "param_names" in old:
            new["params"] = list(zip(old["param_names"], old["params"]))
    budget = {} if host_budget is None else {"headrace": {"host_budget_bytes": host_budget}}
    return getattr(rules, rule)(groups, nvme=nvme, config=budget)


@contextlib.contextmanager
def _names_shown(optimizers: list) -> Iterator[None]:
    """A load asks `state` for the names of all that there is."""
    for optimizer in optimizers:
        for parameter, names in optimizer.names_of_state():
            for name in names:
                optimizer.state[parameter].setdefault(name, None)
    try:
        yield
    finally:
        for optimizer in optimizers:
            for parameter, state in list(optimizer.state.items()):
                optimizer.state[parameter] = {name: value for name, value in state.items()
                                              if value is not None}


def serve(container: Any, nvme: Optional[str] = None, host_budget: Optional[str] = None) -> Any:
    """Replaces the optimizers in a container of torchtitan that has made no step."""
    if len(container.optimizers) != len(container.model_parts) and override is None:
        raise Unsupported("optimizer.early_step_in_backward has an optimizer for each parameter, "
                          "and headrace updates all of them at once; nothing was trained. Leave "
                          "it out.")
    container.optimizers = [_made(one, nvme, host_budget) for one in container.optimizers]
    load = container.load_state_dict

    def load_state_dict(state_dict: dict) -> None:
        with _names_shown(container.optimizers):
            load(state_dict)

    container.load_state_dict = load_state_dict
    return container


if override is not None:  # torchtitan 0.3
    class Container(OptimizersContainer):
        """torchtitan's, with headrace's optimizers."""

        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(OptimizersContainer.Config):
            nvme: Optional[str] = None
            host_budget: Optional[str] = None

        def __init__(self, config: Any, *, model_parts: list) -> None:
            if config.implementation == "fused_opt_states_bf16":
                raise Unsupported("optimizer.implementation is fused_opt_states_bf16, which is of "
                                  "torch's optimizer; nothing was trained. Leave it out.")
            super().__init__(config, model_parts=model_parts)
            serve(self, config.nvme, config.host_budget)

    @override(target=OptimizersContainer.Config, description="optimizer state by headrace")
    def optimizer(config: Any, nvme: Optional[str] = None,
                  host_budget: Optional[str] = None) -> Any:
        return derive(config, Container.Config, nvme=nvme, host_budget=host_budget)

else:  # torchtitan 0.2, whose configuration and models take these
    from torchtitan.protocols import train_spec

    @dataclasses.dataclass
    class Optimizer:
        nvme: Optional[str] = None
        """Folder on a drive for the optimizer's state; without it, the state is in host memory."""
        host_budget: Optional[str] = None
        """With nvme, how much may stay in host memory, such as 8GiB."""

    @dataclasses.dataclass
    class JobConfig:
        """What torchtitan adds to its own."""

        optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)

    _get_train_spec = train_spec.get_train_spec

    def get_train_spec(name: str) -> Any:
        """torchtitan's, or the program's own, with headrace's optimizers."""
        spec = _get_train_spec(name)

        def build(model_parts: list, config: Any, *others: Any, **named: Any) -> Any:
            container = spec.build_optimizers_fn(model_parts, config, *others, **named)
            return serve(container, getattr(config, "nvme", None),
                         getattr(config, "host_budget", None))

        return dataclasses.replace(spec, build_optimizers_fn=build)

    train_spec.get_train_spec = get_train_spec
