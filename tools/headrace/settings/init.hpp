// SPDX-License-Identifier: Apache-2.0
// init.hpp: a settings file for this machine's memory and drives, and for a model if one is named.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "program/failing.hpp"

namespace headrace::tools {
struct InitOptions {
  std::vector<std::string> drives;  // directories; none: all in host memory
  std::vector<std::string> set;     // "a.b=value", into the file
  std::string model;                // "": none is planned
  std::string write;                // "": the file goes to `out`
  std::uint32_t batch = 0, sequence = 0;
  bool checkpointing = false;
};

// Tries the drives as `headrace doctor` does, plans the model, and writes the file; what was found
// goes to `told`, the report's members to `report`. Throws headrace::Error where a drive cannot be
// used or the model does not fit: nothing is written then.
void init_settings(const InitOptions& options, std::FILE* out, std::FILE* told, Json& report);
}  // namespace headrace::tools
