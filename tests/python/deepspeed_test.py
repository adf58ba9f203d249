# SPDX-License-Identifier: Apache-2.0
"""deepspeed_test.py FOLDER: headrace.io; DeepSpeed's operations of headrace by themselves, with
torch; and DeepSpeed itself on them, where it is installed. FOLDER lies on a drive. With
HEADRACE_TEST_DEVICE=cuda, DeepSpeed trains on a GPU."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

sys.dont_write_bytecode = True
import headrace  # noqa: E402
import headrace.io  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
if HAS_TORCH:
    import torch
    from headrace.deepspeed import _adagrad, _adam, _async_io, _lion, _pinned


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def path(self, name="file"):
        return str(self.folder / name)


class Files(InAFolder):
    def test_come_back_at_any_size_and_offset(self):
        with headrace.io.FileIo(block_bytes=4096, queue_depth=3) as files:
            for size in (0, 1, 511, 4096, 12_289, 1 << 20):
                for offset in (0, 7, 4096):
                    data = os.urandom(size)
                    files.write(self.path(), data, offset, tag=size)
                    self.assertEqual([done.tag for done in files.wait()], [size])
                    into = bytearray(size)
                    files.read(self.path(), into, offset)
                    self.assertEqual(files.finish(), 1)
                    self.assertEqual(into, data)

    def test_are_moved_many_at_a_time(self):
        blocks = [os.urandom(5000 + at) for at in range(200)]
        with headrace.io.FileIo() as files:
            for at, block in enumerate(blocks):
                files.write(self.path(str(at % 7)), block, 10_000 * at, tag=at)
            self.assertEqual(files.pending, 200)
            self.assertEqual(files.finish(), 200)
            found = [bytearray(len(block)) for block in blocks]
            for at, into in enumerate(found):
                files.read(self.path(str(at % 7)), into, 10_000 * at)
            self.assertEqual(len(files.wait(least=5)) + len(files.wait()), 200)
        self.assertEqual(found, blocks)

    def test_that_are_short_are_errors_which_name_what_is_missing(self):
        pathlib.Path(self.path()).write_bytes(bytes(1000))
        with headrace.io.FileIo() as files:
            files.read(self.path(), bytearray(3000), tag=4)
            done, = files.wait()
            self.assertEqual((done.tag, done.done_bytes), (4, 1000))
            self.assertIsInstance(done.error, OSError)
            self.assertIn(self.path(), str(done.error))
            files.read(self.path(), bytearray(3000))
            with self.assertRaisesRegex(headrace.IoError, "1000 bytes were moved"):
                files.finish()

    def test_that_are_missing_are_refused_at_once(self):
        with headrace.io.FileIo() as files:
            with self.assertRaises(FileNotFoundError):
                files.read(self.path("none"), bytearray(8))
            self.assertEqual(files.pending, 0)

    def test_of_a_descriptor_that_is_closed_afterwards(self):
        with headrace.io.FileIo() as files:
            file = os.open(self.path(), os.O_CREAT | os.O_WRONLY)
            files.write(file, b"abc", 2)
            os.close(file)
            files.finish()
        self.assertEqual(pathlib.Path(self.path()).read_bytes(), b"\0\0abc")

    def test_whose_wait_an_exception_left_are_returned_by_the_next(self):
        pathlib.Path(self.path()).write_bytes(b"ab")
        with headrace.io.FileIo() as files:
            files.read(self.path(), bytearray(5))  # too short
            take, calls = files._take, []

            def interrupted(*arguments):
                take(*arguments)
                calls.append(files.pending)
                if len(calls) == 1:
                    raise KeyboardInterrupt

            files._take = interrupted
            with self.assertRaises(KeyboardInterrupt):
                files.wait()
            self.assertEqual(files.pending, 1)
            with self.assertRaisesRegex(headrace.IoError, "2 bytes were moved"):
                files.finish()

    def test_that_cannot_begin_are_not_waited_for(self):
        with headrace.io.FileIo() as files:
            for path in (None, 3.5):
                with self.assertRaises(TypeError):
                    files.write(path, b"abc")
            with self.assertRaises(ValueError):
                files.write("a\0b", b"abc")
            self.assertEqual((files.pending, files.wait()), (0, []))

    def test_are_waited_for_by_several_threads(self):
        returned = []
        with headrace.io.FileIo() as files:
            for at in range(40):
                files.write(self.path(), bytearray(100_000), offset=at * 100_000)
            threads = [threading.Thread(target=lambda: returned.append(len(files.wait())))
                       for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                self.assertFalse(thread.is_alive())
        self.assertEqual(sum(returned), 40)

    def test_are_not_waited_for_beyond_a_timeout_while_another_thread_waits(self):
        with headrace.io.FileIo() as files, files._waiting:
            files.write(self.path(), b"abc")
            self.assertEqual(files.wait(timeout=0), [])
            self.assertEqual(files.wait(timeout=0.01), [])
        self.assertEqual(pathlib.Path(self.path()).read_bytes(), b"abc")

    def test_bad_arguments_start_nothing(self):
        with self.assertRaisesRegex(headrace.ArgumentError, "queue is 'aio'"):
            headrace.io.FileIo(queue="aio")
        with self.assertRaisesRegex(headrace.ArgumentError, "queue_depth"):
            headrace.io.FileIo(queue_depth=0)
        with headrace.io.FileIo() as files, self.assertRaisesRegex(ValueError, "read-only"):
            files.read(self.path(), b"abc")
        with self.assertRaises(headrace.WrongState):
            files.write(self.path(), b"abc")


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Handle(InAFolder):
    def check_there_and_back(self, write, read):
        values = torch.randn(30_001)
        write(values)
        found = torch.empty_like(values)
        read(found)
        self.assertTrue(torch.equal(values, found))

    def test_serves_every_way_to_write_and_read(self):
        handle = _async_io.aio_handle(1 << 16, 8, False, True, 2)
        ways = [
            (lambda t: self.assertEqual(handle.write(t, self.path(), True), 0),
             lambda t: self.assertEqual(handle.read(t, self.path(), True), 0)),
            (lambda t: self.assertEqual(handle.pwrite(t, self.path(), False, False), 1),
             lambda t: self.assertEqual(handle.pread(t, self.path(), True, False), 1)),
            (lambda t: self.assertEqual(handle.sync_pwrite(t, self.path(), 512), 1),
             lambda t: self.assertEqual(handle.sync_pread(t, self.path(), 512), 1)),
            (lambda t: self.assertEqual((handle.async_pwrite(t, self.path()), handle.wait()),
                                        (0, 1)),
             lambda t: self.assertEqual((handle.async_pread(t, self.path()), handle.wait()),
                                        (0, 1))),
            (lambda t: self.assertEqual((handle.pwrite(
                buffer=t, filename=self.path(), validate=True, **{"async": True}), handle.wait()),
                (0, 1)),
             lambda t: self.assertEqual((handle.pread(t, self.path(), False, True), handle.wait()),
                                        (0, 1))),
        ]
        for write, read in ways:
            self.check_there_and_back(write, read)
        self.assertEqual(handle.wait(), 0)

    def test_writes_to_a_descriptor(self):
        handle = _async_io.aio_handle()
        for name in ((), ("fd",)):
            with open(self.path(), "wb") as file:
                values = torch.randn(77)
                if name:
                    handle.async_pwrite(values, fd=file.fileno())
                else:
                    handle.async_pwrite(values, file.fileno())
            self.assertEqual(handle.wait(), 1)
            self.assertEqual(pathlib.Path(self.path()).read_bytes(), values.numpy().tobytes())

    def test_answers_as_deepspeed_asks(self):
        handle = _async_io.aio_handle(block_size=8192, queue_depth=16, single_submit=True,
                                      overlap_events=False, intra_op_parallelism=4)
        self.assertEqual((handle.get_block_size(), handle.get_queue_depth(),
                          handle.get_single_submit(), handle.get_overlap_events(),
                          handle.get_intra_op_parallelism(), handle.get_alignment()),
                         (8192, 16, True, False, 4, 2048))
        with self.assertRaises(TypeError):
            _async_io.aio_handle(8192, 16, "true")

    def test_a_short_file_and_a_missing_one_are_errors(self):
        handle = _async_io.aio_handle()
        handle.write(torch.zeros(10), self.path(), False)
        with self.assertRaises(OSError) as caught:
            handle.sync_pread(torch.zeros(30), self.path())
        self.assertIn("40 bytes were moved", str(caught.exception))
        self.assertIn(self.path(), str(caught.exception))
        with self.assertRaises(FileNotFoundError):
            handle.async_pread(torch.zeros(3), self.path("none"))
        self.assertEqual(handle.wait(), 0)

    def test_a_full_disk_is_an_error(self):
        code = textwrap.dedent("""
            import errno, resource, signal, sys, torch
            from headrace.deepspeed import _async_io
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
            try:
                _async_io.aio_handle().sync_pwrite(torch.zeros(1 << 20), sys.argv[1])
            except OSError as error:
                assert error.errno == errno.EFBIG and sys.argv[1] in str(error), error
                sys.exit(23)
            """)
        self.assertEqual(subprocess.run([sys.executable, "-c", code, self.path()],
                                        check=False).returncode, 23)

    def test_a_write_that_came_back_otherwise_is_an_error(self):
        values = torch.ones(9000)
        handle = _async_io.aio_handle()
        handle.pwrite(values, self.path(), True, True)
        while pathlib.Path(self.path()).read_bytes() != values.numpy().tobytes():
            time.sleep(0.001)
        values[8999] = 2  # the file differs, as on a drive that changes bytes
        with self.assertRaisesRegex(OSError, "differs from the buffer"):
            handle.wait()

    def test_a_strided_tensor_is_refused(self):
        with self.assertRaisesRegex(ValueError, "contiguous"):
            _async_io.aio_handle().sync_pwrite(torch.zeros(4, 4).t(), self.path())

    def test_whole_files_are_read_and_written_by_functions(self):
        values = torch.randn(5000)
        arguments = (self.path(), 4096, 4, False, True, True)
        self.assertEqual(_async_io.aio_write(values, *arguments), 0)
        found = torch.empty_like(values)
        self.assertEqual(_async_io.aio_read(found, *arguments), 0)
        self.assertTrue(torch.equal(values, found))
        with self.assertRaisesRegex(ValueError, "20000 bytes"):
            _async_io.aio_read(torch.empty(3), *arguments)


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Pinned(unittest.TestCase):
    def test_are_known_to_every_handle_until_freed(self):
        one, other = _pinned.pin_handle(), _async_io.aio_handle()
        tensor = one.new_cpu_locked_tensor(10_000, torch.empty(0, dtype=torch.bfloat16))
        self.assertEqual((tensor.numel(), tensor.dtype, tensor.data_ptr() % 4096),
                         (10_000, torch.bfloat16, 0))
        self.assertTrue(other.is_pinned(tensor[100:200]))
        self.assertFalse(other.is_pinned(torch.empty(3)))
        kept = tensor[:10].fill_(3)
        self.assertTrue(other.free_cpu_locked_tensor(tensor))
        self.assertFalse(one.free_cpu_locked_tensor_by_ptr(tensor.data_ptr()))
        self.assertFalse(one.is_pinned(tensor))
        del tensor
        self.assertEqual(kept.sum(), 30)


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class Updates(unittest.TestCase):
    """Against torch's own rules in f32; DeepSpeed's differ from them by rounding too."""

    def setUp(self):
        torch.manual_seed(5)

    def train(self, make, update, moments):
        weight = torch.randn(40_000)
        theirs = torch.nn.Parameter(weight.clone())
        optimizer = make([theirs])
        ours, states = weight.clone(), [torch.zeros(40_000) for _ in range(moments)]
        for step in range(1, 6):
            gradient = torch.randn(40_000)
            theirs.grad = gradient.clone()
            optimizer.step()
            self.assertEqual(update(step, ours, gradient, *states), 0)
        return theirs.detach(), ours, states

    def test_adam_and_adamw(self):
        for optimizer_id, (rule, decoupled) in enumerate(((torch.optim.AdamW, True),
                                                          (torch.optim.Adam, False))):
            _adam.create_adam(optimizer_id, 1e-2, 0.9, 0.99, 1e-8, 0.1, decoupled, False)
            theirs, ours, _ = self.train(
                lambda p, rule=rule: rule(p, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1),
                lambda step, p, g, m, v, number=optimizer_id: _adam.adam_update(
                    number, step, 1e-2, 0.9, 0.99, 1e-8, 0.1, True, p, g, m, v), 2)
            torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-7)
            self.assertEqual(_adam.destroy_adam(optimizer_id), 0)

    def test_adagrad(self):
        theirs, ours, _ = self.train(
            lambda p: torch.optim.Adagrad(p, lr=1e-2, eps=1e-10, weight_decay=0.1),
            lambda step, p, g, v: _adagrad.adagrad_update(0, step, 1e-2, 1e-10, 0.1, p, g, v), 1)
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-7)

    def test_lion(self):
        class Lion(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {})
                self.mean = 0

            @torch.no_grad()
            def step(self):
                weight, = self.param_groups[0]["params"]
                sign = torch.sign(0.9 * self.mean + 0.1 * weight.grad)
                weight.mul_(1 - 1e-2 * 0.1).sub_(1e-2 * sign)
                self.mean = 0.99 * self.mean + 0.01 * weight.grad

        theirs, ours, _ = self.train(
            Lion, lambda step, p, g, m: _lion.lion_update(0, step, 1e-2, 0.9, 0.99, 0.1, p, g, m),
            1)
        # A sign may differ where the sum is nearly zero.
        self.assertLess((ours - theirs).abs().gt(1e-5).float().mean(), 1e-4)

    def test_16_bits_are_rounded_to_nearest(self):
        _adam.create_adam(7, 1e-2, 0.9, 0.99, 1e-8, 0.0, True, False)
        for dtypes in ((torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16),
                       (torch.float16, torch.float32)):
            values = torch.randn(1000).to(dtypes[0])
            gradient = torch.randn(1000).to(dtypes[0])
            wide = [values.float(), torch.zeros(1000), torch.zeros(1000)]
            narrow = [values, torch.zeros(1000, dtype=dtypes[1]),
                      torch.zeros(1000, dtype=dtypes[1])]
            for tensors in (wide, narrow):
                _adam.adam_update(7, 1, 1e-2, 0.9, 0.99, 1e-8, 0.0, True, tensors[0], gradient,
                                  *tensors[1:])
            for one, other in zip(wide, narrow):
                self.assertTrue(torch.equal(one.to(other.dtype), other))
        _adam.destroy_adam(7)

    def test_a_rollback_undoes_an_update(self):
        _adam.create_adam(8, 1e-2, 0.9, 0.99, 1e-8, 0.1, True, False)
        tensors = [torch.randn(1000), torch.randn(1000) / 9, torch.rand(1000)]
        before = [tensor.clone() for tensor in tensors]
        gradient = torch.randn(1000)
        arguments = (8, 3, 1e-2, 0.9, 0.99, 1e-8, 0.1, True)
        _adam.adam_update(*arguments, tensors[0], gradient, *tensors[1:])
        self.assertFalse(torch.allclose(tensors[0], before[0]))
        self.assertEqual(_adam.adam_rollback(*arguments, tensors[0], gradient, *tensors[1:]), 0)
        for tensor, old in zip(tensors, before):
            torch.testing.assert_close(tensor, old, rtol=1e-4, atol=1e-5)
        half = [tensor.half() for tensor in tensors]
        self.assertEqual(_adam.adam_rollback(*arguments, half[0], gradient, *half[1:]), -1)
        _adam.destroy_adam(8)

    def test_wrong_tensors_are_refused_by_name(self):
        _adam.create_adam(9, 1e-2, 0.9, 0.99, 1e-8, 0.1, True, False)
        good = torch.zeros(4)
        for bad, text in ((torch.zeros(5), "5 elements"), (torch.zeros(4).double(), "float64"),
                          (torch.zeros(8)[::2], "contiguous")):
            with self.assertRaisesRegex(ValueError, "grads.*" + text):
                _adam.adam_update(9, 1, 1e-2, 0.9, 0.99, 1e-8, 0.1, True, good, bad, good.clone(),
                                  good.clone())
        with self.assertRaisesRegex(ValueError, "number 77"):
            _adam.adam_update(77, 1, 1e-2, 0.9, 0.99, 1e-8, 0.1, True, good, good, good, good)
        _adam.destroy_adam(9)


TRAIN = textwrap.dedent("""
    import json, os, sys
    place, folder, steps = sys.argv[1:4]
    device = os.environ.get("HEADRACE_TEST_DEVICE", "cpu")
    os.environ.update(DS_ACCELERATOR=device, MASTER_ADDR="127.0.0.1", RANK="0", LOCAL_RANK="0",
                      WORLD_SIZE="1", MASTER_PORT=sys.argv[4], TORCH_EXTENSIONS_DIR=folder + "/ext")
    import headrace.deepspeed
    import torch, deepspeed
    from deepspeed.ops.op_builder import AsyncIOBuilder
    assert headrace.deepspeed.installed() and AsyncIOBuilder().is_compatible()
    # The one operation that a process alone does not need, and that DeepSpeed would compile.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    at = {"device": place, "nvme_path": folder, "buffer_count": 8}
    config = {
        "train_batch_size": 2, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {
            "stage": 3, "sub_group_size": 300000, "stage3_param_persistence_threshold": 0,
            "offload_optimizer": at,
            "offload_param": {**at, "buffer_size": 1000000, "max_in_cpu": 0}},
        "aio": {"block_size": 131072, "queue_depth": 8, "overlap_events": True}}
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(4)])
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=config)
    x = torch.randn(2, 512, dtype=torch.bfloat16).to(device)
    losses = []
    for _ in range(int(steps)):
        loss = (engine(x).float() - x.float()).pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item().hex())
    print("losses", json.dumps(losses))
    print("compiled", os.path.exists(folder + "/ext") and os.listdir(folder + "/ext"))
    """)


# What a program of Hugging Face does that is started with --deepspeed ds.json.
HUGGING_FACE = textwrap.dedent("""
    import json, os, sys
    place, folder, steps = sys.argv[1:4]
    device = os.environ.get("HEADRACE_TEST_DEVICE", "cpu")
    os.environ.update(DS_ACCELERATOR=device, MASTER_ADDR="127.0.0.1", RANK="0", LOCAL_RANK="0",
                      WORLD_SIZE="1", MASTER_PORT=sys.argv[4], TORCH_EXTENSIONS_DIR=folder + "/ext")
    import headrace.deepspeed
    import torch
    from transformers import (HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer,
                              TrainingArguments)
    import deepspeed
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    at = {"device": place, "nvme_path": folder, "buffer_count": 40}
    with open(folder + "/ds.json", "w") as file:
        json.dump({
            "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto",
                                                      "betas": "auto", "eps": "auto"}},
            "zero_optimization": {
                "stage": 3, "offload_optimizer": at, "sub_group_size": 50000,
                "offload_param": {**at, "buffer_size": 100000, "max_in_cpu": 0}},
            "aio": {"block_size": 131072, "queue_depth": 8}}, file)
    words = ["--output_dir", folder + "/run", "--deepspeed", folder + "/ds.json", "--bf16",
             "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2",
             "--max_steps", steps, "--logging_steps", "1", "--report_to", "none",
             "--save_strategy", "no", "--learning_rate", "1e-2", "--disable_tqdm", "true"]
    arguments, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        words + (["--use_cpu"] if device == "cpu" else []))
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2))
    rows = torch.randint(0, 128, (24, 16), generator=torch.Generator().manual_seed(1))
    trainer = Trainer(model=model, args=arguments,
                      train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.train()
    print("losses", json.dumps([(row["loss"], row["grad_norm"])
                                for row in trainer.state.log_history if "loss" in row]))
    print("compiled", os.path.exists(folder + "/ext") and os.listdir(folder + "/ext"))
    """)


@unittest.skipUnless(HAS_TORCH and HAS_DEEPSPEED, "deepspeed is not installed")
class DeepSpeed(InAFolder):
    def train(self, program, place, port):
        done = subprocess.run([sys.executable, "-c", program, place, str(self.folder), "5", port],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
        return {line[0]: line[1] for line in lines if len(line) == 2}

    def check(self, program, ports):
        in_memory, on_drive = (self.train(program, place, port)
                               for place, port in zip(("cpu", "nvme"), ports))
        self.assertEqual(in_memory["losses"], on_drive["losses"])
        self.assertIn(on_drive["compiled"], ("False", "[]"))

    def test_trains_on_a_drive_as_in_memory_and_compiles_nothing(self):
        self.check(TRAIN, ("29533", "29534"))

    @unittest.skipUnless(importlib.util.find_spec("transformers") and
                         importlib.util.find_spec("accelerate"), "transformers is not installed")
    def test_a_trainer_of_hugging_face_with_ds_json_does_too(self):
        self.check(HUGGING_FACE, ("29535", "29536"))


if __name__ == "__main__":
    FOLDER = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
