# SPDX-License-Identifier: Apache-2.0
"""one_parameter.py LIBRARY: 01_one_parameter again, through the shared library and ctypes alone."""
import ctypes as c
import sys

if len(sys.argv) != 2:
    sys.exit("usage: one_parameter.py LIBRARY, such as DIR/lib/libheadrace.so")
lib = c.CDLL(sys.argv[1])
u32, f32, size = c.c_uint32, c.c_float, c.c_size_t


class Error(c.Structure):
    _fields_ = [("struct_size", u32), ("code", c.c_int32), ("sys_errno", c.c_int32),
                ("message", c.c_char_p), ("capacity", size), ("needed", size)]


class Spec(c.Structure):
    _fields_ = [("struct_size", u32), ("dtype", c.c_int32), ("name", c.c_char_p),
                ("shape", c.POINTER(c.c_int64)), ("dimensions", u32), ("hyperparameters", u32)]


class StepOptions(c.Structure):
    _fields_ = [("struct_size", u32), ("learning_rate", f32), ("scale", f32), ("max_norm", f32)]


class StepResult(c.Structure):
    _fields_ = [("struct_size", u32), ("step", c.c_uint64), ("norm", c.c_double),
                ("clip", c.c_double), ("updated", c.c_uint64), ("left_alone", c.c_uint64)]


text = c.create_string_buffer(4096)
error = Error(c.sizeof(Error), 0, 0, c.cast(text, c.c_char_p), len(text), 0)
engine, gathered, data, bytes_ = c.c_void_p(), c.c_void_p(), c.c_void_p(), size()
hash_ = c.create_string_buffer(33)


def call(name, *arguments):
    if getattr(lib, "headrace_" + name)(*arguments, c.byref(error)) != 0:
        raise RuntimeError(f"{name}: {text.value.decode()}")


call("engine_create", None, c.byref(engine))
spec = Spec(c.sizeof(Spec), 0, b"weight", (c.c_int64 * 2)(2, 2), 2, 0)
call("engine_add_group", engine, b"linear", c.byref(spec), size(1), c.byref(u32()))
call("engine_freeze", engine)


@c.CFUNCTYPE(c.c_int32, c.c_void_p, u32, c.POINTER(f32), size)
def fill(context, parameter, values, size_bytes):
    values[0], values[1], values[2], values[3] = 0.5, -1, 2, 0.25
    return 0


call("engine_load", engine, 0, fill, None)
options = StepOptions(c.sizeof(StepOptions), 0.1, 1, 1)
result = StepResult(c.sizeof(StepResult))
for step in range(1, 4):
    call("engine_gather", engine, 0, c.c_void_p(), c.byref(gathered))
    call("gathered_bytes", gathered, 0, c.byref(data), c.byref(bytes_))
    weight = list(c.cast(data, c.POINTER(f32))[0:4])
    call("gathered_release", gathered)
    print("weight  " + " ".join(f"{w:9.6f}" for w in weight))
    call("engine_add_gradient", engine, 0, (f32 * 4)(*[2 * w for w in weight]), 0, c.c_void_p())
    call("engine_step", engine, c.byref(options), c.byref(result))
    print(f"step {step}: gradient norm {result.norm:.4f}, scaled by {result.clip:.4f}")
for what, label in (("parameters", "parameters"), ("optimizer_state", "state     ")):
    call("engine_hash_" + what, engine, hash_)
    print(label, hash_.value.decode())
call("engine_destroy", engine)
