# SPDX-License-Identifier: Apache-2.0
"""trainers_test.py FOLDER: headrace.torch.AdamW and headrace.offload() in the trainers that people
use, each where it is installed: a run with its state, or all of its model, on a drive has the
losses, norms and weights of the same run in memory, and so has one that was ended and resumed.
FOLDER lies on a drive. With
HEADRACE_TEST_DEVICE=cuda, the models are on a GPU.

To run all of it: pip install transformers==5.24.0 accelerate==1.15.0 lightning==2.6.6
"""
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest
import warnings

sys.dont_write_bytecode = True
try:
    import torch
except ImportError as missing:
    print(f"torch cannot be imported: {missing}")
    sys.exit(77)
import headrace  # noqa: E402
from headrace.torch import AdamW  # noqa: E402

PACKAGES = ("torch", "transformers", "accelerate", "lightning")
STEPS = 6
DEVICE = os.environ.get("HEADRACE_TEST_DEVICE", "cpu")


def has(*packages):
    return all(importlib.util.find_spec(package) for package in packages)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2))


def rows(count):
    return torch.randint(0, 128, (count, 16), generator=torch.Generator().manual_seed(1))


class Trainers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=FOLDER)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.opened = []
        self.addCleanup(lambda: [optimizer.close() for optimizer in self.opened])

        nvme = {"nvme": str(self.folder)}
        self.options = {"memory": {}, "nvme": nvme,
                        "snapshots": {**nvme, "snapshots": str(self.folder / "snapshots")}}

    def adamw(self, model, place):
        options = self.options
        if place.startswith("offload"):
            made = headrace.offload(model, lr=1e-2, **options[place.partition("-")[2]])[1]
        else:
            made = AdamW(model.parameters(), lr=1e-2, **options[place])
        self.opened.append(made)
        return made

    def check(self, run):
        """run(place, folder, stop, resume) -> what is compared, and the weights."""
        self.compare(run, "memory", ("nvme", "snapshots"))

    def check_offload(self, run):
        if DEVICE != "cpu":
            self.skipTest("offload() binds parameters on the CPU")
        self.compare(run, "offload-memory", ("offload-nvme", "offload-snapshots"))

    def compare(self, run, first, others):
        whole = run(first, self.folder / "whole", None, False)
        self.assertGreaterEqual(len(whole[0]), STEPS)
        for place in others:
            with self.subTest(place=place):
                self.assert_same(run(place, self.folder / place, None, False), whole)
                ended = self.folder / (place + "-ended")
                run(place, ended, STEPS // 2, False)
                resumed = run(place, ended, None, True)
                self.assertEqual(resumed[0], whole[0][-len(resumed[0]):])
                self.assert_same_weights(resumed[1], whole[1])

    def assert_same(self, one, other):
        self.assertEqual(one[0], other[0])
        self.assert_same_weights(one[1], other[1])

    def assert_same_weights(self, one, other):
        self.assertEqual(set(one), set(other))
        for name, values in one.items():
            self.assertTrue(torch.equal(values, other[name]), name)


def weights_of(model):
    return {name: values.clone() for name, values in model.state_dict().items()}


@unittest.skipUnless(has("transformers", "accelerate"), "transformers and accelerate are needed")
class HuggingFace(Trainers):
    def run_trainer(self, place, folder, stop, resume):
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Stop(TrainerCallback):
            def on_step_end(self, args, state, control, **_more):
                control.should_training_stop = state.global_step == stop

        model = llama()
        data = [{"input_ids": row, "labels": row} for row in rows(24)]
        arguments = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2,
            max_steps=STEPS, use_cpu=DEVICE == "cpu", report_to=[], logging_steps=1,
            save_steps=STEPS // 2, disable_tqdm=True, max_grad_norm=1.0,
            gradient_checkpointing=True, lr_scheduler_type="cosine", warmup_steps=2)
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Stop()],
                          optimizers=(self.adamw(model, place), None))
        trainer.train(resume_from_checkpoint=resume)
        history = [(row["loss"], row["grad_norm"], row["learning_rate"])
                   for row in trainer.state.log_history if "loss" in row]
        return history, weights_of(model)

    def test_trainer(self):
        self.check(self.run_trainer)

    def test_trainer_of_an_offloaded_model(self):
        self.check_offload(self.run_trainer)

    def test_loads_the_best_model_at_the_end(self):
        from transformers import Trainer, TrainingArguments
        model = llama()
        optimizer = self.adamw(model, "offload-nvme" if DEVICE == "cpu" else "nvme")
        data = [{"input_ids": row, "labels": row} for row in rows(8)]
        arguments = TrainingArguments(
            output_dir=str(self.folder / "best"), per_device_train_batch_size=2, max_steps=3,
            use_cpu=DEVICE == "cpu", report_to=[], eval_strategy="steps", eval_steps=1,
            save_steps=1, load_best_model_at_end=True, greater_is_better=True, disable_tqdm=True)
        trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data,
                          optimizers=(optimizer, None))
        trainer.train()
        losses = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
        number = 1 + losses.index(max(losses))
        self.assertLess(number, 3, "the best model is the last one, so nothing had to be loaded")
        best = type(model).from_pretrained(self.folder / f"best/checkpoint-{number}")
        self.assert_same_weights(weights_of(model), weights_of(best))

    def test_saves_of_all_ranks_lie_in_each_other_and_keep_a_state_dict_of_the_programs(self):
        from headrace.transformers import saved_by_all
        model, own = torch.nn.Linear(1, 1), lambda *_, **__: {"adapter": 1}
        model.state_dict = own
        with saved_by_all(model):
            with saved_by_all(model):
                model.state_dict().clear()  # as save_pretrained() does
            self.assertEqual(model.state_dict(), own())
        self.assertIs(model.state_dict, own)

    def test_its_checkpoints_hold_a_reference_where_there_are_snapshots(self):
        self.run_trainer("snapshots", self.folder / "run", 3, False)
        sizes = [(self.folder / "run/checkpoint-3" / name).stat().st_size
                 for name in ("optimizer.pt", "model.safetensors")]
        self.assertLess(sizes[0], sizes[1] / 20)


@unittest.skipUnless(has("transformers", "accelerate"), "transformers and accelerate are needed")
class Accelerate(Trainers):
    def run_loop(self, place, folder, stop, resume):
        from accelerate import Accelerator
        from accelerate.utils import set_seed
        set_seed(3)
        accelerator = Accelerator(cpu=DEVICE == "cpu", gradient_accumulation_steps=2)
        loader = torch.utils.data.DataLoader(rows(8 * STEPS), batch_size=4)
        model = llama()
        optimizer = self.adamw(model, place)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader,
                                                                  scheduler)
        first = 0
        if resume:
            accelerator.load_state(str(folder))
            first = STEPS // 2
        seen = []
        batches = accelerator.skip_first_batches(loader, 2 * first)
        for number, batch in enumerate(batches, 2 * first):
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch, use_cache=False).loss
                accelerator.backward(loss)
                norm = None
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0).item()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            seen.append((loss.item(), norm))
            if stop and number + 1 == 2 * stop:
                accelerator.save_state(str(folder))
                break
        return seen, weights_of(accelerator.unwrap_model(model))

    def test_its_loop(self):
        self.check(self.run_loop)

    def test_its_loop_with_an_offloaded_model(self):
        self.check_offload(self.run_loop)


@unittest.skipUnless(has("transformers", "lightning"), "transformers and lightning are needed")
class Lightning(Trainers):
    def run_fit(self, place, folder, stop, resume):
        import lightning
        from lightning.pytorch.callbacks import ModelCheckpoint
        case = self

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model, self.seen = llama(), []

            def training_step(self, batch, _index):
                loss = self.model(input_ids=batch, labels=batch, use_cache=False).loss
                self.seen.append(loss.item())
                return loss

            def configure_optimizers(self):
                optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2) \
                    if place.startswith("strategy") else case.adamw(self.model, place)
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

        # An epoch is one step.
        trainer = lightning.Trainer(
            strategy=self.strategy(place),
            accelerator=DEVICE, devices=1, max_epochs=stop or STEPS, gradient_clip_val=1.0,
            accumulate_grad_batches=2, logger=False, enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[ModelCheckpoint(dirpath=folder, save_last=True, save_top_k=0)])
        model = Model()
        trainer.fit(model, torch.utils.data.DataLoader(rows(8), batch_size=4),
                    ckpt_path=str(folder / "last.ckpt") if resume else None)
        return model.seen, weights_of(model.model)

    def strategy(self, place):
        if not place.startswith("strategy"):
            return "auto"
        import headrace.lightning
        where = place.partition("-")[2]
        self.assertNotIn("headrace.deepspeed", sys.modules)  # it would change DeepSpeed
        return headrace.lightning.Strategy(**self.options[where]) if where else "headrace"

    def test_the_strategy_and_the_call_take_the_arguments_that_the_page_names(self):
        import headrace.lightning
        import headrace.transformers
        page = pathlib.Path(__file__).resolve().parents[2] / "docs/python.md"
        self.assertIn("`config`, `nvme`, `host_budget`, `blocks` and `snapshots` of `offload()`",
                      page.read_text(encoding="utf-8"))
        named = {"config", "nvme", "host_budget", "blocks", "snapshots"}
        for taker, others in ((headrace.transformers.offload, {"trainer"}),
                              (headrace.lightning.Strategy, {"of_lightning"})):
            self.assertEqual(set(inspect.signature(taker).parameters), named | others)

    def test_fit(self):
        self.check(self.run_fit)

    def test_fit_of_an_offloaded_model(self):
        self.check_offload(self.run_fit)

    def test_fit_by_the_strategy(self):
        self.compare(self.run_fit, "strategy", ("strategy-nvme", "strategy-snapshots"))
        if DEVICE == "cpu":  # torch clips by a norm in f32, and the strategy in f64
            by_strategy, other = (self.run_fit(place, self.folder / place, None, False)[0]
                                  for place in ("strategy", "offload-memory"))
            torch.testing.assert_close(by_strategy, other, rtol=1e-5, atol=0)

    def test_the_strategy_fits_again_evaluates_and_refuses_two_optimizers(self):
        import headrace.lightning
        import lightning

        class Model(lightning.LightningModule):
            def __init__(self, optimizers):
                super().__init__()
                self.model, self.optimizers_wanted, self.losses = llama(), optimizers, []

            def training_step(self, batch, _index):
                return self.model(input_ids=batch, labels=batch, use_cache=False).loss

            def validation_step(self, batch, _index):
                self.losses.append(self.training_step(batch, _index).item())

            def configure_optimizers(self):
                return [torch.optim.AdamW(self.model.parameters(), lr=1e-3)
                        for _ in range(self.optimizers_wanted)]

        def trainer():
            return lightning.Trainer(
                accelerator=DEVICE, devices=1, max_epochs=1, logger=False, barebones=True,
                strategy=headrace.lightning.Strategy(nvme=str(self.folder)))

        loader = torch.utils.data.DataLoader(rows(8), batch_size=4)
        model, one = Model(1), trainer()
        one.fit(model, loader)
        one.validate(model, loader, verbose=False)
        one.fit_loop.max_epochs = 2
        one.fit(model, loader)
        one.validate(model, loader, verbose=False)
        self.assertLess(sum(model.losses[2:]), sum(model.losses[:2]))
        with self.assertRaisesRegex(headrace.Unsupported, "returned 2 optimizers"):
            two = Model(2)
            two.automatic_optimization = False
            trainer().fit(two, loader)


@unittest.skipUnless(has("axolotl", "transformers", "accelerate", "peft"),
                     "axolotl, transformers, accelerate and peft are needed")
class Axolotl(Trainers):
    """Its plugins and their configuration, and the trainer that its own is made of."""

    def run_trainer(self, place, folder, stop, resume):
        from axolotl.integrations.base import PluginManager
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Stop(TrainerCallback):
            def on_step_end(self, args, state, control, **_more):
                control.should_training_stop = state.global_step == stop

        plugins = PluginManager.get_instance()
        plugins.register("headrace.axolotl.Plugin")
        self.assertEqual(plugins.get_input_args(), ["headrace.axolotl.Args"])
        data = [{"input_ids": row, "labels": row} for row in rows(24)]
        arguments = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=2, max_steps=STEPS,
            use_cpu=DEVICE == "cpu", report_to=[], logging_steps=1, save_steps=STEPS // 2,
            disable_tqdm=True, optim="adamw_torch", learning_rate=1e-2, weight_decay=0.1,
            lr_scheduler_type="cosine", warmup_steps=2)
        trainer = Trainer(model=llama(), args=arguments, train_dataset=data, callbacks=[Stop()])
        plugins.post_trainer_create({"headrace": self.options[place]}, trainer)
        trainer.train(resume_from_checkpoint=resume)
        self.opened.append(trainer.optimizer.optimizer)
        binds = trainer.optimizer.optimizer.stats()[0]["model"]["binds"]
        self.assertGreater(min(binds.values()), 0)
        history = [(row["loss"], row["grad_norm"], row["learning_rate"])
                   for row in trainer.state.log_history if "loss" in row]
        return history, weights_of(trainer.model)

    def test_losses_resume_and_weights_are_those_in_memory(self):
        self.check(self.run_trainer)

    def test_trains_a_second_time(self):
        from transformers import Trainer, TrainingArguments

        import headrace.axolotl
        data = [{"input_ids": row, "labels": row} for row in rows(8)]
        trainer = Trainer(model=llama(), train_dataset=data, args=TrainingArguments(
            output_dir=str(self.folder), max_steps=2, use_cpu=DEVICE == "cpu", report_to=[],
            optim="adamw_torch", disable_tqdm=True, save_strategy="no"))
        headrace.axolotl.Plugin().post_trainer_create({"headrace": {}}, trainer)
        trainer.train()
        trainer.train()
        self.opened.append(trainer.optimizer.optimizer)

    def test_a_key_that_is_not_known_is_refused(self):
        import headrace.axolotl
        with self.assertRaisesRegex(ValueError, "host_buget"):
            headrace.axolotl.Plugin().post_trainer_create({"headrace": {"host_buget": 1}}, None)


@unittest.skipUnless(has("sklearn"), "scikit-learn is needed")
class Recipe(unittest.TestCase):
    """examples/python/vit_on_digits.py, small: it prints the same wherever its bytes live."""

    def printed(self, ranks, *options):
        example = pathlib.Path(__file__).parents[2] / "examples/python/vit_on_digits.py"
        launch = [] if ranks == 1 else \
            ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        ran = subprocess.run(
            [sys.executable, *launch, str(example), "--steps", "50", "--width", "32",
             "--depth", "2", "--batch", "32", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def test_reads_digits(self):
        for ranks in (1, 2):
            with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
                printed = self.printed(ranks, "--nvme", folder)
            self.assertIn("of 297 digits", printed)
            self.assertEqual(printed, self.printed(ranks))


SHARDED = textwrap.dedent("""
    import os, sys, torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from headrace.torch import AdamW
    torch.set_num_threads(1)
    folder, device = sys.argv[1:]
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    mesh = init_device_mesh(device, (dist.get_world_size(),))

    def made(nvme):
        torch.manual_seed(0)
        # 35 rows: the shards of two ranks differ in length.
        model = torch.nn.Sequential(torch.nn.Linear(16, 35), torch.nn.Tanh(),
                                    torch.nn.Linear(35, 1))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, AdamW(model.parameters(), lr=1e-2, nvme=nvme)

    def train(model, optimizer, first, last):
        seen = []
        for step in range(first, last):
            torch.manual_seed(100 * step + dist.get_rank())
            loss = (model(torch.randn(8, 16).to(device)) - 1).pow(2).mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            seen.append((loss.item(), norm.full_tensor().item()))
        return seen

    def weights(model):
        return [parameter.full_tensor() for parameter in model.parameters()]

    def equal(one, other):
        return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other)))

    in_memory, its = made(None)
    expected = train(in_memory, its, 0, 6)
    model, optimizer = made(folder)
    seen = train(model, optimizer, 0, 3)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save(state, checkpoint_id=folder + "/dcp")
    optimizer.close()

    model, optimizer = made(folder)
    train(model, optimizer, 0, 1)  # so that there is state to load into
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(state, checkpoint_id=folder + "/dcp")
    set_state_dict(model, optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])
    seen += train(model, optimizer, 3, 6)
    assert seen == expected, (seen, expected)
    assert equal(model, in_memory)
    its.close()
    optimizer.close()
    dist.destroy_process_group()
    print("same")
    """)


@unittest.skipUnless(torch.distributed.is_available(), "torch has no ranks")
class Fsdp2(Trainers):
    def test_ranks_with_shards_of_their_own(self):
        count = 2 if DEVICE == "cpu" else 1  # NCCL has one rank for each GPU
        store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577", "WORLD_SIZE": str(count)}
        ranks = [subprocess.Popen([sys.executable, "-c", SHARDED, str(self.folder), DEVICE],
                                  text=True, env={**os.environ, **store, "RANK": str(rank),
                                                  "LOCAL_RANK": str(rank)},
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                 for rank in range(count)]
        ends = [rank.communicate(timeout=300) for rank in ranks]
        self.assertEqual([out.strip() for out, _ in ends], count * ["same"],
                         "\n".join(error[-3000:] for _, error in ends))


if __name__ == "__main__":
    FOLDER = os.path.abspath(sys.argv[1])
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if has(name)))
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
