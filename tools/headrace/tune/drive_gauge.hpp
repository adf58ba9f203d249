// SPDX-License-Identifier: Apache-2.0
// drive_gauge.hpp: measures candidates on real drives.
#pragma once
#include "bench/runner.hpp"
#include "program/progress.hpp"
#include "tune/gauge.hpp"

namespace headrace::tools {
class DriveGauge final : public Gauge {
 public:
  // The files are laid out. `runner` and `watch`, which runs since the run's begin, outlive it.
  DriveGauge(Runner& runner, const Stopwatch& watch) : runner_(runner), watch_(watch) {}

  Evaluation take(const Candidate& candidate, const Amount& amount, std::uint32_t turn) override;
  double seconds() const override { return watch_.seconds(); }
  std::uint64_t written_bytes() const override {
    return runner_.written_bytes() / runner_.targets().size();
  }

 private:
  Runner& runner_;
  const Stopwatch& watch_;
};
}  // namespace headrace::tools
