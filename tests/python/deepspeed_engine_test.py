# SPDX-License-Identifier: Apache-2.0
"""deepspeed_engine_test.py FOLDER: headrace's engine behind deepspeed.initialize(), by itself, and
in Hugging Face's Trainer where it and DeepSpeed are installed. FOLDER lies on a drive. With
HEADRACE_TEST_DEVICE=cuda, models train on a GPU."""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
import unittest.mock
import warnings

sys.dont_write_bytecode = True
import headrace  # noqa: E402

if importlib.util.find_spec("torch") is None:
    print("torch is not installed")
    sys.exit(77)
import torch  # noqa: E402

import headrace.deepspeed  # noqa: E402
import headrace.torch  # noqa: E402
from headrace.deepspeed._on_import import when_imported  # noqa: E402
from headrace.torch.offload import _trainer_state  # noqa: E402
from headrace.torch.offload._building import folder_of  # noqa: E402
from headrace.deepspeed.zero import GatheredParameters, Init  # noqa: E402

DEVICE = os.environ.get("HEADRACE_TEST_DEVICE", "cpu")
os.environ.setdefault("DS_ACCELERATOR", DEVICE)
HAS_TRAINER = all(importlib.util.find_spec(name)
                  for name in ("deepspeed", "transformers", "accelerate"))


def model_of(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())
                                 for _ in range(3))).to(dtype)


def batch_of(number, dtype=torch.float32):
    return torch.randn(4, 32, generator=torch.Generator().manual_seed(number)).to(DEVICE, dtype)


class Engines(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def config(self, place="nvme", **more):
        at = {"device": place, "nvme_path": self.folder}
        return {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
                "gradient_clipping": 0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
                "zero_optimization": {"stage": 3, "offload_optimizer": at, "offload_param": at},
                **more}

    def engine(self, model=None, **more):
        config = self.config(**more.pop("config", {}))
        made = headrace.deepspeed.initialize(
            model=model_of() if model is None else model, config=config, **more)
        self.addCleanup(made[0].destroy)
        return made[0]

    @staticmethod
    def train(engine, numbers, dtype=torch.float32):
        """Micro-batches; the losses."""
        losses = []
        for number in numbers:
            loss = (engine(batch_of(number, dtype)) - 1).float().pow(2).mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        return losses

    def weights(self, engine):
        return {name: value.clone() for name, value in engine.module.state_dict().items()}

    def assert_same(self, one, other):
        self.assertEqual(one.keys(), other.keys())
        for name, value in one.items():
            self.assertTrue(torch.equal(value.cpu(), other[name].cpu()), name)


class Training(Engines):
    def test_is_bit_equal_on_a_drive_in_memory_and_to_a_plain_loop(self):
        schedule = {"type": "LinearLR", "params": {"start_factor": 0.5, "total_iters": 3}}
        on_drive = self.engine(config={"scheduler": schedule})
        in_memory = self.engine(config={"scheduler": schedule, "place": "cpu"})
        losses = self.train(on_drive, range(8))
        self.assertEqual(self.train(in_memory, range(8)), losses)
        self.assert_same(self.weights(on_drive), self.weights(in_memory))

        model, plain = model_of().to(DEVICE), []
        optimizer = headrace.torch.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        rate = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=3)
        for number in range(8):
            loss = (model(batch_of(number)) - 1).pow(2).mean()
            (loss / 2).backward()
            plain.append(loss.item())
            if number % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
                rate.step()
        self.assertEqual(plain, losses)
        self.assertEqual(on_drive.get_lr(), rate.get_last_lr())
        self.assertEqual((on_drive.global_steps, on_drive.micro_steps, on_drive.global_samples),
                         (4, 8, 32))

    def test_clips_by_the_norm_it_reports_and_by_one_where_nothing_is_said(self):
        said, unsaid = self.config(gradient_clipping=1.0), self.config()
        del unsaid["gradient_clipping"]
        weights = []
        for config in (said, unsaid, self.config()):
            engine = headrace.deepspeed.initialize(model=model_of(), config=config)[0]
            self.addCleanup(engine.destroy)
            for number in range(2):
                engine.backward(100 * (engine(batch_of(number)) - 1).pow(2).mean())
                engine.step()
            self.assertGreater(float(engine.get_global_grad_norm()), 1.0)
            weights.append(self.weights(engine))
        self.assert_same(weights[0], weights[1])
        self.assertFalse(torch.equal(weights[0]["0.0.weight"], weights[2]["0.0.weight"]))

    def test_says_which_clipping_holds_where_none_is_given(self):
        for given in (None, 0, 0.5):
            config = self.config(gradient_clipping=given)
            with self.assertLogs("headrace", "INFO") as logged:
                engine = headrace.deepspeed.initialize(model=model_of(), config=config)[0]
            self.addCleanup(engine.destroy)
            lines = [record.getMessage() for record in logged.records
                     if "gradient_clipping" in record.getMessage()]
            self.assertEqual(len(lines), given is None, lines)
            for line in lines:
                self.assertRegex(line, "^gradient_clipping is not given: 1.0 holds")

    def test_takes_constants_that_say_what_it_does_anyway(self):
        params = {"lr": 1e-2, "weight_decay": 0.0, "torch_adam": True, "bias_correction": True,
                  "fused": True}
        with self.assertLogs("headrace", "WARNING") as logged:
            engine = self.engine(config={"optimizer": {"type": "AdamW", "params": params}})
        self.assertRegex(logged.output[0], "no effect here: optimizer.params.fused = true")
        plain = self.engine()
        self.assertEqual(self.train(engine, range(4)), self.train(plain, range(4)))

    @unittest.skipIf(DEVICE != "cpu", "on a GPU, there is something to copy")
    def test_says_where_checkpoints_are_on_the_cpu_and_that_there_are_none(self):
        config = {"activation_checkpointing": {"cpu_checkpointing": True}}
        with self.assertWarnsRegex(UserWarning, "cpu_checkpointing.*in host memory already"):
            engine = self.engine(config=config)
        with self.assertWarnsRegex(UserWarning, "no torch.utils.checkpoint ran"):
            self.train(engine, range(2))

    def test_converts_to_bf16_and_sums_micro_batches_in_f32(self):
        engine = self.engine(config={"bf16": {"enabled": True}})
        self.assertEqual(next(engine.module.parameters()).dtype, torch.bfloat16)
        losses = self.train(engine, range(16), torch.bfloat16)
        self.assertLess(losses[-1], losses[0])

    def test_scales_the_loss_in_fp16_wherever_the_state_is(self):
        runs = []
        for place in ("nvme", "none"):
            at = {"device": place, **({"nvme_path": self.folder} if place == "nvme" else {})}
            engine = self.engine(config={
                "fp16": {"enabled": True, "loss_scale": 128},
                "zero_optimization": {"stage": 3, "offload_optimizer": at, "offload_param": at}})
            self.assertEqual(next(engine.module.parameters()).dtype, torch.float16)
            self.assertTrue(engine.fp16_enabled())
            self.assertEqual((engine.loss_scale(), engine.dynamic_loss_scale()), (128, False))
            losses = self.train(engine, range(16), torch.float16)
            self.assertLess(losses[-1], losses[0])
            runs.append((losses, float(engine.get_global_grad_norm())))
        self.assertEqual(runs[0], runs[1])
        unscaled = self.engine(config={"fp16": {"enabled": True, "loss_scale": 1}})
        self.train(unscaled, range(16), torch.float16)
        self.assertAlmostEqual(float(unscaled.get_global_grad_norm()) / runs[0][1], 1, delta=0.05)

    def test_lowers_and_raises_a_dynamic_scale_and_resumes_it(self):
        config = {"gradient_accumulation_steps": 1, "fp16": {
            "enabled": True, "initial_scale_power": 26, "loss_scale_window": 2, "hysteresis": 2}}
        engine = self.engine(config=config)
        before = self.weights(engine)
        scales = []
        while engine.skipped_steps == engine.global_steps:
            scales.append(engine.loss_scale())
            self.train(engine, range(1), torch.float16)
            if engine.skipped_steps == engine.global_steps:
                self.assertFalse(engine.was_step_applied())
                self.assert_same(before, self.weights(engine))
        # One step more at the first, which hysteresis pays for.
        self.assertEqual(scales[1:], [2.0 ** (26 - one) for one in range(len(scales) - 1)])
        self.assertGreater(len(scales), 2)
        self.train(engine, range(1, 3), torch.float16)
        engine.save_checkpoint(self.folder + "/scaled")
        other = self.engine(config=config)
        other.load_checkpoint(self.folder + "/scaled")
        self.assertEqual(other.loss_scale(), engine.loss_scale())
        for one in (engine, other):
            self.train(one, range(3, 6), torch.float16)
        self.assertEqual(other.loss_scale(), engine.loss_scale())
        self.assert_same(self.weights(engine), self.weights(other))

    def test_refuses_a_loss_that_was_not_scaled_in_fp16_or_twice(self):
        config = {"fp16": {"enabled": True, "loss_scale": 64}}
        norms = []
        for by_engine in (True, False):
            engine = self.engine(config=config)
            for number in range(2):
                loss = (engine(batch_of(number, torch.float16)) - 1).float().pow(2).mean()
                if by_engine:
                    engine.backward(loss)
                else:
                    engine.scale(loss).backward()
                engine.step()
            norms.append(float(engine.get_global_grad_norm()))
        self.assertEqual(norms[0], norms[1])
        before = self.weights(engine)
        loss = engine(batch_of(2, torch.float16)).float().pow(2).mean()
        with self.assertRaisesRegex(RuntimeError, "scaled twice"):
            engine.backward(engine.scale(loss))
        engine = self.engine(config=config)
        engine(batch_of(2, torch.float16)).float().pow(2).mean().backward()
        with self.assertRaisesRegex(RuntimeError, "a loss that was not scaled"):
            engine.step()
        engine.zero_grad()
        self.train(engine, range(2), torch.float16)
        self.assertEqual(before.keys(), self.weights(engine).keys())

    def test_refuses_an_unscaled_pass_beside_a_scaled_one_and_after_zero_grad(self):
        engine = self.engine(config={"fp16": {"enabled": True, "loss_scale": 64}})

        def loss(number):
            return engine(batch_of(number, torch.float16)).float().pow(2).mean()

        def refused():
            with self.assertRaisesRegex(headrace.WrongState, "a loss that was not scaled"):
                engine.step()
            engine.zero_grad()

        engine.backward(loss(0))
        loss(1).backward()
        refused()
        loss(0).backward()
        engine.backward(loss(1))
        refused()
        engine.backward(loss(0))
        engine.zero_grad()
        loss(1).backward()
        refused()
        engine.scale(loss(0))  # and no backward pass of it
        loss(1).backward()
        refused()
        for drop in (engine.zero_grad, engine.optimizer.zero_grad, engine.module.zero_grad):
            loss(0).backward()
            drop()
            self.train(engine, range(2), torch.float16)
        self.assertEqual(engine.global_steps, 3)

    def test_knows_scaled_passes_that_checkpoints_or_errors_are_in(self):
        class Checkpointed(torch.nn.Sequential):
            def forward(self, x):
                for layer in self:
                    x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True)
                return x

        engine = self.engine(Checkpointed(*model_of()),
                             config={"fp16": {"enabled": True, "loss_scale": 64}})

        def loss(number):
            x = batch_of(number, torch.float16).requires_grad_()
            return engine(x).float().pow(2).mean()

        def fail(_gradient):
            raise ArithmeticError

        for number in range(2):
            engine.backward(loss(number))
            engine.step()
        self.assertEqual(engine.global_steps, 1)
        failing = loss(0)
        failing.register_hook(fail)
        other = loss(1)
        with self.assertRaises(ArithmeticError):
            engine.backward(failing)
        other.backward()
        with self.assertRaisesRegex(headrace.WrongState, "a loss that was not scaled"):
            engine.step()

    def test_a_step_without_gradients_is_no_overflow(self):
        schedule = {"type": "StepLR", "params": {"step_size": 1}}
        engine = self.engine(config={"gradient_accumulation_steps": 1, "scheduler": schedule,
                                     "fp16": {"enabled": True, "hysteresis": 1}})
        before, scale, rate = self.weights(engine), engine.loss_scale(), engine.get_lr()
        for _ in range(3):
            engine.step()
        self.assertFalse(engine.was_step_applied())
        self.assertEqual((engine.skipped_steps, engine.global_steps), (0, 3))
        self.assertEqual((engine.loss_scale(), engine.get_lr()), (scale, rate))
        self.assert_same(before, self.weights(engine))

    def test_ends_at_the_least_scale(self):
        engine = self.engine(config={"gradient_accumulation_steps": 1, "fp16": {
            "enabled": True, "initial_scale_power": 26, "min_loss_scale": 2.0 ** 25,
            "hysteresis": 1}})
        with self.assertRaisesRegex(FloatingPointError, "smallest loss scale.*min_loss_scale"):
            self.train(engine, range(4), torch.float16)

    def test_takes_auto_for_the_dtype_of_the_model(self):
        auto = {"enabled": "auto"}
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            engine = self.engine(model_of(dtype), config={"bf16": auto, "fp16": auto})
            self.train(engine, range(2), dtype)
            self.assertEqual({one.dtype for one in engine.module.parameters()}, {dtype})

    def test_tells_a_plateaus_schedule_the_loss_of_the_program(self):
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau
        engine = self.engine(lr_scheduler=lambda made: schedule(made, factor=0.5, patience=0))
        for number in range(2):
            engine.backward((engine(batch_of(number)) - 1).pow(2).mean())
            if number == 0:
                engine.step()
        before = self.weights(engine)
        with self.assertRaisesRegex(ValueError, r"nothing was updated.*lr_kwargs=.*yourself"):
            engine.step()
        self.assert_same(before, self.weights(engine))
        engine.step(lr_kwargs={"metrics": 1.0})
        self.train(engine, [2])
        engine.backward((engine(batch_of(3)) - 1).pow(2).mean())
        engine.step(lr_kwargs={"metrics": 2.0})
        self.assertEqual((engine.global_steps, engine.get_lr()), (2, [5e-3]))

    def test_takes_a_programs_optimizer_with_its_groups_and_schedule(self):
        model = model_of()
        parameters = list(model.parameters())
        groups = [{"params": parameters[:2], "weight_decay": 0.1},
                  {"params": parameters[2:], "name": "of the program"}]
        given = torch.optim.AdamW(groups, lr=1e-2)
        rate = torch.optim.lr_scheduler.LambdaLR(given, lambda step: 1 / (1 + step))
        engine, optimizer, loader, schedule = headrace.deepspeed.initialize(
            model=model, optimizer=given, lr_scheduler=rate, config=self.config(),
            training_data=list(range(9)))
        self.addCleanup(engine.destroy)
        self.assertEqual([group["weight_decay"] for group in optimizer.param_groups], [0.1, 0.01])
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch's, about a schedule before the first step
            self.train(engine, range(4))
        self.assertIs(schedule, rate)
        self.assertEqual(engine.get_lr(), [1e-2 * (1 / 3)] * 2)
        self.assertEqual([len(batch) for batch in loader], [4, 4, 1])

    def test_follows_a_schedule_of_the_programs_that_it_was_not_given(self):
        model = model_of()
        given = torch.optim.Adam(model.parameters(), lr=1e-2, decoupled_weight_decay=True,
                                 weight_decay=0.5)
        parts = [torch.optim.lr_scheduler.ConstantLR(given, 0.5, 2),
                 torch.optim.lr_scheduler.ExponentialLR(given, 0.5)]
        rate = torch.optim.lr_scheduler.SequentialLR(given, parts, [2])
        engine = self.engine(model, optimizer=given)
        self.assertEqual(type(engine.optimizer).__name__, "ModelAdamW")
        seen = []
        for _ in range(4):
            self.train(engine, range(2))
            seen.append(engine.get_lr()[0])
            rate.step()
        self.assertEqual(seen, [0.005, 0.005, 0.01, 0.005])

    def test_takes_no_model_without_modules_in_it(self):
        with self.assertRaisesRegex(ValueError, "^the model is a single Linear"):
            self.engine(torch.nn.Linear(3, 3))
        model = torch.nn.Sequential(torch.nn.Linear(3, 3))
        engine = self.engine(model)
        engine.backward(engine(torch.ones(1, 3)).sum())
        engine.step()

    def test_takes_the_rule_that_the_groups_of_torchs_have(self):
        for kind in (torch.optim.Adam, torch.optim.AdamW):
            for decoupled in (False, True):
                model = model_of()
                given = kind(model.parameters(), lr=1e-2)
                given.param_groups[0]["decoupled_weight_decay"] = decoupled
                engine = self.engine(model, optimizer=given)
                self.assertEqual(type(engine.optimizer).__name__,
                                 "ModelAdamW" if decoupled else "ModelAdam")
                engine.destroy()
            model = model_of()
            given = kind([{"params": [one]} for one in model.parameters()])
            given.param_groups[0]["decoupled_weight_decay"] = kind is torch.optim.Adam
            words = f"^some groups of the {kind.__name__} have"
            with self.assertRaisesRegex(NotImplementedError, words):
                self.engine(model, optimizer=given)

    def test_follows_a_schedule_of_an_optimizer_whose_groups_the_given_one_has(self):
        for is_given in (False, True):
            model = model_of()
            first = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=False)
            rate = torch.optim.lr_scheduler.LambdaLR(first, lambda step: step / 4)
            given = torch.optim.AdamW(first.param_groups)  # as Accelerate makes another kind
            engine = self.engine(model, optimizer=given, lr_scheduler=rate if is_given else None)
            before = self.weights(engine)
            self.train(engine, range(2))
            self.assert_same(before, self.weights(engine))  # the rate was 0
            engine.optimizer.load_state_dict(engine.optimizer.state_dict())
            if not is_given:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch's: first.step() was not called
                    rate.step()
            self.assertEqual(engine.optimizer.param_groups[0]["lr"], 2.5e-3)
            self.train(engine, range(2))
            self.assertFalse(torch.equal(before["0.0.weight"], self.weights(engine)["0.0.weight"]))

    def test_takes_what_is_loaded_into_an_optimizer_that_it_was_given(self):
        for with_first in (False, True):
            model = model_of()
            first = given = torch.optim.AdamW(model.parameters(), lr=1e-2)
            rate = torch.optim.lr_scheduler.LambdaLR(first, lambda _: 1.0)
            if with_first:  # as Accelerate does
                given = torch.optim.AdamW(first.param_groups)
            engine = self.engine(model, optimizer=given, lr_scheduler=rate)
            self.train(engine, range(2))
            before = self.weights(engine)
            for one in (first, given):
                saved = one.state_dict()
                saved["param_groups"][0].update(weight_decay=0.5, of_the_program=1)
                one.load_state_dict(saved)
                self.assertEqual(engine.optimizer.param_groups[0]["weight_decay"], 0.5)
                one.param_groups[0].update(lr=0.0, weight_decay=0.0)
            rate.base_lrs = [0.0]
            self.train(engine, range(2))
            self.assert_same(before, self.weights(engine))  # the rate was 0
            saved["param_groups"][0].pop("of_the_program")
            one.load_state_dict(saved)
            self.assertNotIn("of_the_program", engine.optimizer.param_groups[0])

    def test_refuses_what_would_not_reach_training_of_an_optimizer_that_it_was_given(self):
        model = model_of()
        given = torch.optim.AdamW(model.parameters(), lr=1e-2)
        engine = self.engine(model, optimizer=given)
        self.train(engine, range(2))
        new = torch.nn.Parameter(torch.zeros(3))
        with self.assertRaisesRegex(NotImplementedError, "from the start; nothing was added"):
            given.add_param_group({"params": [new]})
        self.assertEqual(len(given.param_groups), 1)
        saved = given.state_dict()
        stepped = {**saved, "state": {0: {"step": torch.tensor(1.0)}}}
        with self.assertRaisesRegex(ValueError, "in headrace's engine; nothing was loaded"):
            given.load_state_dict(stepped)
        for key, value, text in (("amsgrad", True, "amsgrad=True.*nothing was loaded"),
                                 ("decoupled_weight_decay", False, "of another rule; nothing")):
            other = {**saved, "param_groups": [{**saved["param_groups"][0], key: value}]}
            with self.assertRaisesRegex((ValueError, NotImplementedError), text):
                given.load_state_dict(other)
        for change in (lambda: given.param_groups.append({"params": [new], "lr": 1.0}),
                       lambda: setattr(given, "param_groups", [dict(given.param_groups[0])])):
            groups, before = given.param_groups, self.weights(engine)
            change()
            with self.assertRaisesRegex(headrace.WrongState, "when training began.*was updated"):
                self.train(engine, range(2))
            given.param_groups = groups
            del groups[1:]
            self.assert_same(before, self.weights(engine))
            engine.zero_grad()
        self.train(engine, range(2))
        engine.destroy()
        given.load_state_dict(stepped)  # it is the program's alone
        given.add_param_group({"params": [new]})

    def test_takes_an_adagrad_which_has_state_from_the_start(self):
        model = model_of()
        engine = self.engine(model, optimizer=torch.optim.Adagrad(model.parameters(), lr=1e-2))
        losses = self.train(engine, [0] * 8)
        self.assertLess(losses[-1], losses[0])

    def test_begins_a_step_anew_after_one_that_was_refused(self):
        engine = self.engine()
        engine.backward(engine(batch_of(0)).mean() * float("nan"))
        engine.step()
        engine.backward(engine(batch_of(1)).mean())
        with self.assertRaises(headrace.NotFinite):
            engine.step()
        engine.zero_grad()
        self.train(engine, [2])
        self.assertFalse(engine.was_step_applied())
        self.train(engine, [3])
        self.assertTrue(engine.was_step_applied())

    def test_skips_a_step_that_is_not_finite_where_the_config_says_so(self):
        schedule = {"type": "StepLR", "params": {"step_size": 1}}
        engine = self.engine(config={"headrace": {"non_finite": "skip"}, "scheduler": schedule})
        self.train(engine, range(2))
        before, rate = self.weights(engine), engine.get_lr()
        engine.backward(engine(batch_of(0)).mean() * float("nan"))
        engine.step()
        engine.backward(engine(batch_of(0)).mean())
        engine.step()
        self.assertFalse(engine.was_step_applied())
        self.assertEqual((engine.skipped_steps, engine.get_lr()), (1, rate))
        self.assert_same(before, self.weights(engine))
        self.train(engine, range(2))
        self.assertTrue(engine.was_step_applied())

    def test_without_an_optimizer_computes_and_refuses_to_train(self):
        config = self.config()
        del config["optimizer"]
        model = model_of()
        expected = model.to(DEVICE)(batch_of(0))
        engine, optimizer, *_ = headrace.deepspeed.initialize(model=model, config_params=config)
        self.addCleanup(engine.destroy)
        self.assertIsNone(optimizer)
        self.assertTrue(torch.equal(engine(batch_of(0)), expected))
        with self.assertRaisesRegex(headrace.WrongState, "without an optimizer"):
            engine.backward(engine(batch_of(0)).mean())

    def test_ends_with_a_model_of_torchs_own(self):
        engine = self.engine()
        self.train(engine, range(2))
        weights, model = self.weights(engine), engine.module
        engine.destroy()
        engine.destroy()  # as often as a program likes
        for call in (engine.step, lambda: engine.backward(model(batch_of(0)).mean()),
                     lambda: engine.load_checkpoint(self.folder), engine.optimizer.step):
            with self.assertRaisesRegex(headrace.WrongState, "destroy.*deepspeed.initialize"):
                call()
        self.assert_same(weights, model.state_dict())
        self.assertEqual([name for name in os.listdir(self.folder) if "headrace" in name], [])

    def test_ends_with_the_parameters_that_the_program_has_put_into_the_model(self):
        class Framed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(model_of())
                self.first, self.last = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

            def forward(self, x):
                return self.last(torch.nn.Sequential(self.first, *self.layers)(x))

        for into, of in (("first", "last"), ("last", "first")):
            engine = self.engine(Framed())
            self.train(engine, range(2))
            weights, model = self.weights(engine), engine.module
            own = dict(model.named_parameters())
            getattr(model, into).weight = getattr(model, of).weight
            with self.assertRaisesRegex(headrace.WrongState, "another tensor.*restore"):
                engine(batch_of(0))
            engine.destroy()
            self.assertIs(model.first.weight, model.last.weight)
            self.assert_same(weights, own)
            model(batch_of(0)).mean().backward()


class Questions(Engines):
    def test_have_the_answers_of_deepspeeds_engine(self):
        engine = self.engine()
        self.assertEqual((engine.get_lr(), engine.get_mom()), ([1e-2], [(0.9, 0.999)]))
        self.assertEqual((engine.loss_scale(), engine.dynamic_loss_scale()), (1.0, False))
        self.assertEqual((engine.fp16_enabled(), engine.bfloat16_enabled()), (False, False))
        self.assertEqual((engine.world_size, engine.global_rank, engine.local_rank), (1, 0, 0))
        self.assertIsNone(engine.steps_per_print())
        loss = engine(batch_of(0)).mean()
        self.assertEqual(engine.scale(loss).item(), loss.item() / 2)  # micro-batches in a step
        engine.empty_partition_cache()
        with engine.no_sync():
            engine.backward(loss)
        model = model_of()
        engine = self.engine(model, optimizer=torch.optim.SGD(model.parameters(), momentum=0.5))
        self.assertEqual(engine.get_mom(), [0.5])
        self.assertTrue(self.engine(config={"bf16": {"enabled": True}}).bfloat16_enabled())

    def test_of_the_weights_leave_out_what_is_frozen(self):
        model = model_of()
        model[0].requires_grad_(False)
        engine = self.engine(model)
        self.assert_same(engine.module_state_dict(), self.weights(engine))
        trained = engine.module_state_dict(prefix="m.", exclude_frozen_parameters=True)
        self.assertEqual(sorted(trained), ["m.1.0.bias", "m.1.0.weight", "m.2.0.bias",
                                           "m.2.0.weight"])

    def test_set_the_batch_between_steps(self):
        engine = self.engine()
        engine.set_train_batch_size(12)
        self.assertEqual((engine.gradient_accumulation_steps(), engine.train_batch_size()), (3, 12))
        self.train(engine, range(5))
        self.assertEqual(engine.global_steps, 1)
        with self.assertRaisesRegex(headrace.WrongState, "after 2 of 3 micro-batches"):
            engine.set_train_batch_size(4)
        self.train(engine, range(1))
        with self.assertRaisesRegex(ValueError, "no multiple of the micro-batch of 4"):
            engine.set_train_batch_size(6)
        engine.set_train_batch_size(4)
        engine.set_train_micro_batch_size(2)
        self.assertEqual((engine.train_micro_batch_size_per_gpu(), engine.train_batch_size()),
                         (2, 2))
        self.train(engine, range(1))
        self.assertEqual(engine.global_steps, 3)
        engine = self.engine(config={"bf16": {"enabled": True}, "gradient_accumulation_steps": 1})
        with self.assertRaisesRegex(NotImplementedError, "gradient_accumulation_steps of 2 or"):
            engine.set_train_batch_size(8)

    def test_that_have_no_answer_are_refused_with_what_helps(self):
        engine = self.engine()
        engine.module.extra = 5
        self.assertEqual(engine.extra, 5)
        for name, text in (("load_module_state_dict", r"module.load_state_dict\(\)"),
                           ("offload_states", "sleep"), ("zero_reduce_scatter", "docs/python.md")):
            self.assertFalse(hasattr(engine, name))
            with self.assertRaisesRegex(AttributeError,
                                        f"engine nor its Sequential has '{name}'.*{text}"):
                getattr(engine, name)


class Checkpoints(Engines):
    def test_continue_with_the_same_bits(self):
        schedule = {"type": "LinearLR", "params": {"start_factor": 0.1, "total_iters": 8}}
        engine = self.engine(config={"scheduler": schedule})
        self.train(engine, range(4))
        self.assertTrue(engine.save_checkpoint(self.folder + "/run", client_state={"row": [5]}))
        rest = self.train(engine, range(4, 8))

        other = self.engine(config={"scheduler": schedule, "place": "cpu"})
        self.train(other, range(6))  # another state than the one that is loaded
        path, client_state = other.load_checkpoint(self.folder + "/run")
        self.assertEqual((path, client_state), (self.folder + "/run/global_step2", {"row": [5]}))
        self.assertEqual((other.global_steps, other.micro_steps), (2, 4))
        self.assertEqual(self.train(other, range(4, 8)), rest)
        self.assert_same(self.weights(engine), self.weights(other))
        self.assertEqual(other.get_lr(), engine.get_lr())

    def test_of_another_schedule_are_refused_before_anything_is_loaded(self):
        def scheduled(kind, **options):
            return self.engine(config={"scheduler": {"type": kind, "params": options}})

        engine = scheduled("LinearLR", start_factor=0.1, total_iters=8)
        self.train(engine, range(4))
        engine.save_checkpoint(self.folder + "/run")
        other = scheduled("StepLR", step_size=1)
        self.train(other, range(2))
        before, rate = self.weights(other), other.get_lr()
        with self.assertRaisesRegex(headrace.ArgumentError,
                                    "a LinearLR, and that of this run is a StepLR.*"
                                    "load_lr_scheduler_states=False"):
            other.load_checkpoint(self.folder + "/run")
        self.assert_same(before, self.weights(other))
        self.assertEqual((other.get_lr(), other.global_steps), (rate, 1))

        other.load_checkpoint(self.folder + "/run", load_lr_scheduler_states=False)
        self.assert_same(self.weights(engine), self.weights(other))
        self.assertEqual(other.global_steps, 2)

    def test_leave_the_rates_of_a_schedule_that_starts_anew(self):
        rates = torch.optim.lr_scheduler
        for end, anew in ((lambda made: rates.LambdaLR(made, lambda step: max(0, 1 - step)),
                           lambda made: rates.StepLR(made, 1, 0.5)),
                          (lambda made: rates.OneCycleLR(made, 1e-3, 3),
                           lambda made: rates.OneCycleLR(made, 1e-2, 3)),
                          (None, lambda made: rates.CosineAnnealingLR(made, 4))):
            engine = self.engine(lr_scheduler=end, config={"optimizer": {
                "type": "AdamW", "params": {"lr": 1e-3, "betas": [0.5, 0.6]}}})
            self.train(engine, range(4))
            engine.save_checkpoint(self.folder + "/run")
            runs = []
            for loads in (False, True):
                other = self.engine(lr_scheduler=anew)
                if loads:
                    with self.assertNoLogs("headrace", "WARNING"):
                        other.load_checkpoint(self.folder + "/run",
                                              load_lr_scheduler_states=False)
                runs.append([])
                for number in (0, 2):
                    group = other.optimizer.param_groups[0]
                    runs[-1].append((group["lr"], group["betas"], other.lr_scheduler.get_last_lr()))
                    self.train(other, range(number, number + 2))
            self.assertEqual(*runs)

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "numpy is not installed")
    def test_of_a_schedule_that_computes_by_numpy_continue_with_the_same_bits(self):
        import numpy

        def scheduled():
            return self.engine(lr_scheduler=lambda made: torch.optim.lr_scheduler.LambdaLR(
                made, lambda step: numpy.float32(1) / numpy.float32(3 + step)))

        engine, other = scheduled(), scheduled()
        self.train(engine, range(4))
        engine.save_checkpoint(self.folder + "/run")
        other.load_checkpoint(self.folder + "/run")
        self.assertEqual(other.lr_scheduler.get_last_lr(), engine.lr_scheduler.get_last_lr())
        self.assertEqual(self.train(other, range(4, 8)), self.train(engine, range(4, 8)))
        self.assertEqual(other.get_lr(), engine.get_lr())

    def test_of_a_schedule_are_loaded_beside_one_without_a_state(self):
        class Halving:
            def __init__(self, optimizer):
                self.optimizer = optimizer

            def step(self):
                for group in self.optimizer.param_groups:
                    group["lr"] /= 2

        engine = self.engine(config={"scheduler": {"type": "StepLR", "params": {"step_size": 1}}})
        self.train(engine, range(4))
        engine.save_checkpoint(self.folder + "/run")
        other = self.engine(lr_scheduler=Halving)
        with self.assertLogs("headrace", "WARNING") as logged:
            other.load_checkpoint(self.folder + "/run")
        self.assertIn("do not both have a schedule", "".join(logged.output))
        self.assert_same(self.weights(engine), self.weights(other))
        self.assertEqual((other.global_steps, other.get_lr()), (2, engine.get_lr()))
        self.train(other, range(4, 6))
        self.assertEqual(other.get_lr(), [engine.get_lr()[0] / 2])

    def test_hold_buffers_and_come_under_any_tag(self):
        def with_norm():
            return torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32))

        engine = self.engine(with_norm(), config={"gradient_accumulation_steps": 1})
        self.train(engine, range(3))
        engine.save_checkpoint(self.folder + "/run", tag="a", save_latest=False)
        other = self.engine(with_norm(), config={"gradient_accumulation_steps": 1})
        self.assertEqual(other.load_checkpoint(self.folder + "/run"), (None, None))
        other.load_checkpoint(self.folder + "/run", tag="a")
        self.assert_same(self.weights(engine), self.weights(other))

    def test_of_an_engine_alone_have_weights_and_state(self):
        engine = self.engine()
        self.train(engine, range(2))
        engine.optimizer.save_checkpoint(self.folder + "/alone")
        rest = self.train(engine, range(2, 6))
        other = self.engine()
        with self.assertLogs("headrace.deepspeed", "WARNING"):
            other.load_checkpoint(self.folder, tag="alone")
        self.assertEqual(other.global_steps, 0)
        self.assertEqual(self.train(other, range(2, 6)), rest)

    def test_that_are_not_there_or_of_deepspeed_are_refused_by_name(self):
        engine = self.engine()
        self.train(engine, range(2))
        engine.save_checkpoint(self.folder + "/run")
        with self.assertRaisesRegex(FileNotFoundError, "no checkpoint 'b'.*global_step1"):
            engine.load_checkpoint(self.folder + "/run", tag="b")
        theirs = pathlib.Path(self.folder, "run", "theirs")
        theirs.mkdir()
        (theirs / "zero_pp_rank_0_mp_rank_00_model_states.pt").touch()
        with self.assertRaisesRegex(ValueError, "DeepSpeed's own engine.*ds_to_universal"):
            engine.load_checkpoint(self.folder + "/run", tag="theirs")
        with self.assertRaisesRegex(NotImplementedError, "load_module_only"):
            engine.load_checkpoint(self.folder + "/run", load_module_only=True)
        self.train(engine, range(2))

    def test_replace_those_of_the_same_tag_and_survive_a_kill_in_between(self):
        engine, run = self.engine(), self.folder + "/run"
        self.train(engine, range(2))
        engine.save_checkpoint(run, tag="deep/a")
        self.train(engine, range(2))
        engine.save_checkpoint(run, tag="deep/a")
        self.assertEqual(os.listdir(run + "/deep"), ["a"])
        weights = self.weights(engine)
        new, old = run + "/deep/.headrace-new-a", run + "/deep/.headrace-old-a"
        os.rename(run + "/deep/a", new)  # as a kill between two renames leaves it
        shutil.copytree(new, old)
        other = self.engine()
        other.load_checkpoint(run)
        self.assertEqual((os.listdir(run + "/deep"), other.global_steps), (["a"], 2))
        self.assert_same(weights, self.weights(other))
        shutil.copytree(run + "/deep/a", old)  # as a kill after both of them
        os.rename(run + "/deep/a", run + "/deep/b")  # by the user
        with self.assertRaisesRegex(FileNotFoundError, "no checkpoint 'deep/a'"):
            other.load_checkpoint(run)
        other.save_checkpoint(run, tag="deep/a")
        self.assertEqual(sorted(os.listdir(run + "/deep")), ["a", "b"])

    def test_of_the_user_stay_whatever_their_tags_are(self):
        engine, run = self.engine(), self.folder + "/run"
        self.train(engine, range(2))
        tags = ["last", "last.new", "last.old"]
        for tag in tags:
            engine.save_checkpoint(run, tag=tag)
        engine.save_checkpoint(run, tag="last")
        engine.load_checkpoint(run, tag="last")
        self.assertEqual(sorted(os.listdir(run)), ["last", "last.new", "last.old", "latest"])
        shutil.rmtree(run + "/last.old")
        os.rename(run + "/last", run + "/last.old")
        with self.assertRaisesRegex(FileNotFoundError, "'last'.*last.new, last.old"):
            engine.load_checkpoint(run)
        engine.save_checkpoint(run, tag="last")
        self.assertEqual(sorted(os.listdir(run)), ["last", "last.new", "last.old", "latest"])
        pathlib.Path(run, "note").write_text("the user's", encoding="utf-8")
        os.symlink(self.folder, run + "/link")
        before = sorted(os.listdir(run))
        for tag in (".headrace-old-last", "", ".", "..", "a/../..", "/tmp/a", " a", "latest",
                    "note", "link"):
            with self.assertRaisesRegex(ValueError, "nothing was saved. Give another tag"):
                engine.save_checkpoint(run, tag=tag)
        self.assertEqual(sorted(os.listdir(run)), before)

    def test_leave_files_of_the_user_in_their_folder(self):
        engine, run = self.engine(), self.folder + "/run"
        self.train(engine, range(2))
        os.makedirs(run + "/one")
        for _ in range(2):
            pathlib.Path(run, "one", "tokenizer.json").write_text("{}", encoding="utf-8")
            engine.save_checkpoint(run, tag="one")
            self.assertTrue(os.path.exists(run + "/one/tokenizer.json"))
        self.engine().load_checkpoint(run)

    def test_of_an_offloaded_model_with_bytes_of_its_program_have_no_state_of_a_loop(self):
        engine = self.engine()
        engine.optimizer.save_checkpoint(self.folder + "/alone", b"of the program")
        with self.assertLogs("headrace.deepspeed", "WARNING") as logged:
            engine.load_checkpoint(self.folder, tag="alone")
        self.assertIn("no state of a loop", logged.output[0])

    def test_with_a_file_of_another_run_are_refused_with_both_named(self):
        run = self.folder + "/run"
        for tag, batches in (("one", 2), ("two", 4)):
            engine = self.engine()
            self.train(engine, range(batches))
            engine.save_checkpoint(run, tag=tag)
        shutil.copy(f"{run}/one/optimizer.safetensors", f"{run}/two")
        engine = self.engine()
        self.train(engine, range(6))
        with self.assertRaisesRegex(headrace.Corrupt, f"{run}/two: the checksum of"):
            engine.load_checkpoint(run, tag="two")
        other = self.engine()
        self.train(other, range(6))
        self.assertEqual(self.train(engine, range(6, 8)), self.train(other, range(6, 8)))
        engine.load_checkpoint(run, tag="one")
        self.train(engine, range(2))

    def test_of_older_versions_have_groups_and_buffers_in_the_state_of_the_loop(self):
        engine = self.engine()
        self.train(engine, range(2))
        engine.optimizer.param_groups[0]["lr"] = 0.25
        state = engine._own_state({"row": 1})
        self.assertFalse({"buffers", "groups"} & set(state))  # they are there once
        members = [[name for name, _ in engine.module.named_parameters()]]
        for of, number in (("groups", 0), ("others", 1)):
            older = {**state, "buffers": {"count": torch.ones(3)}, "groups": [{"lr": 0.25}],
                     "members": members * (number + 1)}
            engine.optimizer._part.engine.save_checkpoint(
                f"{self.folder}/{of}", trainer_state=_trainer_state.packed(older))
        model = model_of()
        model.register_buffer("count", torch.zeros(3))
        other = self.engine(model)
        with self.assertRaisesRegex(ValueError, "other groups.*nothing was loaded"):
            other.load_checkpoint(self.folder, tag="others")
        self.assertEqual(other.load_checkpoint(self.folder, tag="groups")[1], {"row": 1})
        self.assertEqual(other.get_lr(), [0.25])
        self.assertEqual(model.count.tolist(), [1, 1, 1])

    def test_in_the_middle_of_a_step_or_for_another_model_are_refused(self):
        engine = self.engine()
        self.train(engine, range(3))
        with self.assertRaisesRegex(headrace.WrongState, "after 1 of 2 micro-batches"):
            engine.save_checkpoint(self.folder + "/run")
        self.train(engine, [3])
        engine.save_checkpoint(self.folder + "/run")
        model = model_of()
        weights = [one for one in model.parameters() if one.dim() > 1]
        biases = [one for one in model.parameters() if one.dim() < 2]
        other = self.engine(model, model_parameters=[{"params": weights, "weight_decay": 0.5},
                                                     {"params": biases}])
        before = self.weights(other)
        with self.assertRaisesRegex(ValueError, "in other groups.*nothing was loaded"):
            other.load_checkpoint(self.folder + "/run")
        with_buffer = model_of()
        with_buffer.register_buffer("count", torch.zeros(3))
        third = self.engine(with_buffer)
        with self.assertRaisesRegex(ValueError, "'count'.*nothing was loaded"):
            third.load_checkpoint(self.folder + "/run")
        self.assert_same(before, self.weights(other))
        self.train(other, range(2))

    def test_are_not_made_of_objects_that_a_load_would_have_to_execute(self):
        engine = self.engine()
        for found, text in ((pathlib.Path("x"), "PosixPath"), (lambda: 0, "function")):
            with self.assertRaisesRegex(ValueError, r"^client_state\['a'\]\[1\]\['b'\] is a "
                                                    f"{text}.*nothing was saved"):
                engine.save_checkpoint(self.folder + "/run",
                                       client_state={"c": 1, "a": [2, {"b": found}]})
        self.assertFalse(os.path.exists(self.folder + "/run"))

    def test_of_16_bit_weights_open_in_torch(self):
        engine = self.engine(config={"bf16": {"enabled": True}})
        self.train(engine, range(2), torch.bfloat16)
        engine.save_16bit_model(self.folder + "/whole", "weights.bin")
        self.assert_same(torch.load(self.folder + "/whole/weights.bin"), self.weights(engine))
        whole = engine._zero3_consolidated_16bit_state_dict()
        self.assert_same(whole, self.weights(engine))


class WhatCannotBe(Engines):
    def refused(self, error, text, **arguments):
        model = model_of()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with self.assertRaisesRegex(error, text):
            headrace.deepspeed.initialize(**{"model": model, **arguments})
        self.assert_same(before, model.state_dict())

    def test_in_a_config_is_refused_and_the_model_kept(self):
        self.refused(ValueError, "no config")
        self.refused(ValueError, "two configs", config=self.config(), config_params={})
        self.refused(FileNotFoundError, "none.json", config=self.folder + "/none.json")
        file = pathlib.Path(self.folder, "ds.json")
        file.write_text("{", encoding="utf-8")
        self.refused(ValueError, "no JSON", config=str(file))
        file.write_text("[]", encoding="utf-8")
        self.refused(ValueError, "holds a list", config=file)
        wrong = self.config(headrace={"typo": 1})
        file.write_text(json.dumps(wrong), encoding="utf-8")
        for given, name in ((str(file), file), (wrong, "config")):
            self.refused(ValueError, f"^{name}: headrace.typo: unknown key", config=given)
        self.refused(ValueError, "enables fp16 and bf16",
                     config=self.config(fp16={"enabled": True}, bf16={"enabled": True}))
        self.refused(ValueError, "fp16.hysteresis is 'auto'", config=self.config(
            fp16={"enabled": True, "hysteresis": "auto"}))
        mixed = model_of()
        mixed[0].to(torch.bfloat16)
        self.refused(ValueError, 'bf16.enabled is "auto".*bf16, f32 parameters.*true.*false',
                     model=mixed, config=self.config(bf16={"enabled": "auto"}))
        for unscaled in ({}, {"fp16": {"enabled": False}}):
            self.refused(ValueError, "f16 parameters.*small gradients would be lost",
                         model=model_of(torch.float16), config=self.config(**unscaled))
        self.refused(ValueError, "gradient_clipping is 'auto'",
                     config=self.config(gradient_clipping="auto"))
        self.refused(ValueError, "gradient_clipping is -1",
                     config=self.config(gradient_clipping=-1))
        self.refused(ValueError, "train_batch_size 9 is not",
                     config=self.config(train_batch_size=9))
        self.refused(ValueError, "neither train_batch_size",
                     config=self.config(train_micro_batch_size_per_gpu=None))
        self.refused(ValueError, "stagee", config=self.config(zero_optimization={"stagee": 3}))
        self.refused(ValueError, "OneBitAdam|onebitadam",
                     config=self.config(optimizer={"type": "OneBitAdam"}))
        file.write_text(json.dumps(self.config(optimizer={
            "type": "AdamW", "params": {"weight_decy": 0.1}})), encoding="utf-8")
        self.refused(ValueError, f'^{file}: optimizer.params.weight_decy: .*"weight_decay"',
                     config=file)

    def test_in_a_schedule_or_a_dtype_leaves_the_model_usable(self):
        self.refused(ValueError, "'Nope'", config=self.config(scheduler={"type": "Nope"}))
        self.refused(ValueError, "ReduceLROnPlateau",
                     config=self.config(scheduler={"type": "ReduceLROnPlateau"}))
        self.refused(ValueError, "lr_scheduler is a int", config=self.config(), lr_scheduler=5)
        self.refused(TypeError, "", config=self.config(), training_data=3)
        self.refused(ValueError, "bf16 is True", config=self.config(bf16=True))
        self.refused(NotImplementedError, "RMSprop", config=self.config(bf16={"enabled": True}),
                     optimizer=torch.optim.RMSprop([torch.nn.Parameter(torch.ones(2))]))
        self.refused(ValueError, "muon", config=self.config(
            bf16={"enabled": True}, optimizer={"type": "Muon"}))
        self.assertEqual([name for name in os.listdir(self.folder) if "headrace" in name], [])

    def test_is_refused_before_the_model_is_converted(self):
        def with_norm():
            return torch.nn.Sequential(model_of(), torch.nn.BatchNorm1d(32))

        def params(**given):
            return {"scheduler": {"type": "StepLR", "params": given}}

        nowhere = {"device": "nvme", "nvme_path": self.folder + "/missing"}
        for error, text, more in (
                (NotImplementedError, "durable.*step", {"headrace": {"durable": "step"}}),
                (ValueError, "'Nope' of config is neither", {"scheduler": {"type": "Nope"}}),
                (ValueError, "'StepLR' of config cannot be made of its params: .*step_size",
                 params()),
                (ValueError, "headrace.optimizer to 'Lion'", {"headrace": {"optimizer": "Lion"}}),
                (FileNotFoundError, "nvme_path .*/missing, which is no folder",
                 {"zero_optimization": {"offload_param": nowhere}})):
            for dtype in ("bf16", "fp16"):
                self.refused(error, f"{text}.*the model is as it was", model=with_norm(),
                             config=self.config(**{dtype: {"enabled": True}}, **more))
        config = self.config(bf16={"enabled": True})
        model = with_norm()
        missing = torch.optim.AdamW([*model.parameters()][1:])
        for error, text, arguments in (
                (ValueError, "in no group of params; the model is", {"optimizer": missing}),
                (ValueError, "lr_scheduler is a int; the model is", {"lr_scheduler": 5}),
                (TypeError, "", {"training_data": 3})):
            self.refused(error, text, model=model, config=config, **arguments)

    def test_is_a_schedule_of_deepspeed_where_it_is_not_installed(self):
        config = self.config(bf16={"enabled": True}, scheduler={"type": "WarmupDecayLR"})
        with unittest.mock.patch.dict(sys.modules, {"deepspeed": None, "deepspeed.runtime": None}):
            self.refused(NotImplementedError, "'WarmupDecayLR'.*not installed; the model is as it "
                         "was. Install it", config=config)

    def test_which_is_found_after_a_conversion_says_what_became_of_the_model(self):
        def fail(_optimizer):
            raise ZeroDivisionError("of the program")

        model = torch.nn.Sequential(model_of(), torch.nn.BatchNorm1d(32))
        model[1].running_mean.fill_(1 / 3)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with self.assertLogs("headrace.deepspeed", "WARNING") as logged, \
                self.assertRaises(ZeroDivisionError):
            headrace.deepspeed.initialize(model=model, lr_scheduler=fail,
                                          config=self.config(bf16={"enabled": True}))
        text = "after the model was converted to bf16: its .* values of before, rounded to bf16"
        self.assertRegex(logged.output[-1], f"ended by a ZeroDivisionError. The error came {text}")
        self.assert_same(dict(model.named_buffers()),
                         {name: before[name] for name, _ in model.named_buffers()})
        for name, one in model.named_parameters():
            self.assertTrue(torch.equal(one, before[name].bfloat16().float()), name)
        with self.assertRaisesRegex(headrace.OutOfBudget, text):
            self.engine(config={"bf16": {"enabled": True}, "headrace": {"host_budget_bytes": 4096}})

    def test_in_arguments_is_refused_and_the_model_kept(self):
        parameter = [torch.nn.Parameter(torch.ones(2))]
        self.refused(ValueError, "NoneType", model=None, config=self.config())
        self.refused(NotImplementedError, "mpu", config=self.config(), mpu=object())
        self.refused(ValueError, "not the model's", config=self.config(),
                     model_parameters=parameter)
        model = model_of()
        for named in (model.named_parameters(), [{"params": list(model.named_parameters())}]):
            self.refused(ValueError, r"with names.*model.parameters\(\)", model=model,
                         config=self.config(), model_parameters=named)
        self.refused(NotImplementedError, "RMSprop", config=self.config(),
                     optimizer=torch.optim.RMSprop(parameter))
        self.refused(NotImplementedError, "amsgrad", config=self.config(),
                     optimizer=torch.optim.AdamW(parameter, amsgrad=True))
        for module in ("bitsandbytes.optim.adamw", "torch.optimum", __name__):  # of other steps
            foreign = type("AdamW", (torch.optim.AdamW,), {"__module__": module})
            self.refused(NotImplementedError, f"is {module}.AdamW, which may compute otherwise",
                         config=self.config(), optimizer=foreign(parameter))
        newer = torch.optim.AdamW(parameter)  # as a torch whose rule has another option
        newer.defaults["cautious"] = newer.param_groups[0]["cautious"] = True
        self.refused(NotImplementedError, "has cautious=True, which headrace's rule does not know",
                     config=self.config(), optimizer=newer)
        stepped = torch.optim.AdamW(parameter)
        parameter[0].grad = torch.ones(2)
        stepped.step()
        self.refused(ValueError, "made a step", config=self.config(), optimizer=stepped)

    def test_is_found_in_a_file_as_in_a_dict(self):
        file = pathlib.Path(self.folder, "ds.json")
        file.write_text(json.dumps(self.config()), encoding="utf-8")
        arguments = type("Arguments", (), {"deepspeed_config": str(file)})
        engine = headrace.deepspeed.initialize(arguments, model_of())[0]
        self.addCleanup(engine.destroy)
        self.assertEqual((engine.train_batch_size(), engine.zero_optimization_stage()), (8, 3))


class TakingOver(Engines):
    def test_waits_for_the_import_whoever_asks_for_the_package_before(self):
        name = "headrace_test_package"
        pathlib.Path(self.folder, name + ".py").write_text("value = 1\n", encoding="utf-8")
        sys.path.insert(0, self.folder)
        self.addCleanup(sys.path.remove, self.folder)
        self.addCleanup(sys.modules.pop, name, None)
        seen = []
        for _ in range(2):
            when_imported(name, lambda module: seen.append(module.value))
        self.assertIsNotNone(importlib.util.find_spec(name))
        self.assertEqual(seen, [])
        module = importlib.import_module(name)
        self.assertEqual(seen, [1])
        when_imported(name, lambda there: seen.append(there is module))
        self.assertEqual(seen, [1, True])

    def test_gathers_what_is_offloaded_and_leaves_the_rest_alone(self):
        with Init(config_dict_or_path={}), Init():
            model = model_of()
        with GatheredParameters(model.parameters(), modifier_rank=0):
            torch.nn.init.ones_(model[0][0].weight)
        engine = self.engine(model)
        with GatheredParameters([model[0][0].weight, None]) as gathered:
            self.assertEqual(gathered[0].sum().item(), 32 * 32)
        with GatheredParameters(model[0][0].weight, modifier_rank=0):
            torch.nn.init.zeros_(model[0][0].weight)
        self.assertEqual(self.weights(engine)["0.0.weight"].abs().max().item(), 0)
        with GatheredParameters(model.parameters(), enabled=False):
            with self.assertRaises(RuntimeError):
                model[0][0].weight.sum()


class MadeInFiles(Engines):
    """Models that are made within zero.Init()."""

    def assert_in_files(self, model, folder):
        self.assertEqual({folder_of(one) for one in model.parameters()}, {folder})

    def test_have_the_values_and_losses_of_others(self):
        expected = self.engine(model_of())
        losses = self.train(expected, range(4))
        config = self.config()
        path = os.path.join(self.folder, "ds.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        for given in ({"config_dict_or_path": config}, {"config": path}):
            with Init(**given):
                model = model_of()
            self.assert_in_files(model, self.folder)
            engine = self.engine(model)
            self.assertEqual(self.train(engine, range(4)), losses)
            self.assert_same(self.weights(engine), self.weights(expected))
            engine.destroy()

    def test_are_converted_and_written_to_one_parameter_at_a_time(self):
        plain = model_of()
        with Init(config_dict_or_path=self.config()):
            model = model_of()
        for one in (plain, model):
            with GatheredParameters(one[0][0].weight, modifier_rank=0):
                torch.nn.init.constant_(one[0][0].weight, 1 / 3)
        engines = [self.engine(one, config={"bf16": {"enabled": True}}) for one in (plain, model)]
        self.assert_same(*map(self.weights, engines))
        self.assertEqual(*(self.train(engine, range(2), torch.bfloat16) for engine in engines))
        for engine in engines:
            engine.destroy()
        self.assert_in_files(model, self.folder)
        with self.assertRaisesRegex(headrace.Error, "nvme_path|missing"):
            at = {"device": "nvme", "nvme_path": self.folder + "/missing"}
            self.engine(model, config={"fp16": {"enabled": True}, "zero_optimization": {
                "offload_param": at}})
        self.assert_in_files(model, self.folder)
        self.assertEqual({one.dtype for one in model.parameters()}, {torch.bfloat16})

    def test_are_where_the_config_says_or_in_the_folder_of_tempfile(self):
        model = model_of()
        Init(module=model, config=self.config())
        self.assert_in_files(model, self.folder)
        for given in ({"config": self.config(place="cpu")}, {"config": {}}, {"enabled": False}):
            with Init(**given):
                self.assert_in_files(model_of(), None)
        with unittest.mock.patch("tempfile.tempdir", self.folder):
            with Init(), Init():
                model = model_of()
            self.assert_in_files(model, self.folder)
        with unittest.mock.patch("tempfile.tempdir", "/dev/shm"), \
                self.assertWarnsRegex(UserWarning, "/dev/shm is memory .tmpfs., so.*TMPDIR"):
            with Init():
                self.assert_in_files(model_of(), None)
        with self.assertRaisesRegex(FileNotFoundError, "missing.json"):
            Init(config="missing.json")
        with self.assertRaisesRegex(headrace.NoSuchFile, "missing; the model was not|missing, and"):
            with Init(config={"zero_optimization": {"offload_param": {
                    "device": "nvme", "nvme_path": self.folder + "/missing"}}}):
                self.fail("it began")

    @unittest.skipUnless(HAS_TRAINER, "deepspeed or transformers is not installed")
    def test_are_those_of_transformers_too(self):
        done = subprocess.run([sys.executable, "-c", MADE, self.folder, "29544"], text=True,
                              capture_output=True, timeout=300, check=False,
                              env=dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"))
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertEqual(done.stdout.splitlines()[-4:], [
            "in memory False", "made True True", "loaded True True", "trained True"])


# Models that transformers makes within zero.Init() by itself, since a ds.json has parameters on a
# drive.
MADE = textwrap.dedent("""
    import os, sys
    folder, port = sys.argv[1:3]
    os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", RANK="0", LOCAL_RANK="0",
                      WORLD_SIZE="1", MASTER_PORT=port, TORCH_EXTENSIONS_DIR=folder + "/ext")
    import headrace.deepspeed
    headrace.deepspeed.take_over()
    import torch
    from headrace.torch.offload._building import folder_of
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.integrations import HfDeepSpeedConfig
    import deepspeed
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed("gloo")
    kind = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                       num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)

    def made():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(kind)

    def same(one, other):
        return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(),
                                                     other.state_dict().values(), strict=True))

    in_memory = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    while_it_lives = HfDeepSpeedConfig(in_memory)  # the order of random numbers is another one
    plain = made()
    plain.save_pretrained(folder + "/saved")
    print("in memory", any(map(folder_of, plain.parameters())))
    at = {"device": "nvme", "nvme_path": folder}
    config = {"train_micro_batch_size_per_gpu": 1,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
              "zero_optimization": {"stage": 3, "offload_optimizer": at, "offload_param": at}}
    while_it_lives = HfDeepSpeedConfig(config)
    model = made()
    print("made", same(model, plain), all(map(folder_of, model.parameters())))
    model = AutoModelForCausalLM.from_pretrained(folder + "/saved")
    print("loaded", same(model, plain), all(map(folder_of, model.parameters())))
    ids = torch.arange(8).view(1, 8)
    losses = []
    for one in (plain, model):
        engine, *_ = deepspeed.initialize(model=one.train(), config=config)
        for _ in range(2):
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        engine.destroy()
    print("trained", losses[:2] == losses[2:])
    """)


# What a program of Hugging Face does that is started with --deepspeed ds.json.
TRAINER = textwrap.dedent("""
    import json, os, shutil, sys
    place, folder, port, rank, ranks = sys.argv[1:6]
    device = os.environ.get("HEADRACE_TEST_DEVICE", "cpu")
    os.environ.update(DS_ACCELERATOR=device, MASTER_ADDR="127.0.0.1", RANK=rank, LOCAL_RANK=rank,
                      WORLD_SIZE=ranks, MASTER_PORT=port, TORCH_EXTENSIONS_DIR=folder + "/ext")
    import headrace.deepspeed
    headrace.deepspeed.take_over()  # as with HEADRACE_DEEPSPEED=engine
    import torch
    from transformers import (HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer,
                              TrainingArguments)
    import deepspeed
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    at = {"device": place, "nvme_path": folder}
    with open(folder + f"/ds{rank}.json", "w") as file:
        json.dump({
            "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto",
                                                      "betas": "auto", "eps": "auto"}},
            "scheduler": {"type": "WarmupDecayLR", "params": {
                "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
                "total_num_steps": "auto"}},
            "zero_optimization": {
                "stage": 3, "offload_optimizer": at, "offload_param": at,
                "stage3_gather_16bit_weights_on_model_save": True}}, file)
    words = ["--output_dir", folder + "/run", "--deepspeed", folder + f"/ds{rank}.json",
             "--bf16", "--per_device_train_batch_size", "2",
             "--gradient_accumulation_steps", str(2 // int(ranks)),
             "--max_steps", "4", "--logging_steps", "1", "--report_to", "none",
             "--save_steps", "2", "--eval_strategy", "steps", "--eval_steps", "2",
             "--load_best_model_at_end", "true", "--metric_for_best_model", "loss",
             "--learning_rate", "1e-2", "--disable_tqdm", "true"]
    rows = torch.randint(0, 128, (24, 16), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in rows]
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2)).save_pretrained(f"{folder}/base{rank}")
    for resumes in (False, True):
        arguments, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
            words + (["--use_cpu"] if device == "cpu" else []))
        model = LlamaForCausalLM.from_pretrained(f"{folder}/base{rank}")
        trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:4])
        trainer.train(resume_from_checkpoint=resumes)
        print("engine", type(trainer.model_wrapped).__module__)
        print("resumed" if resumes else "whole", json.dumps(
            [[row.get(key) for key in ("loss", "grad_norm", "learning_rate", "eval_loss")]
             for row in trainer.state.log_history if "loss" in row or "eval_loss" in row]
            + [trainer.evaluate()["eval_loss"]]))
        trainer.save_model(folder + "/final")
        torch.distributed.barrier()
        again = LlamaForCausalLM.from_pretrained(folder + "/final")
        print("weights", all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(
            model.state_dict().values(), again.state_dict().values())))
        torch.distributed.barrier()
        if rank == "0":
            shutil.rmtree(folder + "/run/checkpoint-4", ignore_errors=True)
        torch.distributed.barrier()
    """)


# A loop with Accelerate, which makes another optimizer of the groups of the program's. Its schedule
# stays that of the program's.
ACCELERATE = textwrap.dedent("""
    import os, sys
    folder, port = sys.argv[1:3]
    os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", RANK="0", LOCAL_RANK="0",
                      WORLD_SIZE="1", MASTER_PORT=port, TORCH_EXTENSIONS_DIR=folder + "/ext")
    import headrace.deepspeed
    headrace.deepspeed.take_over()
    import torch
    from accelerate import Accelerator, DeepSpeedPlugin
    import deepspeed
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    at = {"device": "nvme", "nvme_path": folder}
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config={
        "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0,
        "zero_optimization": {"stage": 3, "offload_optimizer": at, "offload_param": at}}))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step, 2) / 2)
    model, optimizer, rate = accelerator.prepare(model, optimizer, rate)
    for _ in range(4):
        before = model.module.state_dict()["0.weight"].clone()
        accelerator.backward((model(torch.ones(4, 8)) - 1).pow(2).mean())
        print(model.get_lr()[0], end=" ")
        optimizer.step()
        rate.step()
        optimizer.zero_grad()
        print(torch.equal(before, model.module.state_dict()["0.weight"]))
    """)


@unittest.skipUnless(HAS_TRAINER, "deepspeed or transformers is not installed")
class HuggingFace(Engines):
    def test_schedule_of_a_loop_with_accelerate_reaches_training(self):
        done = subprocess.run([sys.executable, "-c", ACCELERATE, self.folder, "29545"], text=True,
                              capture_output=True, timeout=300, check=False,
                              env=dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"))
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertEqual(done.stdout.splitlines()[-4:],
                         ["0.0 True", "0.005 False", "0.01 False", "0.01 False"])

    def run_trainer(self, place, port, ranks=1):
        """What each rank has logged."""
        folder = pathlib.Path(self.folder, f"{place}{ranks}")
        folder.mkdir()
        started = [subprocess.Popen(
            [sys.executable, "-c", TRAINER, place, str(folder), port, str(rank), str(ranks)],
            env=dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(ranks)]
        logged = []
        for one in started:
            out, errors = one.communicate(timeout=400)
            self.assertEqual(one.returncode, 0, errors[-3000:])
            said = dict(line.split(" ", 1) for line in out.splitlines()
                        if line.startswith(("engine ", "whole ", "resumed ", "weights ")))
            self.assertEqual(said["engine"], "headrace.deepspeed._engine")
            self.assertEqual(said["weights"], "True")
            self.assertEqual(said["whole"], said["resumed"])
            logged.append(json.loads(said["whole"]))
        return logged

    def test_trains_saves_and_resumes_with_an_unchanged_ds_json(self):
        alone, = self.run_trainer("nvme", "29541")
        self.assertEqual([alone], self.run_trainer("cpu", "29542"))
        if DEVICE == "cpu":  # the Trainer adds up losses in another order, but norms are the same
            for logged in self.run_trainer("nvme", "29543", ranks=2):
                self.assertEqual([row[1:3] for row in logged[:-1]],
                                 [row[1:3] for row in alone[:-1]])
                for row, other in zip(logged[:-1], alone[:-1]):
                    for one, of_alone in zip(row, other):
                        self.assertTrue(one == of_alone or abs(one - of_alone) < 1e-5)


if __name__ == "__main__":
    FOLDER = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
