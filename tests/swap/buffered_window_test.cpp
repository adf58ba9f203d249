// SPDX-License-Identifier: Apache-2.0
#include "swap/buffered_window.hpp"

#include <gtest/gtest.h>

#include "limits.hpp"
#include "scratch.hpp"

namespace headrace::swap::test {
namespace {

class BufferedWindowTest : public testing::Test {
 protected:
  // 200 writes of 1 MiB where the kernel's write-back fails: 0 if each returns `expected`.
  int child_status(int sync_errno, int flags, int expected) {
    return in_child([&] {
      const int fd = ::open(file_.path().c_str(), O_RDWR | O_CLOEXEC | flags);
      if (fd < 0 || !forbid(SYS_sync_file_range, sync_errno)) return 77;
      BufferedWindow window(fd);
      for (std::uint64_t i = 0; i < 200; ++i) {
        if (window.wrote(i * kMiB, kMiB) != expected) return 1;
      }
      return 0;
    });
  }
  ScratchDirectory scratch_;
  TestFile file_{scratch_, 4096};
};

TEST_F(BufferedWindowTest, AWriteBackThatFailsIsTheErrorOfAWrite) {
  const int status = child_status(EIO, 0, EIO);
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
}

TEST_F(BufferedWindowTest, AKernelThatCannotBeAskedToWriteBackIsNoError) {
  const int status = child_status(ENOSYS, 0, 0);
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
}

TEST_F(BufferedWindowTest, LeavesFilesWithDirectIoAlone) {
  const int status = child_status(EIO, O_DIRECT, 0);
  if (status == 77) GTEST_SKIP() << "there is no O_DIRECT or no seccomp filter here";
  EXPECT_EQ(status, 0);
}
}  // namespace
}  // namespace headrace::swap::test
