# SPDX-License-Identifier: Apache-2.0
"""Seconds of a training step of a Llama offloaded by headrace.offload(), beside the same model with
its parameters where it computes, interleaved.

    offloaded_model.py [--layers N] [--hidden N] [--tokens N] [--batch N] [--rounds R]
                       [--device cpu|cuda] [--dtype bfloat16|float32] [--nvme FOLDER]

The first row has torch's own parameters, and headrace.torch.AdamW with its state in host memory.
The others are offloaded: with everything in host memory, and with --nvme on that drive. Prints for
each the median seconds of a step, the median and the range of the first row's seconds over them
(1.0 is the first one's speed), the bytes that the plan has in each tier, and on a GPU the most
that torch itself allocated there. Every row must end with the losses of the first.
Needs torch, transformers, and `headrace` (./dev makes an environment with all of them).
"""
import argparse
import gc
import os
import statistics
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

import headrace  # noqa: E402
import headrace.torch  # noqa: E402

WARM_UP = 2  # rounds: the first allocates, and from the second on groups are prefetched


class Trained:
    def __init__(self, options, place):
        torch.manual_seed(0)
        with torch.device("cpu"):
            model = LlamaForCausalLM(LlamaConfig(
                vocab_size=8192, hidden_size=options.hidden, intermediate_size=3 * options.hidden,
                num_hidden_layers=options.layers, num_attention_heads=options.hidden // 64,
                max_position_embeddings=options.tokens)).to(getattr(torch, options.dtype))
        self.parameters = sum(one.numel() for one in model.parameters())
        if place is None:
            self.model = model.to(options.device)
            self.optimizer = headrace.torch.AdamW(self.model.parameters(), lr=1e-4)
        else:
            self.model, self.optimizer = headrace.offload(
                model, nvme=place or None, device=options.device, lr=1e-4)
        self.options, self.losses, self.seconds = options, [], []

    def step(self, number):
        options = self.options
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(0, 8192, (options.batch, options.tokens),
                               generator=generator).to(options.device)
        synchronize(options)
        began = time.perf_counter()
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        synchronize(options)
        self.seconds.append(time.perf_counter() - began)
        self.losses.append(loss.item())

    def plan(self):
        plans = self.optimizer.plan()
        return {tier: sum(plan[tier + "_bytes"] for plan in plans)
                for tier in ("host", "device", "nvme")}


def synchronize(options):
    if options.device != "cpu":
        torch.cuda.synchronize()


def rows_of(options):
    rows = {"torch's parameters": None, "offloaded, in memory": ""}
    if options.nvme:
        rows["offloaded, on a drive"] = options.nvme
    return rows


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--nvme", metavar="FOLDER")
    return parser.parse_args()


def of_torch_there(options, made):
    """MiB that torch itself takes on the GPU for one step of this one alone."""
    if options.device == "cpu":
        return ""
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    made.step(10_000)
    made.seconds.pop(), made.losses.pop()
    return f", torch on the GPU {(torch.cuda.max_memory_allocated() - before) >> 20}"


def main():
    options = parse()
    torch.use_deterministic_algorithms(True)  # torch's attention for long texts is not, without it
    made = {name: Trained(options, place) for name, place in rows_of(options).items()}
    for number in range(WARM_UP + options.rounds):
        for one in made.values():
            one.step(number)
    first = next(iter(made.values()))
    print(f"{first.parameters / 1e6:.0f} million {options.dtype} parameters, {options.batch} x "
          f"{options.tokens} tokens, {options.rounds} rounds")
    for name, one in made.items():
        seconds = one.seconds[WARM_UP:]
        ratios = sorted(a / b for a, b in zip(first.seconds[WARM_UP:], seconds))
        same = "the same losses" if one.losses == first.losses else \
            f"LOSSES DIFFER: {one.losses[-1]} and {first.losses[-1]}"
        plan = ", ".join(f"{tier} {bytes_ >> 20}" for tier, bytes_ in one.plan().items())
        print(f"{name:24} {statistics.median(seconds):.4f} s  speed "
              f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]  {same}; MiB: "
              f"{plan}{of_torch_there(options, one)}")
    for one in made.values():
        one.optimizer.close()


if __name__ == "__main__":
    main()
