# SPDX-License-Identifier: Apache-2.0
"""torchtitan_test.py FOLDER: torchtitan's own Trainer with headrace's optimizers, where torchtitan
is installed: losses, norms, rates and weights of a run with its state on a drive, and of one that
was killed and resumed, are those of a run in memory. FOLDER lies on a drive. There are two ranks on
the CPU, as what torchtitan takes for a GPU.

To run it: pip install torchtitan==0.2.2
"""
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
try:
    import torch
except ImportError as missing:
    print(f"torch cannot be imported: {missing}")
    sys.exit(77)

STEPS, SAVED, KILLED = 6, 2, 5  # a checkpoint every SAVED steps; the newest when KILLED is 4
# 0.2 reads a file, and 0.3 arguments.
SETTINGS = """
[job]
dump_folder = "{folder}"
{module}
[model]
name = "tiny"
flavor = "tiny"
[training]
local_batch_size = 2
global_batch_size = 8
seq_len = 16
steps = {steps}
dtype = "{dtype}"
[metrics]
log_freq = 1
[debug]
seed = 1
[checkpoint]
enable = true
interval = {saved}
[lr_scheduler]
warmup_steps = 2
[optimizer]
lr = 1e-2
{place}
"""
ARGUMENTS = """
--module torchtitan_test --config tiny --dump_folder {folder} --checkpoint.enable
--checkpoint.interval {saved} --training.local_batch_size 2 --training.global_batch_size 8
--training.seq_len 16 --training.steps {steps} --training.dtype {dtype}
--training.disable_cuda_graphs --debug.seed 1
"""


def take_cpu_for_a_gpu():
    properties = types.SimpleNamespace(total_memory=1 << 30)
    torch._utils._get_available_device_type = lambda: "cpu"
    for name, function in (("get_device_name", lambda _device: "CPU"),
                           ("get_device_properties", lambda _device: properties),
                           ("current_device", lambda: 0),
                           ("memory_stats", lambda _device: {}),
                           ("reset_peak_memory_stats", lambda: None),
                           ("empty_cache", lambda: None)):
        setattr(torch.cpu, name, function)


class Rows:
    """A loader of random rows, which goes on where it was."""

    def __init__(self, dp_rank, **_more):
        self.rank, self.count = dp_rank, 0

    def __iter__(self):
        while True:
            self.count += 1
            generator = torch.Generator().manual_seed(100 * self.count + self.rank)
            rows = torch.randint(0, 128, (2, 17), generator=generator)
            yield {"input": rows[:, :-1]}, rows[:, 1:]

    def state_dict(self):
        return {f"count{self.rank}": self.count}

    def load_state_dict(self, state):
        self.count = state[f"count{self.rank}"]


def is_0_2():
    return importlib.metadata.version("torchtitan").startswith("0.2")


def on_gloo(parallelize):
    """It has sums alone."""
    def parallelized(*arguments, **named):
        model = parallelize(*arguments, **named)
        for module in model.modules():
            if isinstance(module, torch.distributed.fsdp.FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        return model

    return parallelized


def tiny():
    """A configuration of torchtitan 0.3."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel
    config = llama3_debugmodel()
    spec = config.model_spec
    spec.parallelize_fn = on_gloo(spec.parallelize_fn)
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()  # on the CPU
    config.optimizer.param_groups[0].optimizer_kwargs["lr"] = 1e-2
    return config


def trainer_of(settings):
    from torchtitan.config import ConfigManager
    if is_0_2():
        return trainer_of_0_2(ConfigManager, settings)
    with open(settings, encoding="utf-8") as file:
        config = ConfigManager().parse_args(json.load(file))
    config.tokenizer = types.SimpleNamespace(build=lambda **_named: None)
    config.dataloader = types.SimpleNamespace(build=Rows)
    return config.build()


def trainer_of_0_2(ConfigManager, settings):
    from torchtitan.models.llama3.model.args import TransformerModelArgs
    from torchtitan.protocols.train_spec import get_train_spec, register_train_spec
    from torchtitan.train import Trainer
    tiny = TransformerModelArgs(dim=64, n_layers=2, n_heads=4, vocab_size=128, multiple_of=32)
    llama = get_train_spec("llama3")
    register_train_spec("tiny", dataclasses.replace(
        llama, model_args={"tiny": tiny}, parallelize_fn=on_gloo(llama.parallelize_fn),
        build_dataloader_fn=Rows, build_tokenizer_fn=None, state_dict_adapter=None))
    return Trainer(ConfigManager().parse_args(["--job.config_file", settings]))


def run_rank(settings, killed):
    """Prints a line for each step, and one of the weights."""
    take_cpu_for_a_gpu()
    torch.set_num_threads(1)
    trainer = trainer_of(settings)

    def log(step, loss, most, norm, extra_metrics):
        rates = [value for name, value in extra_metrics.items() if name.startswith("lr")]
        print(json.dumps([step, float(loss), float(most), norm, *rates]), flush=True)
        if step == killed:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.metrics_processor.log = log
    trainer.train()
    weights = hashlib.sha256()
    for parameter in trainer.model_parts[0].parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        weights.update(whole.detach().contiguous().view(torch.uint8).numpy().tobytes())
    kinds = {f"{type(one).__module__}.{type(one).__name__}" for one in trainer.optimizers}
    drives = [part["nvme_bytes"] for one in trainer.optimizers if hasattr(one, "plan")
              for part in one.plan()]
    print(json.dumps([weights.hexdigest(), sorted(kinds), max(drives, default=0)]), flush=True)
    trainer.close()
    torch.distributed.destroy_process_group()


@unittest.skipUnless(importlib.util.find_spec("torchtitan"), "torchtitan is needed")
class Torchtitan(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def settings(self, name, place, dtype="float32", **more):
        """place: "torch", or headrace's: "memory" or "nvme". more: beside nvme, and
        implementation, which is torchtitan's."""
        file = self.folder / name
        own = {"nvme": str(self.folder)} if place == "nvme" else {}
        given = {"folder": self.folder / (name + "-run"), "steps": STEPS, "saved": SAVED,
                 "dtype": dtype}
        if is_0_2():
            module = 'custom_config_module = "headrace.torchtitan"'
            lines = [f"{key} = {json.dumps(value)}" for key, value in {**own, **more}.items()]
            text = SETTINGS.format(**given, module=module if place != "torch" else "",
                                   place="\n".join(lines))
        else:
            words = ARGUMENTS.format(**given).split()
            if "implementation" in more:
                words += ["--optimizer.implementation", more.pop("implementation")]
            if place != "torch":
                words += ["--override.imports",
                          f"headrace.torchtitan.optimizer={json.dumps({**own, **more})}"]
            text = json.dumps(words)
        file.write_text(text, encoding="utf-8")
        return str(file)

    def run_ranks(self, settings, ranks, killed=0):
        """Of each rank, its lines."""
        ends = self.ends_of(settings, ranks, killed)
        for code, _, error in ends:
            self.assertEqual(code, -signal.SIGKILL if killed else 0, error[-4000:])
        return [[json.loads(line) for line in out.splitlines() if line.startswith("[")]
                for _, out, _ in ends]

    @staticmethod
    def ends_of(settings, ranks=1, killed=0):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        started = [subprocess.Popen(
            [sys.executable, __file__, "rank", settings, str(killed)], text=True,
            env={**os.environ, **own, "RANK": str(rank), "LOCAL_RANK": "0"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(ranks)]
        texts = [one.communicate(timeout=300) for one in started]
        return [(one.returncode, *text) for one, text in zip(started, texts)]

    def check(self, ranks, dtype):
        whole = self.run_ranks(self.settings("memory", "memory", dtype), ranks)
        for lines in whole:
            self.assertEqual([line[0] for line in lines[:-1]], list(range(1, STEPS + 1)))
            self.assertEqual(lines[-1][1:], [["headrace.torch._rules.AdamW"], 0])
        on_drive = self.run_ranks(self.settings("nvme", "nvme", dtype), ranks)
        ended = self.settings("killed", "nvme", dtype)
        before = self.run_ranks(ended, ranks, KILLED)
        after = self.run_ranks(ended, ranks)
        for rank, lines in enumerate(whole):
            self.assertEqual(on_drive[rank][:-1], lines[:-1])
            self.assertEqual(before[rank], lines[:KILLED])
            self.assertEqual(after[rank][:-1], lines[4:-1])
            for other in (on_drive, after):
                self.assertEqual(other[rank][-1][0], lines[-1][0])
                self.assertGreater(other[rank][-1][2], 0)
        return whole

    def test_losses_resume_and_weights_are_those_in_memory(self):
        whole = self.check(2, "float32")
        torchs = self.run_ranks(self.settings("torch", "torch"), 2)
        for ours, theirs in zip(whole, torchs):
            self.assertEqual(theirs[-1][1], ["torch.optim.adamw.AdamW"])
            for one, other in zip(ours[:-1], theirs[:-1]):
                self.assertEqual(len(one), len(other))
                for value, expected in zip(one, other):
                    self.assertAlmostEqual(value, expected, delta=2e-3)

    def test_of_16_bits_too(self):
        self.check(1, "bfloat16")

    def test_a_budget_keeps_state_in_memory(self):
        lines, = self.run_ranks(self.settings("budget", "nvme", host_budget="1GiB"), 1)
        self.assertEqual(lines[-1][1:], [["headrace.torch._rules.AdamW"], 0])

    def test_what_cannot_be_is_refused(self):
        of_its_own = ({"early_step_in_backward": True}, "Unsupported: optimizer.early_step") \
            if is_0_2() else ({"implementation": "fused_opt_states_bf16"}, "Unsupported: optimizer")
        for more, words in (of_its_own, ({"host_buget": "1MiB"}, "host_buget"),
                            ({"host_budget": "x"}, "ConfigError: config: headrace.host_budget")):
            settings = self.settings("refused", "nvme", **more)
            (code, _, error), = self.ends_of(settings)
            self.assertNotEqual(code, 0)
            self.assertIn(words, error)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        run_rank(sys.argv[2], int(sys.argv[3]))
        sys.exit()
    FOLDER = os.path.abspath(sys.argv[1])
    if importlib.util.find_spec("torchtitan"):
        print("torchtitan", importlib.metadata.version("torchtitan"))
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
