# SPDX-License-Identifier: Apache-2.0
"""axolotl_test.py FOLDER [TEST...]: the program `axolotl train` on the CPU, with the plugin's two
lines in its configuration. The run's model, on a drive and resumed, has the bytes of one in memory,
and so has that of two ranks. FOLDER lies on a drive.

docs/python.md (In Axolotl) says how to install Axolotl without a GPU.
"""
import importlib.util
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
NEEDED = ("torch", "transformers", "accelerate", "axolotl", "datasets", "trl", "peft", "fire")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if MISSING:
    print(f"not installed: {', '.join(MISSING)}")
    sys.exit(77)
import torch  # noqa: E402

try:
    import axolotl.train  # noqa: F401
except ImportError as error:
    print(f"axolotl cannot be imported: {error}")
    sys.exit(77)

STEPS = 4
CONFIG = {
    "base_model": "model", "tokenizer_type": "AutoTokenizer", "dataset_prepared_path": "prepared",
    "datasets": [{"path": "data.jsonl", "ds_type": "json", "type": "completion"}],
    "sequence_len": 32, "micro_batch_size": 2, "gradient_accumulation_steps": 2,
    "max_steps": STEPS, "optimizer": "adamw_torch", "learning_rate": 0.01,
    "lr_scheduler": "cosine", "logging_steps": 1, "save_steps": STEPS // 2,
    "bf16": False, "fp16": False, "tf32": False, "attn_implementation": "eager",
    "special_tokens": {"pad_token": "<pad>"}}
PLUGIN = {"plugins": ["headrace.axolotl.Plugin"]}

# With torch's build for CUDA and no driver, Axolotl's question whether GPUs reach each other ends
# several processes. This answers it as torch's build for CPUs does.
WITHOUT_CUDA = """
import runpy, sys, torch
def refuse(*_):
    raise AssertionError("Torch not compiled with CUDA enabled")
torch.cuda.can_device_access_peer = refuse
sys.argv = ["axolotl.cli.train", *sys.argv[1:]]
runpy.run_module("axolotl.cli.train", run_name="__main__")
"""


def make_inputs(folder):
    """A Llama with random weights, its tokenizer, and texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    words = [f"w{number}" for number in range(120)]
    known = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", "<pad>", *words])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        pad_token="<pad>").save_pretrained(folder / "model")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        pad_token_id=3, bos_token_id=1, eos_token_id=2)).save_pretrained(folder / "model")
    chosen = random.Random(0)
    (folder / "data.jsonl").write_text("".join(
        json.dumps({"text": " ".join(chosen.choices(words, k=15))}) + "\n" for _ in range(48)))
    (folder / "without_cuda.py").write_text(WITHOUT_CUDA)


class Axolotl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=FOLDER)
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        make_inputs(cls.folder)
        cls.expected = cls.train("memory", {**PLUGIN, "headrace": {}})

    @classmethod
    def train(cls, name, more, ranks=1):
        """Its losses and norms, and the files of the model at the end."""
        config = {**CONFIG, "output_dir": name, **more}
        path = cls.folder / f"{name}.yml"
        path.write_text(json.dumps(config))  # which is YAML, too
        program = ["-m", "axolotl.cli.main", "train", path.name, "--launcher", "python"]
        if ranks > 1:
            program = ["-m", "torch.distributed.run", "--standalone",
                       f"--nproc-per-node={ranks}", "without_cuda.py", path.name]
        ran = subprocess.run(
            [sys.executable, *program], cwd=cls.folder, check=False, capture_output=True,
            text=True, timeout=400, env={
                **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                "HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1", "GLOO_SOCKET_IFNAME": "lo"})
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
        out = cls.folder / name
        state = json.loads((out / f"checkpoint-{STEPS}/trainer_state.json").read_text())
        seen = [(row["loss"], row["grad_norm"]) for row in state["log_history"] if "loss" in row]
        return seen, [(out / place / "model.safetensors").read_bytes()
                      for place in (f"checkpoint-{STEPS}", ".")]

    def test_trains_on_a_drive_and_resumes_with_the_bytes_of_a_run_in_memory(self):
        on_drive = {**PLUGIN, "headrace": {"nvme": str(self.folder)}}
        self.assertEqual(len(self.expected[0]), STEPS)
        self.assertEqual(self.train("drive", on_drive), self.expected)
        shutil.rmtree(self.folder / f"drive/checkpoint-{STEPS}")
        resumed = self.train("drive", {**on_drive,
                                       "resume_from_checkpoint": f"drive/checkpoint-{STEPS // 2}"})
        self.assertEqual(resumed, self.expected)

    def test_trains_as_without_the_plugin(self):
        seen, _ = self.train("without", {})
        torch.testing.assert_close(torch.tensor(seen), torch.tensor(self.expected[0]),
                                   rtol=1e-4, atol=0)

    def test_two_ranks_have_the_bytes_of_one(self):
        _, saved = self.train("ranks", {**PLUGIN, "headrace": {"nvme": str(self.folder)},
                                        "gradient_accumulation_steps": 1}, ranks=2)
        self.assertEqual(saved, self.expected[1])


if __name__ == "__main__":
    FOLDER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
