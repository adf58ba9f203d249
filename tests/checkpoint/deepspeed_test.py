# SPDX-License-Identifier: Apache-2.0
"""Converts checkpoints of a small model that DeepSpeed trains on the CPU, and lets DeepSpeed load
what was made of them.

    deepspeed_test.py HEADRACE [RUN...]    the program; the numbers of some of RUNS

Of each run: DeepSpeed saves after three steps, and ds_to_universal converts that. Headrace's
checkpoint of it has the values that torch.load() finds there, bit for bit. The universal directory
that is made of Headrace's checkpoint is loaded by DeepSpeed, whose next five losses are those of
its own resume.

Ends 77, which CTest lists as skipped, where deepspeed, torch, numpy or safetensors is missing. To
run it in an environment of its own:

    pip install torch==2.11.0 deepspeed==0.19.8 numpy safetensors
    python tests/checkpoint/deepspeed_test.py build/release/bin/headrace
"""
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile

for package in "torch", "deepspeed", "numpy", "safetensors":
    if importlib.util.find_spec(package) is None:
        print(f"skipped: no module {package}; to run it: pip install torch==2.11.0 "
              "deepspeed==0.19.8 numpy safetensors")
        sys.exit(77)

# stage, dtype, ranks, whether torch's Adam or DeepSpeed's, a frozen weight and two groups of
# parameters
RUNS = [(1, "bf16", 1, "torch", False), (2, "bf16", 2, "deepspeed", True),
        (2, "f32", 1, "torch", True), (3, "bf16", 1, "torch", False),
        (3, "bf16", 2, "deepspeed", True), (3, "f32", 1, "torch", False)]
SAVED, NEXT = 3, 5


# ---- in the processes that train ----

def make_engine(stage, dtype, adam, mixed, universal):
    import deepspeed
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(33, 24)
            self.up = torch.nn.Linear(24, 41)
            self.norm = torch.nn.LayerNorm(41)
            self.down = torch.nn.Linear(41, 24, bias=False)
            self.register_buffer("scale", torch.tensor([0.5, 2.0]))

        def forward(self, x, y):
            h = self.norm(self.up(self.embed(x)))
            h = self.down(torch.nn.functional.gelu(h)) * self.scale[1].to(h.dtype)
            logits = torch.nn.functional.linear(h, self.embed.weight)  # tied
            return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    config = {
        "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0,
        "zero_force_ds_cpu_optimizer": adam != "torch",
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01,
                                                  "torch_adam": adam == "torch"}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0,
                              "offload_optimizer": {"device": "cpu", "pin_memory": False}},
    }
    if dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if universal:
        config["checkpoint"] = {"load_universal": True}
    torch.manual_seed(7)
    model = Net()
    parameters = list(model.parameters())
    if mixed:
        model.down.weight.requires_grad_(False)
        parameters = [{"params": [p for p in parameters if p.requires_grad and p.dim() > 1]},
                      {"params": [p for p in parameters if p.requires_grad and p.dim() < 2],
                       "weight_decay": 0.0}]
    return deepspeed.initialize(model=model, config=config, model_parameters=parameters)[0]


def losses(engine, first, count):
    import torch
    found = []
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(100 * step + torch.distributed.get_rank())
        x = torch.randint(0, 33, (4, 16), generator=generator)
        loss = engine(x, (x * 7 + 3) % 33)
        engine.backward(loss)
        engine.step()
        found.append(float(loss.detach()).hex())
    return found


def child(action, folder, stage, dtype, adam, mixed):
    import torch
    torch.set_num_threads(1)
    stage, mixed = int(stage), mixed == "True"
    result = {}
    if action == "train":
        engine = make_engine(stage, dtype, adam, mixed, False)
        result["first"] = losses(engine, 0, SAVED)
        engine.save_checkpoint(folder, tag="saved", client_state={"mine": [1, "two", {3: 4.0}]})
    else:
        for name in "own", "universal", "exported":
            engine = make_engine(stage, dtype, adam, mixed, name != "own")
            path = folder + "/exported" if name == "exported" else folder
            if engine.load_checkpoint(path)[0] is None:
                sys.exit(f"DeepSpeed has not loaded {path}")
            result[name] = losses(engine, SAVED, NEXT)
        engine = make_engine(stage, dtype, adam, mixed, False)
        result["none"] = losses(engine, SAVED, NEXT)
    with open(f"{folder}/{action}.{os.environ['RANK']}.json", "w", encoding="utf-8") as file:
        json.dump(result, file)
    torch.distributed.barrier()
    os._exit(0)  # with several ranks, DeepSpeed's threads end the process by a signal else


# ---- in the test ----

def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


ENVIRONMENT = {**os.environ, "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0",
               "CUDA_VISIBLE_DEVICES": "", "PATH": os.path.dirname(sys.executable) + ":" +
               os.environ.get("PATH", "")}


def run_quietly(words, environment, log):
    with open(log, "ab") as out:
        return subprocess.Popen(words, env=environment, stdout=out, stderr=subprocess.STDOUT)


def show_end(log):
    with open(log, encoding="utf-8", errors="replace") as file:
        print(file.read()[-4000:])


def deepspeed_does(action, folder, run):
    stage, dtype, ranks, adam, mixed = run
    port, log = str(free_port()), folder + "/log"
    children = []
    for rank in range(ranks):
        environment = {**ENVIRONMENT, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                       "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                       "LOCAL_SIZE": str(ranks)}
        words = [sys.executable, __file__, "--child", action, folder, str(stage), dtype, adam,
                 str(mixed)]
        children.append(run_quietly(words, environment, log))
    if any([process.wait() for process in children]):
        show_end(log)
        sys.exit(f"DeepSpeed could not {action} {run}")
    found = []
    for rank in range(ranks):
        with open(f"{folder}/{action}.{rank}.json", encoding="utf-8") as file:
            found.append(json.load(file))
    return found


def to_universal(folder):
    words = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
             folder + "/saved", "--output_folder", folder + "/converted", "--inject_missing_state",
             "--num_extract_workers", "1", "--num_merge_workers", "1"]
    if run_quietly(words, ENVIRONMENT, folder + "/log").wait():
        show_end(folder + "/log")
        sys.exit("ds_to_universal failed")


def headrace(program, *words):
    ran = subprocess.run([program, "checkpoint", *words], stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{words}: {ran.stdout}")
    return ran.stdout


def expect(actual, expected, what):
    if actual != expected:
        sys.exit(f"{what}: {actual} instead of {expected}")


def bits(tensor):
    import torch
    return tensor.contiguous().view(torch.uint8).tolist()


def compare_values(universal, folder):
    """Each value of Headrace's checkpoint with what torch.load() finds; the number of tensors."""
    import torch
    from safetensors.torch import load_file
    weights, states = load_file(folder + "/model.safetensors"), load_file(
        folder + "/optimizer.safetensors")
    with open(folder + "/manifest.json", encoding="utf-8") as file:
        parameters = json.loads(file.readline())["parameters"]
    compared = 0
    for one in parameters:
        name = one["name"]
        if one["frozen"]:
            continue
        for kind, ours in ("fp32", "master"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq"):
            value = torch.load(f"{universal}/zero/{name}/{kind}.pt", weights_only=False)
            value = (value["param"] if isinstance(value, dict) else value).reshape(one["shape"])
            expect(bits(states[f"{ours}.{name}"]), bits(value), f"{ours} of {name}")
            compared += 1
            if kind == "fp32":
                expect(bits(weights[name]), bits(value.to(weights[name].dtype)), name)
        expect((one["step"], int(states["step." + name])), (SAVED, SAVED), "step of " + name)
    return parameters, compared


def expect_frozen(saved, folder, stage, ranks):
    """The frozen weight, which ds_to_universal leaves in the files of the model."""
    import torch
    from safetensors.torch import load_file
    if stage < 3:
        value = torch.load(f"{saved}/mp_rank_00_model_states.pt", weights_only=False)
        value = value["module"]["down.weight"]
    else:
        parts = [torch.load(f"{saved}/zero_pp_rank_{rank}_mp_rank_00_model_states.pt",
                            weights_only=False)["frozen_param_fragments"]["down.weight"]
                 for rank in range(ranks)]
        value = torch.cat(parts)[:24 * 41].reshape(24, 41)
    ours = load_file(folder + "/model.safetensors")["down.weight"]
    expect((str(ours.dtype), bits(ours)), (str(value.dtype), bits(value)), "the frozen weight")


def check_run(program, run):
    stage, dtype, ranks, adam, mixed = run
    with tempfile.TemporaryDirectory() as folder:
        deepspeed_does("train", folder, run)
        to_universal(folder)
        ours = folder + "/ours"
        print(headrace(program, "convert", folder, ours), end="")
        headrace(program, "verify", ours)
        parameters, compared = compare_values(folder + "/converted", ours)
        expect({p["dtype"] for p in parameters}, {"F32" if dtype == "f32" else "BF16"}, "dtypes")
        expect([p["name"] for p in parameters if p["frozen"]], ["down.weight"] if mixed else [],
               "frozen")
        if mixed:
            expect_frozen(folder + "/saved", ours, stage, ranks)
        os.mkdir(folder + "/exported")
        headrace(program, "convert", ours, folder + "/exported/one", "--step-type",
                 "tensor" if adam == "torch" else "number")
        for found in deepspeed_does("resume", folder, run):
            print(found["own"])
            # ZeRO-3 gives the hyperparameters of the first group in its own directory to all
            # groups. Headrace's has none, so those of the configuration stay.
            if stage < 3 or not mixed:
                expect(found["universal"], found["own"], "losses from its universal directory")
            expect(found["exported"], found["own"], "losses from the exported directory")
            if found["none"] == found["own"]:
                sys.exit("an engine that loads nothing has the same losses")
        # There and back again: the same bytes.
        headrace(program, "convert", folder + "/exported", folder + "/again")
        expect(subprocess.call(["diff", "-r", ours, folder + "/again"]), 0, "the way back")
        print(f"ZeRO-{stage}, {dtype}, {ranks} rank(s): {compared} tensors are equal")


def main(program, *numbers):
    for run in [RUNS[int(number)] for number in numbers] or RUNS:
        check_run(program, run)


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
