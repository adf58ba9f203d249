// SPDX-License-Identifier: Apache-2.0
// torch's ProcessGroupGloo.hpp names this class, and calls only this function of it.
#pragma once
#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
