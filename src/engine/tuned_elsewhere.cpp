// SPDX-License-Identifier: Apache-2.0
#include "engine/tuned_elsewhere.hpp"

#include "base/error_text.hpp"

namespace headrace::engine {
namespace {
// "6.1" of "6.1.0-18-amd64": a distribution's updates within it leave the I/O path as it is.
std::string version_of(const std::string& kernel) {
  const std::size_t dot = kernel.find('.');
  return dot == std::string::npos ? kernel : kernel.substr(0, kernel.find_first_of(".-+", dot + 1));
}

bool differ(const std::string& a, const std::string& b) {
  return !a.empty() && !b.empty() && a != b;
}
}  // namespace

std::string tuned_elsewhere(const Tuned& tuned, const std::string& drive_model,
                            const std::string& kernel) {
  const bool other_drive = differ(tuned.drive_model, drive_model);
  const bool other_kernel = differ(version_of(tuned.kernel), version_of(kernel));
  if (!other_drive && !other_kernel) return "";
  const auto place = [&](const std::string& model, const std::string& release) {
    std::string text = other_drive ? base::one_line(model) : "";
    if (other_kernel) text += (text.empty() ? "kernel " : ", kernel ") + base::one_line(release);
    return text;
  };
  return "headrace.tuned: the settings were tuned on " + place(tuned.drive_model, tuned.kernel) +
         ", and this is " + place(drive_model, kernel) +
         "; they may not be the best here. Run headrace tune again on this run's paths.";
}
}  // namespace headrace::engine
