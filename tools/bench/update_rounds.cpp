// SPDX-License-Identifier: Apache-2.0
#include "update_rounds.hpp"

#include <algorithm>
#include <memory>

#include "base/units.hpp"
#include "measure/rounds.hpp"
#include "program/progress.hpp"
#include "residency/plan.hpp"

namespace headrace::tools {
namespace {
Settings settings_in_memory(const Settings& settings) {
  Settings s = settings;
  s.offload_optimizer = s.offload_parameters = OffloadDevice::kCpu;
  return s;
}

std::uint64_t record_bytes(const UpdateOptions& options) {
  const Settings& s = options.settings;
  const auto streams = optimizer_cpu::state_streams(s, DType::kBf16);
  const std::uint64_t elements = std::min(s.tile_elements, options.parameters);
  return residency::record_layout(streams, elements, Tier::kNvme).size_bytes;
}

struct Bench {
  explicit Bench(const UpdateOptions& options) : nvme(options.settings, options.parameters) {
    if (options.in_memory) {
      memory =
          std::make_unique<TrainedModel>(settings_in_memory(options.settings), options.parameters);
    }
    raw = std::make_unique<RawDrive>(
        RawDriveOptions{options.settings, nvme.engine().plan().nvme_bytes, record_bytes(options)});
    first = nvme.step();
    if (memory) memory->step();
    raw->move(swap::IoKind::kRead, first.read_bytes);
  }

  Round round(bool backwards) {
    Round round;
    run_parts({[&] { round.raw_read = raw->move(swap::IoKind::kRead, first.read_bytes); },
               [&] { round.nvme = nvme.step(); },
               [&] { round.raw_mixed = raw->rewrite(first.read_bytes); },
               [&] { round.raw_write = raw->move(swap::IoKind::kWrite, first.written_bytes); },
               [&] {
                 if (memory) round.memory = memory->step();
               }},
              backwards);
    return round;
  }

  TrainedModel nvme;
  std::unique_ptr<TrainedModel> memory;
  std::unique_ptr<RawDrive> raw;
  StepCost first;
};
}  // namespace

UpdateMeasurement measure_update(const UpdateOptions& options, const Progress& progress) {
  const Stopwatch watch;
  Bench bench(options);
  UpdateMeasurement result;
  result.warm_up_seconds = watch.seconds();
  result.read_bytes = bench.first.read_bytes;
  result.written_bytes = bench.first.written_bytes;
  result.queue = bench.raw->queue_name();
  result.file_system = bench.raw->path().file_system;
  result.direct = bench.raw->path().direct;
  result.rounds = alternating_rounds(options.rounds, progress,
                                     [&](bool backwards) { return bench.round(backwards); });
  bench.nvme.close();
  if (bench.memory) bench.memory->close();
  return result;
}
}  // namespace headrace::tools
