// SPDX-License-Identifier: Apache-2.0
// export_universal.hpp: a universal directory for DeepSpeed from a checkpoint of Headrace.
#pragma once
#include <string>

#include "checkpoint/convert.hpp"

namespace headrace::tools {
// Reads `folder`, which has a manifest, and writes options.to and, beside it, latest_universal.
// ZeRO-1, 2 and 3 load it. Throws checkpoint::Refusal and headrace::Error.
Converted export_universal(const std::string& folder, const ConvertOptions& options);
}  // namespace headrace::tools
