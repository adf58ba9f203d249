// SPDX-License-Identifier: Apache-2.0
#include "drives_rounds.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <numeric>
#include <thread>

#include "base/units.hpp"
#include "measure/rounds.hpp"
#include "program/progress.hpp"
#include "raw_drive.hpp"
#include "residency/plan.hpp"
#include "support/io_queue_fault.hpp"
#include "trained_model.hpp"

namespace headrace::tools {
namespace {
// A drive that moves no more than `speeds[index]` bytes per second; 0: as it does.
swap::DriveMaker throttled(std::vector<double> speeds) {
  return [speeds = std::move(speeds)](async::Conductor& conductor, swap::DriveOptions options) {
    const auto speed = static_cast<std::uint64_t>(speeds.at(options.index));
    options.make_queue = [inner = options.make_queue, speed](const swap::IoQueueOptions& queue) {
      swap::ChosenIoQueue chosen = inner(queue);
      if (speed > 0) {
        chosen.queue = swap::make_io_queue_fault(std::move(chosen.queue),
                                                 {.bytes_per_second = speed}, nullptr);
      }
      return chosen;
    };
    return swap::make_drive_thread(conductor, std::move(options));
  };
}

class Bench {
 public:
  explicit Bench(const DrivesOptions& options) {
    const std::size_t drives = options.settings.nvme_paths.size();
    std::vector<double> speeds = options.throttle_bytes_per_second;
    speeds.resize(drives, 0);
    all_ = model(options, options.settings, speeds);
    plan = all_->engine().plan().drives;
    const auto streams = optimizer_cpu::state_streams(options.settings, DType::kBf16);
    const std::uint64_t elements = std::min(options.settings.tile_elements, options.parameters);
    const std::uint64_t record =
        residency::record_layout(streams, elements, Tier::kNvme).size_bytes;
    for (std::size_t d = 0; d < drives; ++d) {
      Settings alone = options.settings;
      alone.nvme_paths = {options.settings.nvme_paths[d]};
      alone.drive_shares.clear();
      alone_.push_back(model(options, alone, {speeds[d]}));
      raw_.push_back(std::make_unique<RawDrive>(
          RawDriveOptions{alone, std::max(plan[d].bytes, record), record, throttled({speeds[d]})}));
    }
    update(*all_);
    for (const auto& alone : alone_) update(*alone);
  }

  DrivesRound round(bool backwards) {
    DrivesRound round;
    std::vector<std::function<void()>> parts;
    for (const swap::IoKind kind : {swap::IoKind::kRead, swap::IoKind::kWrite}) {
      Together& to = kind == swap::IoKind::kRead ? round.read : round.write;
      to.alone.resize(raw_.size());
      for (std::size_t d = 0; d < raw_.size(); ++d) {
        parts.push_back(
            [&, d, kind] { to.alone[d] = raw_[d]->move(kind, bytes(d)).bytes_per_second(); });
      }
      parts.push_back([&, kind] { to.together = move_together(kind); });
    }
    round.update.alone.resize(alone_.size());
    for (std::size_t d = 0; d < alone_.size(); ++d)
      parts.push_back([&, d] { round.update.alone[d] = update(*alone_[d]); });
    parts.push_back([&] { round.update.together = update(*all_); });
    run_parts(std::move(parts), backwards);
    return round;
  }

  void close() {
    all_->close();
    for (const auto& alone : alone_) alone->close();
  }

  std::vector<DriveReport> plan;

 private:
  static std::unique_ptr<TrainedModel> model(const DrivesOptions& options, const Settings& settings,
                                             const std::vector<double>& speeds) {
    engine::EngineParts parts;
    parts.make_drive = throttled(speeds);
    return std::make_unique<TrainedModel>(settings, options.parameters, parts);
  }

  static double update(TrainedModel& model) {
    const StepCost cost = model.step();
    return static_cast<double>(cost.read_bytes + cost.written_bytes) / cost.seconds;
  }

  std::uint64_t bytes(std::size_t drive) const { return plan[drive].bytes; }

  // Every drive moves its part of the bytes, as the plan dealt them; the last one ends it.
  double move_together(swap::IoKind kind) {
    std::vector<std::exception_ptr> errors(raw_.size());
    std::vector<std::uint64_t> moved(raw_.size());
    std::vector<std::thread> threads;
    const Stopwatch watch;
    for (std::size_t d = 0; d < raw_.size(); ++d) {
      threads.emplace_back([&, d] {
        try {
          moved[d] = raw_[d]->move(kind, bytes(d)).bytes;
        } catch (...) {
          errors[d] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const double took = watch.seconds();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
    const auto all = std::accumulate(moved.begin(), moved.end(), std::uint64_t{0});
    return static_cast<double>(all) / took;
  }

  std::unique_ptr<TrainedModel> all_;
  std::vector<std::unique_ptr<TrainedModel>> alone_;
  std::vector<std::unique_ptr<RawDrive>> raw_;
};
}  // namespace

double Together::sum() const { return std::accumulate(alone.begin(), alone.end(), 0.0); }

DrivesMeasurement measure_together(const DrivesOptions& options,
                                   const std::function<void(std::uint32_t)>& progress) {
  Bench bench(options);
  DrivesMeasurement result;
  result.plan = bench.plan;
  result.rounds = alternating_rounds(options.rounds, progress,
                                     [&](bool backwards) { return bench.round(backwards); });
  bench.close();
  return result;
}
}  // namespace headrace::tools
