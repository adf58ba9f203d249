#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one bug after the other in a copy of the sources, and expects a test to find each.

  tests/engine/planted_bugs.py [--steps N] [--only WORD ...] [--work FOLDER]
  tests/engine/planted_bugs.py --check    whether each can still be planted: the sources have it

By hand, but for --check, which ./check runs: every bug is a build. The copy is made under FOLDER
(default: a temporary one) and removed. Exit code 1 if a bug was not found, or could not be planted.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What the bug is, where, what stands there, what stands there instead: simulated_test finds it.
BUGS = [
    ("a gather of resident weights does not wait for their update", "src/engine/leases.cpp",
     "    p_.calls.until_passed(group, \"gather\");\n", ""),
    ("a gradient does not wait for the update that reads the last one",
     "src/engine/startup.cpp",
     "r.calls->until_passed(group, \"add_gradient\"); }", "(void)group; (void)r; }"),
    ("a fill does not wait for the update's write", "src/tiles/group_fill.cpp",
     "co_await p_.pending.until_written(", "(void)GroupId("),
    ("weights that are handed over are not copied", "src/tiles/tile_pass.cpp",
     "  if (with.weight_copy == nullptr) return;\n", "  return;\n"),
    ("a group counts as updated before its pass has run", "src/tiles/updates.cpp",
     "  began_.store(true);\n", "  began_.store(true);\n  p_.pending.note_pass(group);\n"),
    ("an update slot is given back before it is written", "src/tiles/updates.cpp",
     "  const TileView view = p_.tiles.view(tile, slot ? slot.bytes() : std::span<std::byte>{});\n",
     "  const TileView view = p_.tiles.view(tile, slot ? slot.bytes() : std::span<std::byte>{});\n"
     "  slot.release();\n"),
    ("a slot too few: the plan leaves room for one less than there are", "src/residency/layout.cpp",
     "take(plan_.update_slots * largest_update, \"update slots\")",
     "take((plan_.update_slots - 1) * largest_update, \"update slots\")"),
    ("a gather slot that is leased is taken for another group", "src/tiles/gather_slots.cpp",
     "if (slot.leased() || slot.filling()) continue;", "if (slot.filling()) continue;"),
    ("a group that a gather waits for does not wake the updates", "src/tiles/pending_updates.cpp",
     "{ set(groups_[group.index].wanted); }", "{ groups_[group.index].wanted = true; }"),
    ("the next step does not wait for the updates of the last", "src/engine/stepper.cpp",
     "  p_.calls.finish_updates(\"step\");\n", ""),
    ("what waits for a group is not told that the engine is closed", "src/tiles/updates.cpp",
     "  if (stopping_ && !error) {", "  if (stopping_ && !error && !p_.pending.all_started()) {"),
    ("a stale slot is not forgotten at a step", "src/tiles/gather_slots.cpp",
     "    if (!slot.leased()) slot.drop();\n", ""),
]
# world_size_test finds it.
BUGS_OF_RANKS = [
    ("a group that stays joined has the slot of another", "src/tiles/gather_slots.cpp",
     "const std::uint32_t own = own_slots_[wanted.index];",
     "const std::uint32_t own = own_slots_[wanted.index / 2];"),
    ("what is absent on a rank is added", "src/ranks/gradient_exchange.cpp",
     "      if (!p_.ranks.present(r, i)) continue;\n      const std::byte*",
     "      const std::byte*"),
    ("a zero is added for what is absent on a rank", "src/ranks/gradient_exchange.cpp",
     "      if (!p_.ranks.present(r, i)) continue;\n"
     "      const std::byte* part = taken_ + (r < rank ? r : r - 1) * given.bytes(own.elements);\n"
     "      if (r == rank) part = static_cast<const std::byte*>(give_[rank].data);\n",
     "      static const std::vector<std::byte> zeros(std::size_t{64} << 20);\n"
     "      const std::byte* part = taken_ + (r < rank ? r : r - 1) * given.bytes(own.elements);\n"
     "      if (r == rank) part = static_cast<const std::byte*>(give_[rank].data);\n"
     "      if (!p_.ranks.present(r, i)) part = zeros.data();\n"),
    ("a rank adds its own gradients first, and the others' as they arrive",
     "src/ranks/gradient_exchange.cpp",
     "    for (std::uint32_t r = 0; r < ranks; ++r) {\n"
     "      if (!p_.ranks.present(r, i)) continue;\n      const std::byte*",
     "    for (std::uint32_t k = 0; k < ranks; ++k) {\n"
     "      const std::uint32_t r = (rank + k) % ranks;\n"
     "      if (!p_.ranks.present(r, i)) continue;\n      const std::byte*"),
    ("every rank has a norm of its own", "src/ranks/gradient_sums.cpp",
     "  if (p_.partition.world_size > 1) gather_pieces(attached);\n", ""),
    ("each rank's squares are added up first, then the ranks' sums",
     "src/ranks/gradient_sums.cpp",
     "  totals.sum_squares = kernels::tree_sum(pieces_);\n",
     "  for (std::uint32_t r = 0; r < p_.partition.world_size; ++r) {\n"
     "    std::vector<GradientPiece> own(pieces_.begin(), pieces_.end());\n"
     "    each_owned_piece(p_.partition, [&](std::uint64_t piece, std::uint32_t rank) {\n"
     "      if (rank != r) own[piece] = {};\n"
     "    });\n"
     "    totals.sum_squares += kernels::tree_sum(own);\n"
     "  }\n"),
    ("a rank passes a lower one that still brings a gradient of the group",
     "src/ranks/gradient_bucket.cpp", "    const bool served = agreed.served;\n",
     "    const bool served =\n"
     "        say.kind == RankCall::Kind::kOpenBucket && say.group == *agreed.open;\n"),
    ("an f32 gradient of bf16 parameters is rounded", "src/ranks/gradient_bucket.cpp",
     "wide_[section.group] != 0 ?", "section.group > 1000 ?"),
    ("a hash leaves out what lies on another rank", "src/ranks/joint_hash.cpp",
     "  hash_.set_state(from_owner.state);\n", ""),
    ("the random bits of a gradient depend on the rank", "src/ranks/packed_gradients.cpp",
     "terms_[parameter] + p_.ranks.present_below(own, i)",
     "terms_[parameter] + p_.ranks.present_below(own, i) + own"),
    ("a rank computes with its own shard as it is stored", "src/engine/leases.cpp",
     "    if (p_.plan.node_ranks == 0 || keeps(p_.partition.rank, r))\n"
     "      packed_.unpack(p_.partition.shard_of(section, r));\n",
     "    if (r != p_.partition.rank)\n"
     "      packed_.unpack(p_.partition.shard_of(section, r));\n"),
]
# sequence_test finds it.
BUGS_OF_SEQUENCES = [
    ("a group is reduced ahead before all of its gradients have come",
     "src/ranks/sequence_runner.cpp", "in_step_ || position_ > entry.at;",
     "in_step_ || position_ >= entry.at;"),
    ("what was joined ahead and not used is not given back", "src/ranks/sequence_runner.cpp",
     "  while (slots_of_.size() > position_) {\n", "  while (false) {\n"),
    ("what is held of a group takes a second gradient of a parameter in place of the first",
     "src/ranks/gradient_bucket.cpp", "  while (open_ != of ||", "  if (open_ != of ||"),
    ("the ranks' next call ahead passes the join of the trainer", "src/engine/leases.cpp",
     "  join(lease.slot_, lease.group_, agreed.joins[0], lease.stream_);\n"
     "  p_.gradients.end_gather(lease.group_, agreed);\n",
     "  p_.gradients.end_gather(lease.group_, agreed);\n"
     "  join(lease.slot_, lease.group_, agreed.joins[0], lease.stream_);\n"),
    ("slots that were taken for joins are not given back", "src/ranks/sequence_runner.cpp",
     "  for (const std::uint32_t slot : taken_) slots_->give_back(slot, stream_);\n", ""),
    ("a rank leaves while a slot is being taken", "src/ranks/sequence_runner.cpp",
     "  changed_.wait(lock, [&] { return !taking_; });\n", ""),
    ("a rank carries out what it is ready for, and not what all are", "src/ranks/rank_calls.cpp",
     "r == 0 ? one.entries : std::min(agreement.entries, one.entries)", "mine.entries"),
    ("a reduction ahead does not wait for the gradients on the trainer's stream",
     "src/ranks/gradient_bucket.cpp",
     "    if (mine != nullptr && mine->there.id != 0) p_.device.wait(stream, mine->there);\n", ""),
    ("what is held is brought in the order of its memory", "src/ranks/gradient_bucket.cpp",
     "one.number < first->number)", "one.of.position < first->of.position)"),
    ("what is held is forgotten at a departure", "src/ranks/gradient_bucket.cpp",
     "    HeldGradients* const mine = first_held();\n",
     "    HeldGradients* const mine = nullptr;\n"),
    ("a rank that has not begun the order is taken for one that follows it",
     "src/ranks/rank_calls.cpp",
     "  agreement.left = agreement.left || (of_order > 0 && of_order < ranks);\n", ""),
    ("a section is packed before the last one has left its memory",
     "src/tiles/packed_section.cpp", "  if (free_.id != 0) device_.wait(stream, free_);\n", ""),
    ("parts of the norm are exchanged before the last reduction", "src/ranks/gradients.cpp",
     "    runner_->begin_step();\n", ""),
]
# ranks_test finds it, with a collective that returns before its bytes have arrived.
BUGS_OF_JOINS = [
    ("a gather that was joined ahead does not wait for the join", "src/engine/leases.cpp",
     "  p_.gather_slots[*slot].wait_until_there(stream);\n", ""),
]
# ranks_sent_test finds it.
BUGS_OF_NODES = [
    ("an update leaves what nodes keep", "src/tiles/gather_slots.cpp",
     "  node_shards_.forget_all();\n", ""),
    ("a rank brings only what its node keeps where another has slept", "src/engine/leases.cpp",
     "  if (what == ranks::Join::kAll && !slot.joined() && slot.has_node_shard())\n",
     "  if (false)\n"),
]
# ranks_gradients_test finds it; of random programs of sequence_test, one in 50,000.
BUGS_OF_GRADIENTS = [
    ("a group that becomes f32 is reduced first", "src/ranks/gradient_bucket.cpp",
     "    if (open_ == of && agreed.wide && wide_[of.group.index] == 0) {\n",
     "    if (open_ == of && agreed.wide && memory_ == nullptr) {\n"),
    ("what a rank holds of a group that becomes f32 stays in 16 bits",
     "src/ranks/gradient_bucket.cpp",
     "  if (wide && wide_[of.group.index] == 0) widen(of.group);\n",
     "  if (wide) wide_[of.group.index] = 1;\n"),
]
# ranks_hierarchical_test finds it.
BUGS_OF_HIERARCHICAL_SUMS = [
    ("a node that brings none of a gradient is added", "src/ranks/gradient_exchange.cpp",
     "      if (!present_in_node(node, i)) continue;\n", ""),
    ("what is absent on a rank of a node is added", "src/ranks/gradient_exchange.cpp",
     "      if (!p_.ranks.present(r, i)) continue;\n      work.source",
     "      work.source"),
    ("a rank adds the sums of its own node first", "src/ranks/gradient_exchange.cpp",
     "    for (std::uint32_t node = 0; node < nodes(); ++node) {\n"
     "      if (!present_in_node(node, i)) continue;\n",
     "    for (std::uint32_t k = 0; k < nodes(); ++k) {\n"
     "      const std::uint32_t node = (here + k) % nodes();\n"
     "      if (!present_in_node(node, i)) continue;\n"),
    ("a rank that lacks a group's gradients is served with the next before the others have come",
     "src/ranks/rank_calls.cpp",
     "        (of_backward_ && one.position == first->position && one.group > first->group))\n",
     "        false)\n"),
    ("with one node, its ranks' gradients are added one after the other",
     "src/residency/layout.cpp",
     "  return ranks > 1 && in.partition->world_size > 1 ? ranks : 0;\n",
     "  return ranks > 1 && in.partition->world_size > ranks ? ranks : 0;\n"),
]
# durable_test finds it.
BUGS_OF_STORES = [
    ("an update writes the slot that a commit record names", "src/tiles/tile_places.cpp",
     "  return durable() && slots_of_[tile].committed;\n",
     "  return tile == ~0u;\n"),
    ("what lives in memory is not written back", "src/engine/epochs.cpp",
     "    if (p_.places.to_write_back(tile)) co_await p_.tiles.write_back(tile);\n",
     "    (void)tile;\n    co_return;\n"),
    ("a commit does not wait for deferred updates", "src/engine/epochs.cpp",
     "    while (p_.updates.running()) co_await p_.pending.changed();\n", ""),
    ("step counts are not committed", "src/engine/epochs.cpp",
     "  std::ranges::copy(p_.counts.steps, record_.step_counts().begin());\n", ""),
    ("a sync that failed is tried again", "src/swap/block.cpp",
     "  if (block.kind == IoKind::kSync) return {Next::kEnd, error};\n",
     "  if (block.result == 0) return {Next::kEnd, 0};\n"),
    ("a skipped step is not counted in the record", "src/engine/epochs.cpp",
     "  head.skipped = p_.counts.skipped;\n", ""),
    ("a skipped step is not committed", "src/engine/stepper.cpp",
     "  ++p_.counts.skipped;\n  if (p_.epochs != nullptr) p_.epochs->note_step();\n",
     "  ++p_.counts.skipped;\n"),
    ("generations begin again when a store is opened", "src/tiles/tile_places.cpp",
     "  least_generation_ = incarnation << kIncarnationShift;\n",
     "  least_generation_ = incarnation >> kIncarnationShift;\n"),
    ("an opening does not sync what it found", "src/engine/epochs.cpp",
     "    co_await p_.swap.sync();\n    ++record_.head().incarnation;\n",
     "    ++record_.head().incarnation;\n"),
    ("checksums of weights are not restored", "src/tiles/tile_places.cpp",
     "other = slot(current ^ 1);\n  }\n"
     "  std::ranges::copy(record.weight_checksums(), weight_checksums_.begin());\n",
     "other = slot(current ^ 1);\n  }\n"),
]

# durable_store_test finds it.
BUGS_OF_STORES_TAKEN = [
    ("a store's file is not locked", "src/swap/store_file.cpp",
     "    take_lock(file.get(), path, use);\n    struct stat named", "    struct stat named"),
]

# crash_states_test finds it, the last one among ranks.
BUGS_OF_CRASHES = [
    ("data is not synced before the record", "src/engine/epochs.cpp",
     "  co_await p_.swap.sync();\n  p_.places.describe(record_);\n",
     "  p_.places.describe(record_);\n"),
    ("only the first drive is synced", "src/swap/swap_tier.cpp",
     "    if (own->drive) drives.spawn(sync_drive(*own, priority));\n",
     "    if (own == drives_[0]) drives.spawn(sync_drive(*own, priority));\n"),
    ("a ring of one record", "src/swap/store_format.hpp", "kRoots = 3", "kRoots = 1"),
    ("an update does not wait for the commit before it", "src/engine/stepper.cpp",
     "  if (p_.epochs != nullptr) p_.epochs->settle();\n", ""),
    ("the trainer's state of the next step is stored", "src/engine/epochs.cpp",
     "  p_.places.describe(record_);\n",
     "  p_.places.describe(record_);\n"
     "  std::ranges::copy(given_state_, record_.trainer_state().begin());\n"),
    ("a load does not wait for the commit before it", "src/engine/values.cpp",
     "  if (p_.epochs != nullptr) p_.epochs->settle_for_load();\n", ""),
    ("the record that is taken over is not written", "src/engine/epochs.cpp",
     "    record_.seal();\n    co_await p_.ring.write(record_);\n", "    co_return;\n"),
    ("a rank goes on at its newest epoch, not at the least of all", "src/engine/freeze_meeting.cpp",
     "std::ranges::min(all, {}, &Said::epoch).epoch", "mine.epoch"),
]
# undone_step_test finds it.
BUGS_OF_UNDOING = [
    ("a write that fails forgets where a part of it went", "src/tiles/tile_store.cpp",
     "    p_.places.note_moved(tile, target);\n", ""),
    ("undoing a step forgets what lives in memory", "src/engine/epochs.cpp",
     "    if (!p_.tiles.is_frozen(tile)) co_await p_.tiles.read_resident(tile);\n",
     "    (void)tile;\n    co_return;\n"),
    ("undoing a step keeps the slots that it wrote", "src/tiles/tile_places.cpp",
     "    if (std::exchange(slots.committed, true)) continue;\n", "    continue;\n"),
    ("undoing a step keeps the checksums of its weights", "src/tiles/tile_places.cpp",
     "    states_[t].generation = record.tiles()[t].generation;\n  }\n"
     "  std::ranges::copy(record.weight_checksums(), weight_checksums_.begin());\n",
     "    states_[t].generation = record.tiles()[t].generation;\n  }\n"),
]
# durable_ranks_test finds it.
BUGS_OF_A_RANK_AHEAD = [
    ("a ring of two records", "src/swap/store_format.hpp", "kRoots = 3", "kRoots = 2"),
    ("a rank overwrites slots of an epoch before all ranks have the next",
     "src/engine/stepper.cpp",
     "  if (p_.epochs != nullptr) p_.epochs->settle();\n"
     "  const ranks::GradientTotals totals =\n"
     "      p_.gradients.finish({options, p_.counts.steps, holds_commits()});\n",
     "  const ranks::GradientTotals totals =\n"
     "      p_.gradients.finish({options, p_.counts.steps, holds_commits()});\n"
     "  if (p_.epochs != nullptr) p_.epochs->settle();\n"),
]
# Of checkpoint_test, BackgroundSaves.* finds each.
BUGS_OF_BACKGROUND_SAVES = [
    ("steps commit while a background save reads", "src/engine/stepper.cpp",
     "note_met(totals.holds_commits);", "note_met(); (void)totals.holds_commits;"),
    ("a rank commits again while another's background save reads", "src/engine/stepper.cpp",
     "note_met(totals.holds_commits);", "note_met(holds_commits());"),
    ("a background save reads the present slots", "src/tiles/tile_store.cpp",
     "  const std::uint32_t slot = at.slot & 1;\n",
     "  const std::uint32_t slot = (at.slot & 1) ^ 1;\n"),
]

# Of checkpoint_test, the test that is named finds it.
BUGS_OF_CHECKPOINTS = [
    ("a chunk is not compared with its checksum", "src/checkpoint/verified_files.cpp",
     "  if (checksum_of(bytes) == saved.checksums[id.chunk]) return bytes;\n",
     "  if (!bytes.empty()) return bytes;\n",
     "Checkpoint.ADamagedTensorLeavesAnEmptyEngineWithoutValues"),
    ("values in use are replaced by ones that may be damaged", "src/checkpoint/load.cpp",
     "  if (!running.states.any()) return;\n", "  return;\n",
     "Checkpoint.ADamagedFileIsNamedBeforeAnythingChanges"),
    ("bytes that wait for the rest of their page begin another", "src/checkpoint/write_behind.cpp",
     "edge.page == at / base::kIoAlignment && ", "", "WriteBehind.LeavesEveryByteInItsPlace"),
    ("bytes of another file go where the last ones went", "src/checkpoint/write_behind.cpp",
     "    if (!follows || filling_->room() == 0) {\n",
     "    if (filling_ == nullptr || filling_->room() == 0) {\n",
     "Checkpoint.GoesOnToTheBitsOfTheRunThatWasNotInterrupted"),
    ("the bytes after the last whole page are not written", "src/checkpoint/write_behind.cpp",
     "  for (const Edge& edge : edges_) write_edge(edge);\n", "",
     "LargeFiles.AreSavedAndLoadedWithEveryByte"),
    ("nobody sums a chunk that ends in another rank's shard", "src/checkpoint/chunk_sums.cpp",
     "std::pair{chunks_of(*first_), chunks_of(at_)}",
     "std::pair{chunks_of(*first_), at_ / kChunkBytes}",
     "Checkpoint.EveryWorldSizeLoadsWhatEverySizeSavedAndSavesTheSameFiles"),
    ("a rank that fails leaves the values of the others", "src/checkpoint/load_together.cpp",
     "    for (std::uint32_t g = 0; taking && g < engine.group_count(); ++g)\n",
     "    for (std::uint32_t g = 0; taking && g < 0; ++g)\n",
     "Checkpoint.ALoadThatFailsOnOneRankLeavesNoneWithValues"),
    ("a save that fails leaves its folder", "src/checkpoint/files.cpp",
     "  if (!finished_) (void)remove_unfinished(path_);", "",
     "Checkpoint.ASaveThatFailsOnTheWayLeavesNothingAndTheEngineTrainsOn"),
    ("a save removes what it has not written", "src/checkpoint/files.cpp",
     "    if (marked && is_of_a_save(*at)) continue;\n",
     "    if (!marked || fs::exists(path_)) continue;\n",
     "Checkpoint.RemovesNothingThatNoSaveHasWritten"),
    ("a name that occurs twice in an index is taken", "src/checkpoint/weight_map.cpp",
     "    if (in_map_ && depth_ == kFiles && files_.contains(name))\n",
     "    if (in_map_ && depth_ == kFiles && files_.contains(name) && false)\n",
     "LoadWeights.ReadsTheFilesThatAnIndexNames"),
    ("step counts are not loaded", "src/engine/all_values.cpp",
     "  std::ranges::copy(steps, p_.counts.steps.begin());\n", "",
     "Checkpoint.GoesOnToTheBitsOfTheRunThatWasNotInterrupted"),
    ("a save does not wait for deferred updates", "src/engine/all_values.cpp",
     "  p_.calls.finish_updates(call);\n", "",
     "Checkpoint.GoesOnToTheBitsOfTheRunThatWasNotInterrupted"),
    ("a tile that does not begin with its parameter is taken for one that does",
     "src/engine/all_values.cpp",
     "= cut.first_element + segment.first_element -", "= segment.first_element -",
     "Checkpoint.GoesOnToTheBitsOfTheRunThatWasNotInterrupted"),
    ("a tile is read to where another is still in use", "src/engine/all_values.cpp",
     "std::uint64_t{tile} + places_.size());", "std::uint64_t{tile} + places_.size() + 1);",
     "Checkpoint.GoesOnToTheBitsOfTheRunThatWasNotInterrupted"),
]


def run(command, folder, **more):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, **more)


def build(folder):
    return run(["ninja", "-C", "build/release", "engine_tests", "checkpoint_test"], folder)


def command_of(part):
    """Of one part of engine_tests, or of tests of checkpoint_test."""
    program, *option = (["checkpoint_test", f"--gtest_filter={part}"] if "." in part else
                        ["engine_tests", f"--part={part}"])
    return [f"build/release/tests/bin/{program}", *option]


def how_found(lines):
    """The first line that names a cause; GoogleTest knows no file for what a test throws."""
    words = ("check failed", "deadlock", "generation", "Failure", "checksum", "C++ exception")
    named = (line.strip() for line in lines
             if any(word in line for word in words) and "unknown file" not in line)
    return next(named, lines[-1].strip() if lines else "")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--steps", default="10000")
    options.add_argument("--only", nargs="+", default=[""],
                         help="bugs whose description, or test, holds one of these")
    options.add_argument("--work", type=pathlib.Path)
    options.add_argument("--check", action="store_true")
    asked = options.parse_args()
    all_bugs = ([(*bug, "simulated_test") for bug in BUGS] +
                [(*bug, "world_size_test") for bug in BUGS_OF_RANKS] +
                [(*bug, "sequence_test") for bug in BUGS_OF_SEQUENCES] +
                [(*bug, "ranks_test") for bug in BUGS_OF_JOINS] +
                [(*bug, "ranks_sent_test") for bug in BUGS_OF_NODES] +
                [(*bug, "ranks_gradients_test") for bug in BUGS_OF_GRADIENTS] +
                [(*bug, "ranks_hierarchical_test") for bug in BUGS_OF_HIERARCHICAL_SUMS] +
                [(*bug, "durable_test") for bug in BUGS_OF_STORES] +
                [(*bug, "durable_store_test") for bug in BUGS_OF_STORES_TAKEN] +
                [(*bug, "crash_states_test") for bug in BUGS_OF_CRASHES] +
                [(*bug, "undone_step_test") for bug in BUGS_OF_UNDOING] +
                [(*bug, "durable_ranks_test") for bug in BUGS_OF_A_RANK_AHEAD] +
                BUGS_OF_CHECKPOINTS +
                [(*bug, "BackgroundSaves.*") for bug in BUGS_OF_BACKGROUND_SAVES])
    if asked.check:
        gone = [f"{what}: {name}" for what, name, before, _, _ in all_bugs
                if (ROOT / name).read_text().count(before) != 1]
        sys.exit("cannot be planted, the source has changed:\n" + "\n".join(gone) if gone else 0)
    bugs = [bug for bug in all_bugs
            if any(word in bug[0] or word in bug[-1] for word in asked.only)]
    with tempfile.TemporaryDirectory(dir=asked.work) as parent:
        folder = pathlib.Path(parent) / "headrace"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns("build", ".git"))
        done = run(["cmake", "--preset", "release", "-DHEADRACE_TORCH_ROOT=",
                    "-DHEADRACE_CUDA=OFF"], folder)
        done = build(folder) if done.returncode == 0 else done
        if done.returncode != 0:
            sys.exit("the sources as they are do not build:\n" + done.stdout)
        environment = dict(os.environ, HEADRACE_SIMULATED_STEPS=asked.steps,
                           HEADRACE_SIMULATED_SEEDS="3", HEADRACE_MATRIX="pairwise",
                           HEADRACE_CRASH_STATES="8000", HEADRACE_KILL_EVERY="97",
                           HEADRACE_SEQUENCE_PROGRAMS="4000")
        missed = 0
        for what, name, before, after, part in bugs:
            path = folder / name
            text = path.read_text()
            if text.count(before) != 1:
                print(f"NOT PLANTED  {what}: {name} has changed")
                missed += 1
                continue
            path.write_text(text.replace(before, after))
            done = build(folder)
            if done.returncode != 0:
                print(f"NOT PLANTED  {what}: {name} does not build\n{done.stdout}")
                missed += 1
            else:
                try:
                    done = run(command_of(part), folder, env=environment, timeout=600)
                    found = done.returncode != 0
                except subprocess.TimeoutExpired:
                    found = True
                    done = None
                lines = done.stdout.splitlines() if done else ["no end in 600 s"]
                how = how_found(lines)
                print(f"{'found' if found else 'MISSED':11}  {what}: {how[:150]}", flush=True)
                missed += not found
            path.write_text(text)
        print(f"{len(bugs) - missed} of {len(bugs)} found")
        sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
