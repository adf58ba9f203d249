# SPDX-License-Identifier: Apache-2.0
"""trainers_ranks_test.py FOLDER [TEST...]: trainers that people use, on two ranks over Gloo, each
where it is installed. Two ranks have the losses, norms and weights of one rank that makes as many
micro-batches, to the last bit, and so has a run that was ended and resumed."""
import hashlib
import importlib.util
import json
import logging
import os
import pathlib
import socket
import sys
import tempfile
import traceback
import unittest
import warnings

sys.dont_write_bytecode = True
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
warnings.filterwarnings("ignore")
try:
    import torch
    import torch.distributed as dist
except ImportError as missing:
    print(f"torch cannot be imported: {missing}")
    sys.exit(77)
import headrace  # noqa: E402
import headrace.torch  # noqa: E402

MICRO_BATCHES = 4  # in a step, of all ranks
STEPS = 6


def has(*packages):
    return all(importlib.util.find_spec(package) for package in packages)


def llama(dtype=torch.float32):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1)).to(dtype)


def rows(count):
    return torch.randint(0, 64, (count, 8), generator=torch.Generator().manual_seed(1))


def bits_of(tensors):
    return {name: hashlib.sha256(
        one.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
        for name, one in tensors.items()}


class Rank:
    """This process, alone or one of several."""

    def __init__(self, folder, rank, ranks):
        self.folder, self.rank, self.ranks = folder, rank, ranks
        self.losses = []

    def place(self, where):
        folder = pathlib.Path(self.folder)
        return {"memory": {}, "nvme": {"nvme": str(folder)},
                "snapshots": {"nvme": str(folder), "snapshots": str(folder / "snapshots")}}[where]

    def watch(self, model):
        """Notes the losses of training."""
        def note(module, _given, out):
            if module.training:
                self.losses.append(out.loss.item())

        model.register_forward_hook(note)
        return model

    def all_losses(self):
        """In the order of micro-batches."""
        if self.ranks == 1:
            return self.losses
        told = [None] * self.ranks
        dist.all_gather_object(told, self.losses)
        return [one for turn in zip(*told) for one in turn]


# ---- Hugging Face's Trainer, and Axolotl's plugin ----
def hf_trainer(rank, name, stop=None, dtype=torch.float32, **more):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_more):
            if state.global_step == stop:
                control.should_training_stop = True

    data = [{"input_ids": row, "labels": row} for row in rows(36)]  # an epoch is 4.5 steps
    arguments = TrainingArguments(
        output_dir=f"{rank.folder}/{name}-{rank.ranks}", per_device_train_batch_size=2,
        gradient_accumulation_steps=MICRO_BATCHES // rank.ranks, max_steps=STEPS,
        report_to=[], logging_steps=1, save_steps=STEPS // 2,
        disable_tqdm=True, learning_rate=1e-2, weight_decay=0.1, max_grad_norm=1.0,
        optim="adamw_torch", lr_scheduler_type="cosine", **{"use_cpu": True, **more})
    trainer = Trainer(model=rank.watch(llama(dtype)), args=arguments, train_dataset=data,
                      eval_dataset=data[:16], callbacks=[Stop()])
    trainer.folder = arguments.output_dir
    return trainer


def seen_by_hf(rank, trainer):
    history = [(row["grad_norm"], row["learning_rate"])
               for row in trainer.state.log_history if "loss" in row]
    return [rank.all_losses(), history, bits_of(trainer.model.state_dict())]


def hf(rank, where="memory", dtype=torch.float32, **more):
    import headrace.transformers
    name = f"hf-{where}-{dtype}"
    trainer = hf_trainer(rank, name, dtype=dtype, **more)
    headrace.transformers.offload(trainer, **rank.place(where))
    trainer.train()
    seen = seen_by_hf(rank, trainer)
    seen.append(round(trainer.evaluate()["eval_loss"], 4))  # ranks add up in another order
    trainer.optimizer.optimizer.close()
    return seen


def hf_resumes(rank, where="nvme"):
    import headrace.transformers
    for stop in (STEPS // 2, None):
        rank.losses.clear()
        trainer = hf_trainer(rank, f"resumes-{where}", stop)
        headrace.transformers.offload(trainer, **rank.place(where))
        trainer.train(resume_from_checkpoint=stop is None)
        seen = seen_by_hf(rank, trainer)
        trainer.optimizer.optimizer.close()
    return seen


def hf_saves(rank):
    """What is saved at the end, and the best model is loaded."""
    import headrace.transformers
    from safetensors.torch import load_file
    trainer = hf_trainer(rank, "best", eval_strategy="steps", eval_steps=STEPS // 2,
                         load_best_model_at_end=True)
    headrace.transformers.offload(trainer)
    trainer.train()
    # As push_to_hub=True does, without the hub: it saves once more, within the call.
    trainer.args.push_to_hub, pushed = True, []
    trainer.push_to_hub = lambda **_named: pushed.append(trainer.save_model(_internal_call=True))
    trainer.save_model(f"{trainer.folder}/last")
    rank.all_losses()  # after the first rank has written it
    saved = bits_of(load_file(f"{trainer.folder}/last/model.safetensors"))
    state = bits_of(trainer.model.state_dict())
    trainer.optimizer.optimizer.close()
    again = bits_of(load_file(f"{trainer.folder}/model.safetensors"))
    return [saved, again, state, len(pushed), sorted(os.listdir(trainer.folder))]


def axolotl(rank):
    from axolotl.integrations.base import PluginManager
    from safetensors.torch import load_file
    plugins = PluginManager.get_instance()
    plugins.register("headrace.axolotl.Plugin")
    trainer = hf_trainer(rank, "axolotl", dtype=torch.bfloat16)
    plugins.post_trainer_create({"headrace": rank.place("nvme")}, trainer)
    trainer.train()
    plugins.post_train({}, trainer.model)
    losses = rank.all_losses()
    if rank.rank == 0:  # as Axolotl does
        trainer.model.save_pretrained(f"{trainer.folder}/final")
    plugins.post_train({}, trainer.model)
    rank.all_losses()
    return [losses, bits_of(load_file(f"{trainer.folder}/final/model.safetensors")),
            bits_of(trainer.model.state_dict())]


def wrapped(rank, where="memory"):
    """An optimizer of headrace.torch; DistributedDataParallel wraps the model."""
    trainer = hf_trainer(rank, f"wrapped-{where}")
    trainer.optimizer = headrace.torch.AdamW(trainer.model.parameters(), lr=1e-2,
                                             **rank.place(where))
    trainer.train()
    seen = seen_by_hf(rank, trainer)
    trainer.optimizer.optimizer.close()
    return seen


def refuses(rank):
    """An optimizer that offload() returned, without what lets the ranks save and clip together."""
    from transformers import Trainer
    args, told = hf_trainer(rank, "refuses").args, []
    model = llama()
    _, optimizer = headrace.offload(model, lr=1e-2)
    for train in (lambda: Trainer(model=model, args=args, optimizers=(optimizer, None),
                                  train_dataset=[{"input_ids": row, "labels": row}
                                                 for row in rows(8)]).train(),
                  lambda: accelerated(model, optimizer)):
        try:
            train()
        except Exception as error:
            told.append(str(error))
    optimizer.close()
    return told


def stays_apart(rank):
    """Accelerate joins no processes on the CPU unless it is told to."""
    import headrace.transformers
    trainer = hf_trainer(rank, "apart", use_cpu=False)
    headrace.transformers.offload(trainer)
    try:
        trainer.train()
    except headrace.WrongState as error:
        return str(error)


def accelerated(model, optimizer):
    from accelerate import Accelerator
    Accelerator(cpu=True).prepare(model, optimizer)


def accelerate(rank):
    """A loop of its own. The model is not given to prepare()."""
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES // rank.ranks)
    model = llama(torch.bfloat16)
    _, optimizer = headrace.offload(
        model, {"gradient_accumulation_steps": MICRO_BATCHES // rank.ranks}, lr=1e-2,
        **rank.place("nvme"))
    loader = torch.utils.data.DataLoader(rows(24), batch_size=1)
    prepared, loader = accelerator.prepare(optimizer, loader)
    norms = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
            rank.losses.append(loss.item())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(optimizer.clip_in_step(1.0))
            prepared.step()
            prepared.zero_grad()
    accelerator.save_state(f"{rank.folder}/accelerate-{rank.ranks}")
    weights = bits_of(model.state_dict())
    optimizer.close()
    return [rank.all_losses(), [norm.item() for norm in norms], weights]


# ---- Lightning ----
def lightning_fit(rank, where, folder, stop=None, resume=False):
    import headrace.lightning
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.norms = llama(), []

        def training_step(self, batch, _index):
            loss = self.model(input_ids=batch, labels=batch, use_cache=False).loss
            rank.losses.append(loss.item())
            return loss

        def validation_step(self, batch, _index):
            self.log("checked", self.training_step(batch, 0).detach(), sync_dist=True)
            rank.losses.pop()

        def on_train_batch_end(self, *_):
            self.norms.append(self.trainer.strategy.optimizers[0].gradient_norm)

        def train_dataloader(self):
            """Lightning's own sampler would shuffle."""
            mine = rows(MICRO_BATCHES)[self.trainer.global_rank::rank.ranks]
            return torch.utils.data.DataLoader(mine, batch_size=1)

        def val_dataloader(self):
            return torch.utils.data.DataLoader(rows(MICRO_BATCHES), batch_size=1)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    model, trainer = Model(), lightning.Trainer(
        strategy=headrace.lightning.Strategy(**rank.place(where)), accelerator="cpu",
        devices=rank.ranks, max_epochs=stop or STEPS, gradient_clip_val=1.0, logger=False,
        use_distributed_sampler=False, accumulate_grad_batches=MICRO_BATCHES // rank.ranks,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(dirpath=folder, save_last=True, save_top_k=0)])
    trainer.fit(model, ckpt_path=f"{folder}/last.ckpt" if resume else None)
    seen = [rank.all_losses(), bits_of(model.model.state_dict()),
            model.norms[MICRO_BATCHES // rank.ranks - 1::MICRO_BATCHES // rank.ranks],
            round(trainer.callback_metrics["checked"].item(), 4)]
    trainer.strategy.optimizers[0].restore()
    return [*seen, bits_of(model.model.state_dict())]


def fit(rank, where="memory"):
    return lightning_fit(rank, where, f"{rank.folder}/fit-{where}-{rank.ranks}")


def fit_resumes(rank, where="nvme"):
    folder = f"{rank.folder}/resumes-{where}-{rank.ranks}"
    lightning_fit(rank, where, folder, stop=STEPS // 2)
    rank.losses.clear()
    return lightning_fit(rank, where, folder, resume=True)


SCENARIOS = {
    "hf": hf, "hf nvme": lambda rank: hf(rank, "nvme"),
    "hf bf16": lambda rank: hf(rank, "nvme", torch.bfloat16),
    "hf checkpointing": lambda rank: hf(rank, "nvme", gradient_checkpointing=True),
    "hf resumes": hf_resumes,
    "hf resumes from snapshots": lambda rank: hf_resumes(rank, "snapshots"),
    "hf saves": hf_saves, "accelerate": accelerate,
    "wrapped": wrapped, "wrapped nvme": lambda rank: wrapped(rank, "nvme"),
    "axolotl": axolotl, "refuses": refuses, "stays_apart": stays_apart, "fit": fit,
    "fit nvme": lambda rank: fit(rank, "nvme"), "fit resumes": fit_resumes,
    "fit resumes from snapshots": lambda rank: fit_resumes(rank, "snapshots")}


# ---- worlds ----
def run_rank(folder, rank, ranks, port, names):
    """In a forked child, since imports take longer than most worlds."""
    if ranks > 1:  # as torchrun does
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                       "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(port), "GROUP_RANK": "0",
                       "TORCHELASTIC_RUN_ID": "test"}
    results = {name: SCENARIOS[name](Rank(folder, rank, ranks)) for name in names}
    pathlib.Path(folder, f"results{rank}").write_text(json.dumps(results), "utf-8")
    if dist.is_initialized():
        dist.destroy_process_group()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def results(self, ranks, *names):
        """Of each rank."""
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        children = []
        for rank in range(ranks):
            children.append(os.fork())
            if children[-1] == 0:
                code = 1
                try:
                    self.redirect(rank)
                    run_rank(self.folder, rank, ranks, port, names)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                os._exit(code)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        errors = [pathlib.Path(self.folder, f"err{rank}").read_text("utf-8")[-3000:]
                  for rank in range(ranks)]
        self.assertEqual(codes, [0] * ranks, "\n".join(errors))
        return [json.loads(pathlib.Path(self.folder, f"results{rank}").read_text("utf-8"))
                for rank in range(ranks)]

    def redirect(self, rank):
        for number in (1, 2):
            os.dup2(os.open(f"{self.folder}/err{rank}",
                            os.O_CREAT | os.O_APPEND | os.O_WRONLY), number)

    def assert_as_alone(self, *names):
        alone = self.results(1, *names)[0]
        for rank, result in enumerate(self.results(2, *names)):
            for name in names:
                with self.subTest(name, rank=rank):
                    self.assertEqual(result[name], alone[name])
        return alone


@unittest.skipUnless(has("transformers", "accelerate"), "transformers and accelerate are needed")
class HuggingFace(Case):
    def test_is_that_of_one_rank_wherever_the_values_are(self):
        alone = self.assert_as_alone("hf", "hf nvme", "hf bf16", "hf checkpointing")
        self.assertEqual(len(alone["hf"][0]), (STEPS - 1) * MICRO_BATCHES + MICRO_BATCHES // 2)
        for name in ("hf nvme", "hf checkpointing"):
            self.assertEqual(alone[name], alone["hf"])

    def test_resumes_and_saves(self):
        alone = self.assert_as_alone("hf", "hf resumes", "hf resumes from snapshots", "hf saves")
        half = STEPS // 2 * MICRO_BATCHES
        for name in ("hf resumes", "hf resumes from snapshots"):
            losses, _, weights = alone[name]
            self.assertEqual((losses, weights), (alone["hf"][0][half:], alone["hf"][2]))

    def test_wraps_the_model_of_an_optimizer_of_headrace_torch(self):
        one, other = self.results(2, "wrapped", "wrapped nvme")
        self.assertEqual(one, other)
        self.assertEqual(one["wrapped"], one["wrapped nvme"])

    def test_loop_of_accelerate_too(self):
        self.assert_as_alone("accelerate")

    def test_refuses_processes_that_are_not_joined(self):
        for result in self.results(2, "stays_apart"):
            self.assertRegex(result["stays_apart"], "2 processes, and .* joined 1; .*use_cpu=True")

    def test_refuses_an_optimizer_alone(self):
        for result in self.results(2, "refuses"):
            for told in result["refuses"]:
                self.assertRegex(told, "headrace.transformers.offload")
            self.assertEqual(len(result["refuses"]), 2)


@unittest.skipUnless(has("axolotl", "transformers", "accelerate", "peft"),
                     "axolotl, transformers, accelerate and peft are needed")
class Axolotl(Case):
    def test_plugin_is_that_of_one_rank(self):
        self.assert_as_alone("axolotl")


@unittest.skipUnless(has("transformers", "lightning"), "transformers and lightning are needed")
class Lightning(Case):
    def test_is_that_of_one_rank_wherever_the_values_are(self):
        alone = self.assert_as_alone("fit", "fit nvme")
        self.assertEqual(alone["fit"], alone["fit nvme"])

    def test_resumes(self):
        alone = self.assert_as_alone("fit", "fit resumes", "fit resumes from snapshots")
        half = STEPS // 2 * MICRO_BATCHES
        for name in ("fit resumes", "fit resumes from snapshots"):
            self.assertEqual(alone[name][0], alone["fit"][0][half:])
            self.assertEqual(alone[name][1], alone["fit"][1])


if __name__ == "__main__":
    FOLDER = os.path.abspath(sys.argv.pop(1))
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if has("transformers"):
        import transformers
        transformers.logging.set_verbosity_error()
        assert transformers.LlamaForCausalLM and transformers.Trainer  # imported here
    if has("lightning"):
        import lightning  # noqa: F401
    unittest.main()
