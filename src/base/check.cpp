// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"

#include <cstdio>

namespace headrace::base {
void check_failed(const char* file, int line, const char* condition, const char* why) noexcept {
  std::fprintf(stderr, "headrace: bug: %s:%d: %s is false: %s\n", file, line, condition, why);
  __builtin_trap();
}
}  // namespace headrace::base
