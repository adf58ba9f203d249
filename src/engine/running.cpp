// SPDX-License-Identifier: Apache-2.0
#include "engine/running.hpp"

namespace headrace::engine {
namespace {
std::string queue_details(const swap::Registered& registered) {
  const std::string text = swap::text_of(registered);
  const bool both = !text.empty() && !registered.refused.empty();
  return text + (both ? "; " : "") + registered.refused;
}

void add_drive_stats(const swap::SwapTier& swap, const PlanReport& report, Stats& s) {
  const swap::DriveCounters total = swap.totals();
  s.nvme_read_bytes = total.read_bytes;
  s.nvme_written_bytes = total.written_bytes;
  s.nvme_reads = total.reads;
  s.nvme_writes = total.writes;
  s.nvme_retries = total.retries;
  s.nvme_read_busy_seconds = total.read_busy_seconds;
  s.nvme_write_busy_seconds = total.write_busy_seconds;
  const swap::QueueInUse queue = swap.queue();
  s.io_queue = queue.name;
  s.io_queue_reason = queue.reason;
  s.io_queue_details = queue_details(queue.registered);
  s.direct_io = queue.direct;
  for (std::size_t d = 0; d < report.drives.size(); ++d) {
    const swap::DriveCounters c = swap.counters(d);
    s.drives.push_back({.plan = report.drives[d],
                        .read_bytes = c.read_bytes,
                        .written_bytes = c.written_bytes,
                        .read_busy_seconds = c.read_busy_seconds,
                        .write_busy_seconds = c.write_busy_seconds});
  }
}
}  // namespace

Running::Running(const Inputs& inputs, const partition::Registry& registry,
                 partition::Partition cut, residency::Plan planned)
    : partition(std::move(cut)),
      plan(std::move(planned)),
      ranks(*inputs.collective, registry, ranks::GradientSums::pack_bytes(partition)),
      frames(plan.frame_bytes),
      exchanged(*inputs.collective),
      states(registry),
      lent(registry.parameters().size()) {
  counts.steps.resize(registry.parameters().size());
  counts.weight_changes.resize(registry.groups().size());
}

void Running::use_exchanged_memory() {
  exchanged.use(gather_slots->device_memory());
  if (const ranks::GradientBucket* const bucket = gradients->bucket())
    exchanged.use(bucket->device_memory());
}

void Running::end_order(bool at_once) {
  leases->refuse_open("close");
  ranks::SequenceRunner* const runner = gradients->runner();
  if (runner == nullptr) return;
  if (at_once) return runner->stop(std::chrono::milliseconds(0), "interrupted");
  runner->stop();
}

void Running::drain() {
  background.finish();
  calls->run([&]() -> async::Task<> {
    co_await values->let_go();
    co_await updates->stop();
    if (epochs) co_await epochs->drain();
    co_await gather_slots->drain();
  });
}

void Running::add_stats(Stats& s, bool asleep) const {
  if (swap) add_drive_stats(*swap, plan.report, s);
  s.update_threads = workers->threads();
  s.update_threads_source = update_threads_source;
  const tiles::GatherCounters g = gather_slots->counters();
  s.copied_to_device_bytes = g.copied_bytes;
  s.gathers_prefetched = g.found;
  s.gathers_on_demand = g.on_demand;
  s.update_compute_seconds = updates->compute_seconds();
  s.update_wall_seconds = updates->wall_seconds();
  s.steps_updated_on_device = updates->steps_on_device();
  s.steps_skipped = counts.skipped;
  leases->add_stats(s);
  gradients->add_stats(s);
  s.engine_bytes += frames.reserve_bytes() + bookkeeping_bytes;
  if (asleep) return;
  const ranks::GradientBucket* const bucket = gradients->bucket();
  s.engine_bytes += arena->size_bytes() + gather_slots->device_bytes() +
                    (bucket != nullptr ? bucket->device_bytes() : 0) +
                    (device_updates ? device_updates->device_bytes() : 0);
}
}  // namespace headrace::engine
