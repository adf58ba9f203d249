// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_core.hpp"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "async/thread.hpp"
#include "base/log.hpp"
#include "collective/call_rules.hpp"
#include "collective/collective_self.hpp"
#include "device/device_host.hpp"
#include "engine/lending.hpp"
#include "engine/startup.hpp"
#include "headrace/error.hpp"
#include "settings/key_table.hpp"
#include "swap/dead_runs.hpp"

namespace headrace {
namespace {
constexpr std::uint64_t kMostTraceEvents = std::uint64_t{1} << 26;

// One line at a time, whatever thread it comes from.
LogSink one_at_a_time(LogSink sink) {
  auto mutex = std::make_shared<std::mutex>();
  return
      [mutex, sink = base::sink_or_stderr(std::move(sink))](LogLevel level, std::string_view text) {
        const std::lock_guard lock(*mutex);
        sink(level, text);
      };
}

void check_settings(const Settings& settings) {
  settings.check();
  if (settings.gradient_accumulation_steps > 0) return;
  throw Error(Code::kSettings,
              "gradient_accumulation_steps follows from train_batch_size and the number of ranks; "
              "call Settings::resolve_batch() first, no engine was made");
}

// Whose bytes to other nodes are counted apart.
std::uint32_t ranks_of_node(const Settings& settings) {
  const std::uint32_t ranks =
      std::max(settings.zero_hpz_partition_size, settings.hierarchical_reduce_ranks);
  return ranks > 1 ? ranks : 0;
}

void check_place(const Collective& collective) {
  if (collective.rank() < collective.world_size()) return;
  throw Error(Code::kInvalidArgument,
              "EngineOptions::collective has " +
                  collective::text_beyond_world(collective.rank(), collective.world_size()) +
                  "; no engine was made");
}
}  // namespace

engine::Inputs::Inputs(Settings of, EngineOptions options, EngineParts replaced)
    : settings(std::move(of)),
      device(options.device ? std::move(options.device) : device::make_device_host()),
      collective(std::make_shared<ranks::CountedCollective>(
          options.collective ? std::move(options.collective) : collective::make_collective_self(),
          ranks_of_node(settings))),
      log(one_at_a_time(std::move(options.log))),
      poll(std::move(options.poll)),
      trace_events(options.trace_events),
      parts(std::move(replaced)) {
  check_settings(settings);
  check_place(*collective);
  collective->use_device(device);
  if (trace_events <= kMostTraceEvents) return;
  throw Error(Code::kInvalidArgument,
              "EngineOptions: trace_events = " + std::to_string(trace_events) + ": at most " +
                  std::to_string(kMostTraceEvents) + " are kept; no engine was made");
}

EngineCore::EngineCore(Settings settings, EngineOptions options, engine::EngineParts parts)
    : inputs_(std::move(settings), std::move(options), std::move(parts)),
      registry_(inputs_.settings.optimizer, inputs_.settings.moments),
      failure_(*inputs_.collective),
      owner_pid_(getpid()) {}

EngineCore::~EngineCore() {
  if (getpid() != owner_pid_) {
    running_.release();  // a forked child has none of the threads; its parent cleans up
    return;
  }
  try {
    close();
  } catch (const std::exception& error) {
    inputs_.log(LogLevel::kError, error.what());
    if (running_) running_.release();  // a lease is open: its holder may still read
  }
}

partition::Registry& EngineCore::registry_before_freeze(const char* call) {
  if (phase_ != Phase::kRegistering) {
    throw Error(Code::kWrongState,
                std::string(call) + ": registration ended with freeze(); call it before");
  }
  return registry_;
}

void EngineCore::set_hyperparameters(HyperparameterSetId set, const Hyperparameters& values) {
  constexpr const char* kCall = "set_hyperparameters";
  if (phase_ != Phase::kRegistering) ready(kCall).stepper->refuse_change_before_repeat(kCall);
  registry_.set_hyperparameters(set, values);
}

void EngineCore::freeze() {
  if (phase_ != Phase::kRegistering) {
    throw Error(Code::kWrongState,
                phase_ == Phase::kClosed
                    ? "freeze: the engine is closed; make another one"
                    : "freeze: called a second time; the plan of the first call stands. Leave this "
                      "call out, or make another engine for other groups or settings.");
  }
  if (registry_.groups().empty()) throw Error(Code::kWrongState, "freeze: no group was added");
  if (inputs_.settings.gradient_accumulation_steps > 1) {
    for (std::uint32_t g = 0; g < registry_.groups().size(); ++g)
      registry_.group({g}).repeated_gradients = true;
  }
  registry_.check_frozen();
  engine::check_lending(inputs_, registry_);
  const ranks::LocalRanks local = ranks::find_local_ranks(*inputs_.collective);
  const bool any_thread = inputs_.collective->takes_any_thread();
  const std::string settings =
      settings::lines_of(inputs_.settings) +
      "Collective::takes_any_thread() = " + (any_thread ? "true" : "false") + "\n";
  if (inputs_.collective->world_size() > 1 && !any_thread)
    inputs_.settings.rank_agreement = RankOrder::kEach;
  std::vector<std::string> given = inputs_.settings.nvme_paths;
  for (std::string& path : inputs_.settings.nvme_paths)
    path = ranks::path_of_rank(path, inputs_.collective->rank(), local.local_rank);
  try {
    running_ = engine::Startup(inputs_, local, settings, registry_, failure_).run();
  } catch (...) {
    inputs_.settings.nvme_paths = std::move(given);  // freeze() may be called again
    throw;
  }
  if (running_->epochs) running_->epochs->restore_hyperparameters(registry_);
  plan_report_ = running_->plan.report;
  phase_ = Phase::kRunning;
}

engine::Running& EngineCore::ready(const char* call) {
  engine::Running& running = this->running(call);
  if (!asleep_) return running;
  throw Error(Code::kWrongState, std::string(call) + ": the engine sleeps; call wake() first");
}

engine::Running& EngineCore::running(const char* call) {
  if (phase_ != Phase::kRunning) {
    throw Error(Code::kWrongState,
                std::string(call) + (phase_ == Phase::kClosed ? ": the engine is closed"
                                                              : ": call freeze() first"));
  }
  if (getpid() != owner_pid_) {
    throw Error(Code::kWrongState,
                std::string(call) +
                    ": called in a forked child; the engine's threads and files are "
                    "its parent's. Make an engine of its own in the child.");
  }
  failure_.throw_if_ended(call);
  return *running_;
}

void EngineCore::exchange(std::span<const std::byte> mine, std::span<std::byte> all) {
  engine::Running& running = ready("exchange");
  const std::size_t needed = mine.size() * inputs_.collective->world_size();
  if (all.size() != needed) {
    throw Error(Code::kInvalidArgument,
                "exchange: room for " + std::to_string(all.size()) + " bytes was given, and " +
                    std::to_string(inputs_.collective->world_size()) + " ranks with " +
                    std::to_string(mine.size()) + " each need " + std::to_string(needed) +
                    "; nothing was sent");
  }
  // So that ranks with different sizes are named, whatever the collective does.
  constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max();
  const auto together = running.gradients->begin_together(
      ranks::RankCall::Kind::kExchange, static_cast<std::uint32_t>(std::min(mine.size(), kMost)));
  inputs_.collective->exchange(running.ranks.next("exchange"), mine, all);
}

void EngineCore::sleep(const std::string& directory) {
  engine::Running& running = ready("sleep");
  running.leases->refuse_any("sleep");
  if (running.background.running()) {
    throw Error(Code::kWrongState,
                "sleep: a background save reads the engine's state; the engine is awake. Call "
                "BackgroundSave::wait() first.");
  }
  running.gradients->leave_order();
  if (running.gradients->any()) {
    throw Error(Code::kWrongState,
                "sleep: gradients have arrived since the last step, and would be lost; the engine "
                "is awake. Call step() or discard_gradients() first.");
  }
  running.calls->finish_updates("sleep");
  if (running.epochs) running.epochs->commit_changes();
  await_removal();
  asleep_ = std::make_unique<engine::Sleep>(inputs_, running, failure_, directory);
}

void EngineCore::wake() {
  running("wake");
  if (!asleep_) throw Error(Code::kWrongState, "wake: the engine is awake");
  asleep_->wake();
  remove_image();
}

// A file system may take a tenth of the time of the reads for it.
void EngineCore::remove_image() {
  const auto image = std::make_shared<std::unique_ptr<engine::Sleep>>(std::move(asleep_));
  try {
    removal_ = async::start_thread("headrace-remove", [image] { image->reset(); });
  } catch (const Error&) {
    image->reset();  // no thread left: this one does it
  }
}

void EngineCore::await_removal() noexcept {
  if (removal_.joinable()) removal_.join();
}

const engine::Running& EngineCore::frozen(const char* call) const {
  if (!running_) throw Error(Code::kWrongState, std::string(call) + ": call freeze() first");
  return *running_;
}

const PlanReport& EngineCore::plan() const {
  if (phase_ == Phase::kRegistering) throw Error(Code::kWrongState, "plan: call freeze() first");
  return plan_report_;
}

Stats EngineCore::stats() const {
  if (phase_ == Phase::kClosed) return last_stats_;
  Stats stats;
  if (!running_) return stats;
  running_->add_stats(stats, asleep_ != nullptr);
  inputs_.collective->add_stats(stats);
  const DeviceOverhead own = inputs_.device->overhead();
  stats.engine_bytes += own.host_bytes + own.device_bytes + inputs_.collective->host_bytes();
  return stats;
}

Trace EngineCore::take_trace() {
  return running_ && running_->trace ? running_->trace->take() : Trace{};
}

// A rank that was killed leaves its files, which nobody else would remove before the next run.
void EngineCore::reclaim_after_dead_ranks() const {
  if (inputs_.collective->world_size() == 1) return;
  for (const std::string& path : inputs_.settings.nvme_paths)
    swap::reclaim_dead_runs_at(path, inputs_.log);
}

void EngineCore::close() {
  if (phase_ == Phase::kClosed) return;
  if (getpid() != owner_pid_)
    throw Error(Code::kWrongState, "close: called in a forked child; the engine is its parent's");
  bool stalled = false;
  std::exception_ptr not_committed;
  if (running_) {
    running_->end_order(/*at_once=*/failure_.ended());
    if (running_->epochs && !asleep_) {
      running_->background.finish();
      try {
        running_->epochs->commit_at_close();
      } catch (...) {
        not_committed = std::current_exception();
      }
    }
    running_->drain();
    last_stats_ = stats();
    stalled = running_->swap && running_->swap->stalled();
    if (stalled) running_->arena->leak();
    asleep_.reset();
    await_removal();
    running_.reset();
    reclaim_after_dead_ranks();
  }
  phase_ = Phase::kClosed;
  if (const std::string error = failure_.untold(); !error.empty())
    inputs_.log(LogLevel::kError, "close: no call has thrown this error: " + error);
  if (stalled) {
    throw Error(
        Code::kIoStalled,
        "close: a transfer to the drive never completed, so the kernel may still write into the "
        "engine's memory: it is kept until the process ends. Everything else was freed.");
  }
  if (not_committed) std::rethrow_exception(not_committed);
}

bool EngineCore::has_open_lease() const noexcept {
  return running_ && getpid() == owner_pid_ && running_->leases->leased_group().has_value();
}

void EngineCore::complain_of_lease() const noexcept {
  inputs_.log(
      LogLevel::kError,
      "an engine was destroyed while a group of it is still gathered: its memory, files and "
      "threads are kept until the process ends. Release every Gathered before its Engine goes.");
}
}  // namespace headrace
