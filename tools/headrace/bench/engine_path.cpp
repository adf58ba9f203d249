// SPDX-License-Identifier: Apache-2.0
#include "bench/engine_path.hpp"

#include <fmt/core.h>

#include "async/conductor.hpp"
#include "async/task.hpp"
#include "base/units.hpp"
#include "program/machine.hpp"
#include "program/signals.hpp"
#include "swap/swap_tier.hpp"

namespace headrace::tools {
namespace {
const std::string kRecordName = "bench";

// The tier makes a file of its own; the drives read and write that of the target instead, so that
// the raw queue and this move the same blocks.
swap::SwapTierOptions tier_options(const std::vector<std::unique_ptr<Target>>& targets,
                                   const Workload& workload,
                                   std::span<const std::span<std::byte>> buffers) {
  swap::SwapTierOptions options;
  Settings& settings = options.settings;
  settings.io_block_bytes = workload.block_bytes;
  settings.queue_depth = workload.depth;
  settings.submit_batch = workload.submit_batch;
  settings.register_buffers =
      workload.register_buffers ? RegisterBuffers::kAuto : RegisterBuffers::kOff;
  for (const auto& target : targets) {
    options.paths.push_back(target->probe());
    options.drive_bytes.push_back(base::kIoAlignment);
  }
  options.buffers.assign(buffers.begin(), buffers.end());
  options.make_queue = [kind = workload.queue](const swap::IoQueueOptions& queue) {
    return swap::choose_io_queue(kind, queue);
  };
  options.make_drive = [&targets](async::Conductor& conductor, swap::DriveOptions drive) {
    const Target& target = *targets[drive.index];
    drive.fd = target.fd();
    drive.path = target.file_path();
    return swap::make_drive_thread(conductor, std::move(drive));
  };
  return options;
}
}  // namespace

std::uint32_t engine_slots(const Workload& workload) {
  const std::uint64_t window = workload.block_bytes * workload.depth;
  const std::uint64_t records = base::ceil_div(window, workload.record_bytes) + 1;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(records, Settings{}.update_slots));
}

struct EnginePath::Parts {
  const std::vector<std::unique_ptr<Target>>& targets;
  Workload workload;
  std::span<std::byte> memory;
  const Stamps& stamps;
  std::unique_ptr<async::Conductor> conductor;
  std::unique_ptr<swap::SwapTier> tier;

  // Of the sample under way; conductor only.
  struct Way {
    BlockOrder order;
    std::uint64_t wanted = 0;  // records; 0: no such limit
    std::uint64_t started = 0;
  };
  std::vector<Way> ways;
  BenchClock::time_point began, until;
  std::uint32_t generation = 0;
  TimedSample sample;
  Verification* verification = nullptr;

  bool may_start(const Way& way) const {
    if (signal_received() != 0) return false;
    if (way.wanted != 0 && way.started >= way.wanted) return false;
    return way.wanted != 0 || BenchClock::now() < until;
  }

  async::Task<> serve(std::uint32_t drive, std::span<std::byte> slot, async::TaskGroup& group) {
    Way& way = ways[drive];
    while (!group.cancelled() && may_start(way)) {
      const std::uint64_t offset = way.order.offset_of(way.started++);
      const swap::Extent extent{drive, offset, slot.size()};
      // What another program wrote is written back as it was read: nothing of ours to compare then.
      const bool ours = !reads(workload.pattern) || is_known(extent);
      if (reads(workload.pattern)) co_await read(extent, slot);
      if (writes(workload.pattern)) co_await write(extent, slot, ours);
      sample.drive_bytes[drive] += slot.size() * (workload.pattern == Pattern::kMixed ? 2 : 1);
    }
  }

  bool is_known(const swap::Extent& extent) const {
    const PageMap& pages = targets[extent.file]->pages();
    const std::uint64_t first = extent.offset_bytes / kPageBytes;
    for (std::uint64_t i = 0; i < extent.size_bytes / kPageBytes; ++i) {
      if (pages.at(first + i) == PageMap::kUnknown) return false;
    }
    return true;
  }

  async::Task<> read(const swap::Extent& extent, std::span<std::byte> slot) {
    const auto from = BenchClock::now();
    co_await tier->read(extent, slot, swap::Priority::kDemand,
                        {.action = "read of", .name = &kRecordName});
    sample.read_latency.add(static_cast<std::uint64_t>((BenchClock::now() - from).count()));
    ++sample.reads;
    sample.read_bytes += slot.size();
    compare(extent, slot);
  }

  async::Task<> write(swap::Extent extent, std::span<std::byte> slot, bool ours) {
    const auto from = BenchClock::now();
    PageMap& pages = targets[extent.file]->pages();
    Stamps::stamp(slot, extent.offset_bytes / kPageBytes, generation);
    pages.set(extent.offset_bytes, slot.size(), PageMap::kUnknown);
    co_await tier->write(extent, slot, swap::Priority::kWriteBack,
                         {.action = "write of", .name = &kRecordName});
    if (ours) pages.set(extent.offset_bytes, slot.size(), generation);
    sample.write_latency.add(static_cast<std::uint64_t>((BenchClock::now() - from).count()));
    ++sample.writes;
    sample.written_bytes += slot.size();
  }

  // The first page's stamp of each record.
  void compare(const swap::Extent& extent, std::span<const std::byte> slot) {
    const std::uint64_t page = extent.offset_bytes / kPageBytes;
    const std::uint32_t expected = targets[extent.file]->pages().at(page);
    if (expected == PageMap::kUnknown) return;
    ++verification->stamps;
    const std::string fault = stamps.fault(slot.first<kPageBytes>(), page, expected, false);
    if (fault.empty()) return;
    if (verification->mismatches++ == 0)
      verification->first_mismatch = fmt::format("{}: {}", tier->place(extent), fault);
  }

  async::Task<> all() {
    async::TaskGroup group;
    const std::uint32_t slots = engine_slots(workload);
    began = BenchClock::now();
    for (std::uint32_t i = 0; i < slots; ++i) {
      for (std::uint32_t drive = 0; drive < targets.size(); ++drive) {
        const std::uint64_t at = (drive * slots + i) * workload.record_bytes;
        group.spawn(serve(drive, memory.subspan(at, workload.record_bytes), group));
      }
    }
    co_await group.join();
    sample.seconds = std::chrono::duration<double>(BenchClock::now() - began).count();
  }
};

EnginePath::EnginePath(const std::vector<std::unique_ptr<Target>>& targets,
                       const Workload& workload, std::span<std::byte> memory,
                       std::span<const std::span<std::byte>> buffers, const Stamps& stamps)
    : parts_(new Parts{.targets = targets,
                       .workload = workload,
                       .memory = memory,
                       .stamps = stamps,
                       .conductor = async::make_conductor_asio(),
                       .tier = nullptr,
                       .ways = {},
                       .began = {},
                       .until = {},
                       .generation = 0,
                       .sample = {},
                       .verification = nullptr}) {
  parts_->tier = std::make_unique<swap::SwapTier>(*parts_->conductor,
                                                  tier_options(targets, workload, buffers));
}
EnginePath::~EnginePath() = default;

TimedSample EnginePath::take(const Stretch& stretch, std::uint32_t generation,
                             Verification& result) {
  Parts& p = *parts_;
  p.sample = {};
  p.sample.drive_bytes.resize(p.targets.size());
  p.generation = generation;
  p.verification = &result;
  p.ways.clear();
  Workload records = p.workload;
  records.block_bytes = p.workload.record_bytes;
  for (const auto& target : p.targets) {
    p.ways.push_back(
        {.order = BlockOrder(records, 0, target->size_bytes(), stretch.bytes, stretch.turn),
         .wanted = base::ceil_div(stretch.bytes, records.block_bytes)});
  }
  p.until = BenchClock::now() + std::chrono::duration_cast<BenchClock::duration>(
                                    std::chrono::duration<double>(stretch.seconds));
  const double cpu = cpu_seconds();
  async::call(*p.conductor, nullptr, [&p] { return p.all(); });
  p.sample.cpu_seconds = cpu_seconds() - cpu;
  check_signal();
  return std::move(p.sample);
}

std::string EnginePath::queue_text() const { return parts_->tier->queue_name(); }
std::string EnginePath::queue_notes() const { return parts_->tier->queue_reason(); }
}  // namespace headrace::tools
