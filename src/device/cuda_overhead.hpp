// SPDX-License-Identifier: Apache-2.0
// cuda_overhead.hpp: the number and size of the slots through which gradients leave a GPU. Builds
// without CUDA have this too, for plans of other machines.
#pragma once
#include <cstdint>

#include "headrace/device.hpp"

namespace headrace::device::cuda {
// Six: a stream that brings many small gradients waits for the sixth last one, not for the last.
inline constexpr std::uint64_t kLandingSlots = 6;
inline constexpr std::uint64_t kLandingSlotBytes = std::uint64_t{4} << 20;
// The most pieces in a slot, if each has 4096 elements of 2 bytes.
inline constexpr std::uint64_t kLandingPieces = kLandingSlotBytes / 2 / 4096;
// The bytes of one slot in host memory. The GPU's half of a slot has no pieces.
inline constexpr std::uint64_t kLandingHalfBytes =
    kLandingSlotBytes + kLandingPieces * sizeof(GradientPiece);
}  // namespace headrace::device::cuda
