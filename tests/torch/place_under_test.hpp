// SPDX-License-Identifier: Apache-2.0
// place_under_test.hpp: torch's cuda:0 that a test is about: this machine's first GPU, or a
// simulated one (place_on_gpu.cpp, place_simulated.cpp).
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "headrace/device.hpp"

namespace headrace_test {
inline at::Device place_under_test() { return {at::kCUDA, 0}; }

// How far the GPU is behind the CPU that queues its work.
enum class Late { kNever, kNowAndThen, kFar };
// The engine's device on it. Tensors there of before must be gone.
// `seed`: of a simulated GPU's order of things.
std::shared_ptr<headrace::Device> make_place_device(std::uint64_t seed, Late late);
// Before a group is used: a GPU that is far behind gets more to do on the current stream.
void fall_behind(Late late);
}  // namespace headrace_test
