// SPDX-License-Identifier: Apache-2.0
// shared_library.hpp: whether a library that is never required is there, and its version.
#pragma once
#include <optional>
#include <string>

namespace headrace::tools {
struct LibraryTrial {
  bool loads = false;
  int version = 0;       // what the function said; 0 without one
  bool harmful = false;  // it ended or stalled the child
  std::string error;
};
// Loads `library` in a child process, so that nothing it does can harm this one, and calls
// `version_function`, an int(int* version) as CUDA and NCCL have it. A child that takes longer than
// 10 s is ended. No other thread may run.
LibraryTrial try_library(const std::string& library, const std::string& version_function);
}  // namespace headrace::tools
