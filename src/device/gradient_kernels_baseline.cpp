// SPDX-License-Identifier: Apache-2.0
// gradient_kernels_baseline.cpp: the loops compiled for the plainest CPU the build runs on.
#include "device/gradient_kernels_loops.hpp"

void headrace::device::accumulate_baseline(const Accumulation& work) noexcept {
  accumulate_work(work);
}
