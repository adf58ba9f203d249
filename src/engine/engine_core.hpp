// SPDX-License-Identifier: Apache-2.0
// engine_core.hpp: the engine behind headrace::Engine. Carries the plan out; what each call
// promises is in headrace/engine.hpp.
//
// Calls of the trainer become coroutines on the conductor (async::call). engine_core.cpp holds life
// cycle and registration, values.cpp load, store and hashes, parameter_load.cpp load of one
// parameter, leases.cpp gather, step.cpp the step, drives.cpp what freeze does about drives.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "async/task.hpp"
#include "async/worker_pool.hpp"
#include "base/hash.hpp"
#include "engine/device_updates.hpp"
#include "engine/gather_buffers.hpp"
#include "engine/gradients.hpp"
#include "engine/parts.hpp"
#include "engine/pending_updates.hpp"
#include "engine/rank_calls.hpp"
#include "engine/registry.hpp"
#include "engine/tile_store.hpp"
#include "engine/trace_recorder.hpp"
#include "engine/updates.hpp"
#include "headrace/engine.hpp"
#include "pinned/arena.hpp"
#include "swap/drive_measure.hpp"

namespace headrace {
class EngineCore {
 public:
  EngineCore(Settings settings, EngineOptions options, engine::EngineParts parts = {});
  ~EngineCore();

  engine::Registry& registry_before_freeze(const char* call);
  const engine::Registry& registry() const noexcept { return registry_; }
  void freeze();
  std::uint64_t section_offset_bytes(ParameterId id) const;
  std::uint64_t section_size_bytes(GroupId group, DType dtype) const;
  const PlanReport& plan() const;

  void load(GroupId group, const Fill& fill);
  void load(ParameterId id, Content content, const Source& source);
  void mark_written(GroupId group, const std::string& cause);
  std::uint64_t weight_changes(GroupId group);
  std::uint64_t step_count(ParameterId id);
  void set_step_count(ParameterId id, std::uint64_t steps);
  void set_hyperparameters(HyperparameterSetId set, const Hyperparameters& values);
  void store(ParameterId id, Content content, const Sink& sink, const char* call = "store");
  std::string hash_parameters();
  std::string hash_optimizer_state();

  Gathered gather(GroupId group, Stream stream);
  void release(GroupId group, std::uint32_t buffer, Stream stream) noexcept;
  DeviceSpan bytes(const Gathered& lease, ParameterId id) const;
  DeviceSpan section(const Gathered& lease, DType dtype) const;
  void add_gradient(ParameterId id, const void* gradient, DType dtype, Stream stream);
  void discard_gradients();
  StepResult step(const StepOptions& options);
  void finish_step();

  Stats stats() const;
  Trace take_trace();
  void interrupt() noexcept { interrupted_.store(true); }
  void close();
  // A holder may still read the bytes, and will call release().
  bool has_open_lease() const noexcept;
  void complain_of_lease() const noexcept;

 private:
  enum class Phase { kRegistering, kFrozen, kClosed };
  static constexpr std::uint32_t kInPlace = ~0u;  // a lease of resident bytes has no buffer

  // kBroken: a load() of the group ended on the way; kWritten: mark_written(); kHalf: a load() of
  // one parameter ended on the way.
  enum class GroupValues : std::uint8_t { kNone, kBroken, kWritten, kHalf, kWhole };

  // A tile kept in an update slot between two calls of load() or store() that want the same one.
  struct HeldTile {
    std::uint32_t tile = 0;
    engine::TileParts parts;
    engine::TileView view;
    pinned::SlotLease slot;
    bool held = false;
  };

  // Of trainer threads, in gather.
  struct Wait {
    std::atomic<std::uint64_t> ns{0}, update_ns{0};
    using Time = std::chrono::steady_clock::time_point;
    // From `began` until the group was `there`; for its update until `updated`, if that is later.
    void add(Time began, Time updated, Time there) noexcept {
      ns.fetch_add(static_cast<std::uint64_t>((there - began).count()));
      update_ns.fetch_add(
          static_cast<std::uint64_t>((std::clamp(updated, began, there) - began).count()));
    }
  };

  // Everything that exists from freeze to close, in order of construction.
  struct Frozen {
    partition::Partition partition;
    residency::Plan plan;
    engine::RankCalls ranks;
    async::FrameArena frames;
    std::unique_ptr<pinned::Arena> arena;
    std::unique_ptr<async::Conductor> conductor;
    std::unique_ptr<async::WorkerPool> workers;
    std::unique_ptr<engine::TraceRecorder> trace;  // null: none
    std::string update_threads_source;
    std::unique_ptr<swap::SwapTier> swap;
    std::unique_ptr<engine::TileStore> tiles;
    std::unique_ptr<engine::PendingUpdates> pending;
    std::unique_ptr<engine::GatherBuffers> buffers;
    std::unique_ptr<engine::Gradients> gradients;
    std::unique_ptr<engine::DeviceUpdates> device_updates;  // null: the CPU updates
    std::unique_ptr<engine::Updates> updates;
    std::vector<std::atomic<GroupValues>> group_values;
    std::vector<std::uint8_t> half_loaded;  // per parameter: a bit for each content that is
    std::vector<std::atomic<std::uint32_t>> in_place_leases;
    std::vector<Wait> waits;                    // per group
    std::vector<std::uint64_t> step_counts;     // per parameter
    std::vector<std::uint64_t> weight_changes;  // per group
    HeldTile held;
    // Posted where a call is to be given up: whoever waits looks again.
    struct WakeWaiting : async::Work {
      Frozen* frozen = nullptr;
      std::atomic<bool> posted{false};
    } wake_waiting;
    void prepare_wake();
    void wake_waiting_calls();  // any thread
    Frozen(std::uint64_t frame_bytes, Collective& collective, const engine::Registry& registry)
        : ranks(collective, registry), frames(frame_bytes) {}
  };

  // Every call of the trainer starts here: the phase is right, nothing failed, nobody interrupted.
  Frozen& ready(const char* call);
  // Runs `make()` on the conductor; the calling thread helps the workers.
  template <class Make>
  auto on_conductor(Make&& make) {
    try {
      return async::call(*frozen_->conductor, frozen_->workers.get(), std::forward<Make>(make));
    } catch (...) {
      told(std::current_exception());
      throw;
    }
  }
  // The same for a wait that EngineOptions::poll may end: `make(give_up)`, null: nothing may.
  template <class Make>
  auto patiently(const char* call, Make&& make) {
    const engine::GiveUp* none = nullptr;
    if (!poll_) return on_conductor([&] { return make(none); });
    engine::GiveUp give_up(call, *frozen_->workers, poll_,
                           [this] { frozen_->wake_waiting_calls(); });
    try {
      return async::call(*frozen_->conductor, &give_up, [&] { return make(&give_up); });
    } catch (...) {
      told(std::current_exception());
      throw;
    }
  }
  // Between the parts of a call that does not wait for long at once.
  void poll_between(const char* call);
  std::vector<swap::PathProbe> probe_paths() const;
  std::vector<residency::DriveInputs> drive_inputs(const std::vector<swap::PathProbe>& paths) const;
  residency::Plan make_plan(const partition::Partition& partition,
                            const std::vector<swap::PathProbe>& paths) const;
  void pin_arena(const Frozen& frozen);
  void refuse_without_room(const residency::Plan& plan,
                           const std::vector<swap::PathProbe>& paths) const;
  swap::LaneOptions lane_options(const Frozen& frozen) const;
  void deal_by_speed(Frozen& frozen, const std::vector<swap::PathProbe>& paths) const;
  void reclaim_unused_paths(const Frozen& frozen) const;
  void warn_of_failed_drive(const std::vector<swap::PathProbe>& paths,
                            const std::vector<swap::DriveSpeed>& speeds, std::size_t drive) const;
  void warn_of_slow_drives(const std::vector<DriveReport>& drives) const;
  void say_shares(const Frozen& frozen) const;
  void add_waits(const Frozen& frozen, Stats& stats) const;
  static void add_drive_stats(const Frozen& frozen, Stats& stats);
  std::uint64_t bookkeeping_bytes(const partition::Partition& partition) const;
  void make_device_updates(Frozen& frozen);
  void allocate(Frozen& frozen, const std::vector<swap::PathProbe>& paths);
  void say_update_place(const engine::UpdatePlace& place) const;
  void say_what_was_chosen(const Frozen& frozen) const;
  void join(Frozen& frozen, const Gathered& lease);
  void require_loaded(const Frozen& frozen, GroupId group, const char* call) const;
  void require_some_values(const Frozen& frozen, GroupId group, const char* call) const;
  [[noreturn]] void refuse_values(const Frozen& frozen, GroupId group, const char* call) const;
  std::optional<GroupId> leased_group() const noexcept;
  void refuse_lease(std::optional<GroupId> leased, const char* call) const;
  void fail(const std::string& cause) noexcept;
  void fail_deferred(const std::exception_ptr& error) noexcept;
  // Throws what ended a deferred update, once; then kInterrupted and kFailed.
  void refuse_ended(const char* call);
  void told(const std::exception_ptr& error) noexcept;

  async::Task<> write_group(GroupId group, const std::byte* values);
  async::Task<> write_tile(std::uint32_t tile, const std::byte* weight);
  async::Task<> hold_tile(std::uint32_t tile, engine::TileParts parts);
  async::Task<> let_go();
  async::Task<> write_held();
  void refuse_missing_moment(ParameterId id, Content content, const char* call) const;
  void refuse_frozen(ParameterId id, const char* call, const char* lacks) const;
  Content kept_as(ParameterId id, Content content) const;
  void load_tile(ParameterId id, std::uint32_t tile, Content content, const Source& source,
                 std::uint64_t& replaced);
  void replace_stretches(ParameterId id, std::uint32_t tile, Content content, const Source& source,
                         std::uint64_t& replaced, bool& changed);
  void refuse_change_before_repeat(const Frozen& frozen, const char* call) const;
  void set_half_loaded(Frozen& frozen, ParameterId id, std::uint8_t contents) noexcept;
  void store_tile(ParameterId id, std::uint32_t tile, Content content, const Sink& sink);
  void hash_content(base::Hash128& hash, ParameterId id, const std::string& name, Content content,
                    const char* call);

  void warn_of_unused_clipping(const StepOptions& options);
  void warn_of_no_gradients(const StepResult& result);
  // A gradient is not finite: by the setting.
  StepResult skip_or_refuse(Frozen& f, const engine::GradientTotals& totals);
  void prepare_steps(Frozen& frozen, const StepOptions& options, double factor, StepResult& result);
  async::Task<> update_now();
  async::Task<> defer_update();
  // What was deferred is done, where there is any.
  void finish_updates(const char* call);
  void until_passed(GroupId group, const char* call);
  // A call of the trainer's, for the trace.
  engine::TraceSpan trainer_span(const char* what, std::uint32_t group = TraceEvent::kNone,
                                 std::uint64_t bytes = 0) const noexcept {
    return {frozen_->trace.get(), TraceLane::kTrainer, what, group, TraceEvent::kNone, bytes};
  }

  Settings settings_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Collective> collective_;
  LogSink log_;
  std::function<bool()> poll_;
  std::chrono::steady_clock::time_point polled_;
  std::uint64_t trace_events_ = 0;
  engine::EngineParts parts_;
  engine::Registry registry_;
  std::uint64_t steps_skipped_ = 0;
  Phase phase_ = Phase::kRegistering;
  std::unique_ptr<Frozen> frozen_;
  PlanReport plan_report_;
  Stats last_stats_;  // after close
  std::uint64_t steps_ = 0;
  optimizer_cpu::UpdateFunction update_ = nullptr;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> failed_{false};
  bool told_of_clipping_ = false, told_of_no_gradients_ = false;
  mutable std::mutex cause_mutex_;
  std::string first_cause_;
  std::map<std::uint32_t, std::string> written_;  // by group: the cause that mark_written() gave
  std::exception_ptr deferred_failure_;           // until a call has thrown it
  std::atomic<std::uint64_t> gathers_{0}, in_place_{0};
  int owner_pid_ = 0;
};
}  // namespace headrace
