// SPDX-License-Identifier: Apache-2.0
// cuda_kernels.hpp: the GPU's kernels, queued on a stream. cuda_kernels.cu holds them.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "device/update_span.hpp"
#include "headrace/device.hpp"

namespace headrace::device::cuda {
// target[i] = source[i], or target[i] + source[i], in f32, rounded once to `target_dtype`; a NaN
// becomes the canonical one. Device memory.
struct CastWork {
  const void* source = nullptr;
  DType source_dtype = DType::kBf16;
  void* target = nullptr;
  DType target_dtype = DType::kBf16;
  std::uint64_t elements = 0;
  bool overwrite = true;
};
cudaError_t launch_cast(const CastWork& work, cudaStream_t stream) noexcept;

// pieces[k] of the values, cut at first_piece_elements + n * piece_elements. Device memory.
struct MeasureWork {
  const void* values = nullptr;
  DType dtype = DType::kBf16;
  std::uint64_t elements = 0;
  std::uint64_t first_piece_elements = 0;  // 1 to piece_elements
  std::uint64_t piece_elements = 0;
  GradientPiece* pieces = nullptr;
};
cudaError_t launch_measure(const MeasureWork& work, cudaStream_t stream) noexcept;

// An optimizer's update. The span's arrays are device memory.
cudaError_t launch_update(const UpdateSpan& span, const UpdateStep& step,
                          cudaStream_t stream) noexcept;

inline std::uint64_t pieces_of(const MeasureWork& work) noexcept {
  if (work.elements <= work.first_piece_elements) return 1;
  return 1 + (work.elements - work.first_piece_elements + work.piece_elements - 1) /
                 work.piece_elements;
}
// All of them, now: else the first launch of each waits for the whole GPU.
cudaError_t load_kernels() noexcept;
// "80 86 89 90 100 120": machine code for these, and PTX of the last, which newer GPUs take.
const char* kernel_architectures() noexcept;
// Whether kernels for `architectures` run on a GPU of this compute capability.
bool serves(std::string_view architectures, int major, int minor) noexcept;
}  // namespace headrace::device::cuda
