# SPDX-License-Identifier: Apache-2.0
"""headrace.offload() on several ranks over Gloo: offload_ranks_test.py FOLDER [TEST...].

A scenario is a function of a Rank. One process runs it alone; two run it as ranks, each with every
second micro-batch. What it returns must be the same, to the last bit.
"""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

sys.dont_write_bytecode = True
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
import headrace.torch

try:
    import transformers
    transformers.logging.set_verbosity_error()
except ImportError:
    transformers = None

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
    return {name: str(headrace_hash(tensor)) for name, tensor in tensors.items()}


def headrace_hash(tensor):
    import hashlib
    raw = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:16] + str(tuple(tensor.shape))


class Rank:
    """This process, alone or one of several."""

    def __init__(self, folder, rank=0, ranks=1):
        self.folder, self.rank, self.ranks = folder, rank, ranks

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
        dist.all_gather_object(told, numbers)
        return [one for turn in zip(*told) for one in turn]


# ---- scenarios ----
def trains(rank, make, where="memory", config=None, dtype=torch.float32):
    model, optimizer = rank.offload(make().to(dtype), config, where)
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


def has_other_values(rank):
    model = net()
    if rank.rank == 1:
        with torch.no_grad():
            model.layers[1].up.bias[3] += 1
    rank.offload(model)


def leaves(rank):
    model, optimizer = rank.offload(net())
    rank.train(model, optimizer, steps=1)
    if rank.rank == 1:
        sys.exit(0)
    rank.train(model, optimizer, steps=1)


def runs_fewer_passes(rank):
    model, optimizer = rank.offload(net())
    if rank.rank == 1:
        loss_of(model, 0)
    loss_of(model, 0).backward()
    optimizer.step()


def steps_with_another_rate(rank):
    model, optimizer = rank.offload(net())
    optimizer.param_groups[0]["lr"] = 0.1 + rank.rank
    rank.train(model, optimizer, steps=1)


SCENARIOS |= {one.__name__: one for one in (
    raises_in_forward, raises_before_offload, has_other_values, leaves, runs_fewer_passes,
    steps_with_another_rate)}
SCENARIOS["first_raises"] = lambda rank: raises_in_forward(rank, of_rank=0)


# ---- worlds ----
def rank_main(folder, rank, ranks, names, init):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=ranks)
    results = {}
    for name in names:
        results[name] = SCENARIOS[name](Rank(folder, rank, ranks))
    print(json.dumps(results))
    dist.destroy_process_group()


def start(folder, rank, ranks, names, init):
    words = [sys.executable, __file__, "rank", folder, str(rank), str(ranks), json.dumps(names),
             init]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def world(self, *names, ranks=2, init=None):
        init = init or f"file://{self.folder}/store"
        processes = [start(self.folder, rank, ranks, names, init) for rank in range(ranks)]
        ends = [(*one.communicate(timeout=200), one.returncode) for one in processes]
        with contextlib.suppress(FileNotFoundError):
            pathlib.Path(self.folder, "store").unlink()
        return ends

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

    @unittest.skipIf(transformers is None, "transformers is not installed")
    def test_of_models_of_transformers_too(self):
        self.assert_as_alone(["gpt2", "llama"])


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]),
                  sys.argv[6])
        sys.exit(0)
    FOLDER = sys.argv.pop(1)
    unittest.main()
