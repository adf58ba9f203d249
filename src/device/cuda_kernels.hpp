// SPDX-License-Identifier: Apache-2.0
// cuda_kernels.hpp: queues the GPU's kernels on a stream. cuda_kernels.cu holds them.
#pragma once
#include <cuda_runtime_api.h>

#include <string_view>

#include "device/cuda_kernel_work.hpp"
#include "kernels/packed_values.hpp"
#include "kernels/update_span.hpp"

namespace headrace::device::cuda {
using kernels::PackWork;
using kernels::UpdateSpan;
using kernels::UpdateStep;

cudaError_t launch_cast(const CastWork& work, cudaStream_t stream) noexcept;
cudaError_t launch_measure(const MeasureWork& work, cudaStream_t stream) noexcept;

// The arrays of the span are device memory.
cudaError_t launch_update(const UpdateSpan& span, const UpdateStep& step,
                          cudaStream_t stream) noexcept;

// All arrays are device memory.
cudaError_t launch_pack(const PackWork& work, cudaStream_t stream) noexcept;
cudaError_t launch_unpack(const PackWork& work, cudaStream_t stream) noexcept;

// Loads all of them now: otherwise the first launch of each would wait for the whole GPU.
cudaError_t load_kernels() noexcept;
// "80 86 89 90 100 120": machine code for these, and PTX of the last one, for newer GPUs.
const char* kernel_architectures() noexcept;
// Whether kernels for `architectures` run on a GPU of this compute capability.
bool serves(std::string_view architectures, int major, int minor) noexcept;
}  // namespace headrace::device::cuda
