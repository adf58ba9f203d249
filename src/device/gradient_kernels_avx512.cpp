// SPDX-License-Identifier: Apache-2.0
// gradient_kernels_avx512.cpp: the loops compiled for AVX-512 (F, BW, DQ, VL).
#include "device/gradient_kernels_loops.hpp"

void headrace::device::accumulate_avx512(const Accumulation& work) noexcept {
  accumulate_work(work);
}
