// SPDX-License-Identifier: Apache-2.0
// nothing_measured.hpp: the end of a run that used up its time or bytes before its first figure.
#pragma once
#include <stdexcept>

namespace headrace::tools {
// A failure, not a refusal: files were written, and are gone. what() names the limit that does.
struct NothingMeasured : std::runtime_error {
  using std::runtime_error::runtime_error;
  static constexpr const char* kCode = "kNothingMeasured";  // in the JSON document
};
}  // namespace headrace::tools
