// SPDX-License-Identifier: Apache-2.0
// cuda_version.hpp: CUDA's version numbers as people write them.
#pragma once
#include <fmt/core.h>

#include <string>

namespace headrace::tools {
// 12080: "12.8".
inline std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}
}  // namespace headrace::tools
