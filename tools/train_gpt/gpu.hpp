// SPDX-License-Identifier: Apache-2.0
// gpu.hpp: --device: the part of LibTorch for it, loaded where it is asked for, so that one program
// serves machines with and without a GPU.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "options.hpp"

namespace train_gpt {
// "cpu", "cuda" or "cuda:N", as Options has it.
inline at::Device device_of(const Options& options) { return at::Device(options.device); }

// Makes torch ready to compute there, with operators that give the same bits every time. Its name:
// "cpu", "NVIDIA H200 (cuda:0)". Throws MissingDevice.
std::string open_device(const Options& options);

// The most that torch's tensors, and the engine's memory among them, took there at once; 0 on the
// CPU.
std::uint64_t device_peak_bytes(at::Device device);
}  // namespace train_gpt
