// SPDX-License-Identifier: Apache-2.0
// headrace/checkpoint.hpp: an engine's values in a folder of safetensors files, and back.
//
//   model.safetensors      weights, in their dtypes
//   optimizer.safetensors  in f32: master.NAME, exp_avg.NAME, exp_avg_sq.NAME, for those trained
//   manifest.json          step counts, and name, place and XXH3-128 of every tensor; written last
#pragma once
#include <string>

#include "headrace/engine.hpp"

namespace headrace {
// Writes all values of a running engine to the new folder `directory`. Deferred updates end first.
// The folder is there with all its files synced, or not at all: they are written to
// "<directory>.tmp" and renamed. The next save to the same name removes what a dead one left there.
// Memory:  the tiles go through an update slot, as in Engine::store(); beyond it only names.
// Threads: those of Engine::store(). The engine is not changed, and trains on after any error.
// Throws   kInvalidArgument: `directory` exists. kWrongState: another save writes to it, or values
//          were not loaded. kUnsupported: several ranks hold the values. kIo, kNoSpace, with errno:
//          no folder was made. If only the last sync of the folder above fails, it says so.
void save_checkpoint(Engine& engine, const std::string& directory);

// Reads a checkpoint into a frozen engine that registered the same parameters: weights, masters,
// moments and step counts. The engine then trains on to the bits of the one that was saved. With
// several ranks every rank calls, and reads its own shard, whatever the world size.
// Cost:    reads every file twice: all checksums are compared before anything is changed.
// Throws   before any change: kNotFound without a manifest; kInvalidArgument naming a parameter
//          that is missing, unexpected, or of another dtype or shape; kCorrupt naming a tensor or
//          the manifest; kIo. A read that fails later leaves that group without whole values,
//          as Engine::load() does: repeat the call.
void load_checkpoint(Engine& engine, const std::string& directory);
}  // namespace headrace
