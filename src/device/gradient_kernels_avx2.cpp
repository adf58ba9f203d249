// SPDX-License-Identifier: Apache-2.0
// gradient_kernels_avx2.cpp: the loops compiled for AVX2.
#include "device/gradient_kernels_loops.hpp"

void headrace::device::accumulate_avx2(const Accumulation& work) noexcept { accumulate_work(work); }
