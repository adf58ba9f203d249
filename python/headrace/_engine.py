# SPDX-License-Identifier: Apache-2.0
"""headrace.Engine: the engine of headrace/engine.hpp for numpy and everything with buffers."""
from __future__ import annotations

import _thread
import atexit
import ctypes
import difflib
import json
import logging
import os
import threading
import time
import weakref
from typing import (Any, Callable, Iterator, Mapping, NamedTuple, NoReturn, Optional, Sequence,
                    Union)

from . import _c, _library, _settings
from ._collective import Collective, Table
from ._errors import ArgumentError, Error, NotFound, Unsupported, WrongState
from ._library import (call, call_to_the_end, call_with, call_with_callbacks, encoded, fitting,
                       new, unbroken)
from ._saves import BackgroundSave, Resumed

logger = logging.getLogger("headrace")
_LEVELS = {_c.HEADRACE_LOG_INFO: logging.INFO, _c.HEADRACE_LOG_WARNING: logging.WARNING,
           _c.HEADRACE_LOG_ERROR: logging.ERROR}
_KEPT_LINES = 4096

DTYPES = {"f32": _c.HEADRACE_F32, "bf16": _c.HEADRACE_BF16, "f16": _c.HEADRACE_F16,
          "u8": _c.HEADRACE_U8}
CONTENTS = {"weight": _c.HEADRACE_WEIGHT, "master": _c.HEADRACE_MASTER,
            "exp_avg": _c.HEADRACE_EXP_AVG, "exp_avg_sq": _c.HEADRACE_EXP_AVG_SQ}
# Formats of buffers. memoryview casts to none of 16 bits but integers, so bf16 and f16 come as
# their bits: np.asarray(...).view(np.float16).
_FORMATS = {_c.HEADRACE_F32: "f", _c.HEADRACE_BF16: "H", _c.HEADRACE_F16: "H",
            _c.HEADRACE_U8: "B"}
_SIZES = {_c.HEADRACE_F32: 4, _c.HEADRACE_BF16: 2, _c.HEADRACE_F16: 2, _c.HEADRACE_U8: 1}
# The same in __cuda_array_interface__, where torch has <V2 for its bf16.
_DEVICE_FORMATS = {"f": "<f4", "H": "<u2", "B": "|u1"}
_DEVICE_DTYPES = {"<f4": "f32", "<f2": "f16", "<u2": "bf16", "<V2": "bf16"}

_LONGEST_NAME = 1024  # headrace/c.h


class Parameter(NamedTuple):
    """A parameter as it is registered."""

    shape: Sequence[int]
    dtype: str = "bf16"  # "f32", "bf16", "f16"; "u8": bytes of any meaning, of frozen ones alone
    hyperparameters: int = 0  # of add_hyperparameters(); 0: the default set
    frozen: bool = False


class StepResult(NamedTuple):
    """headrace_step_result of headrace/c.h."""

    step: int
    gradient_norm: float
    clip_factor: float
    parameters_updated: int
    parameters_left_alone: int
    skipped: bool
    non_finite_gradients: int


class GradientStatistics(NamedTuple):
    """Of the gradients that a parameter has received since the last step."""

    sum_squares: float
    non_finite: int


class _Known(NamedTuple):
    index: int
    shape: tuple
    dtype: int
    size_bytes: int


def _refuse_name(what: str, name: str, shortest: int) -> None:
    size = len(encoded(name))
    if not shortest <= size <= _LONGEST_NAME:
        shown = name if size <= 100 else f"{name[:100]}..."
        raise ArgumentError(f"{what} has the name '{shown}' of {size} bytes; nothing was added. "
                            f"Give it a name of {shortest} to {_LONGEST_NAME} bytes.")


def _full_name(group: str, name: str) -> str:
    return f"{group}.{name}" if group else name


def _settings_text(settings: Any, nvme: Optional[str]) -> Optional[bytes]:
    if settings is not None and nvme is not None:
        raise ArgumentError("Engine() got both settings and nvme; nothing was made. Give the path "
                            "as nvme_path within the settings.")
    if nvme is not None:
        path = _settings.whole_path(nvme, "nvme", "nothing was made")
        place = {"device": "nvme", "nvme_path": path}
        settings = {"zero_optimization": {"offload_optimizer": place, "offload_param": place}}
    return None if settings is None else _settings.json_of(settings)


def _table_of(collective: Optional[Collective], gpu: Optional[int]) -> Optional[Table]:
    if collective is None:
        return None
    if not isinstance(collective, Collective):
        raise ArgumentError(f"collective is a {type(collective).__name__}; nothing was made. Give "
                            "a headrace.Collective, such as headrace.torch.ProcessGroup().")
    if gpu is not None:
        raise Unsupported("collective passes bytes of host memory, and gpu has the groups on a "
                          "GPU; nothing was made. Leave one of them out.")
    return Table(collective)


def _options(settings: Any, nvme: Optional[str], overrides: Sequence[str],
             gpu: Optional[int], table: Optional[Table]) -> Any:
    options = new(_c.headrace_engine_options, kept_log_lines=_KEPT_LINES, poll=_library.poll)
    if gpu is not None:
        if not isinstance(gpu, int):
            raise ArgumentError(f"gpu is {gpu!r}; nothing was made. Give the number of a GPU, "
                                "such as 0.")
        options.cuda = ctypes.pointer(new(_c.headrace_cuda, ordinal=gpu))
    if table is not None:
        options.collective = ctypes.pointer(table.struct)
    if isinstance(settings, (str, os.PathLike)) and nvme is None:
        options.settings_file = encoded(settings)
    else:
        options.settings_json = _settings_text(settings, nvme)
    if isinstance(overrides, (str, bytes)):
        raise ArgumentError(f"overrides is the text {overrides!r}; nothing was made. Give a list "
                            "of texts, such as [\"headrace.update_threads=2\"].")
    texts = [encoded(override) for override in overrides]
    options.overrides = (ctypes.c_char_p * max(1, len(texts)))(*texts)
    options.override_count = len(texts)
    return options


def resolved(settings: Mapping[str, Any]) -> dict:
    """The settings with all defaults, or the error of an engine that they are given to."""
    handle = ctypes.c_void_p()
    with _settings.called("settings"):
        call("engine_create", ctypes.byref(_options(settings, None, (), None, None)),
             ctypes.byref(handle))
    try:
        return json.loads(_library.text_of("engine_settings_json", handle))
    finally:
        call("engine_destroy", handle)


def _address_of(given: bytes) -> Any:
    """As C's const void*: zeros among the bytes are bytes."""
    return ctypes.cast(ctypes.c_char_p(given), ctypes.c_void_p)


def _save_options(latest: bool, trainer_state: bytes) -> Any:
    return new(_c.headrace_save_options, latest=int(latest),
               trainer_state=_address_of(trainer_state),
               trainer_state_bytes=len(trainer_state))


_tables: dict[int, Table] = {}  # of engines with several ranks, for which C calls them
_waiting: set[int] = set()  # engines that nobody closed, and whose weights somebody still has


_ending = threading.Semaphore(0)  # one for each engine that ended apart
_apart = 0  # engines that were to end so
_exits = False
_EXIT_SECONDS = 60.0  # that a program which ends waits for them


def _destroy(handle: int) -> None:
    """For engines that nobody closed. One of several ranks waits for the others as it ends. They
    may wait for this rank at another engine, since the garbage collector comes to each at its own
    time. So this one ends in a thread of its own, which nobody waits for before the program ends.
    """
    global _apart
    if handle in _tables and not _exits and os.getpid() == _tables[handle].process:
        _apart += 1
        _thread.start_new_thread(_destroy_apart, (handle,))  # threading's would wait for a lock
    else:
        _destroy_now(handle)


def _destroy_apart(handle: int) -> None:
    try:
        _destroy_now(handle)
    finally:
        _ending.release()


_is_noted = False


def _note_exits() -> None:
    """Behind the first finalizer, so that it comes before all of them."""
    global _is_noted
    if not _is_noted:
        _is_noted = True
        atexit.register(_note_exit)


def _note_exit() -> None:
    """What is made behind this calls into an interpreter that is gone."""
    global _exits
    _exits = True
    end = time.monotonic() + _EXIT_SECONDS
    for _ in range(_apart):
        if not _ending.acquire(timeout=max(0.0, end - time.monotonic())):
            return


def _destroy_now(handle: int) -> None:
    """In a forked child, C refuses."""
    if _library.lib.headrace_engine_destroy(handle, None) != _c.HEADRACE_OK:
        _waiting.add(handle)
    else:
        _tables.pop(handle, None)


def _release(gathered: int, engine: int) -> None:
    """The garbage collector may come to an engine before it comes to the last array of it."""
    _library.lib.headrace_gathered_release(gathered, None)
    if engine in _waiting:
        _waiting.discard(engine)
        _destroy(engine)


def _buffer_of(values: Any, name: str) -> memoryview:
    try:
        return memoryview(values)
    except (TypeError, ValueError):
        if not hasattr(values, "tobytes"):  # ml_dtypes' bf16 has it, and no format of buffers
            raise ArgumentError(f"{name}: {type(values).__name__} is no array, so its values were "
                                "not taken. Give a numpy array, an array.array or bytes.") from None
        return memoryview(values.tobytes())


def _has_format(view: memoryview, dtype: int) -> bool:
    """Of such elements, or of raw bytes."""
    return view.format.lstrip("@=<") in (_FORMATS[dtype], "B", "b", "c",
                                         "e" if dtype == _c.HEADRACE_F16 else "B")


def _bytes_of(values: Any, name: str, dtype: int, size_bytes: int, shape: tuple) -> memoryview:
    """The bytes of an array, row-major, or raw bytes, checked against what the parameter has."""
    view = _buffer_of(values, name)
    if str(getattr(values, "dtype", "")) == "bfloat16" and dtype == _c.HEADRACE_F16:
        raise ArgumentError(f"{name}: the values are bfloat16, and f16 is needed, whose bits mean "
                            "other numbers. Nothing was taken. Convert them to float16.")
    if view.ndim > 1 and tuple(view.shape) != shape:
        raise ArgumentError(f"{name}: the values have the shape {tuple(view.shape)}, and the "
                            f"parameter has {shape}. Nothing was taken. Give the parameter's "
                            "shape, or its elements in one dimension.")
    if not _has_format(view, dtype):
        raise ArgumentError(f"{name}: the values have the format '{view.format}', and its "
                            f"elements are of '{_FORMATS[dtype]}'. Nothing was taken. Convert the "
                            "array first (bf16 is given as its bits, in uint16).")
    if view.nbytes != size_bytes:
        raise ArgumentError(f"{name}: the values have {view.nbytes} bytes, and {size_bytes} are "
                            "needed. Nothing was taken. Give the whole parameter.")
    try:
        return view.cast("B")
    except TypeError:  # not row-major, or a format without a cast
        return memoryview(view.tobytes())


def _refuse_bits_of_either(name: str, known: _Known) -> None:
    """uint16 as a gradient is bf16, and as a weight of f16 it is f16."""
    if known.dtype == _c.HEADRACE_F16:
        raise ArgumentError(f"{name}: the gradient is uint16, and the parameter is f16, so its "
                            "bits may be of f16 or of bf16; nothing was added. Give an array of "
                            "float16, or name the dtype: dtype=\"f16\" or \"bf16\".")


def _refuse_missing(group: "Group", values: Mapping[str, Any]) -> None:
    missing = next((name for name in group.parameters if name not in values), None)
    if missing is None:
        return
    other = [str(name) for name in values if name not in group.parameters]
    near = difflib.get_close_matches(missing, other, 1)
    raise ArgumentError(
        f"the values for group '{group.name}' lack '{missing}'"
        f"{f', and have {near[0]!r}, which is none of it' if near else ''}; nothing was loaded. "
        f"Give one for each of {', '.join(map(repr, group.parameters[:8]))}"
        f"{' and others' if len(group.parameters) > 8 else ''}.")


def _raw(address: int, size_bytes: int) -> ctypes.Array:
    return (ctypes.c_ubyte * size_bytes).from_address(address)


def _shaped(view: memoryview, known_format: str, shape: Sequence[int]) -> memoryview:
    return view.cast("B").cast(known_format, list(shape))


class _Lease:
    """Keeps a gathered group in its place until the scope and the last array of it are gone."""

    def __init__(self, handle: int, engine: int) -> None:
        self.handle = handle
        self.release = weakref.finalize(self, _release, handle, engine)


class DeviceArray:
    """A parameter in GPU memory, for torch.as_tensor(), cupy.asarray() and all that reads
    __cuda_array_interface__. Do not write to it: a write would not reach the masters."""

    def __init__(self, address: int, form: str, shape: Sequence[int], stream: int,
                 lease: _Lease) -> None:
        self._lease = lease
        # torch takes no array that is marked as read-only.
        self.__cuda_array_interface__ = {
            "version": 3, "shape": tuple(shape), "typestr": _DEVICE_FORMATS[form],
            "data": (address, False), "strides": None, "stream": stream or _DEFAULT_STREAM}


_DEFAULT_STREAM = 1  # of CUDA's legacy default stream, in that interface


class Gathered:
    """A whole group, read-only. Use it in a `with` statement. Arrays made of it keep the group in
    its place until they are deleted, and the engine cannot be closed before."""

    def __init__(self, group: "Group", lease: _Lease, stream: int) -> None:
        self._group, self._stream = group, stream
        self._lease: Optional[_Lease] = lease

    def _place(self, name: str) -> tuple:
        """Its lease, address and size in bytes."""
        if self._lease is None:
            raise WrongState(f"group '{self._group.name}' was released, and its memory may hold "
                             "other values. Gather it again.")
        known = self._group.engine.known(_full_name(self._group.name, name))
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        call("gathered_bytes", self._lease.handle, known.index, ctypes.byref(data),
             ctypes.byref(size))
        return self._lease, data.value, size.value

    def section(self, dtype: str) -> tuple[int, int]:
        """Address and bytes of all the group's parameters of a dtype, each at its
        section_offset_bytes(); (0, 0): there are none. Valid until release()."""
        if self._lease is None:
            raise WrongState(f"group '{self._group.name}' was released. Gather it again.")
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        call("gathered_section", self._lease.handle, DTYPES[dtype], ctypes.byref(data),
             ctypes.byref(size))
        return data.value or 0, size.value

    def raw(self, name: str) -> ctypes.Array:
        """The bytes of a parameter, of an engine on the CPU. Writing to them would not reach the
        masters."""
        if self._group.engine.gpu is not None:
            raise WrongState(f"the weights of '{name}' are in the memory of a GPU, which Python's "
                             f"buffers cannot show. Use gathered['{name}']: torch.as_tensor() and "
                             "cupy.asarray() take it.")
        lease, address, size_bytes = self._place(name)
        array = _raw(address, size_bytes)
        array.lease = lease  # numpy keeps the ctypes array, and this keeps the lease
        return array

    def __getitem__(self, name: str) -> Union[memoryview, DeviceArray]:
        """A parameter, without a copy; 16 bits as uint16. On the CPU for np.asarray() and all that
        takes buffers, on a GPU a DeviceArray."""
        known = self._group.engine.known(_full_name(self._group.name, name))
        if self._group.engine.gpu is not None:
            lease, address, _ = self._place(name)
            return DeviceArray(address, _FORMATS[known.dtype], known.shape, self._stream, lease)
        view = memoryview(self.raw(name)).toreadonly()
        return _shaped(view, _FORMATS[known.dtype], known.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._group.parameters)

    def release(self) -> None:
        self._lease = None

    def __enter__(self) -> "Gathered":
        return self

    def __exit__(self, *_raised: Any) -> None:
        self.release()


class Group:
    """Parameters that are used together."""

    def __init__(self, engine: "Engine", index: int, name: str, parameters: Sequence[str]) -> None:
        self.engine, self.index, self.name = engine, index, name
        self.parameters = tuple(parameters)

    def gather(self, stream: int = 0) -> Gathered:
        """stream: on a GPU, the address of the cudaStream_t that reads the weights. It waits for
        them; 0 is CUDA's default stream."""
        def gathered() -> Gathered:
            handle = ctypes.c_void_p()
            self.engine._call("engine_gather", self.index, stream, ctypes.byref(handle))
            return Gathered(self, _Lease(handle.value, self.engine._live()), stream)

        return unbroken(gathered)  # a lease without its object would last as long as the engine

    def load(self, values: Union[Mapping[str, Any], Callable[[str, memoryview], None]]) -> None:
        self.engine.load(self, values)

    def __repr__(self) -> str:
        return f"<headrace.Group '{self.name}' of {len(self.parameters)} parameters>"


class Engine:
    """Groups of parameters that live in memory or on drives, and their optimizer.

    settings: a dict, or the path of a file, as docs/settings.md describes them. nvme: a folder for
    everything, instead of settings. Both None: everything in memory.
    gpu: the number of an NVIDIA GPU among those that CUDA_VISIBLE_DEVICES shows. Groups are
    gathered into its memory, and gradients are taken from there. None: the CPU.
    collective: this rank's way to the others, if several processes train the model; each has a part
    of it. docs/ranks.md says what all of them must do alike. None: one rank.
    words: for programs that wrap an engine, what errors and log lines are changed to.
    Calls release Python's lock. Ctrl-C ends a call that waits, and the engine remains usable.
    """

    def __init__(self, settings: Any = None, *, nvme: Optional[str] = None,
                 gpu: Optional[int] = None, overrides: Sequence[str] = (),
                 collective: Optional[Collective] = None,
                 words: Optional[Callable[[str], str]] = None) -> None:
        handle = ctypes.c_void_p()
        self._words = words
        self._table = _table_of(collective, gpu)
        options = _options(settings, nvme, overrides, gpu, self._table)
        try:
            with _settings.called("settings"):
                call("engine_create", ctypes.byref(options), ctypes.byref(handle))
        except Error as error:
            self._raise_in_words(error)
        self.gpu = gpu
        self._handle: Optional[int] = handle.value
        self._finalizer = weakref.finalize(self, _destroy, handle.value)
        if self._table is not None:
            _tables[handle.value] = self._table
            _note_exits()
        self._known: dict[str, _Known] = {}
        self._lent: dict[str, Any] = {}  # keeps the memory of lend_weights()
        self._lent_gradients: list = []  # until the next step
        self._drain_log()

    # ---- life ----
    def close(self) -> None:
        """Ends threads and frees files and memory. A second call does nothing."""
        if self._handle is None:
            return
        self._call("engine_close")
        handle, self._handle = self._handle, None
        self._finalizer.detach()
        call("engine_destroy", handle)
        _tables.pop(handle, None)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, raised: Any, *_where: Any) -> None:
        if raised is not None and self._table is not None and self._handle is not None:
            self._table.abort(f"{raised.__name__}: {_where[0]}")  # the others would wait for it
        try:
            self.close()
        except WrongState:  # arrays of the frames that an exception left behind
            if raised is None:
                raise

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError("a headrace.Engine cannot be copied or pickled: it owns threads, files and "
                        "memory. Save a checkpoint, and load it into another engine.")

    def _live(self) -> int:
        if self._handle is None:
            raise WrongState("this engine is closed. Make another one.")
        return self._handle

    def _call(self, name: str, *arguments: Any) -> None:
        reach = call_to_the_end if self._table is None else call_with_callbacks
        try:
            reach(name, self._live(), *arguments)
        except Error as error:
            if self._table is None or self._table.failure is None:
                self._raise_in_words(error)
            failure = self._table.failure
            if isinstance(failure, KeyboardInterrupt):
                raise failure from error  # the engine has ended, as on the other ranks
            raise type(error)(self._in_words(f"{error} ({self._table.cause()})"), error.code,
                              error.errno) from failure
        finally:
            self._drain_log()

    def _in_words(self, text: str) -> str:
        return text if self._words is None else self._words(text)

    def _raise_in_words(self, error: Error) -> NoReturn:
        text = self._in_words(error.text)
        if text == error.text:
            raise error
        raise type(error)(text, error.code, error.errno) from None

    def _call_with(self, name: str, *arguments: Any, prototype: Any, function: Any) -> None:
        """The function is the last argument but its context."""
        try:
            call_with(name, function,
                      lambda guarded: (self._live(), *arguments, prototype(guarded), None))
        except Error as error:
            self._raise_in_words(error)
        finally:
            self._drain_log()

    def _drain_log(self) -> None:
        """Hands the engine's lines to logging. They arise on threads that must not run Python."""
        while self._handle is not None:
            needed, level = ctypes.c_size_t(), ctypes.c_int32()
            function = _library.lib.headrace_engine_take_log
            function(self._handle, level, None, 0, needed, None)
            if needed.value == 0:
                return
            line = ctypes.create_string_buffer(needed.value)
            if function(self._handle, level, line, len(line), needed, None) == _c.HEADRACE_OK:
                text = line.value.decode("utf-8", "replace")
                logger.log(_LEVELS[level.value], "%s",
                           self._in_words(_settings.renamed(text, "settings")))

    # ---- registration ----
    def add_hyperparameters(self, **values: Any) -> int:
        """A set of values named as in headrace_hyperparameters; missing ones: its defaults."""
        index = ctypes.c_uint32()
        self._call("engine_add_hyperparameters",
                   ctypes.byref(new(_c.headrace_hyperparameters, **values)), ctypes.byref(index))
        return index.value

    def set_hyperparameters(self, index: int, **values: Any) -> None:
        """Replaces a whole set. The next step uses it."""
        self._call("engine_set_hyperparameters", index,
                   ctypes.byref(new(_c.headrace_hyperparameters, **values)))

    def add_group(self, name: str, parameters: Mapping[str, Any]) -> Group:
        """parameters: the names, each with (shape, dtype) or a headrace.Parameter."""
        specs = [(key, Parameter(*value)) for key, value in parameters.items()]
        _refuse_name("a group", name, 0)
        for key, spec in specs:
            _refuse_name(f"a parameter of group '{name}'", key, 1)
            if not isinstance(spec.shape, (tuple, list)) or not isinstance(spec.dtype, str):
                raise ArgumentError(f"parameter '{key}' is given as {parameters[key]!r}; nothing "
                                    "was added. Give sizes and a dtype: ((2, 3), \"f32\").")
        array = (_c.headrace_parameter_spec * max(1, len(specs)))()
        for entry, (key, spec) in zip(array, specs):
            self._fill_spec(entry, key, spec)
        index = ctypes.c_uint32()
        self._call("engine_add_group", encoded(name), array, len(specs), ctypes.byref(index))
        for key, spec in specs:
            self._remember(_full_name(name, key), spec)
        return Group(self, index.value, name, [key for key, _ in specs])

    @staticmethod
    def _fill_spec(entry: Any, name: str, spec: Parameter) -> None:
        if spec.dtype not in DTYPES:
            raise ArgumentError(f"parameter '{name}' has the dtype {spec.dtype!r}; nothing was "
                                f"added. Use one of {', '.join(DTYPES)}.")
        entry.struct_size = ctypes.sizeof(entry)
        entry.dtype = DTYPES[spec.dtype]
        entry.name = encoded(name)
        entry.dimensions = len(spec.shape)
        entry.shape = (ctypes.c_int64 * max(1, len(spec.shape)))(
            *(fitting(ctypes.c_int64, size, f"a size of '{name}'") for size in spec.shape))
        entry.hyperparameters = spec.hyperparameters
        entry.frozen = int(spec.frozen)

    def _remember(self, full_name: str, spec: Parameter) -> None:
        index = ctypes.c_uint32()
        self._call("engine_parameter", encoded(full_name), ctypes.byref(index))
        elements = 1
        for size in spec.shape:
            elements *= size
        dtype = DTYPES[spec.dtype]
        self._known[full_name] = _Known(index.value, tuple(spec.shape), dtype,
                                        elements * _SIZES[dtype])

    def known(self, full_name: str) -> _Known:
        if full_name in self._known:
            return self._known[full_name]
        self._call("engine_parameter", encoded(full_name), ctypes.byref(ctypes.c_uint32()))
        raise NotFound(f"parameter '{full_name}' was not added through this object.",
                       _c.HEADRACE_NOT_FOUND)

    def expect_repeated_gradients(self, group: Group) -> None:
        self._call("engine_expect_repeated_gradients", group.index)

    def expect_no_gradients(self, group: Group) -> None:
        self._call("engine_expect_no_gradients", group.index)

    def keep_bound(self, group: Group) -> None:
        self._call("engine_keep_bound", group.index)

    def expect_lent_gradients(self, group: Group) -> None:
        """They stay where they are and come by lend_gradient(): the engine has no memory for them.
        For engines on the CPU."""
        self._call("engine_expect_lent_gradients", group.index)

    def expect_lent_weights(self, group: Group) -> None:
        """Its f32 weights stay in the arrays of lend_weights(), where step() updates them."""
        self._call("engine_expect_lent_weights", group.index)

    def freeze(self) -> None:
        """Plans, and allocates exactly the plan."""
        self._call("engine_freeze")

    # ---- values ----
    def lend_weights(self, name: str, values: Any) -> None:
        """values: a writable row-major array of float32 with the parameter's shape, of a group that
        lends its weights: before its load(), and again for another array. The engine keeps it."""
        known = self.known(name)
        view = _buffer_of(values, name)
        if view.readonly or not view.c_contiguous or view.format.lstrip("@=<") != "f" \
                or tuple(view.shape) != known.shape:
            raise ArgumentError(f"{name}: the values have the format '{view.format}' and the shape "
                                f"{tuple(view.shape)}{', are read-only' if view.readonly else ''}"
                                f"{'' if view.c_contiguous else ', are not row-major'}, and "
                                f"writable row-major float32 of shape {known.shape} are needed. "
                                "Nothing was lent.")
        kept = (ctypes.c_char * view.nbytes).from_buffer(values)
        # Both are kept until the call has returned: Ctrl-C may come behind the loan.
        self._lent[name] = (kept, self._lent.get(name))
        self.lend_weights_at(name, ctypes.addressof(kept))
        self._lent[name] = kept

    def lend_weights_at(self, name: str, address: int) -> None:
        """The same with an address, whose memory the caller keeps."""
        self._call("engine_lend_weights", self.known(name).index, address)

    def load(self, group: Group,
             values: Union[Mapping[str, Any], Callable[[str, memoryview], None]]) -> None:
        """Gives a group its values: a dict of arrays, or a function that is called with each name
        and with writable memory of the parameter's format and shape."""
        names = {self.known(_full_name(group.name, name)).index: name for name in group.parameters}
        if not callable(values):
            _refuse_missing(group, values)

        def fill(index: int, address: int, size_bytes: int) -> None:
            name = names[index]
            known = self.known(_full_name(group.name, name))
            target = memoryview(_raw(address, size_bytes)).cast("B")
            if callable(values):
                lent = memoryview(bytearray(size_bytes))  # what is kept of it stays Python's own
                values(name, _shaped(lent, _FORMATS[known.dtype], known.shape))
                target[:] = lent
            else:
                target[:] = _bytes_of(values[name], name, known.dtype, size_bytes, known.shape)

        self._call_with("engine_load", group.index, prototype=_c.headrace_fill, function=fill)

    def store(self, name: str, content: str = "weight", into: Any = None) -> memoryview:
        """A copy of one kind of content, for np.asarray(). 16-bit weights as uint16. into: writable
        memory for it, such as an array; by default, new memory, with zeros. With several ranks, it
        receives the elements of this rank's part alone; gather() has all weights."""
        known, kind, dtype = self._content(name, content)
        element = _SIZES[dtype]
        size_bytes = known.size_bytes // _SIZES[known.dtype] * element
        out = memoryview(bytearray(size_bytes) if into is None else into)
        if not _has_format(out, dtype) or not out.c_contiguous or out.readonly:
            raise ArgumentError(f"{name}: `into` has the format '{out.format}'"
                                f"{', is read-only' if out.readonly else ''}"
                                f"{'' if out.c_contiguous else ', is not row-major'}, and writable "
                                f"row-major elements of '{_FORMATS[dtype]}' are needed. Nothing "
                                "was stored.")
        out = out.cast("B")
        if out.nbytes != size_bytes:
            raise ArgumentError(f"{name}: `into` has {out.nbytes} bytes, and {size_bytes} "
                                "are needed. Nothing was stored.")

        def sink(first: int, address: int, size: int) -> None:
            out[first * element:first * element + size] = memoryview(_raw(address, size)).cast("B")

        self._call_with("engine_store", known.index, kind, prototype=_c.headrace_sink,
                        function=sink)
        return _shaped(out, _FORMATS[dtype], known.shape)

    def load_content(self, name: str, content: str, values: Any) -> None:
        """The inverse of store(): replaces one kind of content and nothing else."""
        known, kind, dtype = self._content(name, content)
        element = _SIZES[dtype]
        given = _bytes_of(values, name, dtype, known.size_bytes // _SIZES[known.dtype] * element,
                          known.shape)

        def source(first: int, address: int, size_bytes: int) -> None:
            begin = first * element
            memoryview(_raw(address, size_bytes)).cast("B")[:] = given[begin:begin + size_bytes]

        self._call_with("engine_load_content", known.index, kind, prototype=_c.headrace_source,
                        function=source)

    def _content(self, name: str, content: str) -> tuple:
        if content not in CONTENTS:
            raise ArgumentError(f"content {content!r} is not known; use one of "
                                f"{', '.join(CONTENTS)}.")
        known = self.known(name)
        dtype = known.dtype if content == "weight" else _c.HEADRACE_F32
        return known, CONTENTS[content], dtype

    def mark_written(self, group: Group, cause: str) -> None:
        """Something wrote to the group's weights while they were gathered. Until the whole group
        is loaded, calls that need its values raise WrongState with `cause`."""
        self._call("engine_mark_written", group.index, encoded(cause))

    def section_offset_bytes(self, name: str) -> int:
        """After freeze(): where a parameter lies in Gathered.section() of its dtype."""
        facts = new(_c.headrace_parameter_facts)
        self._call("engine_parameter_facts", self.known(name).index, ctypes.byref(facts))
        return facts.section_offset_bytes

    def step_count(self, name: str) -> int:
        steps = ctypes.c_uint64()
        self._call("engine_step_count", self.known(name).index, ctypes.byref(steps))
        return steps.value

    def set_step_count(self, name: str, steps: int) -> None:
        self._call("engine_set_step_count", self.known(name).index, steps)

    def hash_parameters(self) -> str:
        return self._hash("engine_hash_parameters")

    def hash_optimizer_state(self) -> str:
        return self._hash("engine_hash_optimizer_state")

    def _hash(self, name: str) -> str:
        text = ctypes.create_string_buffer(_c.HEADRACE_HASH_CAPACITY)
        self._call(name, text)
        return text.value.decode()

    # ---- a step ----
    def add_gradient(self, name: str, gradient: Any, dtype: Optional[str] = None,
                     stream: int = 0) -> None:
        """gradient: an array of float32 or float16, or of uint16 that holds bf16. dtype: needed for
        raw bytes, and for uint16 if the parameter is f16. The engine has read the gradient when the
        call returns.
        On a GPU: an array with __cuda_array_interface__, which must keep its values until `stream`,
        on which they were computed, has passed this call."""
        known = self.known(name)
        if self.gpu is not None:
            self._add_device_gradient(name, known, gradient, dtype, stream)
            return
        kind = self._gradient_dtype(name, known, gradient, dtype)
        elements = known.size_bytes // _SIZES[known.dtype]
        view = _bytes_of(gradient, name, kind, elements * _SIZES[kind], known.shape)
        kept = view if not view.readonly else bytearray(view)
        self.add_gradient_at(name, ctypes.addressof(ctypes.c_char.from_buffer(kept)), kind)

    def lend_gradient(self, name: str, gradient: Any, dtype: Optional[str] = None) -> None:
        """The same for a group that lends its gradients. Until step() has returned, leave the
        array's values as they are."""
        known = self.known(name)
        kind = self._gradient_dtype(name, known, gradient, dtype)
        elements = known.size_bytes // _SIZES[known.dtype]
        view = _bytes_of(gradient, name, kind, elements * _SIZES[kind], known.shape)
        kept = view if not view.readonly else bytearray(view)
        self._lent_gradients.append(kept)  # before the call: Ctrl-C may come behind the loan
        self.lend_gradient_at(name, ctypes.addressof(ctypes.c_char.from_buffer(kept)), kind)

    def lend_gradient_at(self, name: str, address: int, kind: int) -> None:
        """The same with an address, whose memory the caller keeps."""
        self._call("engine_lend_gradient", self.known(name).index, address, kind)

    def _add_device_gradient(self, name: str, known: _Known, gradient: Any, dtype: Optional[str],
                             stream: int) -> None:
        found = getattr(gradient, "__cuda_array_interface__", None)
        if found is None or found.get("strides") is not None:
            raise ArgumentError(f"{name}: the gradient is no row-major array in GPU memory, and "
                                "this engine takes gradients from there; nothing was added. Give a "
                                "contiguous tensor of torch or CuPy on the GPU.")
        if tuple(found["shape"]) != known.shape:
            raise ArgumentError(f"{name}: the gradient has the shape {tuple(found['shape'])}, and "
                                f"the parameter has {known.shape}; nothing was added. Give the "
                                "gradient of the whole parameter.")
        kind = dtype or _DEVICE_DTYPES.get(found["typestr"])
        if dtype is None and found["typestr"] == "<u2":
            _refuse_bits_of_either(name, known)
        if kind not in DTYPES:
            raise ArgumentError(f"{name}: the gradient has no known dtype ({found['typestr']}); "
                                "nothing was added. Give float32, float16, or bf16 as uint16, or "
                                "name the dtype.")
        self.add_gradient_at(name, found["data"][0], DTYPES[kind], stream)

    def add_gradient_at(self, name: str, address: int, kind: int, stream: int = 0) -> None:
        """The same with the address of contiguous values, of a headrace_dtype."""
        self._call("engine_add_gradient", self.known(name).index, address, kind, stream)

    @staticmethod
    def _gradient_dtype(name: str, known: _Known, gradient: Any, dtype: Optional[str]) -> int:
        named = str(getattr(gradient, "dtype", "")) or _buffer_of(gradient, name).format
        found = dtype or {"float32": "f32", "float16": "f16", "uint16": "bf16", "bfloat16": "bf16",
                          "f": "f32", "e": "f16", "H": "bf16"}.get(named)
        if dtype is None and named in ("uint16", "H"):
            _refuse_bits_of_either(name, known)
        if found not in DTYPES:
            raise ArgumentError(f"{name}: the gradient has no known dtype ({found or named!r}); "
                                "nothing was added. Give float32, float16, or bf16 as uint16, or "
                                "name the dtype.")
        return DTYPES[found]

    def gradient_statistics(self, name: str) -> GradientStatistics:
        """Of what the parameter has received since the last step, added up and not scaled."""
        found = _c.headrace_gradient_piece()
        self._call("engine_gradient_statistics", self.known(name).index, ctypes.byref(found))
        return GradientStatistics(found.sum_squares, found.non_finite)

    def discard_gradients(self) -> None:
        self._call("engine_discard_gradients")
        self._lent_gradients.clear()

    def step(self, learning_rate: float = 1e-3, *, gradient_scale: float = 1.0,
             max_norm: float = 0.0) -> StepResult:
        options = new(_c.headrace_step_options, learning_rate=learning_rate,
                      gradient_scale=gradient_scale, max_norm=max_norm)
        result = new(_c.headrace_step_result)
        self._call("engine_step", ctypes.byref(options), ctypes.byref(result))
        self._lent_gradients.clear()
        return StepResult(result.step, result.gradient_norm, result.clip_factor,
                          result.parameters_updated, result.parameters_left_alone,
                          bool(result.skipped), result.non_finite_gradients)

    def finish_step(self) -> None:
        self._call("engine_finish_step")

    def exchange(self, mine: Any) -> list[bytes]:
        """With several ranks, what each of them gives, by rank; all give as many bytes. Between a
        step() and the next gather it does not disturb what the ranks do ahead."""
        try:
            mine = bytes(memoryview(mine).cast("B"))
        except TypeError:
            raise ArgumentError(f"exchange() was given a {type(mine).__name__}; nothing was sent. "
                                "Give bytes, or a row-major array.") from None
        ranks = 1 if self._table is None else self._table.struct.world_size
        of_all = ctypes.create_string_buffer(max(1, ranks * len(mine)))
        self._call("engine_exchange", _address_of(mine), len(mine), of_all, ranks * len(mine))
        return [of_all.raw[r * len(mine):(r + 1) * len(mine)] for r in range(ranks)]

    # ---- reports ----
    def settings(self) -> dict:
        return json.loads(_library.text_of("engine_settings_json", self._live()))

    def plan(self) -> dict:
        return json.loads(_library.text_of("engine_plan_json", self._live()))

    def stats(self) -> dict:
        # The text may grow between the question for its size and the question for itself.
        buffer, needed = ctypes.create_string_buffer(1 << 20), ctypes.c_size_t()
        self._call("engine_stats_json", buffer, len(buffer), ctypes.byref(needed))
        return json.loads(buffer.value)

    # ---- durable epochs (docs/durable.md) ----
    def resumed(self) -> Optional[Resumed]:
        """After freeze(): where the engine goes on, with all values in place. None: load them."""
        found = new(_c.headrace_resumed)
        self._call("engine_resumed", ctypes.byref(found))
        if not found.resumed:
            return None
        state = self._bytes("engine_resumed_trainer_state")
        return Resumed(found.step, found.skipped, state)

    def set_trainer_state(self, state: bytes) -> None:
        """What the program needs to go on after the next step; becomes durable with that step."""
        self._call("engine_set_trainer_state", _address_of(state), len(state))

    def commit(self) -> None:
        """Now, and returns when it is durable."""
        self._call("engine_commit")

    def durable_step(self) -> int:
        """The step of the last durable epoch; 0: there is none."""
        step = ctypes.c_uint64()
        self._call("engine_durable_step", ctypes.byref(step))
        return step.value

    def _bytes(self, name: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(name, None, 0, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self._call(name, buffer, size.value, ctypes.byref(size))
        return buffer.raw[:size.value]

    # ---- checkpoints, sleep ----
    def save_checkpoint(self, directory: Any, *, latest: bool = False,
                        trainer_state: bytes = b"") -> None:
        options = _save_options(latest, trainer_state)
        self._call("engine_save_checkpoint", encoded(directory), ctypes.byref(options))

    def save_checkpoint_in_background(self, directory: Any, *, latest: bool = False,
                                      trainer_state: bytes = b"") -> BackgroundSave:
        """Of the last committed step of a durable engine, while training goes on."""
        options, handle = _save_options(latest, trainer_state), ctypes.c_void_p()
        self._call("engine_save_checkpoint_in_background", encoded(directory),
                   ctypes.byref(options), ctypes.byref(handle))
        return BackgroundSave(handle.value)

    def load_checkpoint(self, directory: Any) -> bytes:
        """Returns the trainer_state that the checkpoint was saved with."""
        self._call("engine_load_checkpoint", encoded(directory))
        return self._bytes("engine_loaded_trainer_state")

    def load_weights(self, path: Any, *, names: Optional[Mapping[str, str]] = None,
                     allow_unused: bool = False) -> None:
        """From safetensors files. names: a tensor's name for a parameter's full name; where it has
        none, the full name."""
        tensors = {encoded(key): encoded(value) for key, value in (names or {}).items()}

        def tensor_name(full_name: bytes, buffer: int, capacity: int) -> None:
            text = tensors.get(full_name, full_name) + b"\0"
            if len(text) > capacity:
                raise ArgumentError(f"the tensor name {text[:-1].decode()!r} has more than "
                                    f"{capacity - 1} bytes.")
            ctypes.memmove(buffer, text, len(text))

        def arguments(guarded: Any) -> tuple:
            prototype = dict(_c.headrace_weight_options._fields_)["tensor_name"]
            options = new(_c.headrace_weight_options, allow_unused=int(allow_unused),
                          tensor_name=prototype(guarded))
            return self._live(), encoded(path), ctypes.byref(options)

        try:
            call_with("engine_load_weights", tensor_name, arguments)
        finally:
            self._drain_log()

    def sleep(self, directory: Any = None) -> None:
        """Gives memory back until wake()."""
        self._call("engine_sleep", None if directory is None else encoded(directory))

    def wake(self) -> None:
        self._call("engine_wake")
