// SPDX-License-Identifier: Apache-2.0
// headrace/torch/random_state.hpp: where torch's CPU generator stands, taken down and put back.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

#include <mutex>

namespace headrace::torch::detail {
// Some 5 KB.
inline at::Tensor random_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}
inline void set_random_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Puts the generator back to where it was.
class KeepRandomState {
 public:
  KeepRandomState() : state_(random_state()) {}
  ~KeepRandomState() { set_random_state(state_); }
  KeepRandomState(const KeepRandomState&) = delete;
  KeepRandomState& operator=(const KeepRandomState&) = delete;

 private:
  at::Tensor state_;
};
}  // namespace headrace::torch::detail
