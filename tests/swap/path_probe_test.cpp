// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/vfs.h>

#include "headrace/error.hpp"
#include "limits.hpp"
#include "scratch.hpp"
#include "swap/swap_file.hpp"

namespace headrace::swap::test {
namespace {
void expect_refusal(const std::string& path, const Settings& settings, Code code,
                    const std::vector<std::string>& parts) {
  try {
    probe_path(path, settings);
    FAIL() << path << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << part << " in " << error.what();
    }
  }
}

// A file system in memory that this user may write to; empty if there is none.
std::string memory_directory() {
  struct statfs status {};
  const bool memory = ::statfs("/dev/shm", &status) == 0 && status.f_type == TMPFS_MAGIC;
  return memory && ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "";
}

TEST(PathProbe, AnOrdinaryDirectoryIsAcceptedAndLeftAsItWas) {
  const ScratchDirectory scratch;
  const PathProbe probe = probe_path(scratch.path(), {});
  EXPECT_EQ(probe.path, std::filesystem::canonical(scratch.path()));
  EXPECT_FALSE(probe.file_system.empty());
  EXPECT_GT(probe.free_bytes, 0u);
  EXPECT_LE(probe.alignment_bytes, 4096u);
  EXPECT_GE(probe.alignment_bytes, 512u);
  EXPECT_TRUE(tree(scratch.path()).empty());
}

TEST(PathProbe, SaysDirectOnlyWhereTheKernelRefusesOddMemory) {
  const ScratchDirectory scratch;
  const PathProbe probe = probe_path(scratch.path(), {});
  if (!probe.direct)
    GTEST_SKIP() << "the build folder is on " << probe.file_system << " without O_DIRECT";
  TestFile file(scratch, 16384);
  const int fd = ::open(file.path().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  Pages memory(16384);
  EXPECT_EQ(::pread(fd, memory.data() + probe.alignment_bytes, probe.alignment_bytes,
                    probe.alignment_bytes),
            static_cast<ssize_t>(probe.alignment_bytes));
  EXPECT_TRUE(probe.file_system == "nfs" || ::pread(fd, memory.data() + 1, 4096, 0) < 0);
  ::close(fd);
}

TEST(PathProbe, FollowsALinkToTheRealDirectory) {
  const ScratchDirectory scratch;
  std::filesystem::create_directory(scratch / "real");
  std::filesystem::create_directory_symlink(scratch / "real", scratch / "link");
  EXPECT_EQ(probe_path(scratch / "link", {}).path, std::filesystem::canonical(scratch / "real"));
}

TEST(PathProbe, TakesDirectoriesOfAnyName) {
  const ScratchDirectory scratch;
  for (const std::string name :
       {"with blanks ", "schnäppchen/日本", "-f", "a\\b'\"$(x)", "%s%n", "\xff\xfe not UTF-8"}) {
    const std::string path = scratch / name;
    std::filesystem::create_directories(path);
    const PathProbe probe = probe_path(path, {});
    EXPECT_EQ(probe.path, path);
    auto run = std::make_unique<RunDirectory>(probe, make_run_id(), [](auto, auto) {});
    { const SwapFile file(*run, probe, "rank0.0.swap", 4096); }
    run.reset();
    EXPECT_TRUE(tree(path).empty()) << path;
  }
}

TEST(PathProbe, ARelativePathIsMadeAbsoluteOnce) {
  const ScratchDirectory scratch;
  std::filesystem::create_directory(scratch / "below");
  EXPECT_EQ(in_child([&] {
              if (::chdir(scratch.path().c_str()) != 0) return 10;
              const PathProbe probe = probe_path("./below/../below/", {});
              return probe.path == std::filesystem::canonical(scratch / "below") ? 0 : 1;
            }),
            0);
}

TEST(PathProbe, RefusesAPathThatIsTooLong) {
  expect_refusal("/" + std::string(300, 'x'), {}, Code::kIo, {"ENAMETOOLONG", "shorter"});
}

TEST(PathProbe, FindsTheSameWhereTheKernelDoesNotTellTheAlignment) {
  const ScratchDirectory scratch;
  const PathProbe told = probe_path(scratch.path(), {});
  const int status = in_child([&] {
    if (!forbid(SYS_statx, ENOSYS)) return 77;
    const PathProbe tried = probe_path(scratch.path(), {});
    if (tried.direct != told.direct) return 1;
    return tried.alignment_bytes <= 4096 && tried.alignment_bytes >= 512 ? 0 : 2;
  });
  if (status == 77) GTEST_SKIP() << "seccomp filters cannot be installed here";
  EXPECT_EQ(status, 0);
}

TEST(PathProbe, RefusesUnderATinyFileSizeLimitInsteadOfDyingByTheSignal) {
  const ScratchDirectory scratch;
  for (const rlim_t bytes : {0, 4096, 16384}) {
    EXPECT_EQ(in_child([&] {
                limit_file_size(bytes);
                try {
                  probe_path(scratch.path(), {});
                  return 1;
                } catch (const Error& error) {
                  if (error.code() != Code::kNoSpace || error.sys_errno() != EFBIG) return 2;
                  return std::string(error.what()).find("ulimit -f") == std::string::npos ? 3 : 0;
                }
              }),
              0)
        << bytes;
  }
}

TEST(PathProbe, NamesTheLimitWhenNoDescriptorIsLeft) {
  const ScratchDirectory scratch;
  const FewDescriptors none(0);
  expect_refusal(scratch.path(), {}, Code::kIo, {"EMFILE", "ulimit -n"});
}

TEST(PathProbe, RefusesAFileSystemThatIsMountedReadOnly) {
  const ScratchDirectory scratch;
  const char* const path = scratch.path().c_str();
  const int status = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, "") != 0 ||
        ::mount(path, path, nullptr, MS_BIND, nullptr) != 0 ||
        ::mount(path, path, nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
      return 77;
    }
    try {
      probe_path(path, {});
      return 1;
    } catch (const Error& error) {
      if (error.code() != Code::kIo || error.sys_errno() != EROFS) return 2;
      return std::string(error.what()).find("mount") == std::string::npos ? 3 : 0;
    }
  });
  if (status == 77) GTEST_SKIP() << "no mount can be made here";
  EXPECT_EQ(status, 0);
}

TEST(PathProbe, RefusesWhatIsMissing) {
  const ScratchDirectory scratch;
  expect_refusal(scratch / "missing", {}, Code::kNotFound,
                 {"missing", "does not exist", "ENOENT", "mkdir"});
}

TEST(PathProbe, RefusesAFileSystemThatTakesNoFilesWithoutAskingToCreateTheDirectory) {
  try {
    probe_path("/proc", {});
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_NE(text.find("takes no files"), std::string::npos) << text;
    EXPECT_EQ(text.find("mkdir"), std::string::npos) << text;
  }
}

TEST(PathProbe, RefusesAFile) {
  const ScratchDirectory scratch;
  TestFile file(scratch, 4096);
  expect_refusal(file.path(), {}, Code::kNotFound, {"not a directory"});
  expect_refusal(file.path() + "/below", {}, Code::kNotFound, {"ENOTDIR"});
}

TEST(PathProbe, RefusesADirectoryThatThisUserMayNotWriteTo) {
  const ScratchDirectory scratch;
  ::chmod(scratch.path().c_str(), 0555);
  const int status = in_child([&] {
    if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return 10;
    try {
      probe_path(scratch.path(), {});
      return 1;
    } catch (const Error& error) {
      if (error.code() != Code::kIo || error.sys_errno() != EACCES) return 2;
      return std::string(error.what()).find("EACCES") == std::string::npos ? 3 : 0;
    }
  });
  ::chmod(scratch.path().c_str(), 0700);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(tree(scratch.path()).empty());
}

TEST(PathProbe, RefusesMemoryUnlessItIsAllowedByName) {
  const std::string memory = memory_directory();
  if (memory.empty()) GTEST_SKIP() << "no writable tmpfs at /dev/shm";
  expect_refusal(
      memory, {}, Code::kUnsupported,
      {"tmpfs", "stay in memory", "a directory on a drive", "headrace.allow_memory_backed=true"});
  Settings settings;
  settings.allow_memory_backed = true;
  const PathProbe probe = probe_path(memory, settings);
  EXPECT_TRUE(probe.memory_backed);
  EXPECT_FALSE(probe.direct);
  EXPECT_EQ(probe.file_system, "tmpfs");
}

TEST(PathProbe, RefusesWhatHasNoDirectIoWhereThatIsRequired) {
  const std::string memory = memory_directory();
  if (memory.empty()) GTEST_SKIP() << "no writable tmpfs at /dev/shm";
  Settings settings;
  settings.allow_memory_backed = true;
  settings.direct = DirectIo::kRequire;
  expect_refusal(memory, settings, Code::kUnsupported, {"O_DIRECT", "headrace.direct", "require"});
}
}  // namespace
}  // namespace headrace::swap::test
