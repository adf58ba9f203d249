// SPDX-License-Identifier: Apache-2.0
// emulated_grid.hpp: what CUDA's kernels see of the GPU, on the CPU: blocks one after the other, a
// thread of the CPU for each of a block. Included before device/cuda_grid.hpp, in one file of a
// test: ThreadSanitizer then finds a barrier that is missing among shared variables.
#pragma once
#include <barrier>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#define __global__
#define __shared__ static  // of the block that runs

namespace headrace::device::cuda {
struct GridIndex {
  unsigned x = 0;
};
inline thread_local GridIndex threadIdx, blockIdx, gridDim;
inline std::optional<std::barrier<>> block_barrier;

inline void __syncthreads() { block_barrier->arrive_and_wait(); }
inline void atomicMax(std::uint32_t* to, std::uint32_t value) {
  std::uint32_t now = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (now < value &&
         !__atomic_compare_exchange_n(to, &now, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// `threads` stay for all blocks and grids.
class EmulatedGrid {
 public:
  explicit EmulatedGrid(unsigned threads)
      : threads_(threads), begin_(threads + 1), end_(threads + 1) {
    for (unsigned t = 0; t < threads; ++t) own_.emplace_back([this, t] { work(t); });
  }
  ~EmulatedGrid() {
    kernel_ = nullptr;
    begin_.arrive_and_wait();
    for (std::thread& thread : own_) thread.join();
  }
  EmulatedGrid(const EmulatedGrid&) = delete;
  EmulatedGrid& operator=(const EmulatedGrid&) = delete;

  void launch(unsigned blocks, std::function<void()> kernel) {
    kernel_ = std::move(kernel);
    for (block_ = 0, blocks_ = blocks; block_ < blocks; ++block_) {
      block_barrier.emplace(threads_);
      begin_.arrive_and_wait();
      end_.arrive_and_wait();
    }
  }

 private:
  void work(unsigned thread) {
    for (;;) {
      begin_.arrive_and_wait();
      if (!kernel_) return;
      threadIdx.x = thread;
      blockIdx.x = block_;
      gridDim.x = blocks_;
      kernel_();
      block_barrier->arrive_and_drop();  // one that has returned is waited for no more
      end_.arrive_and_wait();
    }
  }

  const unsigned threads_;
  std::barrier<> begin_, end_;
  std::function<void()> kernel_;
  unsigned block_ = 0, blocks_ = 0;
  std::vector<std::thread> own_;
};
}  // namespace headrace::device::cuda
