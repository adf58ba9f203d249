// SPDX-License-Identifier: Apache-2.0
// headrace/checkpoint.hpp: saves an engine's values to a folder of safetensors files, and loads
// them back.
//
//   model.safetensors      The weights, in their dtypes.
//   optimizer.safetensors  In f32, for each trained parameter: master.NAME, and also
//                          exp_avg.NAME and exp_avg_sq.NAME if the rule keeps them.
//   manifest.json          The rule, the precision of the moments, the step counts, and the name,
//                          dtype, shape and XXH3-128 of every tensor. This file is written last.
//
// Kept:     weights, masters, moments, and each parameter's step count.
// Not kept: hyperparameters, the learning rate, the rounding seed, gradients that no step has used,
//           and the engine's step number. Also not kept: the trainer's own state, such as random
//           number generators, the position in the data, and the loss scale. The trainer restores
//           these itself.
// docs/checkpoints.md has an example, and lists what may differ between saving and loading.
#pragma once
#include <string>

#include "headrace/engine.hpp"

namespace headrace {
// Writes all values of a running engine to the new folder `directory`. Completes deferred updates
// first. The folder never exists in part: the call writes and syncs the files in "<directory>.tmp",
// and then renames that folder. If a save is interrupted, the next save to the same name removes
// the files in "<directory>.tmp".
// Memory:  one update slot, through which the tiles pass as in Engine::store(). Beyond that slot,
//          the call holds only names.
// Cost:    reads every value once, and writes it once.
// Ranks:   one. Values of several ranks cannot be saved yet.
// Threads: as for Engine::store(). The engine is not changed, and can go on training after any
//          error.
// Throws   kInvalidArgument: `directory` exists, or a parameter's name is not UTF-8 or is
//          "__metadata__". kWrongState: another save is writing to `directory`, or values were not
//          loaded. kUnsupported: several ranks hold the values. kIo or kNoSpace, with errno: no
//          folder was made. There is one exception: if only the last sync fails, which is that of
//          the parent folder, the folder exists and the error says so.
void save_checkpoint(Engine& engine, const std::string& directory);

// Reads weights, masters, moments and step counts from a checkpoint into a frozen engine that has
// registered the same parameters, in any order and grouping, with the same Settings::optimizer and
// Settings::moments. The engine then trains on exactly as the saved one would have, bit for bit.
// With several ranks, every rank makes this call and reads its own shard, whatever the world size
// is.
// Memory:  a buffer of 4 MiB while checksums are compared; then as much as Engine::load() takes.
// Cost:    reads every file twice, because it compares all checksums before it changes anything.
// Durable: with Settings::durable_every, the store keeps the previous epoch until the next commit.
//          To resume from the checkpoint after a crash, call set_trainer_state() and commit() now.
// Threads: as for Engine::load().
// Throws   before any change:
//          - kNotFound if the manifest or another file is missing.
//          - kInvalidArgument if the engine differs from the one that was saved. The error names a
//            parameter that is missing, unexpected, of a different dtype or shape, or frozen on one
//            side only. If there is no such parameter, the error names the rule, the precision and
//            the tensors that one side lacks.
//          - kWrongState naming a frozen parameter that a durable engine has committed.
//          - kCorrupt naming a tensor, a file's header, or a field of the manifest.
//          - kUnsupported for a checkpoint of another version.
//          - kIo if a file cannot be read.
//          If a read fails later, the group that was being loaded has no complete values, as after
//          an error in Engine::load(). Repeat the call.
void load_checkpoint(Engine& engine, const std::string& directory);
}  // namespace headrace
