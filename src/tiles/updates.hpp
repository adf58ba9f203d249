// SPDX-License-Identifier: Apache-2.0
// updates.hpp: updates every tile that has a gradient. Reads, passes and writes of neighbouring
// tiles overlap, up to the number of update slots. PendingUpdates determines the order of groups:
// all within step(), or deferred, just ahead of the next forward pass.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "async/task.hpp"
#include "base/trace_recorder.hpp"
#include "headrace/error.hpp"
#include "ranks/gradient_sums.hpp"
#include "tiles/device_updates.hpp"
#include "tiles/hand_overs.hpp"
#include "tiles/pending_updates.hpp"
#include "tiles/tile_store.hpp"
#include "tiles/update_place.hpp"

namespace headrace::tiles {
// Conductor only, except where noted.
class Updates {
 public:
  struct Parts {
    const partition::Partition& partition;
    const residency::Plan& plan;
    const ranks::GradientSums& gradients;
    const residency::Lent& lent;
    TileStore& tiles;
    HandOvers& hand_overs;
    PendingUpdates& pending;
    DeviceUpdates* device;       // null: only the CPU updates
    std::uint32_t threads;       // that pass over tiles
    base::TraceRecorder* trace;  // null: none
    const std::atomic<bool>& interrupted;
    optimizer_cpu::UpdateFunction update;
    // Called with the faster place for updates, once it is known.
    std::function<void(const UpdatePlace& place)> on_place;
    // Called with the error that ended a deferred step's updates, but not if stop() drops updates.
    // Returns the error that waiting calls get.
    std::function<std::exception_ptr(const std::exception_ptr& error)> on_deferred_failure;
  };
  explicit Updates(const Parts& parts);

  // The step's constants for each parameter. For the trainer's thread, while nothing is pending.
  std::vector<optimizer_cpu::UpdateStep>& steps() noexcept { return steps_; }

  // Starts the update of all parameters that received a gradient, with a copy of that list.
  // `deferred_step`: the step that returns before this ends, 0 for a step that waits.
  void start(std::uint64_t deferred_step);
  // Ends when everything is on its drives. Throws the error that ended the updates before that, or
  // kInterrupted if the call gives up, while all updates continue.
  async::Task<> finish(const async::GiveUp* give_up = nullptr);
  // Ends the work in progress, starts no more, and throws nothing.
  async::Task<> stop();
  // Whether a pass over a tile has begun since start(). From then on, the step cannot be repeated.
  // Failed reads and faults in record headers come before the pass over their tile, differing
  // checksums within it. An error stops no tile that is being read: its pass still begins.
  bool began() const noexcept { return began_.load(); }  // any thread
  // Whether updates are in progress or pending. PendingUpdates::changed() wakes when they end.
  bool running() const noexcept { return running_; }
  // Whether the last ones ended before all of the step was updated.
  bool ended_early() const noexcept { return ended_early_; }

  // Any thread. Steps on the device; time with an update in progress; all threads' time in passes.
  std::uint64_t steps_on_device() const noexcept { return steps_on_device_.load(); }
  double wall_seconds() const noexcept { return 1e-9 * static_cast<double>(wall_ns_.load()); }
  double compute_seconds() const noexcept { return 1e-9 * static_cast<double>(compute_ns_.load()); }

  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition) noexcept;

 private:
  async::Task<> run();
  async::Task<> start_groups(async::TaskGroup& tiles);
  void end_early(const std::exception_ptr& error);
  async::Task<> start_group(GroupId group, async::TaskGroup& tiles);
  // What a tile holds while it is updated: an update slot, or a ticket if it needs none.
  pinned::SlotPool& places_for(std::uint32_t tile) noexcept;
  async::Task<> update_tile(std::uint32_t tile, pinned::SlotLease slot);
  async::Task<> read_pass_write(std::uint32_t tile, TileView view);
  void choose_place();
  async::Task<> run_pass(const TileUpdate& update, std::uint32_t tile, TileView view);
  TileUpdate update_of(std::uint32_t tile) const;
  bool has_gradient(std::uint32_t tile) const noexcept;
  Error of_deferred_step(const std::exception_ptr& error) const;
  GroupId group_of(std::uint32_t tile) const noexcept;
  void count_active(bool more) noexcept;

  const Parts p_;
  std::vector<std::uint8_t> received_;  // of the current step; the next one's may be arriving
  std::vector<optimizer_cpu::UpdateStep> steps_;
  std::vector<std::uint32_t> tiles_of_group_;  // those with a gradient
  pinned::SlotPool resident_;                  // tickets of tiles in memory that the CPU updates
  async::TaskGroup runner_;
  std::uint64_t deferred_step_ = 0;
  bool running_ = false, failed_ = false, stopping_ = false, ended_early_ = false;
  std::atomic<bool> began_{false};
  std::uint32_t active_ = 0;  // tiles in progress, since:
  std::chrono::steady_clock::time_point active_since_;
  std::atomic<std::uint64_t> wall_ns_{0}, compute_ns_{0}, steps_on_device_{0};
  UpdatePlace place_;
  bool on_device_ = false;            // for this step
  std::uint64_t elements_ = 0;        // of this step
  std::uint64_t wall_ns_before_ = 0;  // before this step
};
}  // namespace headrace::tiles
