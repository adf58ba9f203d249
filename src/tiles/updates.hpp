// SPDX-License-Identifier: Apache-2.0
// updates.hpp: the update of every tile that has a gradient: read, pass and write of neighbouring
// tiles overlap, bounded by the update slots. Groups come in the order in which PendingUpdates
// starts them: all within step(), or deferred, just ahead of the next forward pass.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "async/task.hpp"
#include "base/trace_recorder.hpp"
#include "headrace/error.hpp"
#include "ranks/gradients.hpp"
#include "tiles/device_updates.hpp"
#include "tiles/hand_overs.hpp"
#include "tiles/pending_updates.hpp"
#include "tiles/tile_store.hpp"
#include "tiles/update_place.hpp"

namespace headrace::tiles {
// Conductor only, but where said otherwise.
class Updates {
 public:
  struct Parts {
    const partition::Partition& partition;
    const residency::Plan& plan;
    const ranks::Gradients& gradients;
    TileStore& tiles;
    HandOvers& hand_overs;
    PendingUpdates& pending;
    DeviceUpdates* device;       // null: the CPU alone updates
    base::TraceRecorder* trace;  // null: none
    const std::atomic<bool>& interrupted;
    optimizer_cpu::UpdateFunction update;
    // Told where updates are faster, once that is known.
    std::function<void(const UpdatePlace& place)> on_place;
    // Told what ended a deferred step's updates, before who waits for them is.
    std::function<void(const std::exception_ptr& error)> on_deferred_failure;
  };
  explicit Updates(const Parts& parts);

  // What the step means for each parameter. The trainer's thread, while nothing is pending.
  std::vector<optimizer_cpu::UpdateStep>& steps() noexcept { return steps_; }

  // Starts the update of what received a gradient; what is passed on of it is the caller's copy
  // from here. `deferred_step`: the step that returns before this ends, 0 for one that waits.
  void start(std::uint64_t deferred_step);
  // Ends when all of it is on its drives; throws what ended it before that, and where it is given
  // up, with all of it going on.
  async::Task<> finish(const async::GiveUp* give_up = nullptr);
  // Likewise, but starts nothing more, and throws nothing.
  async::Task<> stop();
  // Has a tile been changed since start()? Then there is no way back.
  bool began() const noexcept { return began_.load(); }  // any thread

  // Any thread. Time with an update under way; time of all update threads in passes.
  std::uint64_t steps_on_device() const noexcept { return steps_on_device_.load(); }
  double wall_seconds() const noexcept { return 1e-9 * static_cast<double>(wall_ns_.load()); }
  double compute_seconds() const noexcept { return 1e-9 * static_cast<double>(compute_ns_.load()); }

  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition) noexcept;

 private:
  async::Task<> run();
  async::Task<> start_groups(async::TaskGroup& tiles);
  std::exception_ptr end_early(std::exception_ptr error);
  async::Task<> start_group(GroupId group, async::TaskGroup& tiles);
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
  std::vector<std::uint8_t> received_;  // of the step under way; the next one's may be arriving
  std::vector<optimizer_cpu::UpdateStep> steps_;
  std::vector<std::uint32_t> tiles_of_group_;  // with a gradient
  async::TaskGroup runner_;
  std::uint64_t deferred_step_ = 0;
  bool running_ = false, failed_ = false, stopping_ = false;
  std::atomic<bool> began_{false};
  std::uint32_t active_ = 0;  // tiles under way, since:
  std::chrono::steady_clock::time_point active_since_;
  std::atomic<std::uint64_t> wall_ns_{0}, compute_ns_{0}, steps_on_device_{0};
  UpdatePlace place_;
  bool on_device_ = false;            // this step
  std::uint64_t elements_ = 0;        // of this step
  std::uint64_t wall_ns_before_ = 0;  // it
};
}  // namespace headrace::tiles
