// SPDX-License-Identifier: Apache-2.0
// kernels.hpp: what is compiled once per instruction set: equal bits, another speed.
//
// A new instruction set is one file, vector_<name>.cpp, a row of the table in instruction_set.cpp
// and its flags in CMakeLists.txt.
#pragma once
#include <cstddef>
#include <cstdint>

#include "headrace/device.hpp"
#include "kernels/instruction_set.hpp"
#include "kernels/update_span.hpp"

namespace headrace::kernels {
// XXH3. The distributions' libxxhash is built for all CPUs and without inlining, at a third to a
// quarter of the speed.
struct HashKernels {
  std::uint64_t (*xxh3_64)(const void* data, std::size_t size_bytes, std::uint64_t seed) noexcept;
  // `state` is an XXH3_state_t, of the same layout in every set.
  void (*update_128)(void* state, const void* data, std::size_t size_bytes) noexcept;
};
using UpdateFunction = void (*)(const UpdateSpan& span, const UpdateStep& step) noexcept;
using AccumulateFunction = void (*)(const Accumulation& work) noexcept;

struct Kernels {
  UpdateFunction update;          // gives update_reference()'s bits
  AccumulateFunction accumulate;  // gradient_pass.hpp
  const HashKernels* hash;        // null: the next narrower set's is as fast
};

// What is right, one element at a time: the same on every CPU, and slow.
void update_reference(const UpdateSpan& span, const UpdateStep& step) noexcept;

// Of a set that runs here.
const Kernels& kernels_of(Simd set) noexcept;
const HashKernels& hash_kernels_of(Simd set) noexcept;

// vector_<name>.cpp; asked for through kernels_of().
const Kernels& scalar_kernels() noexcept;
#if defined(__x86_64__)
const Kernels& avx2_kernels() noexcept;
const Kernels& avx512_kernels() noexcept;
#endif
}  // namespace headrace::kernels
