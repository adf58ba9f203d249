// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/caller_pool.hpp"

#include <exception>
#include <utility>

namespace headrace::optimizer_cpu {
CallerPool::CallerPool(RunUnits run_units) : run_units_(std::move(run_units)) {}

// Units are taken, never assumed: a pool that starts one twice, or loses one, half updates nothing.
bool CallerPool::take(std::uint64_t unit) noexcept {
  return unit < units_ && taken_[unit].exchange(1, std::memory_order_relaxed) == 0;
}

void CallerPool::run_unit(void* self, std::uint64_t unit) noexcept {
  auto& pool = *static_cast<CallerPool*>(self);
  if (!pool.take(unit)) return;
  pool.function_(pool.context_, unit);
  pool.ended_.fetch_add(1, std::memory_order_release);
  pool.ended_.notify_all();
}

std::uint64_t CallerPool::run(std::uint64_t units, Function function, void* context) {
  if (units == 0) return 0;
  if (units > capacity_) {
    taken_ = std::make_unique<std::atomic<std::uint8_t>[]>(units);
    capacity_ = units;
  }
  units_ = units;
  function_ = function;
  context_ = context;
  for (std::uint64_t unit = 0; unit < units; ++unit)
    taken_[unit].store(0, std::memory_order_relaxed);
  ended_.store(0, std::memory_order_relaxed);

  std::exception_ptr thrown;
  try {
    run_units_(units, &run_unit, this);
  } catch (...) {
    thrown = std::current_exception();
  }
  std::uint64_t left = 0;
  for (std::uint64_t unit = 0; unit < units; ++unit) {
    if (!take(unit)) continue;
    ++left;
    function_(context_, unit);
    ended_.fetch_add(1, std::memory_order_relaxed);
  }
  // A pool that returned too early may still be in some.
  for (std::uint64_t ended = ended_.load(std::memory_order_acquire); ended < units;
       ended = ended_.load(std::memory_order_acquire)) {
    ended_.wait(ended, std::memory_order_acquire);
  }
  if (thrown) std::rethrow_exception(thrown);
  return left;
}
}  // namespace headrace::optimizer_cpu
