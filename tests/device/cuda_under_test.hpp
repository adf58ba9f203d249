// SPDX-License-Identifier: Apache-2.0
// cuda_under_test.hpp: the CUDA device that a test is about: on this machine's first GPU, or on a
// simulated one (cuda_on_gpu.cpp, cuda_simulated.cpp).
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "device/computing_device.hpp"
#include "headrace/cuda.hpp"

namespace headrace::device {
// `seed`: of the simulated GPU's order of things; `hardware_queues`: one of those below.
std::shared_ptr<Device> make_cuda_under_test(std::uint64_t seed, const CudaOptions& options = {},
                                             std::uint32_t hardware_queues = 0);
// How many a simulated GPU's streams may share; a real one has what it has, which is called 0.
std::vector<std::uint32_t> hardware_queues_under_test();
// One more on the same GPU that tests can compute on with functions of the host: its memory is
// theirs to touch there. The seed picks the hardware queues too.
std::shared_ptr<ComputingDevice> make_computing_cuda_device(std::uint64_t seed);
// A stream that the device did not make, as a program has them; it lives as long as the GPU.
Stream make_foreign_stream();
}  // namespace headrace::device
