#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a Vision Transformer on the handwritten digits that scikit-learn ships.

Its parameters are bf16, and one optimizer updates all of them together: master weights and moments
are the engine's, in memory or on a drive. Two ways, which differ in three lines:

  python3 vit_on_digits.py [--nvme FOLDER]
      One process. headrace.offload() moves the blocks and their optimizer into the engine, which
      brings each block when it is needed.

  torchrun --nproc-per-node 2 vit_on_digits.py [--nvme FOLDER]
      Several. torch's FSDP2 shards the model over the ranks, and each rank updates its shards with
      headrace.torch.AdamW, whose state is in memory or on the rank's drive.
"""
import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn import functional as F

import headrace
import headrace.torch

PATCH, SIDE, CLASSES = 2, 8, 10


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        split = self.qkv(self.norm_1(x)).view(batch, tokens, 3, self.heads, -1)
        mixed = F.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4))
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class ViT(torch.nn.Module):
    """A class token and one token for each patch of an image."""

    def __init__(self, width, depth, heads):
        super().__init__()
        patches = (SIDE // PATCH) ** 2
        self.patches = torch.nn.Linear(PATCH * PATCH, width)
        self.first = torch.nn.Parameter(torch.zeros(1, 1, width))
        self.places = torch.nn.Parameter(0.02 * torch.randn(1, 1 + patches, width))
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, CLASSES)

    def forward(self, images):
        rows = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
        x = self.patches(rows.flatten(1, 2).flatten(2))
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def images(dtype):
    """To train with, and to test with."""
    digits = load_digits()
    pixels = torch.tensor(digits.images / 8 - 1, dtype=dtype)
    classes = torch.tensor(digits.target)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))
    pixels, classes = pixels[order], classes[order]
    return (pixels[:1500], classes[:1500]), (pixels[1500:], classes[1500:])


def offloaded(model, options):
    return headrace.offload(model, nvme=options.nvme, lr=options.lr, weight_decay=0.05)


def sharded(model, options):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, headrace.torch.AdamW(model.parameters(), lr=options.lr, weight_decay=0.05,
                                       nvme=options.nvme)


def train(model, optimizer, data, options, rank, ranks):
    """Each rank takes its part of every batch."""
    pixels, classes = data
    draw = torch.Generator().manual_seed(1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    for step in range(1, options.steps + 1):
        picked = torch.randperm(len(classes), generator=draw)[:options.batch][rank::ranks]
        loss = F.cross_entropy(model(pixels[picked]).float(), classes[picked])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if rank == 0 and (step % 50 == 0 or step == options.steps):
            print(f"step {step:4}: loss {loss.item():.4f}", flush=True)


def accuracy(model, data):
    pixels, classes = data
    with torch.no_grad():
        return (model(pixels).argmax(1) == classes).float().mean().item()


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parse.add_argument("--nvme", help="a folder on a drive; without it, all stays in memory")
    parse.add_argument("--steps", type=int, default=300)
    parse.add_argument("--batch", type=int, default=128, help="images, of all ranks together")
    parse.add_argument("--lr", type=float, default=1e-3)
    parse.add_argument("--width", type=int, default=128)
    parse.add_argument("--depth", type=int, default=6)
    options = parse.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if ranks > 1 else 0
    torch.manual_seed(0)
    model = ViT(options.width, options.depth, heads=4).to(torch.bfloat16)
    model, optimizer = (sharded if ranks > 1 else offloaded)(model, options)
    to_train, to_test = images(torch.bfloat16)
    train(model, optimizer, to_train, options, rank, ranks)
    found = accuracy(model, to_test)
    if rank == 0:
        print(f"of {len(to_test[1])} digits that it has not seen, it reads {100 * found:.1f} %")
    optimizer.close()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
