# SPDX-License-Identifier: Apache-2.0
"""Exchanges models with transformers and with torch's readers and writers of their format.

    huggingface_test.py LIBRARY    libheadrace.so

A tiny Llama with random weights that transformers saved, in one file or several, is loaded here,
trained for a step and saved. transformers and torch's HuggingFaceStorageReader open what was saved.
All tensors are compared bit for bit. Ends 77, which CTest lists as skipped, where a package is
missing.
"""
import ctypes as c
import os
import sys
import tempfile

try:
    import torch
    import torch.distributed.checkpoint as dcp
    import transformers
    from torch.distributed.checkpoint.hf_storage import (HuggingFaceStorageReader,
                                                         HuggingFaceStorageWriter)
except ImportError as error:
    print(f"skipped: {error}; to run it: pip install torch transformers safetensors")
    sys.exit(77)

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
CONTENTS = {"weight": 0, "master": 1, "exp_avg": 2, "exp_avg_sq": 3}


class Error(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("code", c.c_int32), ("sys_errno", c.c_int32),
                ("message", c.c_char_p), ("capacity", c.c_size_t), ("needed", c.c_size_t)]


class Spec(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("dtype", c.c_int32), ("name", c.c_char_p),
                ("shape", c.POINTER(c.c_int64)), ("dimensions", c.c_uint32),
                ("hyperparameters", c.c_uint32), ("frozen", c.c_uint32), ("reserved", c.c_uint32)]


class SaveOptions(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("latest", c.c_uint32), ("file_bytes", c.c_uint64),
                ("trainer_state", c.c_void_p), ("trainer_state_bytes", c.c_size_t)]


class Engine:
    """The parameters of a torch model, in the library's engine."""

    def __init__(self, library, parameters):
        self.library = c.CDLL(library)
        self.text = c.create_string_buffer(4096)
        self.error = Error(c.sizeof(Error), 0, 0, c.cast(self.text, c.c_char_p), len(self.text), 0)
        self.engine = c.c_void_p()
        self.parameters = parameters
        self.call("create", None, c.byref(self.engine))
        self.ids = {}
        for name, tensor in parameters.items():
            group, own = name.rsplit(".", 1)
            shape = (c.c_int64 * tensor.dim())(*tensor.shape)
            spec = Spec(c.sizeof(Spec), DTYPES[tensor.dtype], own.encode(), shape, tensor.dim())
            self.call("add_group", self.engine, group.encode(), c.byref(spec), c.c_size_t(1),
                      c.byref(c.c_uint32()))
            self.ids[name] = len(self.ids)
        self.call("freeze", self.engine)

    def call(self, name, *arguments):
        if getattr(self.library, "headrace_engine_" + name)(*arguments, c.byref(self.error)) != 0:
            raise RuntimeError(f"{name}: {self.text.value.decode()}")

    def load_weights(self, path):
        self.call("load_weights", self.engine, path.encode(), None)

    def train_step(self):
        for name, tensor in self.parameters.items():
            gradient = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(name)))
            self.call("add_gradient", self.engine, self.ids[name], c.c_void_p(gradient.data_ptr()),
                      DTYPES[torch.float32], c.c_void_p())
        self.call("step", self.engine, None, None)

    def save(self, directory, file_bytes):
        options = SaveOptions(c.sizeof(SaveOptions), 0, file_bytes)
        self.call("save_checkpoint", self.engine, directory.encode(), c.byref(options))

    def stored(self, name, content="weight"):
        out = torch.empty(self.parameters[name].shape, dtype=self.parameters[name].dtype
                          if content == "weight" else torch.float32)

        @c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_uint64, c.c_void_p, c.c_size_t)
        def sink(_, first, values, size_bytes):
            c.memmove(out.data_ptr() + first * out.element_size(), values, size_bytes)
            return 0

        self.call("store", self.engine, self.ids[name], CONTENTS[content], sink, None)
        return out

    def destroy(self):
        self.call("destroy", self.engine)


def tiny_llama(dtype):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    return transformers.LlamaForCausalLM(config).to(dtype)


def expect_equal(actual, expected, what):
    if actual.dtype != expected.dtype or not torch.equal(actual.cpu().view(torch.uint8),
                                                         expected.cpu().view(torch.uint8)):
        sys.exit(f"{what} differs")


def bytes_of(tensor):
    return tensor.detach().contiguous()


def check_loaded(library, model, path, what):
    parameters = dict(model.named_parameters())
    engine = Engine(library, parameters)
    engine.load_weights(path)
    for name, tensor in parameters.items():
        expect_equal(engine.stored(name), bytes_of(tensor), f"{what}: {name}")
        expect_equal(engine.stored(name, "master"), bytes_of(tensor).float(), f"{what}: {name}")
    return engine


def check_opened(engine, model, directory):
    model.config.save_pretrained(directory)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=next(model.parameters()).dtype, output_loading_info=True)
    for kind in "missing_keys", "unexpected_keys", "mismatched_keys":
        if info[kind]:
            sys.exit(f"transformers reports {kind}: {info[kind]}")
    states = {}
    for name in engine.ids:
        states[name] = torch.empty_like(bytes_of(engine.parameters[name]))
        for content in "master", "exp_avg", "exp_avg_sq":
            states[f"{content}.{name}"] = torch.empty(engine.parameters[name].shape)
        states[f"step.{name}"] = torch.zeros((), dtype=torch.int64)
    dcp.load(states, storage_reader=HuggingFaceStorageReader(directory), no_dist=True)
    for name, tensor in theirs.named_parameters():
        expect_equal(bytes_of(tensor), engine.stored(name), f"from_pretrained: {name}")
        expect_equal(states[name], engine.stored(name), f"HuggingFaceStorageReader: {name}")
        for content in "master", "exp_avg", "exp_avg_sq":
            expect_equal(states[f"{content}.{name}"], engine.stored(name, content),
                         f"HuggingFaceStorageReader: {content}.{name}")
        if states[f"step.{name}"].item() != 1:
            sys.exit(f"step.{name} is {states[f'step.{name}']}")


def main(library):
    for dtype in torch.bfloat16, torch.float32, torch.float16:
        with tempfile.TemporaryDirectory() as folder:
            model = tiny_llama(dtype)
            for name, size in ("whole", "1GB"), ("sharded", "100KB"):
                model.save_pretrained(f"{folder}/{name}", max_shard_size=size)
                sharded = os.path.exists(f"{folder}/{name}/model.safetensors.index.json")
                if sharded != (name == "sharded"):
                    sys.exit(f"transformers saved {os.listdir(folder + '/' + name)}")
                engine = check_loaded(library, model, f"{folder}/{name}", name)
                engine.train_step()
                for saved, file_bytes in ("one", 5_000_000_000), ("several", 60_000):
                    directory = f"{folder}/{name}-{saved}"
                    engine.save(directory, file_bytes)
                    check_opened(engine, model, directory)
                engine.destroy()
            weights = {n: bytes_of(p) for n, p in model.named_parameters()}
            dcp.save(weights, storage_writer=HuggingFaceStorageWriter(
                f"{folder}/torch", save_distributed=False,
                fqn_to_index_mapping={n: 1 + i % 2 for i, n in enumerate(weights)}), no_dist=True)
            check_loaded(library, model, f"{folder}/torch", "HuggingFaceStorageWriter").destroy()
        print(f"{dtype}: transformers {transformers.__version__}, torch {torch.__version__}: "
              f"{len(weights)} tensors, bit-equal there and back")


if __name__ == "__main__":
    main(sys.argv[1])
