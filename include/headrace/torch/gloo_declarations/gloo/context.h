// SPDX-License-Identifier: Apache-2.0
// Named by torch's ProcessGroupGloo.hpp, which calls this one function of it.
#pragma once
#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
