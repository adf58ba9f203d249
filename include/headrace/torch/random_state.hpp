// SPDX-License-Identifier: Apache-2.0
// headrace/torch/random_state.hpp: saves and restores the state of torch's generators.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "headrace/torch/place.hpp"

namespace headrace::torch::detail {
// The state of the CPU's generator (some 5 KB), and that of the place's own generator.
class RandomState {
 public:
  explicit RandomState(const Place& place) : generators_(place.generators()) {
    for (at::Generator& generator : generators_) {
      const std::lock_guard lock(generator.mutex());
      states_.push_back(generator.get_state());
    }
  }
  // One per generator, the CPU's first.
  const std::vector<at::Tensor>& states() const noexcept { return states_; }
  void set() const { set(states_); }
  void set(const std::vector<at::Tensor>& states) const {
    for (std::size_t i = 0; i < generators_.size(); ++i) {
      at::Generator generator = generators_[i];
      const std::lock_guard lock(generator.mutex());
      generator.set_state(states[i]);
    }
  }

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

// Sets a torch state for a scope, and restores the previous one at the end. State's constructor
// reads the current state, and State::set() applies the state that was read.
template <class State>
class Restored {
 public:
  Restored(const Place& place, const State& meanwhile) : Restored(place) { meanwhile.set(); }
  explicit Restored(const Place& place) : before_(place) {}
  ~Restored() { before_.set(); }
  Restored& operator=(Restored&&) = delete;

 private:
  const State before_;
};
}  // namespace headrace::torch::detail
