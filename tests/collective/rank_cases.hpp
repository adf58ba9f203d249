// SPDX-License-Identifier: Apache-2.0
// rank_cases.hpp: what each rank of a world does and checks, be it a thread of one process or a
// process of its own. A case throws what was not as it should be.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collective/ranks.hpp"
#include "device/device_bytes.hpp"
#include "headrace/nccl.hpp"

namespace headrace::collective {
inline void must(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}
inline void must_say(const std::string& text, const std::string& part) {
  must(text.find(part) != std::string::npos, "'" + text + "' does not say '" + part + "'");
}

// What a rank brings to a sum, as every rank can work it out: any bits, most of them of usual size.
inline std::vector<std::byte> bucket_of(std::uint32_t rank, DType dtype, std::uint64_t elements) {
  std::mt19937_64 random(1000 * elements + 10 * rank + static_cast<std::uint64_t>(dtype));
  const std::uint32_t shift = dtype == DType::kF32 ? 16 : 0;
  const std::uint32_t exponent = dtype == DType::kF16 ? 0x7c00u : 0x7f80u;
  std::vector<std::byte> bytes(elements * size_bytes(dtype));
  for (std::uint64_t i = 0; i < elements; ++i) {
    auto bits = static_cast<std::uint32_t>(random());
    if (random() % 8 != 0)  // an exponent of the middle, or one below
      bits = (bits & ~((exponent & ~(exponent & -exponent)) << shift)) | ((exponent / 4) << shift);
    std::memcpy(&bytes[i * size_bytes(dtype)], &bits, size_bytes(dtype));
  }
  return bytes;
}

inline void gathers_every_piece(Rank& rank, std::uint32_t r, std::uint32_t world) {
  const Stream stream = rank.device->create_stream();
  for (const std::uint64_t elements : {1u, 333u, 1'000'003u}) {
    const std::uint64_t piece = elements * size_bytes(DType::kBf16);
    const device::DeviceBytes whole(*rank.device, piece * world);
    const std::vector<std::byte> mine = bucket_of(r, DType::kBf16, elements);
    rank.device->fill_zero(stream, whole.data(), piece * world);
    rank.device->copy(stream, static_cast<std::byte*>(whole.data()) + r * piece, mine.data(),
                      piece);
    rank.collective->all_gather({elements, "gather"}, stream,
                                equal_pieces(whole.data(), piece * world, world));
    std::vector<std::byte> back(piece * world), expected;
    rank.device->copy(stream, back.data(), whole.data(), back.size());
    rank.device->synchronize(stream);
    for (std::uint32_t other = 0; other < world; ++other) {
      const std::vector<std::byte> bytes = bucket_of(other, DType::kBf16, elements);
      expected.insert(expected.end(), bytes.begin(), bytes.end());
    }
    must(back == expected, "all_gather of " + std::to_string(elements) + " elements per rank");
  }
  rank.device->destroy_stream(stream);
}

// One all_to_all of pieces that every rank can work out.
inline void gives_one_piece_each(Rank& rank, std::uint32_t r, std::uint32_t world, Stream stream,
                                 std::uint64_t elements) {
  const std::uint64_t piece = elements * size_bytes(DType::kBf16);
  const device::DeviceBytes bucket(*rank.device, piece * world);
  const device::DeviceBytes taken(*rank.device, piece * world);
  const std::vector<std::byte> mine = bucket_of(r, DType::kBf16, elements * world);
  rank.device->copy(stream, bucket.data(), mine.data(), mine.size());
  std::vector<DeviceSpan> give;
  for (std::uint32_t to = 0; to < world; ++to)
    give.push_back({static_cast<std::byte*>(bucket.data()) + to * piece, piece});
  rank.collective->all_to_all({elements, "gradients"}, stream, give, taken.data());
  std::vector<std::byte> back(piece * (world - 1)), expected;
  rank.device->copy(stream, back.data(), taken.data(), back.size());
  rank.device->synchronize(stream);
  for (std::uint32_t from = 0; from < world; ++from) {
    if (from == r) continue;
    const std::vector<std::byte> theirs = bucket_of(from, DType::kBf16, elements * world);
    const auto first = theirs.begin() + static_cast<std::ptrdiff_t>(r * piece);
    expected.insert(expected.end(), first, first + static_cast<std::ptrdiff_t>(piece));
  }
  must(back == expected, "all_to_all of " + std::to_string(elements) +
                             " elements each brought other pieces than were given");
}

inline void gives_pieces(Rank& rank, std::uint32_t r, std::uint32_t world) {
  const Stream stream = rank.device->create_stream();
  for (const std::uint64_t each : {1u, 65u, 300'001u})
    gives_one_piece_each(rank, r, world, stream, each);
  rank.device->destroy_stream(stream);
}

inline void exchanges_messages(Rank& rank, std::uint32_t r, std::uint32_t world) {
  for (const std::uint64_t size : {0u, 1u, 856u, 857u, 20'000u}) {
    std::vector<std::byte> expected, received(size * world);
    for (std::uint32_t other = 0; other < world; ++other) {
      const std::vector<std::byte> bytes = bucket_of(other, DType::kF32, size);
      expected.insert(expected.end(), bytes.begin(),
                      bytes.begin() + static_cast<std::ptrdiff_t>(size));
    }
    const auto mine = std::span(expected).subspan(r * size, size);
    rank.collective->exchange({size, "message"}, mine, received);
    must(received == expected, "exchange of " + std::to_string(size) + " bytes");
  }
}

inline void is_told_of_an_abort(Rank& rank, std::uint32_t r, std::uint32_t world) {
  meet(*rank.collective, {1, "before"});
  if (r + 1 == world) rank.collective->abort("the drive is gone");
  const std::string text = peer_lost_text([&] { meet(*rank.collective, {2, "after"}); });
  must_say(text, "rank " + std::to_string(world - 1) + " gave up: the drive is gone");
  must(peer_lost_text([&] {
         meet(*rank.collective, {3, "later"});
       }) == text,
       "a later call ends otherwise than '" + text + "'");
}

inline void is_told_who_left(Rank& rank, std::uint32_t r, std::uint32_t world) {
  meet(*rank.collective, {1, "before"});
  if (r + 1 == world) return rank.collective.reset();
  must_say(
      peer_lost_text([&] {
        meet(*rank.collective, {2, "step 4"});
      }),
      "rank " + std::to_string(world - 1) + " has left and will not come to exchange 'step 4'");
}

inline const std::pair<const char*, void (*)(Rank&, std::uint32_t, std::uint32_t)> kRankCases[] = {
    {"gathers", gathers_every_piece}, {"pieces", gives_pieces},    {"messages", exchanges_messages},
    {"abort", is_told_of_an_abort},   {"leave", is_told_who_left},
};

// [id_by_file]
// The same id on every rank, by way of a file that all of them see and that no earlier run left.
inline headrace::NcclId id_by_file(std::uint32_t rank, const std::filesystem::path& file,
                                   const std::string& library) {
  headrace::NcclId id = {};
  auto* const bytes = reinterpret_cast<char*>(id.data());
  if (rank == 0) {
    id = headrace::nccl_unique_id(library);
    const std::filesystem::path part = file.string() + ".part";
    std::ofstream(part, std::ios::binary).write(bytes, std::ssize(id));
    std::filesystem::rename(part, file);  // so that it is never seen half written
    return id;
  }
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::ifstream(file, std::ios::binary).read(bytes, std::ssize(id));
  return id;
}
// [/id_by_file]
}  // namespace headrace::collective
