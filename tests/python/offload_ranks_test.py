# SPDX-License-Identifier: Apache-2.0
"""headrace.offload() on several ranks over Gloo: offload_ranks_test.py FOLDER [TEST...].

A scenario is a function of a Rank. One process runs it alone; two run it as ranks, each with every
second micro-batch. What it returns must be the same, to the last bit.
"""
import contextlib
import functools
import gc
import hashlib
import importlib.util
import json
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

sys.dont_write_bytecode = True
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"{error}: skipped")
    sys.exit(77)
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import headrace
import headrace.deepspeed
import headrace.torch
from headrace.deepspeed.zero import GatheredParameters

HAS = {name: importlib.util.find_spec(name) is not None for name in ("transformers", "peft")}

MICRO_BATCHES = 4  # in a step, of all ranks
WORDS, WIDTH = 60, 32


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(torch.nn.Module):
    """An embedding, tied to the head, and layers."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.reentrant = reentrant

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else \
                checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.head(x)


def net(**options):
    torch.manual_seed(0)
    return Net(**options)


def of_transformers(name):
    import transformers  # slow, and most ranks do not need it
    torch.manual_seed(0)
    if name == "gpt2":
        config = transformers.GPT2Config(vocab_size=WORDS, n_positions=16, n_embd=WIDTH, n_layer=3,
                                         n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                         use_cache=False)
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=3,
                                      intermediate_size=48, num_attention_heads=2,
                                      num_key_value_heads=1, max_position_embeddings=16,
                                      use_cache=False)
    return transformers.LlamaForCausalLM(config)


def loss_of(model, number):
    tokens = torch.randint(0, WORDS, (2, 8), generator=torch.Generator().manual_seed(number))
    out = model(tokens)
    wanted = tokens.roll(1, 1)
    return F.cross_entropy(getattr(out, "logits", out).float().flatten(0, 1), wanted.flatten())


def bits_of(tensors):
    """As text that JSON carries."""
    return {str(name): hashlib.sha256(
        tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        for name, tensor in tensors.items()}


class Rank:
    """This process, alone or one of several."""

    def __init__(self, folder, rank=0, ranks=1):
        self.folder, self.rank, self.ranks = folder, rank, ranks
        self.group = None  # all

    def place(self, where):
        return {"memory": {}, "nvme": {"nvme": self.folder},
                "budget": {"nvme": self.folder, "host_budget": "4MiB"}}[where]

    def offload(self, model, config=None, where="memory", **options):
        config = {"gradient_accumulation_steps": MICRO_BATCHES // self.ranks, **(config or {})}
        config.setdefault("headrace", {})["allow_memory_backed"] = True
        return headrace.offload(model, config, **self.place(where), **{"lr": 1e-2, **options})

    def train(self, model, optimizer, steps=3, first=0, max_norm=1.0):
        """The losses of all ranks in the order of micro-batches, and the norms."""
        seen = []
        for step in range(first, first + steps):
            losses = []
            for number in range(self.rank, MICRO_BATCHES, self.ranks):
                loss = loss_of(model, step * MICRO_BATCHES + number)
                (loss / (MICRO_BATCHES // self.ranks)).backward()
                losses.append(loss.item())
            optimizer.step(max_norm=max_norm)
            optimizer.zero_grad()
            seen += [self.of_all(losses), optimizer.gradient_norm]
        return seen

    def of_all(self, numbers):
        if self.ranks == 1:
            return numbers
        told = [None] * self.ranks
        dist.all_gather_object(told, numbers, group=self.group)
        return [one for turn in zip(*told) for one in turn]


# ---- scenarios that are the same on any number of ranks ----
def trains(rank, make, where="memory", config=None, dtype=torch.float32, **options):
    model, optimizer = rank.offload(make().to(dtype), config, where, **options)
    seen = rank.train(model, optimizer)
    with torch.no_grad():
        seen.append(rank.of_all([loss_of(model, 100 + rank.rank).item()])[0])
    seen += rank.train(model, optimizer, first=3, steps=2)
    seen.append(bits_of(model.state_dict()))
    optimizer.restore()
    seen.append(bits_of(dict(model.named_parameters())))
    return seen


SCENARIOS = {
    "memory": lambda rank: trains(rank, net),
    "nvme": lambda rank: trains(rank, net, "nvme"),
    "budget": lambda rank: trains(rank, net, "budget"),
    "stage 2": lambda rank: trains(rank, net, config={"zero_optimization": {"stage": 2}}),
    "bf16": lambda rank: trains(rank, net, "nvme", dtype=torch.bfloat16),
    "reentrant": lambda rank: trains(rank, lambda: net(reentrant=True), "nvme"),
    "checkpoint": lambda rank: trains(rank, lambda: net(reentrant=False), "nvme"),
    "gpt2": lambda rank: trains(rank, lambda: of_transformers("gpt2"), "nvme"),
    "llama": lambda rank: trains(rank, lambda: of_transformers("llama"), "nvme"),
}


class Branch(torch.nn.Module):
    """Its extra weights have gradients in odd micro-batches alone, so on rank 1 of 2 alone."""

    def __init__(self):
        super().__init__()
        self.base = net()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.extra = torch.nn.Parameter(torch.ones(WORDS))

    def forward(self, tokens):
        x = self.base(tokens)
        odd = int(tokens.sum()) % 2 == 1
        for layer in self.layers:
            x = x + (F.pad(layer(x[..., :WIDTH]), (0, WORDS - WIDTH)) if odd else
                     layer(x[..., :WIDTH]).sum() * 0)
        return x * self.extra if odd else x


def lacks_gradients(rank):
    torch.manual_seed(0)
    model = Branch()
    model, optimizer = rank.offload(model, where="nvme",
                                    blocks=[*model.base.layers, *model.layers])
    seen = rank.train(model, optimizer)
    return [*seen, bits_of(model.state_dict()), state_bits(optimizer)]


class Twice(torch.nn.Module):
    """Uses a block twice, far apart. In odd micro-batches, so on rank 1 of 2 alone, parameters of
    that block and of another one have no gradient."""

    def __init__(self, reentrant, lacks):
        super().__init__()
        self.base, self.lacks = net(reentrant=reentrant), lacks

    def forward(self, tokens):
        x = self.base.embedding(tokens)
        odd = self.lacks and int(tokens.sum()) % 2 == 1
        layers = self.base.layers
        for number in (0, 1, 2, 3, 0):
            norm = layers[number].norm
            norm.forward = functools.partial(self.normed, norm, odd and number != 1)
            x = layers[number](x) if self.base.reentrant is None else \
                checkpoint(layers[number], x, use_reentrant=self.base.reentrant)
        return self.base.head(x)

    @staticmethod
    def normed(norm, lacks, x):
        bias = norm.bias.detach() if lacks else norm.bias
        return F.layer_norm(x, (WIDTH,), norm.weight, bias)


def uses_a_block_twice(rank):
    """In budgets in which ranks have room for other numbers of blocks."""
    seen = []
    for lacks in (False, True):
        for reentrant in (None, False):
            _, optimizer = rank.offload(Twice(reentrant, lacks), where="nvme")
            least = max(rank.of_all([optimizer.plan()[0]["smallest_host_bytes"]]))
            optimizer.close()
            for more in (4096, 30_000, 60_000):
                model, optimizer = rank.offload(Twice(reentrant, lacks), where="nvme",
                                                host_budget=least + more)
                seen.append([*rank.train(model, optimizer, steps=1),
                             bits_of(model.state_dict())])
                optimizer.close()
    return seen


def shares_a_block_in_reentrant_checkpoints(rank):
    told = []
    with told_in(told):
        model, optimizer = rank.offload(Twice(True, False))
        rank.train(model, optimizer, steps=1)
    return told


@contextlib.contextmanager
def told_in(told):
    """What the package logs."""
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    log = logging.getLogger("headrace")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def state_bits(optimizer):
    state = optimizer.state_dict()["state"]
    return {str(index): bits_of(values) for index, values in state.items()}


def resumes_from_state_dicts(rank, dtype=torch.bfloat16, snapshots=None):
    if snapshots is not None:
        snapshots = os.path.join(rank.folder, f"{snapshots}-{rank.ranks}")
    model, optimizer = rank.offload(net().to(dtype), where="nvme", snapshots=snapshots)
    rank.train(model, optimizer, steps=2)
    weights = {name: one.clone() for name, one in model.state_dict().items()}
    state = optimizer.state_dict()
    seen = rank.train(model, optimizer, first=2)
    optimizer.close()
    for weights_first in (True, False):
        model, optimizer = rank.offload(net().to(dtype), snapshots=snapshots)
        if weights_first:
            model.load_state_dict(weights)
        optimizer.load_state_dict(state)
        if not weights_first:
            model.load_state_dict(weights)
        assert rank.train(model, optimizer, first=2) == seen, weights_first
        optimizer.close()
    return [seen, bits_of(state["state"][0]) if snapshots is None else None]


def with_buffer(value):
    model = net().to(torch.bfloat16)
    model.register_buffer("count", torch.tensor(value))
    return model


def saves(rank):
    model, optimizer = rank.offload(with_buffer(rank.rank + 1), where="nvme")
    rank.train(model, optimizer, steps=2)
    optimizer.param_groups[0]["lr"] /= 4
    optimizer.save_checkpoint(f"{rank.folder}/of-{rank.ranks}", b"of rank %d" % rank.rank)
    seen = rank.train(model, optimizer, first=2)
    optimizer.close()
    return seen


def loads(rank, of=1):
    model, optimizer = rank.offload(with_buffer(0))
    assert optimizer.load_checkpoint(f"{rank.folder}/of-{of}") == b"of rank 0"
    assert model.count.item() == 1, model.count
    seen = rank.train(model, optimizer, first=2)
    optimizer.close()
    return seen


def changes_values(rank):
    model, optimizer = rank.offload(net(), where="nvme")
    seen = rank.train(model, optimizer, steps=1)
    with headrace.gathered(model.layers[1]) as layer:
        seen.append(layer.up.weight.norm().item())
    with headrace.gathered(model, modify=True):
        torch.nn.init.ones_(model.layers[0].up.bias)
        model.embedding.weight.data.mul_(2)
    seen += rank.train(model, optimizer, first=1, steps=1)
    with headrace.gathered(model.layers[2:], modify=True, of_rank=0):
        model.layers[2].up.weight.data.add_(1 + 5 * rank.rank)  # those of rank 0 count
        if rank.rank == 0:
            model.layers[3].norm.bias.data.fill_(0.5)
    seen += rank.train(model, optimizer, first=2, steps=1)
    optimizer.sleep(rank.folder)
    optimizer.wake()
    seen += rank.train(model, optimizer, first=3, steps=1)
    return [*seen, bits_of(model.state_dict())]


def has_groups_and_a_schedule(rank):
    """And two blocks that are frozen, one of them of bytes; ranks talk before each step()."""
    model = net()
    model.layers[0].requires_grad_(False)
    codes = torch.arange(2 * WIDTH * WIDTH, dtype=torch.int32).remainder(5).to(torch.int8)
    model.layers[1].codes = torch.nn.Parameter(codes.view(2 * WIDTH, WIDTH), requires_grad=False)
    model.layers[1].up.register_forward_hook(
        lambda _, given, out: out + F.linear(given[0], model.layers[1].codes.float() / 100))
    trained = [one for one in model.parameters() if one.requires_grad]
    model, optimizer = rank.offload(model, where="nvme", optimizer="SGD", momentum=0.9, params=[
        {"params": [one for one in trained if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in trained if one.dim() < 2], "lr": 1e-3}])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    optimizer.register_step_pre_hook(lambda *_: rank.of_all([0]) and None)
    seen = []
    for step in range(4):
        seen += rank.train(model, optimizer, first=step, steps=1)
        schedule.step()
    return [*seen, bits_of(model.state_dict()), state_bits(optimizer)]


def goes_on_after_exceptions(rank):
    """That all ranks raise at the same place: the step is made without what came before."""
    model, optimizer = rank.offload(net(), where="nvme")
    seen = rank.train(model, optimizer, steps=2)

    def fail(*_):
        raise KeyError("of all")

    for place in (model.layers[2].register_forward_pre_hook,
                  model.layers[1].register_full_backward_hook):
        handle = place(fail)
        try:
            rank.train(model, optimizer, steps=1)
        except KeyError:
            optimizer.zero_grad()
        handle.remove()
        seen += rank.train(model, optimizer, first=2, steps=1)
    return [*seen, bits_of(model.state_dict())]


def generates(rank):
    """From two prompts, which end at different lengths."""
    model, optimizer = rank.offload(of_transformers("gpt2"))
    rank.train(model, optimizer, steps=1)
    model.generation_config.update(eos_token_id=None, pad_token_id=0, use_cache=True)
    seen = []
    for number in range(rank.rank, 2, rank.ranks):
        prompt = torch.randint(1, WORDS, (1, 3), generator=torch.Generator().manual_seed(number))
        seen.append(model.generate(prompt, max_new_tokens=3 + 3 * number, do_sample=False,
                                   synced_gpus=rank.ranks > 1).tolist())
    return [rank.of_all(seen), *rank.train(model, optimizer, first=1, steps=2)]


def lacks_a_micro_batch(rank):
    """Of three micro-batches, rank 1 of 2 has one, and of one, none: it binds the same blocks."""
    model, optimizer = rank.offload(net(), {"gradient_accumulation_steps": -(-3 // rank.ranks)})
    seen = []
    for step, batches in enumerate((3, 3, 3, 1, 1)):
        for number in range(rank.rank, -(-batches // rank.ranks) * rank.ranks, rank.ranks):
            if number < batches:
                (loss_of(model, 3 * step + number) * (rank.ranks * (1 / batches))).backward()
                continue
            for block in [*model.layers, *reversed(model.layers)]:
                with headrace.gathered(block):
                    pass
        optimizer.step(max_norm=1.0)
        optimizer.zero_grad()
        seen.append(optimizer.gradient_norm)
    return [*seen, bits_of(model.state_dict())]


def some_of_the_ranks(rank):
    """Ranks 0 and 2 train one model, ranks 1 and 3 another one."""
    if rank.ranks == 1:
        return trains(rank, net)[:-2]
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    half = Rank(rank.folder, rank.rank // 2, 2)
    half.group = groups[rank.rank % 2]
    return trains(half, net, collective=headrace.torch.ProcessGroup(half.group))[:-2]


def drops_gradients(rank):
    model, optimizer = rank.offload(net())
    loss_of(model, 50 + rank.rank).backward()
    optimizer.zero_grad()
    return rank.train(model, optimizer)


def drops_an_engine(rank):
    model, optimizer = rank.offload(net())
    rank.train(model, optimizer)
    again, other = rank.offload(net())
    del model, optimizer
    if rank.rank == 0:
        gc.collect()  # ends it here, while the others are elsewhere
    return rank.train(again, other)


def trains_adapters(rank):
    import peft
    model = peft.get_peft_model(of_transformers("llama").to(torch.bfloat16), peft.LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], lora_dropout=0))
    model, optimizer = rank.offload(model, where="nvme")
    seen = rank.train(model, optimizer)
    return [*seen, bits_of({name: one for name, one in model.state_dict().items()
                            if "lora" in name})]


def maps_one_file(rank):
    """The first rank of the machine makes the model, and all map the file that it saves."""
    import transformers
    path = os.path.join(rank.folder, f"made-{rank.ranks}")
    if rank.rank == 0:
        with headrace.building(rank.folder):
            of_transformers("llama").save_pretrained(path)
    rank.of_all([0])  # it is there
    model = transformers.LlamaForCausalLM.from_pretrained(path)
    with open("/proc/self/maps", encoding="ascii") as maps:
        assert f"{path}/model.safetensors" in maps.read()
    return trains(rank, lambda: model, "nvme")


def updates_nothing_in_a_step_that_it_refuses(rank):
    """A parameter outside all blocks was replaced between backward and the step."""
    model = net()
    head = model.head.weight = torch.nn.Parameter(torch.ones(WORDS, WIDTH))
    model, optimizer = rank.offload(model)

    def replace(*_):
        model.head.weight = model.embedding.weight

    handle, told = optimizer.register_step_pre_hook(replace), []
    try:
        rank.train(model, optimizer, steps=1)
    except headrace.WrongState as error:
        told.append(str(error))
    handle.remove()
    model.head.weight = head
    told.append(bits_of(model.state_dict()))
    assert told[-1]["head.weight"] == bits_of({"": torch.ones(WORDS, WIDTH)})[""]
    optimizer.zero_grad()
    return [*told, *rank.train(model, optimizer), bits_of(model.state_dict())]


SCENARIOS |= {one.__name__: one for one in (
    updates_nothing_in_a_step_that_it_refuses, has_groups_and_a_schedule, maps_one_file,
    goes_on_after_exceptions, generates, lacks_gradients, lacks_a_micro_batch, some_of_the_ranks,
    resumes_from_state_dicts, saves, loads, changes_values, drops_gradients, drops_an_engine,
    trains_adapters, uses_a_block_twice, shares_a_block_in_reentrant_checkpoints)}
SCENARIOS["loads of 2"] = lambda rank: loads(rank, of=2)
SCENARIOS["resumes_from_snapshots"] = lambda rank: resumes_from_state_dicts(rank, snapshots="s")


# ---- headrace.deepspeed ----
def engine_of(rank, **more):
    at = {"device": "nvme", "nvme_path": rank.folder}
    config = {"train_batch_size": 2 * MICRO_BATCHES, "train_micro_batch_size_per_gpu": 2,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
              "zero_optimization": {"stage": 3, "offload_optimizer": at, "offload_param": at},
              "headrace": {"allow_memory_backed": True}, **more}
    return headrace.deepspeed.initialize(model=net(), config=config)[0]


def train_engine(rank, engine, steps=3, first=0):
    seen = []
    for step in range(first, first + steps):
        losses = []
        for number in range(rank.rank, MICRO_BATCHES, rank.ranks):
            loss = loss_of(engine, step * MICRO_BATCHES + number)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        seen += [rank.of_all(losses), float(engine.get_global_grad_norm())]
    return seen


def deepspeed_trains(rank):
    from headrace.deepspeed.zero import GatheredParameters
    engine = engine_of(rank)
    assert (engine.world_size, engine.global_rank) == (rank.ranks, rank.rank)
    assert engine.train_batch_size() == 2 * MICRO_BATCHES
    assert engine.gradient_accumulation_steps() == MICRO_BATCHES // rank.ranks
    seen = train_engine(rank, engine)
    for _ in range(2):  # the second replaces the first
        engine.save_checkpoint(f"{rank.folder}/run-{rank.ranks}", client_state={"rank": rank.rank})
    apart = torch.nn.Linear(2, 2)  # is not offloaded
    with GatheredParameters(engine.module.parameters(), modifier_rank=0), \
            GatheredParameters(apart.parameters(), modifier_rank=0):
        torch.nn.init.constant_(apart.weight, 1 + rank.rank)
        if rank.rank == 0:
            torch.nn.init.zeros_(engine.module.layers[0].up.bias)
    seen += apart.weight.tolist()
    seen += train_engine(rank, engine, first=3)
    engine.save_16bit_model(f"{rank.folder}/model-{rank.ranks}")
    saved = torch.load(f"{rank.folder}/model-{rank.ranks}/pytorch_model.bin")
    seen += [engine.global_steps, engine.global_samples, bits_of(saved)]
    engine.load_checkpoint(f"{rank.folder}/run-{rank.ranks}")
    deepspeed_trains.resumed = train_engine(rank, engine, first=3)
    seen += [engine.global_steps, *deepspeed_trains.resumed]
    engine.destroy()
    return [*seen, bits_of(dict(engine.module.named_parameters()))]


def deepspeed_scales(rank):
    """One rank alone overflows; all skip that step. A loss is divided by the number of its rank's
    micro-batches, so with this scale, gradients are rounded to fp16 alike."""
    power = 4 if rank.ranks == 2 else 5
    engine = engine_of(rank, fp16={"enabled": True, "initial_scale_power": power, "hysteresis": 1})
    seen = train_engine(rank, engine, steps=1)
    for number in range(rank.rank, MICRO_BATCHES, rank.ranks):
        engine.backward(loss_of(engine, number) * (1e5 if number == 1 else 1))
        engine.step()
    seen += [engine.was_step_applied(), engine.skipped_steps, engine.loss_scale() / 2**power]
    return [*seen, *train_engine(rank, engine)]


def deepspeed_refuses_to_save(rank):
    """What rank 1 alone cannot save."""
    engine, told, run = engine_of(rank), [], f"{rank.folder}/refused"
    seen = train_engine(rank, engine, steps=1)
    of_rank = {"tag": ".." if rank.rank == 1 else "a"}
    for more in ({"client_state": {"f": (lambda: 0) if rank.rank == 1 else 0}}, of_rank):
        expect(told, Exception, lambda: engine.save_checkpoint(run, **more))
    assert not os.path.exists(run)
    seen += train_engine(rank, engine, steps=1, first=1)
    engine.save_checkpoint(run)
    engine.load_checkpoint(run)
    return [told, seen]


SCENARIOS |= {one.__name__: one for one in (deepspeed_trains, deepspeed_scales,
                                            deepspeed_refuses_to_save)}


# ---- what all ranks refuse, and go on after ----
def expect(told, kind, call):
    """Notes what it raises."""
    try:
        call()
    except kind as error:
        told.append(f"{type(error).__name__}: {error}")
    else:
        told.append("nothing")


def refuses(rank):
    told, model = [], net()
    if rank.rank == 1:
        model.layers[1].up.bias.data.add_(1)
    before = bits_of(model.state_dict())
    expect(told, ValueError, lambda: rank.offload(model))
    assert bits_of(model.state_dict()) == before
    model, optimizer = rank.offload(net())
    loss_of(model, rank.rank).backward()
    expect(told, NotImplementedError,
           lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    model.zero_grad()
    expect(told, headrace.WrongState, optimizer.step)
    optimizer.zero_grad()
    refuses_values(rank, model, told)
    refuses_states(rank, model, optimizer, told)
    (loss_of(model, rank.rank) * (float("nan") if rank.rank == 1 else 1)).backward()
    expect(told, FloatingPointError, optimizer.step)
    optimizer.zero_grad()
    optimizer.save_checkpoint(rank.folder + "/refused")
    if rank.rank == 1:
        model.register_buffer("count", torch.zeros(2))
    expect(told, Exception, lambda: optimizer.load_checkpoint(rank.folder + "/refused"))
    rank.train(model, optimizer)
    expect(told, ValueError, lambda: engine_of(rank, train_batch_size=6))
    return told


def refuses_values(rank, model, told):
    def change(error, value):
        with headrace.gathered(model.layers[1], modify=True) as layer:
            layer.up.bias.data.fill_(value)
            if error is not None:
                raise error

    good = model.state_dict()
    expect(told, Exception, lambda: change(KeyError("mine") if rank.rank == 1 else None, 1))
    expect(told, Exception, lambda: change(None, rank.rank))
    expect(told, ValueError,
           lambda: headrace.gathered(model, modify=True, of_rank=2).__enter__())
    assert bits_of(model.state_dict()) == bits_of(good)
    expect(told, Exception, lambda: model.load_state_dict(
        {name: one + rank.rank for name, one in good.items()}))
    model.load_state_dict(good)
    assert bits_of(model.state_dict()) == bits_of(good)


def refuses_states(rank, model, optimizer, told):
    rank.train(model, optimizer, steps=1)
    before, state = state_bits(optimizer), optimizer.state_dict()
    if rank.rank == 1:
        state["state"][2]["exp_avg"] = state["state"][2]["exp_avg"] + 1
    expect(told, ValueError, lambda: optimizer.load_state_dict(state))
    assert state_bits(optimizer) == before
    other = net()
    parameters = list(other.parameters())
    if rank.rank == 1:
        parameters.reverse()
    expect(told, ValueError, lambda: rank.offload(other, params=parameters))
    other, its_optimizer = rank.offload(other, params=list(other.parameters()))
    its_optimizer.close()


SCENARIOS["refuses"] = refuses


# ---- what ends a rank: of two, the other says why ----
def raises_in_forward(rank, of_rank=1):
    model, optimizer = rank.offload(net())
    rank.train(model, optimizer, steps=2)
    if rank.rank == of_rank:
        def fail(*_):
            raise KeyError("mine")
        model.layers[2].up.register_forward_pre_hook(fail)
    rank.train(model, optimizer, steps=2)


def raises_before_offload(rank):
    if rank.rank == 1:
        rank.offload(net(), optimizer="Muon")
    rank.offload(net())


def ends_before_it_comes(rank, of_rank=1):
    if rank.rank == of_rank:
        raise KeyError("mine")
    rank.offload(net())


def ends_before_it_comes_again(rank, of_rank=1):
    rank.offload(net())[1].close()
    ends_before_it_comes(rank, of_rank)


def is_killed_before_it_comes(rank):
    if rank.rank == 1:
        if os.fork() == 0:  # a worker that fails is not the rank
            sys.last_value = KeyError("of a worker")
            headrace._ends._tell()
            os._exit(1)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    from headrace.torch import _meeting
    _meeting._NOTICE_SECONDS = 1.0
    logging.basicConfig()
    headrace.torch.ProcessGroup(timeout=3.0)


def comes_late(rank):
    headrace.torch.ProcessGroup().close()
    time.sleep(1 - rank.rank)
    model, optimizer = rank.offload(net())
    seen = rank.train(model, optimizer, steps=1)
    optimizer.close()
    return seen


SCENARIOS["comes_late"] = comes_late


def is_interrupted(rank):
    model, optimizer = rank.offload(net())
    rank.train(model, optimizer, steps=1)
    if rank.rank == 1:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        loss_of(model, 0).backward()
        optimizer.step()


def leaves(rank):
    model, optimizer = rank.offload(net())
    rank.train(model, optimizer, steps=1)
    if rank.rank == 1:
        print("left", file=sys.stderr)
        sys.exit(0)
    rank.train(model, optimizer, steps=1)


def runs_fewer_passes(rank):
    model, optimizer = rank.offload(net())
    if rank.rank == 1:
        loss_of(model, 0)
    loss_of(model, 0).backward()
    optimizer.step()


def runs_fewer_passes_at_stage_2(rank):
    """The blocks of a step were joined ahead, so that all gathers are there."""
    model, optimizer = rank.offload(net(), {"zero_optimization": {"stage": 2}})
    rank.train(model, optimizer)
    for number in range(MICRO_BATCHES // rank.ranks - rank.rank):
        loss_of(model, number).backward()
    optimizer.step()


def steps_with_another_rate(rank):
    model, optimizer = rank.offload(net())
    optimizer.param_groups[0]["lr"] = 0.1 + rank.rank
    rank.train(model, optimizer, steps=1)


SCENARIOS |= {one.__name__: one for one in (
    raises_in_forward, raises_before_offload, is_interrupted, leaves, runs_fewer_passes,
    runs_fewer_passes_at_stage_2,
    steps_with_another_rate, ends_before_it_comes, is_killed_before_it_comes)}
SCENARIOS["second_ends_later"] = ends_before_it_comes_again
SCENARIOS["first_ends_later"] = lambda rank: ends_before_it_comes_again(rank, of_rank=0)
SCENARIOS["first_ends"] = lambda rank: ends_before_it_comes(rank, of_rank=0)
SCENARIOS["first_raises"] = lambda rank: raises_in_forward(rank, of_rank=0)


# ---- worlds ----
def rank_main(folder, rank, ranks, names, init):
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=ranks)
    results = {name: SCENARIOS[name](Rank(folder, rank, ranks)) for name in names}
    print(json.dumps(results))
    dist.destroy_process_group()


def nursery():
    """Forks the ranks of each world that it reads, since imports take longer than most worlds. An
    exception ends a rank as it ends a program."""
    if HAS["transformers"]:
        import transformers
        transformers.logging.set_verbosity_error()
        assert transformers.GPT2LMHeadModel and transformers.LlamaForCausalLM  # imported here
    while line := sys.stdin.readline():
        world = json.loads(line)
        children = []
        for rank in range(world["ranks"]):
            children.append(os.fork())
            if children[-1] == 0:
                signal.alarm(200)
                for number, name in ((1, "out"), (2, "err")):
                    os.dup2(os.open(f"{world['folder']}/{name}{rank}",
                                    os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
                return rank_main(rank=rank, **world)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


class Case(unittest.TestCase):
    nursery = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def world(self, *names, ranks=2, init=None):
        if Case.nursery is None:
            Case.nursery = subprocess.Popen(
                [sys.executable, __file__, "nursery"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, env=dict(os.environ, GLOO_SOCKET_IFNAME="lo"))
            unittest.addModuleCleanup(Case.nursery.communicate)
        world = {"folder": self.folder, "ranks": ranks, "names": names,
                 "init": init or f"file://{self.folder}/store"}
        print(json.dumps(world), file=Case.nursery.stdin, flush=True)
        codes = json.loads(Case.nursery.stdout.readline())
        with contextlib.suppress(FileNotFoundError):
            pathlib.Path(self.folder, "store").unlink()
        return [(*(pathlib.Path(self.folder, f"{name}{rank}").read_text("utf-8")
                   for name in ("out", "err")), code) for rank, code in enumerate(codes)]

    def results(self, *names, ranks=2):
        """Of each rank."""
        found = []
        for rank, (out, errors, code) in enumerate(self.world(*names, ranks=ranks)):
            self.assertEqual(code, 0, f"rank {rank}: {errors}")
            found.append(json.loads(out.splitlines()[-1]))
        return found

    def assert_as_alone(self, names, ranks=2):
        alone = {name: json.loads(json.dumps(SCENARIOS[name](Rank(self.folder))))
                 for name in names}
        for rank, result in enumerate(self.results(*names, ranks=ranks)):
            for name in names:
                with self.subTest(name, rank=rank):
                    self.assertEqual(result[name], alone[name])
        return alone


class Training(Case):
    def test_is_that_of_one_rank_wherever_the_values_are(self):
        names = ["memory", "nvme", "budget", "stage 2", "bf16", "reentrant", "checkpoint"]
        alone = self.assert_as_alone(names)
        for name in ("nvme", "budget", "stage 2"):
            self.assertEqual(alone[name], alone["memory"])

    @unittest.skipUnless(HAS["transformers"], "transformers is not installed")
    def test_of_models_of_transformers_too(self):
        alone = self.assert_as_alone(["gpt2", "llama", "maps_one_file", "generates"] +
                                     ["trains_adapters"] * HAS["peft"])
        self.assertEqual(alone["maps_one_file"], alone["llama"])

    def test_of_groups_of_parameters_and_after_exceptions_too(self):
        names = ["has_groups_and_a_schedule", "goes_on_after_exceptions",
                 "updates_nothing_in_a_step_that_it_refuses"]
        alone = self.assert_as_alone(names)
        self.assertRegex(alone[names[-1]][0], "'head.weight' is another tensor")

    def test_where_ranks_lack_gradients_or_drop_them(self):
        self.assert_as_alone(["lacks_gradients", "lacks_a_micro_batch", "drops_gradients"])

    def test_where_a_block_is_used_twice(self):
        self.assert_as_alone(["uses_a_block_twice"])
        for result in self.results("shares_a_block_in_reentrant_checkpoints"):
            warned = [one for one in result["shares_a_block_in_reentrant_checkpoints"]
                      if "a second gradient of 'base.layers.0." in one]
            self.assertEqual(len(warned), 1)

    def test_goes_on_where_one_rank_alone_ends_an_engine_that_nobody_closed(self):
        self.assert_as_alone(["drops_an_engine"])

    def test_on_four_ranks_or_half_of_them(self):
        self.assert_as_alone(["nvme", "some_of_the_ranks"], ranks=4)


class DeepSpeed(Case):
    def test_checkpoint_that_one_rank_refuses_is_saved_by_none(self):
        first, second = (one["deepspeed_refuses_to_save"] for one in
                         self.results("deepspeed_refuses_to_save"))
        self.assertEqual(first[1], second[1])
        for told, why, text in zip(first[0], second[0], (r"client_state\['f'\] is a function",
                                                         "the tag '..' is no name")):
            self.assertRegex(why, f"^ArgumentError: {text}")
            self.assertRegex(told, r"^WrongState: save_checkpoint\('.*/refused'\): rank 1 refused "
                                   rf"it \(ArgumentError: {text}.*; no rank did anything")

    def test_interface_is_that_of_one_rank(self):
        self.assert_as_alone(["deepspeed_trains", "deepspeed_scales"])
        engine = engine_of(Rank(self.folder))
        self.addCleanup(engine.destroy)
        for ranks in (1, 2):
            folder, _ = engine.load_checkpoint(f"{self.folder}/run-{ranks}")
            self.assertEqual((folder, engine.global_steps),
                             (f"{self.folder}/run-{ranks}/global_step3", 3))
            self.assertEqual(train_engine(Rank(self.folder), engine, first=3),
                             deepspeed_trains.resumed)


def store_of_first():
    """Of torch.distributed, in rank 0, at a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{found.getsockname()[1]}"


class Failures(Case):
    def ends(self, name, init=None):
        """The last lines of what each rank prints."""
        ends = self.world(name, init=init)
        return [(code, errors.strip().splitlines()[-1]) for _, errors, code in ends]

    def test_of_a_rank_end_the_others_with_its_cause(self):
        for name, failing, text in (("raises_in_forward", 1, "KeyError: 'mine'"),
                                    ("first_raises", 0, "KeyError: 'mine'"),
                                    ("raises_before_offload", 1, "ArgumentError: the optimizer")):
            with self.subTest(name):
                ends = self.ends(name, store_of_first() if name == "first_raises" else None)
                self.assertEqual([code for code, _ in ends], [1, 1])
                self.assertIn(text, ends[failing][1])
                self.assertRegex(ends[1 - failing][1],
                                 f"PeerLost: .*rank {failing} gave up: {text}")

    def test_of_a_rank_that_never_comes_end_the_others_by_its_name(self):
        for name, failing, init in (("ends_before_it_comes", 1, lambda: None),
                                    ("ends_before_it_comes", 1, store_of_first),
                                    ("first_ends", 0, store_of_first),
                                    ("second_ends_later", 1, store_of_first),
                                    ("first_ends_later", 0, store_of_first)):
            with self.subTest(name, init=init):
                ends = self.ends(name, init())
                self.assertIn("KeyError: 'mine'", ends[failing][1])
                self.assertRegex(ends[1 - failing][1], f"PeerLost: rank {failing} ended before it "
                                                       "came to .*: KeyError: 'mine'; nothing was")
        (_, errors, code), (_, _, of_killed) = self.world("is_killed_before_it_comes")
        self.assertEqual((code, of_killed), (1, -signal.SIGKILL))
        self.assertRegex(errors, "rank 0 has waited 1 s for rank 1 to come")
        self.assertRegex(errors.splitlines()[-1], "PeerLost: rank 1 did not come .* within 3 s")

    def test_are_none_where_a_rank_is_late(self):
        one, other = self.results("comes_late")
        self.assertEqual(one, other)

    def test_name_what_differs_on_all_ranks(self):
        for name, text in (
                ("steps_with_another_rate", "PeerLost: step: hyperparameter set 1, that of "
                                            "'layers.0.norm.weight', has other values on rank 1"),
                ("runs_fewer_passes", "PeerLost: rank 1 called gather of group 'layers.0' .* where "
                                      "rank 0 called gather of group 'layers.3'"),
                ("runs_fewer_passes_at_stage_2", "PeerLost: step: rank 1 has made 9 gathers since "
                                                 "the last step, and rank 0 17: ")):
            with self.subTest(name):
                for code, last in self.ends(name):
                    self.assertEqual(code, 1)
                    self.assertRegex(last, text)

    def test_include_ctrl_c(self):
        (_, last), (code, of_second) = self.ends("is_interrupted")
        self.assertEqual((code, of_second), (-signal.SIGINT, "[rank1]: KeyboardInterrupt"))
        self.assertRegex(last, "PeerLost: .*rank 1 gave up: KeyboardInterrupt;")

    def test_include_a_rank_that_ends_too_early(self):
        (first, last), (second, _) = self.ends("leaves")
        self.assertEqual((first, second), (1, 0))
        self.assertRegex(last, "PeerLost.*rank 1 left or is late")


class Values(Case):
    def test_change_on_all_ranks_or_on_none(self):
        self.assert_as_alone(["changes_values"])

    def test_go_through_state_dicts_and_checkpoints_of_any_number_of_ranks(self):
        alone = [SCENARIOS["saves"](Rank(self.folder))]
        names = ["resumes_from_state_dicts", "resumes_from_snapshots", "saves", "loads"]
        for result in self.results(*names):
            self.assertEqual(result["saves"], alone[0])
            self.assertEqual(result["loads"], alone[0])
            self.assertEqual(result["resumes_from_state_dicts"],
                             resumes_from_state_dicts(Rank(self.folder)))
        self.assertEqual(loads(Rank(self.folder), of=2), alone[0])
        self.assertEqual(files_in(self.folder, "of-1"), files_in(self.folder, "of-2"))

    def test_that_ranks_refuse_leave_all_of_them_as_they_were(self):
        texts = ("ArgumentError: 'layers.1.up.bias' has other values on rank 1 than on rank 0",
                 r"Unsupported: .*optimizer.step\(max_norm=1.0\)",
                 r"WrongState: .*Call optimizer.zero_grad\(\) on every rank", "KeyError: 'mine'",
                 "ArgumentError: 'layers.1.up.bias' has other values on rank 1 than on rank 0",
                 "ArgumentError: of_rank is 2",
                 "ArgumentError: 'embedding.weight' has other values",
                 "ArgumentError: 'exp_avg of layers.0.norm.bias' has other values on rank 1",
                 "ArgumentError: parameter 0 of the optimizer is 'layers.3.down.bias' on rank 1 "
                 "and 'embedding.weight' on rank 0",
                 "NotFinite: the gradient of 'layers.0.norm.weight' .* skip such steps: config",
                 "the buffer 'count' is missing in .*/refused, and torch.float32 of shape",
                 "train_batch_size 6 is not .*_steps 1 times 2 ranks")
        for result in self.results("refuses"):
            self.assertEqual(len(result["refuses"]), len(texts))
            for told, text in zip(result["refuses"], texts):
                self.assertRegex(told, text)


def files_in(folder, name):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in pathlib.Path(folder, name).iterdir()}


if __name__ == "__main__":
    if sys.argv[1] == "nursery":
        nursery()
        sys.exit(0)
    FOLDER = sys.argv.pop(1)
    unittest.main()
