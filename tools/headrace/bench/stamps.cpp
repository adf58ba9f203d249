// SPDX-License-Identifier: Apache-2.0
#include "bench/stamps.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace headrace::tools {
namespace {
struct Stamp {
  std::uint64_t key = 0;
  std::uint64_t page = 0;
  std::uint32_t generation = 0;
  std::uint32_t body = 0;
};
static_assert(sizeof(Stamp) == 24);

std::uint64_t next_random(std::uint64_t& state) noexcept {  // splitmix64 (Steele et al. 2014)
  std::uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}
}  // namespace

Stamps::Stamps(std::uint64_t seed) : pool_(std::size_t{kBodies} * kPageBytes) {
  std::uint64_t state = seed;
  key_ = next_random(state);
  for (std::size_t at = 0; at < pool_.size(); at += sizeof state) {
    const std::uint64_t word = next_random(state);
    std::memcpy(pool_.data() + at, &word, sizeof word);
  }
}

void Stamps::fill(std::span<std::byte> pages) const noexcept {
  for (std::uint64_t i = 0; i < pages.size() / kPageBytes; ++i) {
    Stamp stamp{.key = key_, .body = static_cast<std::uint32_t>(i % kBodies)};
    std::byte* const page = pages.data() + i * kPageBytes;
    std::memcpy(page, pool_.data() + stamp.body * kPageBytes, kPageBytes);
    std::memcpy(page, &stamp, sizeof stamp);
  }
}

void Stamps::stamp(std::span<std::byte> pages, std::uint64_t first_page,
                   std::uint32_t generation) noexcept {
  for (std::uint64_t i = 0; i < pages.size() / kPageBytes; ++i) {
    std::byte* const page = pages.data() + i * kPageBytes;
    const std::uint64_t number = first_page + i;
    std::memcpy(page + offsetof(Stamp, page), &number, sizeof number);
    std::memcpy(page + offsetof(Stamp, generation), &generation, sizeof generation);
  }
}

std::string Stamps::fault(std::span<const std::byte, kPageBytes> page, std::uint64_t number,
                          std::uint32_t generation, bool whole) const {
  Stamp stamp;
  std::memcpy(&stamp, page.data(), sizeof stamp);
  if (stamp.key != key_ || stamp.body >= kBodies)
    return fmt::format("page {} holds no stamp of this run", number);
  if (stamp.page != number || stamp.generation != generation) {
    return fmt::format("page {} of generation {} where page {} of generation {} belongs",
                       stamp.page, stamp.generation, number, generation);
  }
  const std::byte* const body = pool_.data() + stamp.body * kPageBytes;
  if (whole &&
      std::memcmp(page.data() + sizeof stamp, body + sizeof stamp, kPageBytes - sizeof stamp) != 0)
    return fmt::format("page {} of generation {} has other bytes than were written", number,
                       generation);
  return "";
}

void PageMap::set(std::uint64_t offset_bytes, std::uint64_t size_bytes,
                  std::uint32_t generation) noexcept {
  std::fill_n(generations_.begin() + static_cast<std::ptrdiff_t>(offset_bytes / kPageBytes),
              size_bytes / kPageBytes, generation);
}
}  // namespace headrace::tools
