// SPDX-License-Identifier: Apache-2.0
// kernels.hpp: the functions that are compiled once per instruction set. They differ only in speed.
//
// To add an instruction set, add one file, vector_<name>.cpp, a row to the table in
// instruction_set.cpp, and its flags to CMakeLists.txt.
#pragma once
#include <cstddef>
#include <cstdint>

#include "headrace/device.hpp"
#include "kernels/instruction_set.hpp"
#include "kernels/packed_values.hpp"
#include "kernels/update_span.hpp"

namespace headrace::kernels {
// XXH3. The distributions build libxxhash for all CPUs and without inlining, which reaches a
// quarter to a third of the speed.
struct HashKernels {
  std::uint64_t (*xxh3_64)(const void* data, std::size_t size_bytes, std::uint64_t seed) noexcept;
  // `state` is an XXH3_state_t, whose layout is the same in every set.
  void (*update_128)(void* state, const void* data, std::size_t size_bytes) noexcept;
};
using UpdateFunction = void (*)(const UpdateSpan& span, const UpdateStep& step) noexcept;
using AccumulateFunction = void (*)(const Accumulation& work) noexcept;
using PackFunction = void (*)(const PackWork& work) noexcept;

struct Kernels {
  UpdateFunction update;          // gives the bits of update_reference()
  AccumulateFunction accumulate;  // gradient_pass.hpp
  PackFunction pack, unpack;      // packed_values.hpp
  const HashKernels* hash;
};

// The definition of the result, one element at a time: the same on every CPU, and slow.
void update_reference(const UpdateSpan& span, const UpdateStep& step) noexcept;

// `set` must run here.
const Kernels& kernels_of(Simd set) noexcept;
const HashKernels& hash_kernels_of(Simd set) noexcept;

// In vector_<name>.cpp; call them through kernels_of().
const Kernels& scalar_kernels() noexcept;
#if defined(__x86_64__)
const Kernels& avx2_kernels() noexcept;
const Kernels& avx512_kernels() noexcept;
#endif
}  // namespace headrace::kernels
