// SPDX-License-Identifier: Apache-2.0
// simulated_cuda_kernels.cpp: the kernels' launches, with the arithmetic of cuda_kernel_bodies.hpp
// compiled for this CPU: threads and blocks become loops.
#include <algorithm>
#include <vector>

#include "device/cuda_kernel_bodies.hpp"
#include "device/cuda_kernels.hpp"
#include "device/simulated_cuda_state.hpp"
#include "kernels/kernels.hpp"
#include "kernels/packing.hpp"

namespace headrace::device::cuda {
namespace {
std::uintptr_t handle(cudaStream_t stream) { return reinterpret_cast<std::uintptr_t>(stream); }

template <class Source, class Sum>
void cast_as(const CastWork& work) {
  const auto* source = static_cast<const Source*>(work.source);
  auto* sum = static_cast<Sum*>(work.target);
  for (std::uint64_t i = work.elements; i-- > 0;) {
    if (work.overwrite) {
      write_element(source, sum, i);
    } else {
      add_element(source, sum, i);
    }
  }
}
template <class Source>
void cast_from(const CastWork& work) {
  if (work.target_dtype == DType::kF32) return cast_as<Source, float>(work);
  if (work.target_dtype == DType::kF16) return cast_as<Source, Half>(work);
  cast_as<Source, Bfloat>(work);
}

template <class Value>
void measure(const MeasureWork& work) {
  constexpr std::uint32_t kLoaders = 7;
  std::vector<float> strip(kStrip);
  for (std::uint64_t p = 0; p < pieces_of(work); ++p) {
    const std::uint64_t first =
        p == 0 ? 0 : work.first_piece_elements + (p - 1) * work.piece_elements;
    const std::uint64_t size = p == 0 ? work.first_piece_elements : work.piece_elements;
    const std::uint64_t elements = std::min(size, work.elements - first);
    const auto* piece = static_cast<const Value*>(work.values) + first;
    PartialSum sums[kPartialSums] = {};
    for (std::uint64_t at = 0; at < elements; at += kStrip) {
      const auto now = static_cast<std::uint32_t>(std::min<std::uint64_t>(kStrip, elements - at));
      for (std::uint32_t t = kLoaders; t-- > 0;)
        load_strip(piece, at, now, strip.data(), t, kLoaders);
      for (std::uint32_t nth = kPartialSums; nth-- > 0;)
        add_strip(strip.data(), now, nth, sums[nth]);
    }
    join_sums(sums);
    work.pieces[p] = {sums[0].sum, sums[0].non_finite};
  }
}
}  // namespace

cudaError_t launch_cast(const CastWork& work, cudaStream_t stream) noexcept {
  if (const cudaError_t refused = simulated_cuda::before("launch_cast"); refused != cudaSuccess)
    return refused;
  return simulated_cuda::launch(handle(stream), [work] {
    if (work.source_dtype == DType::kF32) return cast_from<float>(work);
    if (work.source_dtype == DType::kF16) return cast_from<Half>(work);
    cast_from<Bfloat>(work);
  });
}

cudaError_t launch_measure(const MeasureWork& work, cudaStream_t stream) noexcept {
  if (const cudaError_t refused = simulated_cuda::before("launch_measure"); refused != cudaSuccess)
    return refused;
  return simulated_cuda::launch(handle(stream), [work] {
    if (work.dtype == DType::kF32) return measure<float>(work);
    if (work.dtype == DType::kF16) return measure<Half>(work);
    measure<Bfloat>(work);
  });
}

cudaError_t launch_update(const UpdateSpan& span, const UpdateStep& step,
                          cudaStream_t stream) noexcept {
  if (const cudaError_t refused = simulated_cuda::before("launch_update"); refused != cudaSuccess)
    return refused;
  return simulated_cuda::launch(handle(stream),
                                [span, step] { kernels::update_reference(span, step); });
}

cudaError_t launch_pack(const PackWork& work, cudaStream_t stream) noexcept {
  if (const cudaError_t refused = simulated_cuda::before("launch_pack"); refused != cudaSuccess)
    return refused;
  return simulated_cuda::launch(handle(stream), [work] { kernels::pack_on_host(work); });
}
cudaError_t launch_unpack(const PackWork& work, cudaStream_t stream) noexcept {
  if (const cudaError_t refused = simulated_cuda::before("launch_unpack"); refused != cudaSuccess)
    return refused;
  return simulated_cuda::launch(handle(stream), [work] { kernels::unpack_on_host(work); });
}

cudaError_t load_kernels() noexcept { return simulated_cuda::before("load_kernels"); }

const char* kernel_architectures() noexcept { return "80 86 89 90 100 120"; }
}  // namespace headrace::device::cuda
