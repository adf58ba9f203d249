// SPDX-License-Identifier: Apache-2.0
// engine_core.cpp: life cycle: registration, freeze, close; stats.
#include "engine/engine_core.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/log.hpp"
#include "base/units.hpp"
#include "collective/collectives.hpp"
#include "device/device_host.hpp"
#include "engine/tuned_elsewhere.hpp"
#include "platform/drive_facts.hpp"
#include "platform/machine.hpp"
#include "settings/environment.hpp"

namespace headrace {
using partition::Partition;

namespace {
platform::Limit update_threads(const Settings& settings, std::uint32_t ranks) {
  const std::uint32_t wanted = settings::update_threads(settings);
  if (wanted == 0) return platform::usable_cpus(ranks);
  return {wanted,
          wanted == settings.update_threads ? "headrace.update_threads" : "HEADRACE_NUM_THREADS"};
}

// One line at a time, whatever thread it comes from.
LogSink one_at_a_time(LogSink sink) {
  auto mutex = std::make_shared<std::mutex>();
  return
      [mutex, sink = base::sink_or_stderr(std::move(sink))](LogLevel level, std::string_view text) {
        const std::lock_guard lock(*mutex);
        sink(level, text);
      };
}

std::string queue_details(const swap::Registered& registered) {
  const std::string text = swap::text_of(registered);
  const bool both = !text.empty() && !registered.refused.empty();
  return text + (both ? "; " : "") + registered.refused;
}

void check_settings(const Settings& settings) {
  settings.check();
  if (settings.gradient_accumulation_steps > 0) return;
  throw Error(Code::kSettings,
              "gradient_accumulation_steps follows from train_batch_size and the number of ranks; "
              "call Settings::resolve_batch() first, no engine was made");
}

constexpr std::uint64_t kMostTraceEvents = std::uint64_t{1} << 26;

// A file's dtype is the trainer's to follow. "" where it did, or nothing asks.
std::string dtype_not_followed(const Settings& settings, const Partition& partition) {
  const std::optional<DType> asked = settings.parameter_dtype();
  const auto& sections = partition.sections;
  const auto follows = [&](const partition::Section& section) { return section.dtype == *asked; };
  if (!asked || sections.empty() || std::ranges::any_of(sections, follows)) return "";
  const char* why = asked == DType::kF32    ? "neither bf16.enabled nor fp16.enabled is true"
                    : asked == DType::kBf16 ? "bf16.enabled"
                                            : "fp16.enabled";
  return std::string("the settings ask for ") + name_of(*asked) + " parameters (" + why +
         "), and none of those registered is: they train in " + name_of(sections.front().dtype) +
         ", where DeepSpeed would not. Register what Settings::parameter_dtype() says, or set "
         "bf16.enabled or fp16.enabled";
}
}  // namespace

EngineCore::EngineCore(Settings settings, EngineOptions options, engine::EngineParts parts)
    : settings_(std::move(settings)),
      device_(options.device ? std::move(options.device) : device::make_device_host()),
      collective_(options.collective ? std::move(options.collective)
                                     : collective::make_collective_self()),
      log_(one_at_a_time(std::move(options.log))),
      poll_(std::move(options.poll)),
      trace_events_(options.trace_events),
      parts_(std::move(parts)),
      registry_(settings_.optimizer, settings_.moments),
      owner_pid_(getpid()) {
  check_settings(settings_);
  if (trace_events_ > kMostTraceEvents) {
    throw Error(Code::kInvalidArgument,
                "EngineOptions: trace_events = " + std::to_string(trace_events_) + ": at most " +
                    std::to_string(kMostTraceEvents) + " are kept; no engine was made");
  }
}

EngineCore::~EngineCore() {
  if (getpid() != owner_pid_) {
    frozen_.release();  // a forked child has none of the threads; its parent cleans up
    return;
  }
  try {
    close();
  } catch (const std::exception& error) {
    log_(LogLevel::kError, error.what());
    if (frozen_) frozen_.release();  // a lease is open: its holder may still read
  }
}

engine::Registry& EngineCore::registry_before_freeze(const char* call) {
  if (phase_ != Phase::kRegistering) {
    throw Error(Code::kWrongState,
                std::string(call) + ": registration ended with freeze(); call it before");
  }
  return registry_;
}

EngineCore::Frozen& EngineCore::ready(const char* call) {
  if (phase_ != Phase::kFrozen) {
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
  refuse_ended(call);
  return *frozen_;
}

void EngineCore::refuse_ended(const char* call) {
  const bool failed = failed_.load(), interrupted = interrupted_.load();
  if (!failed && !interrupted) return;
  const std::lock_guard lock(cause_mutex_);
  if (deferred_failure_) std::rethrow_exception(std::exchange(deferred_failure_, nullptr));
  if (interrupted) {
    throw Error(Code::kInterrupted,
                std::string(call) + ": interrupted; the engine can only be closed");
  }
  throw Error(
      Code::kFailed,
      std::string(call) + ": the engine failed earlier and can only be closed: " + first_cause_);
}

void EngineCore::told(const std::exception_ptr& error) noexcept {
  const std::lock_guard lock(cause_mutex_);
  if (error == deferred_failure_) deferred_failure_ = nullptr;
}

void EngineCore::fail(const std::string& cause) noexcept {
  {
    const std::lock_guard lock(cause_mutex_);
    if (first_cause_.empty()) first_cause_ = cause;
  }
  failed_.store(true);
  collective_->abort(cause);
}

void EngineCore::fail_deferred(const std::exception_ptr& error) noexcept {
  {
    const std::lock_guard lock(cause_mutex_);
    deferred_failure_ = error;
  }
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& cause) {
    fail(cause.what());
  }
}

std::uint64_t EngineCore::bookkeeping_bytes(const Partition& partition) const {
  const std::uint64_t parameters = partition.parameters.size(), groups = registry_.groups().size();
  return sizeof(EngineCore) + sizeof(Frozen) + registry_.bookkeeping_bytes() +
         partition.bookkeeping_bytes() + engine::TileStore::bookkeeping_bytes(partition) +
         engine::Gradients::bookkeeping_bytes(partition) +
         engine::PendingUpdates::bookkeeping_bytes(partition) +
         engine::Updates::bookkeeping_bytes(partition) +
         engine::RankCalls::bookkeeping_bytes(partition.world_size) +
         engine::TraceRecorder::bookkeeping_bytes(trace_events_) +
         partition.tiles.size() * (sizeof(residency::TilePlan) + 1) +
         partition.sections.size() * (sizeof(residency::SectionPlan) + sizeof(std::uint64_t)) +
         parameters * (sizeof(std::uint64_t) + 1) + groups * (40 + sizeof(Wait));
}

residency::Plan EngineCore::make_plan(const Partition& partition,
                                      const std::vector<swap::PathProbe>& paths) const {
  residency::PlanInputs inputs;
  inputs.partition = &partition;
  for (const engine::RegisteredGroup& group : registry_.groups()) {
    inputs.groups.push_back({group.repeated_gradients, group.keep_bound});
  }
  inputs.settings = settings_;
  if (settings_.update_on == UpdateOn::kAuto && device_->updates() == nullptr)
    inputs.settings.update_on = UpdateOn::kCpu;
  inputs.drives = drive_inputs(paths);
  inputs.device_shares_host_memory = device_->shares_host_memory();
  inputs.device_overhead = device_->overhead();
  inputs.bookkeeping_bytes = bookkeeping_bytes(partition);
  const platform::Limit left = platform::memory_left();
  inputs.machine_left_bytes = parts_.machine_left_bytes.value_or(left.value);
  inputs.machine_limit_source = left.source;
  inputs.smallest_with_tiles = [&, this](std::uint64_t tile_elements) {
    const Partition other = partition::make_partition(
        registry_.shapes(), tile_elements, collective_->rank(), collective_->world_size());
    residency::PlanInputs with = inputs;
    with.partition = &other;
    with.bookkeeping_bytes = bookkeeping_bytes(other);
    return residency::smallest_host_bytes(with);
  };
  return residency::make_plan(inputs);
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
  if (settings_.gradient_accumulation_steps > 1) {
    for (std::uint32_t g = 0; g < registry_.groups().size(); ++g)
      registry_.group({g}).repeated_gradients = true;
  }
  if (settings_.update_on == UpdateOn::kDevice) engine::DeviceUpdates::require(*device_);
  const std::vector<swap::PathProbe> paths = probe_paths();
  Partition partition = partition::make_partition(registry_.shapes(), settings_.tile_elements,
                                                  collective_->rank(), collective_->world_size());
  residency::Plan plan = make_plan(partition, paths);
  auto frozen = std::make_unique<Frozen>(plan.frame_bytes, *collective_, registry_);
  frozen->partition = std::move(partition);
  frozen->plan = std::move(plan);
  refuse_without_room(frozen->plan, paths);
  update_ = optimizer_cpu::update_function(optimizer_cpu::choose_instruction_set());
  allocate(*frozen, paths);
  frozen->ranks.compare_registration(settings_);
  for (const std::string& warning : settings_.warnings) log_(LogLevel::kWarning, warning);
  for (const std::string& line : settings_.defaults_taken) log_(LogLevel::kInfo, line);
  if (const std::string other = dtype_not_followed(settings_, frozen->partition); !other.empty())
    log_(LogLevel::kWarning, other);
  say_what_was_chosen(*frozen);
  plan_report_ = frozen->plan.report;
  frozen_ = std::move(frozen);
  phase_ = Phase::kFrozen;
}

void EngineCore::say_update_place(const engine::UpdatePlace& place) const {
  const auto rate = [](double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", 1e-9 / seconds);
    return std::string(text);
  };
  log_(LogLevel::kInfo,
       "updates: " + rate(place.cpu_seconds()) + " G elements/s on the CPU, " +
           rate(place.device_seconds()) + " on " + device_->name() +
           (place.on_device() ? ": there from here on" : ": on the CPU from here on"));
}

void EngineCore::say_what_was_chosen(const Frozen& f) const {
  if (!f.plan.warning.empty()) log_(LogLevel::kWarning, f.plan.warning);
  log_(LogLevel::kInfo, residency::summary(f.plan));
  log_(LogLevel::kInfo, std::to_string(f.workers->threads()) + " update threads (" +
                            f.update_threads_source + "), instruction set " +
                            optimizer_cpu::name_of(optimizer_cpu::choose_instruction_set()));
  if (f.device_updates) {
    const bool tried = f.plan.update_on == UpdateOn::kAuto;
    log_(LogLevel::kInfo, std::string("tiles are updated ") +
                              (tried ? "by the CPU, or where it is faster, on " : "on ") +
                              device_->name() + ", through " +
                              std::to_string(f.plan.device_update_slots) + " slots of " +
                              base::format_bytes(f.plan.device_update_slot_bytes));
  }
  if (!f.swap) return;
  const std::string elsewhere = engine::tuned_elsewhere(
      settings_.tuned, platform::models_text(settings_.nvme_paths), platform::kernel_release());
  if (!elsewhere.empty()) log_(LogLevel::kWarning, elsewhere);
  const swap::Registered registered = f.swap->registered();
  if (!registered.refused.empty()) log_(LogLevel::kInfo, registered.refused);
  const std::string details = text_of(registered);
  std::string text = "I/O queue " + f.swap->queue_name() + (details.empty() ? "" : ", " + details) +
                     (f.swap->direct() ? ", O_DIRECT" : ", buffered") + ", on";
  for (const std::string& path : settings_.nvme_paths) text += " " + path;
  log_(LogLevel::kInfo, text);
  say_shares(f);
}

// Pinned or not the bytes are the same: a device that cannot is said once.
void EngineCore::pin_arena(const Frozen& f) {
  if (f.arena->size_bytes() == 0) return;
  try {
    f.arena->pin(*device_);
  } catch (const Error& error) {
    if (error.code() == Code::kFailed) throw;
    log_(LogLevel::kWarning, error.what());
  }
}

// With "auto" a device that is too full for them is left alone.
void EngineCore::make_device_updates(Frozen& f) {
  if (f.plan.device_update_slots == 0) return;
  try {
    f.device_updates = std::make_unique<engine::DeviceUpdates>(*device_, *f.conductor, f.plan);
  } catch (const Error& error) {
    if (f.plan.update_on != UpdateOn::kAuto || error.code() != Code::kOutOfBudget) throw;
    residency::leave_out_device_updates(f.plan);
    log_(LogLevel::kInfo, std::string("headrace.update_on auto: ") + device_->name() +
                              " has no room for an update's slots: the CPU updates");
  }
}

void EngineCore::allocate(Frozen& f, const std::vector<swap::PathProbe>& paths) {
  const platform::Limit limit = parts_.update_threads
                                    ? platform::Limit{*parts_.update_threads, "given"}
                                    : update_threads(settings_, collective_->world_size());
  const auto threads = static_cast<std::uint32_t>(limit.value);
  f.update_threads_source = limit.source;
  if (trace_events_ > 0) f.trace = std::make_unique<engine::TraceRecorder>(trace_events_);
  f.arena = std::make_unique<pinned::Arena>(f.plan.arena_bytes, std::max(1u, threads));
  pin_arena(f);
  f.conductor = parts_.make_conductor ? parts_.make_conductor() : async::make_conductor_asio();
  f.conductor->use_frames(&f.frames);
  f.workers = std::make_unique<async::WorkerPool>(*f.conductor, threads, parts_.pass_takes);
  if (f.plan.report.nvme_bytes > 0 && !paths.empty()) {
    deal_by_speed(f, paths);
    swap::SwapTierOptions options;
    static_cast<swap::LaneOptions&>(options) = lane_options(f);
    options.paths = paths;
    options.drive_bytes = f.plan.drive_bytes;
    options.on_stall = [this](const std::string& cause) { fail(cause); };
    f.swap = std::make_unique<swap::SwapTier>(*f.conductor, std::move(options));
    if (const std::string reason = f.swap->queue_reason(); !reason.empty())
      log_(LogLevel::kWarning, reason);
  }
  reclaim_unused_paths(f);
  f.tiles = std::make_unique<engine::TileStore>(
      engine::TileStore::Parts{registry_, f.partition, f.plan, settings_, *f.arena, *f.workers,
                               f.swap.get(), f.trace.get()});
  f.pending = std::make_unique<engine::PendingUpdates>(f.partition, f.plan);
  f.buffers = std::make_unique<engine::GatherBuffers>(
      engine::GatherBuffers::Parts{registry_, f.partition, f.plan, settings_.prefetch_groups,
                                   *f.arena, *f.tiles, *f.pending, *device_, *f.conductor});
  f.gradients = std::make_unique<engine::Gradients>(
      engine::Gradients::Parts{registry_, f.partition, f.plan, *f.arena, *device_, f.ranks,
                               [this](GroupId group) { until_passed(group, "add_gradient"); }});
  make_device_updates(f);
  f.updates = std::make_unique<engine::Updates>(
      engine::Updates::Parts{f.partition, f.plan, *f.gradients, *f.tiles, *f.buffers, *f.pending,
                             f.device_updates.get(), f.trace.get(), interrupted_, update_,
                             [this](const engine::UpdatePlace& place) { say_update_place(place); },
                             [this](const std::exception_ptr& error) { fail_deferred(error); }});
  f.prepare_wake();
  f.group_values = std::vector<std::atomic<GroupValues>>(registry_.groups().size());
  f.waits = std::vector<Wait>(registry_.groups().size());
  f.half_loaded.resize(f.partition.parameters.size());
  f.in_place_leases = std::vector<std::atomic<std::uint32_t>>(registry_.groups().size());
  f.step_counts.resize(f.partition.parameters.size());
  f.weight_changes.resize(registry_.groups().size());
  // Before the first step, so that no step allocates.
  async::call(*f.conductor, f.workers.get(), [&]() -> async::Task<> {
    f.buffers->next_step();
    co_return;
  });
}

void EngineCore::Frozen::prepare_wake() {
  wake_waiting.frozen = this;
  wake_waiting.run = [](async::Work* work) noexcept {
    auto* const wake = static_cast<WakeWaiting*>(work);
    wake->posted.store(false);  // first: who asks from here on is not woken yet
    wake->frozen->buffers->wake();
    wake->frozen->pending->wake();
  };
}
void EngineCore::Frozen::wake_waiting_calls() {
  if (!wake_waiting.posted.exchange(true)) conductor->post(wake_waiting);
}

void EngineCore::poll_between(const char* call) {
  if (!poll_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - polled_ < engine::GiveUp::kEvery) return;
  polled_ = now;
  if (poll_()) engine::GiveUp::refuse(call);
}

const PlanReport& EngineCore::plan() const {
  if (phase_ == Phase::kRegistering) throw Error(Code::kWrongState, "plan: call freeze() first");
  return plan_report_;
}

std::uint64_t EngineCore::section_offset_bytes(ParameterId id) const {
  if (!frozen_) throw Error(Code::kWrongState, "section_offset_bytes: call freeze() first");
  const engine::RegisteredParameter& parameter = registry_.parameter(id);
  const partition::Partition& cut = frozen_->partition;
  return cut.first_in_buffer(cut.parameters[id.index]) * size_bytes(parameter.spec.dtype);
}

std::uint64_t EngineCore::section_size_bytes(GroupId group, DType dtype) const {
  if (!frozen_) throw Error(Code::kWrongState, "section_size_bytes: call freeze() first");
  registry_.group(group);
  return frozen_->partition.buffer_elements(group.index, dtype) * size_bytes(dtype);
}

void EngineCore::require_loaded(const Frozen& f, GroupId group, const char* call) const {
  if (f.group_values[group.index] != GroupValues::kWhole) refuse_values(f, group, call);
}

Stats EngineCore::stats() const {
  if (phase_ == Phase::kClosed) return last_stats_;
  Stats s;
  if (!frozen_) return s;
  const Frozen& f = *frozen_;
  if (f.swap) {
    const swap::DriveCounters c = f.swap->totals();
    s.nvme_read_bytes = c.read_bytes;
    s.nvme_written_bytes = c.written_bytes;
    s.nvme_reads = c.reads;
    s.nvme_writes = c.writes;
    s.nvme_retries = c.retries;
    s.nvme_read_busy_seconds = c.read_busy_seconds;
    s.nvme_write_busy_seconds = c.write_busy_seconds;
    s.io_queue = f.swap->queue_name();
    s.io_queue_reason = f.swap->queue_reason();
    s.io_queue_details = queue_details(f.swap->registered());
    s.direct_io = f.swap->direct();
    add_drive_stats(f, s);
  }
  s.update_threads = f.workers->threads();
  s.update_threads_source = f.update_threads_source;
  const engine::GatherCounters g = f.buffers->counters();
  s.copied_to_device_bytes = g.copied_bytes;
  s.update_compute_seconds = f.updates->compute_seconds();
  s.steps_updated_on_device = f.updates->steps_on_device();
  s.steps_skipped = steps_skipped_;
  s.update_wall_seconds = f.updates->wall_seconds();
  s.gathers = gathers_.load();
  s.gathers_in_place = in_place_.load();
  s.gathers_prefetched = g.prefetched;
  s.gathers_on_demand = g.on_demand;
  add_waits(f, s);
  s.engine_bytes = f.arena->size_bytes() + f.buffers->device_bytes() + f.gradients->device_bytes() +
                   (f.device_updates ? f.device_updates->device_bytes() : 0) +
                   f.frames.reserve_bytes() + bookkeeping_bytes(f.partition) +
                   device_->overhead().host_bytes + device_->overhead().device_bytes;
  return s;
}

void EngineCore::add_waits(const Frozen& f, Stats& stats) const {
  for (std::uint32_t g = 0; g < f.waits.size(); ++g) {
    const std::uint64_t ns = f.waits[g].ns.load();
    if (ns == 0) continue;
    stats.waits.push_back({registry_.groups()[g].name, 1e-9 * static_cast<double>(ns),
                           1e-9 * static_cast<double>(f.waits[g].update_ns.load())});
    stats.gather_wait_seconds += stats.waits.back().seconds;
    stats.gather_wait_update_seconds += stats.waits.back().update_seconds;
  }
  std::ranges::sort(stats.waits, std::ranges::greater(), &GroupWait::seconds);
}

Trace EngineCore::take_trace() {
  return frozen_ && frozen_->trace ? frozen_->trace->take() : Trace{};
}

void EngineCore::close() {
  if (phase_ == Phase::kClosed) return;
  if (getpid() != owner_pid_)
    throw Error(Code::kWrongState, "close: called in a forked child; the engine is its parent's");
  if (!frozen_) {
    phase_ = Phase::kClosed;
    return;
  }
  Frozen& f = *frozen_;
  refuse_lease(leased_group(), "close");
  on_conductor([&]() -> async::Task<> {
    co_await let_go();
    co_await f.updates->stop();
    co_await f.buffers->drain();
  });
  last_stats_ = stats();
  const bool stalled = f.swap && f.swap->stalled();
  if (stalled) f.arena->leak();
  frozen_.reset();
  phase_ = Phase::kClosed;
  if (stalled) {
    throw Error(
        Code::kIoStalled,
        "close: a transfer to the drive never completed, so the kernel may still write into the "
        "engine's memory: it is kept until the process ends. Everything else was freed.");
  }
}
}  // namespace headrace
