// SPDX-License-Identifier: Apache-2.0
// safetensors.hpp: writes model.safetensors, tensor by tensor, never the whole file in memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "safetensors/header.hpp"

namespace train_gpt {
using headrace::tools::TensorEntry;

inline constexpr const char* kModelFile = "model.safetensors";

// Writes a file of a folder: to a temporary file beside it, made durable, then renamed over
// it. Without finish() nothing is left. Threads: one at a time.
class SafetensorsWriter {
 public:
  // `tensors` in the order in which their bytes will come. Throws kIo,
  // kNoSpace.
  SafetensorsWriter(std::string folder, const std::vector<TensorEntry>& tensors,
                    const std::string& name = kModelFile);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  // The next bytes, in order. Throws kIo, kNoSpace.
  void append(std::span<const std::byte> bytes);
  // Throws kWrongState when bytes are missing; kIo.
  void finish();

 private:
  [[noreturn]] void fail_write(const char* what) const;
  std::string folder_;
  std::string target_;
  std::string temporary_;
  int descriptor_ = -1;
  std::uint64_t expected_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
};
}  // namespace train_gpt
