// SPDX-License-Identifier: Apache-2.0
// checkpoints.hpp: checkpoints during a run (--save-every), and where --load goes on.
//
//   FOLDER/step-20   a checkpoint (headrace/checkpoint.hpp) after step 20
//   FOLDER/latest    names the newest
//
// With --save-in-background, one of them may be under way while the steps go on.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/optimizer.hpp"
#include "headrace/schedule.hpp"
#include "headrace/tensor.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "training.hpp"
#include "world.hpp"

namespace train_gpt {
// The state of a run between two steps that the engine does not keep. Batches and rates follow from
// the number of the step.
struct Course {
  std::uint64_t updates = 0, skipped = 0;  // steps so far
  headrace::LossScale::State loss_scale = {};
};

struct SavedCheckpoint {
  std::uint64_t step = 0;
  std::string folder;
  double seconds = 0;
};

// `folder`, or the one above if it is not there.
std::string folder_or_above(std::string folder);

// The checkpoints that a run will make after step `done`, and those that are there.
struct CheckpointsToMake {
  std::uint64_t done = 0, steps = 0, every = 1;
  std::uint64_t keep = 0;              // 0: all
  std::vector<std::uint64_t> present;  // steps, rising
};
// How many more than now there are at once, at most: --keep removes old ones, and what is saved
// again takes the room of the one before.
std::uint64_t most_more(const CheckpointsToMake& run);
// What lacks if `free_bytes` are to hold these, each of `size_bytes`, and then the weights; and the
// one change that helps. "": nothing.
std::string lack_of_room(const CheckpointsToMake& run, std::uint64_t size_bytes,
                         std::uint64_t weight_bytes, std::uint64_t free_bytes);

// The last step that a store or a checkpoint has brought; 0: none.
std::uint64_t steps_done(const Training& training);

class Checkpoints {
 public:
  // `rule`: of the optimizer.
  Checkpoints(const Options& options, headrace::DType dtype, headrace::OptimizerRule rule,
              World& world, Progress& progress);

  // Throws kInvalidArgument if one that the run will make after step `done` is there already, and
  // kNoSpace if they will not fit, and then the weights that the run saves at its end. Warns
  // if the room cannot be asked for.
  void check(std::uint64_t done, std::uint64_t weight_bytes) const;
  // What the run's results depend on beside the settings, "--seed 1": kept with the course, and
  // compared when it is continued.
  void set_facts(std::vector<std::string> facts) { facts_ = std::move(facts); }
  // After each step, before after_step(). Notes one that was under way and has ended, and waits for
  // it if `step` is one of those that are saved. Throws what ended it.
  void settle(std::uint64_t step);
  // Saves one if `step` is one of those, or begins to; returns whether it is. Removes those that
  // --keep does not keep.
  bool after_step(std::uint64_t step, const Course& course, Training& training);
  // Returns when none is under way. Throws what ended it.
  void finish();
  // A course as bytes for a checkpoint or a store, and back. `where` names it in errors. Warns of
  // facts that differ.
  std::vector<std::byte> state_of(const Course& course) const;
  Course course_of(std::span<const std::byte> state, const std::string& where) const;
  const std::vector<SavedCheckpoint>& saved() const noexcept { return saved_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct UnderWay {
    std::uint64_t step = 0;
    Clock::time_point began;
    SaveUnderWay save;
  };
  bool is_due(std::uint64_t step) const {
    return options_.save_every > 0 && step % options_.save_every == 0;
  }
  void make_room(std::uint64_t step) const;
  void note(std::uint64_t step, Clock::time_point began);
  void remove_older(std::uint64_t step) const;
  std::string folder_of(std::uint64_t step) const;
  // Steps of checkpoints that are there, rising.
  std::vector<std::uint64_t> present() const;
  void remove(std::uint64_t step) const;
  void check_room(const CheckpointsToMake& run, std::uint64_t weight_bytes) const;

  const Options& options_;
  std::vector<std::string> facts_;
  World& world_;
  Progress& progress_;
  std::uint64_t size_bytes_ = 0;
  std::vector<SavedCheckpoint> saved_;
  std::optional<UnderWay> under_way_;
};
}  // namespace train_gpt
