# SPDX-License-Identifier: Apache-2.0
"""Seconds of a step of headrace.torch.AdamW beside torch.optim.AdamW, interleaved.

    torch_optimizer.py [--parameters N] [--dtype float32|bfloat16] [--rounds R] [--nvme FOLDER]
                       [--device cpu|cuda]

Each round makes one step with each optimizer, of parameters of the same sizes. Prints the median
seconds of each, and the median and the range of the first one's seconds over them: 1.0 is the first
one's speed. On the CPU, the first is torch's fused rule. With the parameters on a GPU, it is the
same rule on the CPU, with f32 masters there, gradients copied to it and weights back; "on the GPU"
has its whole state there.
Needs torch, and `headrace` (./dev makes an environment with both).
"""
import argparse
import statistics
import time

import torch

import headrace.torch

WARM_UP = 7  # rounds: the first allocates, and update_on auto takes six for its choice


class FusedOnHost:
    """torch's fused rule on the CPU for parameters on a GPU: all copies at once, from and to
    page-locked memory."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.moved = [torch.empty_like(p, device="cpu", pin_memory=True) for p in parameters]
        self.masters = [torch.nn.Parameter(p.detach().float().cpu()) for p in parameters]
        for master in self.masters:
            master.grad = torch.empty_like(master)
        self.rule = torch.optim.AdamW(self.masters, lr=1e-3, fused=True)

    @torch.no_grad()
    def step(self):
        for moved, parameter in zip(self.moved, self.parameters):
            moved.copy_(parameter.grad, non_blocking=True)
        torch.cuda.synchronize()
        for moved, master in zip(self.moved, self.masters):
            master.grad.copy_(moved)
        self.rule.step()
        for moved, master, parameter in zip(self.moved, self.masters, self.parameters):
            moved.copy_(master)
            parameter.copy_(moved, non_blocking=True)


def rules_of(options):
    """Name -> parameters -> optimizer."""
    rules = {"torch, fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
             "torch, foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True)}
    if options.device == "cuda":
        rules = {"torch, fused on the CPU": FusedOnHost,
                 "torch, fused on the GPU": rules["torch, fused"]}
        for place in ("device", "auto"):
            rules["headrace, update_on " + place] = lambda p, place=place: headrace.torch.AdamW(
                p, lr=1e-3, config={"headrace": {"update_on": place}})
    rules["headrace, in memory"] = lambda p: headrace.torch.AdamW(p, lr=1e-3)
    if options.nvme:
        rules["headrace, on a drive"] = lambda p: headrace.torch.AdamW(p, lr=1e-3,
                                                                       nvme=options.nvme)
    return rules


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--parameters", type=int, default=40_000_000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--nvme", metavar="FOLDER")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args()


def main():
    options = parse()
    each = 1_000_000  # as the layers of a model

    def make_parameters():
        torch.manual_seed(0)
        tensors = [torch.randn(each, dtype=getattr(torch, options.dtype), device=options.device)
                   for _ in range(max(1, options.parameters // each))]
        parameters = [torch.nn.Parameter(tensor) for tensor in tensors]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        return parameters

    def seconds_of(rule):
        start = time.perf_counter()
        rule.step()
        if options.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    rules = {name: make(make_parameters()) for name, make in rules_of(options).items()}
    seconds = {name: [] for name in rules}
    for round_number in range(options.rounds + WARM_UP):
        for name, rule in rules.items():
            took = seconds_of(rule)
            if round_number >= WARM_UP:
                seconds[name].append(took)
    first = next(iter(rules))
    print(f"{options.parameters} parameters of {options.dtype} on {options.device}, "
          f"{options.rounds} rounds, {torch.get_num_threads()} threads of torch, "
          f"{torch.backends.cpu.get_cpu_capability()}")
    for name, own in seconds.items():
        ratios = [reference / one for reference, one in zip(seconds[first], own)]
        print(f"{name:26} {statistics.median(own):8.4f} s   {statistics.median(ratios):6.2f} of "
              f"the first [{min(ratios):.2f}, {max(ratios):.2f}]")


if __name__ == "__main__":
    main()
