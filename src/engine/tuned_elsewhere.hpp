// SPDX-License-Identifier: Apache-2.0
// tuned_elsewhere.hpp: whether settings that `headrace tune` wrote were measured on this machine.
#pragma once
#include <string>

#include "headrace/settings.hpp"

namespace headrace::engine {
// A warning where the drives or the kernel's first two numbers are others than those of `tuned`; ""
// where they are the same, or either is not known.
//   drive_model  of this run's paths, as platform::models_text() has it
//   kernel       of this machine, as platform::kernel_release() has it
std::string tuned_elsewhere(const Tuned& tuned, const std::string& drive_model,
                            const std::string& kernel);
}  // namespace headrace::engine
