// SPDX-License-Identifier: Apache-2.0
// published.hpp: what ZeRO-Infinity published of V100 clusters, beside the simulation of the same
// training.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "sim/worlds.hpp"

namespace headrace::tools {
struct PublishedPoint {
  std::string what;           // "1 T parameters on 512 GPUs"
  std::string unit;           // "Tflop/s per GPU"
  double published = 0;       // or the least, or the most, that was
  std::string relation = {};  // "", "at least", "at most"
  double simulated = 0;       // 0: refused
  std::string refusal = {};   // why
  // Simulated over published; of a bound that holds, 1.
  double ratio() const;
};

struct PublishedResult {
  std::vector<PublishedPoint> points;
  // What the simulation takes as given, and its source.
  std::vector<std::pair<std::string, std::string>> assumptions;
};
PublishedResult simulate_published(Planning& planning);
}  // namespace headrace::tools
