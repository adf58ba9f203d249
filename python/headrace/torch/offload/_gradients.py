# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way into the engine, and what stands in .grad once they are there.

The engine takes a gradient as soon as backward has it, and torch's memory is free again. Then a
TakenGrad stands in .grad: it has the gradient's shape but no memory. It answers norms from what the
engine knows, and keeps the factor of a clipping for the step. So torch.nn.utils.clip_grad_norm_()
and GradScaler work as ever, and everything else that would read the gradient raises by name.
"""
from __future__ import annotations

import math
import weakref
from typing import Any, Callable, Iterable, Optional

import torch

from ..._engine import DTYPES, Engine, GradientStatistics
from ..._errors import Unsupported, WrongState
from .._part import NAMES, row_major
from . import _private
from ._backward import Passes
from ._device import stream_of
from ._groups import Slot

aten = torch.ops.aten


class TakenGrad(torch.Tensor):
    """Made by stand_in_for()."""

    of: "TakenGradient"

    def __repr__(self, **_options: Any) -> str:  # type: ignore[override]
        return f"TakenGrad({self.of.slot.full_name}: headrace's engine has it)"

    def _refuse(self, *_arguments: Any, **_options: Any) -> Any:
        raise WrongState(_refused(self.of.slot.full_name, "read, copied or pickled"))

    # What torch does not dispatch.
    numpy = tolist = data_ptr = untyped_storage = __reduce_ex__ = __deepcopy__ = _refuse

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: tuple = (),
                           kwargs: Optional[dict] = None) -> Any:
        served = _SERVED.get(function)
        if served is None:
            raise WrongState(_refused(_name_in(args), f"used in {function}"))
        return served(*args, **(kwargs or {}))


def _refused(name: str, how: str) -> str:
    return (f"the gradient of '{name}' was {how}: headrace's engine has it since backward had it, "
            "and there is no memory in .grad, so nothing was done. Its 2-norm, a multiplication by "
            "one factor for all gradients, and clip_grad_norm_() work; log or change gradients in "
            "parameter.register_hook().")


def _name_in(arguments: Iterable[Any]) -> str:
    for one in arguments:
        if isinstance(one, TakenGrad):
            return one.of.slot.full_name
        if isinstance(one, (tuple, list)) and _name_in(one) != "?":
            return _name_in(one)
    return "?"


class TakenGradient:
    """What is known of one parameter's gradient."""

    def __init__(self, slot: Slot, engine: Engine,
                 coming: Callable[[Slot], bool]) -> None:
        self.slot, self._engine, self._coming = slot, engine, coming
        self.taken = False  # the engine has a gradient that no step has used
        self.unscaled = False  # part of it is of a loss that should have been scaled, and was not
        self.factor = 1.0  # by which the step multiplies it
        self._stand_in: Optional[TakenGrad] = None

    def stand_in(self) -> TakenGrad:
        if self._stand_in is None:
            made = _private.without_memory(TakenGrad, self.slot.parameter)
            made.of = self
            self._stand_in = made
        return self._stand_in

    def take(self, gradient: torch.Tensor) -> None:
        name = self.slot.full_name
        if gradient.layout != torch.strided or gradient.dtype not in NAMES:
            raise Unsupported(
                f"the gradient of '{name}' is {gradient.dtype} of layout {gradient.layout}, and "
                "the engine takes dense float32, bfloat16 and float16; it was not taken. Make it "
                "dense, such as with sparse=False, or convert it in a hook.")
        if self.factor != 1.0:
            raise WrongState(
                f"a second gradient of '{name}' came after the first was multiplied by "
                f"{self.factor}, as clip_grad_norm_() does; it was not taken. Clip after the last "
                "backward pass before step().")
        is_scaled = self._coming(self.slot)
        gradient = row_major(gradient)
        self._engine.add_gradient_at(name, gradient.data_ptr(), DTYPES[NAMES[gradient.dtype]],
                                     stream_of(gradient.device))
        self.taken = True
        self.unscaled = self.unscaled or not is_scaled

    def norm(self) -> float:
        return math.sqrt(self._statistics().sum_squares) * abs(self.factor)

    def is_finite(self) -> bool:
        return self._statistics().non_finite == 0

    def _statistics(self) -> GradientStatistics:
        if self.slot.group.joins:
            raise Unsupported(
                f"the norm of the gradient of '{self.slot.full_name}' was asked for, as "
                "clip_grad_norm_() and GradScaler do, and several ranks add up their gradients "
                "only in step(); nothing was done. Clip with optimizer.step(max_norm=1.0), or with "
                "optimizer.clip_in_step(1.0) before step(), after which optimizer.gradient_norm is "
                "the norm before clipping.")
        return self._engine.gradient_statistics(self.slot.full_name)

    def forget(self) -> None:
        self.taken, self.unscaled, self.factor = False, False, 1.0
        if self.slot.parameter.grad is self._stand_in:
            self.slot.parameter.grad = None


# ---- what a TakenGrad serves ----
def _norm(grad: TakenGrad, order: Any = 2, dim: Any = None, keepdim: bool = False,
          *, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    if order != 2 or dim is not None or keepdim:
        raise WrongState(_refused(grad.of.slot.full_name, f"asked for its norm of order {order}"))
    return torch.tensor(grad.of.norm(), dtype=dtype or torch.float32, device=grad.device)


def _norms(grads: list, order: Any = 2, dtype: Optional[torch.dtype] = None) -> list:
    return [_norm(grad, order, dtype=dtype) for grad in _all_taken(grads)]


def _multiply(grad: TakenGrad, factor: Any) -> TakenGrad:
    if not isinstance(grad, TakenGrad) or isinstance(factor, torch.Tensor) and factor.numel() > 1:
        raise WrongState(_refused(_name_in([grad, factor]), "multiplied by several numbers"))
    grad.of.factor *= float(factor)
    return grad


def _multiply_all(grads: list, factor: Any) -> None:
    for grad in _all_taken(grads):
        _multiply(grad, factor)


def _unscale(grads: list, found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
    """Of torch.amp.GradScaler."""
    for grad in _all_taken(grads):
        _multiply(grad, inverse_scale)
        if not grad.of.is_finite():
            found_inf.fill_(1.0)


def _add(grad: TakenGrad, other: torch.Tensor, *, alpha: Any = 1) -> TakenGrad:
    """torch adds the next gradient to .grad."""
    if not isinstance(grad, TakenGrad) or isinstance(other, TakenGrad) or alpha != 1 \
            or not isinstance(other, torch.Tensor) or other.shape != grad.shape:
        raise WrongState(_refused(_name_in([grad, other]), "added to something"))
    grad.of.take(other)
    return grad


def _all_taken(grads: list) -> list:
    if not all(isinstance(grad, TakenGrad) for grad in grads):
        raise WrongState(_refused(_name_in(grads), "used together with other tensors"))
    return grads


_SERVED: dict[Any, Callable] = {
    aten.detach.default: lambda grad: grad,
    aten.linalg_vector_norm.default: _norm,
    aten._foreach_norm.Scalar: _norms,
    aten.mul_.Tensor: _multiply,
    aten.mul_.Scalar: _multiply,
    aten._foreach_mul_.Tensor: _multiply_all,
    aten._foreach_mul_.Scalar: _multiply_all,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    aten.add_.Tensor: _add,
}


class Intake:
    """The gradients of all parameters."""

    def __init__(self, slots: Iterable[Slot], engine: Engine, passes: Passes,
                 several_ranks: bool) -> None:
        self._engine, self._passes, self._several_ranks = engine, passes, several_ranks
        self.scaled: Callable[[], bool] = lambda: True  # the loss of the pass that runs
        self.of: dict[torch.Tensor, TakenGradient] = {
            slot.parameter: TakenGradient(slot, engine, self._coming) for slot in slots}

    def watch(self) -> list:
        """Returns handles that remove the hooks. torch keeps those of a parameter where Python's
        garbage collector does not look, so they do not keep the engine alive."""
        weak = weakref.ref(self)

        def came(parameter: torch.Tensor) -> None:
            intake = weak()
            if intake is not None:
                intake._came(parameter)

        return [parameter.register_post_accumulate_grad_hook(came)
                for parameter in self.of if parameter.requires_grad]

    def _coming(self, slot: Slot) -> bool:
        """Returns whether the gradient is scaled as it should be."""
        if _private.backward_pass() == -1:
            return True  # the program has put it into .grad
        if self._passes.coming(slot):  # the first of its pass
            self.refuse_reset()
        return self.scaled()

    def _came(self, parameter: torch.Tensor) -> None:
        one = self.of[parameter]
        gradient = parameter.grad  # None: a hook of the program has taken it
        if gradient is not None and type(gradient) is not TakenGrad:  # later ones come by add_()
            one.take(gradient)
            parameter.grad = one.stand_in()
        self._passes.arrived(one.slot.group, one.slot.index)

    def taken(self) -> list[TakenGradient]:
        return [one for one in self.of.values() if one.taken]

    def has_unscaled(self) -> bool:
        return any(one.unscaled and type(one.slot.parameter.grad) is TakenGrad
                   for one in self.taken())

    def refuse_reset(self) -> None:
        """After module.zero_grad(), which clears .grad, the engine still has the gradients. If all
        are cleared, it drops them too. Several ranks drop them together."""
        taken = self.taken()
        reset = [one for one in taken if type(one.slot.parameter.grad) is not TakenGrad]
        if not reset:
            return
        if self._several_ranks:
            raise WrongState(
                f"the gradient of '{reset[0].slot.full_name}' was cleared or replaced, as "
                "model.zero_grad() does, and another rank may still count on it; nothing was "
                "done. Call optimizer.zero_grad() on every rank instead.")
        if len(reset) < len(taken):
            kept = next(one for one in taken if one not in reset)
            raise WrongState(
                f"the gradient of '{reset[0].slot.full_name}' was cleared or replaced, and that of "
                f"'{kept.slot.full_name}' was not: the engine drops all of them or none, and did "
                "nothing. Call optimizer.zero_grad().")
        self.discard()

    def discard(self) -> None:
        self._engine.discard_gradients()
        self._passes.forget_partial_gradients()
        self.forget()

    def forget(self) -> None:
        for one in self.of.values():
            one.forget()

    def take_given(self) -> None:
        """What the program itself has put into .grad, and gradients that the engine cannot use."""
        for parameter, one in self.of.items():
            if parameter.grad is None or type(parameter.grad) is TakenGrad:
                continue
            self.refuse_frozen([one.slot])
            one.take(parameter.grad)
            parameter.grad = one.stand_in()

    @staticmethod
    def refuse_frozen(slots: Iterable[Slot]) -> None:
        """Those that have a gradient of the program's."""
        for slot in slots:
            if slot.frozen and slot.whole.grad is not None:
                raise WrongState(
                    f"'{slot.full_name}' has a gradient, and was frozen when offload() made its "
                    "engine, so there is no state for it; nothing was updated. Call offload() "
                    "after requires_grad_(True): optimizer.restore() brings the model back "
                    "before.")

    def factor(self) -> float:
        """Of all gradients: the engine multiplies all of them by one number."""
        taken = self.taken()
        if not taken:
            return 1.0
        if all(math.isnan(one.factor) for one in taken):
            return self._factor_of_nan()
        other = next((one for one in taken if one.factor != taken[0].factor), None)
        if other is not None:
            raise WrongState(
                f"the gradient of '{taken[0].slot.full_name}' was multiplied by {taken[0].factor}, "
                f"and that of '{other.slot.full_name}' by {other.factor}: the engine has one "
                "factor for all, and nothing was updated. Clip all parameters together.")
        return taken[0].factor

    def _factor_of_nan(self) -> float:
        """clip_grad_norm_() of gradients that hold NaN gives it. The engine has them as they came,
        and says which one it is, or skips the step."""
        if not self._several_ranks and self.non_finite() is None:
            raise WrongState("all gradients were multiplied by nan, and they are finite; nothing "
                             "was updated. Call optimizer.zero_grad(), and multiply by a number.")
        return math.nan if self._several_ranks else 1.0

    def non_finite(self) -> Optional[torch.Tensor]:
        return next((one.slot.parameter for one in self.taken() if not one.is_finite()), None)
