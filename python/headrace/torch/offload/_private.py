# SPDX-License-Identifier: Apache-2.0
"""Every name of torch that offload() uses and torch does not document, and a test of what they do.

Another version of torch may lack or change them: refuse_other_torch() then names the version. No
other file of this package has a name of torch with an underscore.
"""
from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable, Optional

import torch
import torch.utils.checkpoint

from ..._errors import Unsupported

_TEXT = "a test of headrace"


def storage_at(address: int, device: torch.device, size_bytes: int) -> torch.UntypedStorage:
    """A storage over memory that torch does not own. Address 0: no memory, whatever the size."""
    return torch._C._construct_storage_from_data_pointer(address, device, size_bytes)


def guard(storage: torch.UntypedStorage, text: str) -> None:
    """From now on, torch raises RuntimeError(text) at each use of its memory."""
    torch._C._set_storage_data_ptr_access_error_msg(storage._cdata, text)


def identity(storage: torch.UntypedStorage) -> int:
    """Equal for two objects of Python that stand for one storage."""
    return storage._cdata


def uses(storage: torch.UntypedStorage) -> int:
    """How many tensors and objects of Python share it."""
    return torch._C._storage_Use_Count(storage._cdata)


def backward_pass() -> int:
    """The number of the backward pass that runs on this thread; -1: none."""
    return torch._C._current_graph_task_id()


def at_end_of_pass(function: Callable[[], None]) -> None:
    """Calls it when the running backward pass ends, unless an exception ends the pass."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def saved_tensor_hooks() -> Optional[tuple]:
    """The innermost saved_tensors_hooks() of this thread."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def pop_saved_tensor_hooks() -> None:
    torch._C._autograd._pop_saved_tensors_default_hooks()


def around_checkpoints(save: Callable[..., Any]) -> Callable[[], None]:
    """Where torch.utils.checkpoint saves the inputs of a checkpoint, it calls save(run, *arguments)
    in place of run(*arguments). Returns what undoes it."""
    module = torch.utils.checkpoint
    kinds = [module.CheckpointFunction, module._NoopSaveInputs]
    for kind in kinds:
        setattr(kind, "apply", staticmethod(functools.partial(save, kind.apply)))

    def undo() -> None:
        for kind in kinds:
            del kind.apply  # torch's own is that of the class above

    return undo


def telling_of_copies(tell: Callable[[Any], None]) -> Callable[[], None]:
    """Calls tell() with each parameter that copy.deepcopy() makes: no module registers it. Returns
    what undoes it."""
    def run(own: Callable[..., Any], *arguments: Any) -> Any:
        copied = own(*arguments)
        tell(copied)
        return copied

    return _around(torch.nn.Parameter, "__deepcopy__", run)


def around_conversions(run: Callable[..., Any]) -> Callable[[], None]:
    """Where to(), half() and others go through a module, calls run(own, module, *arguments) in
    place of own(module, *arguments). Returns what undoes it."""
    return _around(torch.nn.Module, "_apply", run)


def _around(kind: type, name: str, run: Callable[..., Any]) -> Callable[[], None]:
    own = getattr(kind, name)

    @functools.wraps(own)
    def told(*arguments: Any, **named: Any) -> Any:
        return run(own, *arguments, **named)

    def undo() -> None:
        if getattr(kind, name) is told:
            setattr(kind, name, own)

    setattr(kind, name, told)
    return undo


def note_step(optimizer: torch.optim.Optimizer) -> None:
    """For its schedules, which otherwise warn that it has made no step."""
    optimizer._opt_called = True


def is_saved(module: torch.nn.Module, buffer: str) -> bool:
    """Whether state_dict() has the module's buffer of this name."""
    return buffer not in module._non_persistent_buffers_set


def is_in_func_transform() -> bool:
    """Whether one of torch.func's transforms runs, such as grad(), jvp() or functionalize(), but
    for vmap(). Tensors that are made within it belong to it."""
    functorch = torch._C._functorch
    return any(one.key() != functorch.TransformType.Vmap
               for one in functorch.get_interpreter_stack() or ())


def without_memory(kind: Any, like: torch.Tensor) -> Any:
    """A tensor of a subclass with __torch_dispatch__, of the form of another."""
    return torch.Tensor._make_wrapper_subclass(kind, like.shape, dtype=like.dtype,
                                               device=like.device)


def _fault() -> Optional[str]:
    memory = (ctypes.c_float * 2)(1.0, 2.0)
    storage = storage_at(ctypes.addressof(memory), torch.device("cpu"), 8)
    view = torch.empty(0, dtype=torch.float32, device="cpu").set_(storage, 0, (2,), (1,))
    if view.tolist() != [1.0, 2.0] or identity(view.untyped_storage()) != identity(storage):
        return "a storage over other memory does not show it"
    if uses(storage) < 2 or backward_pass() != -1 or is_in_func_transform():
        return "storages or backward passes are counted otherwise"
    saved_tensor_hooks()
    without_memory(_Wrapper, view)
    guard(storage, _TEXT)
    try:
        view.sum()
    except RuntimeError as error:
        return None if _TEXT in str(error) else f"a guarded tensor raises {error}"
    return "a guarded tensor is read"


class _Wrapper(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        raise NotImplementedError


@functools.lru_cache(maxsize=None)
def _missing() -> Optional[str]:
    try:
        found = _fault()
        torch.autograd.Variable._execution_engine.queue_callback
        torch._C._autograd._pop_saved_tensors_default_hooks
    except (AttributeError, TypeError, RuntimeError) as error:
        found = str(error)
    return found


def refuse_other_torch() -> None:
    found = _missing()
    if found is not None:
        raise Unsupported(
            f"torch {torch.__version__} does not park parameters as torch 2.11 does ({found}); the "
            "model is as it was. Install torch 2.11, or keep the parameters in memory and offload "
            "their state with headrace.torch.AdamW.")
