// SPDX-License-Identifier: Apache-2.0
// cuda_grid.hpp: the GPU's kernels: the work of each thread of a grid. cuda_kernels.cu launches
// them. A test runs a grid of them on CPU threads (tests/device/emulated_grid.hpp).
#pragma once
#include "device/cuda_kernel_bodies.hpp"
#include "device/cuda_kernel_work.hpp"
#include "kernels/packed_values.hpp"
#include "kernels/update_element.hpp"

namespace headrace::device::cuda {
using base::kScaleElements;
using kernels::kMaxMoments;
using kernels::moments;
using kernels::NewMoments;
using kernels::Packing;
using kernels::PackWork;
using kernels::UpdateSpan;
using kernels::UpdateStep;

namespace {  // NOLINT(google-build-namespaces): kernels of one file
constexpr unsigned kThreads = 256;

template <class Source, class Sum, bool kOverwrite>
__global__ void cast(const Source* source, Sum* sum, std::uint64_t elements) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += step) {
    if constexpr (kOverwrite) {
      write_element(source, sum, i);
    } else {
      add_element(source, sum, i);
    }
  }
}

// A block per piece. The first sixteen threads add one strip while the other warps load the next.
template <class Value>
__global__ void measure(MeasureWork work) {
  __shared__ float strips[2][kStrip];
  __shared__ PartialSum sums[kPartialSums];
  const std::uint64_t before =
      blockIdx.x == 0 ? 0 : work.first_piece_elements + (blockIdx.x - 1ull) * work.piece_elements;
  const std::uint64_t size = blockIdx.x == 0 ? work.first_piece_elements : work.piece_elements;
  const std::uint64_t left = work.elements - before, elements = size < left ? size : left;
  const auto* const piece = static_cast<const Value*>(work.values) + before;
  const auto strip_elements = [&](std::uint64_t first) {
    return static_cast<std::uint32_t>(elements - first < kStrip ? elements - first : kStrip);
  };
  constexpr unsigned kLoaders = kThreads - 32;
  const bool adds = threadIdx.x < kPartialSums, loads = threadIdx.x >= 32;
  PartialSum mine{};
  if (loads) load_strip(piece, 0, strip_elements(0), strips[0], threadIdx.x - 32, kLoaders);
  unsigned now = 0;
  for (std::uint64_t first = 0; first < elements; first += kStrip, now ^= 1u) {
    __syncthreads();
    const std::uint64_t next = first + kStrip;
    if (loads && next < elements)
      load_strip(piece, next, strip_elements(next), strips[now ^ 1u], threadIdx.x - 32, kLoaders);
    if (adds) add_strip(strips[now], strip_elements(first), threadIdx.x, mine);
  }
  if (adds) sums[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  join_sums(sums);
  work.pieces[blockIdx.x] = {sums[0].sum, sums[0].non_finite};
}

// A thread per element, a thread block per scale block, whose largest new moment sets the scale.
// The arguments choose the update: all threads branch alike, and the kernel waits for memory
// anyway.
static_assert(kScaleElements == kThreads);
__global__ void update(const UpdateSpan span, const UpdateStep step) {
  __shared__ std::uint32_t largest[kMaxMoments];
  const bool scaled = kernels::has_scales(span.codec);
  if (scaled && threadIdx.x < kMaxMoments) largest[threadIdx.x] = 0;
  if (scaled) __syncthreads();
  const std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  NewMoments fresh{};
  if (i < span.elements) fresh = kernels::update_element(span, step, i);
  if (!scaled) return;
  HEADRACE_UNROLLED
  for (std::uint32_t k = 0; k < kMaxMoments; ++k)
    atomicMax(&largest[k], as_bits(fresh.value[k]) & 0x7fffffffu);
  __syncthreads();
  HEADRACE_UNROLLED
  for (std::uint32_t k = 0; k < kMaxMoments; ++k) {
    if (k >= moments(step.arithmetic)) continue;
    const std::uint32_t scale = kernels::scale_of(largest[k]);
    if (threadIdx.x == 0) span.moment_scale[k][blockIdx.x] = static_cast<std::uint8_t>(scale);
    if (i < span.elements) kernels::store_code(span, step, i, k, fresh.value[k], scale);
  }
}

// A thread block per scale block, a thread per element. Of kInt4, a thread writes two codes.
template <class Value>
__global__ void pack(const PackWork work) {
  __shared__ std::uint32_t largest;
  __shared__ std::uint32_t halves[kThreads];
  const std::uint64_t first = std::uint64_t{blockIdx.x} * kThreads, i = first + threadIdx.x;
  const bool there = i < work.elements;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const float value = there ? widen(static_cast<const Value*>(work.values)[i]) : 0.0f;
  atomicMax(&largest, as_bits(value) & 0x7fffffffu);
  __syncthreads();
  const std::uint32_t scale = kernels::packed_scale(work.packing, work.dtype, largest);
  if (threadIdx.x == 0) work.scales[blockIdx.x] = static_cast<std::uint8_t>(scale);
  const bool nan = scale == kernels::kPackedNan;
  const float inverse = kernels::packed_inverse(nan ? 1 : scale);
  const std::int32_t most = kernels::largest_code(work.packing, work.dtype, scale);
  if (work.packing == Packing::kInt8) {
    if (there)
      work.codes[i] = nan ? 0 : static_cast<std::uint8_t>(kernels::int8_code(value, inverse, most));
    return;
  }
  const std::uint64_t element = work.first_element + i;
  const std::uint32_t random =
      kernels::random_bits(kernels::random_keys(work.random_key, element),
                           static_cast<std::uint32_t>(element % kernels::kBlockElements)) &
      0xffffu;
  const std::int32_t code = nan ? -8 : kernels::int4_code(value, inverse, most, random);
  halves[threadIdx.x] = !there && !nan ? 8u : static_cast<std::uint32_t>(code + 8);
  __syncthreads();
  if (there && threadIdx.x % 2 == 0)
    work.codes[i / 2] =
        static_cast<std::uint8_t>(halves[threadIdx.x] | halves[threadIdx.x + 1] << 4);
}

template <class Value>
__global__ void unpack(const PackWork work) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= work.elements) return;
  const std::int32_t code = work.packing == Packing::kInt8 ? kernels::int8_of(work.codes[i])
                                                           : kernels::int4_of(work.codes[i / 2], i);
  round_to(static_cast<Value*>(work.values)[i], kernels::unpacked(code, work.scales[blockIdx.x]));
}
}  // namespace
}  // namespace headrace::device::cuda
