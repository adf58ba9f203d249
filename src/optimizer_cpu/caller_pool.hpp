// SPDX-License-Identifier: Apache-2.0
// caller_pool.hpp: units run by a pool that is not ours, each exactly once whatever it does.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "headrace/cpu_optimizer.hpp"

namespace headrace::optimizer_cpu {
class CallerPool {
 public:
  explicit CallerPool(RunUnits run_units);

  // Calls function(context, i) for i in [0, units), each once, and returns how many of them the
  // pool left to the calling thread. What the pool throws comes out of here once all have
  // returned.
  using Function = void (*)(void* context, std::uint64_t unit) noexcept;
  std::uint64_t run(std::uint64_t units, Function function, void* context);

 private:
  static void run_unit(void* self, std::uint64_t unit) noexcept;
  bool take(std::uint64_t unit) noexcept;

  const RunUnits run_units_;
  std::unique_ptr<std::atomic<std::uint8_t>[]> taken_;
  std::uint64_t capacity_ = 0;
  std::uint64_t units_ = 0;
  std::atomic<std::uint64_t> ended_{0};
  Function function_ = nullptr;
  void* context_ = nullptr;
};
}  // namespace headrace::optimizer_cpu
