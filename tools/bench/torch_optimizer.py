# SPDX-License-Identifier: Apache-2.0
"""Seconds of a step of headrace.torch.AdamW beside torch.optim.AdamW, on the CPU, interleaved.

    torch_optimizer.py [--parameters N] [--dtype float32|bfloat16] [--rounds R] [--nvme FOLDER]

Each round makes one step with each optimizer, of parameters of the same sizes. Prints the median
seconds of each, and the median and the range of torch's fused seconds over them: 1.0 is its speed.
Needs torch, and `headrace` (./dev makes an environment with both).
"""
import argparse
import statistics
import time

import torch

import headrace.torch


def optimizers(options, make_parameters):
    """Name -> (parameters, optimizer)."""
    rules = {"torch, fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
             "torch, foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
             "headrace, in memory": lambda p: headrace.torch.AdamW(p, lr=1e-3)}
    if options.nvme:
        rules["headrace, on a drive"] = lambda p: headrace.torch.AdamW(p, lr=1e-3,
                                                                       nvme=options.nvme)
    return {name: rule(make_parameters()) for name, rule in rules.items()}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--parameters", type=int, default=40_000_000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--nvme", metavar="FOLDER")
    return parser.parse_args()


def main():
    options = parse()
    each = 1_000_000  # as the layers of a model

    def make_parameters():
        torch.manual_seed(0)
        tensors = [torch.randn(each, dtype=getattr(torch, options.dtype))
                   for _ in range(max(1, options.parameters // each))]
        parameters = [torch.nn.Parameter(tensor) for tensor in tensors]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        return parameters

    rules = optimizers(options, make_parameters)
    seconds = {name: [] for name in rules}
    for round_number in range(options.rounds + 1):
        for name, rule in rules.items():
            start = time.perf_counter()
            rule.step()
            if round_number > 0:  # the first one allocates
                seconds[name].append(time.perf_counter() - start)
    print(f"{options.parameters} parameters of {options.dtype}, {options.rounds} rounds, "
          f"{torch.get_num_threads()} threads of torch, {torch.backends.cpu.get_cpu_capability()}")
    for name, own in seconds.items():
        ratios = [fused / one for fused, one in zip(seconds["torch, fused"], own)]
        print(f"{name:22} {statistics.median(own):8.4f} s   {statistics.median(ratios):6.2f} of "
              f"fused [{min(ratios):.2f}, {max(ratios):.2f}]")


if __name__ == "__main__":
    main()
