# SPDX-License-Identifier: Apache-2.0
"""offload_test.py FOLDER [TEST...]: headrace.offload(). FOLDER lies on a drive."""
import contextlib
import copy
import dataclasses
import functools
import gc
import io
import itertools
import json
import math
import os
import pickle
import random
import runpy
import signal
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import warnings
import weakref

sys.dont_write_bytecode = True
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
# Not torch.set_num_threads(1): it makes a pool of threads, which a forked child cannot use, and
# torch.compile aborts there.
os.environ["OMP_NUM_THREADS"] = "1"
try:
    import torch
except ImportError as missing:
    print(f"torch cannot be imported: {missing}")
    sys.exit(77)
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import headrace  # noqa: E402
import headrace.torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

try:
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
except ImportError:
    transformers = None
try:
    import peft
except ImportError:
    peft = None
NEEDS_TRANSFORMERS = unittest.skipIf(transformers is None, "transformers is not installed")

WIDTH, LAYERS = 32, 4


@contextlib.contextmanager
def interrupted_at_load(number):
    """Of a group's values, the one of this number."""
    load, left = headrace.Group.load, [number]

    def interrupted(group, values):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        load(group, values)

    with unittest.mock.patch("headrace.Group.load", interrupted):
        yield


@contextlib.contextmanager
def interrupted_in_load_of(content):
    """After the first of a parameter's ranges, which are of 256 KiB."""
    load, raw = headrace.Engine.load_content, headrace._engine._raw

    def broken(engine, name, kind, values):
        ranges = []

        def counted(*memory):
            ranges.append(memory)
            if kind == content and len(ranges) == 2:
                raise KeyboardInterrupt
            return raw(*memory)

        with unittest.mock.patch("headrace._engine._raw", counted):
            load(engine, name, kind, values)

    with unittest.mock.patch("headrace.Engine.load_content", broken):
        yield


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.fault = None  # raised in the middle of forward

    def forward(self, x):
        hidden = F.gelu(self.up(self.norm(x)))
        if self.fault is not None:
            raise self.fault
        return x + self.down(hidden)


class Results(Layer):
    """Its operations save their own results for backward."""

    def forward(self, x):
        hidden = torch.softmax(F.relu(self.up(self.norm(x))), -1)
        return torch.tanh(x + self.down(hidden))


class Net(torch.nn.Module):
    """An embedding, tied to the head, and layers."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.reentrant = None  # True or False: checkpoints of this kind

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else \
                checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.head(x)


class ResultsNet(Net):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Results() for _ in range(LAYERS))


def net_of(dtype=torch.float32):
    torch.manual_seed(0)
    return Net().to(dtype)


def tokens_of(seed=1):
    return torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(seed))


def loss_of(model, seed=1):
    tokens = tokens_of(seed)
    return F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())


def values_of(model):
    return {name: values.clone() for name, values in model.state_dict().items()}


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def offload(self, model, *arguments, **options):
        options.setdefault("lr", 1e-2)
        model, optimizer = headrace.offload(model, *arguments, **options)
        self.addCleanup(optimizer.close)
        return model, optimizer

    def file_of(self, text):
        path = f"{self.folder}/{len(os.listdir(self.folder))}.json"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def train(self, model, optimizer, steps=3, accumulation=1, max_norm=None, loss=loss_of):
        seen = []
        for step in range(steps):
            for part in range(accumulation):
                value = loss(model, step * accumulation + part) / accumulation
                value.backward()
                seen.append(value.item())
            if max_norm is not None:
                seen.append(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
            optimizer.step()
            optimizer.zero_grad()
        return seen

    def assert_same(self, left, right):
        self.assertEqual(left.keys(), right.keys())
        for name in left:
            self.assertEqual(left[name].dtype, right[name].dtype, name)
            self.assertTrue(torch.equal(left[name], right[name]), name)


class Training(Case):
    """Bit-equal to torch's own parameters, wherever the values are."""

    def test_has_the_bits_of_parameters_in_memory(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for reentrant in (None, False, True):
                with self.subTest(dtype=dtype, reentrant=reentrant):
                    self.compare(dtype, reentrant)

    def compare(self, dtype, reentrant):
        plain = net_of(dtype)
        optimizer = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
        expected = self.train(plain, optimizer)
        norms = None
        for nvme in (None, self.folder):
            model = net_of(dtype)
            model.reentrant = reentrant
            model, optimizer = self.offload(model, nvme=nvme)
            self.assertEqual(self.train(model, optimizer), expected)
            self.assert_same(values_of(model), values_of(plain))
            binds = optimizer.stats()[0]["model"]["binds"]
            self.assertEqual(binds, {"": 1, **{f"layers.{i}": 6 for i in range(LAYERS)}})
            seen = self.train(model, optimizer, max_norm=0.5)
            self.assertEqual(seen, norms or seen)
            norms = seen
            optimizer.close()

    def test_accumulates_gradients(self):
        plain = net_of()
        expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2),
                              accumulation=3)
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        self.assertEqual(self.train(model, optimizer, accumulation=3), expected)
        self.assert_same(values_of(model), values_of(plain))

    def test_16_bit_gradients_repeat_only_if_config_says_so(self):
        model, optimizer = self.offload(net_of(torch.bfloat16))
        loss_of(model).backward()
        with self.assertRaisesRegex(headrace.WrongState, r"optimizer.zero_grad\(\). If .*: headrace"
                                    r'.offload\(model, {"gradient_accumulation_steps": n}\) adds'):
            loss_of(model).backward()
        optimizer.close()
        model, optimizer = self.offload(net_of(torch.bfloat16),
                                        {"gradient_accumulation_steps": 2})
        self.train(model, optimizer, accumulation=2)

    def test_in_16_bits_is_warned_of_only_where_a_file_asks_for_32(self):
        with self.assertNoLogs("headrace", "WARNING"):
            for config in (None, {"gradient_accumulation_steps": 2}):
                self.offload(net_of(torch.bfloat16), config)
            plain = net_of(torch.bfloat16)
            own = headrace.torch.AdamW(plain.parameters(), nvme=self.folder)
            self.addCleanup(own.close)
            self.train(plain, own, 1)
        with self.assertLogs("headrace", "WARNING") as logged:
            self.offload(net_of(torch.bfloat16), self.file_of("{}"))
        self.assertRegex(logged.output[0], "BF16.* Convert the model, or set bf16.enabled or "
                         "fp16.enabled in config$")

    def test_follows_every_rule_and_its_groups(self):
        for name in ("AdamW", "Adam", "Adagrad", "Lion", "SGD"):
            with self.subTest(name):
                def groups(model):
                    decayed = [p for p in model.parameters() if p.dim() > 1]
                    others = [p for p in model.parameters() if p.dim() < 2]
                    return [{"params": decayed, "weight_decay": 0.1},
                            {"params": others, "weight_decay": 0.0, "lr": 3e-3}]
                plain = net_of()
                own = getattr(headrace.torch, name)(groups(plain), lr=1e-2)
                schedule = torch.optim.lr_scheduler.StepLR(own, 1, 0.5)
                expected = [(self.train(plain, own, 1), schedule.step())[0] for _ in range(3)]
                model = net_of()
                model, optimizer = self.offload(model, nvme=self.folder, optimizer=name,
                                                params=groups(model))
                schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
                seen = [(self.train(model, optimizer, 1), schedule.step())[0] for _ in range(3)]
                self.assertEqual(seen, expected)
                self.assert_same(values_of(model), values_of(plain))
                self.assertIsInstance(optimizer, torch.optim.Optimizer)
                optimizer.close()

    def test_serves_checkpoints_with_a_policy(self):
        from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

        def policy(_context, operator, *_arguments, **_options):
            saves = operator == torch.ops.aten.addmm.default
            return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

        def loss(model, seed):
            x = model.embedding(tokens_of(seed))
            for layer in model.layers:
                x = checkpoint(layer, x, use_reentrant=False, context_fn=functools.partial(
                    create_selective_checkpoint_contexts, policy))
            return model.head(x).square().mean()

        plain = net_of()
        expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2), loss=loss)
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        self.assertEqual(self.train(model, optimizer, loss=loss), expected)
        self.assert_same(values_of(model), values_of(plain))

    def test_uses_blocks_twice_skips_them_and_changes_their_order(self):
        def loss(model, seed):
            x = model.embedding(tokens_of(seed))
            for i in (0, 2, 2, 1, 0)[seed % 2:]:
                x = model.layers[i](x)
            return model.head(x).square().mean()

        plain = net_of()
        expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2), loss=loss)
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        self.assertEqual(self.train(model, optimizer, loss=loss), expected)
        self.assert_same(values_of(model), values_of(plain))

    def test_serves_two_losses_and_a_retained_graph(self):
        def gradients(model):
            seen = {}
            for name, parameter in model.named_parameters():
                parameter.register_hook(
                    lambda g, name=name: seen.setdefault(name, []).append(g.clone()))
            out = model(tokens_of())
            out.square().mean().backward(retain_graph=True)
            out.abs().mean().backward()
            return seen

        expected = gradients(net_of())
        model, _ = self.offload(net_of(), nvme=self.folder)
        found = gradients(model)
        self.assertEqual(found.keys(), expected.keys())
        for name in found:
            self.assertEqual(len(found[name]), 2)
            self.assertTrue(all(map(torch.equal, found[name], expected[name])), name)

    def test_serves_autograd_grad(self):
        def gradients(model):
            x = torch.ones(2, WIDTH, requires_grad=True)
            weight = model.layers[1].up.weight
            return torch.autograd.grad(model.layers[1](model.layers[0](x)).sum(), [x, weight])

        model, optimizer = self.offload(net_of(), nvme=self.folder)
        loss_of(model).backward()  # the engine's gradients stay as they are
        norm = model.layers[1].up.weight.grad.norm()
        self.assertTrue(all(map(torch.equal, gradients(model), gradients(net_of()))))
        self.assertEqual(model.layers[1].up.weight.grad.norm(), norm)

    def test_refuses_transforms_of_torch_func_and_goes_on(self):
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
        model, optimizer = self.offload(model, nvme=self.folder)
        x, y = torch.randn(4, 8), torch.randn(4, 8)
        wanted = model(x).detach()
        for use in (lambda: torch.func.grad(lambda z: model(z).sum())(x),
                    lambda: torch.func.vjp(model, x), lambda: torch.func.jacrev(model)(x),
                    lambda: torch.func.jvp(model, (x,), (y,)),
                    lambda: torch.func.jacfwd(model)(x),
                    lambda: torch.func.functionalize(model)(x),
                    lambda: torch.func.vmap(torch.func.grad(lambda z: model(z).sum()))(x)):
            for context in (torch.enable_grad, torch.no_grad):
                with context(), self.assertRaisesRegex(headrace.Unsupported, "torch.func"):
                    use()
        self.assertTrue(torch.equal(model(x), wanted))
        self.assertTrue(torch.equal(torch.func.vmap(model)(x).detach(), wanted))
        model(x).sum().backward()
        optimizer.step()
        self.assertFalse(torch.equal(model(x), wanted))

    def test_serves_blocks_whose_dataclasses_have_unset_fields(self):
        @dataclasses.dataclass
        class Hidden:
            x: torch.Tensor
            later: torch.Tensor = dataclasses.field(init=False)

        class Handing(Layer):
            def forward(self, hidden):
                return Hidden(super().forward(hidden.x))

        def loss(model, seed):
            hidden = Hidden(model.embedding(tokens_of(seed)))
            for layer in model.layers:
                hidden = layer(hidden)
            return model.head(hidden.x).square().mean()

        plain, model = net_of(), net_of()
        for one in (plain, model):
            one.layers = torch.nn.ModuleList(Handing() for _ in range(LAYERS))
        model.load_state_dict(plain.state_dict())
        expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2), loss=loss)
        model, optimizer = self.offload(model)
        self.assertEqual(self.train(model, optimizer, loss=loss), expected)

    def test_serves_forward_passes_of_several_threads(self):
        model, optimizer = self.offload(net_of(), {"headrace": {"prefetch_groups": 8}},
                                        nvme=self.folder)
        wanted, wrong = model(tokens_of()).detach(), []

        def run():
            with torch.no_grad():
                for _ in range(40):
                    try:
                        if not torch.equal(model(tokens_of()), wanted):
                            wrong.append("other values")
                    except Exception as error:
                        wrong.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_counts_no_parameter_without_elements(self):
        model = net_of()
        model.layers[0].empty = torch.nn.Parameter(torch.empty(0))
        model, optimizer = self.offload(model)
        self.train(model, optimizer)
        self.assertEqual(model.layers[0].empty.numel(), 0)

    def test_detects_what_torch_detects_of_activations_that_change(self):
        class Changes(Layer):
            def forward(self, x):
                hidden = self.up(x).exp()
                out = self.down(hidden)
                hidden.add_(1)  # exp() and down() have saved it
                return out

        for offloaded in (False, True):
            model = torch.nn.Sequential(Changes(), Changes())
            if offloaded:
                model, _ = self.offload(model)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                model(torch.ones(2, WIDTH)).sum().backward()

    def test_keeps_nothing_of_a_forward_pass_without_backward(self):
        for results in (False, True):
            model, optimizer = self.offload(ResultsNet() if results else net_of())
            kept = []
            hooks = [layer.register_forward_hook(
                lambda _module, _arguments, out: kept.append(
                    StorageWeakRef(out.untyped_storage()))) for layer in model.layers]
            loss_of(model)
            gc.collect()
            self.assertEqual([one.expired() for one in kept], LAYERS * [True])
            for hook in hooks:
                hook.remove()

    def test_of_operations_that_save_their_results_has_the_bits_of_memory(self):
        torch.manual_seed(0)
        plain = ResultsNet()
        model, optimizer = self.offload(copy.deepcopy(plain), nvme=self.folder)
        x = torch.ones(2, WIDTH, requires_grad=True)
        gradients = [torch.autograd.grad(one.layers[0](x).sum(), x, create_graph=True)[0]
                     for one in (plain, model)]
        self.assertTrue(torch.equal(*gradients))
        self.assertTrue(gradients[1].requires_grad)
        own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
        self.assertEqual(self.train(model, optimizer), self.train(plain, own))
        self.assert_same(values_of(model), values_of(plain))

    def test_compiles_blocks_and_models(self):
        plain = net_of()
        expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2))
        for whole in (False, True):
            model, optimizer = self.offload(net_of(), nvme=self.folder)
            for module in [model] if whole else model.layers:
                module.compile(backend="aot_eager")
            self.assertEqual(self.train(model, optimizer), expected)
            self.assertEqual(set(optimizer.stats()[0]["model"]["binds"].values()), {1, 6})
            torch.compiler.reset()
        model, _ = self.offload(net_of())
        with self.assertRaisesRegex(Exception, "headrace.offload.*fullgraph"):
            torch.compile(model, backend="aot_eager", fullgraph=True)(tokens_of())
        torch.compiler.reset()


class Drawn(torch.nn.Module):
    """A block of a kind that is drawn: with checkpoints inside, dropout, or a view of a weight."""

    def __init__(self, draw):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16, bias=False)
        self.scale = torch.nn.Parameter(torch.ones(16))
        self.kind = draw.choice(("plain", "inner", "inner reentrant", "dropout", "view"))

    def hidden(self, x):
        weight = self.first.weight.t().contiguous() if self.kind == "view" else self.first.weight
        x = F.gelu(F.linear(x, weight, self.first.bias)) * self.scale
        return F.dropout(x, 0.2) if self.kind == "dropout" else x

    def forward(self, x, extra):
        h = checkpoint(self.hidden, x, use_reentrant="reentrant" in self.kind) \
            if "inner" in self.kind else self.hidden(x)
        h = h if extra is None else h + extra
        return x + self.second(h), h


class DrawnNet(torch.nn.Module):
    """Some of its parameters are frozen or tied. A forward pass is a list of what is drawn for
    each use of a block: its number, its checkpoint, whether it runs without gradients before, and
    what becomes of its outputs."""

    def __init__(self, seed):
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)
        self.layers = torch.nn.ModuleList(Drawn(draw) for _ in range(draw.randint(2, 6)))
        frozen = draw.choice((lambda name: False, lambda name: "scale" not in name,
                              lambda name: draw.random() < 0.5, lambda name: "first" in name))
        for name, parameter in self.layers.named_parameters():
            parameter.requires_grad_(not frozen(name))
        if draw.random() < 0.3:
            self.layers[-1].second.weight = self.layers[0].second.weight
        self.passes = [[(draw.randrange(len(self.layers)), draw.choice((None, None, False, True)),
                         draw.random() < 0.15, draw.choice([""] * 6 + ["cut", "use", "use", "sum"]))
                        for _ in range(draw.randint(1, 8))] for _ in range(4)]

    def forward(self, x, uses):
        x, extra, kept = self.first(x), None, []
        for number, reentrant, before, then in uses:
            layer = self.layers[number]
            if before:
                with torch.no_grad():
                    layer(x, extra)
            x, h = layer(x, extra) if reentrant is None else \
                checkpoint(layer, x, extra, use_reentrant=reentrant)
            x = x.detach() if then == "cut" else x
            extra = h if then == "use" else extra
            kept += [h] if then == "sum" else []
        return self.last(x) + sum(h[:, :4] for h in kept)


class Random(Case):
    def run_of(self, model, optimizer, seed):
        seen = []
        for number, uses in enumerate(model.passes):
            torch.manual_seed(number)
            x = torch.randn(3, 16, requires_grad=seed % 2 == 0)
            out = model(x, uses)
            out.square().mean().backward(retain_graph=seed % 5 == 0)
            if seed % 5 == 0:
                out.abs().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += [out.sum().item(), None if x.grad is None else x.grad.sum().item()]
        return seen

    def test_uses_have_the_bits_of_torch(self):
        first = int.from_bytes(os.urandom(3), "little")
        print(f"\nfirst seed: {first}")
        for seed in range(first, first + 60):
            with self.subTest(seed=seed):
                plain, model = DrawnNet(seed), DrawnNet(seed)
                own = headrace.torch.AdamW([p for p in plain.parameters() if p.requires_grad],
                                           lr=1e-2)
                expected = self.run_of(plain, own, seed)
                config = {"headrace": {"prefetch_groups": seed % 3}} if seed % 4 else None
                model, optimizer = self.offload(
                    model, config, nvme=self.folder if seed % 4 else None, blocks=Drawn)
                self.assertEqual(self.run_of(model, optimizer, seed), expected)
                self.assert_same(values_of(model), values_of(plain))
                self.assertEqual(optimizer.stats()[0]["model"]["stale_aliases"], 0)
                optimizer.restore()  # nothing is left bound


def models():
    """Tiny models of transformers' classes, with dropout, and what each is called with."""
    text = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4}
    llama = {**text, "intermediate_size": 48, "num_hidden_layers": 3, "num_key_value_heads": 2,
             "attention_dropout": 0.1}
    ids = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(3))
    of_text = {"input_ids": ids, "labels": ids, "use_cache": False}
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    return {
        "llama": (lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**llama, tie_word_embeddings=True)), of_text, 3),
        "gpt2": (lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=64, n_positions=32, n_embd=32, n_layer=3, n_head=4)), of_text, 3),
        "vit": (lambda: transformers.ViTForImageClassification(transformers.ViTConfig(
            hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
            image_size=16, patch_size=4, num_labels=5, hidden_dropout_prob=0.1)),
            {"pixel_values": images, "labels": torch.tensor([1, 3])}, 4),  # and its embeddings
        "mixtral": (lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(
            **llama, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)),
            of_text, 3),
        "t5": (lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=5, num_heads=4,
            decoder_start_token_id=0)), of_text, 10)}


@NEEDS_TRANSFORMERS
class Transformers(Case):
    def run_of(self, make, inputs, dtype, reentrant, nvme, with_gradients=True):
        """Losses, norms, the first step's gradients, values, binds of a step."""
        torch.manual_seed(0)
        model = make().to(dtype).train()
        if reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        offloaded = nvme != "plain"
        if offloaded:
            model, optimizer = self.offload(model, nvme=nvme)
        inputs = {key: value.to(dtype) if getattr(value, "dtype", None) == torch.float32 else value
                  for key, value in inputs.items()} if isinstance(inputs, dict) else inputs
        gradients = {}
        handles = [parameter.register_hook(lambda g, name=name: gradients.update({name: g.clone()}))
                   for name, parameter in model.named_parameters()]
        torch.manual_seed(7)  # dropout
        loss = model(**inputs).loss
        loss.backward()
        for handle in handles:
            handle.remove()
        seen = [loss.item()]
        if not offloaded:
            return seen, gradients, None, None
        before = dict(optimizer.stats()[0]["model"]["binds"])
        for _ in range(3):
            seen.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            optimizer.zero_grad()
            seen += self.evaluated(model, inputs)
            before = dict(optimizer.stats()[0]["model"]["binds"])
            loss = model(**inputs).loss
            loss.backward()
            seen.append(loss.item())
        after = optimizer.stats()[0]["model"]["binds"]
        optimizer.zero_grad()
        values = values_of(model)
        optimizer.close()
        return seen, gradients, values, {name: after[name] - before[name] for name in after}

    def evaluated(self, model, inputs):
        model.eval()
        with torch.no_grad():
            seen = [model(**inputs).loss.item()]
        with torch.inference_mode():
            seen.append(model(**inputs).loss.item())
        if hasattr(model, "generate") and model.can_generate():
            seen += model.generate(inputs["input_ids"][:, :4], max_new_tokens=5,
                                   do_sample=False, pad_token_id=0).flatten().tolist()
        model.train()
        return seen

    def compare(self, name, dtype, reentrant):
        make, inputs, layers = models()[name]
        plain = self.run_of(make, inputs, dtype, reentrant, "plain")
        memory = self.run_of(make, inputs, dtype, reentrant, None)
        drive = self.run_of(make, inputs, dtype, reentrant, self.folder)
        self.assertEqual(memory[0][0], plain[0][0])
        self.assert_same(memory[1], plain[1])  # gradients
        self.assertEqual(drive[0], memory[0])
        self.assert_same(drive[1], memory[1])
        self.assert_same(drive[2], memory[2])  # weights
        for binds in (memory[3], drive[3]):
            self.assertEqual(sorted(binds.values()), [0] + [2] * layers, binds)

    def test_llama(self):
        for dtype in (torch.float32, torch.bfloat16):
            for reentrant in (None, False, True):
                with self.subTest(dtype=dtype, reentrant=reentrant):
                    self.compare("llama", dtype, reentrant)

    def test_gpt2(self):
        for reentrant in (None, False, True):
            with self.subTest(reentrant=reentrant):
                self.compare("gpt2", torch.float32, reentrant)

    def test_vit(self):
        for dtype, reentrant in ((torch.float32, None), (torch.bfloat16, None),
                                 (torch.float32, False)):
            with self.subTest(dtype=dtype, reentrant=reentrant):
                self.compare("vit", dtype, reentrant)

    def test_t5(self):
        """Its decoder's blocks share an input, whose gradient comes after all of them."""
        for reentrant in (None, False):
            with self.subTest(reentrant=reentrant):
                self.compare("t5", torch.float32, reentrant)

    def test_mixtral(self):
        for reentrant in (None, False, True):
            with self.subTest(reentrant=reentrant):
                self.compare("mixtral", torch.float32, reentrant)


class Gradients(Case):
    def test_clip_with_the_true_norm(self):
        for foreach in (None, False):
            for max_norm in (0.1, 1e6):
                plain, model = net_of(), net_of()
                own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
                model, optimizer = self.offload(model, nvme=self.folder)
                loss_of(plain).backward()
                loss_of(model).backward()
                true = torch.cat([p.grad.double().flatten() for p in plain.parameters()]).norm()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm,
                                                      foreach=foreach)
                self.assertAlmostEqual(norm.item(), true.item(), delta=1e-6 * true.item())
                factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
                for parameter in plain.parameters():
                    parameter.grad.mul_(factor)
                own.step()
                optimizer.step()
                self.assert_same(values_of(model), values_of(plain))

    def test_work_with_grad_scaler(self):
        def train(model, optimizer):
            scaler, seen = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2), []
            for step in range(4):
                loss = loss_of(model, step)
                if step == 2:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                seen.append((loss.item(), scaler.get_scale()))
            return seen

        plain = net_of()
        expected = train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2))
        model, optimizer = self.offload(net_of())
        self.assertEqual(train(model, optimizer), expected)
        self.assert_same(values_of(model), values_of(plain))

    def test_are_refused_where_there_is_no_memory(self):
        model, optimizer = self.offload(net_of())
        loss_of(model).backward()
        weight = model.layers[0].up.weight
        self.assertEqual(weight.grad.shape, weight.shape)
        self.assertIn("layers.0.up.weight", repr(weight.grad))
        self.assertEqual(weight.grad.detach().norm(), weight.grad.data.norm())
        for name, use in {
                "sum": lambda: weight.grad.sum(), "clone": lambda: weight.grad.clone(),
                "add": lambda: weight.grad + 1, "add_": lambda: weight.grad.add_(1),
                "into": lambda: torch.zeros(weight.shape).add_(weight.grad),
                "tolist": lambda: weight.grad.tolist(), "numpy": lambda: weight.grad.numpy(),
                "data_ptr": lambda: weight.grad.data_ptr(),
                "isfinite": lambda: torch.isfinite(weight.grad).all(),
                "inf norm": lambda: weight.grad.norm(float("inf")),
                "mul": lambda: weight.grad.mul_(torch.ones(weight.shape)),
                "clip value": lambda: torch.nn.utils.clip_grad_value_(model.parameters(), 1.0),
                "deepcopy": lambda: copy.deepcopy(weight.grad),
                "pickle": lambda: pickle.dumps(weight.grad),
                "save": lambda: torch.save(weight.grad, io.BytesIO()),
                "zeros": lambda: optimizer.zero_grad(set_to_none=False),
                "sgd": lambda: torch.optim.SGD(model.parameters(), lr=1.0).step(),
                "dlpack": lambda: torch.from_dlpack(weight.grad),
                "to": lambda: weight.grad.to(torch.float64)}.items():
            with self.subTest(name):
                with self.assertRaisesRegex(RuntimeError, "headrace"):
                    use()
        optimizer.step()

    def test_are_dropped_by_zero_grad(self):
        def train(model, optimizer, zero_grad):
            loss_of(model, 5).backward()
            zero_grad()
            loss_of(model, 6).backward()
            optimizer.step()
            return values_of(model)

        plain = net_of()
        expected = train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2), plain.zero_grad)
        for of_model in (False, True):
            model, optimizer = self.offload(net_of())
            zero_grad = model.zero_grad if of_model else optimizer.zero_grad
            self.assert_same(train(model, optimizer, zero_grad), expected)

    def test_that_are_cleared_in_part_stop_the_step(self):
        model, optimizer = self.offload(net_of())
        loss_of(model).backward()
        before = values_of(model)
        model.layers[0].zero_grad()
        with self.assertRaisesRegex(headrace.WrongState, "layers.0.*zero_grad"):
            optimizer.step()
        self.assert_same(values_of(model), before)
        optimizer.zero_grad()
        optimizer.step()  # nothing to do
        self.assert_same(values_of(model), before)

    def test_after_a_clipping_are_refused(self):
        model, optimizer = self.offload(net_of())
        loss_of(model).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with self.assertRaisesRegex(headrace.WrongState, "Clip after the last backward"):
            loss_of(model).backward()
        optimizer.zero_grad()
        self.train(model, optimizer)

    def test_with_different_factors_stop_the_step(self):
        model, optimizer = self.offload(net_of())
        loss_of(model).backward()
        model.layers[1].up.weight.grad.mul_(0.5)
        with self.assertRaisesRegex(headrace.WrongState, "one factor"):
            optimizer.step()

    def test_of_a_pass_that_failed_stop_the_step(self):
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        before = values_of(model)

        def fail(_gradient):
            raise ArithmeticError("in backward")

        def loss(fails):
            x = model.layers[0](model.embedding(tokens_of()))
            if fails:
                x.register_hook(fail)
            return model.head(model.layers[1](x)).square().mean()

        with self.assertRaisesRegex(ArithmeticError, "in backward"):
            loss(True).backward()
        with self.assertRaisesRegex(headrace.WrongState, "ended in an exception"):
            optimizer.step()
        self.assert_same(values_of(model), before)
        optimizer.zero_grad()
        loss(False).backward()
        with self.assertRaisesRegex(ArithmeticError, "in backward"):
            loss(True).backward()  # its gradients are added to those that are there
        with self.assertRaisesRegex(headrace.WrongState, "ended in an exception"):
            optimizer.step()
        optimizer.zero_grad()
        loss(False).backward()
        optimizer.step()
        plain = net_of()
        own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
        x = plain.layers[1](plain.layers[0](plain.embedding(tokens_of())))
        plain.head(x).square().mean().backward()
        own.step()
        self.assert_same(values_of(model), values_of(plain))

    def test_that_are_not_finite_stop_the_step_by_name_or_are_skipped(self):
        for config in (None, {"headrace": {"non_finite": "skip"}}):
            model, optimizer = self.offload(net_of(), config)
            before = values_of(model)
            model.layers[2].up.bias.register_hook(lambda g: g * float("nan"))
            loss_of(model).backward()
            if config is None:
                with self.assertRaisesRegex(FloatingPointError, "layers.2.up.bias"):
                    optimizer.step()
            else:
                self.assertIs(optimizer.overflow, False)
                optimizer.step()
                self.assertIs(optimizer.overflow, True)  # accelerate then keeps the rate
                self.assertIsNone(model.layers[2].up.bias.grad)
            self.assert_same(values_of(model), before)

    def test_that_are_not_finite_and_clipped_stop_the_step_by_name_or_are_skipped(self):
        for value in (math.nan, math.inf):
            for config in (None, {"headrace": {"non_finite": "skip"}}):
                model, optimizer = self.offload(net_of(), config)
                before = values_of(model)
                hook = model.layers[2].up.bias.register_hook(lambda g: g + value)
                if config is None:
                    with self.assertRaisesRegex(headrace.NotFinite, "'layers.2.up.bias' holds"):
                        self.train(model, optimizer, 1, max_norm=1.0)
                    optimizer.zero_grad()
                else:
                    self.train(model, optimizer, 1, max_norm=1.0)
                    self.assertEqual(optimizer.stats()[0]["steps_skipped"], 1)
                self.assert_same(values_of(model), before)
                hook.remove()
                self.train(model, optimizer, 1, max_norm=1.0)
                name = "layers.0.up.weight"
                self.assertFalse(torch.equal(values_of(model)[name], before[name]))

    def test_that_are_finite_and_multiplied_by_nan_stop_the_step(self):
        model, optimizer = self.offload(net_of())
        loss_of(model).backward()
        for parameter in model.parameters():
            parameter.grad.mul_(math.nan)
        with self.assertRaisesRegex(headrace.WrongState, "by nan, and they are finite"):
            optimizer.step()

    def test_that_are_not_finite_have_the_models_names_in_any_groups(self):
        model = net_of()
        model, optimizer = self.offload(model, params=[{"params": list(model.parameters())}])
        model.layers[2].up.bias.register_hook(lambda g: g * math.nan)
        loss_of(model).backward()
        with self.assertRaisesRegex(headrace.NotFinite, "of 'layers.2.up.bias' holds .*skip\"}}.$"):
            optimizer.step()

    def test_that_a_hook_takes_are_left_to_it(self):
        model = net_of()
        bias, taken = model.layers[1].up.bias, []

        def take(parameter):
            taken.append(parameter.grad)
            parameter.grad = None

        bias.register_post_accumulate_grad_hook(take)
        model, optimizer = self.offload(model)
        before = values_of(model)["layers.1.up.bias"]
        self.train(model, optimizer)
        self.assertEqual([gradient.shape for gradient in taken], 3 * [bias.shape])
        self.assertTrue(torch.equal(values_of(model)["layers.1.up.bias"], before))

    def test_that_a_program_gives_are_taken(self):
        plain = net_of()
        model, optimizer = self.offload(net_of())
        own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
        for one in (plain, model):
            for parameter in one.parameters():
                parameter.grad = torch.full(parameter.shape, 0.25)
        own.step()
        optimizer.step()
        self.assert_same(values_of(model), values_of(plain))

    def test_of_what_was_frozen_are_refused(self):
        model = net_of()
        model.layers[0].up.weight.requires_grad_(False)
        model, optimizer = self.offload(model)
        self.train(model, optimizer)
        model.layers[0].up.weight.requires_grad_(True)
        loss_of(model).backward()
        with self.assertRaisesRegex(headrace.WrongState, "layers.0.up.weight.*frozen"):
            optimizer.step()

    def test_of_what_becomes_frozen_are_refused(self):
        model, optimizer = self.offload(net_of())
        loss_of(model).backward()
        model.layers[0].up.weight.requires_grad_(False)
        with self.assertRaisesRegex(headrace.WrongState, "layers.0.up.weight.*frozen"):
            optimizer.step()
        optimizer.zero_grad()
        before = values_of(model)
        self.train(model, optimizer)
        after = values_of(model)
        name = "layers.0.up.weight"
        self.assertTrue(torch.equal(after[name], before[name]))
        self.assertFalse(torch.equal(after["layers.1.up.weight"], before["layers.1.up.weight"]))

    def test_sparse_ones_are_refused(self):
        model = net_of()
        model.embedding.sparse = True
        model.head = torch.nn.Linear(WIDTH, 50)
        model, _ = self.offload(model)
        with self.assertRaisesRegex(headrace.Unsupported, "embedding.weight.*sparse"):
            loss_of(model).backward()

    def test_over_a_graph_from_before_a_step_are_refused(self):
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        old = loss_of(model)
        self.train(model, optimizer, 1)
        with self.assertRaisesRegex(RuntimeError, "before a step|inplace operation"):
            old.backward()
        old = model.layers[1](torch.ones(2, WIDTH)).sum()
        optimizer.zero_grad()
        self.train(model, optimizer, 1)
        with self.assertRaisesRegex(headrace.WrongState, "before a step"):
            old.backward()

    def test_through_hooks_of_the_program_have_the_bits_of_memory(self):
        packed = []

        def pack(tensor):
            packed.append(sorted(tensor.shape))
            return tensor.clone()

        def loss_within(hooks):
            def loss(*arguments):
                with hooks:
                    return loss_of(*arguments)
            return loss

        plain = net_of()
        expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2))
        for nvme in (None, self.folder):
            for hooks in (torch.autograd.graph.save_on_cpu(),
                          torch.autograd.graph.saved_tensors_hooks(pack, torch.clone)):
                model, optimizer = self.offload(net_of(), nvme=nvme)
                self.assertEqual(self.train(model, optimizer, loss=loss_within(hooks)), expected)
                self.assert_same(values_of(model), values_of(plain))
        self.assertTrue(packed)
        self.assertNotIn([WIDTH, 2 * WIDTH], packed)

    def test_over_aliases_that_hooks_within_a_block_keep_are_refused(self):
        model, optimizer = self.offload(net_of())
        inner = model.layers[3].up.forward

        def forward(x):
            with torch.autograd.graph.save_on_cpu():
                return inner(x)

        model.layers[3].up.forward = forward
        with self.assertRaisesRegex(RuntimeError, r"'layers.3'.*binding that.*save_on_cpu\(\)"):
            loss_of(model).backward()
        optimizer.zero_grad()
        del model.layers[3].up.forward
        self.train(model, optimizer)

    def test_of_gradients_are_refused_by_name(self):
        model, _ = self.offload(net_of(), nvme=self.folder)
        x = torch.ones(2, WIDTH, requires_grad=True)
        first, = torch.autograd.grad(model.layers[0](x).square().sum(), x, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "layers.0"):
            first.square().sum().backward()


class Values(Case):
    def test_can_be_read_in_a_scope(self):
        plain = values_of(net_of())
        model, _ = self.offload(net_of(), nvme=self.folder)
        with headrace.gathered(model.layers[2]) as layer, headrace.gathered(model.layers[2].up):
            self.assertTrue(torch.equal(layer.up.weight, plain["layers.2.up.weight"]))
        with headrace.gathered(model.layers[2].up.weight) as weight:
            self.assertTrue(torch.equal(weight, plain["layers.2.up.weight"]))
        with self.assertRaisesRegex(RuntimeError, "parked"):
            model.layers[2].up.weight.sum()
        with headrace.gathered(net_of()) as other:  # is not offloaded
            other.layers[0].up.weight.sum()

    def test_are_written_in_a_scope(self):
        for dtype in (torch.float32, torch.bfloat16):
            plain, model = net_of(dtype), net_of(dtype)
            own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
            model, optimizer = self.offload(model, nvme=self.folder)
            self.train(plain, own)
            self.train(model, optimizer)

            def change(layer, embedding):
                torch.manual_seed(9)
                torch.nn.init.normal_(layer.up.weight)
                layer.down.weight.data[0].fill_(0.5)
                layer.norm.bias.data = torch.full((WIDTH,), 0.25, dtype=dtype)
                with torch.no_grad():
                    embedding.weight[3].zero_()

            change(plain.layers[1], plain.embedding)
            with headrace.gathered([*model.layers[1].parameters(), model.embedding.weight],
                                   modify=True):
                change(model.layers[1], model.embedding)
            self.assert_same(values_of(model), values_of(plain))
            self.assertEqual(self.train(model, optimizer), self.train(plain, own))
            self.assert_same(values_of(model), values_of(plain))

    def test_are_kept_if_the_scope_fails_and_refused_if_their_form_changes(self):
        model, optimizer = self.offload(net_of())
        before = values_of(model)

        def other_form():
            model.layers[0].up.weight.data = torch.zeros(3)

        def other_tensor():
            model.layers[0].up.weight = torch.nn.Parameter(torch.zeros(2 * WIDTH, WIDTH))

        def fail():
            model.layers[0].up.weight.data.zero_()
            raise ArithmeticError("shape: in the scope")

        weight = model.layers[0].up.weight
        for change in (fail, other_form, other_tensor):
            with self.assertRaisesRegex(Exception, "shape|neither trained nor saved"):
                with headrace.gathered(model, modify=True):
                    change()
            model.layers[0].up.weight = weight
            self.assert_same(values_of(model), before)
        self.train(model, optimizer)

    def test_are_not_converted_by_half(self):
        for convert in (lambda model: model.float(), lambda model: model.to("meta"),
                        lambda model: model.embedding.double(), lambda model: model.share_memory(),
                        lambda model: torch.nn.Sequential(model).half(),
                        lambda model: model.to_empty(device="cpu")):
            model, optimizer = self.offload(net_of(torch.bfloat16))
            before = values_of(model)
            with self.assertRaisesRegex(headrace.WrongState, "'embedding.weight' is in headrace's "
                                                             "engine.*nothing was changed.*restor"):
                convert(model)
            self.assert_same(values_of(model), before)
            self.assertIs(model.to(torch.bfloat16).to("cpu").bfloat16(), model)
            self.train(model, optimizer)
            optimizer.restore()
            self.assertIs(model.float().embedding.weight.dtype, torch.float32)
        self.assertFalse(hasattr(torch.nn.Module._apply, "__wrapped__"))  # torch's own again
        model, optimizer = headrace.offload(net_of())
        del model, optimizer
        gc.collect()
        self.assertFalse(hasattr(torch.nn.Module._apply, "__wrapped__"))

    def test_that_were_replaced_in_memory_come_back_by_a_load(self):
        for is_noticed in (False, True):
            model, optimizer = self.offload(net_of())
            saved, before = values_of(model), optimizer.state_dict()
            expected = self.train(model, optimizer)
            model.embedding.weight.data = model.embedding.weight.data.double()
            if is_noticed:
                with self.assertRaisesRegex(headrace.WrongState, "load_state_dict"):
                    optimizer.step()
                optimizer.zero_grad()
            model.load_state_dict(saved)
            self.assert_same(values_of(model), saved)
            optimizer.load_state_dict(before)
            self.assertEqual(self.train(model, optimizer), expected)
            optimizer.restore()

    def test_cannot_be_used_while_they_change(self):
        model, optimizer = self.offload(net_of())
        with headrace.gathered(model.layers[0], modify=True) as layer:
            layer.up.bias.data.fill_(3)
            self.assertTrue(values_of(model)["layers.0.up.bias"].eq(3).all())
            for use in (lambda: loss_of(model), optimizer.step, optimizer.restore,
                        optimizer.sleep, optimizer.close,
                        lambda: headrace.gathered(model.layers[0]).__enter__()):
                with self.assertRaisesRegex(headrace.WrongState, "layers.0"):
                    use()
        with headrace.gathered(model.layers[0]):
            for use in (optimizer.step, optimizer.restore, optimizer.close,
                        lambda: headrace.gathered(model, modify=True).__enter__()):
                with self.assertRaisesRegex(headrace.WrongState, "in use"):
                    use()
        self.train(model, optimizer)

    def test_that_are_written_while_bound_for_reading_are_refused_until_they_are_loaded(self):
        def write_in_scope(model, _optimizer):
            with headrace.gathered(model.layers[1]) as layer, torch.no_grad():
                layer.up.weight.zero_()

        def write_to_data(model, _optimizer):
            with headrace.gathered(model.layers[1]) as layer:
                layer.up.weight.data.zero_()

        def write_to_numpy(model, _optimizer):
            with headrace.gathered(model.embedding) as embedding:
                embedding.weight.detach().numpy()[0, 0] = 3

        def write_in_forward(model, _optimizer):
            layer = model.layers[1]
            handle = layer.up.register_forward_pre_hook(
                lambda *_: [layer.up.weight.detach().zero_()].clear())
            try:
                with torch.no_grad():
                    model(tokens_of())
            finally:
                handle.remove()

        def write_to_the_rest(model, optimizer):
            with torch.no_grad():
                model.embedding.weight.zero_()
            loss_of(model).backward()
            optimizer.step()

        for write in (write_in_scope, write_to_data, write_to_numpy, write_in_forward,
                      write_to_the_rest):
            with self.subTest(write.__name__):
                model, optimizer = self.offload(net_of(), nvme=self.folder)
                before = values_of(model)
                for use in (lambda: write(model, optimizer), optimizer.step,
                            lambda: values_of(model)):
                    with self.assertRaisesRegex(headrace.WrongState, "was written"):
                        use()
                        loss_of(model).backward()
                        use()
                optimizer.zero_grad()
                model.load_state_dict(before)
                self.assert_same(values_of(model), before)
                self.train(model, optimizer)

    def test_in_state_dict_are_copies_and_ties_stay_ties(self):
        for nvme in (None, self.folder):
            model, optimizer = self.offload(net_of(), nvme=nvme)
            state = model.state_dict()
            self.assertEqual(list(state), list(net_of().state_dict()))
            self.assert_same(state, net_of().state_dict())
            self.assertIs(state["embedding.weight"], state["head.weight"])
            state["layers.0.up.weight"].zero_()
            state["embedding.weight"].zero_()
            self.assert_same(model.state_dict(), net_of().state_dict())
            kept = model.state_dict()
            optimizer.close()
            self.assert_same(kept, net_of().state_dict())
        self.assertEqual(os.listdir(self.folder), [])

    def test_in_state_dict_are_those_of_now_while_they_change(self):
        model, optimizer = self.offload(net_of())
        before = model.state_dict()  # kept: one copy for both names
        with self.assertRaises(ArithmeticError):
            with headrace.gathered(model, modify=True):
                unchanged = model.state_dict()
                self.assertIs(unchanged["head.weight"], before["embedding.weight"])
                for value in (2, 3):
                    model.embedding.weight.data.fill_(value)
                    within = model.state_dict()
                    self.assertTrue(within["head.weight"].eq(value).all())
                    self.assertIs(within["head.weight"], within["embedding.weight"])
                for state in (optimizer.state_dict, optimizer.full_state_dict):
                    with self.assertRaisesRegex(headrace.WrongState, "' is open to changes, .*"
                                                "nothing was saved"):
                        state()
                raise ArithmeticError
        with headrace.gathered(model):
            state = optimizer.state_dict()
        with headrace.gathered(model, modify=True):
            with self.assertRaisesRegex(headrace.WrongState, r"load_state_dict\(\) while"):
                optimizer.load_state_dict(state)
        optimizer.state_dict()  # no load has begun
        self.assert_same(model.state_dict(), before)  # and not `within`, which is kept too

    def test_are_loaded_as_torch_loads_them(self):
        source = net_of()
        for parameter in source.parameters():
            parameter.data.add_(0.5)
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        self.train(model, optimizer)
        found = model.load_state_dict(source.state_dict())
        self.assertEqual(str(found), "<All keys matched successfully>")
        self.assert_same(values_of(model), values_of(source))
        self.train(model, optimizer)
        before = values_of(model)
        with self.assertRaisesRegex(RuntimeError, "size mismatch.*layers.0.up.bias"):
            model.load_state_dict({**before, "layers.0.up.bias": torch.zeros(3)})
        self.assert_same(values_of(model), before)
        found = model.load_state_dict({"layers.1.up.bias": torch.ones(2 * WIDTH)}, strict=False)
        self.assertIn("layers.0.up.bias", found.missing_keys)
        self.assertTrue(values_of(model)["layers.1.up.bias"].eq(1).all())

    def test_a_full_drive_is_an_error_that_names_the_folder(self):
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        with unittest.mock.patch("os.posix_fallocate", side_effect=OSError(28, "full")):
            with self.assertRaisesRegex(headrace.NoSpace, self.folder):
                model.state_dict()
        self.train(model, optimizer)

    @NEEDS_TRANSFORMERS
    def test_are_saved_and_loaded_by_transformers(self):
        for name, (make, inputs, _) in models().items():
            with self.subTest(name):
                torch.manual_seed(0)
                path = os.path.join(self.folder, name)
                make().save_pretrained(path)
                model = type(make()).from_pretrained(path)  # maps its file
                model, optimizer = self.offload(model, nvme=self.folder)
                model(**inputs).loss.backward()
                optimizer.step()
                expected = values_of(model)
                model.save_pretrained(path + "-trained")
                reloaded = type(model).from_pretrained(path + "-trained")
                self.assert_same(values_of(reloaded), expected)
                optimizer.close()


class Elsewhere:
    """A device that this machine lacks: what is copied out of it lies in other memory."""

    def __init__(self):
        self.out_in_backward = self.copies = 0

    def out(self, tensor):
        self.copies += 1
        self.out_in_backward += torch._C._current_graph_task_id() != -1
        return tensor.clone()

    def begin(self, host, size, stride):
        return torch.empty_strided(size, stride, dtype=host.dtype).copy_(host)

    def ready(self, begun):
        return begun


class HostCheckpoints(Case):
    """activation_checkpointing.cpu_checkpointing, on a device that is not the CPU."""

    CONFIG = {"activation_checkpointing": {"cpu_checkpointing": True}}

    def offload(self, model, *arguments, **options):
        with warnings.catch_warnings(record=True):
            model, optimizer = super().offload(model, self.CONFIG, *arguments, **options)
        self.checkpoints = optimizer._part.offload.checkpoints
        self.copies = self.checkpoints.copies = Elsewhere()
        return model, optimizer

    def train_and_watch(self, model, optimizer, **options):
        """The losses, and how many inputs of layers live between forward and backward."""
        inputs, alive = [], []

        def loss(model, seed):
            inputs.clear()
            value = loss_of(model, seed)
            alive.append(sum(not one.expired() for one in inputs))
            return value

        hooks = [layer.register_forward_pre_hook(
            lambda _module, arguments: inputs.append(
                StorageWeakRef(arguments[0].untyped_storage())))
            for layer in model.layers]
        losses = self.train(model, optimizer, loss=loss, **options)
        for hook in hooks:
            hook.remove()
        return losses, alive

    def test_have_the_bits_of_those_on_the_device_and_leave_it(self):
        for reentrant in (True, False):
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(reentrant=reentrant, dtype=dtype):
                    plain = net_of(dtype)
                    plain.reentrant = reentrant
                    expected, alive = self.train_and_watch(
                        plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2))
                    self.assertEqual(alive, 3 * [LAYERS])
                    model = net_of(dtype)
                    model.reentrant = reentrant
                    model, optimizer = self.offload(model)
                    seen, alive = self.train_and_watch(model, optimizer)
                    self.assertEqual(seen, expected)
                    self.assert_same(values_of(model), values_of(plain))
                    self.assertEqual(alive, 3 * [0])
                    self.assertEqual((self.copies.copies, self.copies.out_in_backward),
                                     (3 * LAYERS, 0))
                    # In torch, those of one kind live as long as the last step's loss.
                    size_bytes = 2 * 8 * WIDTH * dtype.itemsize * LAYERS * (1 if reentrant else 2)
                    self.assertEqual(optimizer.stats()[0]["model"]["checkpoints"],
                                     {"checkpoints": 3 * LAYERS, "host_bytes": 0,
                                      "host_bytes_most": size_bytes})
                    optimizer.close()
        self.assertNotIn("apply", torch.utils.checkpoint.CheckpointFunction.__dict__)

    @NEEDS_TRANSFORMERS
    def test_serve_gradient_checkpointing_of_transformers(self):
        def make():
            torch.manual_seed(0)
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
                vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=4)).train()
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
            return model

        def loss(model, seed):
            ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(seed))
            return model(input_ids=ids, labels=ids).loss

        for reentrant in (True, False):
            with self.subTest(reentrant=reentrant):
                plain = make()
                expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2),
                                      loss=loss)
                model, optimizer = self.offload(make())
                self.assertEqual(self.train(model, optimizer, loss=loss), expected)
                self.assert_same(values_of(model), values_of(plain))
                self.assertEqual(self.copies.copies, 3 * 3)
                optimizer.close()

    def test_keep_strides_share_masks_and_leave_parameters_and_windows(self):
        strides = []

        class Sees(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.linspace(0, 1, 12).view(3, 4))

            def forward(self, x, mask, window, weight):
                strides.append((x.stride(), mask.stride(), window.stride()))
                return x * mask * window * weight * self.weight

        for reentrant in (True, False):
            with self.subTest(reentrant=reentrant):
                torch.manual_seed(0)
                model = torch.nn.ModuleList(Sees() for _ in range(2))
                model, optimizer = self.offload(model)
                mask = torch.arange(1.0, 4.0).unsqueeze(1).expand(3, 4)
                window = torch.arange(6.0).as_strided((3, 4), (1, 1))
                weight = torch.nn.Parameter(torch.ones(3, 4))
                x = torch.randn(4, 3, requires_grad=True) * 2
                strides.clear()
                out = x.t()
                for layer in model:
                    out = checkpoint(layer, out, mask, window, weight, use_reentrant=reentrant)
                out.sum().backward()
                self.assertEqual(self.copies.copies, 3)  # the two of x, and the mask once
                self.assertEqual(strides[0], ((1, 3), (1, 0), (1, 1)))
                self.assertEqual(strides[2:], strides[1::-1])
                self.assertTrue(weight.grad.isfinite().all())
                optimizer.zero_grad()
                optimizer.close()

    def test_of_inputs_that_have_changed_are_refused_as_in_torch(self):
        for reentrant in (True, False):
            for offloaded, view in ((False, False), (True, False), (True, True)):
                with self.subTest(reentrant=reentrant, offloaded=offloaded, view=view):
                    model = net_of()
                    if offloaded:
                        model, optimizer = self.offload(model)
                    x = torch.ones(2, WIDTH, requires_grad=True) * 2
                    out = checkpoint(model.layers[0], x.view(2, WIDTH) if view else x,
                                     use_reentrant=reentrant)
                    x.add_(1)
                    with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                        out.sum().backward()
                    if offloaded:
                        self.assertEqual(self.copies.copies, 1)
                        optimizer.zero_grad()
                        optimizer.close()

    def test_leave_nested_ones_and_hooks_of_the_program_alone(self):
        def nested(layer, x):
            return checkpoint(layer, x, use_reentrant=False)

        for reentrant in (True, False):
            found = []
            for model in (net_of(), net_of()):
                if found:
                    model, optimizer = self.offload(model)
                x = model.embedding(tokens_of()).detach().requires_grad_()
                out = x * 1
                for layer in model.layers[:2]:
                    out = checkpoint(nested, layer, out, use_reentrant=reentrant)
                out.sum().backward()
                found.append(x.grad)
            self.assertTrue(torch.equal(*found))
            self.assertEqual((self.copies.copies, self.copies.out_in_backward), (2, 0))
            packed = []
            model.reentrant = reentrant
            with torch.autograd.graph.saved_tensors_hooks(
                    lambda one: packed.append(one) or one, lambda one: one):
                loss_of(model).backward()
            self.assertEqual(self.copies.copies, 2)
            self.assertGreater(len(packed), LAYERS)
            optimizer.zero_grad()
            optimizer.close()

    def test_that_do_not_fit_are_refused_by_name_and_nothing_stays(self):
        model = net_of()
        model.reentrant = False
        model, optimizer = self.offload(model)
        with unittest.mock.patch.object(self.copies, "out", side_effect=RuntimeError("no memory")):
            with self.assertRaisesRegex(headrace.OutOfBudget, "cpu_checkpointing: 2048 bytes.*no"):
                loss_of(model)
        self.train(model, optimizer)
        self.assertEqual(self.checkpoints.report()["host_bytes"], 0)

    def test_on_the_cpu_copy_nothing_and_say_so_and_those_that_are_missing_are_named(self):
        model = net_of()
        model.reentrant = False
        with self.assertWarnsRegex(UserWarning, "cpu_checkpointing, and the model computes on"):
            model, optimizer = super().offload(model, self.CONFIG)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.train(model, optimizer)
        self.assertEqual(optimizer.stats()[0]["model"]["checkpoints"],
                         {"checkpoints": 3 * LAYERS, "host_bytes": 0, "host_bytes_most": 0})
        optimizer.close()
        model, optimizer = self.offload(net_of())
        with self.assertWarnsRegex(UserWarning, "no torch.utils.checkpoint ran.*enable") as seen:
            self.train(model, optimizer)
        self.assertEqual(len(seen.warnings), 1)

    def test_other_keys_of_the_section_are_named_and_wrong_ones_refused(self):
        section = {"cpu_checkpointing": True, "partition_activations": True}
        with self.assertLogs("headrace", "WARNING") as seen:
            _, optimizer = super().offload(net_of(), {"activation_checkpointing": section})
        optimizer.close()
        self.assertIn("partition_activations", "".join(seen.output))
        self.assertNotIn("cpu_checkpointing", "".join(seen.output))
        with self.assertRaisesRegex(headrace.ConfigError, "cpu_checkpointing"):
            super().offload(net_of(), {"activation_checkpointing": {"cpu_checkpointing": 3}})
        with unittest.mock.patch.object(torch.utils.checkpoint, "_NoopSaveInputs", None), \
                unittest.mock.patch.object(torch.utils.checkpoint, "CheckpointFunction", None):
            with self.assertRaisesRegex(headrace.Unsupported, "saves the inputs of checkpoints"):
                super().offload(net_of(), self.CONFIG)


class Blocks(Case):
    def groups(self, model, **options):
        _, optimizer = self.offload(model, **options)
        groups = set(optimizer.stats()[0]["model"]["binds"])
        optimizer.close()
        return groups

    def test_are_the_repeated_layers(self):
        layers = {f"layers.{i}" for i in range(LAYERS)}
        self.assertEqual(self.groups(net_of()), layers | {""})
        self.assertEqual(self.groups(net_of(), blocks=Layer), layers | {""})
        self.assertEqual(self.groups(net_of(), blocks=lambda name, _: name == "layers"),
                         {"layers", ""})
        model = net_of()
        self.assertEqual(self.groups(model, blocks=[model.layers[3], model.head]),
                         {"layers.3", ""})  # the head is tied to the embedding
        stack = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        self.assertEqual(self.groups(stack), {"0", "1", "2"})
        mixed = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), Layer(), torch.nn.ReLU(),
                                    Layer())
        self.assertEqual(self.groups(mixed), {"1", "3", ""})
        pair = torch.nn.Module()  # such as an encoder and a decoder
        pair.first, pair.second = net_of(), net_of()
        pair.second.layers = pair.second.layers[:2]
        pair.small = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        self.assertEqual(self.groups(pair), {""} | {f"first.layers.{i}" for i in range(LAYERS)}
                         | {f"second.layers.{i}" for i in range(2)})
        model = net_of()
        model.layers.append(torch.nn.Linear(WIDTH, WIDTH))  # layers of two classes
        self.assertEqual(self.groups(model), layers | {"layers.4", ""})

    def test_share_a_tied_weight_in_the_rest(self):
        for reentrant in (None, True):
            plain, model = net_of(), net_of()
            for one in (plain, model):
                one.layers[2].up.weight = one.layers[0].up.weight
                one.reentrant = reentrant
            expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2))
            model, optimizer = self.offload(model, nvme=self.folder)
            self.assertEqual(self.train(model, optimizer), expected)
            self.assert_same(values_of(model), values_of(plain))

    def test_that_are_missing_or_nested_are_refused(self):
        model = net_of()
        before = values_of(model)
        for blocks in (torch.nn.Conv2d, "layers", lambda *_: False, [torch.nn.Linear(1, 1)],
                       [model.layers, model.layers[0]], [model.layers[0], model.layers[0]], [model],
                       []):
            with self.assertRaisesRegex(headrace.ArgumentError, "model is as it was"):
                self.offload(model, blocks=blocks)
        with self.assertRaisesRegex(headrace.ArgumentError, "no blocks"):
            self.offload(torch.nn.Linear(4, 4))
        self.assert_same(values_of(model), before)

    def test_with_parameters_of_other_kinds_are_refused(self):
        def transposed(layer):
            layer.up.weight.data = layer.up.weight.data.t().contiguous().t()

        def subclass(layer):
            kind = type("Quantised", (torch.nn.Parameter,), {})
            layer.up.weight = kind(layer.up.weight.data)

        def view(layer):
            layer.norm.bias.data = layer.norm.weight.data[:]

        def inference(layer):
            with torch.inference_mode():
                layer.up.weight = torch.nn.Parameter(torch.ones(2 * WIDTH, WIDTH))

        def zero_3(layer):
            layer.up.weight.data, layer.up.weight.ds_id = torch.empty(0), 3

        def lazy(layer):
            layer.up = torch.nn.LazyLinear(2 * WIDTH)

        for change, text in ((lambda layer: layer.double(), "float64"),
                             (inference, "inference_mode"), (zero_3, "DeepSpeed"),
                             (lazy, "no shape"),
                             (lambda layer: layer.to("meta"), "meta"), (transposed, "row-major"),
                             (subclass, "Quantised"), (view, "share memory")):
            model = net_of()
            change(model.layers[1])
            with self.assertRaisesRegex(headrace.Error, text):
                self.offload(model)
            model.layers[0].up.weight.sum()  # as it was

    @unittest.skipIf(torch.cuda.is_available(), "there is a GPU: offload_gpu_test.py")
    def test_on_devices_that_are_not_there_are_refused_by_name(self):
        for device, text in (("cuda", "torch finds no GPU"), ("mps", "the CPU and NVIDIA GPUs")):
            model = net_of()
            with self.assertRaisesRegex(headrace.Error, text):
                self.offload(model, device=device)
            model.layers[0].up.weight.sum()  # as it was
        on_two = unittest.mock.Mock()
        on_two.parameters = lambda: [unittest.mock.Mock(device=torch.device(name))
                                     for name in ("cpu", "cuda:0")]
        with self.assertRaisesRegex(headrace.ArgumentError, "on cpu, cuda:0"):
            headrace.torch.offload._device.device_of(on_two, None)


# How a program ties the head to the embedding.
TIES = (lambda model: setattr(model.head, "weight", model.embedding.weight),
        lambda model: setattr(model.embedding, "weight", model.head.weight))



class Life(Case):
    def test_after_an_error_in_offload_the_model_is_as_it_was(self):
        model = net_of()
        before = values_of(model)
        part = [{"params": [model.layers[0].up.weight]}]
        for arguments, options, text in (
                ((), {"nvme": self.folder + "/missing"}, "missing"),
                ((), {"nvme": ""}, "^nvme is ''; the model is as it was"),
                (({"zero_optimisation": {}},), {}, "^config: zero_opt.*zero_optimization"),
                ((self.file_of('{"zero_optimisation": {}}'),), {}, "^/.*/0.json: zero_opt"),
                ((self.file_of("{"),), {}, "^/.*/1.json is no JSON"),
                ((), {"lr": "x"}, "^lr is 'x' in param_groups"),
                (({"gradient_clipping": 1.0},), {}, r"gradient_clipping.*step\(max_norm"),
                (({"headrace": {"durable": "step", "store": "run"}},), {"nvme": self.folder},
                 r"durable.*values, which would replace.*save_checkpoint\(\)"),
                (({"scheduler": {"type": "WarmupLR"}},), {}, "scheduler.*lr_scheduler"),
                (({"optimizer": {"type": "OneBitAdam"}},), {}, "onebitadam"),
                (({"optimizer": {"type": "AdamW", "params": {"lr": 1.0}}},), {}, "lr"),
                (({"optimizer": {"type": "AdamW", "params": {"eps": "auto"}}},), {}, "auto"),
                (({"bf16": {"enabled": True}},), {}, "bf16"),
                (({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/"}}},),
                 {"nvme": self.folder}, "offload_param"),
                ((3,), {}, "config is a int"),
                ((), {"gpu": 0}, "gpu"),
                ((), {"amsgrad": True}, "amsgrad"),
                ((), {"optimizer": "Adafactor"}, "adafactor"),
                ((), {"params": part}, "in no group"),
                ((), {"lr": -1.0}, "lr is -1"),
                ((), {"host_budget": "1XB"}, '^host_budget: found "1XB"; allowed'),
                ((), {"nvme": self.folder, "host_budget": "1KiB"},
                 r"budget is 1 KiB \(host_budget\);.*: set host_budget to")):
            with self.subTest(text):
                with self.assertRaisesRegex(Exception, text):
                    self.offload(model, *arguments, **options)
                self.assert_same(values_of(model), before)
                self.assertEqual(len(model.layers[0]._forward_hooks), 0)
        # Ctrl-C, or a drive that fails, when half of the values have moved.
        with interrupted_at_load(3), self.assertRaises(KeyboardInterrupt):
            self.offload(model)
        self.assert_same(values_of(model), before)
        self.train(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def test_constants_that_a_file_leaves_out_are_those_of_deepspeed(self):
        wanted = {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.0}
        for kind, params, options, differing in (
                ("AdamW", {}, {}, {}), ("Adam", {}, {}, {}), ("Lion", {}, {}, {}),
                ("Adam", {"adam_w_mode": False}, {}, {}),
                ("AdamW", {"torch_adam": True}, {}, {"weight_decay": 0.01}),
                ("AdamW", {"weight_decay": 0.1}, {}, {"weight_decay": 0.1}),
                ("AdamW", {}, {"weight_decay": 0.2}, {"weight_decay": 0.2})):
            with self.subTest((kind, params)):
                _, optimizer = headrace.offload(
                    net_of(), {"optimizer": {"type": kind, "params": params}}, **options)
                group = optimizer.param_groups[0]
                self.assertEqual({key: group[key] for key in wanted}, {**wanted, **differing})
                optimizer.close()

    def test_takes_a_file_of_deepspeed(self):
        path = os.path.join(self.folder, "ds.json")
        place = {"device": "nvme", "nvme_path": self.folder}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
                       "zero_optimization": {"stage": 3, "offload_optimizer": place,
                                             "offload_param": place},
                       "optimizer": {"type": "Adam", "params": {"lr": "auto", "eps": 1e-7}},
                       "bf16": {"enabled": "auto"}, "gradient_clipping": "auto"}, file)
        model, optimizer = self.offload(net_of(torch.bfloat16), path)
        self.assertEqual((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["eps"]),
                         (1e-2, 1e-7))
        self.assertIsInstance(optimizer, headrace.torch.AdamW)
        self.train(model, optimizer, accumulation=2)
        self.assertGreater(optimizer.plan()[0]["nvme_bytes"], 0)

    def test_refuses_optimizers_that_are_no_names_and_constants_that_it_lacks(self):
        model = net_of()
        before = values_of(model)
        for config, optimizer, text in (
                (None, torch.optim.AdamW,
                 '^optimizer is the class AdamW.*model is as it was.*optimizer="AdamW"'),
                (None, torch.optim.SGD(model.parameters()), "^optimizer is an object of SGD, and"),
                *((self.adamw_of(**{key: value}), None, f"^config: optimizer.params.{key}: {text}")
                  for key, value, text in (
                      ("amsgrad", True, "found true, which is refused: AMSGrad"),
                      ("bias_correction", False, "found false, .* write true"),
                      ("weight_decy", 0.1, 'unknown key; did you mean "weight_decay"'),
                      ("momentum", 0.9, "the rule adamw has no such key"),
                      ("max_grad_norm", 1.0, "found 1.0, which is refused")))):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                self.offload(model, config, optimizer=optimizer)
            self.assert_same(values_of(model), before)

    @staticmethod
    def adamw_of(**params):
        return {"optimizer": {"type": "AdamW", "params": params}}

    def test_passes_over_no_key_beside_the_optimizers_params(self):
        for optimizer in ("AdamW", "SGD"):
            with self.assertLogs("headrace", "WARNING") as seen:
                self.offload(net_of(), {"optimizer": {"type": optimizer, "my_key": 3}})
            self.assertIn("optimizer.my_key", seen.output[0])

    def test_refuses_a_file_that_has_a_key_twice(self):
        path = os.path.join(self.folder, "ds.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"bf16": {"enabled": true, "enabled": false}}')
        with self.assertRaisesRegex(ValueError, "the key 'enabled' is there twice; the model is"):
            self.offload(net_of(), path)

    def test_takes_constants_of_deepspeed_that_say_what_it_does_anyway(self):
        silent = {"torch_adam": True, "adam_w_mode": True, "bias_correction": True,
                  "amsgrad": False, "capturable": False, "differentiable": False, "fused": None}
        with self.assertNoLogs("headrace", "WARNING"):
            _, optimizer = self.offload(net_of(), self.adamw_of(**silent, weight_decay=0.5))
        self.assertEqual(optimizer.param_groups[0]["weight_decay"], 0.5)
        without_effect = {"adam_w_mode": False, "fused": True, "foreach": False}
        with self.assertLogs("headrace", "WARNING") as logged:
            _, optimizer = self.offload(net_of(), self.adamw_of(**without_effect))
        self.assertIsInstance(optimizer, headrace.torch.AdamW)
        lines = [record.getMessage() for record in logged.records]
        for key in without_effect:
            self.assertTrue(any(f"optimizer.params.{key}" in line and "no effect" in line
                                for line in lines), (key, lines))
        _, optimizer = self.offload(net_of(), {"optimizer": {"type": "Adam", "params": {
            "adam_w_mode": False, "torch_adam": True}}})
        self.assertNotIsInstance(optimizer, headrace.torch.AdamW)
        momentum = {"params": {"momentum": 0.9, "fused": True}}
        for section, options in (({"type": "SGD", **momentum}, {}),
                                 (momentum, {"optimizer": "SGD"}),
                                 ({"type": "SGD", "params": {"momentum": "auto"}},
                                  {"momentum": 0.9})):
            _, optimizer = self.offload(net_of(), {"optimizer": section}, **options)
            self.assertEqual(optimizer.param_groups[0]["momentum"], 0.9)

    def test_refuses_parameters_that_come_later(self):
        model, optimizer = self.offload(net_of())
        loss_of(model).backward()
        model.later = torch.nn.Linear(2, 2)
        with self.assertRaisesRegex(headrace.WrongState, "'later.weight' came into the model"):
            optimizer.step()
        del model.later
        optimizer.step()
        model.layers[1].up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        loss_of(model).backward()
        with self.assertRaisesRegex(headrace.WrongState, "'layers.1.up.weight' came into"):
            optimizer.step()

    def untied(self):
        """A model whose head has a weight of its own, and its parameters by name."""
        model = net_of()
        model.head.weight = torch.nn.Parameter(torch.ones(50, WIDTH))
        return model, dict(model.named_parameters())

    def test_refuses_parameters_outside_of_blocks_that_were_replaced(self):
        for tie in TIES:
            model, own = self.untied()
            model, optimizer = self.offload(model)
            tie(model)
            for use in (lambda: loss_of(model), model.state_dict):
                with self.assertRaisesRegex(headrace.WrongState, "'(head|embedding).weight' is an"
                                            "other tensor.*neither trained nor saved"):
                    use()
            model.head.weight, model.embedding.weight = own["head.weight"], own["embedding.weight"]
            self.train(model, optimizer)
        model, _ = self.offload(net_of())
        model.head.weight = torch.nn.Parameter(torch.ones(50, WIDTH))  # its second place
        with self.assertRaisesRegex(headrace.WrongState, "'head.weight' is another"):
            model.state_dict()

    def test_gives_back_what_it_took_where_parameters_were_replaced(self):
        for tie in TIES:
            model, own = self.untied()
            model, optimizer = self.offload(model)
            self.train(model, optimizer)
            values = values_of(model)
            tie(model)
            optimizer.restore()
            self.assertIs(model.head.weight, model.embedding.weight)
            for name, parameter in own.items():
                self.assertTrue(torch.equal(parameter, values[name]), name)
            loss_of(model).backward()
            self.train(*self.offload(model))

    def test_updates_nothing_where_parameters_outside_of_blocks_were_replaced(self):
        plain = net_of()
        plain.head.weight = torch.nn.Parameter(torch.ones(50, WIDTH))
        model = copy.deepcopy(plain)
        expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2), 1)
        head = model.head.weight
        model, optimizer = self.offload(model)
        value = loss_of(model, 0)
        value.backward()
        model.head.weight = model.embedding.weight
        with self.assertRaisesRegex(headrace.WrongState, "'head.weight' is another tensor"):
            optimizer.step()
        model.head.weight = head
        optimizer.step()
        self.assertEqual([value.item()], expected)
        self.assert_same(values_of(model), values_of(plain))

    def test_neither_loads_nor_sleeps_where_parameters_outside_of_blocks_were_replaced(self):
        model, optimizer = self.offload(self.untied()[0])
        self.train(model, optimizer, 1)
        checkpoint = os.path.join(self.folder, "checkpoint")
        optimizer.save_checkpoint(checkpoint)
        self.train(model, optimizer, 1)
        before, head = values_of(model), model.head.weight
        loads_and_sleeps = (lambda: optimizer.load_checkpoint(checkpoint),
                            lambda: optimizer.sleep(self.folder))
        for call in loads_and_sleeps:
            model.head.weight = torch.nn.Parameter(torch.ones(50, WIDTH))
            with self.assertRaisesRegex(headrace.WrongState, "'head.weight' is another tensor"):
                call()
            model.head.weight = head
            self.assert_same(values_of(model), before)
        optimizer.sleep(self.folder)
        model.head.weight = torch.nn.Parameter(torch.ones(50, WIDTH))
        with self.assertRaisesRegex(headrace.WrongState, "'head.weight' is another tensor"):
            optimizer.wake()
        model.head.weight = head
        with self.assertRaisesRegex(RuntimeError, "engine sleeps"):
            model.state_dict()
        optimizer.wake()
        self.assert_same(values_of(model), before)

    def test_refuses_parameters_that_are_not_the_models(self):
        model, loss = net_of(), torch.nn.Linear(WIDTH, 2)
        before = values_of(model)
        loss.bias.requires_grad_(False)
        params = [{"params": model.parameters()}, {"params": loss.parameters()}]
        named = [*model.named_parameters(), *loss.named_parameters("loss")]
        for given, name in ((params, r"parameter 0 of param_groups\[1\] of shape \(2, 32\)"),
                            (named, "'loss.weight'")):
            params = [{**params[0], "params": model.parameters()}, params[1]]
            with self.assertRaisesRegex(headrace.ArgumentError, f"^{name} .*no parameter of the "
                                        "model; the model is as it was. Give it to"):
                self.offload(model, params=given)
        self.assert_same(values_of(model), before)
        loss.requires_grad_(False)
        loss.empty = torch.nn.Parameter(torch.ones(0))
        self.train(*self.offload(model, params=[*model.parameters(), *loss.parameters()]))

    def test_serves_a_second_thread_between_passes(self):
        plain, seen = net_of(), []
        own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        for _ in range(3):
            self.assertEqual(self.train(model, optimizer, 1), self.train(plain, own, 1))
            thread = threading.Thread(
                target=lambda: seen.append(self.train(model, optimizer, 1, loss=loss_of)))
            thread.start()
            thread.join()
            self.assertEqual(seen.pop(), self.train(plain, own, 1))
        self.assert_same(values_of(model), values_of(plain))

    def test_refuses_ranks_that_came_after_it(self):
        with self.assertRaisesRegex(headrace.ArgumentError, "torch.nn.Module"):
            headrace.offload(torch.ones(2))
        model, optimizer = self.offload(net_of())
        loss_of(model).backward()
        with unittest.mock.patch("torch.distributed.is_initialized", return_value=True), \
                unittest.mock.patch("torch.distributed.get_world_size", return_value=2):
            with self.assertRaisesRegex(headrace.WrongState, "2 ranks.*init_process_group"):
                optimizer.step()
        optimizer.step()

    def test_refuses_a_second_offload_copies_and_other_versions_of_torch(self):
        from headrace.torch.offload import _private
        model, optimizer = self.offload(net_of())
        with self.assertRaisesRegex(headrace.WrongState, "already"):
            headrace.offload(model)
        for copy_of in (copy.deepcopy, pickle.dumps):
            for what in (optimizer, model, model.layers[0]):
                with self.assertRaisesRegex(TypeError, "cannot be copied"):
                    copy_of(what)
        for name in ("_construct_storage_from_data_pointer", "_current_graph_task_id",
                     "_set_storage_data_ptr_access_error_msg", "_storage_Use_Count"):
            with self.subTest(name), unittest.mock.patch.object(torch._C, name, None):
                _private._missing.cache_clear()
                with self.assertRaisesRegex(headrace.Unsupported, "torch 2"):
                    headrace.offload(net_of())
        _private._missing.cache_clear()
        self.offload(net_of())

    def test_goes_on_after_an_exception_in_forward(self):
        plain = net_of()
        expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2))
        for fault in (ArithmeticError("in forward"), KeyboardInterrupt()):
            for grad in (True, False):
                model, optimizer = self.offload(net_of(), nvme=self.folder)
                model.layers[2].fault = fault
                with self.assertRaises(type(fault)), torch.set_grad_enabled(grad):
                    model(tokens_of())
                model.layers[2].fault = None
                self.assertEqual(self.train(model, optimizer), expected)
                self.assert_same(values_of(model), values_of(plain))
                optimizer.close()

    def test_leaves_the_programs_hooks_as_they_are_after_ctrl_c_in_forward(self):
        packed = []
        hooks = torch.autograd.graph.saved_tensors_hooks(packed.append, lambda _: None)
        model, optimizer = self.offload(net_of())
        for is_within in (True, False):
            with hooks:
                model.layers[2].fault = KeyboardInterrupt()
                with contextlib.suppress(KeyboardInterrupt):
                    model(tokens_of())
                model.layers[2].fault = None
                if is_within:
                    optimizer.zero_grad()
                    packed.clear()
                    model(tokens_of())
                    self.assertTrue(packed)
            optimizer.zero_grad()
            packed.clear()
            self.train(model, optimizer, 1)
            self.assertEqual(packed, [])

    def test_goes_on_after_ctrl_c_at_any_time(self):
        seed = int.from_bytes(os.urandom(4), "little")
        print(f"\nseed of Ctrl-C: {seed}")
        self.assertEqual(of_fork(lambda: self.interrupted_child(seed)), "trained")

    def interrupted_child(self, seed):
        """Steps are made or not, and nothing is left bound."""
        random_delay = random.Random(seed)
        model, optimizer = headrace.offload(net_of(), nvme=self.folder, lr=1e-3)
        interrupts = 0
        while interrupts < 60:
            before = values_of(model)
            steps = optimizer._part.steps(model.embedding.weight)
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            try:
                signal.setitimer(signal.ITIMER_REAL, random_delay.uniform(1e-4, 2e-2))
                try:
                    for _ in range(20):
                        loss_of(model).backward()
                        optimizer.step()
                        optimizer.zero_grad()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    time.sleep(0)
            except KeyboardInterrupt:
                interrupts += 1
            torch.set_grad_enabled(True)  # Ctrl-C between two lines of torch's own leaves it off
            optimizer.zero_grad()
            made = optimizer._part.steps(model.embedding.weight) - steps
            after = values_of(model)
            moved = not all(map(torch.equal, before.values(), after.values()))
            assert moved == (made > 0), (moved, made)
        plain = net_of()
        plain.load_state_dict(values_of(model))
        assert loss_of(model).item() == loss_of(plain).item()
        optimizer.restore()
        return "trained"

    def test_inputs_that_outlive_a_pass_collect_no_hooks(self):
        model, optimizer = self.offload(net_of())
        prompt = torch.ones(2, WIDTH, requires_grad=True)
        for step in range(4):
            out = model.layers[0](prompt)
            if step % 2:
                out.sum().backward()
        del out
        gc.collect()
        self.assertEqual(len(prompt._backward_hooks or {}), 0)
        optimizer.step()

    def test_aliases_that_outlive_a_binding_raise(self):
        model, optimizer = self.offload(net_of())
        kept = []
        model.layers[0].up.register_forward_hook(
            lambda module, *_: kept.append(module.weight.detach()) and None)
        model(tokens_of())
        with self.assertRaisesRegex(RuntimeError, "'layers.0'.*binding that has ended"):
            kept[0].sum()
        self.assertEqual(optimizer.stats()[0]["model"]["stale_aliases"], 1)
        embedding = model.embedding.weight.detach()
        self.assertEqual(embedding.shape, (50, WIDTH))
        embedding[0].zero_()  # close() asks for no values
        optimizer.close()
        for use in (model.layers[0].up.weight.sum, lambda: model(tokens_of())):
            with self.assertRaisesRegex(RuntimeError, "has no values: close"):
                use()
        with self.assertRaisesRegex(RuntimeError, "binding that has ended"):
            embedding.sum()

    def test_a_forked_child_reads_an_error_and_no_foreign_memory(self):
        model, optimizer = self.offload(net_of())
        with self.assertRaisesRegex(RuntimeError, "forked"):
            of_fork(lambda: model.embedding.weight.sum().item())
        with self.assertRaisesRegex(RuntimeError, "parked"):
            of_fork(lambda: model.layers[0].up.weight.sum().item())
        loader = torch.utils.data.DataLoader([tokens_of(seed) for seed in range(4)], num_workers=2)
        for tokens in loader:
            model(tokens[0]).mean().backward()
            optimizer.step()

    def test_restore_gives_torch_its_parameters_back(self):
        plain, model = net_of(), net_of()
        identities = [id(parameter) for parameter in model.parameters()]
        with torch.inference_mode():
            model, optimizer = self.offload(model, nvme=self.folder)
        own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
        self.train(plain, own)
        self.train(model, optimizer)
        loss_of(model).backward()
        with self.assertRaisesRegex(headrace.WrongState, "gradients"):
            optimizer.restore()
        optimizer.zero_grad()
        clone, left = torch.Tensor.clone, [9]

        def fails(tensor):
            left[0] -= 1
            if left[0] == 0:
                raise MemoryError("in the middle")
            return clone(tensor)

        with unittest.mock.patch("torch.Tensor.clone", fails):
            with self.assertRaisesRegex(MemoryError, "in the middle"):
                optimizer.restore()
        with self.assertRaisesRegex(headrace.WrongState, "other memory"):
            model.layers[0](torch.ones(1, WIDTH))
        optimizer.restore()  # goes on
        self.assertEqual([id(parameter) for parameter in model.parameters()], identities)
        self.assert_same(values_of(copy.deepcopy(model)), values_of(plain))
        self.assertEqual(os.listdir(self.folder), [])
        for use in (optimizer.step, optimizer.restore, optimizer.sleep, optimizer.wake):
            with self.assertRaisesRegex(headrace.WrongState, "restored or closed"):
                use()
        optimizer.zero_grad()
        for one in (plain, model):
            one.zero_grad()
            self.train(one, torch.optim.SGD(one.parameters(), lr=0.1))
        self.assert_same(values_of(model), values_of(plain))
        self.offload(model)

    def test_sleeps_and_wakes(self):
        for nvme in (None, self.folder):
            plain = net_of()
            own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
            model, optimizer = self.offload(net_of(), nvme=nvme)
            for _ in range(2):
                self.assertEqual(self.train(model, optimizer), self.train(plain, own))
                optimizer.sleep(self.folder)
                for use in (lambda: loss_of(model), lambda: model.layers[0](torch.ones(1, WIDTH)),
                            lambda: values_of(model), lambda: optimizer.sleep(self.folder),
                            lambda: headrace.gathered(model.layers[0]).__enter__()):
                    with self.assertRaisesRegex(RuntimeError, "asleep|engine sleeps"):
                        use()
                optimizer.wake()
                self.assert_same(values_of(model), values_of(plain))

    def test_an_engine_ends_with_its_model(self):
        for make in (net_of, ResultsNet):
            self.assert_ends(make)

    def assert_ends(self, make):
        model, optimizer = headrace.offload(make(), nvme=self.folder)
        self.train(model, optimizer)
        engine = weakref.ref(optimizer._part.engine)
        self.assertNotEqual(os.listdir(self.folder), [])
        del optimizer
        gc.collect()
        model(tokens_of())  # the model keeps it
        del model
        gc.collect()
        self.assertIsNone(engine())
        self.assertEqual(os.listdir(self.folder), [])

    def test_with_a_budget_less_is_on_the_drive(self):
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        expected = self.train(model, optimizer), values_of(model)
        less = optimizer.plan()[0]["host_bytes"]
        optimizer.close()
        model, optimizer = self.offload(net_of(), nvme=self.folder, host_budget=less + (1 << 20))
        self.assertEqual(self.train(model, optimizer), expected[0])
        self.assert_same(values_of(model), expected[1])


class Normed(torch.nn.Module):
    """A batch norm in each layer, and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH))
            for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(2), persistent=False)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


def normed_loss_of(model, seed=1):
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed))
    return (model(x) - x).pow(2).mean()


class Saved(Case):
    """Checkpoints in the engine's format."""

    def normed(self, model=None, **options):
        torch.manual_seed(0)
        model = Normed() if model is None else model
        return self.offload(model, blocks=list(model.layers), **options)

    def groups_of(self, model):
        return [{"params": [one for one in model.parameters() if one.dim() > 1]},
                {"params": [one for one in model.parameters() if one.dim() < 2],
                 "weight_decay": 0.0, "lr": 1e-3}]

    def saved(self):
        """A run with groups, whose rates have changed. Returns what comes after the save."""
        model = Normed()
        model, optimizer = self.normed(model, params=self.groups_of(model), nvme=self.folder)
        self.train(model, optimizer, loss=normed_loss_of)
        for group in optimizer.param_groups:
            group.update(lr=group["lr"] / 3, betas=(0.8, 0.95), note="half-way")
        os.makedirs(self.folder + "/run")
        optimizer.save_checkpoint(self.folder + "/run/step-3", b"row 3")
        groups = optimizer.state_dict()["param_groups"]
        return groups, self.train(model, optimizer, loss=normed_loss_of), values_of(model)

    def test_hold_groups_and_buffers_beside_the_callers_bytes(self):
        groups, losses, values = self.saved()
        with open(self.folder + "/run/latest", "w", encoding="utf-8") as file:
            file.write("step-3\n")
        for path in ("/run/step-3", "/run"):
            model = Normed()
            model, optimizer = self.normed(model, params=self.groups_of(model))
            self.train(model, optimizer, 1, loss=normed_loss_of)
            own = optimizer.param_groups[0]
            self.assertEqual(optimizer.load_checkpoint(self.folder + path), b"row 3")
            self.assertIs(optimizer.param_groups[0], own)
            self.assertEqual(optimizer.state_dict()["param_groups"], groups)
            self.assertEqual(self.train(model, optimizer, loss=normed_loss_of), losses)
            self.assert_same(values_of(model), values)

    def test_take_rates_of_numpy_and_of_torch_and_refuse_code(self):
        import numpy as np
        for number, rate in enumerate((np.float64(0.3), np.float32(0.3), torch.tensor(0.3))):
            _, optimizer = self.offload(net_of())
            optimizer.param_groups[0]["lr"] = rate
            optimizer.save_checkpoint(f"{self.folder}/{number}")
            _, other = self.offload(net_of(), lr=1.0)
            other.load_checkpoint(f"{self.folder}/{number}")
            self.assertEqual(other.param_groups[0]["lr"], rate)
        optimizer.param_groups[0]["of"] = [len, lambda: 0]
        with self.assertRaisesRegex(ValueError, r"param_groups\[0\]\['of'\].*nothing was saved"):
            optimizer.save_checkpoint(self.folder + "/code")

    def test_for_other_groups_or_buffers_are_refused_before_a_load(self):
        self.saved()
        moved, lacks, longer, single = Normed(), Normed(), Normed(), Normed()
        groups = self.groups_of(moved)
        groups[1]["params"].append(groups[0]["params"].pop())
        lacks.layers[1][1].running_var = None
        longer.layers[1][1].running_mean = torch.zeros(WIDTH + 1)
        for model, params, text in (
                (moved, groups, "'head.weight' is in group 0 there, and in 1 here"),
                (single, None, "'head.bias' is in group 1|group 1 there, and in 0 here"),
                (lacks, self.groups_of(lacks), r"'layers.1.1.running_var' is .*\(32,\) in .* "
                                               "and missing in"),
                (longer, self.groups_of(longer), r"running_mean' is .*\(32,\) .*\(33,\)")):
            model, optimizer = self.normed(model, params=params)
            before = values_of(model)
            with self.assertRaisesRegex(ValueError, text + ".*nothing was loaded"):
                optimizer.load_checkpoint(self.folder + "/run/step-3")
            self.assert_same(values_of(model), before)
            self.assertEqual(optimizer.param_groups[0]["lr"], 1e-2)

    def test_of_other_programs_have_weights_and_state_and_a_warning(self):
        model, optimizer = self.normed()
        self.train(model, optimizer, loss=normed_loss_of)
        for number, given in enumerate((b"", b"row 3")):
            path = f"{self.folder}/{number}"
            optimizer._part.engine.save_checkpoint(path, trainer_state=given)
            other, follower = self.normed(lr=0.5)
            with self.assertLogs("headrace", "WARNING") as log:
                self.assertEqual(follower.load_checkpoint(path), given)
            self.assertIn("no param_groups and no buffers", log.output[0])
            self.assertEqual(follower.param_groups[0]["lr"], 0.5)
            self.assertTrue(torch.equal(other.state_dict()["head.weight"],
                                        model.state_dict()["head.weight"]))

    def test_of_a_newer_headrace_or_damaged_are_refused(self):
        model, optimizer = self.normed()
        optimizer.save_checkpoint(self.folder + "/one")
        path = self.folder + "/one/trainer_state.bin"
        with open(path, "rb") as file:
            blob = file.read()
        for at, kind, text in ((16, headrace.Unsupported, "format 254.*Install the newer"),
                               (28, headrace.Corrupt, "cannot be read.*checkpoint verify"),
                               (len(blob) - 1, headrace.Corrupt, "")):
            with open(path, "wb") as file:
                file.write(blob[:at] + b"\xfe" + blob[at + 1:])
            with self.assertRaisesRegex(kind, text):
                optimizer.load_checkpoint(self.folder + "/one")
        self.train(model, optimizer, loss=normed_loss_of)

    def test_that_are_refused_change_nothing(self):
        runs = []
        for is_refused in (False, True):
            model, optimizer = self.offload(net_of(), snapshots=f"{self.folder}/{is_refused}")
            self.train(model, optimizer)
            if is_refused:
                self.damage(optimizer)
            runs.append((self.train(model, optimizer), values_of(model)))
        self.assertEqual(runs[0][0], runs[1][0])
        self.assert_same(runs[0][1], runs[1][1])

    def damage(self, optimizer):
        path, reference = self.folder + "/one", optimizer.state_dict()
        optimizer.save_checkpoint(path)
        for folder in (path, reference["headrace"]["snapshot"] + "/engine0"):
            with open(folder + "/optimizer.safetensors", "r+b") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)[0]
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last ^ 1]))
        reference["param_groups"][0]["lr"] = 0.5
        for load in (lambda: optimizer.load_checkpoint(path),
                     lambda: optimizer.load_state_dict(reference)):
            with self.assertRaisesRegex(headrace.Corrupt, "checksum") as caught:
                load()
            self.assertNotIn("step() refuses", "".join(getattr(caught.exception, "__notes__", [])))
        self.assertEqual(optimizer.param_groups[0]["lr"], 1e-2)

    def test_that_end_in_the_middle_are_refused_until_one_is_loaded(self):
        model, optimizer = self.offload(net_of())
        optimizer.save_checkpoint(self.folder + "/one")
        expected = self.train(model, optimizer)
        engine = optimizer._part.engine

        def fail(_directory):
            for group in optimizer._offload.groups:  # as the engine does
                engine.mark_written(group.group, "the load ended on the way")
            raise headrace.IoError("the drive is gone")

        loss_of(model).backward()
        optimizer.zero_grad()
        with unittest.mock.patch.object(engine, "load_checkpoint", fail):
            with self.assertRaisesRegex(OSError, "the drive is gone"):
                optimizer.load_checkpoint(self.folder + "/one")
        for use in (lambda: loss_of(model), model.state_dict, optimizer.restore):
            with self.assertRaisesRegex(headrace.WrongState, "ended on the way"):
                use()
        optimizer.load_checkpoint(self.folder + "/one")
        self.assertEqual(optimizer.state_dict()["state"], {})  # of step 0
        self.assertEqual(self.train(model, optimizer), expected)

    def test_keep_each_bit_of_buffers_or_refuse_them_by_name(self):
        model = net_of()
        model.register_buffer("zero", torch.zeros(2))
        model.register_buffer("wide", torch.ones(1).expand(3))
        model, optimizer = self.offload(model)
        model.zero.neg_()
        optimizer.save_checkpoint(self.folder + "/one")
        model.zero.zero_()
        optimizer.load_checkpoint(self.folder + "/one")
        self.assertTrue(torch.signbit(model.zero).all())
        model.wide = torch.zeros(1).expand(3)
        with self.assertRaisesRegex(ValueError, "buffer 'wide'.*nothing was loaded"):
            optimizer.load_checkpoint(self.folder + "/one")
        model.wide = torch.zeros(3, device="meta")
        with self.assertRaisesRegex(ValueError, "buffer 'wide'.*nothing was saved"):
            optimizer.save_checkpoint(self.folder + "/two")
        with self.assertRaisesRegex(ValueError, "trainer_state is a str; nothing was saved"):
            optimizer.save_checkpoint(self.folder + "/two", "text")
        self.assertFalse(os.path.exists(self.folder + "/two"))

    def test_that_python_ends_in_the_middle_are_neither_trained_nor_saved(self):
        model, optimizer = self.offload(net_of())
        optimizer.save_checkpoint(self.folder + "/one")
        expected = self.train(model, optimizer)
        with unittest.mock.patch.object(optimizer._part.engine, "load_checkpoint",
                                        side_effect=MemoryError):
            with self.assertRaises(MemoryError):
                optimizer.load_checkpoint(self.folder + "/one")
        for use in (lambda: loss_of(model), model.state_dict, optimizer.state_dict):
            with self.assertRaisesRegex(headrace.WrongState, "ended in the middle"):
                use()
        with self.assertRaisesRegex(headrace.WrongState, "ended in the middle.*nothing was saved"):
            optimizer.save_checkpoint(self.folder + "/two")
        self.assertFalse(os.path.exists(self.folder + "/two"))
        optimizer.load_checkpoint(self.folder + "/one")
        self.assertEqual(self.train(model, optimizer), expected)


class State(Case):
    """What the optimizer saves and loads."""

    def test_goes_on_in_another_model_and_in_torch(self):
        for dtype in (torch.float32, torch.bfloat16):
            for snapshots in (None, self.folder + "/snapshots"):
                model, optimizer = self.offload(net_of(dtype), nvme=self.folder,
                                                snapshots=snapshots)
                self.train(model, optimizer)
                file = io.BytesIO()
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                           file)
                file.seek(0)
                saved = torch.load(file, weights_only=True)
                expected = self.train(model, optimizer), values_of(model)
                other, follower = self.offload(net_of(dtype), snapshots=snapshots)
                self.train(other, follower, 1)
                other.load_state_dict(saved["model"])
                follower.load_state_dict(saved["optimizer"])
                self.assertEqual(self.train(other, follower), expected[0])
                self.assert_same(values_of(other), expected[1])
                if snapshots is None:
                    plain = net_of(dtype)
                    plain.load_state_dict(saved["model"])
                    own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
                    own.load_state_dict(saved["optimizer"])
                    self.assertEqual(self.train(plain, own), expected[0])
                    self.assert_same(values_of(plain), expected[1])

    def test_of_a_snapshot_has_the_weights_of_now(self):
        def load(model, values):
            model.load_state_dict({name: one + 1 for name, one in values.items()})

        def write(model, _values):
            with headrace.gathered(model.layers[1], modify=True) as layer:
                layer.up.weight.data.zero_()

        model, optimizer = self.offload(net_of(), snapshots=self.folder + "/snapshots")
        self.train(model, optimizer)
        for change in (load, write):
            before = optimizer.state_dict()
            self.assertEqual(optimizer.state_dict(), before)
            change(model, values_of(model))
            wanted, saved = values_of(model), optimizer.state_dict()
            self.assertNotEqual(saved, before)
            other, follower = self.offload(net_of())
            other.load_state_dict(wanted)
            follower.load_state_dict(saved)
            self.assert_same(values_of(other), wanted)

    def test_leaves_the_weights_that_the_program_has_loaded(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            plain = net_of(dtype)
            own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
            self.train(plain, own)
            saved, averaged = own.state_dict(), values_of(plain)
            averaged["layers.1.up.weight"][:9] = 0.5
            plain.load_state_dict(averaged)
            expected = self.train(plain, own)
            model, optimizer = self.offload(net_of(dtype), nvme=self.folder)
            model.load_state_dict(averaged)
            optimizer.load_state_dict(saved)
            self.assert_same(values_of(model), averaged)
            self.assertEqual(self.train(model, optimizer), expected)
            self.assert_same(values_of(model), values_of(plain))

    def test_is_loaded_before_the_weights_or_after_them(self):
        def load(model, optimizer, weights, state, weights_first):
            with_model = functools.partial(model.load_state_dict, weights)
            with_state = functools.partial(optimizer.load_state_dict, state)
            for one in (with_model, with_state) if weights_first else (with_state, with_model):
                one()

        for dtype, averages, is_fresh, weights_first in itertools.product(
                (torch.bfloat16, torch.float16, torch.float32), *[(False, True)] * 3):
            with self.subTest(dtype=dtype, averages=averages, is_fresh=is_fresh,
                              weights_first=weights_first):
                plain = net_of(dtype)
                own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
                self.train(plain, own)
                state, weights = own.state_dict(), values_of(plain)
                if averages:
                    for name in ("layers.1.up", "embedding", "head"):
                        weights[f"{name}.weight"][:9] = 0.5
                    plain.load_state_dict(weights)
                expected = self.train(plain, own)
                model, optimizer = self.offload(net_of(dtype), nvme=self.folder)
                if not is_fresh:
                    self.train(model, optimizer, 5)
                load(model, optimizer, weights, state, weights_first)
                self.assert_same(values_of(model), weights)
                self.assertEqual(self.train(model, optimizer), expected)
                self.assert_same(values_of(model), values_of(plain))

    def test_brings_no_masters_of_before_once_training_has_gone_on(self):
        """Weights that are loaded later have masters of their own where they differ."""
        def forward(model, _optimizer):
            model(tokens_of())

        def step_of_a_block(model, optimizer):
            model.layers[1](torch.ones(2, WIDTH, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()

        def load_anew(model, optimizer):
            model.load_state_dict(weights_before)
            optimizer.load_state_dict(before)

        def load_checkpoint(model, optimizer):
            optimizer.load_checkpoint(self.folder + "/checkpoint")

        model, optimizer = self.offload(net_of(torch.bfloat16))
        before, weights_before = optimizer.state_dict(), values_of(model)
        optimizer.save_checkpoint(self.folder + "/checkpoint")
        self.train(model, optimizer)
        state, weights = optimizer.state_dict(), values_of(model)
        for go_on in (forward, step_of_a_block, load_anew, load_checkpoint):
            with self.subTest(go_on.__name__):
                model, optimizer = self.offload(net_of(torch.bfloat16))
                optimizer.load_state_dict(state)
                self.assertTrue(any(group.masters for group in optimizer._offload.groups))
                go_on(model, optimizer)
                self.assertFalse(any(group.masters for group in optimizer._offload.groups))
                model.load_state_dict(weights)
                self.assert_same(values_of(model), weights)

    def test_half_of_a_load_is_made_whole_by_another(self):
        def wide_net():
            model = net_of(torch.bfloat16)
            model.embedding = torch.nn.Embedding(4200, WIDTH)
            model.head.weight = model.embedding.weight
            model.layers[1].up = torch.nn.Linear(WIDTH, 4200)
            model.layers[1].down = torch.nn.Linear(4200, WIDTH)
            return model.to(torch.bfloat16)

        model, optimizer = self.offload(wide_net())
        self.train(model, optimizer)
        state, weights = optimizer.state_dict(), values_of(model)
        expected = self.train(model, optimizer)
        for content, is_kept in itertools.product(("master", "weight", "exp_avg", "exp_avg_sq"),
                                                  (False, True)):
            with self.subTest(content=content, is_kept=is_kept):
                model, optimizer = self.offload(wide_net())
                held = model.state_dict()  # of two tied names, the copy that a later one would be
                its_state = state if is_kept else {**state, "state": {
                    index: values for index, values in state["state"].items() if index > 0}}
                with self.assertRaises(KeyboardInterrupt), interrupted_in_load_of(content):
                    optimizer.load_state_dict(its_state)
                with self.assertRaisesRegex(headrace.WrongState, "ended on the way"):
                    loss_of(model).backward()
                with self.assertRaises(headrace.WrongState):
                    optimizer.step()
                optimizer.zero_grad()
                optimizer.load_state_dict(state)
                if is_kept:  # which are lost
                    self.assertFalse(torch.equal(held["head.weight"], weights["head.weight"]))
                    self.assertTrue(torch.equal(values_of(model)["head.weight"],
                                                weights["head.weight"]))
                optimizer.step()  # has no gradients
                model.load_state_dict(weights)
                self.assertEqual(self.train(model, optimizer), expected)

    def test_is_loaded_into_the_dicts_that_schedules_have(self):
        model, optimizer = self.offload(net_of())
        self.train(model, optimizer)
        saved = optimizer.state_dict()
        saved["param_groups"][0].update(lr=0.25, initial_lr=0.5)
        groups, group = optimizer.param_groups, optimizer.param_groups[0]
        group["another"] = 1
        optimizer.load_state_dict(saved)
        self.assertIs(optimizer.param_groups, groups)
        self.assertIs(groups[0], group)
        self.assertEqual(optimizer.state_dict()["param_groups"], saved["param_groups"])
        group["lr"] = 0.0  # as a schedule does
        before = values_of(model)
        self.train(model, optimizer, 1)
        self.assert_same(values_of(model), before)

    def test_is_what_hooks_make_of_it(self):
        for snapshots in (None, self.folder + "/snapshots"):
            model, optimizer = self.offload(net_of(), snapshots=snapshots)
            self.train(model, optimizer)
            optimizer.register_state_dict_post_hook(lambda _, state: {"inner": state})
            wrapped = optimizer.state_dict()
            self.assertEqual(list(wrapped), ["inner"])
            other, follower = self.offload(net_of(), snapshots=snapshots)
            other.load_state_dict(model.state_dict())
            follower.register_load_state_dict_pre_hook(lambda _, state: state["inner"])
            follower.load_state_dict(wrapped)
            self.assertEqual(self.train(other, follower), self.train(model, optimizer))

    def test_from_before_the_first_step_begins_anew(self):
        model, optimizer = self.offload(net_of())
        weights, fresh = values_of(model), optimizer.state_dict()
        expected = self.train(model, optimizer)
        model.load_state_dict(weights)
        optimizer.load_state_dict(fresh)
        self.assertEqual(self.train(model, optimizer), expected)

    def test_is_refused_after_the_end(self):
        for end in ("close", "restore"):
            model, optimizer = self.offload(net_of())
            self.train(model, optimizer)
            state = optimizer.state_dict()
            getattr(optimizer, end)()
            for call in (optimizer.state_dict, optimizer.full_state_dict, optimizer.plan,
                         optimizer.stats, optimizer.step, lambda: optimizer.load_state_dict(state),
                         lambda: optimizer.save_checkpoint(self.folder + "/late")):
                with self.assertRaisesRegex(headrace.WrongState, "engine is gone.*offload"):
                    call()
            self.assertIn("AdamW", repr(optimizer))

    def test_half_of_a_load_stops_the_step(self):
        model, optimizer = self.offload(net_of())
        self.train(model, optimizer)
        state = optimizer.state_dict()
        set_steps = headrace.Engine.set_step_count
        with unittest.mock.patch("headrace.Engine.set_step_count",
                                 side_effect=headrace.IoError("the drive is gone")):
            with self.assertRaises(OSError):
                optimizer.load_state_dict(state)
        self.assertIsNotNone(set_steps)
        loss_of(model).backward()
        with self.assertRaisesRegex(headrace.WrongState, "ended in the middle.* that of the "
                                                         "state_dict, .*this run's of step 3"):
            optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(state)
        self.train(model, optimizer)

    def test_of_another_rule_is_refused(self):
        model, optimizer = self.offload(net_of())
        before = values_of(model)
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.assertRaises(headrace.ArgumentError):
            optimizer.load_state_dict(other.state_dict())
        trained, frozen = headrace.torch.AdamW(net_of().parameters()), net_of()
        frozen.layers[1].up.bias.requires_grad_(False)
        for parameter in trained.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        trained.step()
        _, follower = self.offload(frozen)
        with self.assertRaisesRegex(headrace.ArgumentError, "layers.1.up.bias.*frozen"):
            follower.load_state_dict(trained.state_dict())
        with self.assertRaisesRegex(headrace.Unsupported, "params="):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        self.assert_same(values_of(model), before)
        self.train(model, optimizer)


@unittest.skipIf(peft is None or transformers is None, "peft is not installed")
class Lora(Case):
    def model(self, dtype, reentrant):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=64, hidden_size=128, intermediate_size=512, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2))
        model = peft.get_peft_model(model.to(dtype).train(), peft.LoraConfig(
            r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False,
            lora_dropout=0.1), autocast_adapter_dtype=False)
        if reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        return model

    def base(self, model):
        return {name: values.clone() for name, values in model.state_dict().items()
                if "lora_" not in name}

    def test_reads_its_base_and_writes_none_of_it(self):
        def loss(model, seed):
            torch.manual_seed(seed)
            return model(input_ids=ids, labels=ids, use_cache=False).loss

        ids = models()["llama"][1]["input_ids"]

        for dtype in (torch.float32, torch.bfloat16):
            for reentrant in (None, False, True):
                with self.subTest(dtype=dtype, reentrant=reentrant):
                    plain = self.model(dtype, reentrant)
                    own = headrace.torch.AdamW(
                        [p for p in plain.parameters() if p.requires_grad], lr=1e-2)
                    expected = self.train(plain, own, loss=loss)
                    model, optimizer = self.offload(self.model(dtype, reentrant),
                                                    nvme=self.folder)
                    before, written = self.base(model), self.written(optimizer)
                    self.assertEqual(self.train(model, optimizer, loss=loss), expected)
                    written = self.written(optimizer) - written
                    self.assert_same(values_of(model), values_of(plain))
                    self.assert_same(self.base(model), before)
                    binds = optimizer.stats()[0]["model"]["binds"]
                    self.assertEqual(sorted(binds.values()), [1, 6, 6, 6])
                    # Adapters and their state, and nothing of the base, which is larger.
                    rows = {(row["what"], row["tier"]): row["bytes"]
                            for row in optimizer.plan()[0]["rows"]}
                    of_a_step = rows["optimizer state", "nvme"] + rows["gradients", "host"]
                    self.assertLess(4 * of_a_step, rows["parameters", "nvme"])
                    self.assertEqual(written, 3 * of_a_step)
                    optimizer.close()

    def written(self, optimizer):
        optimizer._part.engine.finish_step()
        return optimizer.stats()[0]["nvme_written_bytes"]


def anonymous_bytes():
    """Memory of this process that no file is behind."""
    with open("/proc/self/status", encoding="ascii") as file:
        rows = dict(line.split(":", 1) for line in file)
    return 1024 * sum(int(rows[name].split()[0]) for name in ("RssAnon", "RssShmem"))


class Peak:
    """The most that anonymous_bytes() grows within `with`."""

    def __enter__(self):
        self.first = self.most = anonymous_bytes()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.ended.wait(0.002):
            self.most = max(self.most, anonymous_bytes())

    def __exit__(self, *_raised):
        self.ended.set()
        self.thread.join()
        self.bytes = max(self.most, anonymous_bytes()) - self.first


@NEEDS_TRANSFORMERS
class Memory(Case):
    """In a child process, which has not grown before."""

    def config(self):
        return transformers.LlamaConfig(
            vocab_size=64, hidden_size=512, intermediate_size=1536, num_hidden_layers=16,
            num_attention_heads=4, num_key_value_heads=4, dtype=torch.bfloat16)

    def test_holds_the_plan_and_no_model(self):
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(self.config()).to(torch.bfloat16).save_pretrained(
            self.folder + "/saved")
        peaks = of_fork(self.child)
        print("\nanonymous memory beside the plan, MiB:",
              {name: round(value / 2**20, 1) for name, value in peaks.items()})
        weights, plan = peaks.pop("weights"), peaks.pop("plan")
        # Of a frozen base, there are slots alone.
        self.assertLess(peaks["frozen plan"], weights / 3)
        peaks.pop("frozen plan")
        self.assertGreater(weights, 90 << 20)
        # The plan is 2 bytes of gradients for each parameter, and slots.
        self.assertLess(plan, 2 * weights)
        for name, value in peaks.items():
            self.assertLess(value, weights / 3, name)

    def child(self):
        ids = torch.randint(0, 64, (1, 8))
        self.step(transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=4)), torch.optim.AdamW, ids)
        peaks = {}
        with Peak() as start:
            model = transformers.LlamaForCausalLM.from_pretrained(self.folder + "/saved")
            peaks["weights"] = sum(parameter.nbytes for parameter in model.parameters())
            model, optimizer = headrace.offload(model, nvme=self.folder, lr=1e-3)
        peaks["plan"] = optimizer.plan()[0]["host_bytes"]
        peaks["offload"] = start.bytes - peaks["plan"]
        with Peak() as one:
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
        peaks["step"] = one.bytes
        with Peak() as one:
            model.save_pretrained(self.folder + "/trained")
        peaks["save"] = one.bytes
        with Peak() as one:
            state = transformers.LlamaForCausalLM.from_pretrained(
                self.folder + "/trained").state_dict()
            model.load_state_dict(state)
        peaks["load"] = one.bytes
        optimizer.close()
        model = transformers.LlamaForCausalLM.from_pretrained(self.folder + "/saved")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("norm" in name)
        model, optimizer = headrace.offload(model, nvme=self.folder, lr=1e-3)
        peaks["frozen plan"] = optimizer.plan()[0]["host_bytes"]
        with Peak() as one:
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
        peaks["frozen step"] = one.bytes
        optimizer.close()
        del model, optimizer
        gc.collect()
        before = anonymous_bytes()
        model = transformers.LlamaForCausalLM(self.config()).to(torch.bfloat16)  # in memory
        model, optimizer = headrace.offload(model, nvme=self.folder, lr=1e-3)
        peaks["what is left of a model in memory"] = \
            anonymous_bytes() - before - optimizer.plan()[0]["host_bytes"]
        optimizer.close()
        return peaks

    def step(self, model, kind, ids):
        model(input_ids=ids, labels=ids).loss.backward()
        kind(model.parameters()).step()


class Parts(torch.nn.Module):
    """Modules that make their parameters in many ways, and ways to change them afterwards."""

    def __init__(self):
        super().__init__()
        self.lstm, self.attention = torch.nn.LSTM(8, 8), torch.nn.MultiheadAttention(16, 2)
        self.encoder = torch.nn.TransformerEncoder(  # copies of one layer
            torch.nn.TransformerEncoderLayer(32, 4, batch_first=True), 3)
        self.embedding = torch.nn.Embedding(50, WIDTH, padding_idx=0)
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.embedding.weight
        filled = torch.empty(1000)
        torch.nn.init.uniform_(filled)
        self.filled = torch.nn.Parameter(filled)
        self.list = torch.nn.ParameterList(torch.randn(3) for _ in range(2))
        self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
        self.frozen = torch.nn.Parameter(torch.arange(6), requires_grad=False)
        self.scalar = torch.nn.Parameter(torch.tensor(2.0))
        self.none = torch.nn.Parameter(torch.empty(0, 3))
        self.lazy = torch.nn.LazyLinear(3)
        self.head.register_parameter("bias", None)
        self.lstm.weight_ih_l0.data = torch.randn(32, 8)
        self.apply(lambda module: torch.nn.init.normal_(module.weight)
                   if isinstance(module, torch.nn.Linear) and module.in_features > 0 else None)


def is_in_file(parameter):
    return headrace.torch.offload._building.folder_of(parameter) is not None


class Building(Case):
    """Models that headrace.building() makes."""

    def building(self):
        return headrace.building(self.folder)

    def test_have_the_values_of_those_made_in_memory_and_are_in_files(self):
        def made():
            torch.manual_seed(0)
            return Parts(), torch.rand(3)

        plain, after = made()
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.filterwarnings("ignore", message=".*Lazy modules.*")
            with self.building():
                model, own_after = made()
        self.assertTrue(torch.equal(own_after, after))  # as many random numbers
        model.lazy = plain.lazy = torch.nn.Identity()
        self.assert_same(dict(model.state_dict()), dict(plain.state_dict()))
        self.assertIs(model.head.weight, model.embedding.weight)
        self.assertIs(model.lstm._flat_weights[0], model.lstm.weight_ih_l0)
        for name, parameter in model.named_parameters():
            self.assertEqual(is_in_file(parameter), parameter.numel() > 0, name)
        self.assertFalse(is_in_file(model.norm.running_mean))
        self.assertFalse(any(map(is_in_file, plain.parameters())))
        self.assertEqual(os.listdir(self.folder), [])  # without names
        self.assertFalse(any(map(is_in_file, Parts().parameters())))
        stored = io.BytesIO(), io.BytesIO()
        for one, file in zip((model, plain), stored):
            torch.save(one.state_dict(), file)
        self.assertEqual(*(len(file.getvalue()) for file in stored))

    @NEEDS_TRANSFORMERS
    def test_of_transformers_train_as_those_made_in_memory(self):
        def made():
            torch.manual_seed(0)
            return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(
                vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True,
                dtype=torch.bfloat16), dtype=torch.bfloat16).train()

        def loss(model, seed):
            ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(seed))
            return model(input_ids=ids, labels=ids).loss

        plain = made()
        with self.building():
            model = made()
        self.assertTrue(all(map(is_in_file, model.parameters())))
        self.assert_same(values_of(model), values_of(plain))
        expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2), loss=loss)
        model, optimizer = self.offload(model, nvme=self.folder)
        self.assertEqual(self.train(model, optimizer, loss=loss), expected)
        self.assert_same(values_of(model), values_of(plain))
        optimizer.restore()
        self.assertTrue(all(map(is_in_file, model.parameters())))
        self.assert_same(values_of(model), values_of(plain))

    def test_are_as_they_were_after_an_error_in_offload(self):
        with self.building():
            model = net_of()
        with interrupted_at_load(3), self.assertRaises(KeyboardInterrupt):
            self.offload(model)
        self.assertTrue(all(map(is_in_file, model.parameters())))
        self.assert_same(values_of(model), values_of(net_of()))

    def test_name_what_stays_in_memory(self):
        values = torch.randn(6, 5)
        for parameter, text in (
                (lambda: torch.nn.Parameter(values), "shares its memory"),
                (lambda: torch.nn.Parameter(values[1:]), "shares its memory"),
                (lambda: torch.nn.Parameter(values.clone().t()), "is not row-major")):
            with self.subTest(text):
                with self.assertWarnsRegex(UserWarning, f"'own' of a Module {text}.*, so it"):
                    with self.building():
                        module = torch.nn.Module()
                        module.own = parameter()
                self.assertFalse(is_in_file(module.own))
        with self.building():  # on another device, they take no host memory
            self.assertEqual(torch.nn.Linear(4, 4, device="meta").weight.device.type, "meta")
        values = torch.randn(6, 5)
        with self.building():
            module = torch.nn.Linear(5, 6)
            module.weight.data = values
            del values
            others = [torch.nn.Linear(2048, 2048) for _ in range(5)]
            self.assertTrue(is_in_file(module.weight))  # before the end, too
        self.assertTrue(all(is_in_file(one.weight) for one in others))

    def test_are_refused_where_no_file_can_be_made_and_leave_no_hooks(self):
        own = torch.nn.Parameter.__deepcopy__
        for folder, text in (("", "^nvme is ''; no model was made"),
                             (self.folder + "/missing", "the model was not made. Create")):
            with self.assertRaisesRegex(headrace.Error, text):
                with headrace.building(folder):
                    self.fail("it began")
        with self.assertRaisesRegex(headrace.NoSpace, "building.. needs .* bytes in /"):
            with self.building(), unittest.mock.patch("os.posix_fallocate",
                                                      side_effect=OSError(28, "No space left")):
                torch.nn.Linear(2, 2)
        self.assertIs(torch.nn.Parameter.__deepcopy__, own)
        self.assertFalse(is_in_file(torch.nn.Linear(2, 2).weight))

    def test_stay_in_files_when_they_are_converted_after_the_scope(self):
        for convert in (lambda model: model.to(torch.bfloat16), lambda model: model.half(),
                        lambda model: model.bfloat16().double(), lambda model: model.to("cpu"),
                        lambda model: model.layers[1].half()):
            with self.building():
                model = net_of()
            plain = net_of()
            self.assertIsInstance(convert(model), torch.nn.Module)
            convert(plain)
            self.assertTrue(all(map(is_in_file, model.parameters())))
            self.assert_same(values_of(model), values_of(plain))
            self.assertFalse(any(map(is_in_file, plain.parameters())))
        with unittest.mock.patch("os.posix_fallocate", side_effect=OSError(28, "No space left")):
            with self.assertRaisesRegex(headrace.NoSpace, "needs .* to be converted: No space"):
                model.to(torch.bfloat16)
        self.assertTrue(all(map(is_in_file, model.to(torch.bfloat16).parameters())))
        self.assertEqual(model.to("meta").layers[0].up.weight.device.type, "meta")
        del model
        gc.collect()
        self.assertFalse(hasattr(torch.nn.Module._apply, "__wrapped__"))  # torch's own again

    def test_train_after_a_conversion_as_those_made_in_memory(self):
        with self.building():
            model = net_of()
        plain = net_of().to(torch.bfloat16)
        expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2))
        model, optimizer = self.offload(model.to(torch.bfloat16), nvme=self.folder)
        self.assertEqual(self.train(model, optimizer), expected)
        optimizer.restore()
        self.assertTrue(all(map(is_in_file, model.float().parameters())))
        self.assert_same(values_of(model), values_of(plain.float()))

    def test_give_their_files_back_and_a_forked_child_takes_nothing(self):
        with self.building():
            model = torch.nn.Linear(2048, 512)  # 4 MiB
        expected = model.weight.sum().item()
        free = os.statvfs(self.folder)

        def child():
            nonlocal model
            model = None
            gc.collect()
            return True

        self.assertTrue(of_fork(child))
        self.assertEqual(model.weight.sum().item(), expected)
        file = headrace.torch.offload._building._file_of(model.weight)
        held = file_blocks(file)
        self.assertGreaterEqual(held, 4 << 20)
        del model.weight
        self.assertLessEqual(file_blocks(file), held - (4 << 20) + 2 * 4096)
        self.assertEqual(free.f_bsize, os.statvfs(self.folder).f_bsize)

    def test_take_memory_for_one_parameter_at_a_time(self):
        peak, weights = of_fork(self.child_of_peak)
        print(f"\n{weights / 2**20:.0f} MiB made with at most {peak / 2**20:.1f} MiB in memory")
        self.assertGreater(weights, 60 << 20)
        self.assertLess(peak, 24 << 20)

    def child_of_peak(self):
        torch.nn.Linear(8, 8)
        after = Peak()
        with Peak() as peak, self.building():
            model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(32)))
            model = copy.deepcopy(model).to(torch.bfloat16)
        with after:
            model.float().half()
        return max(peak.bytes, after.bytes), sum(one.nbytes for one in model.parameters())


def file_blocks(file):
    """The bytes of the drive that a file without a name has."""
    start = f"{file.address:x}-"
    with open("/proc/self/maps", encoding="ascii") as maps:
        line = next(one for one in maps if one.startswith(start))
    return 512 * os.stat("/proc/self/map_files/" + line.split()[0]).st_blocks


TRUE = torch.arange(1, 17, dtype=torch.float32).view(4, 4)


class Reader(torch.nn.Module):
    """Two blocks; the table reads the weight of the first."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(2))
        with torch.no_grad():
            self.w.copy_(TRUE)

    @property
    def w(self):
        return self.blocks[0].weight

    def forward(self, x):
        return self.blocks[0](x)


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def replaced(model):
    model.blocks[0].weight = torch.nn.Parameter(torch.zeros(4, 4))
    return model


def other_memory(model):
    model.w.data = torch.zeros(4, 4)
    return model


def stepped(model, **options):
    model.w.grad = torch.ones(4, 4)
    torch.optim.AdamW([model.w], lr=0.1, **options).step()
    return model.w


def in_process_group(use):
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000))
    dist.init_process_group("gloo", rank=0, world_size=1)
    return use()


def sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    return in_process_group(
        lambda: fully_shard(model.blocks[0], mesh=init_device_mesh("cpu", (1,))).weight.to_local())


def data_parallel(model):
    return in_process_group(lambda: torch.nn.parallel.DistributedDataParallel(model)(TRUE))


def safetensors_of(model):
    from safetensors.torch import load, save
    return load(save(model.state_dict()))["blocks.0.weight"]


def safetensors_model(model):
    from safetensors.torch import load_file, save_model
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder + "/m")
        return load_file(folder + "/m")["blocks.0.weight"]


def compiled(function):
    return torch.compile(function, backend="aot_eager")(TRUE)


def loaded(model):
    model.load_state_dict({name: values - 1 for name, values in model.state_dict().items()})
    return model.state_dict()["blocks.0.weight"] + 1


# What a program may do with a parked parameter. What comes back must be TRUE, or an error by name.
ACCESSES = {
    "sum": lambda m: m.w.sum() * TRUE / TRUE.sum(),
    "clone": lambda m: m.w.clone(),
    "print": lambda m: repr(m.w),
    "copy_ from it": lambda m: torch.zeros(4, 4).copy_(m.w),
    "copy_ into it": lambda m: m.w.data.copy_(torch.zeros(4, 4)),
    "fill_": lambda m: m.w.data.fill_(7),
    "normal_": lambda m: torch.nn.init.normal_(m.w),
    "F.linear": lambda m: F.linear(torch.eye(4), m.w),
    "x @ p": lambda m: torch.eye(4) @ m.w,
    "p @ x": lambda m: m.w @ torch.eye(4),
    "p + p": lambda m: (m.w + m.w) / 2,
    "p[0]": lambda m: m.w[0].clone(),
    "embedding": lambda m: F.embedding(torch.arange(4), m.w),
    "deepcopy of the parameter": lambda m: copy.deepcopy(m.w),
    "deepcopy of the model": lambda m: copy.deepcopy(m).w.clone(),
    "pickle": lambda m: pickle.loads(pickle.dumps(m.w)),
    "torch.save of the parameter": lambda m: saved(m.w),
    "torch.save of state_dict()": lambda m: saved(m.state_dict())["blocks.0.weight"],
    "torch.save of the model": lambda m: torch.save(m, io.BytesIO()),
    "safetensors, save": safetensors_of,
    "safetensors, save_model": safetensors_model,
    "state_dict()": lambda m: m.state_dict()["blocks.0.weight"],
    "state_dict(keep_vars)": lambda m: m.state_dict(keep_vars=True)["blocks.0.weight"].clone(),
    "state_dict() of a block": lambda m: m.blocks[0].state_dict()["weight"],
    "load_state_dict": loaded,
    "load_state_dict(assign)": lambda m: m.load_state_dict(m.state_dict(), assign=True),
    "to(bfloat16)": lambda m: m.to(torch.bfloat16).w.float().clone(),
    "half() of a block": lambda m: m.blocks[0].half().weight.float().clone(),
    "to(the same device)": lambda m: m.to("cpu")(torch.eye(4)).t(),
    "to(meta), then forward": lambda m: m.to("meta")(torch.eye(4)),
    "a tensor in its place": lambda m: replaced(m)(torch.eye(4)),
    "numpy()": lambda m: torch.from_numpy(m.w.detach().numpy().copy()),
    "tolist()": lambda m: torch.tensor(m.w.tolist()),
    "item()": lambda m: m.w[0, 0].item(),
    "data_ptr()": lambda m: m.w.data_ptr(),
    "untyped_storage().data_ptr()": lambda m: m.w.untyped_storage().data_ptr(),
    "untyped_storage().resize_()": lambda m: m.w.untyped_storage().resize_(0),
    "untyped_storage().tolist()": lambda m: m.w.untyped_storage().tolist(),
    "dlpack": lambda m: torch.from_dlpack(m.w.detach()).clone(),
    "share_memory_": lambda m: m.w.share_memory_().clone(),
    "pin_memory": lambda m: m.w.pin_memory().clone(),
    "set_": lambda m: torch.zeros(4, 4).set_(m.w.detach()).clone(),
    "AdamW, foreach": lambda m: stepped(m, foreach=True),
    "AdamW, fused": lambda m: stepped(m, fused=True),
    "AdamW, a loop": lambda m: stepped(m, foreach=False),
    "_foreach_norm": lambda m: torch._foreach_norm([m.w.detach()]),
    "torch.equal": lambda m: torch.equal(m.w, TRUE),
    "isfinite": lambda m: torch.isfinite(m.w).all(),
    "parameters_to_vector": lambda m: torch.nn.utils.parameters_to_vector([m.w]),
    "p.data = other, then forward": lambda m: other_memory(m)(torch.eye(4)),
    "functional_call": lambda m: torch.func.functional_call(
        m.blocks[0], dict(m.blocks[0].named_parameters()), (torch.eye(4),)).t(),
    "functional_call, other tensors": lambda m: torch.func.functional_call(
        m.blocks[0], {"weight": torch.zeros(4, 4)}, (torch.eye(4),)),
    "vmap": lambda m: torch.vmap(lambda row: row * 1)(m.w),
    "DistributedDataParallel": data_parallel,
    "fully_shard": sharded,
    "torch.compile of a reader": lambda m: compiled(lambda x: x * 0 + m.w),
    "quantize_per_tensor": lambda m: torch.quantize_per_tensor(m.w, 1.0, 0, torch.qint8),
    "forked child": lambda m: of_fork(lambda: m.w.clone()),
    "shape, views, zeros_like": lambda m: (torch.zeros_like(m.w) + m.w.numel() - 16
                                           + len(m.w.t().shape) - 2 + len(m.w[0].shape) - 1
                                           + TRUE),
}


def outcome_of(use, model):
    """ok: right; N: our error; e: another error; W: wrong, or nothing was refused."""
    try:
        result = use(model)
    except Exception as error:
        return ("N " if "headrace" in str(error) else "e ") + \
            f"{type(error).__name__}: {error}"[:90].replace("\n", " ")
    right = isinstance(result, torch.Tensor) and result.device.type == "cpu" \
        and result.shape == TRUE.shape and torch.equal(result.float(), TRUE)
    return "ok" if right else f"W {result!r}"[:90].replace("\n", " ")


def of_fork(use):
    """What use() returns in a forked child, or its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.close(reader)
        try:
            answer = ("returned", use())
        except BaseException as error:
            answer = ("raised", f"{type(error).__name__}: {error}")
        with open(writer, "wb") as file:
            pickle.dump(answer, file)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        written = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"C {signal.Signals(os.WTERMSIG(status)).name}"
    how, answer = pickle.loads(written)
    if how == "raised":
        raise RuntimeError(answer)
    return answer


def kinds():
    """One tiny model of each kind, and what it is called with."""
    t = transformers
    text = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3,
            "intermediate_size": 48, "pad_token_id": 0}
    seen = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 48, "image_size": 32, "patch_size": 8}
    pairs = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    drawn = torch.Generator().manual_seed(5)
    ids = torch.randint(1, 64, (2, 12), generator=drawn)
    of_text = {"input_ids": ids, "labels": ids}
    image = torch.randn(2, 3, 32, 32, generator=drawn)
    of_image = {"pixel_values": image, "labels": torch.tensor([0, 1])}
    return {
        "bert": (lambda: t.BertForMaskedLM(t.BertConfig(**text)), of_text),
        "qwen3 moe": (lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(
            **text, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=16)), of_text),
        "deepseek v3": (lambda: t.DeepseekV3ForCausalLM(t.DeepseekV3Config(
            **text, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
            topk_group=1, moe_intermediate_size=16, kv_lora_rank=8, q_lora_rank=8,
            qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, first_k_dense_replace=1)),
            of_text),
        "mamba": (lambda: t.MambaForCausalLM(t.MambaConfig(
            vocab_size=64, hidden_size=32, num_hidden_layers=3, state_size=4)), of_text),
        "bart": (lambda: t.BartForConditionalGeneration(t.BartConfig(
            vocab_size=64, d_model=32, max_position_embeddings=32, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, **pairs)), of_text),
        "whisper": (lambda: t.WhisperForConditionalGeneration(t.WhisperConfig(
            vocab_size=64, d_model=32, num_mel_bins=8, max_source_positions=16,
            max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=1, **pairs)),
            {"input_features": torch.randn(2, 8, 32, generator=drawn), "labels": ids}),
        "clip": (lambda: t.CLIPModel(t.CLIPConfig(
            text_config={**text, "max_position_embeddings": 32, "eos_token_id": 2},
            vision_config=seen, projection_dim=16)),
            {"input_ids": ids, "pixel_values": image, "return_loss": True}),
        "resnet": (lambda: t.ResNetForImageClassification(t.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], num_labels=3)), of_image)}


@NEEDS_TRANSFORMERS
class Kinds(Case):
    def test_have_the_bits_of_torch_and_little_outside_of_blocks(self):
        def loss(model, seed):
            torch.manual_seed(seed)
            return model(**inputs).loss

        for name, (make, inputs) in kinds().items():
            with self.subTest(name):
                torch.manual_seed(0)
                plain = make().train()
                model = copy.deepcopy(plain)
                expected = self.train(plain, headrace.torch.AdamW(plain.parameters(), lr=1e-2),
                                      loss=loss)
                model, optimizer = self.offload(model, nvme=self.folder)
                self.assertEqual(self.train(model, optimizer, loss=loss), expected)
                self.assert_same(values_of(model), values_of(plain))
                binds = optimizer.stats()[0]["model"]["binds"]
                self.assertEqual(set(binds.values()), {1, 6}, binds)
                slots = optimizer._part.offload.slots
                kept = sum(slot.parameter.numel() for slot in slots if slot.group.kept)
                self.assertLess(kept, 0.2 * sum(slot.parameter.numel() for slot in slots))
                optimizer.close()


class Hooks(unittest.TestCase):
    def test_are_made_by_a_torch_whose_graphs_end_without_a_reason(self):
        from headrace.torch.offload import _hooks

        def disable(function=None, recursive=True):
            return function
        with unittest.mock.patch("torch.compiler.disable", disable):
            hook = runpy.run_path(_hooks.__file__)["Hook"](lambda value: value + 1)
        self.assertEqual(hook(1), 2)


class Accesses(unittest.TestCase):
    """The table of docs/python.md: each access in a process of its own."""

    def child(self, name, nvme):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        model, _ = headrace.offload(Reader(), nvme=nvme)
        return outcome_of(ACCESSES[name], model)

    def test_of_parked_parameters_crash_nowhere_and_are_silent_nowhere(self):
        for nvme in (None, FOLDER):
            table = {name: of_fork(lambda name=name: self.child(name, nvme)) for name in ACCESSES}
            print(f"\naccesses to a parked parameter, torch {torch.__version__}, "
                  f"{'on a drive' if nvme else 'in memory'}:")
            for name, outcome in table.items():
                print(f"  {name:32}{outcome}")
            kinds = {kind: sum(outcome.startswith(kind) for outcome in table.values())
                     for kind in ("ok", "N", "e", "W", "C")}
            print(f"  {len(table)} accesses: {kinds}")
            bad = {name: outcome for name, outcome in table.items()
                   if not outcome.startswith(("ok", "N"))}
            self.assertEqual(bad, {})


if __name__ == "__main__":
    FOLDER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
