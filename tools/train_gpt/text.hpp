// SPDX-License-Identifier: Apache-2.0
// text.hpp: the bytes to train on: one file, or the text files of a folder laid end to end.
//
// Nothing is kept in memory but the list of files: windows are read where they lie, so a text may
// be larger than memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace train_gpt {
// Ownership: one open descriptor, of the file read last.
// Threads:   one at a time.
class Text {
 public:
  // `path` is a file or a folder; empty: the sources of the installed Python's standard library. A
  // folder's files are taken in order of their paths: regular, not hidden, not empty, without a NUL
  // byte in their first 4096; links are not followed. Throws headrace::Error kNotFound, kIo,
  // kInvalidArgument (nothing to read), each saying what to do.
  static Text open(const std::string& path);

  Text(Text&& other) noexcept;
  Text& operator=(Text&&) = delete;
  ~Text();

  const std::string& origin() const noexcept { return origin_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  std::size_t file_count() const noexcept { return files_.size(); }

  // Fills `out` with the bytes at `offset`. Throws kIo naming the file when it changed or cannot be
  // read.
  void read(std::uint64_t offset, std::span<std::uint8_t> out) const;

  // Entropy of single bytes, in nats: what a model that knows only how frequent each byte is would
  // reach. Of a text beyond 1 GiB, a sample spread evenly.
  //   checksum  if not null, becomes the XXH3-128 of the same bytes, in their order
  double unigram_entropy_nats(std::string* checksum = nullptr) const;

 private:
  struct File {
    std::string path;
    std::uint64_t begin = 0;  // in the text
    std::uint64_t size_bytes = 0;
  };
  Text() = default;
  void add_file(const std::string& path, std::uint64_t size_bytes);
  void add_folder(const std::string& path, bool python_only);
  void add_python_library();
  void add_path(const std::string& path);
  void read_from(const File& file, std::uint64_t offset, std::span<std::uint8_t> out) const;

  std::string origin_;
  std::uint64_t size_bytes_ = 0;
  std::vector<File> files_;
  mutable const File* open_file_ = nullptr;
  mutable int descriptor_ = -1;
};

// The folder of the standard library of the python3 that `search_path` (PATH's syntax) finds first;
// "": there is none.
std::string python_library_folder(const std::string& search_path);
}  // namespace train_gpt
