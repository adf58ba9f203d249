# SPDX-License-Identifier: Apache-2.0
"""offload_gpu_test.py FOLDER [TEST...]: headrace.offload() of models that compute on a GPU. FOLDER
lies on a drive."""
import os
import sys
import unittest

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
sys.dont_write_bytecode = True
import offload_test as cases  # noqa: E402
import headrace  # noqa: E402
import headrace.torch  # noqa: E402
import torch  # noqa: E402

try:
    import peft
except ImportError:
    peft = None
if not torch.cuda.is_available():
    print("torch finds no GPU")
    sys.exit(77)
torch.use_deterministic_algorithms(True, warn_only=True)
GPU = torch.device("cuda", 0)
WEIGHT = "layers.0.up.weight"


def net_of(dtype=torch.float32):
    return cases.net_of(dtype).to(GPU)


def loss_of(model, seed=1):
    tokens = cases.tokens_of(seed).to(GPU)
    return torch.nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())


def values_of(model):
    return {name: values.cpu().clone() for name, values in model.state_dict().items()}


class Case(cases.Case):
    def setUp(self):
        cases.FOLDER = FOLDER
        super().setUp()

    def trained(self, model, optimizer, **options):
        return self.train(model, optimizer, loss=loss_of, **options)


class Training(Case):
    def test_has_the_bits_of_parameters_in_the_gpus_memory(self):
        for dtype in (torch.float32, torch.bfloat16):
            plain = net_of(dtype)
            own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
            expected = self.trained(plain, own)
            for nvme in (None, self.folder):
                for reentrant in (None, False, True):
                    with self.subTest(dtype=dtype, reentrant=reentrant, nvme=nvme):
                        model = net_of(dtype)
                        model.reentrant = reentrant
                        model, optimizer = self.offload(model, nvme=nvme)
                        self.assertEqual(self.trained(model, optimizer), expected)
                        self.assert_same(values_of(model), values_of(plain))
                        binds = optimizer.stats()[0]["model"]["binds"]
                        self.assertEqual(binds["layers.0"], 6)
                        optimizer.close()
            own.close()

    def test_keeps_the_inputs_of_checkpoints_in_host_memory(self):
        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                found = []
                for in_host in (False, True):
                    model = net_of()
                    model.reentrant = reentrant
                    section = {"cpu_checkpointing": in_host}
                    model, optimizer = self.offload(model, {"activation_checkpointing": section})
                    found.append((self.trained(model, optimizer), values_of(model)))
                kept = optimizer.stats()[0]["model"]["checkpoints"]
                self.assertEqual(kept["checkpoints"], 3 * cases.LAYERS)
                self.assertGreaterEqual(kept["host_bytes_most"], cases.LAYERS * 2048)
                self.assertEqual(found[0][0], found[1][0])
                self.assert_same(found[0][1], found[1][1])

    def test_begins_on_the_cpu_where_device_says_so(self):
        results = []
        for on_gpu in (False, True):
            model = cases.net_of().to(GPU if on_gpu else "cpu")
            model.register_buffer("scale", torch.ones(3, device=GPU if on_gpu else "cpu"))
            model, optimizer = self.offload(model, nvme=self.folder, device="cuda")
            self.assertEqual({one.device for one in model.parameters()}, {GPU})
            self.assertEqual(model.scale.device, GPU)
            results.append((self.trained(model, optimizer), values_of(model)))
        self.assertEqual(results[0][0], results[1][0])
        self.assert_same(results[0][1], results[1][1])

    def test_clips_with_the_true_norm_and_accumulates(self):
        plain = net_of()
        own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
        expected = self.trained(plain, own, accumulation=2, max_norm=0.5)
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        seen = self.trained(model, optimizer, accumulation=2, max_norm=0.5)
        torch.testing.assert_close(torch.tensor(seen), torch.tensor(expected), rtol=1e-5, atol=0)
        own.close()

    def test_works_with_a_scaled_loss(self):
        model, optimizer = self.offload(net_of())
        scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
        losses = []
        for seed in range(4):
            loss = loss_of(model, seed % 2)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
        self.assertLess(losses[2], losses[0])

    @cases.NEEDS_TRANSFORMERS
    def test_of_llama_has_the_bits_of_one_in_the_gpus_memory(self):
        tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0)).to(GPU)

        def loss_of_tokens(model, _seed):
            return model(input_ids=tokens, labels=tokens).loss

        def llama():
            from transformers import LlamaConfig, LlamaForCausalLM
            torch.manual_seed(0)
            return LlamaForCausalLM(LlamaConfig(
                vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True))

        plain = llama().to(GPU)
        own = headrace.torch.AdamW(plain.parameters(), lr=1e-2)
        expected = self.train(plain, own, loss=loss_of_tokens)
        model, optimizer = self.offload(llama(), nvme=self.folder, device="cuda")
        self.assertEqual(self.train(model, optimizer, loss=loss_of_tokens), expected)
        self.assert_same(values_of(model), values_of(plain))
        plain.eval(), model.eval()
        made = [one.generate(tokens[:, :4], max_new_tokens=4, do_sample=False)
                for one in (plain, model)]
        self.assertTrue(torch.equal(*made))
        own.close()

    @unittest.skipIf(peft is None or cases.transformers is None, "peft is not installed")
    def test_of_lora_writes_nothing_of_its_base(self):
        model = peft.get_peft_model(
            cases.net_of(), peft.LoraConfig(target_modules=["up", "down"], r=2))
        model, optimizer = self.offload(model, nvme=self.folder, device="cuda")
        base = {name: values for name, values in values_of(model).items() if "lora" not in name}
        losses = self.trained(model, optimizer, steps=5)
        self.assertLess(losses[-1], losses[0])
        after = values_of(model)
        self.assert_same(base, {name: after[name] for name in base})


class Memory(Case):
    def test_of_the_gpu_holds_slots_and_no_model(self):
        def build():
            return torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(16)))

        before = torch.cuda.memory_allocated(GPU)
        model, optimizer = self.offload(build(), nvme=self.folder, device="cuda")
        weights = 4 * sum(one.numel() for one in model.parameters())
        self.assertLess(optimizer.plan()[0]["device_bytes"], 0.75 * weights + (512 << 20))
        self.assertLess(torch.cuda.memory_allocated(GPU) - before, weights / 8)
        x = torch.randn(4, 1024, device=GPU)
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Values(Case):
    def test_come_out_and_go_in(self):
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        self.trained(model, optimizer)
        saved = values_of(model)
        with headrace.gathered(model.layers[0]) as layer:
            self.assertTrue(torch.equal(layer.up.weight.cpu(), saved[WEIGHT]))
        with headrace.gathered(model.layers[0], modify=True) as layer:
            layer.up.weight.data.mul_(2)
        self.assertTrue(torch.equal(values_of(model)[WEIGHT], 2 * saved[WEIGHT]))
        model.load_state_dict(saved)
        self.assert_same(values_of(model), saved)
        after = self.trained(model, optimizer)
        model.load_state_dict(saved)
        optimizer.sleep(self.folder)
        optimizer.wake()
        optimizer.restore()
        self.assert_same(values_of(model), saved)
        self.assertEqual({one.device for one in model.parameters()}, {GPU})
        loss_of(model).backward()
        self.assertEqual(len(after), 3)

    def test_that_are_written_while_bound_for_reading_are_refused(self):
        model, optimizer = self.offload(net_of())
        with self.assertRaisesRegex(headrace.WrongState, "written while it was bound"):
            with headrace.gathered(model.layers[0]) as layer:
                layer.up.weight.data.zero_()
        with self.assertRaisesRegex(headrace.WrongState, "written while it was bound"):
            loss_of(model)

    def test_of_parked_parameters_are_read_by_nobody(self):
        model, optimizer = self.offload(net_of(), nvme=self.folder)
        parameter = model.layers[0].up.weight
        x = torch.ones(1, parameter.shape[1], device=GPU)
        zeros = torch.zeros(parameter.shape, device=GPU)
        for name, use in {
                "sum": torch.sum, "clone": torch.clone, "cpu": torch.Tensor.cpu, "str": str,
                "tolist": torch.Tensor.tolist, "@": lambda p: x @ p.t(), "+": lambda p: p + p,
                "to": lambda p: p.to("cpu"), "copy into": lambda p: p.copy_(zeros),
                "copy from": lambda p: zeros.clone().copy_(p), "fill": lambda p: p.fill_(1.0),
                "equal": lambda p: torch.equal(p, zeros),
                "addmm": lambda p: torch.addmm(x[:, :1], x, p.t()),
                "linear": lambda p: torch.nn.functional.linear(x, p),
                "index": lambda p: p[0, 0].item(), "norm": torch.linalg.vector_norm,
                "foreach": lambda p: torch._foreach_add([p], [zeros]),
                "data_ptr": lambda p: p.data_ptr()}.items():
            with self.subTest(name), torch.no_grad():
                with self.assertRaisesRegex(RuntimeError, "is parked"):
                    use(parameter)
        torch.cuda.synchronize()
        self.assertIs(parameter.to(GPU), parameter)
        loss_of(model).backward()


if __name__ == "__main__":
    FOLDER = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
