// SPDX-License-Identifier: Apache-2.0
// child.hpp: another program, run to its end.
#pragma once
#include <string>
#include <vector>

namespace headrace::tools {
struct ChildResult {
  int exit_code = 0;  // 128 + n where signal n ended it
  std::string out, err;
};
// `words[0]` is looked up in PATH; `environment` is added, "NAME=value". A signal to us ends the
// child too (SIGTERM) and throws kInterrupted. Throws Error kNotFound where there is no such
// program, kIo where it cannot be run.
ChildResult run_child(const std::vector<std::string>& words,
                      const std::vector<std::string>& environment);
}  // namespace headrace::tools
