// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "headrace/error.hpp"
#include "limits.hpp"
#include "scratch.hpp"
#include "swap/swap_file.hpp"

namespace headrace::swap::test {
namespace {
namespace fs = std::filesystem;

class SwapFileTest : public testing::Test {
 protected:
  void expect_refused(std::uint64_t size_bytes, Code code, const std::vector<std::string>& parts) {
    try {
      SwapFile file(run_, probe_, "rank0.0.swap", size_bytes);
      FAIL() << "was made";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << part << " in " << error.what();
      }
    }
    EXPECT_FALSE(fs::exists(run_.path() + "/rank0.0.swap"));
  }
  ScratchDirectory scratch_;
  PathProbe probe_ = probe_path(scratch_.path(), {});
  RunDirectory run_{probe_, make_run_id(), [](LogLevel, std::string_view) {}};
};

TEST_F(SwapFileTest, HasAllItsBlocksFromTheStart) {
  const SwapFile file(run_, probe_, "rank0.0.swap", 3 * kMiB);
  struct stat status {};
  ASSERT_EQ(::stat(file.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(3 * kMiB));
  EXPECT_GE(static_cast<std::uint64_t>(status.st_blocks) * 512, 3 * kMiB);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ((::fcntl(file.fd(), F_GETFL) & O_DIRECT) != 0, probe_.direct);
  EXPECT_NE(::fcntl(file.fd(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(file.size_bytes(), 3 * kMiB);
  Pages memory(8192);
  EXPECT_EQ(::pwrite(file.fd(), memory.data(), 8192, 3 * kMiB - 8192), 8192);
}

TEST_F(SwapFileTest, IsGoneWithItsObject) {
  std::string path;
  {
    const SwapFile file(run_, probe_, "rank0.0.swap", kMiB);
    path = file.path();
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(SwapFileTest, TooLittleSpaceNamesWantedAndFreeBytes) {
  // A reservation that fails fills the drive first: it is not tried.
  const int status = in_child([&] {
    if (!forbid(SYS_fallocate, EIO)) return 77;
    try {
      SwapFile file(run_, probe_, "rank0.0.swap", std::uint64_t{1} << 50);
      return 1;
    } catch (const Error& error) {
      return error.sys_errno() == ENOSPC ? 0 : 2;
    }
  });
  EXPECT_TRUE(status == 0 || status == 77) << status;  // 77: no seccomp filters here
  expect_refused(std::uint64_t{1} << 50, Code::kNoSpace,
                 {"rank0.0.swap", std::to_string(std::uint64_t{1} << 50), "are free", "nvme_path"});
}

TEST_F(SwapFileTest, AQuotaThatIsUsedUpIsNamedWithWhatHelps) {
  const int status = in_child([&] {
    if (!forbid(SYS_fallocate, EDQUOT)) return 77;
    try {
      SwapFile file(run_, probe_, "rank0.0.swap", kMiB);
      return 1;
    } catch (const Error& error) {
      const std::string text = error.what();
      if (error.code() != Code::kNoSpace || error.sys_errno() != EDQUOT) return 2;
      return text.find("free some of this user's quota") == std::string::npos ? 3 : 0;
    }
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(fs::exists(run_.path() + "/rank0.0.swap"));
}

TEST_F(SwapFileTest, DoesNotTakeAFileThatIsThere) {
  std::ofstream(run_.path() + "/rank0.0.swap") << "somebody's";
  EXPECT_THROW(SwapFile(run_, probe_, "rank0.0.swap", kMiB), Error);
  EXPECT_EQ(fs::file_size(run_.path() + "/rank0.0.swap"), 10u);
}

TEST_F(SwapFileTest, RefusesWhatTheFileSizeLimitForbidsInsteadOfDyingByTheSignal) {
  const int status = in_child([&] {
    limit_file_size(kMiB);
    try {
      SwapFile file(run_, probe_, "rank0.1.swap", 2 * kMiB);
      return 1;
    } catch (const Error& error) {
      return error.code() == Code::kNoSpace && error.sys_errno() == EFBIG ? 0 : 2;
    }
  });
  EXPECT_EQ(status, 0);
}

TEST_F(SwapFileTest, WritesZerosWhereBlocksCannotBeReserved) {
  const int status = in_child([&] {
    if (!forbid(SYS_fallocate, EOPNOTSUPP)) return 77;
    const SwapFile file(run_, probe_, "rank0.2.swap", 2 * kMiB + 4096);
    struct stat now {};
    if (::fstat(file.fd(), &now) != 0 || now.st_size != static_cast<off_t>(2 * kMiB + 4096))
      return 1;
    return static_cast<std::uint64_t>(now.st_blocks) * 512 >= 2 * kMiB + 4096 ? 0 : 2;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
}

TEST_F(SwapFileTest, AFailedReservationLeavesNoFile) {
  const int status = in_child([&] {
    if (!forbid(SYS_fallocate, ENOSPC)) return 77;
    try {
      SwapFile file(run_, probe_, "rank0.3.swap", kMiB);
      return 1;
    } catch (const Error& error) {
      if (error.code() != Code::kNoSpace || error.sys_errno() != ENOSPC) return 2;
      return fs::exists(run_.path() + "/rank0.3.swap") ? 3 : 0;
    }
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
}
}  // namespace
}  // namespace headrace::swap::test
