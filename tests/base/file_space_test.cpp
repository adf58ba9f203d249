// SPDX-License-Identifier: Apache-2.0
#include "base/file_space.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/unique_fd.hpp"

namespace headrace::base::file_space_test {
namespace {
class FileSpace : public ::testing::Test {
 protected:
  FileSpace() : file_(::mkstemp(name_.data())) { ::unlink(name_.c_str()); }
  struct stat status() const {
    struct stat status {};
    EXPECT_EQ(::fstat(file_.get(), &status), 0);
    return status;
  }
  std::string name_ = "file-space-XXXXXX";
  UniqueFd file_;
};

TEST_F(FileSpace, ReservesAllBlocks) {
  EXPECT_EQ(reserve(file_.get(), 0), 0);
  EXPECT_EQ(status().st_size, 0);
  const int error = reserve(file_.get(), 1 << 20);
  if (error == EOPNOTSUPP) GTEST_SKIP() << "this file system has no fallocate";
  ASSERT_EQ(error, 0);
  EXPECT_EQ(status().st_size, 1 << 20);
  EXPECT_GE(status().st_blocks * 512, 1 << 20);
}

TEST_F(FileSpace, DoesNotTryWhatCannotFit) {
  const auto free = free_bytes(file_.get());
  ASSERT_TRUE(free);
  EXPECT_EQ(reserve(file_.get(), std::uint64_t{1} << 60), ENOSPC);
  EXPECT_EQ(status().st_size, 0);
  EXPECT_EQ(status().st_blocks, 0);
}

TEST(FreeBytes, HasNoValueWhereNothingIsStored) {
  EXPECT_FALSE(free_bytes(-1));
  const UniqueFd proc(::open("/proc", O_RDONLY | O_DIRECTORY));
  EXPECT_FALSE(free_bytes(proc.get()));
}
}  // namespace
}  // namespace headrace::base::file_space_test
