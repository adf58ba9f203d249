# SPDX-License-Identifier: Apache-2.0
"""torch_test.py FOLDER [TEST...]: headrace.torch beside torch.optim. FOLDER lies on a drive. With
HEADRACE_TEST_DEVICE=cuda, the models are on a GPU."""
import copy
import errno
import io
import itertools
import math
import os
import pathlib
import pickle
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import warnings

sys.dont_write_bytecode = True
try:
    import torch
except ImportError as missing:
    print(f"torch cannot be imported: {missing}")
    sys.exit(77)
import headrace  # noqa: E402
from headrace._engine import DTYPES  # noqa: E402
from headrace.torch import SGD, Adagrad, Adam, AdamW, Lion  # noqa: E402

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
torch.set_num_threads(2)
DEVICE = os.environ.get("HEADRACE_TEST_DEVICE", "cpu")
WIDTH = 64
# docs/optimizers.md: after a thousand steps, from torch.optim in double precision, with weights,
# gradients and rates as in tests/torch/optimizer_rules_test.cpp.
BOUND = 1.6e-6


def rounded(value):
    """To float32, which the engine computes in."""
    return torch.tensor(value, dtype=torch.float32).item()


def model_of(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.ReLU(),
                               torch.nn.Linear(4 * WIDTH, WIDTH)).to(DEVICE, dtype)


def loss_of(model, generator):
    parameter = next(model.parameters())
    batch = torch.randn(8, WIDTH, generator=generator).to(parameter.device, parameter.dtype)
    return (model(batch) - batch).float().pow(2).mean()


def train(model, optimizer, steps=6, accumulation=1, max_norm=1.0, seed=1, scheduler=None):
    """Returns losses and norms; the weights are in the model."""
    generator, seen = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        for _ in range(accumulation):
            loss = loss_of(model, generator) / accumulation
            loss.backward()
            seen.append(loss.item())
        seen.append(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
    return seen


def weights_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def moments_of(optimizer):
    return [values[name].clone() for values in optimizer.full_state_dict()["state"].values()
            for name in ("exp_avg", "exp_avg_sq", "master") if name in values]


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.addCleanup(self.folder.cleanup)
        self.opened = []
        self.addCleanup(lambda: [optimizer.close() for optimizer in self.opened])

    def adamw(self, params, *arguments, **options):
        return self.made(AdamW, params, *arguments, **options)

    def made(self, rule, params, *arguments, **options):
        optimizer = rule(params, *arguments, **options)
        self.opened.append(optimizer)
        return optimizer

    def assert_same(self, left, right):
        self.assertEqual(len(left), len(right))
        for one, other in zip(left, right):
            self.assertEqual(one.dtype, other.dtype)
            one, other = one.cpu(), other.cpu()
            self.assertTrue(torch.equal(one, other), (one - other).abs().max())


class Placement(Case):
    """{memory with and without an engine, budget, NVMe} x {f32, bf16, f16} x {accumulation 1, 4}:
    all bits are equal."""

    def placed(self, place, model):
        if place == "no engine":
            return self.adamw(model.parameters(), lr=2e-3)
        nvme = None if place == "memory" else self.folder.name
        config = {"headrace": {"tile_elements": 65536, "update_slots": 1}}
        if place == "budget":
            config["headrace"]["host_budget_bytes"] = self.budget
        return self.adamw(model.parameters(), lr=2e-3, nvme=nvme, config=config)

    def test_changes_no_bit(self):
        for dtype, accumulation in itertools.product(
                (torch.float32, torch.bfloat16, torch.float16), (1, 4)):
            with self.subTest(dtype=dtype, accumulation=accumulation):
                self.compare(dtype, accumulation)

    def compare(self, dtype, accumulation):
        expected, used = None, {}
        for place in ("memory", "no engine", "nvme", "budget"):
            model = wide_model_of(dtype)
            optimizer = self.placed(place, model)
            seen = train(model, optimizer, 5, accumulation)
            plan = optimizer.plan()[0]
            used[place] = plan["nvme_bytes"]
            if place == "nvme":
                self.budget = (plan["host_bytes"] + self.in_memory) // 2
            if place == "memory":
                self.in_memory = plan["host_bytes"]
                expected = seen, weights_of(model), moments_of(optimizer)
                self.assertTrue(all(values.abs().max() > 0 for values in expected[2]))
            self.assertEqual(seen, expected[0])
            self.assert_same(weights_of(model), expected[1])
            self.assert_same(moments_of(optimizer), expected[2])
            optimizer.close()
        self.assertEqual(used["memory"], 0)
        self.assertTrue(0 < used["budget"] < used["nvme"], used)


def wide_model_of(dtype):
    """Several tiles, so that a budget can keep some of them."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 8 * WIDTH), torch.nn.Tanh(),
                               torch.nn.Linear(8 * WIDTH, 8 * WIDTH), torch.nn.Tanh(),
                               torch.nn.Linear(8 * WIDTH, WIDTH)).to(DEVICE, dtype)


class BesideTorch(Case):
    def test_a_thousand_steps_stay_within_the_bound(self):
        torch.manual_seed(3)
        ours = torch.nn.Parameter(0.02 * torch.randn(300))
        exact = torch.nn.Parameter(ours.detach().double())
        sizes = 10.0 ** (torch.arange(300) % 4 - 3)
        constants = {"weight_decay": rounded(0.1), "eps": rounded(1e-8),
                     "betas": (rounded(0.9), rounded(0.999))}
        optimizer = self.adamw([ours], **constants)
        reference = torch.optim.AdamW([exact], **constants)
        for step in range(1000):
            ours.grad = torch.randn(300) * sizes
            exact.grad = ours.grad.double()
            for one in (optimizer, reference):
                one.param_groups[0]["lr"] = 1e-3 * (1 + math.cos(step / 100))
                one.step()
        self.assertLessEqual((ours.double() - exact).abs().max().item(), BOUND)
        self.assertGreater((ours.double() - exact).abs().max().item(), 0)

    def test_16_bit_weights_are_those_of_a_master_in_32(self):
        torch.manual_seed(3)
        for dtype in (torch.bfloat16, torch.float16):
            ours = torch.nn.Parameter(torch.randn(300).to(dtype))
            master = torch.nn.Parameter(ours.detach().float())
            optimizer = self.adamw([ours], lr=2e-3)
            reference = torch.optim.AdamW([master], lr=2e-3)
            for _ in range(100):
                ours.grad = torch.randn(300).to(dtype)
                master.grad = ours.grad.float()
                optimizer.step()
                reference.step()
            kept = optimizer.state_dict()["state"][0]["master"]
            self.assertLessEqual((kept - master).abs().max().item(), BOUND)
            self.assertTrue(torch.equal(kept.to(dtype), ours.detach()))

    def test_groups_schedulers_and_maximize(self):
        results = []
        for kind in (self.adamw, torch.optim.AdamW):
            model = model_of()
            first, last = model[0], model[2]
            optimizer = kind([{"params": first.parameters(), "lr": 1e-2, "weight_decay": 0.0},
                              {"params": last.parameters(), "betas": (0.8, 0.9), "eps": 1e-6}],
                             lr=1e-3, maximize=True)
            scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer, [lambda step: 0.5 ** step, lambda step: 1 + step])
            results.append((train(model, optimizer, scheduler=scheduler), weights_of(model)))
        (ours, our_weights), (theirs, their_weights) = results
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=1e-6)
        for one, other in zip(our_weights, their_weights):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-5)

    def test_a_closure_is_called_with_gradients_enabled(self):
        model = model_of()
        optimizer = self.adamw(model.parameters())
        generator = torch.Generator().manual_seed(1)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, generator)
            loss.backward()
            return loss

        before = weights_of(model)
        self.assertGreater(optimizer.step(closure).item(), 0)
        self.assertFalse(torch.equal(before[0], weights_of(model)[0]))

    def test_a_gradient_scaler_skips_and_unscales(self):
        model, plain = model_of(), model_of()
        optimizer, beside = self.adamw(model.parameters()), self.adamw(plain.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            scaler.scale(loss_of(model, generator)).backward()
            if seed == 1:
                next(model.parameters()).grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if seed != 1:
                loss_of(plain, torch.Generator().manual_seed(seed)).backward()
                beside.step()
                beside.zero_grad()
        for one, other in zip(weights_of(model), weights_of(plain)):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        self.assertEqual(scaler.get_scale(), 512.0)


class Rules(Case):
    """Each beside torch.optim in double precision, resumed in the middle in both directions."""

    RULES = (
        (Adam, torch.optim.Adam, {"lr": 2e-3, "weight_decay": 0.1}),
        (Adagrad, torch.optim.Adagrad, {"lr": 2e-3, "lr_decay": 0.1, "weight_decay": 0.1}),
        (SGD, torch.optim.SGD, {"lr": 2e-3, "weight_decay": 0.1}),
        (SGD, torch.optim.SGD, {"lr": 2e-3, "momentum": 0.9, "dampening": 0.2}),
        (SGD, torch.optim.SGD, {"lr": 2e-3, "momentum": 0.9, "nesterov": True, "maximize": True}),
    )

    def test_give_torchs_weights(self):
        for rule, theirs, options in self.RULES:
            with self.subTest(rule=rule.__name__, **options):
                models = [model_of(), model_of(torch.double)]
                ours = self.made(rule, models[0].parameters(), **options, nvme=self.folder.name)
                train(models[0], ours, 30)
                train(models[1], theirs(models[1].parameters(), **options), 30)
                for one, other in zip(weights_of(models[0]), weights_of(models[1])):
                    torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-6)

    def test_share_their_state_with_torch(self):
        for rule, theirs, options in self.RULES:
            for first, second in ((rule, theirs), (theirs, rule)):
                with self.subTest(rule=rule.__name__, first=first.__module__, **options):
                    self.resume(first, second, theirs, options)

    def resume(self, first, second, theirs, options):
        model, whole = model_of(), model_of()
        optimizer = first(model.parameters(), **options)
        train(model, optimizer, 4, seed=1)
        state = copy.deepcopy(optimizer.state_dict())
        if hasattr(optimizer, "close"):
            optimizer.close()
        follower = second(model.parameters(), **options)
        follower.load_state_dict(state)
        train(model, follower, 4, seed=2)
        if hasattr(follower, "close"):
            follower.close()
        reference = theirs(whole.parameters(), **options)
        train(whole, reference, 4, seed=1)
        train(whole, reference, 4, seed=2)
        for one, other in zip(weights_of(model), weights_of(whole)):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-6)

    def test_keep_their_maximize_where_a_state_says_nothing(self):
        """That of older versions of torch and of DeepSpeedCPUAdam."""
        for rule in (AdamW, Adam, Adagrad, Lion, SGD):
            for maximize in (False, True):
                model, other = model_of(), model_of()
                first, second = (self.made(rule, one.parameters(), lr=1e-2, maximize=maximize)
                                 for one in (model, other))
                train(model, first, 2)
                other.load_state_dict(model.state_dict())
                state = first.state_dict()
                for group in state["param_groups"]:
                    del group["maximize"]
                second.load_state_dict(state)
                for one, its in ((model, first), (other, second)):
                    train(one, its, 2, seed=9)
                self.assert_same(weights_of(model), weights_of(other))
        groups = [{"params": [torch.nn.Parameter(torch.ones(3))], "maximize": maximize}
                  for maximize in (True, False)]
        both = self.made(AdamW, groups, lr=1e-2)
        state = both.state_dict()
        for group in state["param_groups"]:
            del group["maximize"]
        both.load_state_dict(state)
        self.assertEqual([group["maximize"] for group in both.param_groups], [True, False])

    def test_have_the_same_bits_in_memory_and_on_a_drive(self):
        for rule, options in ((Adam, {}), (Adagrad, {}), (Lion, {"weight_decay": 0.1}), (SGD, {}),
                              (SGD, {"momentum": 0.9})):
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(rule=rule.__name__, dtype=dtype, **options):
                    models = [model_of(dtype), model_of(dtype)]
                    for model, nvme in zip(models, (None, self.folder.name)):
                        train(model, self.made(rule, model.parameters(), **options, nvme=nvme))
                    self.assert_same(*map(weights_of, models))

    def test_lion_is_that_of_its_paper(self):
        weight = torch.nn.Parameter(torch.randn(1000))
        optimizer = self.made(Lion, [weight], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
        expected, mean = weight.detach().double().clone(), torch.zeros(1000).double()
        for _ in range(5):
            weight.grad = torch.randn(1000)
            gradient = weight.grad.double()
            sign = torch.sign(0.9 * mean + 0.1 * gradient)
            expected -= 0.01 * (sign + 0.1 * expected)
            mean = 0.99 * mean + 0.01 * gradient
            optimizer.step()
        torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-5, atol=1e-6)

    def test_refuse_what_they_do_not_have(self):
        weight = torch.nn.Parameter(torch.zeros(3))
        for make, text in (
                (lambda: SGD([weight], nesterov=True), "nesterov needs a momentum"),
                (lambda: SGD([weight]).add_param_group(
                    {"params": [torch.nn.Parameter(torch.zeros(2))], "momentum": 0.9}), "no room"),
                (lambda: Adagrad([{"params": [weight], "initial_accumulator_value": 1}]),
                 "initial_accumulator_value"),
                (lambda: Adagrad([weight], lr_decay=-1), "lr_decay is -1"),
                (lambda: Lion([weight], betas=(0.9, 1.0)), "beta2 is 1.0")):
            with self.assertRaisesRegex(headrace.Error, text):
                make()


    def test_take_torchs_options_that_change_no_result_in_their_place(self):
        how = {"foreach": None, "fused": True, "differentiable": False}
        for name, options in (("Adam", {"amsgrad": False, "capturable": False}),
                              ("AdamW", {"amsgrad": False, "capturable": False}), ("SGD", {}),
                              ("Adagrad", {"initial_accumulator_value": 0})):
            own, made = getattr(headrace.torch, name), []
            for more in ({}, {**how, **options}):
                model = model_of()
                optimizer = self.made(own, model.parameters(), lr=1e-3, **more)
                train(model, optimizer, 2)
                made.append((weights_of(model), optimizer))
            self.assert_same(made[0][0], made[1][0])
            made[0][1].load_state_dict(made[1][1].state_dict())
            for key in ["differentiable", *options]:
                with self.assertRaisesRegex(NotImplementedError, f"^{key} is 1, .*; nothing was "
                                            "done. Leave it out, or use torch.optim"):
                    own(model.parameters(), **{key: 1})
            with self.assertRaisesRegex(TypeError, f"{name[:4]}.*'weight_decy'"):
                own(model.parameters(), weight_decy=0.1)
        positional = (model_of().parameters(), 1e-3, (0.9, 0.999), 1e-8, 0.01, True)  # amsgrad
        with self.assertRaisesRegex(NotImplementedError, "^amsgrad is True"):
            AdamW(*positional)


class Gradients(Case):
    def test_parameters_without_one_are_left_alone(self):
        model = model_of()
        model[0].bias.requires_grad_(False)
        optimizer = self.adamw(model.parameters(), weight_decay=0.1)
        loss_of(model, torch.Generator().manual_seed(1)).backward()
        model[2].weight.grad = None
        before = weights_of(model)
        optimizer.step()
        moved = [not torch.equal(old, new) for old, new in zip(before, weights_of(model))]
        self.assertEqual(moved, [True, False, False, True])
        self.assertEqual(sorted(optimizer.state_dict()["state"]), [0, 3])

    def test_parameters_that_come_late_are_updated_too(self):
        results = []
        for kind in (self.adamw, torch.optim.AdamW):
            model = model_of()
            model[0].requires_grad_(False)
            optimizer = kind(model[:2].parameters(), lr=1e-3)
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 1e-2})
            train(model, optimizer, 2)
            model[0].requires_grad_(True)
            train(model, optimizer, 2)
            results.append(weights_of(model))
        for one, other in zip(*results):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-5)
        self.assertEqual(len(self.opened[0].plan()), 2)
        with self.subTest("a bad gradient stops both engines"):
            ours = self.opened[0]
            parameters = [p for group in ours.param_groups for p in group["params"]]
            before = [p.detach().clone() for p in parameters]
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            parameters[0].grad.view(-1)[0] = float("nan")
            with self.assertRaisesRegex(FloatingPointError, r"parameter 0 of param_groups\[0\] of"):
                ours.step()
            self.assert_same(before, [p.detach() for p in parameters])

    def test_one_that_is_not_finite_stops_the_step_and_the_next_one_works(self):
        model, other = model_of(), model_of()
        optimizer, beside = self.adamw(model.named_parameters()), self.adamw(other.parameters())
        train(model, optimizer, 2)
        train(other, beside, 2)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float("nan"))
        with self.assertRaisesRegex(FloatingPointError, "0.weight"):
            optimizer.step()
        optimizer.zero_grad()
        train(model, optimizer, 2)
        train(other, beside, 2)
        self.assert_same(weights_of(model), weights_of(other))

    def test_without_a_name_are_found_by_group_number_and_shape(self):
        for names, text in ((False, r"parameter 1 of param_groups\[1\] of shape \(64,\)"),
                            (True, "'2.bias'")):
            for nvme, place in ((None, "in memory"), (self.folder.name, "on a drive")):
                for config in (None, {"headrace": {"non_finite": "skip"}}):
                    with self.subTest(names=names, place=place, config=config):
                        model = model_of()
                        of = dict(model.named_parameters())
                        groups = [{"params": [(name, of[name]) if names else of[name]
                                              for name in of if name[0] == layer]}
                                  for layer in "02"]
                        optimizer = self.adamw(groups, nvme=nvme, config=config)
                        loss_of(model, torch.Generator().manual_seed(1)).backward()
                        model[2].bias.grad[3] = math.nan
                        self.not_finite(optimizer, f"^the gradient of {text} holds NaN", nvme)

    def not_finite(self, optimizer, text, nvme):
        if not optimizer._skips():
            ending = "$" if "'" in text else ".*named_parameters"
            with self.assertRaisesRegex(headrace.NotFinite, text + ".*skip\"}}\\." + ending):
                optimizer.step()
        elif nvme is None:
            optimizer.step()  # says nothing
        else:
            with self.assertLogs("headrace", "WARNING") as logged:
                optimizer.step()
            self.assertRegex(logged.records[0].getMessage(), text + ".*the step is skipped")

    def test_of_another_shape_are_refused_by_name(self):
        for nvme in (None, self.folder.name):
            parameter = torch.nn.Parameter(torch.zeros(8))
            parameter.grad = torch.ones_like(parameter)
            parameter.grad.data = torch.ones(4)
            optimizer = self.adamw([("layer.w", parameter)], nvme=nvme)
            with self.assertRaisesRegex(ValueError, r"layer.w.*shape \(4,\).*\(8,\)"):
                optimizer.step()
            self.assertEqual(parameter.abs().max(), 0)

    @unittest.skipUnless(hasattr(torch.nn.Parameter(torch.zeros(1)), "grad_dtype"),
                         "this torch has no grad_dtype")
    def test_in_f32_of_16_bit_weights_keep_their_bits_everywhere(self):
        seen = []
        for nvme in (None, self.folder.name):
            parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
            parameter.grad_dtype = torch.float32
            parameter.grad = torch.tensor([1.003, 2.0001, -3.0005])
            optimizer = self.made(SGD, [parameter], lr=1.0, momentum=0.9, nvme=nvme)
            optimizer.step()
            seen.append(optimizer.state_dict()["state"][0]["momentum_buffer"].tolist())
        self.assertEqual(seen[0], seen[1])
        self.assertAlmostEqual(seen[0][0], 1.003, places=6)

    @unittest.skipUnless(hasattr(torch.nn.Parameter(torch.zeros(1)), "grad_dtype"),
                         "this torch has no grad_dtype")
    def test_may_come_in_f32_after_the_first_step_but_on_a_gpu(self):
        seen = []
        for nvme in (None, self.folder.name):
            parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16, device=DEVICE))
            parameter.grad = torch.ones_like(parameter)
            optimizer = self.made(SGD, [parameter], lr=1.0, momentum=0.9, nvme=nvme)
            optimizer.step()
            parameter.grad = None
            parameter.grad_dtype = torch.float32
            parameter.grad = torch.tensor([1.003, 2.0001, -3.0005], device=DEVICE)
            if DEVICE != "cpu":
                with self.assertRaisesRegex(NotImplementedError, "one dtype of gradients"):
                    optimizer.step()
                continue
            optimizer.step()
            seen.append(optimizer.state_dict()["state"][0]["momentum_buffer"].tolist())
        self.assertEqual(seen[:1], seen[1:])

    def test_left_over_on_frozen_parameters_change_nothing(self):
        for nvme in (None, self.folder.name):
            parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
            for parameter in parameters:
                parameter.grad = torch.ones(1)
            optimizer = self.made(SGD, parameters, lr=1.0, nvme=nvme)
            optimizer.step()
            parameters[1].requires_grad_(False)
            optimizer.step()
            self.assertEqual([parameter.item() for parameter in parameters], [-2.0, -1.0])

    def test_sparse_ones_are_refused_by_name(self):
        table = torch.nn.Embedding(10, 4, sparse=True)
        optimizer = self.adamw(table.named_parameters())
        table(torch.tensor([1, 2])).sum().backward()
        with self.assertRaisesRegex(NotImplementedError, "weight' is of layout torch.sparse_coo"):
            optimizer.step()

    def test_any_strides_are_taken_by_their_elements(self):
        results = []
        for kind in (self.adamw, torch.optim.AdamW):
            torch.manual_seed(0)
            layer = torch.nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
            optimizer = kind(layer.parameters(), lr=1e-2)
            for _ in range(3):
                layer(torch.randn(2, 4, 8, 8)).pow(2).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            self.assertFalse(layer.weight.is_contiguous())
            results.append(layer.weight.detach())
        torch.testing.assert_close(*results, rtol=0, atol=2e-6)


def saved_and_read(model, optimizer):
    """As programs keep them: torch.load() takes nothing but tensors and primitives."""
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "model": model.state_dict()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Groups(Case):
    """torch's param_groups may change after the first step."""

    def both(self, change):
        """Two parameters with rates 1 and 10: after a step, the change and a step."""
        for nvme in ("torch", None, self.folder.name):
            first, second = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
            first.grad, second.grad = torch.ones(1), torch.ones(1)
            groups = [{"params": [first], "lr": 1.0}, {"params": [second], "lr": 10.0}]
            optimizer = torch.optim.SGD(groups) if nvme == "torch" else \
                self.made(SGD, groups, nvme=nvme)
            optimizer.step()
            change(optimizer.param_groups)
            optimizer.step()
            yield first.item(), second.item()

    def test_may_swap_lose_and_exchange_parameters_as_in_torch(self):
        def regroup(groups):
            groups[1]["params"].append(groups[0]["params"].pop())

        def remove(groups):
            groups[1]["params"] = []

        for change in (regroup, list.reverse, remove, lambda groups: groups.pop(0)):
            theirs, *ours = self.both(change)
            self.assertEqual(ours, [theirs, theirs])

    def test_that_divide_the_parameters_of_one_are_refused_by_name_on_a_drive(self):
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        for parameter in parameters:
            parameter.grad = torch.ones(1)
        optimizer = self.made(SGD, parameters, lr=1.0, nvme=self.folder.name)
        optimizer.step()
        moved = optimizer.param_groups[0]["params"].pop()
        optimizer.add_param_group({"params": [moved], "lr": 2.0})
        with self.assertRaisesRegex(headrace.WrongState, "parameter 0 of.* and parameter 1 of .*"
                                    "nothing was updated"):
            optimizer.step()
        self.assertEqual([parameter.item() for parameter in parameters], [-1.0, -1.0])

    def test_with_a_parameter_twice_or_with_shared_memory_are_refused(self):
        parameter = torch.nn.Parameter(torch.zeros(2))
        with self.assertRaisesRegex(ValueError, "listed twice"):
            AdamW([parameter, parameter])
        with self.assertRaisesRegex(NotImplementedError, "expanded"):
            AdamW([torch.nn.Parameter(torch.zeros(1).expand(2))])
        memory = torch.zeros(6)
        for nvme in (None, self.folder.name):
            views = [torch.nn.Parameter(memory[:4]), torch.nn.Parameter(memory[2:])]
            for view in views:
                view.grad = torch.ones(4)
            with self.assertRaisesRegex(ValueError, "r 0 of .* and parameter 1 of .* share memory"):
                self.adamw(views, nvme=nvme).step()
        self.assertEqual(memory.tolist(), [0.0] * 6)

    def test_that_are_strided_may_share_a_range_and_no_element(self):
        def slices(count, more=0):
            memory = torch.arange(24.0, device=DEVICE).reshape(4, 6)
            return [torch.nn.Parameter(one) for one in (
                memory[:, :2], memory[:, 2:5 + more], memory[2:, 5:].t(), memory[0, 5])][:count]

        shared = torch.randn(3, 5, device=DEVICE)
        for nvme in (None, self.folder.name):
            for views, names in (([shared, shared.t()], "r 0 .* and parameter 1 "),
                                 ([shared[:, 1:3], shared[1]], "r 0 .* and parameter 1 "),
                                 (slices(3, 1), "r 1 .* and parameter 2 "),
                                 (slices(4, 1), "r 1 .* and ")):
                views = [torch.nn.Parameter(one.detach()) for one in views]
                for view in views:
                    view.grad = torch.ones_like(view)
                before = [view.detach().clone() for view in views]
                with self.assertRaisesRegex(ValueError, f"{names}.* share memory"):
                    self.adamw(views, nvme=nvme).step()
                self.assert_same([view.detach() for view in views], before)
            apart = slices(4)
            alone = [torch.nn.Parameter(one.detach().clone()) for one in apart]
            for parameters in (apart, alone):
                for parameter in parameters:
                    parameter.grad = torch.ones_like(parameter)
                self.adamw(parameters, nvme=nvme).step()
            self.assert_same([one.detach() for one in apart], [one.detach() for one in alone])


class Writes(Case):
    def test_between_steps_are_trained_on(self):
        for dtype, through_data in itertools.product((torch.float32, torch.bfloat16),
                                                     (False, True)):
            with self.subTest(dtype=dtype, through_data=through_data):
                parameter = torch.nn.Parameter(torch.ones(5, dtype=dtype))
                optimizer = self.adamw([parameter], lr=0.125, weight_decay=0.0)
                for _ in range(2):
                    parameter.grad = torch.ones_like(parameter)
                    optimizer.step()
                with torch.no_grad():
                    (parameter.data if through_data else parameter)[1] = 64.0
                parameter.grad = torch.ones_like(parameter)
                optimizer.step()
                torch.testing.assert_close(parameter.detach().float()[:3],
                                           torch.tensor([0.625, 63.875, 0.625]), rtol=4e-3, atol=0)

    def test_whose_load_was_ended_in_the_middle_are_loaded_by_the_next_step(self):
        results = []
        for ended in (False, True):
            torch.manual_seed(0)
            parameter = torch.nn.Parameter(torch.randn(3 * 65536).bfloat16())
            config = {"headrace": {"tile_elements": 65536}}
            optimizer = self.adamw([parameter], config=config)
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            parameter.data.mul_(2)
            if ended:
                original = headrace._engine._raw
                calls = []

                def raw(address, size_bytes):
                    calls.append(size_bytes)
                    if len(calls) == 2:
                        signal.raise_signal(signal.SIGINT)
                    return original(address, size_bytes)

                with unittest.mock.patch.object(headrace._engine, "_raw", raw):
                    with self.assertRaises(KeyboardInterrupt):
                        optimizer.step()
                self.assertGreaterEqual(len(calls), 2)
            optimizer.step()
            results.append(parameter.detach())
        self.assert_same(results[:1], results[1:])

    def test_have_the_same_bits_afterwards_in_memory_and_on_a_drive(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            results = []
            for nvme in (None, self.folder.name):
                torch.manual_seed(0)
                parameter = torch.nn.Parameter(torch.randn(40, 30).to(dtype).t())
                optimizer = self.adamw([parameter], lr=1e-2, nvme=nvme)
                for step in range(6):
                    parameter.grad = torch.randn(30, 40).to(dtype)
                    optimizer.step()
                    written = torch.rand(30, 40) < 0.1 * step
                    parameter.data[written] = torch.randn(int(written.sum())).to(dtype)
                results.append([parameter.detach(), *moments_of(optimizer)])
            self.assert_same(*results)

    def test_elsewhere_leave_the_masters_their_bits(self):
        torch.manual_seed(0)
        start, masters = torch.randn(5).bfloat16(), []
        for written in (False, True):
            parameter = torch.nn.Parameter(start.clone())
            optimizer = self.adamw([parameter], lr=1e-3)
            for step in range(4):
                if written and step == 3:
                    parameter.data[0] = 7.0
                parameter.grad = torch.full_like(parameter, 0.3)
                optimizer.step()
            masters.append(optimizer.state_dict()["state"][0]["master"])
        self.assertTrue(torch.equal(masters[0][1:], masters[1][1:]))
        self.assertFalse(torch.equal(masters[0][:1], masters[1][:1]))

    def test_of_the_update_itself_are_seen_by_autograd(self):
        for nvme in (None, self.folder.name):
            model = model_of()
            optimizer = self.adamw(model.parameters(), nvme=nvme)
            generator = torch.Generator().manual_seed(1)
            loss_of(model, generator).backward()
            stale = loss_of(model, generator)
            optimizer.step()
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                stale.backward()

    def test_of_an_update_that_failed_are_made_by_the_next_step(self):
        model, other = model_of(torch.bfloat16), model_of(torch.bfloat16)
        optimizer, beside = (self.adamw(one.parameters(), nvme=self.folder.name)
                             for one in (model, other))
        train(model, optimizer, 1)
        part = optimizer._parts[0]
        original, failures = part._copy_back, [OSError("a drive failed")]

        def copy_back(group, bundle):
            if failures:
                raise failures.pop()
            original(group, bundle)

        part._copy_back = copy_back
        loss_of(model, torch.Generator().manual_seed(5)).backward()
        with self.assertRaises(OSError):
            optimizer.step()
        optimizer.zero_grad()
        train(other, beside, 1)
        loss_of(other, torch.Generator().manual_seed(5)).backward()
        beside.step()
        beside.zero_grad()
        for parameters in (model.parameters(), other.parameters()):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        beside.step()
        self.assert_same(weights_of(model), weights_of(other))


@unittest.skipUnless(DEVICE == "cpu", "the engine keeps what is on a GPU")
class Lent(Case):
    def test_weights_and_gradients_take_no_memory_of_an_engine(self):
        for dtype, weights in ((torch.float32, 0), (torch.bfloat16, 2)):
            model = model_of(dtype)
            optimizer = self.adamw(model.parameters(), nvme=self.folder.name)
            train(model, optimizer, 1)
            rows = {(row["what"], row["tier"]): row["bytes"] for row in optimizer.plan()[0]["rows"]}
            elements = sum(parameter.numel() for parameter in model.parameters())
            self.assertNotIn(("gradients", "host"), rows)
            self.assertGreaterEqual(rows["gradients that are lent", "host (yours)"], 2 * elements)
            self.assertLess(rows.get(("parameters", "host"), 0), (weights + 0.2) * elements)
            self.assertEqual(("parameters that are lent", "host (yours)") in rows, weights == 0)

    def test_weights_may_move_between_steps(self):
        results = []
        for moved in (False, True):
            model = model_of()
            optimizer = self.adamw(model.parameters(), nvme=self.folder.name)
            for step in range(4):
                train(model, optimizer, 1, seed=step)
                for parameter in model.parameters() if moved else ():
                    parameter.data = parameter.data.clone()
            results.append([*weights_of(model), *moments_of(optimizer)])
        self.assert_same(*results)

    def test_weights_that_are_no_longer_row_major_are_refused(self):
        parameter = torch.nn.Parameter(torch.randn(4, 4))
        optimizer = self.adamw([parameter], nvme=self.folder.name)
        parameter.grad = torch.ones(4, 4)
        optimizer.step()
        before = parameter.detach().clone()
        parameter.data = parameter.data.t().contiguous().t()
        with self.assertRaisesRegex(headrace.WrongState, r"strides \(1, 4\)"):
            optimizer.step()
        self.assert_same([parameter.detach()], [before])
        parameter.data = parameter.data.contiguous()
        optimizer.step()
        self.assertFalse(torch.equal(parameter.detach(), before))

    def test_weights_and_others_load_each_others_snapshots(self):
        results = []
        for saved_by in (torch.contiguous_format, torch.channels_last):
            for loaded_by in (torch.contiguous_format, torch.channels_last):
                made = []
                for form in (saved_by, loaded_by):
                    torch.manual_seed(0)
                    parameters = [torch.nn.Parameter(torch.randn(4, 3, 2, 2).to(
                        memory_format=form)), torch.nn.Parameter(torch.randn(5).bfloat16()),
                        torch.nn.Parameter(torch.randn(6))]
                    options = {"nvme": self.folder.name,
                               "snapshots": self.folder.name + "/snapshots"}
                    made.append((parameters, self.adamw(parameters, lr=1e-2, **options)))

                def step(parameters, optimizer):
                    for parameter in parameters:
                        parameter.grad = torch.full_like(parameter, 0.5)
                    optimizer.step()

                step(*made[0])
                with torch.no_grad():
                    for to, values in zip(made[1][0], made[0][0]):
                        to.copy_(values)
                made[1][1].load_state_dict(made[0][1].state_dict())
                step(*made[1])
                results.append([*(one.detach() for one in made[1][0]), *moments_of(made[1][1])])
        for other in results[1:]:
            self.assert_same(results[0], other)

    def test_weights_with_the_negative_bit_have_the_bits_of_those_in_memory(self):
        results = []
        for nvme in (None, self.folder.name):
            torch.manual_seed(0)
            parameter = torch.nn.Parameter(torch._neg_view(torch.randn(6)))
            optimizer = self.adamw([parameter], lr=1e-2, nvme=nvme)
            for _ in range(3):
                parameter.grad = torch.ones(6)
                optimizer.step()
            results.append([parameter.detach().resolve_neg(), *moments_of(optimizer)])
        self.assert_same(*results)
        parameter = torch.nn.Parameter(torch.randn(6))
        optimizer = self.adamw([parameter], nvme=self.folder.name)
        parameter.grad = torch.ones(6)
        optimizer.step()
        parameter.data = torch._neg_view(torch.randn(6))
        with self.assertRaisesRegex(headrace.WrongState, "negative bit"):
            optimizer.step()

    def test_memory_that_is_shared_later_is_refused(self):
        first, second = (torch.nn.Parameter(torch.randn(8)) for _ in range(2))
        optimizer = self.adamw([first, second], nvme=self.folder.name)
        for parameter in (first, second):
            parameter.grad = torch.ones(8)
        optimizer.step()
        own, before = second.data, first.detach().clone()
        second.data = first.data
        with self.assertRaisesRegex(headrace.ArgumentError, "share memory"):
            optimizer.step()
        with self.assertRaisesRegex(headrace.ArgumentError, "share memory"):
            optimizer.step()
        second.data = own
        first.grad = second.data
        with self.assertRaisesRegex(headrace.ArgumentError, "shares memory with the weights"):
            optimizer.step()
        self.assert_same([first.detach()], [before])
        first.grad = torch.ones(8)
        optimizer.step()
        self.assertFalse(torch.equal(first.detach(), before))

    def test_weights_without_a_gradient_may_have_no_memory(self):
        first, second = (torch.nn.Parameter(torch.randn(8)) for _ in range(2))
        optimizer = self.adamw([first, second], nvme=self.folder.name)
        for parameter in (first, second):
            parameter.grad = torch.ones(8)
        optimizer.step()
        second.grad = None
        second.data.untyped_storage().resize_(0)
        optimizer.step()
        self.assertEqual(optimizer.state[first]["step"], 2)

    def test_weights_keep_the_programs_values_when_a_snapshot_is_loaded(self):
        model = model_of()
        options = {"nvme": self.folder.name, "snapshots": self.folder.name + "/snapshots"}
        optimizer = self.adamw(model.parameters(), **options)
        train(model, optimizer, 2)
        saved, moments = optimizer.state_dict(), moments_of(optimizer)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        wanted = weights_of(model)
        optimizer.load_state_dict(saved)
        self.assert_same(weights_of(model), wanted)
        self.assert_same(moments_of(optimizer), moments)
        train(model, optimizer, 1)
        self.assertFalse(torch.equal(weights_of(model)[0], wanted[0]))

    def test_weights_are_said_to_be_partly_updated_where_a_drive_fails(self):
        model = model_of()
        optimizer = self.adamw(model.parameters(), nvme=self.folder.name)
        train(model, optimizer, 1)
        engine = optimizer._parts[0].engine

        def failing(*_arguments, **_options):
            engine.close()  # as after a failure: it refuses every call
            raise OSError("a drive failed")

        loss_of(model, torch.Generator().manual_seed(5)).backward()
        with unittest.mock.patch.object(engine, "step", failing):
            with self.assertRaises(OSError) as raised:
                optimizer.step()
        if hasattr(raised.exception, "__notes__") or sys.version_info >= (3, 11):
            self.assertIn("last checkpoint", raised.exception.__notes__[0])


class State(Case):
    def resumed(self, dtype, nvme):
        straight, model = model_of(dtype), model_of(dtype)
        options = {"lr": 2e-3, "nvme": self.folder.name if nvme else None}
        beside = self.adamw(straight.parameters(), **options)
        optimizer = self.adamw(model.parameters(), **options)
        for one, its in ((straight, beside), (model, optimizer)):
            train(one, its, 3)
        saved = saved_and_read(model, optimizer)
        again = model_of(dtype)
        follower = self.adamw(again.parameters(), **options)
        follower.load_state_dict(saved["optimizer"])
        again.load_state_dict(saved["model"])
        expected = train(straight, beside, 3, seed=9)
        self.assertEqual(train(again, follower, 3, seed=9), expected)
        self.assert_same(weights_of(again), weights_of(straight))
        self.assert_same(moments_of(follower), moments_of(beside))

    def test_a_resumed_run_has_the_bits_of_one_that_was_not_ended(self):
        for dtype, nvme in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            with self.subTest(dtype=dtype, nvme=nvme):
                self.resumed(dtype, nvme)

    def test_files_behind_it_vanish_with_the_tensors(self):
        model = model_of()
        optimizer = self.adamw(model.parameters(), nvme=self.folder.name)
        train(model, optimizer, 1)
        before = sorted(os.listdir(self.folder.name))
        state = optimizer.state_dict()["state"]
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)
        self.assertGreater(state[0]["exp_avg"].abs().max().item(), 0)

    def test_files_behind_it_have_their_space_before_they_are_mapped(self):
        model = model_of()
        optimizer = self.adamw(model.parameters(), nvme=self.folder.name)
        train(model, optimizer, 1)
        mapped, original = [], torch.from_file

        def from_file(name, **options):
            mapped.append((os.stat(name).st_blocks * 512, 4 * options["size"]))
            return original(name, **options)

        with unittest.mock.patch.object(torch, "from_file", from_file):
            optimizer.state_dict()
        self.assertEqual(len(mapped), 8)
        for reserved, needed in mapped:
            self.assertGreaterEqual(reserved, needed)

    def test_that_has_no_room_is_an_error_that_names_the_folder(self):
        for number, kind in (("ENOSPC", headrace.NoSpace), ("EIO", headrace.IoError)):
            model = model_of()
            optimizer = self.adamw(model.parameters(), nvme=self.folder.name)
            train(model, optimizer, 1)
            before = moments_of(optimizer)
            error = OSError(getattr(errno, number), "the drive says so")
            with unittest.mock.patch("os.posix_fallocate", side_effect=error):
                with self.assertRaisesRegex(kind, self.folder.name + ".*as it was"):
                    optimizer.state_dict()
            self.assert_same(moments_of(optimizer), before)
            optimizer.close()

    def test_is_torchs_own_in_both_directions(self):
        for source, target in ((self.adamw, torch.optim.AdamW), (torch.optim.AdamW, self.adamw)):
            model, other = model_of(), model_of()
            optimizer, follower = source(model.parameters()), target(other.parameters())
            train(model, optimizer, 3)
            follower.load_state_dict(optimizer.state_dict())
            other.load_state_dict(model.state_dict())
            for one, its in ((model, optimizer), (other, follower)):
                train(one, its, 3, seed=9)
            for one, two in zip(weights_of(model), weights_of(other)):
                torch.testing.assert_close(one, two, rtol=0, atol=5e-6)

    def test_is_what_hooks_make_of_it(self):
        model, seen = model_of(), []
        optimizer = self.adamw(model.parameters())
        train(model, optimizer, 2)
        wanted = moments_of(optimizer)
        wanted[0] += 1
        optimizer.register_state_dict_pre_hook(lambda its: seen.append(its))
        optimizer.register_state_dict_post_hook(
            lambda _, state: state["state"][0].update(exp_avg=state["state"][0]["exp_avg"] + 1))
        optimizer.register_state_dict_post_hook(lambda _, state: {"inner": state})
        saved = optimizer.state_dict()
        self.assertEqual((seen, list(saved)), ([optimizer], ["inner"]))

        def unwrap(_, state):
            seen.append("before")
            return state["inner"]

        follower = self.adamw(model_of().parameters())
        follower.register_load_state_dict_pre_hook(unwrap)
        handle = follower.register_load_state_dict_post_hook(
            lambda its: seen.append(len(its.state)))
        follower.load_state_dict(saved)
        self.assertEqual(seen[1:], ["before", 4])
        self.assertEqual(list(saved), ["inner"])
        self.assert_same(moments_of(follower), wanted)
        handle.remove()
        follower.load_state_dict(saved)
        self.assertEqual(seen[3:], ["before"])

    def test_is_what_hooks_make_of_it_that_hooks_have_registered(self):
        def before(its):
            seen.append("before")
            its.register_state_dict_post_hook(lambda _, state: {"inner": state})

        model, seen = model_of(), []
        optimizer = self.adamw(model.parameters())
        train(model, optimizer, 2)
        handle = optimizer.register_state_dict_pre_hook(before)
        self.assertEqual(list(optimizer.state_dict()), ["inner"])
        handle.remove()
        self.assertEqual(list(optimizer.state_dict()), ["inner"])
        self.assertEqual(seen, ["before"])

    def test_before_the_first_step_is_empty_and_loads(self):
        model = model_of()
        optimizer = self.adamw(model.parameters(), lr=0.5)
        state = optimizer.state_dict()
        self.assertEqual(state["state"], {})
        state["param_groups"][0]["lr"] = 0.25
        optimizer.load_state_dict(state)
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.25)
        self.assertEqual(optimizer.plan(), [])

    def test_of_an_empty_parameter_loads_and_of_an_unknown_one_is_refused(self):
        parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(0))]
        theirs = torch.optim.AdamW(parameters)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        theirs.step()
        state = theirs.state_dict()
        ours = self.adamw(parameters)
        ours.load_state_dict(state)
        self.assertEqual([ours.state[parameter]["step"] for parameter in parameters], [1, 1])
        ours.step()
        theirs.step()
        self.assertEqual([ours.state[parameter]["step"] for parameter in parameters], [2, 2])
        self.assertEqual({key: set(values) for key, values in ours.state_dict()["state"].items()},
                         {key: set(values) for key, values in theirs.state_dict()["state"].items()})
        state["state"][7] = state["state"][0]
        with self.assertRaisesRegex(ValueError, "parameter 7, .*this optimizer has 2"):
            ours.load_state_dict(state)
        self.assertEqual(ours.state[parameters[0]]["step"], 2)

    def test_of_another_rule_or_model_is_refused_and_changes_nothing(self):
        model = model_of()
        optimizer = self.adamw(model.parameters())
        train(model, optimizer, 2)
        before = moments_of(optimizer)
        for kind, words in ((torch.optim.SGD, "lacks betas, eps"),
                            (lambda params: torch.optim.AdamW(params, amsgrad=True), "amsgrad")):
            other = model_of()
            foreign = kind(other.parameters())
            if isinstance(foreign, torch.optim.SGD):
                foreign.param_groups[0]["momentum"] = 0.9
            train(other, foreign, 1)
            with self.assertRaisesRegex(ValueError, words):
                optimizer.load_state_dict(foreign.state_dict())
        wrong = optimizer.state_dict()
        wrong["state"][0]["exp_avg"] = torch.zeros(3)
        with self.assertRaisesRegex(ValueError, "shape"):
            optimizer.load_state_dict(wrong)
        self.assert_same(moments_of(optimizer), before)

    def test_a_group_with_the_decay_of_another_rule_is_refused(self):
        for kind, other in ((headrace.torch.Adam, "AdamW"), (headrace.torch.AdamW, "Adam")):
            model = model_of()
            optimizer = kind(model.parameters())
            group = optimizer.param_groups[0]
            group["decoupled_weight_decay"] ^= True
            before = [one.detach().clone() for one in model.parameters()]
            with self.assertRaisesRegex(ValueError, rf"^param_groups\[0\] has .* rule of {other};"):
                train(model, optimizer, 1)
            for one, was in zip(model.parameters(), before):
                self.assertTrue(torch.equal(one, was))
            group["decoupled_weight_decay"] ^= True
            train(model, optimizer, 1)

    def test_a_load_that_fails_in_the_middle_leaves_none(self):
        model = model_of()
        optimizer = self.adamw(model.parameters())
        train(model, optimizer, 1)
        state = optimizer.state_dict()
        with unittest.mock.patch.object(type(optimizer._parts[0]), "set_steps", autospec=True,
                                        side_effect=headrace.IoError("a drive fails")):
            with self.assertRaisesRegex(OSError, "a drive fails"):
                optimizer.load_state_dict(state)
        self.assertEqual((optimizer.plan(), dict(optimizer.state)), ([], {}))

    def test_of_a_parameter_that_is_frozen_now_is_kept(self):
        for nvme in (None, self.folder.name):
            model = model_of()
            optimizer = self.adamw(model.parameters(), nvme=nvme)
            train(model, optimizer, 2)
            state, before = optimizer.state_dict(), moments_of(optimizer)
            model[2].bias.requires_grad_(False)
            optimizer.load_state_dict(state)
            self.assert_same(moments_of(optimizer), before)
            weight = model[2].bias.clone()
            train(model, optimizer, 1)
            self.assertTrue(torch.equal(model[2].bias, weight))

    def test_of_the_rule_that_is_nearest_is_refused(self):
        def made(rule, **options):
            parameter = torch.nn.Parameter(torch.zeros(2))
            parameter.grad = torch.ones(2)
            optimizer = self.made(rule, [parameter], **options)
            optimizer.step()
            return optimizer

        for source, target in ((AdamW, Adam), (Adam, AdamW), (AdamW, Lion), (AdamW, SGD),
                               (Adagrad, SGD), (torch.optim.Adam, AdamW)):
            given = made(source) if source is not torch.optim.Adam else \
                torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
            taker = made(target)
            before = taker.state_dict()["state"][0]["step"] if target is not SGD else None
            with self.assertRaisesRegex(ValueError, "nothing was loaded"):
                taker.load_state_dict(given.state_dict())
            taker.step()
            if before is not None:
                self.assertEqual(taker.state_dict()["state"][0]["step"], before + 1)

    def test_that_is_damaged_is_refused_and_changes_nothing(self):
        for nvme in (None, self.folder.name):
            parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
            parameter.grad = torch.ones_like(parameter)
            optimizer = self.adamw([parameter], nvme=nvme)
            optimizer.step()
            for key, bad in (("step", -3), ("step", 1e30), ("step", 2.5), ("exp_avg", None),
                             ("master", torch.zeros(1)), ("master", torch.ones(2, 2))):
                state = optimizer.state_dict()
                state["state"][0][key] = bad
                with self.assertRaisesRegex(ValueError, f"{key} of parameter 0.*nothing was load"):
                    optimizer.load_state_dict(state)
            self.assertEqual(optimizer.state_dict()["state"][0]["step"], 1)

    def test_copies_are_refused_by_name(self):
        optimizer = self.adamw(model_of().parameters())
        for attempt in (copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "headrace.torch.AdamW cannot be copied"):
                attempt(optimizer)


class References(Case):
    """state_dict() with `snapshots`: a reference, and the state below that folder."""

    def trained(self, dtype=torch.float32, steps=3, **options):
        model = model_of(dtype)
        optimizer = self.adamw(model.parameters(), lr=2e-3, snapshots=self.folder.name, **options)
        train(model, optimizer, steps)
        return model, optimizer

    def test_a_run_is_resumed_by_one_with_the_bits_of_one_that_was_not_ended(self):
        for dtype, nvme in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            with self.subTest(dtype=dtype, nvme=nvme):
                model, optimizer = self.trained(dtype, nvme=self.folder.name if nvme else None)
                saved = saved_and_read(model, optimizer)
                self.assertEqual(saved["optimizer"]["state"], {})
                again = model_of(dtype)
                follower = self.adamw(again.parameters())  # in memory, with another rate
                follower.load_state_dict(saved["optimizer"])
                again.load_state_dict(saved["model"])
                expected = train(model, optimizer, 3, seed=9)
                self.assertEqual(train(again, follower, 3, seed=9), expected)
                self.assert_same(weights_of(again), weights_of(model))
                self.assert_same(moments_of(follower), moments_of(optimizer))
                self.assertEqual(follower.state[next(again.parameters())]["step"].item(), 6)

    def test_states_of_several_engines_come_back_to_theirs(self):
        model, other = model_of(), model_of()
        optimizer = self.adamw(model.parameters(), snapshots=self.folder.name)
        model[2].requires_grad_(False)
        train(model, optimizer, 2)
        model[2].requires_grad_(True)
        train(model, optimizer, 2)
        follower = self.adamw(other.parameters())
        follower.load_state_dict(optimizer.state_dict())
        other.load_state_dict(model.state_dict())
        self.assertEqual(len(follower.plan()), 2)
        train(model, optimizer, 2, seed=9)
        train(other, follower, 2, seed=9)
        self.assert_same(weights_of(other), weights_of(model))

    def test_functions_of_torch_that_would_lose_a_reference_get_the_state(self):
        import torch.distributed.checkpoint.state_dict as functions
        model, optimizer = self.trained()
        saved = copy.deepcopy(functions.get_optimizer_state_dict(model, optimizer))
        self.assertEqual(os.listdir(self.folder.name), [])
        again = model_of()
        again.load_state_dict(model.state_dict())
        follower = self.adamw(again.parameters(), snapshots=self.folder.name + "/new")
        functions.set_optimizer_state_dict(again, follower, saved)
        expected = train(model, optimizer, 3, seed=9)
        self.assertEqual(train(again, follower, 3, seed=9), expected)
        self.assert_same(moments_of(follower), moments_of(optimizer))

    def test_a_flattened_state_is_refused_with_advice(self):
        import torch.distributed.checkpoint.state_dict as functions
        model, optimizer = self.trained()
        options = functions.StateDictOptions(flatten_optimizer_state_dict=True)
        saved = functions.get_optimizer_state_dict(model, optimizer, options=options)
        with self.assertRaisesRegex(headrace.ArgumentError, "lacks exp_avg.*do not flatten it"):
            functions.set_optimizer_state_dict(model, optimizer, saved, options=options)

    def test_one_snapshot_serves_until_the_next_step(self):
        model, optimizer = self.trained()
        first = optimizer.state_dict()
        self.assertEqual(optimizer.state_dict(), first)
        self.assertEqual(len(os.listdir(self.folder.name)), 1)
        train(model, optimizer, 1)
        self.assertNotEqual(optimizer.state_dict(), first)
        self.assertEqual(len(os.listdir(self.folder.name)), 2)

    def test_what_cannot_be_loaded_is_refused_and_changes_nothing(self):
        model, optimizer = self.trained()
        good = optimizer.state_dict()
        before = moments_of(optimizer)
        for key, value, kind in (("snapshot", self.folder.name + "/gone", FileNotFoundError),
                                 ("format", 2, NotImplementedError),
                                 ("parts", [[0, 9]], ValueError)):
            with self.assertRaisesRegex(kind, "nothing was loaded"):
                optimizer.load_state_dict({**good, "headrace": {**good["headrace"], key: value}})
            self.assert_same(moments_of(optimizer), before)

    def test_one_of_another_snapshot_is_refused(self):
        model, optimizer = self.trained()
        state = optimizer.state_dict()
        state["headrace"]["id"] = "0" * 32
        own = state["headrace"]["snapshot"]
        before = moments_of(optimizer)
        with self.assertRaisesRegex(headrace.Corrupt, f"^{own}/engine0 is of another run.*"
                                    f"{os.path.basename(own)}, step .*{'0' * 32}; nothing was"):
            optimizer.load_state_dict(state)
        self.assert_same(before, moments_of(optimizer))


class Defaults(Case):
    def test_of_torch_do_not_reach_the_state(self):
        results = []
        for default in (torch.float32, torch.bfloat16):
            model = model_of()
            optimizer = self.adamw(model.parameters(), lr=1e-3)
            torch.set_default_dtype(default)
            try:
                for step in range(3):
                    for parameter in model.parameters():
                        parameter.grad = torch.full_like(parameter, 0.1 * (step + 1))
                    optimizer.step()
                results.append(weights_of(model) + moments_of(optimizer))
            finally:
                torch.set_default_dtype(torch.float32)
        self.assert_same(*results)


def given(model, seed):
    """Gradients that do not depend on where the model is."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        values = torch.randn(parameter.shape, generator=generator)
        parameter.grad = values.to(parameter.device, parameter.dtype)


@unittest.skipUnless(torch.cuda.is_available(), "there is no GPU")
class OnAGpu(Case):
    def both(self, dtype=torch.bfloat16, **options):
        """A model in host memory and the same one on the GPU, each with its optimizer."""
        models = [model_of(dtype).to(device) for device in ("cpu", "cuda")]
        return models, [self.adamw(model.parameters(), lr=1e-2, **more)
                        for model, more in zip(models, ({}, options))]

    def step(self, models, optimizers, seed):
        for model, optimizer in zip(models, optimizers):
            given(model, seed)
            optimizer.step()

    def assert_same_models(self, models, optimizers):
        self.assert_same(*(weights_of(model) for model in models))
        self.assert_same(*(moments_of(optimizer) for optimizer in optimizers))

    def test_updates_have_the_bits_of_those_in_host_memory(self):
        for dtype, place, updated in itertools.product(
                (torch.float32, torch.bfloat16, torch.float16), (None, self.folder.name),
                ("cpu", "device")):
            with self.subTest(dtype=dtype, place=place, updated=updated):
                models, optimizers = self.both(
                    dtype, nvme=place, config={"headrace": {"update_on": updated}})
                for seed in range(4):
                    self.step(models, optimizers, seed)
                self.assert_same_models(models, optimizers)
                self.assertEqual({str(p.device) for p in models[1].parameters()}, {"cuda:0"})

    def test_writes_between_steps_are_trained_on(self):
        models, optimizers = self.both()
        for seed in range(4):
            self.step(models, optimizers, seed)
            for model in models:
                with torch.no_grad():
                    model[0].weight.data[3, seed] = seed + 0.5
                    model[2].bias.mul_(0.5)
        self.step(models, optimizers, 9)
        self.assert_same_models(models, optimizers)

    def test_streams_of_the_program_are_followed(self):
        models, optimizers = self.both()
        for seed in range(6):
            given(models[0], seed)
            optimizers[0].step()
            with torch.cuda.stream(torch.cuda.Stream()):
                given(models[1], seed)
                for parameter in models[1].parameters():  # late, and only on this stream
                    torch.cuda._sleep(2_000_000)
                    parameter.grad = parameter.grad.clone()
                optimizers[1].step()
                optimizers[1].zero_grad()  # torch gives this memory away again
                [torch.full((4096,), 7.0, device="cuda") for _ in range(20)]
            torch.cuda.synchronize()
        self.assert_same_models(models, optimizers)

    def test_a_model_on_both_is_updated_in_both(self):
        for place in (None, self.folder.name):
            models, optimizers = self.both(nvme=place)
            models[1][2].cpu()
            for seed in range(3):
                self.step(models, optimizers, seed)
            self.assert_same_models(models, optimizers)
            self.assertEqual(len(optimizers[1].plan()), 2)

    def test_state_moves_from_one_to_the_other(self):
        models, optimizers = self.both()
        self.step(models, optimizers, 0)
        models += [copy.deepcopy(model) for model in models]
        for model, optimizer in zip(models[2:], reversed(optimizers[:2])):
            optimizers.append(self.adamw(model.parameters(), lr=1e-2))
            optimizers[-1].load_state_dict(optimizer.state_dict())
        for seed in range(1, 3):
            self.step(models, optimizers, seed)
        for model in models[1:]:
            self.assert_same(weights_of(model), weights_of(models[0]))

    def test_what_it_takes_of_the_gpu_is_planned_and_given_back(self):
        free, _ = torch.cuda.mem_get_info()
        model = torch.nn.Linear(4096, 4096, bias=False, device="cuda", dtype=torch.bfloat16)
        given(model, 0)
        torch.cuda.synchronize()
        before, _ = torch.cuda.mem_get_info()
        optimizer = self.adamw(model.parameters())
        optimizer.step()
        torch.cuda.empty_cache()
        after, _ = torch.cuda.mem_get_info()
        planned = optimizer.plan()[0]["device_bytes"]
        self.assertGreater(planned, 0)
        self.assertLessEqual(before - after, planned + (256 << 20), "driver and kernels included")
        optimizer.close()
        del model
        torch.cuda.empty_cache()
        self.assertGreaterEqual(torch.cuda.mem_get_info()[0], free - (256 << 20))

    def test_an_engine_gathers_there_and_takes_gradients_from_there(self):
        with headrace.Engine() as engine, headrace.Engine(gpu=0) as on_gpu:
            for one in (engine, on_gpu):
                group = one.add_group("g", {"w": ((3, 4), "f32"), "h": ((5,), "bf16")})
                one.freeze()
                group.load({"w": bytes(48), "h": bytes(10)})
            gradients = {"g.w": torch.randn(3, 4), "g.h": torch.randn(5).bfloat16()}
            for name, values in gradients.items():
                engine.add_gradient_at(name, values.data_ptr(), DTYPES["f32" if name == "g.w"
                                                                       else "bf16"])
                with self.assertRaisesRegex(headrace.ArgumentError, "in GPU memory"):
                    on_gpu.add_gradient(name, values.float().numpy())
                on_gpu.add_gradient(name, values.cuda())
            with self.assertRaisesRegex(headrace.ArgumentError, r"shape \(4, 3\)"):
                on_gpu.add_gradient("g.w", torch.zeros(4, 3, device="cuda"))
            for one in (engine, on_gpu):
                one.step(0.1)
            self.assertEqual(engine.hash_parameters(), on_gpu.hash_parameters())
            with group.gather() as gathered:
                with self.assertRaisesRegex(headrace.WrongState, "memory of a GPU"):
                    gathered.raw("w")
                values = torch.as_tensor(gathered["w"], device="cuda").cpu()
            self.assertEqual(values.flatten().tolist(),
                             [number for row in on_gpu.store("g.w").tolist() for number in row])

    def test_a_model_that_has_moved_is_refused(self):
        model = model_of().cpu()
        optimizer = self.adamw(model.parameters())
        given(model, 0)
        optimizer.step()
        model.cuda()
        given(model, 1)
        before = weights_of(model)
        with self.assertRaisesRegex(headrace.WrongState, "on cuda:0, and was .* on cpu"):
            optimizer.step()
        self.assert_same(weights_of(model), before)

    def test_gradients_that_are_not_finite_stop_the_step(self):
        models, optimizers = self.both()
        given(models[1], 0)
        models[1][2].bias.grad[3] = math.nan
        before = weights_of(models[1])
        with self.assertRaisesRegex(headrace.NotFinite, "1_3|0_3|bias"):
            optimizers[1].step()
        self.assert_same(weights_of(models[1]), before)
        for model in models:
            given(model, 1)
        self.step(models, optimizers, 1)
        self.assert_same(weights_of(models[0]), weights_of(models[1]))

    def test_a_gradient_scaler_skips_and_goes_on(self):
        model = model_of(torch.float32).cuda()
        optimizer, scaler = self.adamw(model.parameters()), torch.amp.GradScaler("cuda")
        before = weights_of(model)
        generator = torch.Generator().manual_seed(1)
        scaler.scale(loss_of(model, generator)).backward()
        model[0].bias.grad[0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        self.assert_same(weights_of(model), before)
        self.assertEqual(scaler.get_scale(), 2.0 ** 15)
        optimizer.zero_grad()
        scaler.scale(loss_of(model, generator)).backward()
        scaler.step(optimizer)
        self.assertFalse(torch.equal(model[0].weight, before[0]))


class Refusals(Case):
    def test_of_a_parameter_that_has_become_another_change_nothing(self):
        model = model_of(torch.bfloat16)
        optimizer = AdamW(model.parameters(), lr=0.1)
        train(model, optimizer, steps=1)
        model.half()
        before = [parameter.clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with self.assertRaisesRegex(headrace.WrongState, "is now torch.float16.*nothing was done"):
            optimizer.step()
        for parameter, old in zip(model.parameters(), before):
            self.assertTrue(torch.equal(parameter, old))

    def test_of_settings_for_trainers_say_what_to_do_instead(self):
        for config in ({"gradient_clipping": 1.0}, {"gradient_accumulation_steps": 4},
                       {"scheduler": {"type": "WarmupLR"}}):
            with self.assertRaisesRegex(ValueError, f"config has {next(iter(config))}, .*not made"):
                AdamW([torch.nn.Parameter(torch.zeros(1))], config=config)
        with self.assertRaisesRegex(headrace.Unsupported, "durable.*replace.*was not made"):
            AdamW([torch.nn.Parameter(torch.zeros(1))], nvme=self.folder.name,
                  config={"headrace": {"durable": 1, "store": "run"}})

    def test_of_settings_come_before_the_first_step(self):
        parameter = torch.nn.Parameter(torch.zeros(1))
        missing = {"device": "nvme", "nvme_path": self.folder.name + "/none"}
        for options, words in (
                ({"config": {"headrace": {"host_buget_bytes": 1}}},
                 "^config: headrace.host_buget_bytes: unknown key; did you mean"),
                ({"config": {"zero_optimization": {"offload_optimizer": missing}}},
                 "^nvme_path is .*/none, and no file can be made"),
                ({"config": {"zero_optimization": {"offload_param": missing}}},
                 "^nvme_path is .*/none, and no file can be made"),
                ({"nvme": ""}, "^nvme is ''; the optimizer was not made"),
                ({"nvme": 5}, "^nvme is 5; the optimizer was not made"),
                ({"snapshots": ""}, "^snapshots is ''; the optimizer was not made")):
            with self.assertRaisesRegex((ValueError, OSError), words):
                AdamW([parameter], **options)

    def test_name_options_that_are_no_numbers(self):
        parameter = torch.nn.Parameter(torch.zeros(1))
        for options, words in (
                ({"lr": "1e-3"}, r"^lr is '1e-3' in param_groups\[0\]; nothing was done"),
                ({"lr": None}, "^lr is None"), ({"lr": torch.ones(2)}, r"^lr is tensor\("),
                ({"betas": 0.9}, r"^betas is 0.9 in param_groups\[0\]"),
                ({"betas": (0.9, "x")}, "^beta2 is 'x'"), ({"betas": (0.9,)}, "^betas is"),
                ({"weight_decay": [1]}, r"^weight_decay is \[1\]")):
            with self.assertRaisesRegex(headrace.ArgumentError, words):
                AdamW([parameter], **options)
        optimizer = AdamW([parameter], lr=0.1)
        with self.assertRaisesRegex(headrace.ArgumentError, r"^lr is 'x' in param_groups\[1\]"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": "x"})

    def test_are_not_needed_for_a_folder_below_home_or_a_changed_directory(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.makedirs(self.folder.name + "/state")
        with unittest.mock.patch.dict(os.environ, HOME=self.folder.name):
            os.chdir(self.folder.name)
            for nvme in ("~/state", "state"):
                parameter = torch.nn.Parameter(torch.zeros(3))
                parameter.grad = torch.ones(3)
                optimizer = self.adamw([parameter], nvme=nvme, snapshots="~/snapshots")
                optimizer.step()
                os.chdir(before)
                self.assertEqual(optimizer.full_state_dict()["state"][0]["step"], 1)
                self.assertEqual(os.path.dirname(optimizer.state_dict()["headrace"]["snapshot"]),
                                 self.folder.name + "/snapshots")
                os.chdir(self.folder.name)

    def test_are_not_needed_for_one_name_in_two_groups(self):
        ours = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        theirs = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        both = [kind([{"params": [("x", one)]}, {"params": [("x", other)]}], lr=0.1)
                for kind, (one, other) in ((AdamW, ours), (torch.optim.AdamW, theirs))]
        for parameter, sign in zip([*ours, *theirs], (1, -1, 1, -1)):
            parameter.grad = sign * torch.ones(3)
        for optimizer in both:
            optimizer.step()
        for mine, other in zip(ours, theirs):
            self.assertTrue(torch.allclose(mine, other, atol=1e-6))

    def test_are_not_needed_for_a_gradient_that_is_a_negative_view(self):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = AdamW([parameter], lr=0.1)
        parameter.grad = torch._neg_view(torch.ones(3))
        optimizer.step()
        self.assertTrue((parameter > 1).all())

    def test_of_values_skip_every_engine_or_none(self):
        first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
        optimizer = AdamW([first], lr=0.1, config={"headrace": {"non_finite": "skip"}})
        first.grad = torch.ones(3)
        optimizer.step()
        optimizer.add_param_group({"params": [second]})
        before = first.detach().clone()
        second.grad = torch.full((3,), math.nan)
        optimizer.step()
        self.assertTrue(torch.equal(first, before) and torch.equal(second, torch.ones(3)))

    def test_name_the_parameter_or_the_option(self):
        wide = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        elsewhere = torch.nn.Parameter(torch.ones(2, device="meta"))
        good = torch.nn.Parameter(torch.ones(2))
        for parameter, words in ((wide, "torch.float64"), (elsewhere, "is on meta")):
            with self.assertRaisesRegex(NotImplementedError, f"'layer.w'.*{words}"):
                AdamW([("layer.w", parameter)])
        for options, words in (({"lr": -1.0}, "lr is -1.0"), ({"betas": (0.9, 1.0)}, "beta2 is 1"),
                               ({"config": {"headrace": {"update_mode": "defer"}}}, "update_mode"),
                               ({"config": {"headrace": {"optimizer": "lion"}}}, "'adamw'")):
            with self.assertRaisesRegex(ValueError, words):
                AdamW([good], **options)
        optimizer = self.adamw([good])
        with self.assertRaises(NotImplementedError):
            optimizer.add_param_group({"params": [wide]})
        self.assertEqual(len(optimizer.param_groups), 1)

    def test_of_names_that_an_engine_cannot_have_give_the_limit(self):
        weight = torch.nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        for name, text in (("", "name '' of 0 bytes"),
                           ("ab" * 600, r"'abab.*b\.\.\.' of 1200 bytes")):
            optimizer = self.adamw([(name, weight)], nvme=self.folder.name)
            with self.assertRaisesRegex(ValueError, f"parameter of.*{text}.*1 to 1024 bytes"):
                optimizer.step()
        self.assertEqual(weight.tolist(), [1, 1])

    def test_of_options_beyond_float32_name_them_and_their_group(self):
        first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        for rule, name, value in ((AdamW, "lr", 1e39), (AdamW, "eps", 1e39), (Lion, "lr", 3.5e38),
                                  (Adagrad, "lr_decay", 1e39), (SGD, "weight_decay", math.inf)):
            text = re.escape(f"{name} is {value} in param_groups[1]; nothing was done.")
            with self.assertRaisesRegex(ValueError, text):
                rule([{"params": [first]}, {"params": [second], name: value}])
        with self.assertRaisesRegex(ValueError, r"beta2 is 0.9999999999 in param_groups\[0\]"):
            Adam([first], betas=(0.9, 0.9999999999))
        for nvme in (None, self.folder.name):
            optimizer = self.adamw([first], nvme=nvme)
            with self.assertRaisesRegex(ValueError, r"lr is 1e\+39 in param_groups\[1\]"):
                optimizer.add_param_group({"params": [second], "lr": 1e39})
            optimizer.add_param_group({"params": [second]})
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, [lambda step: 1, lambda step: 1e43 if step else 1])
            first.grad = second.grad = torch.ones(2)
            optimizer.step()
            schedule.step()
            before = [first.clone(), second.clone()]
            with self.assertRaisesRegex(ValueError, r"lr is 1e\+40 in param_groups\[1\]"):
                optimizer.step()
            self.assert_same(before, [first, second])

    def test_a_folder_that_takes_no_files_is_found_when_the_optimizer_is_made(self):
        parameter = torch.nn.Parameter(torch.ones(2))
        file = pathlib.Path(self.folder.name, "file")
        file.touch()
        for rule in (AdamW, Adam, Adagrad, Lion, SGD):
            for folder in (f"{self.folder.name}/none", str(file), "/proc"):
                with self.assertRaisesRegex(FileNotFoundError, f"nvme is {folder}.*not made"):
                    rule([parameter], nvme=folder)
        for folder in (file, file / "below", "/proc/below"):
            with self.assertRaisesRegex(FileNotFoundError, f"snapshots is {folder}.*not made"):
                AdamW([parameter], snapshots=str(folder))
        with unittest.mock.patch("tempfile.TemporaryFile",
                                 side_effect=PermissionError(errno.EACCES, "Permission denied")):
            with self.assertRaisesRegex(headrace.IoError, "Permission.*not made") as raised:
                AdamW([parameter], nvme=self.folder.name)
        self.assertEqual(raised.exception.errno, errno.EACCES)
        self.adamw([parameter], snapshots=self.folder.name + "/new/one")
        self.assertEqual(os.listdir(self.folder.name), ["file"])

    def test_a_folder_that_vanishes_stops_the_first_step_and_leaves_the_model(self):
        parameter = torch.nn.Parameter(torch.ones(2))
        os.mkdir(self.folder.name + "/none")
        optimizer = self.adamw([parameter], nvme=self.folder.name + "/none")
        os.rmdir(self.folder.name + "/none")
        parameter.grad = torch.ones(2)
        with self.assertRaisesRegex(FileNotFoundError, "none"):
            optimizer.step()
        self.assertEqual(parameter.tolist(), [1, 1])
        os.mkdir(self.folder.name + "/none")
        optimizer.step()
        self.assertLess(parameter[0].item(), 1)

    def test_a_closed_optimizer_does_not_begin_anew(self):
        model = model_of()
        optimizer = self.adamw(model.parameters())
        train(model, optimizer, 1)
        state = optimizer.state_dict()
        self.assertEqual(len(optimizer.plan()), 1)
        optimizer.close()
        optimizer.close()
        for call in (optimizer.step, optimizer.state_dict, optimizer.full_state_dict,
                     optimizer.plan, optimizer.stats, lambda: optimizer.load_state_dict(state)):
            with self.assertRaisesRegex(headrace.WrongState, "closed.*nothing was done. Call it"):
                call()
        self.assertIn("AdamW", repr(optimizer))

    def test_before_its_first_step_there_is_no_state_and_no_plan(self):
        optimizer = self.adamw(model_of().parameters())
        self.assertEqual((optimizer.state_dict()["state"], optimizer.plan(), optimizer.stats()),
                         ({}, [], []))


ALONE = '''
import os, random, resource, signal, sys, threading, time, torch
from headrace.torch import AdamW
folder, what = sys.argv[1:3]
weight = torch.nn.Parameter(torch.ones(1 << 18))
optimizer = AdamW([weight], nvme=folder, snapshots=folder + "/snapshots")

def step():
    weight.grad = torch.ones_like(weight)
    optimizer.step()

if what == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    try:
        step()
    except OSError as error:
        assert folder in str(error), error
        assert torch.equal(weight, torch.ones(1 << 18))
        sys.exit(23)
if what == "exit":
    step()  # and no close()
if what == "killed":
    for number in range(10 ** 6):
        step()
        torch.save([optimizer.state_dict(), weight], folder + "/new")
        os.rename(folder + "/new", folder + "/saved")
        print(number, flush=True)
'''


class Faults(Case):
    def alone(self, what, **options):
        return subprocess.Popen([sys.executable, "-c", ALONE, self.folder.name, what],
                                stdout=subprocess.PIPE, text=True, **options)

    def left(self):
        return sorted(path.name for path in pathlib.Path(self.folder.name).iterdir()
                      if path.name not in ("snapshots", "saved", "new"))

    def test_a_full_drive_stops_the_first_step_and_leaves_the_model(self):
        with self.alone("full") as process:
            process.communicate()
        self.assertEqual((process.returncode, self.left()), (23, []))

    def test_a_process_that_ends_without_close_leaves_nothing(self):
        with self.alone("exit") as process:
            process.communicate()
        self.assertEqual((process.returncode, self.left()), (0, []))

    def test_a_swap_file_that_was_cut_is_an_error_of_the_step(self):
        parameter = torch.nn.Parameter(torch.ones(1 << 18))
        optimizer = self.adamw([parameter], nvme=self.folder.name)
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        before = parameter.detach().clone()
        files = [path for path in pathlib.Path(self.folder.name).rglob("*")
                 if path.is_file() and path.stat().st_size > 1 << 20]
        self.assertTrue(files)
        for path in files:
            os.truncate(path, 4096)
        with self.assertRaisesRegex(OSError, re.escape(self.folder.name)):
            optimizer.step()
        self.assertTrue(torch.equal(parameter, before))
        with self.assertRaises(headrace.Error):  # it does not go on as if nothing had been
            optimizer.step()

    def test_kills_in_a_save_leave_the_one_before(self):
        seed = int(os.environ.get("HEADRACE_TEST_SEED", time.time_ns() % 10 ** 6))
        print(f"HEADRACE_TEST_SEED={seed}")
        drawn = random.Random(seed)
        for _ in range(5):
            with self.alone("killed") as process:
                for _ in range(drawn.randint(1, 3)):
                    made = int(process.stdout.readline())
                time.sleep(drawn.random() * 0.05)
                process.kill()
                made = max([made, *(int(line) for line in process.stdout.read().split())])
            state, weight = torch.load(self.folder.name + "/saved", weights_only=True)
            follower = self.adamw([weight], nvme=self.folder.name)
            follower.load_state_dict(state)
            steps = follower.full_state_dict()["state"][0]["step"].item()
            self.assertIn(steps, (made + 1, made + 2))
            follower.close()


class Process(Case):
    def test_a_hundred_optimizers_leave_no_descriptor_thread_or_file(self):
        def held():
            return [len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]

        for number in range(100):
            if number == 1:
                before = held()
            parameter = torch.nn.Parameter(torch.ones(10))
            optimizer = AdamW([parameter], nvme=self.folder.name)
            parameter.grad = torch.ones(10)
            optimizer.step()
            if number % 2:
                optimizer.close()
            del optimizer  # the collector ends it
        self.assertEqual(held(), before)
        self.assertEqual(os.listdir(self.folder.name), [])

    @unittest.skipIf(DEVICE == "cuda", "CUDA serves no forked process")
    def test_a_step_in_a_forked_child_is_refused_and_the_parent_goes_on(self):
        parameter = torch.nn.Parameter(torch.ones(10))
        optimizer = self.adamw([parameter], lr=0.5, nvme=self.folder.name)
        parameter.grad = torch.ones(10)
        optimizer.step()
        child = os.fork()
        if child == 0:
            try:
                optimizer.step()
            except headrace.WrongState as error:
                os._exit(0 if "forked child" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        optimizer.step()
        self.assertEqual(optimizer.state[parameter]["step"].item(), 2)

    @unittest.skipIf(DEVICE == "cuda", "CUDA serves no forked process")
    def test_forked_data_loaders_read_the_weights(self):
        model = model_of()
        optimizer = self.adamw(model.parameters(), nvme=self.folder.name)
        train(model, optimizer, 1)
        weight = model[0].bias

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return weight.detach()[index] * 1

        loader = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1,
                                             multiprocessing_context="fork")
        for _ in range(2):
            self.assertTrue(torch.equal(next(iter(loader)), weight.detach()[:4]))
            train(model, optimizer, 1)

    def test_ctrl_c_in_a_step_leaves_all_of_it_or_nothing(self):
        """The signal comes inside the update; weights and state agree afterwards."""
        in_memory = "_finish" if DEVICE == "cpu" else "_copy_back"  # with an engine on a GPU
        f32, bf16 = torch.float32, torch.bfloat16
        for nvme, place, dtype in ((None, in_memory, f32), (self.folder.name, "_copy_back", bf16),
                                   (self.folder.name, "_step_and_copy", f32)):
            with self.subTest(place=place):
                self.press_ctrl_c(nvme, place, dtype)

    def press_ctrl_c(self, nvme, place, dtype):
        model, other = model_of(dtype), model_of(dtype)
        optimizer, beside = (self.adamw(one.parameters(), nvme=nvme) for one in (model, other))
        train(model, optimizer, 1)
        train(other, beside, 2)
        part = optimizer._parts[0]
        original = getattr(part, place)

        def pressed(*arguments):
            signal.raise_signal(signal.SIGINT)
            return original(*arguments)

        setattr(part, place, pressed)
        generator = torch.Generator().manual_seed(1)
        loss_of(model, generator)  # the batch of the first step
        with self.assertRaises(KeyboardInterrupt):
            loss_of(model, generator).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        setattr(part, place, original)
        self.assert_same(weights_of(model), weights_of(other))
        self.assertEqual({values["step"].item() for values in optimizer.state.values()}, {2})
        steps = [values["step"].item() for values in optimizer.state_dict()["state"].values()]
        self.assertEqual(steps, [2, 2, 2, 2])
        optimizer.zero_grad()
        for one, its in ((model, optimizer), (other, beside)):
            train(one, its, 2, seed=9)
        self.assert_same(weights_of(model), weights_of(other))


if __name__ == "__main__":
    # A shell that runs this in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    FOLDER = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
