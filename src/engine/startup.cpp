// SPDX-License-Identifier: Apache-2.0
#include "engine/startup.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/units.hpp"
#include "device/packing.hpp"
#include "device/span_updates.hpp"
#include "engine/engine_core.hpp"
#include "engine/tuned_elsewhere.hpp"
#include "headrace/error.hpp"
#include "platform/block_devices.hpp"
#include "platform/machine.hpp"
#include "settings/environment.hpp"

namespace headrace::engine {
using partition::Partition;

namespace {
platform::Limit update_threads(const Settings& settings, std::uint32_t ranks) {
  const std::uint32_t wanted = settings::update_threads(settings);
  if (wanted == 0) return platform::usable_cpus(ranks);
  return {wanted,
          wanted == settings.update_threads ? "headrace.update_threads" : "HEADRACE_NUM_THREADS",
          ""};
}

// A file's dtype is the trainer's to follow. "" where it did, or nothing asks.
std::string dtype_not_followed(const Settings& settings, const Partition& partition) {
  const std::optional<DType> asked = settings.parameter_dtype();
  const auto& sections = partition.sections;
  const auto follows = [&](const partition::Section& section) { return section.dtype == *asked; };
  const auto other = std::ranges::find_if(
      sections, [](const partition::Section& section) { return section.dtype != DType::kU8; });
  if (!asked || other == sections.end() || std::ranges::any_of(sections, follows)) return "";
  const char* why = asked == DType::kF32    ? "neither bf16.enabled nor fp16.enabled is true"
                    : asked == DType::kBf16 ? "bf16.enabled"
                                            : "fp16.enabled";
  return std::string("the settings ask for ") + name_of(*asked) + " parameters (" + why +
         "), and none of those registered is: they train in " + name_of(other->dtype) +
         ", where DeepSpeed would not. Register what Settings::parameter_dtype() says, or set "
         "bf16.enabled or fp16.enabled";
}
void say_update_place(const Inputs& in, const tiles::UpdatePlace& place) {
  const auto rate = [](double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", 1e-9 / seconds);
    return std::string(text);
  };
  in.log(LogLevel::kInfo,
         "updates: " + rate(place.cpu_seconds()) + " G elements/s on the CPU, " +
             rate(place.device_seconds()) + " on " + in.device->name() +
             (place.on_device() ? ": there from here on" : ": on the CPU from here on"));
}
// The error for those who wait for the update.
std::exception_ptr deferred_failure(const Running& r, Failure& failure,
                                    const std::exception_ptr& error) {
  const std::exception_ptr told =
      r.epochs == nullptr
          ? error
          : with_way_on(error, "it was deferred (headrace.update_mode)", r.epochs->durable_step());
  failure.fail_deferred(told);
  return told;
}
}  // namespace

std::unique_ptr<Running> Startup::run() {
  if (in_.settings.update_on == UpdateOn::kDevice) tiles::DeviceUpdates::require(*in_.device);
  paths_ = probe_paths();
  refuse_tables();
  if (in_.settings.durable_every > 0) store_ = std::make_unique<StoreOpening>(in_, paths_);
  Partition partition =
      partition::make_partition(registry_.shapes(), in_.settings.tile_elements,
                                in_.collective->rank(), in_.collective->world_size());
  residency::Plan plan = make_plan(partition);
  refuse_nodes(plan);
  if (plan.wire.packed_parameters || plan.wire.packed_gradients)
    (void)device::Packer(*in_.device);  // which throws if the device cannot
  if (!store_ || !store_->exists()) refuse_without_room(plan);
  auto running = std::make_unique<Running>(in_, registry_, std::move(partition), std::move(plan));
  running->bookkeeping_bytes = bookkeeping_bytes(running->partition);
  if (store_ || drives_compete()) {
    // First, since then no rank waits for a store or a measurement that another does not have.
    running->ranks.compare_registration(settings_);
    allocate_together(*running);
  } else {
    allocate(*running);
    running->ranks.compare_registration(settings_);
  }
  running->gradients->begin();
  say_what_was_chosen(*running);
  return running;
}

std::uint64_t Startup::machine_left_bytes() const {
  return in_.parts.machine_left_bytes ? in_.parts.machine_left_bytes() : local_.memory_left.value;
}

// The tables of a plan come before it is known whether the plan fits. Those of a wrong shape alone
// could fill the memory.
void Startup::refuse_tables() const {
  constexpr std::uint64_t kBytesPerTile = 4 * base::kKiB;  // planning takes less
  std::uint64_t tiles = 0;
  for (const partition::RegisteredParameter& parameter : registry_.parameters())
    tiles += parameter.spec.elements() / in_.collective->world_size() / in_.settings.tile_elements;
  const std::uint64_t left = machine_left_bytes();
  if (left == 0 || tiles <= left / kBytesPerTile) return;
  throw Error(Code::kOutOfBudget,
              "the registered parameters make " + std::to_string(tiles) +
                  " tiles or more on this rank, whose tables alone may take " +
                  base::format_bytes(tiles * kBytesPerTile) + ", and " + base::format_bytes(left) +
                  " of memory is left (" + local_.memory_left.source +
                  "); nothing was allocated. Check the shapes, or run where there is more memory.");
}

void Startup::refuse_nodes(const residency::Plan& plan) const {
  const std::uint32_t ranks = std::max(plan.node_ranks, plan.reduce_ranks);
  if (ranks == 0 || in_.collective->has_all_to_all_v()) return;
  throw Error(Code::kUnsupported,
              std::string(plan.node_ranks > 0 ? "zero_optimization.zero_hpz_partition_size"
                                              : "headrace.hierarchical_reduce_ranks") +
                  " is " + std::to_string(ranks) +
                  ", and this collective has no all_to_all_v; nothing was allocated. Set it to 1, "
                  "or implement all_to_all_v (headrace/collective.hpp).");
}

std::uint64_t Startup::bookkeeping_bytes(const Partition& partition) const {
  return sizeof(EngineCore) + sizeof(Running) + registry_.bookkeeping_bytes() +
         partition.bookkeeping_bytes() +
         tiles::TilePlaces::bookkeeping_bytes(partition, in_.settings.durable_every > 0) +
         Epochs::bookkeeping_bytes(in_.settings) +
         ranks::Gradients::bookkeeping_bytes(partition,
                                             in_.settings.hierarchical_reduce_ranks > 1) +
         tiles::PendingUpdates::bookkeeping_bytes(partition) +
         tiles::Updates::bookkeeping_bytes(partition) +
         tiles::NodeShards::bookkeeping_bytes(partition) +
         ranks::RankCalls::bookkeeping_bytes(registry_, partition.world_size,
                                             ranks::GradientSums::pack_bytes(partition)) +
         base::TraceRecorder::bookkeeping_bytes(in_.trace_events) +
         partition.tiles.size() * (sizeof(residency::TilePlan) + 1) +
         partition.sections.size() * sizeof(residency::SectionPlan) + sizeof(Calls) +
         sizeof(Leases) + sizeof(Values) + sizeof(Stepper) +
         ValueStates::bookkeeping_bytes(registry_) + Counts::bookkeeping_bytes(registry_) +
         Leases::bookkeeping_bytes(partition) +
         residency::Lent::bookkeeping_bytes(registry_.parameters().size());
}

std::uint64_t Startup::commit_bytes(const Partition& partition) const {
  if (in_.settings.durable_every == 0) return 0;
  return swap::CommitRecord::place_bytes(EpochTerms(in_.settings, registry_, partition).counts());
}

std::uint64_t Startup::registration_bytes(const Partition& partition) const {
  if (in_.settings.durable_every == 0) return 0;
  return swap::packed(registration_of(registry_, partition), {}).size();
}

residency::Plan Startup::make_plan(const Partition& partition) const {
  residency::PlanInputs inputs;
  inputs.partition = &partition;
  for (const partition::RegisteredGroup& group : registry_.groups()) {
    inputs.groups.push_back(
        {group.repeated_gradients, group.keep_bound, group.lends_gradients, group.lends_weights});
  }
  inputs.settings = in_.settings;
  if (in_.settings.update_on == UpdateOn::kAuto && device::updates_of(*in_.device) == nullptr)
    inputs.settings.update_on = UpdateOn::kCpu;
  inputs.drives = drive_inputs();
  inputs.device_shares_host_memory = in_.device->shares_host_memory();
  inputs.device_overhead = in_.device->overhead();
  inputs.collective_bytes = in_.collective->host_bytes();
  inputs.bookkeeping_bytes = bookkeeping_bytes(partition);
  inputs.commit_bytes = commit_bytes(partition);
  inputs.registration_bytes = registration_bytes(partition);
  inputs.machine_left_bytes = machine_left_bytes();
  inputs.machine_limit_source = local_.memory_left.source;
  inputs.smallest_with_tiles = [&, this](std::uint64_t tile_elements) {
    const Partition other = partition::make_partition(
        registry_.shapes(), tile_elements, in_.collective->rank(), in_.collective->world_size());
    residency::PlanInputs with = inputs;
    with.partition = &other;
    with.bookkeeping_bytes = bookkeeping_bytes(other);
    with.commit_bytes = commit_bytes(other);
    return residency::smallest_host_bytes(with);
  };
  return residency::make_plan(inputs);
}

void Startup::say_what_ranks_ignore(std::uint32_t ranks) const {
  const std::uint32_t of_node = in_.settings.zero_hpz_partition_size;
  if (ranks > 1 && of_node > ranks) {
    in_.log(LogLevel::kWarning, "zero_optimization.zero_hpz_partition_size is " +
                                    std::to_string(of_node) + ", and there are " +
                                    std::to_string(ranks) +
                                    " ranks: all of them are one node, so it has no effect");
  }
  if (ranks == 1 && in_.settings.hierarchical_reduce_ranks > 1) {
    in_.log(LogLevel::kWarning,
            "headrace.hierarchical_reduce_ranks has no effect: one rank adds its gradients one "
            "after the other, so its results differ in their last bits from those of several");
  }
  if (ranks == 1 &&
      (in_.settings.zero_quantized_weights || in_.settings.zero_quantized_gradients)) {
    in_.log(LogLevel::kWarning,
            "zero_optimization.zero_quantized_weights and zero_quantized_gradients have no effect: "
            "one rank sends nothing, and computes with exact values, unlike several");
  }
}

void Startup::say_what_was_chosen(const Running& r) const {
  for (const std::string& warning : in_.settings.warnings) in_.log(LogLevel::kWarning, warning);
  for (const std::string& line : in_.settings.defaults_taken) in_.log(LogLevel::kInfo, line);
  if (const std::string other = dtype_not_followed(in_.settings, r.partition); !other.empty())
    in_.log(LogLevel::kWarning, other);
  if (!r.plan.warning.empty()) in_.log(LogLevel::kWarning, r.plan.warning);
  say_what_ranks_ignore(r.partition.world_size);
  in_.log(LogLevel::kInfo, residency::summary(r.plan));
  if (const std::string changed = residency::what_changes_results(r.plan); !changed.empty())
    in_.log(LogLevel::kInfo, changed);
  in_.log(LogLevel::kInfo, std::to_string(r.workers->threads()) + " update threads (" +
                               r.update_threads_source + "), instruction set " +
                               name_of(kernels::choose_instruction_set()));
  if (r.device_updates) {
    const bool tried = r.plan.update_on == UpdateOn::kAuto;
    in_.log(LogLevel::kInfo, std::string("tiles are updated ") +
                                 (tried ? "by the CPU, or where it is faster, on " : "on ") +
                                 in_.device->name() + ", through " +
                                 std::to_string(r.plan.device_update_slots) + " slots of " +
                                 base::format_bytes(r.plan.device_update_slot_bytes));
  }
  if (!r.swap) return;
  if (const Tuned& tuned = in_.settings.tuned; tuned != Tuned{}) {
    const std::string elsewhere = engine::tuned_elsewhere(
        tuned, platform::models_text(in_.settings.nvme_paths), platform::kernel_release());
    if (!elsewhere.empty()) in_.log(LogLevel::kWarning, elsewhere);
  }
  const swap::QueueInUse queue = r.swap->queue();
  if (!queue.registered.refused.empty()) in_.log(LogLevel::kInfo, queue.registered.refused);
  const std::string details = text_of(queue.registered);
  std::string text = "I/O queue " + queue.name + (details.empty() ? "" : ", " + details) +
                     (queue.direct ? ", O_DIRECT" : ", buffered") + ", on";
  for (const std::string& path : in_.settings.nvme_paths) text += " " + path;
  in_.log(LogLevel::kInfo, text);
  say_shares(r);
}

void pin_arena(const Inputs& inputs, pinned::Arena& arena) {
  if (arena.size_bytes() == 0) return;
  try {
    arena.pin(*inputs.device);
  } catch (const Error& error) {
    if (error.code() == Code::kFailed) throw;
    inputs.log(LogLevel::kWarning, error.what());
  }
}

// With "auto" a device that is too full for them is left alone.
void Startup::make_device_updates(Running& r) const {
  if (r.plan.device_update_slots == 0) return;
  try {
    r.device_updates = std::make_unique<tiles::DeviceUpdates>(*in_.device, *r.conductor, r.plan);
  } catch (const Error& error) {
    if (r.plan.update_on != UpdateOn::kAuto || error.code() != Code::kOutOfBudget) throw;
    residency::leave_out_device_updates(r.plan);
    in_.log(LogLevel::kInfo, std::string("headrace.update_on auto: ") + in_.device->name() +
                                 " has no room for an update's slots: the CPU updates");
  }
}

void Startup::allocate(Running& r) {
  const platform::Limit limit = in_.parts.update_threads
                                    ? platform::Limit{*in_.parts.update_threads, "given", ""}
                                    : update_threads(in_.settings, local_.sharing_cpus);
  const auto threads = static_cast<std::uint32_t>(limit.value);
  r.update_threads_source = limit.source;
  if (in_.trace_events > 0) r.trace = std::make_unique<base::TraceRecorder>(in_.trace_events);
  r.arena = std::make_unique<pinned::Arena>(r.plan.arena_bytes, std::max(1u, threads));
  pin_arena(in_, *r.arena);
  r.conductor =
      in_.parts.make_conductor ? in_.parts.make_conductor() : async::make_conductor_asio();
  r.conductor->use_frames(&r.frames);
  r.workers = std::make_unique<async::WorkerPool>(*r.conductor, threads, in_.parts.pass_takes);
  make_swap(r);
  make_tiles(r);
  make_calls(r);
  // Before the first step, so that no step allocates.
  r.calls->run([&]() -> async::Task<> {
    r.gather_slots->next_step();
    co_return;
  });
}

void Startup::allocate_together(Running& r) {
  meeting_ = std::make_unique<FreezeMeeting>(r.ranks, in_.settings.store);
  try {
    allocate(r);
    if (!store_) meeting_->all_ready(nullptr);
  } catch (...) {
    meeting_->withdraw(std::current_exception());
    throw;
  }
}

void Startup::make_swap(Running& r) {
  if (store_) {
    open_store(r);
  } else {
    deal_by_speed(r);
    make_swap_files(r);
  }
  if (r.swap) {
    const std::string reason = r.swap->queue().reason;
    if (!reason.empty()) in_.log(LogLevel::kWarning, reason);
  }
  reclaim_unused_paths(r);
}

void Startup::make_swap_files(Running& r) const {
  if (r.plan.report.nvme_bytes == 0 || paths_.empty()) return;
  swap::SwapTierOptions options = tier_options(r);
  options.paths = paths_;
  options.drive_bytes = r.plan.drive_bytes;
  r.swap = std::make_unique<swap::SwapTier>(*r.conductor, std::move(options));
}

swap::SwapTierOptions Startup::tier_options(const Running& r) const {
  swap::SwapTierOptions options;
  static_cast<swap::DriveOnPathOptions&>(options) = drive_options(r);
  options.on_stall = [&failure = failure_](const std::string& cause) { failure.fail(cause); };
  return options;
}

// A store that holds no commit of all ranks is made anew: nothing in it is of use to anybody.
void Startup::open_store(Running& r) {
  const EpochTerms terms(in_.settings, registry_, r.partition);
  const auto memory =
      r.arena->range(r.plan.commit_record.offset_bytes, r.plan.commit_record.size_bytes);
  if (store_->exists()) r.swap = store_->open(*r.conductor, tier_options(r), {});
  const FreezeMeeting::Agreed agreed =
      meeting_->agree(store_->look(*r.conductor, r.swap.get(), terms, memory));
  opening_ = agreed.opening;
  if (agreed.epoch > 0) {
    record_ = store_->read(*r.conductor, *r.swap, agreed.epoch, memory);
    resumed_ = true;
    // Where the tiles lie was settled when the store was made.
    for (std::size_t t = 0; t < r.plan.tiles.size(); ++t)
      r.plan.tiles[t].drive = record_->tiles()[t].drive;
    return;
  }
  store_->refuse_without_epoch();
  if (store_->exists()) {
    r.swap.reset();
    store_->forget();
    refuse_without_room(r.plan);
  }
  meeting_->before_loss();  // every rank can go on
  store_->erase_first_commit();
  meeting_->before_loss();  // no rank has a commit
  store_->remove_remains();
  deal_by_speed(r);
  r.swap = store_->open(*r.conductor, tier_options(r), r.plan.drive_bytes);
  r.swap->continue_run(agreed.store);
  const auto registration = swap::packed(registration_of(registry_, r.partition), agreed.store);
  record_ = store_->format(*r.conductor, *r.swap, terms, registration, opening_, memory);
  meeting_->all_ready(nullptr);
  store_->publish();
}

void Startup::make_places(Running& r) {
  r.places = std::make_unique<tiles::TilePlaces>(r.partition, r.plan);
  for (std::uint32_t d = 0; store_ && d < paths_.size(); ++d)
    r.swap->take(
        {d, 0,
         swap::first_slot_offset(r.plan.commit_record.size_bytes, r.plan.registration_bytes)});
  if (resumed_) {
    r.places->restore(*record_, record_->head().incarnation + 1,
                      [&](const swap::Extent& extent) { r.swap->take(extent); });
  } else {
    r.places->allocate(
        [&](std::uint32_t drive, std::uint64_t bytes) { return r.swap->allocate(drive, bytes); });
  }
}

void Startup::make_tiles(Running& r) {
  make_places(r);
  r.tiles = std::make_unique<tiles::TileStore>(
      tiles::TileStore::Parts{registry_, r.partition, r.plan, r.lent, in_.settings, *r.arena,
                              *r.workers, *r.places, r.swap.get(), r.trace.get()});
  r.pending = std::make_unique<tiles::PendingUpdates>(r.partition, r.plan);
  r.gather_slots = std::make_unique<tiles::GatherSlots>(
      tiles::GatherSlots::Parts{registry_, r.partition, r.plan, in_.settings.prefetch_groups,
                                *r.arena, *r.tiles, *r.pending, *in_.device, *r.conductor});
  // Its calls come later than anything that is made here.
  r.gradients = std::make_unique<ranks::Gradients>(
      ranks::GradientParts{registry_, r.partition, r.plan, r.lent, *r.arena, *in_.device, r.ranks,
                           in_.settings.rounding_seed, r.counts.steps,
                           [&r](GroupId group) { r.calls->until_passed(group, "add_gradient"); }},
      ranks::Gradients::Order{in_.settings.rank_agreement == RankOrder::kTrace,
                              r.plan.slot_per_group && in_.settings.ranks_ahead > 0
                                  ? ranks::Sequence::kAll
                                  : in_.settings.ranks_ahead},
      r.trace.get());
  r.use_exchanged_memory();
  make_device_updates(r);
  r.updates = std::make_unique<tiles::Updates>(tiles::Updates::Parts{
      r.partition, r.plan, r.gradients->sums(), r.lent, *r.tiles, r.gather_slots->hand_overs(),
      *r.pending, r.device_updates.get(), r.workers->threads(), r.trace.get(),
      failure_.interrupted(), kernels::kernels_of(kernels::choose_instruction_set()).update,
      [&in = in_](const tiles::UpdatePlace& place) { say_update_place(in, place); },
      [&r, &failure = failure_](const std::exception_ptr& error) {
        return deferred_failure(r, failure, error);
      }});
}

void Startup::make_calls(Running& r) {
  r.calls = std::make_unique<Calls>(Calls::Parts{in_.poll, failure_, r.partition, r.plan,
                                                 *r.conductor, *r.workers, *r.gather_slots,
                                                 *r.pending, *r.updates, r.trace.get()});
  if (store_) make_epochs(r);
  r.leases = std::make_unique<Leases>(
      Leases::Parts{registry_, r.partition, r.plan, failure_, *r.calls, r.states, r.ranks,
                    *r.gradients, *r.tiles, *r.gather_slots, *r.pending, *in_.device});
  const Values::Parts of_values{registry_,
                                in_.settings,
                                r.partition,
                                r.plan,
                                *r.arena,
                                failure_,
                                *r.calls,
                                *r.leases,
                                r.states,
                                r.counts,
                                r.lent,
                                r.ranks,
                                *r.gradients,
                                *r.tiles,
                                *r.gather_slots,
                                r.epochs.get(),
                                /*staged=*/!in_.device->shares_host_memory()};
  r.values = std::make_unique<Values>(of_values);
  r.all_values = std::make_unique<AllValues>(of_values, *r.values);
  r.stepper = std::make_unique<Stepper>(
      Stepper::Parts{registry_, in_.settings, in_.log, r.partition, r.plan, failure_, *r.calls,
                     *r.leases, r.states, *r.values, r.counts, *r.gradients, *r.gather_slots,
                     *r.pending, *r.updates, r.epochs.get(), r.trace.get()});
}

void Startup::make_epochs(Running& r) {
  r.ring = std::make_unique<swap::CommitRing>(*r.swap, in_.settings.store,
                                              static_cast<std::uint32_t>(paths_.size()));
  r.epochs = std::make_unique<Epochs>(
      Epochs::Parts{registry_, in_.settings, in_.log, r.plan, failure_, *r.calls, r.counts,
                    r.states, *r.swap, *r.ring, *r.places, *r.tiles, *r.pending, *r.updates,
                    *r.gradients,
                    /*alone=*/in_.collective->world_size() == 1},
      *record_, resumed_, opening_);
  if (!resumed_) return;
  r.epochs->read(store_->verify_all());
  meeting_->all_ready(&*record_);
  r.epochs->take_over();
}
}  // namespace headrace::engine
