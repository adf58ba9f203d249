// SPDX-License-Identifier: Apache-2.0
#include "base/whole_transfers.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>

#include "base/unique_fd.hpp"

namespace headrace::base {
namespace {
UniqueFd empty_file() { return UniqueFd(::memfd_create("whole_transfers_test", MFD_CLOEXEC)); }

TEST(WholeTransfers, ReadWhatWasWrittenUpToTheEndOfTheFile) {
  const UniqueFd file = empty_file();
  constexpr std::array kBytes{std::byte{1}, std::byte{2}, std::byte{3}};
  const Moved written = write_at(file.get(), 5, kBytes);
  EXPECT_EQ(written.size_bytes, 3u);
  EXPECT_EQ(written.error, 0);
  std::array<std::byte, 10> out{};
  const Moved read = read_at(file.get(), 6, out);
  EXPECT_EQ(read.size_bytes, 2u);
  EXPECT_EQ(read.error, 0);
  EXPECT_EQ(out[0], kBytes[1]);
  EXPECT_EQ(out[1], kBytes[2]);
}

TEST(WholeTransfers, TellWhatWasWrittenBeforeTheError) {
  const UniqueFd sealed(::memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(sealed.get(), 4096), 0);
  ASSERT_EQ(::fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  const std::array<std::byte, 8192> bytes{};
  const Moved written = write_at(sealed.get(), 0, bytes);
  EXPECT_EQ(written.error, EPERM);
  EXPECT_LE(written.size_bytes, 4096u);
}

TEST(WholeTransfers, ReportTheErrorOfTheCall) {
  const UniqueFd folder(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::array<std::byte, 1> byte{};
  EXPECT_EQ(read_at(folder.get(), 0, byte).error, EISDIR);
  EXPECT_EQ(write_at(folder.get(), 0, byte).error, EBADF);
}
}  // namespace
}  // namespace headrace::base
