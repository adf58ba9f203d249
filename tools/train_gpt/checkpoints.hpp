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

// The last step that a store or a checkpoint has brought; 0: none.
std::uint64_t steps_done(const Training& training);

class Checkpoints {
 public:
  // `rule`: of the optimizer.
  Checkpoints(const Options& options, headrace::DType dtype, headrace::OptimizerRule rule,
              World& world, Progress& progress);

  // The room that one takes; 0 without --save-every.
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  // Throws kInvalidArgument if one that the run will make after step `done` is there already, and
  // kNoSpace if they will not fit.
  void check(std::uint64_t done) const;
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

  const Options& options_;
  std::vector<std::string> facts_;
  World& world_;
  Progress& progress_;
  std::uint64_t size_bytes_ = 0;
  std::vector<SavedCheckpoint> saved_;
  std::optional<UnderWay> under_way_;
};
}  // namespace train_gpt
