#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains train_gpt's model under DeepSpeed or FSDP2 on the CPU, or under torch alone, and times it.

  tools/bench/deepspeed_trainer.py --mode MODE --nvme DIR --text FILE [--layers N] [--hidden N]
                                   [--heads N] [--seq N] [--batch N] [--steps N] [--sub-group N]
                                   [--on-headrace | --engine-of-headrace]

For against_deepspeed.py and against_ranks.py, which run it beside train_gpt. MODE is zero3-nvme or
zero3-nvme-pipelined (parameters and state on the drive), zero3-cpu (both in host memory), zero3 or
zero2 (no offload), zero2-cpu (ZeRO-Offload: stage 2, the state in host memory), or without
DeepSpeed: fsdp2 (torch's fully_shard, bf16 on the wire, f32 masters), fsdp2-grad-op (the same, and
parameters stay joined from forward to backward, as SHARD_GRAD_OP has it), ram (bf16 weights, f32
masters, a fused AdamW), optimizer-nvme or optimizer-memory (headrace.torch.AdamW, its state on the
drive or in host memory), model-nvme or model-memory (headrace.offload(), which has the weights
too). Modes of ZeRO, fsdp2 and headrace.offload() are one rank, or that which RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT name, over Gloo.
Wants torch and deepspeed in this Python, libaio's headers and a C++ compiler; DeepSpeed compiles
its operators at first use. --on-headrace takes them from the package headrace, which this Python
then has to have. With --engine-of-headrace, deepspeed.initialize() is headrace's.

Prints "step N: ..." after each step, and a JSON object as its last line. Where the CPU is not
fast in bf16 its products are computed in f32, as train_gpt does.
"""
import argparse
import gc
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["DS_PIN_MEMORY_BACKEND"] = "native"

import torch
from torch import nn
import torch.nn.functional as F

WARM_UP = 2
BF16 = torch.bfloat16
OF_HEADRACE = ("optimizer-nvme", "optimizer-memory", "model-nvme", "model-memory")


def is_fast_in_bf16():
    """As tools/train_gpt/bf16_support.hpp has it, so that both sides compute alike."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        words = file.read().split("\n\n")[0]
    amd = "AuthenticAMD" in words
    has = " amx_bf16" in words or (amd and " avx512_bf16" in words)
    return has and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def multiply_in_f32():
    """torch's products of bf16, by way of f32. DeepSpeed's stage 3 multiplies by Tensor.matmul, in
    a function of its own."""
    matmul, linear, attend = torch.Tensor.matmul, F.linear, F.scaled_dot_product_attention

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight, bias):
            context.save_for_backward(x, weight)
            context.has_bias = bias is not None
            bias = bias.float() if context.has_bias else None
            return linear(x.float(), weight.float(), bias).to(BF16)

        @staticmethod
        def backward(context, gradient):
            x, weight = context.saved_tensors
            gradient = gradient.float()
            rows = gradient.flatten(0, -2)
            return (matmul(gradient, weight.float()).to(BF16),
                    torch.mm(rows.t(), x.flatten(0, -2).float()).to(BF16),
                    rows.sum(0).to(BF16) if context.has_bias else None)

    def product(a, b):
        if a.dtype != BF16:
            return matmul(a, b)
        return matmul(a.float(), b.float()).to(BF16)

    torch.Tensor.matmul = product
    F.linear = lambda x, w, b=None: Linear.apply(x, w, b) if x.dtype == BF16 else linear(x, w, b)
    F.scaled_dot_product_attention = lambda q, k, v, **more: attend(
        q.float(), k.float(), v.float(), **more).to(q.dtype)


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class ByteGPT(nn.Module):
    def __init__(self, asked):
        super().__init__()
        self.tokens = nn.Embedding(256, asked.hidden)
        self.positions = nn.Embedding(asked.seq, asked.hidden)
        self.blocks = nn.ModuleList(Block(asked.hidden, asked.heads) for _ in range(asked.layers))
        self.norm = nn.LayerNorm(asked.hidden)
        self.head = nn.Linear(asked.hidden, 256, bias=False)

    def forward(self, x, targets):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).float().view(-1, 256), targets.view(-1))


def make_model(asked):
    torch.manual_seed(1)
    torch.set_default_dtype(BF16)
    try:
        return ByteGPT(asked)
    finally:
        torch.set_default_dtype(torch.float32)


class InMemory:
    def __init__(self, asked):
        self.model = make_model(asked)
        self.weights = list(self.model.parameters())
        self.masters = [weight.detach().float() for weight in self.weights]
        self.parameters = sum(weight.numel() for weight in self.weights)
        self.optimizer = torch.optim.AdamW(self.masters, lr=3e-4, weight_decay=0.01, fused=True)

    def forward(self, x, y):
        return self.model(x, y)

    def backward(self, loss):
        loss.backward()

    @torch.no_grad()
    def step(self):
        for master, weight in zip(self.masters, self.weights):
            master.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        for master, weight in zip(self.masters, self.weights):
            master.grad = None
            weight.copy_(master)


class TorchLoop:
    """torch's own loop, with the model and the optimizer of a subclass."""

    def forward(self, x, y):
        return self.model(x, y)

    def backward(self, loss):
        loss.backward()

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


class WithHeadrace(TorchLoop):
    """torch's model and loop, with the optimizer of headrace."""

    def __init__(self, asked):
        import headrace.torch
        self.model = make_model(asked)
        self.parameters = sum(weight.numel() for weight in self.model.parameters())
        place = {"nvme": asked.nvme} if asked.mode.endswith("-nvme") else {}
        options = {"lr": 3e-4, "weight_decay": 0.01, **place}
        self.is_offloaded = asked.mode.startswith("model-")
        if self.is_offloaded:
            if "RANK" in os.environ:
                torch.distributed.init_process_group("gloo")
            _, self.optimizer = headrace.offload(self.model, **options)
        else:
            self.optimizer = headrace.torch.AdamW(self.model.parameters(), **options)

    def step(self):
        if not self.is_offloaded:
            return super().step()
        self.optimizer.step(max_norm=1.0)
        self.optimizer.zero_grad()


def join_ranks():
    """Where no launcher has said which rank this is, it is the only one."""
    if "RANK" in os.environ:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(free.getsockname()[1]))


class UnderFsdp2(TorchLoop):
    """The parameters' shards are the f32 masters; bf16 is gathered and reduced."""

    def __init__(self, asked):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        join_ranks()
        torch.distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=BF16)
        self.model = make_model(asked).float()
        self.parameters = sum(weight.numel() for weight in self.model.parameters())
        how = {"mesh": mesh, "mp_policy": policy,
               "reshard_after_forward": asked.mode != "fsdp2-grad-op"}
        for block in self.model.blocks:
            fully_shard(block, **how)
        fully_shard(self.model, **how)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, weight_decay=0.01,
                                           fused=True)


def deepspeed_settings(asked):
    pipelined = asked.mode == "zero3-nvme-pipelined"
    zero = {"stage": 3, "sub_group_size": asked.sub_group,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_prefetch_bucket_size": 50_000_000, "stage3_max_live_parameters": 1_000_000_000}
    if asked.mode == "zero2":
        zero = {"stage": 2}
    elif asked.mode == "zero2-cpu":
        zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    elif asked.mode == "zero3":
        zero["stage3_max_reuse_distance"] = 1_000_000_000
    elif asked.mode == "zero3-cpu":
        zero["stage3_max_reuse_distance"] = 1_000_000_000
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    else:
        # Any other distance fails with parameters on the drive, and so do fewer buffers of the
        # pipelined optimizer, or more of the parameters'.
        zero["stage3_max_reuse_distance"] = 0
        zero["offload_optimizer"] = {
            "device": "nvme", "pin_memory": True, "nvme_path": asked.nvme,
            "pipeline_read": pipelined, "pipeline_write": pipelined,
            "buffer_count": 12 if pipelined else 5}
        largest = max(4 * asked.hidden, 256, asked.seq) * asked.hidden
        zero["offload_param"] = {
            "device": "nvme", "pin_memory": True, "nvme_path": asked.nvme, "buffer_count": 8,
            "buffer_size": largest + 4096, "max_in_cpu": 0}
    return {
        "train_micro_batch_size_per_gpu": asked.batch, "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0, "bf16": {"enabled": True}, "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.999], "eps": 1e-8,
                                                  "weight_decay": 0.01}},
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "overlap_events": True,
                "single_submit": False, "intra_op_parallelism": 1},
        "steps_per_print": 10 ** 9, "wall_clock_breakdown": False}


class UnderDeepSpeed:
    def __init__(self, asked):
        if asked.on_headrace or asked.engine_of_headrace:
            import headrace.deepspeed
        if asked.engine_of_headrace:
            headrace.deepspeed.take_over()
        import deepspeed
        join_ranks()
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        settings = deepspeed_settings(asked)
        with deepspeed.zero.Init(config_dict_or_path=settings,
                                 enabled=not asked.mode.startswith("zero2")):
            model = make_model(asked)
        self.parameters = sum(getattr(weight, "ds_numel", weight.numel())
                              for weight in model.parameters())
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                               config=settings)
        self.forward, self.backward = self.engine, self.engine.backward

    def step(self):
        self.engine.step()


def batches(asked):
    data = torch.frombuffer(bytearray(pathlib.Path(asked.text).read_bytes()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(1)
    while True:
        starts = torch.randint(0, len(data) - asked.seq - 1, (asked.batch,), generator=generator)
        rows = torch.stack([data[at:at + asked.seq + 1] for at in starts.tolist()]).long()
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def moved():
    """Bytes that this process read from storage and wrote there."""
    fields = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(fields["read_bytes"]), int(fields["write_bytes"])


def peak_mib():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0


def train(asked):
    kinds = {"ram": InMemory, "fsdp2": UnderFsdp2, "fsdp2-grad-op": UnderFsdp2,
             **dict.fromkeys(OF_HEADRACE, WithHeadrace)}
    trainer = kinds.get(asked.mode, UnderDeepSpeed)(asked)
    rows = []
    for number, (x, y) in zip(range(WARM_UP + asked.steps), batches(asked)):
        if number == WARM_UP:
            gc.collect()
            open("/proc/self/clear_refs", "w").write("5")  # from here on the peak is of steps
        before, times = moved(), [time.perf_counter()]
        loss = trainer.forward(x, y)
        times.append(time.perf_counter())
        trainer.backward(loss)
        times.append(time.perf_counter())
        trainer.step()
        times.append(time.perf_counter())
        read, written = (after - early for after, early in zip(moved(), before))
        rows.append({"total_s": times[3] - times[0], "forward_s": times[1] - times[0],
                     "backward_s": times[2] - times[1], "step_s": times[3] - times[2],
                     "read": read, "written": written})
        print(f"step {number}: loss {float(loss.detach()):.6f} {rows[-1]['total_s']:.3f} s",
              flush=True)
    count = trainer.parameters
    medians = {key: statistics.median(row[key] for row in rows[WARM_UP:]) for key in rows[0]}
    return {"parameters": count, "median": medians, "hwm_steps_mib": peak_mib(),
            "read_bytes_per_param_step": medians["read"] / count,
            "write_bytes_per_param_step": medians["written"] / count}


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--mode", required=True,
                         choices=("ram", "fsdp2", "fsdp2-grad-op", *OF_HEADRACE, "zero2",
                                  "zero2-cpu", "zero3", "zero3-cpu", "zero3-nvme",
                                  "zero3-nvme-pipelined"))
    options.add_argument("--nvme", default=".", help="its deepspeed-swap is made and removed")
    options.add_argument("--text", required=True)
    for name, value in (("layers", 16), ("hidden", 512), ("heads", 8), ("seq", 128), ("batch", 1),
                        ("steps", 8), ("sub-group", 16_000_000)):
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--on-headrace", action="store_true",
                         help="DeepSpeed's operations are those of headrace")
    options.add_argument("--engine-of-headrace", action="store_true",
                         help="DeepSpeed's engine is that of headrace")
    asked = options.parse_args()
    # Unwinds, so that what is on the drive and torch's lock on a compilation do not stay behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    asked.nvme = os.path.join(asked.nvme, "deepspeed-swap" + os.environ.get("RANK", ""))
    os.makedirs(asked.nvme)
    if not is_fast_in_bf16():
        multiply_in_f32()
    done = 1
    try:
        result = train(asked)
        done = 0
    finally:
        shutil.rmtree(asked.nvme, ignore_errors=True)
        if done == 0:
            print(json.dumps({"torch": torch.__version__, **result}), flush=True)
            os._exit(0)  # without destructors: its I/O threads may still hold work


if __name__ == "__main__":
    main()
