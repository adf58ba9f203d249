// SPDX-License-Identifier: Apache-2.0
// caller_pool.hpp: runs units on the program's own pool, each exactly once whatever the pool does.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "headrace/cpu_optimizer.hpp"

namespace headrace::optimizer_cpu {
class CallerPool {
 public:
  explicit CallerPool(RunUnits run_units);

  // Calls function(context, i) once for each i in [0, units), and returns how many of these calls
  // the pool left to the calling thread. If the pool throws, this throws the same, after all calls
  // have returned.
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
