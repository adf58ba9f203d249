// SPDX-License-Identifier: Apache-2.0
// headrace/checkpoint.hpp: saves an engine's values to a folder of safetensors files, and loads
// them back; loads the weights of other programs' models.
//
//   model.safetensors      The weights, in their dtypes. If they take more than
//                          SaveOptions::file_bytes: model-00001-of-00002.safetensors and so on, and
//                          model.safetensors.index.json, which names the file of each weight.
//   optimizer.safetensors  For each trained parameter: in f32 master.NAME, and also exp_avg.NAME
//                          and exp_avg_sq.NAME if the rule keeps them; in I64 step.NAME, the number
//                          of its updates. Several files as above.
//   trainer_state.bin      SaveOptions::trainer_state, if there is one.
//   manifest.json          The rule, the precision of the moments, the step counts, the name, dtype
//                          and shape of every parameter, and the XXH3-128 of every MiB of every
//                          tensor. This file is written last.
//
// The bytes of all files depend only on the values, the names, and SaveOptions: not on the number
// of ranks, nor on where the values lie.
//
// Kept:     weights, masters, moments, and each parameter's step count.
// Not kept: hyperparameters, the learning rate, the rounding seed, gradients that no step has used,
//           and the engine's step number. The trainer restores these itself. Random number
//           generators, the position in the data, and the loss scale are the trainer's own: it can
//           save them as SaveOptions::trainer_state.
// docs/checkpoints.md has an example, and lists what may differ between saving and loading.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/engine.hpp"

namespace headrace {
struct SaveOptions {
  // The tensors of a file take at most these many bytes, except for a single tensor that is larger.
  std::uint64_t file_bytes = 5'000'000'000;
  // Kept as it is, and returned by load_checkpoint(). Of several ranks, that of rank 0.
  std::span<const std::byte> trainer_state = {};
  // Also writes `latest`, a file beside `directory` that names it. load_checkpoint() of the folder
  // above then loads the latest checkpoint in it.
  bool latest = false;
};

// Writes all values of a running engine to the new folder `directory`. Completes deferred updates
// first. The folder never exists in part: the call writes and syncs the files in "<directory>.tmp",
// and then renames that folder. If a save is interrupted, the next save to the same name removes
// the files in "<directory>.tmp".
// Memory:  the update slots of the plan, 8 MiB for bytes on their way to the files, names, and 33
//          bytes for each MiB saved.
// Cost:    reads every tile once, and writes every value once, by two threads that end with the
//          call. While one tile is written to the files, the next ones are read. Files of 64 MiB
//          and more go around the page cache, where the file system can do that. The space is
//          reserved first, where it can.
// Ranks:   collective: every rank makes the call, and writes its own shards into the same files. So
//          `directory` must be in a file system that all ranks share.
// Threads: as for Engine::store(). The engine is not changed, and can go on training after any
//          error.
// Throws   kInvalidArgument: `directory` exists, is empty or ends in ".tmp"; "<directory>.tmp" has
//          something that no save has written; ranks differ in file_bytes, or a parameter's name
//          is not UTF-8 or is "__metadata__". kWrongState: another save is writing to `directory`,
//          or values were not loaded. kUnsupported: ranks do not share the file system. kIo or
//          kNoSpace, with errno: no folder was made. There is one exception: if only the last sync
//          or `latest` fails, the folder exists and the error says so. If one rank fails, all of
//          them throw, and the others' errors name that rank.
void save_checkpoint(Engine& engine, const std::string& directory, const SaveOptions& options = {});

// A save that goes on beside training. It may be dropped, and outlive its engine.
// Threads: any.
class BackgroundSave {
 public:
  struct State;
  explicit BackgroundSave(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // Whether it has ended, with a checkpoint or an error.
  bool done() const;
  // Returns once the checkpoint is there. From this call on, no rate limits the save. Throws what
  // ended it, each time: then there is no checkpoint. With several ranks, it waits for the others'
  // saves too, and does not notice that one of them was killed, as the engine's calls do.
  void wait() const;

 private:
  std::shared_ptr<State> state_;
};

// Saves the values that the engine has now while training goes on. The checkpoint has the bytes of
// one of save_checkpoint(). Returns when the folder and its files are made. A thread of the engine
// writes the rest, at most Settings::background_save_bytes_per_second on each rank.
//
// It reads the store of a durable engine. So the call commits the last step, and until the save has
// read all of it on all ranks, steps begin no commit.
// Cost:    a run that is killed meanwhile goes on from the step that is being saved, and repeats
//          all steps since. Engine::commit() waits until the save has read everything,
//          Engine::close() until it has ended; neither keeps to the rate. sleep() is refused
//          meanwhile.
// Memory:  a row of the plan.
// Ranks:   collective. The save itself is not: the ranks find in the folder how far the others are.
//          If one of them fails or is killed, no checkpoint appears.
// Threads: as for Engine::store().
// Throws   what save_checkpoint() throws before it writes values. Also kUnsupported: the engine has
//          no background saves, as Settings says. kWrongState: another one still runs. wait()
//          throws a later error, which is also logged. It does not end training.
[[nodiscard]] BackgroundSave save_checkpoint_in_background(Engine& engine,
                                                           const std::string& directory,
                                                           const SaveOptions& options = {});

struct LoadedCheckpoint {
  std::vector<std::byte> trainer_state;  // as SaveOptions gave it; empty if it gave none
};

// Reads weights, masters, moments and step counts from a checkpoint into a frozen engine that has
// registered the same parameters, in any order and grouping, with the same Settings::optimizer and
// Settings::moments. The engine then trains on exactly as the saved one would have, bit for bit.
// With several ranks, every rank makes this call and reads its own shard, whatever the world size
// is.
//   directory  a checkpoint, or a folder whose file `latest` names one
// Memory:  the update slots of the plan, and 14 MiB for what two threads read ahead.
// Cost:    into an engine without values, reads every value once and writes every tile once. An
//          engine that has values keeps them until all checksums are compared: that reads every
//          file once more, with several ranks each a part of it.
// Durable: with Settings::durable_every, the store keeps the previous epoch until the next commit.
//          To resume from the checkpoint after a crash, call set_trainer_state() and commit() now.
// Threads: as for Engine::load().
// Throws   before any change:
//          - kNotFound if the manifest or another file is missing.
//          - kInvalidArgument if a rank loads something else than rank 0.
//          - kInvalidArgument if the engine differs from the one that was saved. The error names a
//            parameter that is missing, unexpected, of a different dtype or shape, or frozen on one
//            side only. If there is no such parameter, the error names the rule, the precision and
//            the tensors that one side lacks.
//          - kWrongState naming a frozen parameter that a durable engine has committed.
//          - kCorrupt naming a tensor, a file's header, or a field of the manifest. For a tensor
//            and an engine without values, the error may come while they are loaded.
//          - kUnsupported for a checkpoint of another version.
//          - kIo if a file cannot be read.
//          After an error while values are loaded, no group has complete values, on any rank.
//          Repeat the call.
LoadedCheckpoint load_checkpoint(Engine& engine, const std::string& directory);

struct WeightOptions {
  // The name of the tensor that a parameter takes, by the parameter's full name. Null: the same.
  // Called before anything else; what it throws, the call throws.
  // Several parameters may take one tensor.
  std::function<std::string(const std::string& full_name)> tensor_name;
  // Leaves out tensors that no parameter takes. Else they are refused.
  bool allow_unused = false;
};

// Reads the weights of a model that another program has written, as safetensors files, into a
// frozen engine. Training begins anew from them: moments and step counts are zero.
//   path  a file, or a folder with model.safetensors.index.json or model.safetensors, in the
//         layout of Hugging Face's libraries
// A tensor may be F32, BF16 or F16, whatever the parameter's dtype is. The weight is the tensor
// rounded to that dtype (to nearest, ties to even), and the master is the tensor itself. Exception:
// with MasterLayout::kSplit, ties of the weight go away from zero, as after a step.
// With several ranks, every rank makes this call and reads its own shard.
// Memory:  the update slots of the plan, and as much as their scratch for tensors of another dtype.
// Cost:    reads every tensor twice, the second time from the page cache, and writes every tile
//          once.
// Threads: as for Engine::load(). Durable: as for load_checkpoint().
// Throws   before any change: kNotFound or kIo for a file that cannot be opened, kInvalidArgument
//          naming the fault of a file, or the parameter or tensor that is missing, unused, or of
//          another shape or kind; kWrongState as load_checkpoint(). Later: kInvalidArgument for a
//          value that is not finite or does not fit into the parameter's dtype, kIo. Then no group
//          has complete values, on any rank. Repeat the call.
void load_weights(Engine& engine, const std::string& path, const WeightOptions& options = {});
}  // namespace headrace
