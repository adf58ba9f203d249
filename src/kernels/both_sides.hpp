// SPDX-License-Identifier: Apache-2.0
// both_sides.hpp: for functions with one source that nvcc compiles for the GPU and a C++ compiler
// for the CPU.
#pragma once

#ifdef __CUDACC__
#define HEADRACE_BOTH __host__ __device__ inline
#else
#define HEADRACE_BOTH inline
#endif

// Only for the GPU: performs several loads or products at once.
#ifdef __CUDA_ARCH__
#define HEADRACE_UNROLLED _Pragma("unroll 8")
#else
#define HEADRACE_UNROLLED
#endif
