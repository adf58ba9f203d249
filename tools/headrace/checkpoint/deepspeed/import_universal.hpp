// SPDX-License-Identifier: Apache-2.0
// import_universal.hpp: a checkpoint of Headrace from a universal directory of DeepSpeed.
#pragma once
#include <string>

#include "checkpoint/convert.hpp"

namespace headrace::tools {
// Reads `folder`, which has the folder zero, and writes options.to. Masters, moments and steps keep
// their bits; weights are rounded from the masters. Throws pickle::Fault and headrace::Error.
Converted import_universal(const std::string& folder, const ConvertOptions& options);
}  // namespace headrace::tools
