// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_kernels.hpp"

#include "device/cuda_grid.hpp"

namespace headrace::device::cuda {
namespace {
constexpr std::uint64_t kGridMax = 0x7fffffff;

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
  for (const cudaError_t result :
       {load_casts<Value, float>(), load_casts<Value, Half>(), load_casts<Value, Bfloat>(),
        load(measure<Value>), load(pack<Value>), load(unpack<Value>)}) {
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

// A launch says what became of it in the thread's last error, which may be another call's.
static void forget_earlier_errors() noexcept { (void)cudaGetLastError(); }

cudaError_t launch_cast(const CastWork& work, cudaStream_t stream) noexcept {
  if (work.elements == 0) return cudaSuccess;
  forget_earlier_errors();
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
  forget_earlier_errors();
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
  forget_earlier_errors();
  update<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(span, step);
  return cudaGetLastError();
}

// Blocks of a grid with a thread per value; 0: more than a grid has.
static unsigned blocks_of(const PackWork& work) noexcept {
  const std::uint64_t blocks = (work.elements + kThreads - 1) / kThreads;
  return blocks > kGridMax ? 0 : static_cast<unsigned>(blocks);
}

cudaError_t launch_pack(const PackWork& work, cudaStream_t stream) noexcept {
  if (work.elements == 0) return cudaSuccess;
  const unsigned grid = blocks_of(work);
  if (grid == 0) return cudaErrorInvalidValue;
  forget_earlier_errors();
  if (work.dtype == DType::kF32) {
    pack<float><<<grid, kThreads, 0, stream>>>(work);
  } else if (work.dtype == DType::kF16) {
    pack<Half><<<grid, kThreads, 0, stream>>>(work);
  } else {
    pack<Bfloat><<<grid, kThreads, 0, stream>>>(work);
  }
  return cudaGetLastError();
}

cudaError_t launch_unpack(const PackWork& work, cudaStream_t stream) noexcept {
  if (work.elements == 0) return cudaSuccess;
  const unsigned grid = blocks_of(work);
  if (grid == 0) return cudaErrorInvalidValue;
  forget_earlier_errors();
  if (work.dtype == DType::kF32) {
    unpack<float><<<grid, kThreads, 0, stream>>>(work);
  } else if (work.dtype == DType::kF16) {
    unpack<Half><<<grid, kThreads, 0, stream>>>(work);
  } else {
    unpack<Bfloat><<<grid, kThreads, 0, stream>>>(work);
  }
  return cudaGetLastError();
}

const char* kernel_architectures() noexcept { return HEADRACE_CUDA_ARCHITECTURES; }
}  // namespace headrace::device::cuda
