# SPDX-License-Identifier: Apache-2.0
"""engine_test.py FOLDER: headrace.Engine through buffers alone, and through numpy where there is
one. FOLDER lies on a drive. The environment names the library and the package."""
import array
import copy
import ctypes
import errno
import gc
import logging
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

sys.dont_write_bytecode = True
import headrace  # noqa: E402
from headrace import _library  # noqa: E402
from headrace._errors import error_of  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None
START = (0.5, -1.0, 2.0, 0.25)


def floats(*values):
    return array.array("f", values)


def on_nvme(folder):
    place = {"device": "nvme", "nvme_path": folder}
    return {"zero_optimization": {"offload_optimizer": place, "offload_param": place}}


def vector_engine(settings=None, count=4, start=START):
    engine = headrace.Engine(settings)
    group = engine.add_group("g", {"w": ((count,), "f32")})
    engine.freeze()
    group.load({"w": floats(*start)})
    return engine, group


def train(engine, group, steps=3):
    for _ in range(steps):
        with group.gather() as gathered:
            gradient = floats(*(2 * value for value in gathered["w"]))
        engine.add_gradient("g.w", gradient, "f32")
        engine.step(0.1, max_norm=1)


class Training(unittest.TestCase):
    def test_has_the_same_bits_in_memory_and_on_a_drive(self):
        hashes = set()
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            for settings in (None, on_nvme(folder)):
                engine, group = vector_engine(settings)
                with engine:
                    train(engine, group)
                    hashes.add((engine.hash_parameters(), engine.hash_optimizer_state()))
                    self.assertEqual(engine.step_count("g.w"), 3)
                    self.assertEqual(engine.stats()["nvme_reads"] > 0, settings is not None)
        self.assertEqual(len(hashes), 1)

    def test_has_the_same_bits_where_weights_and_gradients_are_lent(self):
        hashes, weights = [], floats(*START)
        for lends in (False, True):
            with headrace.Engine() as engine:
                group = engine.add_group("g", {"w": ((4,), "f32")})
                if lends:
                    engine.expect_lent_weights(group)
                    engine.expect_lent_gradients(group)
                engine.freeze()
                if lends:
                    engine.lend_weights("g.w", weights)
                group.load({"w": floats(*START)})
                give = engine.lend_gradient if lends else engine.add_gradient
                for step in range(3):
                    give("g.w", floats(1, -1, 0, step))
                    engine.step(0.1, max_norm=1)
                hashes.append((engine.hash_parameters(), engine.hash_optimizer_state()))
                self.assertEqual(len(engine._lent_gradients), 0)
                if lends:
                    self.assertEqual(list(engine.store("g.w")), list(weights))
        self.assertEqual(*hashes)
        self.assertNotEqual(weights[0], START[0])

    def test_a_checkpoint_is_not_loaded_to_where_nothing_was_lent(self):
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            for number in range(2):
                with headrace.Engine() as engine:
                    group = engine.add_group("g", {"w": ((4,), "f32")})
                    engine.expect_lent_weights(group)
                    engine.freeze()
                    if number == 0:
                        engine.lend_weights("g.w", floats(*START))
                        group.load({"w": floats(*START)})
                        engine.save_checkpoint(folder + "/c")
                        continue
                    for load in (engine.load_checkpoint, engine.load_weights):
                        with self.assertRaisesRegex(headrace.WrongState, "'g.w' were not lent"):
                            load(folder + "/c")
                    weights = floats(0, 0, 0, 0)
                    engine.lend_weights("g.w", weights)
                    engine.load_checkpoint(folder + "/c")
                    self.assertEqual(list(weights), list(START))

    def test_refuses_arrays_that_cannot_be_lent(self):
        with headrace.Engine() as engine:
            group = engine.add_group("g", {"w": ((4,), "f32")})
            engine.expect_lent_weights(group)
            engine.freeze()
            for values in (array.array("d", START), floats(1, 2), bytes(16)):
                with self.assertRaisesRegex(headrace.ArgumentError, "Nothing was lent"):
                    engine.lend_weights("g.w", values)
            with self.assertRaisesRegex(headrace.WrongState, "were not lent"):
                group.load({"w": floats(*START)})

    def test_matches_a_step_computed_by_hand(self):
        engine, _ = vector_engine()
        with engine:
            engine.add_gradient("g.w", floats(1, -1, 0, 2), "f32")
            result = engine.step(0.1)
            self.assertAlmostEqual(result.gradient_norm, 6 ** 0.5, places=6)
            self.assertEqual((result.step, result.parameters_updated), (1, 1))
            # The first step moves each element by the rate, against its gradient's sign.
            for value, start, sign in zip(engine.store("g.w"), START, (1, -1, 0, 1)):
                self.assertAlmostEqual(value, start * (1 - 0.1 * 0.01) - 0.1 * sign, places=6)

    def test_hyperparameters_reach_the_step(self):
        with headrace.Engine() as engine:
            still = engine.add_hyperparameters(learning_rate_scale=0.0, weight_decay=0.0)
            group = engine.add_group("g", {"moves": ((1,), "f32"),
                                           "still": headrace.Parameter((1,), "f32", still)})
            engine.freeze()
            group.load(lambda name, values: values.__setitem__(0, 1.0))
            for _ in range(2):
                for name in ("g.moves", "g.still"):
                    engine.add_gradient(name, floats(1), "f32")
                engine.step(0.5)
                engine.set_hyperparameters(still, learning_rate_scale=1.0, weight_decay=0.0)
            self.assertAlmostEqual(engine.store("g.still")[0], 0.5, places=5)
            self.assertLess(engine.store("g.moves")[0], 0.1)


class Durable(unittest.TestCase):
    def made(self, folder):
        settings = on_nvme(folder)
        settings["headrace"] = {"durable": "step", "store": "run", "trainer_state_bytes": 64,
                                "background_save_bytes_per_second": "1GiB"}
        engine = headrace.Engine(settings)
        self.addCleanup(engine.close)
        group = engine.add_group("g", {"w": ((4,), "f32")})
        engine.freeze()
        if engine.resumed() is None:
            group.load({"w": floats(*START)})
        return engine, group

    def test_engine_resumes_with_the_bits_of_one_that_was_not_ended(self):
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            engine, group = self.made(folder)
            self.assertEqual(engine.durable_step(), 0)
            for step in range(3):
                engine.set_trainer_state(b"row\0 %d" % step)
                train(engine, group, 1)
            engine.commit()
            self.assertEqual(engine.durable_step(), 3)
            engine.close()
            again, group = self.made(folder)
            self.assertEqual(again.resumed(), (3, 0, b"row\0 2"))
            train(again, group, 2)
            whole, its = vector_engine()
            with whole:
                train(whole, its, 5)
                self.assertEqual(again.hash_parameters(), whole.hash_parameters())
                self.assertEqual(again.hash_optimizer_state(), whole.hash_optimizer_state())

    def test_save_in_the_background_is_of_the_step_at_which_it_began(self):
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            engine, group = self.made(folder)
            train(engine, group, 2)
            at_save = engine.hash_parameters()
            save = engine.save_checkpoint_in_background(folder + "/one", trainer_state=b"two")
            train(engine, group, 2)
            save.wait()
            self.assertTrue(save.done)
            save.wait()
            other, _ = vector_engine()
            with other:
                self.assertEqual(other.load_checkpoint(folder + "/one"), b"two")
                self.assertEqual(other.hash_parameters(), at_save)
            self.assertNotEqual(engine.hash_parameters(), at_save)

    def test_calls_are_refused_by_name_where_nothing_is_durable(self):
        engine, _ = vector_engine()
        with engine, tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            self.assertIsNone(engine.resumed())
            with self.assertRaisesRegex(headrace.WrongState, "durable"):
                engine.commit()
            with self.assertRaisesRegex(headrace.Unsupported, "background_save_bytes_per_second"):
                engine.save_checkpoint_in_background(folder)


class OnAGpu(unittest.TestCase):
    """torch_test.py has the tests that need one."""

    @unittest.skipIf(headrace.show_config()["cuda"] == "usable", "there is a GPU")
    def test_is_refused_by_name_where_there_is_none(self):
        with self.assertRaises(NotImplementedError) as caught:
            headrace.Engine(gpu=0)
        self.assertIn(headrace.show_config()["cuda"].split(":")[0], str(caught.exception))


class Values(unittest.TestCase):
    def test_content_is_stored_and_loaded(self):
        engine, group = vector_engine()
        other, other_group = vector_engine()
        with engine, other:
            train(engine, group)
            for content in ("weight", "exp_avg", "exp_avg_sq"):
                other.load_content("g.w", content, engine.store("g.w", content))
            other.set_step_count("g.w", engine.step_count("g.w"))
            for one, its in ((engine, group), (other, other_group)):
                train(one, its, 1)
            self.assertEqual(engine.hash_optimizer_state(), other.hash_optimizer_state())
            self.assertEqual(engine.hash_parameters(), other.hash_parameters())

    def test_bf16_comes_as_its_bits(self):
        with headrace.Engine() as engine:
            group = engine.add_group("g", {"w": ((2, 1),), "one": ((), "f16")})
            engine.freeze()
            group.load({"w": array.array("H", [0x3f80, 0xc000]), "one": b"\x00\x3c"})
            self.assertEqual(engine.store("g.w").tolist(), [[0x3f80], [0xc000]])
            self.assertEqual(engine.store("g.w", "master").tolist(), [[1.0], [-2.0]])
            self.assertEqual(bytes(engine.store("g.one")), b"\x00\x3c")

    @unittest.skipIf(np is None, "numpy is not installed")
    def test_arrays_of_any_order_and_of_16_bits_are_taken_by_their_elements(self):
        with headrace.Engine() as engine:
            group = engine.add_group("g", {"w": ((2, 3), "f32"), "h": ((2, 3), "f16")})
            engine.freeze()
            values = np.arange(6, dtype=np.float32).reshape(3, 2).T
            group.load({"w": values, "h": values.astype(np.float16)})
            self.assertEqual(engine.store("g.w").tolist(), values.tolist())
            halves = np.asarray(engine.store("g.h")).view(np.float16)
            self.assertEqual(halves.tolist(), values.tolist())

    def test_uint16_as_a_gradient_of_f16_needs_a_dtype(self):
        """As weights, its bits are of f16, and as a gradient of others, of bf16."""
        lent = headrace.Engine()
        for engine, give in ((headrace.Engine(), "add_gradient"), (lent, "lend_gradient")):
            with engine:
                group = engine.add_group("g", {"w": ((2,), "f16"), "b": ((2,), "bf16")})
                if engine is lent:
                    engine.expect_lent_gradients(group)
                engine.freeze()
                group.load({"w": bytes(4), "b": bytes(4)})
                bits = array.array("H", [0x3c00, 0xc000])  # of f16: 1, -2
                for values in (bits,) if np is None else (bits, np.asarray(bits)):
                    with self.assertRaisesRegex(ValueError, 'may be of f16 or of bf16.*"f16"'):
                        getattr(engine, give)("g.w", values)
                getattr(engine, give)("g.w", bits, "f16")
                getattr(engine, give)("g.b", array.array("H", [0x3f80, 0xc000]))
                self.assertEqual(engine.step(0.1).gradient_norm, 10 ** 0.5)

    @unittest.skipIf(np is None, "numpy is not installed")
    def test_bfloat16_is_no_f16(self):
        class Array(np.ndarray):
            """As ml_dtypes' bf16: a dtype of this name, and no format of buffers."""
            dtype = "bfloat16"

        with headrace.Engine() as engine:
            group = engine.add_group("g", {"w": ((2,), "f16")})
            engine.freeze()
            values = np.zeros(2, np.uint16).view(Array)
            with self.assertRaisesRegex(ValueError, "values are bfloat16, and f16 is needed"):
                group.load({"w": values})
            group.load({"w": bytes(4)})
            with self.assertRaisesRegex(ValueError, "values are bfloat16, and f16 is needed"):
                engine.add_gradient("g.w", values, "f16")

    def test_values_that_do_not_fit_are_refused(self):
        engine, group = vector_engine()
        with engine:
            for values, words in ((floats(1, 2), "8 bytes, and 16"),
                                  (array.array("i", [1, 2, 3, 4]), "format 'i'"),
                                  ([1.0, 2.0, 3.0, 4.0], "list is no array")):
                with self.assertRaisesRegex(ValueError, words):
                    group.load({"w": values})
            with self.assertRaisesRegex(headrace.WrongState, "load"):
                group.gather()  # a load that failed leaves no values
            with self.assertRaisesRegex(ValueError, "no known dtype"):
                engine.add_gradient("g.w", b"0123456789012345")
            with self.assertRaisesRegex(ValueError, "use one of weight"):
                engine.store("g.w", "momentum")

    def test_that_are_missing_are_named_before_any_is_loaded(self):
        with headrace.Engine() as engine:
            group = engine.add_group("g", {"w": ((1,), "f32"), "weight": ((1,), "f32")})
            engine.freeze()
            group.load({"w": floats(1), "weight": floats(2), "other": 0})
            for values, words in (({"w": floats(3)}, "'g' lack 'weight'; nothing was loaded"),
                                  ({"w": floats(3), "wieght": floats(3)},
                                   "lack 'weight', and have 'wieght', .*each of 'w', 'weight'")):
                with self.assertRaisesRegex(headrace.ArgumentError, words):
                    group.load(values)
            self.assertEqual(engine.store("g.w").tolist(), [1.0])

    def test_what_a_function_raises_comes_out(self):
        engine, group = vector_engine()
        with engine:
            with self.assertRaises(ZeroDivisionError):
                group.load(lambda name, values: 1 // 0)
            group.load({"w": floats(*START)})

    def test_weights_of_another_program_are_loaded(self):
        engine, group = vector_engine()
        with engine, tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            path = pathlib.Path(folder, "model.safetensors")
            header = b'{"x.w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
            path.write_bytes(len(header).to_bytes(8, "little") + header
                             + floats(9, 8, 7, 6).tobytes())
            engine.load_weights(path, names={"g.w": "x.w"})
            self.assertEqual(engine.store("g.w").tolist(), [9, 8, 7, 6])
            with self.assertRaisesRegex(ValueError, "g.w"):
                engine.load_weights(path)


class Leases(unittest.TestCase):
    def test_memory_is_not_reused_while_a_view_of_it_lives(self):
        engine, group = vector_engine()
        with group.gather() as gathered:
            view = gathered["w"]
        self.assertEqual(list(view), list(START))
        with self.assertRaisesRegex(headrace.WrongState, "'g' is still gathered"):
            engine.close()
        with self.assertRaisesRegex(headrace.WrongState, "Gather it again"):
            gathered["w"]
        del view
        gc.collect()
        engine.close()
        engine.close()

    def test_views_are_read_only(self):
        engine, group = vector_engine()
        with engine, group.gather() as gathered:
            with self.assertRaises(TypeError):
                gathered["w"][0] = 1.0

    @unittest.skipIf(np is None, "numpy is not installed")
    def test_numpy_reads_the_memory_itself(self):
        engine, group = vector_engine()
        with group.gather() as gathered:
            values = np.asarray(gathered["w"])
            self.assertEqual(values.ctypes.data, gathered_address(gathered, "w"))
            self.assertFalse(values.flags.writeable)
        with self.assertRaises(headrace.WrongState):
            engine.close()
        del values
        engine.add_gradient("g.w", np.ones(4, np.float32))
        with self.assertRaisesRegex(ValueError, "float64"):
            engine.add_gradient("g.w", np.ones(4))
        engine.step()
        engine.close()


def gathered_address(gathered, name):
    return ctypes.addressof(gathered.raw(name))


class Checkpoints(unittest.TestCase):
    def test_a_run_continues_from_a_checkpoint(self):
        engine, group = vector_engine()
        other, other_group = vector_engine(start=(0, 0, 0, 0))
        with engine, other, tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            train(engine, group)
            engine.save_checkpoint(folder + "/one", trainer_state=b"epoch\0 3")
            self.assertEqual(other.load_checkpoint(folder + "/one"), b"epoch\0 3")
            for one, its in ((engine, group), (other, other_group)):
                train(one, its, 1)
            self.assertEqual(engine.hash_parameters(), other.hash_parameters())
            with self.assertRaises(headrace.Error) as raised:
                other.load_checkpoint(folder + "/none")
            self.assertIn("none", str(raised.exception))

    def test_an_engine_sleeps_and_wakes(self):
        engine, group = vector_engine()
        with engine, tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            train(engine, group)
            before = engine.hash_optimizer_state()
            engine.sleep(folder)
            with self.assertRaisesRegex(headrace.WrongState, "sleeps"):
                engine.hash_optimizer_state()
            engine.wake()
            self.assertEqual(engine.hash_optimizer_state(), before)


class Errors(unittest.TestCase):
    def test_name_what_c_would_cut(self):
        engine, _ = vector_engine()
        with engine:
            for call, words in ((lambda: engine.set_step_count("g.w", 2**64 + 5), "184467440737"),
                                (lambda: engine.save_checkpoint("ck\0other"), "NUL")):
                with self.assertRaisesRegex(ValueError, words):
                    call()
            self.assertEqual(engine.step_count("g.w"), 0)
        for parameters, name, words in (({"w": ((2**64 + 2,), "f32")}, "g", "a size of 'w'"),
                                        ({"w": ((2,), "f32")}, "g\0h", "NUL"),
                                        ({"w\0": ((2,), "f32")}, "g", "NUL")):
            with headrace.Engine() as other, self.assertRaisesRegex(ValueError, words):
                other.add_group(name, parameters)

    def test_name_a_parameter_whose_name_does_not_fit_and_the_limit(self):
        spec = ((2,), "f32")
        with headrace.Engine() as engine:
            for group, name, words in (
                    ("g", "", "a parameter of group 'g' has the name '' of 0 bytes.*1 to 1024"),
                    ("g", "\u00e4" * 513, r"'g' has the name '\u00e4{100}\.\.\.' of 1026 bytes"),
                    ("g" * 1025, "w", r"a group has the name 'g{100}\.\.\.' of 1025.*0 to 1024")):
                with self.assertRaisesRegex(ValueError, words):
                    engine.add_group(group, {"w": spec, name: spec})
            engine.add_group("", {"w" * 1024: spec})
            engine.freeze()

    def test_name_a_constant_that_is_not_known(self):
        with headrace.Engine() as engine, self.assertRaisesRegex(ValueError, "learning_rate_scal'"):
            engine.add_hyperparameters(learning_rate_scal=0.0)

    def test_are_not_needed_for_views_that_a_function_keeps(self):
        kept = []

        def fill(_name, view):
            view[0] = 1.0
            kept.append(view)

        with headrace.Engine() as engine:
            group = engine.add_group("g", {"w": ((4,), "f32")})
            engine.freeze()
            group.load(fill)
            kept[0][0] = 7.0  # its memory is Python's
            self.assertEqual(engine.store("g.w")[0], 1.0)
        self.assertEqual(kept[0][0], 7.0)

    @unittest.skipIf(np is None, "numpy is not installed")
    def test_name_arrays_of_another_shape_or_of_addresses(self):
        with headrace.Engine() as engine:
            group = engine.add_group("g", {"w": ((2, 3), "f32")})
            engine.freeze()
            other = np.arange(6, dtype=np.float32).reshape(3, 2)
            for call in (lambda: group.load({"w": other}),
                         lambda: engine.add_gradient("g.w", other),
                         lambda: engine.load_content("g.w", "exp_avg", other)):
                with self.assertRaisesRegex(ValueError, r"shape \(3, 2\).*\(2, 3\)"):
                    call()
            group.load({"w": other.reshape(-1)})
            for into in (np.zeros(3, object), np.zeros(6, np.int32), bytes(24),
                         np.zeros((3, 2), np.float32, order="F").T[:, ::2]):
                with self.assertRaisesRegex(ValueError, "Nothing was stored"):
                    engine.store("g.w", into=into)

    def test_in_settings_name_what_was_given(self):
        for give, words in (
                (lambda: headrace.Engine({"headrace": {"a": 1, "b": 2}}),
                 r"^settings: headrace.a: unknown key.*\nsettings: headrace.b: "),
                (lambda: headrace.Engine({"headrace": {"a": float("nan")}}), "^settings: not JSON"),
                (lambda: headrace.Engine({"headrace": {1j}}), "cannot be written as JSON: {1j}"),
                (lambda: headrace.Engine(nvme=""), "^nvme is ''; nothing was made"),
                (lambda: headrace.Engine(nvme=5), "^nvme is 5; nothing was made")):
            with self.assertRaisesRegex(ValueError, words):
                give()
        with tempfile.NamedTemporaryFile("w", dir=FOLDER, suffix=".json") as file:
            file.write('{\n"headrace": {"a": 1}}')
            file.flush()
            with self.assertRaisesRegex(ValueError, f"^{file.name}:2:14: headrace.a: unknown"):
                headrace.Engine(file.name)
        with self.assertLogs("headrace", "WARNING") as logged:
            with headrace.Engine({"wall_clock_breakdown": True}) as engine:
                engine.add_group("g", {"w": ((4,), "f32")})
                engine.freeze()
        self.assertIn("settings: no effect here: wall_clock_breakdown", logged.output[0])

    def test_are_not_needed_for_paths_in_settings(self):
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            place = {"device": "nvme", "nvme_path": pathlib.Path(folder)}
            with headrace.Engine({"zero_optimization": {"offload_optimizer": place}}) as engine:
                self.assertEqual(engine.settings()["headrace"]["nvme_paths"], [folder])

    def test_name_what_is_no_number(self):
        engine, _ = vector_engine()
        with engine:
            for call, name in ((lambda: engine.step("0.1"), "learning_rate"),
                               (lambda: engine.step(None), "learning_rate"),
                               (lambda: engine.set_step_count("g.w", "1"), "set_step_count")):
                with self.assertRaisesRegex(ValueError, f"{name} is .*Give a number"):
                    call()
        with headrace.Engine() as other, self.assertRaisesRegex(ValueError, "beta1 is 'x'"):
            other.add_hyperparameters(beta1="x")

    def test_name_shapes_overrides_and_gpus_that_are_none(self):
        with headrace.Engine() as engine:
            for given in ((4, "f32"), ((4,), ["f32"])):
                with self.assertRaisesRegex(ValueError, "nothing was added"):
                    engine.add_group("g", {"w": given})
        with self.assertRaisesRegex(ValueError, "overrides is the text"):
            headrace.Engine(overrides="x")
        with self.assertRaisesRegex(ValueError, "gpu is 'x'"):
            headrace.Engine(gpu="x")

    def test_are_built_ins_too(self):
        for kind, builtin in (("ArgumentError", ValueError), ("ConfigError", ValueError),
                              ("NotFound", KeyError), ("OutOfBudget", MemoryError),
                              ("IoError", OSError), ("NoSuchFile", FileNotFoundError),
                              ("NoSpace", OSError), ("IoStalled", TimeoutError),
                              ("NotFinite", FloatingPointError), ("PeerLost", ConnectionError),
                              ("Unsupported", NotImplementedError)):
            error = getattr(headrace, kind)("the text", 3, 28)
            self.assertIsInstance(error, builtin)
            self.assertIsInstance(error, headrace.Error)
            self.assertEqual((str(error), error.code, error.errno), ("the text", 3, 28), kind)

    def test_come_with_the_text_of_the_library(self):
        engine, _ = vector_engine()
        with engine:
            with self.assertRaisesRegex(KeyError, "^no parameter is named 'g.v'"):
                engine.store("g.v")
            engine.add_gradient("g.w", floats(1, float("nan"), 0, 0), "f32")
            self.assertEqual(engine.gradient_statistics("g.w").non_finite, 1)
            with self.assertRaisesRegex(FloatingPointError, "g.w"):
                engine.step()
            engine.discard_gradients()
        with self.assertRaisesRegex(headrace.WrongState, "closed"):
            engine.stats()
        with self.assertRaisesRegex(ValueError, "zero_optimisation"):
            headrace.Engine({"zero_optimisation": {}})
        with self.assertRaisesRegex(ValueError, "both settings and nvme"):
            headrace.Engine({}, nvme=FOLDER)

    def test_name_the_path_that_is_missing(self):
        engine = headrace.Engine(nvme=FOLDER + "/none")
        with engine:
            engine.add_group("g", {"w": ((4,), "f32")})
            with self.assertRaises(FileNotFoundError) as raised:
                engine.freeze()
            self.assertIn(FOLDER + "/none", str(raised.exception))
            self.assertEqual(raised.exception.errno, 2)

    def test_of_a_drive_without_room_have_its_errno(self):
        """Also those of a plan, which no system call has refused."""
        for given, expected in ((0, errno.ENOSPC), (errno.EDQUOT, errno.EDQUOT)):
            error = error_of(7, given, "no room")
            self.assertIsInstance(error, headrace.NoSpace)
            self.assertEqual((error.errno, str(error)), (expected, "no room"))

    def test_a_budget_that_is_too_small_is_a_memory_error(self):
        settings = {**on_nvme(FOLDER), "headrace": {"host_budget_bytes": 1000}}
        with headrace.Engine(settings) as engine:
            engine.add_group("g", {"w": ((1 << 20,), "f32")})
            with self.assertRaises(MemoryError):
                engine.freeze()


class Life(unittest.TestCase):
    def test_copies_are_refused_by_name(self):
        with headrace.Engine() as engine:
            for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "headrace.Engine cannot be copied"):
                    attempt(engine)

    def test_a_thousand_engines_leave_nothing_behind(self):
        for _ in range(1000):
            headrace.Engine()  # no close: the collector ends it
        gc.collect()
        engines = [headrace.Engine() for _ in range(256)]  # as many as a process may have
        for engine in engines:
            engine.close()

    def test_a_child_is_refused_and_the_parent_goes_on(self):
        engine, group = vector_engine()
        with engine:
            child = os.fork()
            if child == 0:
                try:
                    engine.hash_parameters()
                except headrace.WrongState as error:
                    os._exit(0 if "forked child" in str(error) else 1)
                os._exit(2)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            train(engine, group)

    def test_a_process_may_end_with_an_open_engine(self):
        text = ("import headrace\ne = headrace.Engine()\ng = e.add_group('g', {'w': ((4,), 'f32')})"
                "\ne.freeze()\ng.load(lambda n, v: None)\nheld = g.gather()\nview = held['w']\n"
                "e.add_gradient('g.w', bytes(16), 'f32')")
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True,
                              check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_process_may_end_with_updates_pending(self):
        text = ("import headrace, sys\ne = headrace.Engine(%r)\n"
                "g = e.add_group('g', {'w': ((1 << 20,), 'f32')})\ne.freeze()\n"
                "g.load(lambda n, v: None)\ne.add_gradient('g.w', bytes(1 << 22), 'f32')\n"
                "e.step()\nsys.exit(3)")
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
            settings = {**on_nvme(folder), "headrace": {"update_mode": "defer"}}
            done = subprocess.run([sys.executable, "-c", text % settings], capture_output=True,
                                  text=True, check=False, timeout=60)
            self.assertEqual(done.returncode, 3)
            self.assertNotRegex(done.stderr, "rror|ignored|Traceback")  # beside the advice
            self.assertEqual([file for file in pathlib.Path(folder).rglob("*")
                              if file.is_file()], [])

    def test_lines_go_to_logging_and_warnings_to_stderr_where_it_is_not_configured(self):
        text = ("import headrace\ne = headrace.Engine({'dump_state': True})\n"
                "e.add_group('g', {'w': ((4,), 'f32')})\ne.freeze()")
        for first, seen in (("", True), ("import logging\nlogging.basicConfig(level=50)\n", False)):
            done = subprocess.run([sys.executable, "-c", first + text], capture_output=True,
                                  text=True, check=False)
            self.assertEqual((done.returncode, "dump_state" in done.stderr), (0, seen))
        with self.assertLogs("headrace", logging.WARNING) as logged:
            with headrace.Engine({"dump_state": True}) as engine:
                engine.add_group("g", {"w": ((4,), "f32")})
                engine.freeze()
        self.assertIn("dump_state", logged.output[0])

    def test_show_config_names_library_and_packages(self):
        shown = headrace.show_config()
        self.assertEqual(shown["headrace"], headrace.__version__)
        self.assertEqual(shown["library"], os.environ["HEADRACE_LIBRARY"])
        self.assertIn("torch", shown)

    def test_a_library_that_is_missing_is_an_import_error_that_says_so(self):
        done = subprocess.run([sys.executable, "-c", "import headrace"], capture_output=True,
                              text=True, check=False,
                              env={**os.environ, "HEADRACE_LIBRARY": "/none/libheadrace.so"})
        self.assertIn("ImportError", done.stderr)
        self.assertIn("set HEADRACE_LIBRARY", done.stderr)


class CtrlC(unittest.TestCase):
    """SIGINT with Python's own handler, and with one that returns."""

    def test_in_a_function_that_the_engine_calls_ends_the_call(self):
        engine = headrace.Engine()
        with engine:
            group = engine.add_group("g", {"a": ((4,), "f32"), "b": ((4,), "f32")})
            engine.freeze()
            seen = []

            def fill(name, _values):
                seen.append(name)
                signal.raise_signal(signal.SIGINT)

            with self.assertRaises(KeyboardInterrupt):
                group.load(fill)
            self.assertEqual(seen, ["a"])
            group.load({"a": floats(*START), "b": floats(*START)})
            self.assertEqual(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_in_a_wait_ends_the_call_and_not_the_engine(self):
        """Sends the signal until a call has ended early: before that, the handler returns."""
        ended, stop = [], threading.Event()
        original, handler = _library.call, signal.getsignal(signal.SIGINT)

        def watched(name, *arguments):
            try:
                original(name, *arguments)
            except headrace.Interrupted:
                ended.append(name)
                raise

        def on_signal(*_arguments):
            if ended and not stop.is_set():  # once: the next may come after the call
                stop.set()
                raise KeyboardInterrupt

        def send():
            while not stop.wait(0.001):
                os.kill(os.getpid(), signal.SIGINT)

        settings = {"headrace": {"tile_elements": 65536}}
        engine, _ = vector_engine(settings, 1 << 22, [0.5] * (1 << 22))
        before = engine.hash_parameters()
        _library.call = watched
        signal.signal(signal.SIGINT, on_signal)
        sender = threading.Thread(target=send)
        sender.start()
        try:
            with self.assertRaises(KeyboardInterrupt):
                while True:
                    engine.hash_parameters()
        finally:
            stop.set()
            sender.join()
            _library.call = original
            signal.signal(signal.SIGINT, handler)
        self.assertEqual(ended, ["engine_hash_parameters"])
        self.assertEqual(engine.hash_parameters(), before)
        engine.close()


if __name__ == "__main__":
    # A shell that runs this in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    FOLDER = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
