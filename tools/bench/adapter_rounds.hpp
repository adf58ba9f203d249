// SPDX-License-Identifier: Apache-2.0
// adapter_rounds.hpp: the measurements: one GPT by LibTorch alone and one through the adapter, in
// turns.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "adapter_options.hpp"

namespace headrace::tools {
// One pass forward and backward, or the sum of several.
struct PassCost {
  double wall_seconds = 0;      // all of it
  double cpu_seconds = 0;       // of the process
  double forward_seconds = 0;   // wall, loss included
  double backward_seconds = 0;  // wall
  double dropping_seconds = 0;  // wall: zero_grad() or discard_gradients()

  PassCost& operator+=(const PassCost& other);
};
struct AdapterRound {
  PassCost plain, adapter;  // two passes each
};

struct AdapterMeasurement {
  std::uint64_t parameters = 0;
  std::string torch_version;
  int torch_threads = 0;
  double loss = 0;            // the same of both, to the bit
  std::uint64_t gathers = 0;  // during the rounds, every one without a copy
  double warm_up_seconds = 0;
  std::vector<AdapterRound> rounds;
};

// `progress` gets the number of rounds done. Throws headrace::Error; of code kWrongState where the
// two did not compute the same, or where parameters were copied: they were not comparable then.
using AdapterProgress = std::function<void(std::uint32_t rounds)>;
AdapterMeasurement measure_adapter(const AdapterOptions& options, const AdapterProgress& progress);
}  // namespace headrace::tools
