# SPDX-License-Identifier: Apache-2.0
"""offload_quantised_test.py FOLDER [TEST...]: headrace.offload() of models whose frozen weights are
quantised: bytes of any dtype, and tensors that consist of other tensors. FOLDER lies on a drive."""
import os
import sys
import unittest

sys.dont_write_bytecode = True
import offload_test as cases  # noqa: E402
import headrace  # noqa: E402
import headrace.torch  # noqa: E402
import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

try:
    import torchao
    from torchao.quantization import Int8WeightOnlyConfig, quantize_
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4
except ImportError:
    torchao = None
try:
    import bitsandbytes
except ImportError:
    bitsandbytes = None

WIDTH, LAYERS, RANK = 64, 3, 4


def frozen(tensor):
    return torch.nn.Parameter(tensor, requires_grad=False)


class Blockwise(torch.Tensor):
    """Codes of 8 bits and a scale for each row, as torchao makes them."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype,
                                                   device=codes.device)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantised(self):
        return self.codes.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @staticmethod
    def __tensor_unflatten__(within, context, size, stride):
        return Blockwise(within["codes"], within["scale"])

    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), named=None):
        if function is F.linear:
            return _Linear.apply(*arguments[:2])
        return super().__torch_function__(function, kinds, arguments, named or {})

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), named=None):
        if function is torch.ops.aten.detach.default:
            return cls(arguments[0].codes.detach(), arguments[0].scale.detach())
        if function is torch.ops.aten.copy_.default:
            for name in ("codes", "scale"):
                getattr(arguments[0], name).copy_(getattr(arguments[1], name))
            return arguments[0]
        raise NotImplementedError(str(function))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(weight)
        return x @ weight.dequantised().t()

    @staticmethod
    def backward(context, gradient):
        return gradient @ context.saved_tensors[0].dequantised(), None


def weight_of(seed):
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed)) / 16


class Adapted(torch.nn.Module):
    """A frozen layer, and a trained adapter beside it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down = torch.nn.Linear(WIDTH, RANK, bias=False)
        self.up = torch.nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x):
        return x + torch.tanh(self.layer(x)) + self.up(self.down(x))


class Net(torch.nn.Module):
    def __init__(self, layer_of):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Adapted(layer_of(index)) for index in range(LAYERS))
        self.reentrant = None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else \
                checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def loss_of(model, seed):
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed))
    return model(x.requires_grad_()).square().mean()


class Codes(torch.nn.Module):
    """Its weight has any dtype, and a scale beside it."""

    def __init__(self, seed, dtype):
        super().__init__()
        weight = 64 * weight_of(seed)
        self.codes, self.scale = frozen(weight.to(dtype)), frozen(torch.tensor(1 / 64))

    def forward(self, x):
        return F.linear(x, self.codes.float() * self.scale)


class Linear(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = frozen(weight)

    def forward(self, x):
        return F.linear(x, self.weight)


class Case(cases.Case):
    def setUp(self):
        cases.FOLDER = FOLDER
        super().setUp()

    def assert_alike(self, layer_of, reentrant=(None, False, True), loads=True):
        """As in memory: losses and weights; and nothing of what is frozen is written."""
        for kind in reentrant:
            plain = Net(layer_of)
            plain.reentrant = kind
            own = headrace.torch.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2)
            expected = self.train(plain, own, loss=loss_of)
            for nvme in (None, self.folder):
                with self.subTest(reentrant=kind, nvme=nvme):
                    model = Net(layer_of)
                    model.reentrant = kind
                    model, optimizer = self.offload(model, nvme=nvme)
                    engine = optimizer._part.engine
                    before = self.state(model)
                    written = optimizer.stats()[0]["nvme_written_bytes"]
                    self.assertEqual(self.train(model, optimizer, loss=loss_of), expected)
                    engine.finish_step()
                    written = optimizer.stats()[0]["nvme_written_bytes"] - written
                    self.assertEqual(
                        written, 3 * optimizer.plan()[0]["nvme_written_bytes_per_step"])
                    self.assert_same(self.state(model), self.state(plain))
                    if loads:
                        self.assert_loads(model, before)
                    expected_now = self.state(model)
                    optimizer.restore()
                    self.assert_same(self.state(model), expected_now)

    def assert_loads(self, model, before):
        """What a state_dict() has, changed in between."""
        model.load_state_dict(self.like(model.state_dict(), before))
        self.assert_same(self.state(model), before)

    def like(self, state_dict, values):
        """The same tensors with other values."""
        for name, tensor in state_dict.items():
            for path, part in headrace.torch.offload._wrapped.parts_of(tensor):
                part.copy_(values[f"{name}.{path}" if path else name].view(part.dtype))
        return state_dict

    def state(self, model):
        """Each plain tensor as its bytes."""
        found = {}
        for name, tensor in model.state_dict().items():
            for path, part in headrace.torch.offload._wrapped.parts_of(tensor):
                whole = f"{name}.{path}" if path else name
                found[whole] = part.detach().clone().contiguous()
        return found

    def assert_same(self, left, right):
        self.assertEqual(left.keys(), right.keys())
        for name, one in left.items():
            other = right[name]
            self.assertEqual((one.dtype, one.shape), (other.dtype, other.shape), name)
            if one.numel():
                flat = [each.clone(memory_format=torch.contiguous_format).reshape(-1)
                        .view(torch.uint8) for each in (one, other)]
                self.assertTrue(torch.equal(*flat), name)


class Bytes(Case):
    def test_of_any_dtype_have_the_bits_of_memory(self):
        dtypes = (torch.int8, torch.uint8, torch.int32, torch.float64, torch.float8_e4m3fn)
        for dtype in dtypes:
            with self.subTest(dtype=dtype):
                self.assert_alike(lambda seed, dtype=dtype: Codes(seed, dtype), (None,))
        self.assert_alike(lambda seed: Codes(seed, dtypes[seed]))

    def test_beside_trained_f32_leave_gradients_to_be_added_up(self):
        plain, model = (Net(lambda seed: Codes(seed, torch.int8)) for _ in range(2))
        own = headrace.torch.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2)
        expected = self.train(plain, own, accumulation=2, loss=loss_of)
        model, optimizer = self.offload(model)
        self.assertEqual(self.train(model, optimizer, accumulation=2, loss=loss_of), expected)

    def test_of_a_lazy_conjugate_are_its_values(self):
        class Turned(torch.nn.Module):
            def __init__(self, seed):
                super().__init__()
                self.weight = frozen(torch.complex(weight_of(seed), weight_of(9)).conj())

            def forward(self, x):
                return torch.view_as_real(x.to(torch.complex64) @ self.weight)[..., 1]

        self.assert_alike(Turned, (None,))

    def test_of_torchs_older_quantisation_are_refused(self):
        model = Net(lambda seed: Codes(seed, torch.int8))
        model.layers[1].layer.codes = frozen(
            torch.quantize_per_tensor(weight_of(1), 0.1, 0, torch.qint8))
        with self.assertRaisesRegex(headrace.Unsupported, "qint8, of torch's older quantisation"):
            headrace.offload(model, lr=1e-2)

    def test_that_are_trained_are_refused(self):
        model = Net(lambda seed: Codes(seed, torch.float64))
        model.layers[1].layer.codes.requires_grad_()
        with self.assertRaisesRegex(headrace.Unsupported, "codes' has the dtype .*float64"):
            headrace.offload(model, lr=1e-2)


class Wrapped(Case):
    def test_tensors_have_the_bits_of_memory(self):
        self.assert_alike(lambda seed: Linear(Blockwise.of(weight_of(seed))))

    def test_tensors_need_no_memory_in_save_on_cpu(self):
        def loss(*arguments):
            with torch.autograd.graph.save_on_cpu():
                return loss_of(*arguments)

        def layer_of(seed):
            return Linear(Blockwise.of(weight_of(seed)))

        plain = Net(layer_of)
        own = headrace.torch.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2)
        expected = self.train(plain, own, loss=loss_of)
        model, optimizer = self.offload(Net(layer_of))
        self.assertEqual(self.train(model, optimizer, loss=loss), expected)

    def test_parts_are_parked(self):
        model, optimizer = self.offload(Net(lambda seed: Linear(Blockwise.of(weight_of(seed)))))
        weight = model.layers[1].layer.weight
        with self.assertRaisesRegex(RuntimeError, "layers.1.layer.weight.codes' is parked"):
            weight.dequantised()
        with headrace.gathered(model.layers[1]):
            self.assertTrue(torch.equal(weight.codes, Blockwise.of(weight_of(1)).codes))

    def test_parts_can_be_read_and_written_in_a_scope_of_their_own(self):
        model, _ = self.offload(Net(lambda seed: Linear(Blockwise.of(weight_of(seed)))))
        weight, plain = model.layers[1].layer.weight, Blockwise.of(weight_of(1))
        for what in (weight.codes, [weight.scale, weight.codes, weight]):
            with headrace.gathered(what):
                self.assertTrue(torch.equal(weight.dequantised(), plain.dequantised()))
        for what, value in ((weight.codes, 3), ([weight.codes, weight.scale, weight], 5)):
            with headrace.gathered(what, modify=True):
                weight.codes.fill_(value)
            with headrace.gathered(weight):
                self.assertEqual(set(weight.codes.flatten().tolist()), {value})
                self.assertTrue(torch.equal(weight.scale, plain.scale))

    def test_parts_that_were_replaced_are_refused_until_the_model_is_restored(self):
        model, optimizer = self.offload(Net(lambda seed: Linear(Blockwise.of(weight_of(seed)))))
        weight = model.layers[1].layer.weight
        own, plain = weight.codes, Blockwise.of(weight_of(1))
        weight.codes = weight.codes.new_zeros(weight.codes.shape)
        with self.assertRaisesRegex(headrace.WrongState, "weight.codes' is another tensor"):
            loss_of(model, 1)
        optimizer.restore()
        self.assertTrue(torch.equal(own, plain.codes))
        self.assertEqual(weight.codes.count_nonzero().item(), 0)
        self.assertTrue(torch.equal(weight.scale, plain.scale))

    def test_parts_that_are_put_there_in_a_scope_are_taken(self):
        model, optimizer = self.offload(Net(lambda seed: Linear(Blockwise.of(weight_of(seed)))))
        weight = model.layers[1].layer.weight
        with headrace.gathered(model.layers[1], modify=True):
            weight.codes = torch.full_like(weight.codes, 3)
        with self.assertRaisesRegex(headrace.ArgumentError, "is now torch.int16"):
            with headrace.gathered(model.layers[1], modify=True):
                weight.codes = weight.codes.to(torch.int16)
        weight.codes = weight.codes.to(torch.int8) if weight.codes.dtype != torch.int8 \
            else weight.codes
        loss_of(model, 1).backward()
        optimizer.step()
        with headrace.gathered(model.layers[1]):
            self.assertEqual(set(weight.codes.flatten().tolist()), {3})

    def test_parts_over_the_same_memory_are_followed(self):
        for nvme in (None, self.folder):
            model, optimizer = self.offload(
                Net(lambda seed: Linear(Blockwise.of(weight_of(seed)))), nvme=nvme)
            before = self.state(model)
            for layer in model.layers:  # as Module.to() does
                weight = layer.layer.weight
                weight.codes, weight.scale = weight.codes.detach(), weight.scale.detach()
            expected = loss_of(Net(lambda seed: Linear(Blockwise.of(weight_of(seed)))), 1).item()
            self.assertEqual(loss_of(model, 1).item(), expected)
            model.load_state_dict(self.like(model.state_dict(), before))
            optimizer.restore()
            self.assert_same(self.state(model), before)

    def test_without_elements_stay_torchs(self):
        class Empty(Blockwise):
            @staticmethod
            def __new__(cls, codes, scale, zeros=None):
                return Blockwise.__new__(cls, codes, scale)

            def __init__(self, codes, scale, zeros=None):
                super().__init__(codes, scale)
                self.zeros = torch.zeros(0) if zeros is None else zeros

            def __tensor_flatten__(self):
                return ["codes", "scale", "zeros"], None

            @staticmethod
            def __tensor_unflatten__(within, context, size, stride):
                return Empty(within["codes"], within["scale"], within["zeros"])

        model, optimizer = self.offload(Net(lambda seed: Linear(Empty.of(weight_of(seed)))))
        self.assertEqual(self.train(model, optimizer, 1, loss=loss_of),
                         [loss_of(Net(lambda seed: Linear(Empty.of(weight_of(seed)))), 0).item()])
        self.assertEqual(self.state(model)["layers.0.layer.weight.zeros"].numel(), 0)

    def test_that_cannot_be_parked_are_refused(self):
        class Opaque(Blockwise):
            __tensor_flatten__ = property(lambda self: getattr(self, "no such thing"))

        class Anew(Blockwise):
            codes = property(lambda self: self.kept.clone(),
                             lambda self, codes: setattr(self, "kept", codes))

        def shared(seed):
            weight = Blockwise.of(weight_of(seed))
            weight.scale = scale
            return Linear(weight)

        scale = torch.ones(WIDTH, 1)
        for layer_of, text in (
                (lambda seed: Linear(Opaque.of(weight_of(seed))), "without memory of its own"),
                (lambda seed: Linear(Anew.of(weight_of(seed))), "codes is made anew"),
                (shared, "weight.scale' share memory")):
            with self.assertRaisesRegex(headrace.Error, text):
                headrace.offload(Net(layer_of), lr=1e-2)

    def test_that_are_unfrozen_later_are_refused(self):
        model, optimizer = self.offload(Net(lambda seed: Linear(Blockwise.of(weight_of(seed)))))
        weight = model.layers[1].layer.weight
        loss_of(model, 1).backward()
        weight.grad = torch.zeros(WIDTH, WIDTH)
        with self.assertRaisesRegex(headrace.WrongState, "was frozen when offload"):
            optimizer.step()

    def test_that_are_trained_are_refused(self):
        model = Net(lambda seed: Linear(Blockwise.of(weight_of(seed))))
        model.layers[1].layer.weight.requires_grad_()
        with self.assertRaisesRegex(headrace.Unsupported, "is a trained Blockwise"):
            headrace.offload(model, lr=1e-2)

    @unittest.skipIf(torchao is None, "torchao is not installed")
    def test_weights_of_torchao(self):
        def quantised(config):
            def layer_of(seed):
                layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
                layer.weight = frozen(weight_of(seed))
                quantize_(layer, config)
                layer.weight.requires_grad_(False)
                return layer
            return layer_of

        self.assert_alike(quantised(Int8WeightOnlyConfig()))
        model, optimizer = self.offload(Net(quantised(Int8WeightOnlyConfig())))
        expected = loss_of(model, 1).item()
        self.assertEqual(loss_of(model.to("cpu"), 1).item(), expected)
        before = self.state(model)
        optimizer.restore()
        self.assert_same(self.state(model), before)
        self.assert_alike(lambda seed: Linear(to_nf4(weight_of(seed), 64, 64)))


@unittest.skipIf(bitsandbytes is None, "bitsandbytes is not installed")
class BitsAndBytes(Case):
    """It keeps the weight by itself until backward: its blocks must be recomputed there."""

    @staticmethod
    def layer_of(seed):
        layer = bitsandbytes.nn.Linear4bit(WIDTH, WIDTH, bias=False, quant_type="nf4",
                                           compute_dtype=torch.float32)
        layer.weight = bitsandbytes.nn.Params4bit(weight_of(seed), quant_type="nf4", module=layer)
        return layer.to("cpu")

    def test_weights_of_4_bits(self):
        self.assert_alike(self.layer_of, (True,), loads=False)  # it loads none itself

    def test_without_checkpoints_raise(self):
        for reentrant in (None, False):
            model, optimizer = self.offload(Net(self.layer_of))
            model.reentrant = reentrant
            with self.assertRaisesRegex(RuntimeError, "use_reentrant=True"):
                loss_of(model, 1).backward()
            optimizer.close()


@unittest.skipIf(cases.transformers is None or cases.peft is None, "no transformers or no peft")
class FromPretrained(Case):
    """A base that transformers quantises while it loads, and adapters of peft."""

    def model(self, folder, config, checkpoints):
        model = cases.transformers.LlamaForCausalLM.from_pretrained(
            folder, quantization_config=config, device_map="cpu", dtype=torch.float32)
        model = cases.peft.prepare_model_for_kbit_training(
            model, checkpoints, gradient_checkpointing_kwargs={"use_reentrant": True})
        torch.manual_seed(0)
        return cases.peft.get_peft_model(model, cases.peft.LoraConfig(
            r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False)).train()

    def assert_trains_alike(self, config, checkpoints):
        def loss(model, seed):
            return model(input_ids=ids, labels=ids, use_cache=False).loss

        ids = cases.models()["llama"][1]["input_ids"]
        torch.manual_seed(0)
        folder = os.path.join(self.folder, "pretrained")
        cases.transformers.LlamaForCausalLM(cases.transformers.LlamaConfig(
            vocab_size=64, hidden_size=128, intermediate_size=512, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2)).save_pretrained(folder)
        plain = self.model(folder, config, checkpoints)
        own = headrace.torch.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2)
        expected = self.train(plain, own, loss=loss)
        model, optimizer = self.offload(self.model(folder, config, checkpoints), nvme=self.folder)
        before = optimizer.stats()[0]["nvme_written_bytes"]
        self.assertEqual(self.train(model, optimizer, loss=loss), expected)
        optimizer._part.engine.finish_step()
        self.assertEqual(optimizer.stats()[0]["nvme_written_bytes"] - before,
                         3 * optimizer.plan()[0]["nvme_written_bytes_per_step"])

    @unittest.skipIf(bitsandbytes is None, "bitsandbytes is not installed")
    def test_in_4_bits(self):
        self.assert_trains_alike(cases.transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32), True)

    @unittest.skipIf(torchao is None, "torchao is not installed")
    def test_in_8_bits(self):
        self.assert_trains_alike(
            cases.transformers.TorchAoConfig(Int8WeightOnlyConfig()), False)


if __name__ == "__main__":
    FOLDER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
