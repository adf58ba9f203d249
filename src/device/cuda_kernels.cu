// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_kernels.hpp"

#include "device/cuda_kernel_bodies.hpp"
#include "device/cuda_update_bodies.hpp"

namespace headrace::device::cuda {
namespace {
constexpr unsigned kThreads = 256;
constexpr std::uint64_t kGridMax = 0x7fffffff;

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
  __shared__ Lane lanes[kLanes];
  const std::uint64_t before =
      blockIdx.x == 0 ? 0 : work.first_piece_elements + (blockIdx.x - 1ull) * work.piece_elements;
  const std::uint64_t size = blockIdx.x == 0 ? work.first_piece_elements : work.piece_elements;
  const std::uint64_t left = work.elements - before, elements = size < left ? size : left;
  const auto* const piece = static_cast<const Value*>(work.values) + before;
  const auto strip_elements = [&](std::uint64_t first) {
    return static_cast<std::uint32_t>(elements - first < kStrip ? elements - first : kStrip);
  };
  constexpr unsigned kLoaders = kThreads - 32;
  const bool adds = threadIdx.x < kLanes, loads = threadIdx.x >= 32;
  Lane lane{};
  if (loads) load_strip(piece, 0, strip_elements(0), strips[0], threadIdx.x - 32, kLoaders);
  unsigned now = 0;
  for (std::uint64_t first = 0; first < elements; first += kStrip, now ^= 1u) {
    __syncthreads();
    const std::uint64_t next = first + kStrip;
    if (loads && next < elements)
      load_strip(piece, next, strip_elements(next), strips[now ^ 1u], threadIdx.x - 32, kLoaders);
    if (adds) add_strip(strips[now], strip_elements(first), threadIdx.x, lane);
  }
  if (adds) lanes[threadIdx.x] = lane;
  __syncthreads();
  if (threadIdx.x != 0) return;
  join_lanes(lanes);
  work.pieces[blockIdx.x] = {lanes[0].sum, lanes[0].non_finite};
}

// A thread per element, a block per block of a scale: the largest of its new moments makes it. Which
// update it is, is asked of the arguments: the branches are the same for all threads, and the
// kernel waits for memory.
static_assert(kScaleBlock == kThreads);
__global__ void update(const UpdateSpan span, const UpdateStep step) {
  __shared__ std::uint32_t largest[kMaxMoments];
  const bool scaled = span.codec == MomentCodec::kBlock8;
  if (scaled && threadIdx.x < kMaxMoments) largest[threadIdx.x] = 0;
  if (scaled) __syncthreads();
  const std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  NewMoments fresh{};
  if (i < span.elements) fresh = update_element(span, step, i);
  if (!scaled) return;
  HEADRACE_UNROLLED
  for (std::uint32_t k = 0; k < kMaxMoments; ++k)
    atomicMax(&largest[k], as_bits(fresh.value[k]) & 0x7fffffffu);
  __syncthreads();
  HEADRACE_UNROLLED
  for (std::uint32_t k = 0; k < kMaxMoments; ++k) {
    if (k >= moments(step.arithmetic)) break;
    const std::uint32_t scale = scale_of(largest[k]);
    if (threadIdx.x == 0) span.moment_scale[k][blockIdx.x] = static_cast<std::uint8_t>(scale);
    if (i < span.elements) store_code(span, step, i, k, fresh.value[k], scale);
  }
}

template <class Source, class Sum>
void cast_as(const CastWork& work, cudaStream_t stream) {
  const std::uint64_t blocks = (work.elements + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
  const auto* source = static_cast<const Source*>(work.source);
  auto* sum = static_cast<Sum*>(work.target);
  if (work.overwrite) {
    cast<Source, Sum, true><<<grid, kThreads, 0, stream>>>(source, sum, work.elements);
  } else {
    cast<Source, Sum, false><<<grid, kThreads, 0, stream>>>(source, sum, work.elements);
  }
}
template <class Source>
void cast_from(const CastWork& work, cudaStream_t stream) {
  if (work.target_dtype == DType::kF32) return cast_as<Source, float>(work, stream);
  if (work.target_dtype == DType::kF16) return cast_as<Source, Half>(work, stream);
  cast_as<Source, Bfloat>(work, stream);
}

template <class Kernel>
cudaError_t load(Kernel* kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}
template <class Source, class Sum>
cudaError_t load_casts() {
  const cudaError_t result = load(cast<Source, Sum, true>);
  return result != cudaSuccess ? result : load(cast<Source, Sum, false>);
}
template <class Value>
cudaError_t load_of() {
  for (const cudaError_t result : {load_casts<Value, float>(), load_casts<Value, Half>(),
                                   load_casts<Value, Bfloat>(), load(measure<Value>)}) {
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}
}  // namespace

cudaError_t load_kernels() noexcept {
  for (const cudaError_t result :
       {load_of<float>(), load_of<Half>(), load_of<Bfloat>(), load(update)}) {
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}

cudaError_t launch_cast(const CastWork& work, cudaStream_t stream) noexcept {
  if (work.elements == 0) return cudaSuccess;
  if (work.source_dtype == DType::kF32) {
    cast_from<float>(work, stream);
  } else if (work.source_dtype == DType::kF16) {
    cast_from<Half>(work, stream);
  } else {
    cast_from<Bfloat>(work, stream);
  }
  return cudaGetLastError();
}

cudaError_t launch_measure(const MeasureWork& work, cudaStream_t stream) noexcept {
  if (work.elements == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(pieces_of(work));
  if (work.dtype == DType::kF32) {
    measure<float><<<grid, kThreads, 0, stream>>>(work);
  } else if (work.dtype == DType::kF16) {
    measure<Half><<<grid, kThreads, 0, stream>>>(work);
  } else {
    measure<Bfloat><<<grid, kThreads, 0, stream>>>(work);
  }
  return cudaGetLastError();
}

cudaError_t launch_update(const UpdateSpan& span, const UpdateStep& step,
                          cudaStream_t stream) noexcept {
  if (span.elements == 0) return cudaSuccess;
  const std::uint64_t blocks = (span.elements + kThreads - 1) / kThreads;
  if (blocks > kGridMax) return cudaErrorInvalidValue;
  update<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(span, step);
  return cudaGetLastError();
}

const char* kernel_architectures() noexcept { return HEADRACE_CUDA_ARCHITECTURES; }
}  // namespace headrace::device::cuda
