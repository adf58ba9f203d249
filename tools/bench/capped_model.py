#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Llama that is larger than the memory that may be used: loaded, trained by headrace.offload(),
saved, and compared with the same training in memory, bit for bit.

    capped_model.py make FOLDER [--layers N] [--hidden N]
        writes a model with random weights there
    memory_cap.sh MIB capped_model.py train FOLDER --nvme DIR [--lora] [--steps N]
        from_pretrained(), offload(), steps, save_pretrained() into FOLDER/trained
    capped_model.py compare FOLDER [--lora] [--steps N]
        the same with all in memory; exits with 1 if a tensor of FOLDER/trained differs
    capped_model.py deepspeed FOLDER --nvme DIR [--lora] [--steps N]
        the same under DeepSpeed's ZeRO-3, for its memory. Only the optimizer state is on NVMe: with
        parameters there, DeepSpeed 0.19.8 ends with "Not enough buffers"

Each phase prints what it took. With --lora, adapters of peft are trained beside the frozen model.
Needs torch, transformers, peft for --lora, `headrace` (./dev makes an environment), and DeepSpeed
to compare with it.
"""
import argparse
import gc
import os
import sys
import threading
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

import headrace  # noqa: E402
import headrace.torch  # noqa: E402

VOCABULARY, TOKENS = 8192, 64


def anonymous_mib():
    with open("/proc/self/status", encoding="ascii") as file:
        rows = dict(line.split(":", 1) for line in file)
    return sum(int(rows[name].split()[0]) for name in ("RssAnon", "RssShmem")) // 1024


class Phase:
    """Prints its seconds, and the most memory without the pages of files."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.began, self.most, self.ended = time.perf_counter(), 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.ended.wait(0.01):
            self.most = max(self.most, anonymous_mib())

    def __exit__(self, *_raised):
        self.ended.set()
        self.thread.join()
        print(f"{self.name:10} {time.perf_counter() - self.began:7.1f} s, at most "
              f"{max(self.most, anonymous_mib())} MiB", flush=True)


def make(options):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=options.hidden, intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers, num_attention_heads=options.hidden // 64,
        max_position_embeddings=TOKENS, dtype=torch.bfloat16)).to(torch.bfloat16)
    model.save_pretrained(options.folder)
    elements = sum(one.numel() for one in model.parameters())
    print(f"{elements / 1e6:.0f} million bf16 parameters: {2 * elements / 2**20:.0f} MiB of "
          f"weights, {2 * elements / 2**20:.0f} of gradients and {10 * elements / 2**20:.0f} of "
          "masters and moments")


def loaded(options):
    model = LlamaForCausalLM.from_pretrained(options.folder)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if not options.lora:
        return model.train()
    import peft
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(
        r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)).train()


def losses(model, optimizer, steps, backward=torch.Tensor.backward):
    seen = []
    for step in range(steps):
        ids = torch.randint(0, VOCABULARY, (1, TOKENS),
                            generator=torch.Generator().manual_seed(step))
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen


def train(options):
    with Phase("start"):
        pass
    with Phase("load"):
        model, optimizer = headrace.offload(loaded(options), nvme=options.nvme, lr=1e-3)
        gc.collect()
    with Phase("train"):
        print("losses    ", losses(model, optimizer, options.steps))
    with Phase("save"):
        model.save_pretrained(options.folder + "/trained")
        if options.lora:
            model.get_base_model().save_pretrained(options.folder + "/trained/base")
    print(f"the plan has {optimizer.plan()[0]['host_bytes'] >> 20} MiB of host memory")
    optimizer.close()


def with_deepspeed(options):
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    for key, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"),
                       ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29583")):
        os.environ.setdefault(key, value)
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig
    drive = {"device": "nvme", "nvme_path": options.nvme}
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
              "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                                    "offload_optimizer": drive}}
    with Phase("start"):
        deepspeed.init_distributed("gloo")
    with Phase("load"):
        while_loading = HfDeepSpeedConfig(config)  # from_pretrained() partitions as it loads
        model = loaded(options)
        engine = deepspeed.initialize(
            model=model, config=config,
            model_parameters=[one for one in model.parameters() if one.requires_grad])[0]
        del while_loading
        gc.collect()

    class Optimizer:  # what losses() calls
        step, zero_grad = staticmethod(engine.step), staticmethod(lambda: None)

    with Phase("train"):
        print("losses    ", losses(engine, Optimizer, options.steps, engine.backward))


def compare(options):
    from safetensors import safe_open
    model = loaded(options)
    optimizer = headrace.torch.AdamW([one for one in model.parameters() if one.requires_grad],
                                     lr=1e-3)
    print("losses    ", losses(model, optimizer, options.steps))
    memory = options.folder + "/in_memory"
    model.save_pretrained(memory)
    if options.lora:
        model.get_base_model().save_pretrained(memory + "/base")
    different, compared = [], 0
    for folder, _, names in os.walk(memory):
        for name in names:
            if not name.endswith(".safetensors"):
                continue
            other = os.path.join(options.folder, "trained", os.path.relpath(folder, memory), name)
            with safe_open(os.path.join(folder, name), "pt") as one, safe_open(other, "pt") as two:
                different += set(one.keys()) ^ set(two.keys())
                for key in set(one.keys()) & set(two.keys()):
                    compared += 1
                    if not torch.equal(one.get_tensor(key), two.get_tensor(key)):
                        different.append(key)
    print(f"{compared} tensors compared, {len(different)} differ {sorted(different)[:4]}")
    return 1 if different or compared == 0 else 0


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parse.add_argument("what", choices=("make", "train", "compare", "deepspeed"))
    parse.add_argument("folder", type=os.path.abspath)
    parse.add_argument("--nvme")
    parse.add_argument("--lora", action="store_true")
    parse.add_argument("--steps", type=int, default=2)
    parse.add_argument("--layers", type=int, default=24)
    parse.add_argument("--hidden", type=int, default=2048)
    options = parse.parse_args()
    phases = {"make": make, "train": train, "compare": compare, "deepspeed": with_deepspeed}
    return phases[options.what](options) or 0


if __name__ == "__main__":
    sys.exit(main())
