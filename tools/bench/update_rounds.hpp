// SPDX-License-Identifier: Apache-2.0
// update_rounds.hpp: the measurements: every round all of them, in turn forwards and backwards.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "raw_drive.hpp"
#include "trained_model.hpp"
#include "update_options.hpp"

namespace headrace::tools {
struct Round {
  RawDrive::Result raw_read, raw_write, raw_mixed;
  StepCost nvme;
  StepCost memory;  // zeros without --memory

  // Bytes of the update at the bandwidths of this round's raw reads and writes.
  double bound_seconds() const {
    return static_cast<double>(nvme.read_bytes) / raw_read.bytes_per_second() +
           static_cast<double>(nvme.written_bytes) / raw_write.bytes_per_second();
  }
  double bound_ratio() const { return nvme.seconds / bound_seconds(); }
  // The update's share of the speed that the same requests have without arithmetic between them.
  double mixed_share() const {
    return static_cast<double>(nvme.read_bytes + nvme.written_bytes) / nvme.seconds /
           raw_mixed.bytes_per_second();
  }
  double memory_ratio() const { return memory.seconds > 0 ? nvme.seconds / memory.seconds : 0; }
};

struct UpdateMeasurement {
  std::uint64_t read_bytes = 0, written_bytes = 0;  // per step, as the queue counted them
  std::string queue, file_system;
  bool direct = false;
  double warm_up_seconds = 0;  // making and writing files, first steps
  std::vector<Round> rounds;
};

// `progress` gets the number of rounds done. Throws headrace::Error.
using Progress = std::function<void(std::uint32_t rounds)>;
UpdateMeasurement measure_update(const UpdateOptions& options, const Progress& progress);
}  // namespace headrace::tools
