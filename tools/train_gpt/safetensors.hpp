// SPDX-License-Identifier: Apache-2.0
// safetensors.hpp: reads and writes model.safetensors, tensor by tensor, never the whole file in
// memory.
//
// The format: 8 bytes little-endian header length, a JSON object {"name": {"dtype", "shape",
// "data_offsets"}}, then the bytes of all tensors without gaps. A file to read is untrusted: every
// length, range, dtype and shape is checked before anything is read by it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace train_gpt {
struct TensorEntry {
  std::string name;
  std::string dtype;  // "BF16", "F32", ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // of its bytes, counted from the first byte after the header
  std::uint64_t end = 0;
};

// Ownership: an open descriptor.
// Threads:   one at a time.
class SafetensorsReader {
 public:
  // Throws headrace::Error kNotFound or kIo for a file that cannot be opened, kInvalidArgument
  // naming the first fault of one that is damaged or not of this format.
  static SafetensorsReader open(const std::string& path);
  SafetensorsReader(SafetensorsReader&& other) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) = delete;
  ~SafetensorsReader();

  const std::string& path() const noexcept { return path_; }
  // In order of names.
  const std::map<std::string, TensorEntry>& tensors() const noexcept { return tensors_; }
  // Throws kInvalidArgument unless the tensor is there with this dtype and shape, saying what is
  // there instead.
  void require(const std::string& name, const std::string& dtype,
               const std::vector<std::int64_t>& shape) const;
  // All bytes of one tensor; `out` has its size. Throws kIo, and kInvalidArgument where a BF16, F16
  // or F32 is not finite: nothing could be trained from it.
  void read(const std::string& name, std::span<std::byte> out) const;

 private:
  SafetensorsReader() = default;
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t data_begin_ = 0;
  std::map<std::string, TensorEntry> tensors_;
};

inline constexpr const char* kModelFile = "model.safetensors";

// Writes a file of a folder: to a temporary file beside it, made durable, then renamed over
// it. Without finish() nothing is left. Threads: one at a time.
class SafetensorsWriter {
 public:
  // `tensors` in the order in which their bytes will come; offsets are worked out here. Throws kIo,
  // kNoSpace.
  SafetensorsWriter(std::string folder, std::vector<TensorEntry> tensors,
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

// Header length and header for these tensors in this order; their data starts at a multiple of
// 4096.
std::string safetensors_header(std::vector<TensorEntry>& tensors);
// Parses and checks a header (without its length); `data_bytes` is what follows it. Throws
// kInvalidArgument.
std::map<std::string, TensorEntry> parse_safetensors_header(std::string_view header,
                                                            std::uint64_t data_bytes,
                                                            const std::string& path);
// Bytes per element, 0 for a name that is not one.
std::uint64_t dtype_size_bytes(std::string_view dtype) noexcept;
}  // namespace train_gpt
