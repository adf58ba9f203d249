// SPDX-License-Identifier: Apache-2.0
// requirements.hpp: --require io_uring,memlock=8GiB: what has to be there, by name.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "doctor/rows.hpp"

namespace headrace::tools {
struct Requirement {
  std::string name;
  std::uint64_t amount = 1;
  std::string text;  // as it was given: "memlock=8GiB"
};
// "io_uring,o_direct,memlock=8GiB,gpu=2". Sizes are those of command_line::to_bytes(). Throws
// command_line::Fault for an unknown name, with the nearest and all known ones, and for an amount
// that is missing, not one, or given to what takes none.
std::vector<Requirement> parse_requirements(const std::string& list);

// "io_uring, o_direct, memlock=SIZE, ...": for --help.
std::string requirement_names();

// A requirement that is absent, unknown or not met; once per path.
struct Missed {
  std::string required, found, fix;
};
std::vector<Missed> missed_requirements(const std::vector<Requirement>& required,
                                        const std::vector<Section>& sections);
}  // namespace headrace::tools
