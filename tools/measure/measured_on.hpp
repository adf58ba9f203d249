// SPDX-License-Identifier: Apache-2.0
// measured_on.hpp: when, on what and by which command something was measured.
#pragma once
#include <string>
#include <vector>

#include "program/failing.hpp"
#include "program/machine.hpp"

namespace headrace::tools {
struct MeasuredOn {
  std::string command;  // as given, quoted
  std::string date;     // ISO 8601, UTC
  std::vector<Fact> machine, build;
  std::vector<std::string> warnings;
};

// A measurement that begins now: command, date, machine, build, and what makes either unfit.
// `program` stands for argv[0], "headrace bench".
MeasuredOn begin_measurement(const char* program, int argc, const char* const* argv);

// A report's first keys: those of document(), and command, date, machine, build.
Json document(const char* program, const MeasuredOn& measured);
}  // namespace headrace::tools
