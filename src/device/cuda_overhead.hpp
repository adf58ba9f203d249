// SPDX-License-Identifier: Apache-2.0
// cuda_overhead.hpp: the slots through which gradients leave a GPU: how many, and of what size.
// Known in builds without CUDA too, for plans of other machines.
#pragma once
#include <cstdint>

#include "headrace/device.hpp"

namespace headrace::device::cuda {
// Six: a stream that brings many small gradients waits for the sixth last one, not for the last.
inline constexpr std::uint64_t kLandingSlots = 6;
inline constexpr std::uint64_t kLandingSlotBytes = std::uint64_t{4} << 20;
// As many as a slot's stretch can have, were they of 4096 elements of 2 bytes.
inline constexpr std::uint64_t kLandingPieces = kLandingSlotBytes / 2 / 4096;
// Of one slot, in host memory; the GPU's half has no pieces.
inline constexpr std::uint64_t kLandingHalfBytes =
    kLandingSlotBytes + kLandingPieces * sizeof(GradientPiece);
}  // namespace headrace::device::cuda
