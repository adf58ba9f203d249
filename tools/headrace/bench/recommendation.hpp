// SPDX-License-Identifier: Apache-2.0
// recommendation.hpp: the settings of the engine that follow from a measurement, and how far they
// can be relied on.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench/measurement.hpp"
#include "program/failing.hpp"

namespace headrace::tools {
struct Recommendation {
  std::size_t cell = 0;            // that they were measured with
  Json settings;                   // {"headrace": {...}}, as a settings file takes it
  std::vector<std::string> notes;  // sentences: what it rests on, what speaks against it
};
// From the cell recommended for rw, which is what an update does; without one from reading or
// writing. None: the raw queue was not measured, or with no block that the engine would take.
std::optional<Recommendation> recommendation_of(const Measurement& measurement);
}  // namespace headrace::tools
