// SPDX-License-Identifier: Apache-2.0
// write_behind_test: streams of bytes that take turns, and end anywhere in a page, leave the files
// that they would leave if each were written at once.
//
// HEADRACE_WRITE_BEHIND_SEED repeats a run.
#include "checkpoint/write_behind.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>

#include "support/temporary_directory.hpp"

namespace headrace::checkpoint {
namespace {
using Random = std::mt19937_64;
constexpr std::uint64_t kFileBytes = std::uint64_t{65} << 20;  // around the page cache

std::byte value_at(std::uint32_t file, std::uint64_t at) {
  return static_cast<std::byte>((at * 7 + at / 4093 + file * 31) % 255 + 1);
}

// Bytes [at, end) of a file, which come in rising order.
struct Stream {
  std::uint32_t file = 0;
  std::uint64_t at = 0, end = 0;
};

// All bytes of two files, cut anywhere: some streams within one page, some over many.
std::vector<Stream> cut(Random& random) {
  std::vector<Stream> streams;
  for (std::uint32_t file = 0; file < 2; ++file) {
    for (std::uint64_t at = 0; at < kFileBytes;) {
      const std::uint64_t most = random() % 4 == 0   ? 9'000
                                 : random() % 3 == 0 ? 900'000
                                                     : 9'000'000;
      const std::uint64_t end = std::min(kFileBytes, at + 1 + random() % most);
      streams.push_back({file, at, end});
      at = end;
    }
  }
  std::ranges::shuffle(streams, random);
  return streams;
}

void write(std::vector<Stream> streams, const std::vector<std::string>& paths, Random random) {
  std::vector<File> files;
  for (const std::string& path : paths) files.push_back(File::open_to_write(path));
  WriteBehind behind(files);
  std::vector<std::byte> bytes;
  while (!streams.empty()) {  // a few take turns, as the tensors of a tile do
    Stream& stream = streams[random() % std::min<std::size_t>(streams.size(), 5)];
    bytes.resize(std::min(stream.end - stream.at, 1 + random() % 700'000));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = value_at(stream.file, stream.at + i);
    behind.write(stream.file, stream.at, bytes);
    stream.at += bytes.size();
    std::erase_if(streams, [](const Stream& one) { return one.at == one.end; });
  }
  behind.finish();
}

// Two writers, as two ranks have, whose streams meet within pages.
TEST(WriteBehind, LeavesEveryByteInItsPlace) {
  const char* const given = std::getenv("HEADRACE_WRITE_BEHIND_SEED");
  const std::uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device{}();
  SCOPED_TRACE("HEADRACE_WRITE_BEHIND_SEED=" + std::to_string(seed));
  Random random(seed);
  const testing::TemporaryDirectory folder;
  const std::vector<std::string> paths{folder.string() + "/a", folder.string() + "/b"};
  for (const std::string& path : paths) File::create(path, kFileBytes, kSaving);
  std::vector<Stream> streams = cut(random);
  const auto half = streams.begin() + static_cast<std::ptrdiff_t>(streams.size() / 2);
  std::thread other(write, std::vector<Stream>(streams.begin(), half), paths, Random(seed + 1));
  write({half, streams.end()}, paths, Random(seed + 2));
  other.join();
  for (std::uint32_t file = 0; file < paths.size(); ++file) {
    std::ifstream in(paths[file], std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    ASSERT_EQ(bytes.size(), kFileBytes);
    std::uint64_t wrong = 0;
    for (std::uint64_t at = 0; at < kFileBytes; ++at)
      wrong += static_cast<std::byte>(bytes[at]) != value_at(file, at) ? 1u : 0u;
    EXPECT_EQ(wrong, 0u) << "bytes of file " << file;
  }
}
}  // namespace
}  // namespace headrace::checkpoint
