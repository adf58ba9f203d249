# SPDX-License-Identifier: Apache-2.0
"""headrace.Engine on several ranks over Gloo: ranks_test.py FOLDER [TEST...]."""
import ctypes
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import types
import unittest

try:
    import numpy
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"{error}: skipped")
    sys.exit(77)

import headrace
import headrace.torch
from headrace import _library

MICRO_BATCHES = 8
GROUPS = {"first": {"w": ((300, 500), "bf16"), "b": ((500,), "f32")},
          "second": {"w": ((70000,), "f32")}}


def values_of(name, shape):
    return numpy.random.default_rng(len(name)).standard_normal(shape, dtype=numpy.float32) / 8


def settings_of(folder, ranks, more):
    place = {"device": "nvme", "nvme_path": folder}
    zero = {"stage": 3, "offload_optimizer": place, "offload_param": place, **more}
    return {"gradient_accumulation_steps": MICRO_BATCHES // ranks, "zero_optimization": zero,
            "headrace": {"allow_memory_backed": True}}


def bits_of(array, dtype):
    """bf16 by cutting, as uint16."""
    return (array.view(numpy.uint32) >> 16).astype(numpy.uint16) if dtype == "bf16" else array


def train(engine, rank, ranks):
    """Its hashes, and the norms of the steps."""
    groups = [engine.add_group(name, parameters) for name, parameters in GROUPS.items()]
    engine.freeze()
    for group in groups:
        group.load({name: bits_of(values_of(name, shape), dtype)
                    for name, (shape, dtype) in GROUPS[group.name].items()})
    norms = []
    for step in range(4):
        for number in range(rank, MICRO_BATCHES, ranks):
            for group in groups:
                with group.gather():
                    pass
            for group in reversed(groups):
                with group.gather() as gathered:
                    for name, (shape, dtype) in GROUPS[group.name].items():
                        weight = numpy.asarray(gathered[name]).astype(numpy.float32).sum()
                        gradient = values_of(f"{step}{number}{name}", shape) * (1 + weight % 2)
                        engine.add_gradient(f"{group.name}.{name}", bits_of(gradient, dtype))
        norms.append(engine.step(1e-2, gradient_scale=1 / MICRO_BATCHES, max_norm=1).gradient_norm)
    return [engine.hash_parameters(), engine.hash_optimizer_state(), *norms]


def rank_main(folder, rank, ranks, what, more):
    store = f"file://{folder}/store-{what}-{ranks}-{bool(more)}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    group = headrace.torch.ProcessGroup(timeout=30)
    with headrace.Engine(settings_of(folder, ranks, more), collective=group) as engine:
        if what == "fails" and rank == 1:
            group.abort("the test says so")
            os._exit(3)
        if what == "raises" and rank == 1:
            raise KeyError("mine")
        result = train(engine, rank, ranks)
        said = engine.exchange(bytes([rank, 7]))
        assert engine.exchange(b"") == [b""] * ranks
        if what == "differs":
            engine.exchange(bytes(1 + rank))
        stats = engine.stats()
    print(json.dumps({"result": result, "exchanged": [list(one) for one in said],
                      "followed": stats["steps_followed"],
                      "sent": stats["collective_sent_to_other_nodes_bytes"]}))


def start(folder, rank, ranks, what, more):
    words = [sys.executable, __file__, "rank", folder, str(rank), str(ranks), what,
             json.dumps(more)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"))


class Mirror(headrace.Collective):
    """A second rank that gives what this one does."""
    rank, world_size = 0, 2

    def __init__(self):
        self.calls, self.press, self.why = 0, False, None

    def all_to_all_v(self, what, give, take):
        if self.press:
            self.press = False
            signal.raise_signal(signal.SIGINT)
        self.calls += 1
        take[1][:] = give[1]

    def abort(self, why):
        self.why = why


class Ranks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def world(self, ranks, what="trains", more=None):
        processes = [start(self.folder, rank, ranks, what, more or {}) for rank in range(ranks)]
        return [(one.communicate(timeout=120), one.returncode) for one in processes]

    def test_train_as_one_does(self):
        with headrace.Engine(settings_of(self.folder, 1, {})) as engine:
            alone = train(engine, 0, 1)
        for ranks, more in ((2, {}), (4, {"zero_hpz_partition_size": 2}), (2, {"stage": 2})):
            with self.subTest(ranks=ranks, more=more):
                for (out, errors), code in self.world(ranks, more=more):
                    self.assertEqual(code, 0, errors)
                    said = json.loads(out.splitlines()[-1])
                    self.assertEqual(said["result"], alone)
                    self.assertEqual(said["exchanged"], [[rank, 7] for rank in range(ranks)])
                    self.assertGreater(said["followed"], 0)
                    self.assertEqual(said["sent"] > 0, bool(more.get("zero_hpz_partition_size")))
                for store in pathlib.Path(self.folder).glob("store-*"):
                    store.unlink()
        self.assertEqual([name for name in os.listdir(self.folder) if "headrace" in name], [])

    def test_end_with_the_cause_where_one_fails(self):
        (first, code), (_, second_code) = self.world(2, "fails")
        self.assertEqual(second_code, 3)
        self.assertNotEqual(code, 0)
        self.assertRegex(first[1], "PeerLost.*(rank 1 gave up: the test says so|a rank left)")

    def test_tell_the_others_what_was_raised(self):
        (first, code), (second, _) = self.world(2, "raises")
        self.assertNotEqual(code, 0)
        self.assertRegex(first[1], "PeerLost.*rank 1 gave up: KeyError: 'mine'")
        self.assertIn("KeyError: 'mine'", second[1])

    def test_name_both_sizes_where_they_exchange_others(self):
        for (_, errors), code in self.world(2, "differs"):
            self.assertNotEqual(code, 0)
            self.assertRegex(errors, "PeerLost.*rank 1 called exchange of 2 bytes where rank 0 "
                                     "called exchange of 1 bytes")

    def test_refuse_what_is_no_collective_by_name(self):
        with self.assertRaisesRegex(ValueError, "collective is a str.*ProcessGroup"):
            headrace.Engine(collective="gloo")
        with self.assertRaisesRegex(NotImplementedError, "gpu has the groups"):
            headrace.Engine(collective=headrace.Collective(), gpu=0)
        with self.assertRaisesRegex(ValueError, r"Collective has no all_to_all_v\(\) of its own"):
            headrace.Engine(collective=headrace.Collective())
        with self.assertRaisesRegex(RuntimeError, "torch.distributed is not initialized"):
            headrace.torch.ProcessGroup()

    def test_of_a_collective_that_raises_chain_its_error(self):
        class Broken(headrace.Collective):
            rank, world_size = 0, 2

            def all_to_all_v(self, what, give, take):
                raise OSError("the cable is out")

            def abort(self, why):
                self.why = why

        broken = Broken()
        engine = headrace.Engine(collective=broken)
        engine.add_group("g", {"w": ((8,), "f32")})
        with self.assertRaises(headrace.PeerLost) as raised:
            engine.freeze()
        self.assertEqual(str(raised.exception.__cause__), "the cable is out")
        self.assertEqual(broken.why, "OSError: the cable is out")
        engine.close()

    def test_of_ctrl_c_before_a_callback_begins_end_with_it(self):
        """ctypes converts the last argument by a function of C that has Ctrl-C come, so that the
        collective is the first to run Python."""
        press = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int)(
            ("PyErr_SetInterruptEx", ctypes.pythonapi))
        pressing = types.SimpleNamespace(from_param=functools.partial(press, signal.SIGINT))
        mirror = Mirror()
        engine = headrace.Engine(collective=mirror)
        engine.add_group("g", {"w": ((8,), "f32")})
        engine.freeze()
        self.assertEqual(engine.exchange(b"one"), [b"one", b"one"])
        function, calls = _library.lib.headrace_engine_exchange, mirror.calls
        kinds = function.argtypes
        self.addCleanup(setattr, function, "argtypes", kinds)
        function.argtypes = [*kinds[:-1], pressing]
        with self.assertRaises(KeyboardInterrupt):
            engine.exchange(b"two")
        function.argtypes = kinds
        self.assertEqual(mirror.calls, calls)
        self.assertEqual(mirror.why, "KeyboardInterrupt: ")
        with self.assertRaises(KeyboardInterrupt):  # the cause of its end
            engine.step()
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
        engine.close()

    def test_let_ctrl_c_through_in_a_collective(self):
        for comes_back in (False, True):  # from the handler
            mirror, seen = Mirror(), []
            engine = headrace.Engine(collective=mirror)
            engine.add_group("g", {"w": ((8,), "f32")})
            engine.freeze()
            mirror.press = True
            if comes_back:
                before = signal.signal(signal.SIGINT, lambda *_: seen.append(mirror.calls))
                self.addCleanup(signal.signal, signal.SIGINT, before)
                self.assertEqual(engine.exchange(b"one"), [b"one", b"one"])
                self.assertEqual(len(seen), 1)
            else:
                with self.assertRaises(KeyboardInterrupt):
                    engine.exchange(b"one")
                self.assertEqual(mirror.why, "KeyboardInterrupt: ")
            engine.close()

    def test_exchange_with_nobody(self):
        with headrace.Engine() as engine:
            engine.add_group("g", {"w": ((8,), "f32")})
            engine.freeze()
            self.assertEqual(engine.exchange(b"one"), [b"one"])
            self.assertEqual(engine.exchange(numpy.arange(2, dtype=numpy.int16)),
                             [b"\0\0\1\0"])
            with self.assertRaisesRegex(ValueError, "exchange.. was given a str"):
                engine.exchange("one")


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5],
                  json.loads(sys.argv[6]))
        sys.exit(0)
    # A shell that runs this in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    FOLDER = sys.argv.pop(1)
    unittest.main()
