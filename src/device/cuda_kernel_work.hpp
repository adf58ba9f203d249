// SPDX-License-Identifier: Apache-2.0
// cuda_kernel_work.hpp: the arguments of the GPU's kernels, other than updates (update_span.hpp).
#pragma once
#include <cstdint>

#include "headrace/device.hpp"

namespace headrace::device::cuda {
// Computes target[i] = source[i], or target[i] + source[i], in f32, rounded once to `target_dtype`.
// A NaN becomes the canonical one. All pointers are to device memory.
struct CastWork {
  const void* source = nullptr;
  DType source_dtype = DType::kBf16;
  void* target = nullptr;
  DType target_dtype = DType::kBf16;
  std::uint64_t elements = 0;
  bool overwrite = true;
};

// Measures values into pieces[k], cut at first_piece_elements + n * piece_elements, on the device.
struct MeasureWork {
  const void* values = nullptr;
  DType dtype = DType::kBf16;
  std::uint64_t elements = 0;
  std::uint64_t first_piece_elements = 0;  // 1 to piece_elements
  std::uint64_t piece_elements = 0;
  GradientPiece* pieces = nullptr;
};
inline std::uint64_t pieces_of(const MeasureWork& work) noexcept {
  if (work.elements <= work.first_piece_elements) return 1;
  return 1 + (work.elements - work.first_piece_elements + work.piece_elements - 1) /
                 work.piece_elements;
}
}  // namespace headrace::device::cuda
