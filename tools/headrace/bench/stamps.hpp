// SPDX-License-Identifier: Apache-2.0
// stamps.hpp: the contents of the pages of a measured file, which make every wrong byte that is
// read visible.
//
// A page of 4 KiB is a stamp (key of this run, its number in the file, the generation that was
// written, which body follows) and a body of random bytes from a fixed pool. Writing again changes
// the stamp alone: a few bytes per page, so that measuring is not slowed by making up data.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headrace::tools {
inline constexpr std::uint64_t kPageBytes = 4096;

class Stamps {
 public:
  explicit Stamps(std::uint64_t seed);

  // Bodies and keys of whole pages; page numbers and generations are stamp()'s.
  void fill(std::span<std::byte> pages) const noexcept;
  static void stamp(std::span<std::byte> pages, std::uint64_t first_page,
                    std::uint32_t generation) noexcept;
  // The fault of a page that should be number `page` of `generation`; empty if there is none.
  //   whole  the body too; else the stamp alone
  std::string fault(std::span<const std::byte, kPageBytes> page, std::uint64_t number,
                    std::uint32_t generation, bool whole) const;

 private:
  static constexpr std::uint32_t kBodies = 4096;  // 16 MiB
  std::uint64_t key_;
  std::vector<std::byte> pool_;
};

// Which generation each page of a file holds. Threads: each writes and reads the pages of its part.
class PageMap {
 public:
  static constexpr std::uint32_t kUnknown = 0;  // never written by us, or by another program since
  explicit PageMap(std::uint64_t file_bytes) : generations_(file_bytes / kPageBytes, kUnknown) {}

  std::uint32_t at(std::uint64_t page) const noexcept { return generations_[page]; }
  void set(std::uint64_t offset_bytes, std::uint64_t size_bytes, std::uint32_t generation) noexcept;

 private:
  std::vector<std::uint32_t> generations_;
};
}  // namespace headrace::tools
