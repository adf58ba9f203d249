# SPDX-License-Identifier: Apache-2.0
"""The ranks that train one offloaded model: who they are, what they tell each other beside the
engine's calls, and how a rank that fails tells the others.

Every rank makes the same calls in the same order. So what follows from this rank alone, such as
whether it has gradients, must not decide whether a collective call is made.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import struct
import warnings
import weakref
import zlib
from typing import Callable, Iterator, Optional

import torch

from ..._collective import Collective
from ..._engine import Engine
from ..._ends import cause_of, raised
from ..._errors import ArgumentError, PeerLost, Unsupported, WrongState
from .._process_group import ProcessGroup

_TOLD = struct.Struct("<B400s")  # whether it failed, and the cause
_PIECE_BYTES = 1 << 20


class Ranks:
    def __init__(self, collective: Optional[Collective],
                 own: Optional[ProcessGroup] = None) -> None:
        self._own = own  # which nobody else uses
        self.rank = 0 if collective is None else collective.rank
        self.world_size = 1 if collective is None else collective.world_size
        self.chosen = collective is not None
        self.collective = collective if self.several else None  # of one rank, there is no use
        self._engine: Optional[Engine] = None
        self._of_all: Optional[BaseException] = None  # what all ranks have raised
        self._at_exit: Optional[Callable[[], None]] = None

    @property
    def several(self) -> bool:
        return self.world_size > 1

    def refuse_gpu(self, device: torch.device) -> None:
        if self.several and device.type != "cpu":
            raise Unsupported(f"offload() with {self.world_size} ranks and the device {device}: "
                              "ranks of Python pass bytes of host memory; the model is as it was. "
                              "Train on the CPU, such as with CUDA_VISIBLE_DEVICES=\"\", or for "
                              "ranks on GPUs use C++ or C.")

    # ---- a rank that fails ----
    def watch(self, engine: Engine) -> None:
        """From here on, an exception that ends this process is told to the others: before the
        engine's own end, which was noted earlier."""
        self._engine = engine
        if self.several:
            self._at_exit = functools.partial(_tell_at_exit, weakref.ref(self), os.getpid())
            atexit.register(self._at_exit)

    @contextlib.contextmanager
    def told_of_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.tell(error)
            raise

    def tell(self, error: BaseException) -> None:
        """The others would wait for this rank. Not of what all of them have raised."""
        if self.collective is not None and not isinstance(error, PeerLost) \
                and error is not self._of_all:
            self.collective.abort(cause_of(error))

    def close_group_of(self, other: "Ranks") -> None:
        """When the model leaves: nobody else uses it."""
        self._own = other._own

    def leave(self) -> None:
        """After the engine."""
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        if self._own is not None:
            self._own.close()

    # ---- what they tell each other: collective ----
    def refuse_other_values(self, names: list[str], checksums: list[int]) -> None:
        """Before the engine takes them: each rank gives it a part of its own values."""
        found = self._first_difference(checksums)
        if found is None:
            return
        number, rank = found
        self._of_all = ArgumentError(
            f"'{names[number]}' has other values on rank {rank} than on rank 0, and the ranks keep "
            "parts of one model; nothing was taken. Let all ranks load or make the same values, "
            "such as after torch.manual_seed(0).")
        raise self._of_all

    def refuse_another_order(self, names: list[str]) -> None:
        """Of what the optimizer trains: its state goes by number."""
        found = self._first_difference([zlib.crc32(name.encode()) for name in names])
        if found is None:
            return
        number, rank = found
        named = [one.rstrip(b"\0").decode("utf-8", "replace") for one in
                 self._exchanged(names[number].encode()[:200].ljust(200, b"\0"))]
        self._of_all = ArgumentError(
            f"parameter {number} of the optimizer is '{named[rank]}' on rank {rank} and "
            f"'{named[0]}' on rank 0, and state_dict() has their state by number; the model is as "
            "it was. List the parameters in one order on all ranks, such as without a set.")
        raise self._of_all

    def _first_difference(self, checksums: list[int]) -> Optional[tuple[int, int]]:
        """Its number, and the first rank that differs there from rank 0."""
        packed = struct.pack(f"<{len(checksums)}I", *checksums)
        told = self._exchanged(zlib.crc32(packed).to_bytes(4, "little"))
        if all(one == told[0] for one in told):
            return None
        of_ranks = [struct.unpack(f"<{len(checksums)}I", one) for one in self._exchanged(packed)]
        return next(((number, rank) for number, of_first in enumerate(of_ranks[0])
                     for rank, one in enumerate(of_ranks) if one[number] != of_first), None)

    def end_change(self, what: str, error: Optional[BaseException]) -> None:
        """Where it ends, also by an exception: raises on the other ranks if it does on one."""
        failed = self._first_failure(error)
        if failed is not None and error is None:
            raise WrongState(f"rank {failed[0]} ended the change of {what} by an exception "
                             f"({failed[1]}); no rank changed anything. Let all ranks change the "
                             "same values.")

    @contextlib.contextmanager
    def agreed(self, call: str) -> Iterator[None]:
        """Before a call that all ranks make: what one rank raises within, none goes on after.
        Collective at its end."""
        error: Optional[Exception] = None
        try:
            yield
        except Exception as found:
            error = found
        failed = self._first_failure(error) if self.several else None
        if error is not None:
            raise error
        if failed is not None:
            raise WrongState(f"{call}: rank {failed[0]} refused it ({failed[1]}); no rank did "
                             "anything. Mend what that rank says.")

    def _first_failure(self, error: Optional[BaseException]) -> Optional[tuple[int, str]]:
        text = "" if error is None else cause_of(error)
        told = [_TOLD.unpack(one) for one in self._exchanged(
            _TOLD.pack(error is not None, text.encode()[:400]))]
        return next(((rank, cause.rstrip(b"\0").decode("utf-8", "replace"))
                     for rank, (failed, cause) in enumerate(told) if failed), None)

    def refuse_unknown(self, rank: Optional[int]) -> None:
        if self.several and rank is not None and rank not in range(self.world_size):
            raise ArgumentError(f"of_rank is {rank!r}, and there are the ranks 0 to "
                                f"{self.world_size - 1}; nothing was changed. Give one of them.")

    def values_of(self, rank: int, tensor: torch.Tensor) -> None:
        """Overwrites the tensor, which is row-major, with that of the rank."""
        for piece in _pieces(tensor):
            mine = bytes(piece) if rank == self.rank else bytes(len(piece))
            piece[:] = self._exchanged(mine)[rank]

    def join_parts(self, tensor: torch.Tensor) -> None:
        """Each rank has its part, and zeros in the rest."""
        for piece in _pieces(tensor):
            joined = 0
            for one in self._exchanged(bytes(piece)):
                joined |= int.from_bytes(one, "little")
            piece[:] = joined.to_bytes(len(piece), "little")

    def text_of_first(self, text: str) -> str:
        """That of rank 0; all have the same length."""
        return self._exchanged(text.encode())[0].decode() if self.several else text

    def least(self, number: int) -> int:
        told = self._exchanged(number.to_bytes(8, "little"))
        return min(int.from_bytes(one, "little") for one in told)

    def meet(self) -> None:
        if self.several:
            self._exchanged(b"\0")

    def _exchanged(self, mine: bytes) -> list:
        if self._engine is None:
            raise WrongState("the model's engine is gone, so there is no way to the other ranks.")
        return self._engine.exchange(mine)


def _pieces(tensor: torch.Tensor) -> list:
    size_bytes = tensor.numel() * tensor.element_size()
    if size_bytes == 0:
        return []
    view = memoryview((ctypes.c_ubyte * size_bytes).from_address(tensor.data_ptr())).cast("B")
    return [view[at:at + _PIECE_BYTES] for at in range(0, size_bytes, _PIECE_BYTES)]


def _tell_at_exit(of: Callable[[], Optional[Ranks]], process: int) -> None:
    """Python has noted by now what ended the program. A forked child's end is not this rank's."""
    error, ranks = raised(), of()
    if ranks is not None and error is not None and os.getpid() == process:
        ranks.tell(error)


# ---- which ranks ----
def ranks_of(collective: Optional[Collective]) -> Ranks:
    """None: all of torch.distributed, where the program has several. Collective then."""
    if collective is None and not _is_initialized() and os.environ.get("WORLD_SIZE", "1") != "1":
        warnings.warn(f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and torch.distributed is not "
                      "initialized, so this process trains a model of its own. To train one with "
                      "all processes, call torch.distributed.init_process_group(\"gloo\") before "
                      "offload().", stacklevel=4)
    own = ProcessGroup() if collective is None and world_size() > 1 else None
    return Ranks(own or collective, own)


def world_size() -> int:
    return torch.distributed.get_world_size() if _is_initialized() else 1


def _is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def refuse_late_ranks(ranks: Ranks) -> None:
    """Each would train a model of its own, on its part of the data."""
    if not ranks.chosen and world_size() > 1:
        raise WrongState(f"step() with {world_size()} ranks, and there was one when offload() was "
                         "called, so each would train a model of its own; nothing was updated. "
                         "Call torch.distributed.init_process_group() before offload(), or give "
                         "offload() a collective of this rank alone.")
