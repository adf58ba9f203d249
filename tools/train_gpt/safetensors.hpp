// SPDX-License-Identifier: Apache-2.0
// safetensors.hpp: the weights that --init names, and a writer of model.safetensors that never
// holds the whole file in memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_tensors.hpp"

namespace train_gpt {
using InitialWeights = headrace::checkpoint::ModelTensors;
using headrace::checkpoint::TensorEntry;

// Of --init. Throws as ModelTensors.
InitialWeights open_initial_weights(const std::string& path);
// Throws kInvalidArgument unless the tensor is there with this dtype and shape, saying what is
// there instead.
void require(const InitialWeights& weights, const std::string& name, const std::string& dtype,
             const std::vector<std::int64_t>& shape);

inline constexpr const char* kModelFile = "model.safetensors";

// The first bytes of a file with these tensors: the header, and its length before it. `data_bytes`
// becomes the sum of the tensors' bytes.
std::string header_of(const std::vector<TensorEntry>& tensors, std::uint64_t& data_bytes);

// Removes the temporary files that killed writers have left in this folder: nobody holds a lock on
// them.
void remove_dead_writes(const std::string& folder) noexcept;

// Writes a file of a folder: to a temporary file beside it, locked while it is written, made
// durable, then renamed over it. Without finish() nothing is left. The next writer removes what a
// killed process leaves. Threads: one at a time.
class SafetensorsWriter {
 public:
  // `tensors` in the order in which their bytes will come. Throws kIo, kNoSpace.
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
  bool open_locked();
  [[noreturn]] void fail_write(const char* what, int number) const;
  std::string folder_;
  std::string target_;
  std::string temporary_;
  int descriptor_ = -1;
  std::uint64_t expected_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
};
}  // namespace train_gpt
