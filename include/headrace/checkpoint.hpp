// SPDX-License-Identifier: Apache-2.0
// headrace/checkpoint.hpp: an engine's values in a folder of safetensors files, and back.
//
//   model.safetensors      The weights, in their dtypes.
//   optimizer.safetensors  In f32, for each trained parameter: master.NAME, and as many of
//                          exp_avg.NAME and exp_avg_sq.NAME as the rule keeps.
//   manifest.json          The rule, the precision of the moments, the step counts, and the name,
//                          dtype, shape and XXH3-128 of every tensor. It is written last.
//
// Kept:     weights, masters, moments, and each parameter's step count.
// Not kept: hyperparameters, the learning rate, the seed of rounding, gradients not yet used, and
//           the number of the engine's step. Nor the trainer's own state: random numbers, its place
//           in the data, the loss scale. The trainer sets these as they were.
// docs/checkpoints.md has an example, and says what may differ where a checkpoint is loaded.
#pragma once
#include <string>

#include "headrace/engine.hpp"

namespace headrace {
// Writes all values of a running engine to the new folder `directory`. Deferred updates end first.
// The folder is there with all its files synced, or not at all: they are written to
// "<directory>.tmp" and renamed. The next save to the same name removes what a dead one left there.
// Memory:  the tiles go through an update slot, as in Engine::store(); beyond it only names.
// Cost:    reads every value once, and writes it once.
// Ranks:   one. Values of several ranks cannot be saved yet.
// Threads: those of Engine::store(). The engine is not changed, and trains on after any error.
// Throws   kInvalidArgument: `directory` exists, or a name is not UTF-8, or is "__metadata__".
//          kWrongState: another save writes to it, or values were not loaded. kUnsupported: several
//          ranks hold the values. kIo, kNoSpace, with errno: no folder was made. If only the last
//          sync of the folder above fails, it says so.
void save_checkpoint(Engine& engine, const std::string& directory);

// Reads a checkpoint into a frozen engine that registered the same parameters, in any order and
// groups, with the same Settings::optimizer and moments: weights, masters, moments and step counts.
// The engine then trains on to the bits of the one that was saved. With several ranks every rank
// calls, and reads its own shard, whatever the world size.
// Memory:  a buffer of 4 MiB while checksums are compared; then what Engine::load() takes.
// Cost:    reads every file twice: all checksums are compared before anything is changed.
// Durable: an engine with Settings::durable_every keeps its last epoch until the next commit. Call
//          set_trainer_state() and commit() to go on from the checkpoint after a crash.
// Threads: those of Engine::load().
// Throws   before any change:
//          - kNotFound without a manifest or file.
//          - kInvalidArgument if the engine differs from the one that was saved. It names a
//            parameter that is missing, unexpected, of another dtype or shape, or frozen on one
//            side only; or rule, precision and the tensors that one side lacks.
//          - kWrongState naming a frozen parameter that a durable engine has committed.
//          - kCorrupt naming a tensor, a file's header, or the manifest's field.
//          - kUnsupported for another version, and kIo.
//          A read that fails later leaves that group without whole values, as Engine::load() does:
//          repeat the call.
void load_checkpoint(Engine& engine, const std::string& directory);
}  // namespace headrace
