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
// From the cell recommended for rw, which is what an update does; else from reading or writing; of
// the first of these with two settings to choose from. None: no_recommendation_text() says why.
std::optional<Recommendation> recommendation_of(const Measurement& measurement);
// Where it gives none: "one setting was measured, so none was chosen; `headrace tune` ...".
std::string no_recommendation_text(const Measurement& measurement);

inline constexpr const char* kProvenByTune =
    "`headrace tune` finds settings, and proves them against the engine's defaults.";
}  // namespace headrace::tools
