// SPDX-License-Identifier: Apache-2.0
// tuned_elsewhere.hpp: whether `headrace tune` measured its settings on another machine.
#pragma once
#include <string>

#include "headrace/settings.hpp"

namespace headrace::engine {
// A warning if the drives or the kernel's first two numbers differ from those of `tuned`; "" if
// they are the same, or either is unknown.
//   drive_model  for this run's paths, from platform::models_text()
//   kernel       of this machine, from platform::kernel_release()
std::string tuned_elsewhere(const Tuned& tuned, const std::string& drive_model,
                            const std::string& kernel);
}  // namespace headrace::engine
