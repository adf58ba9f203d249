// SPDX-License-Identifier: Apache-2.0
// Limits read from made-up /proc and /sys trees in a temporary folder.
#include "platform/machine.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "headrace/error.hpp"
#include "platform/cgroups.hpp"
#include "platform/proc_files.hpp"

namespace headrace::platform {
namespace {
constexpr std::uint64_t kMiB = 1 << 20;
constexpr const char* kMountV2 =
    "24 1 0:22 / / rw,relatime - ext4 /dev/vda1 rw\n"
    "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kMountsV1 =
    "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

class FakeMachine : public ::testing::Test {
 protected:
  FakeMachine() {
    std::string name =
        (std::filesystem::temp_directory_path() / "headrace_machine_XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) root_ = name;
    const char* slurm = std::getenv("SLURM_CPUS_PER_TASK");
    if (slurm != nullptr) slurm_ = slurm;
    ::unsetenv("SLURM_CPUS_PER_TASK");
  }
  ~FakeMachine() override {
    std::filesystem::remove_all(root_);
    if (!slurm_.empty()) ::setenv("SLURM_CPUS_PER_TASK", slurm_.c_str(), 1);
  }
  void write(const std::string& path, const std::string& text) {
    ASSERT_FALSE(root_.empty());
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void available_mib(std::uint64_t mib) {
    write("/proc/meminfo", "MemTotal:       99999999 kB\nMemFree:         1 kB\nMemAvailable:   " +
                               std::to_string(mib * 1024) + " kB\n");
  }
  void version2(const std::string& group) {
    write("/proc/self/cgroup", "0::" + group + "\n");
    write("/proc/self/mountinfo", kMountV2);
  }
  std::string root_;
  std::string slurm_;
};
using MemoryLeft = FakeMachine;
using UsableCpus = FakeMachine;

TEST_F(MemoryLeft, IsMemAvailableWithoutControlGroups) {
  available_mib(300);
  const Limit limit = memory_left(root_);
  EXPECT_EQ(limit.value, 300 * kMiB);
  EXPECT_EQ(limit.source, "MemAvailable in /proc/meminfo");
}

TEST_F(MemoryLeft, IsTheGroupsLimitLessWhatIsUsedButNotLessCleanCache) {
  available_mib(300);
  version2("/job");
  write("/sys/fs/cgroup/job/memory.max", "104857600\n");
  write("/sys/fs/cgroup/job/memory.current", "52428800\n");
  write("/sys/fs/cgroup/job/memory.stat",
        "anon 1\nfile 2\nactive_file 3\ninactive_file 20971520\n");
  const Limit limit = memory_left(root_);
  EXPECT_EQ(limit.value, 100 * kMiB - 50 * kMiB + 20 * kMiB);
  EXPECT_EQ(limit.source, "cgroup memory.max of /sys/fs/cgroup/job");
}

// Under sanitizers the address space is theirs, so the limit cannot be set there.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(MemoryLeft, IsAtMostWhatTheLimitOnAddressSpaceLeaves) {
  available_mib(1 << 20);
  write("/proc/self/status", "VmPeak:\t9999999 kB\nVmSize:\t1048576 kB\n");
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit space{3072 * kMiB, 3072 * kMiB};
    ::setrlimit(RLIMIT_AS, &space);
    const Limit limit = memory_left(root_);
    const bool named = limit.source.find("ulimit -v") != std::string::npos;
    ::_exit(limit.value != 2048 * kMiB ? 1 : named ? 0 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

TEST_F(MemoryLeft, ObeysTheTightestAncestor) {
  available_mib(3000);
  version2("/slice/job/step");
  write("/sys/fs/cgroup/slice/job/step/memory.max", "max\n");
  write("/sys/fs/cgroup/slice/job/memory.max", "209715200\n");
  write("/sys/fs/cgroup/slice/memory.max", "104857600\n");
  write("/sys/fs/cgroup/slice/memory.current", "1048576\n");
  const Limit limit = memory_left(root_);
  EXPECT_EQ(limit.value, 99 * kMiB);
  EXPECT_EQ(limit.source, "cgroup memory.max of /sys/fs/cgroup/slice");
}

TEST_F(MemoryLeft, CountsMemoryHighAsALimit) {
  available_mib(3000);
  version2("/job");
  write("/sys/fs/cgroup/job/memory.max", "209715200\n");
  write("/sys/fs/cgroup/job/memory.high", "104857600\n");
  const Limit limit = memory_left(root_);
  EXPECT_EQ(limit.value, 100 * kMiB);
  EXPECT_EQ(limit.source, "cgroup memory.high of /sys/fs/cgroup/job");
}

TEST_F(MemoryLeft, IsZeroWhenMoreIsUsedThanAllowed) {
  available_mib(300);
  version2("/job");
  write("/sys/fs/cgroup/job/memory.max", "1048576\n");
  write("/sys/fs/cgroup/job/memory.current", "2097152\n");
  EXPECT_EQ(memory_left(root_).value, 0u);
}

TEST_F(MemoryLeft, ReadsVersion1WithItsOwnCacheLine) {
  available_mib(300);
  write("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/job\n");
  write("/proc/self/mountinfo", kMountsV1);
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "104857600\n");
  write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "31457280\n");
  write("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 10485760\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const Limit limit = memory_left(root_);
  EXPECT_EQ(limit.value, 80 * kMiB);
  EXPECT_EQ(limit.source, "cgroup memory.limit_in_bytes of /sys/fs/cgroup/memory/job");
}

TEST_F(MemoryLeft, TakesVersion1sRounded2To63ForNoLimitAtAnyPageSize) {
  available_mib(300);
  write("/proc/self/cgroup", "4:memory:/job\n");
  write("/proc/self/mountinfo", kMountsV1);
  for (const char* unlimited :
       {"9223372036854771712", "9223372036854710272", "9223372036854775807"}) {
    write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", unlimited);
    EXPECT_EQ(memory_left(root_).source, "MemAvailable in /proc/meminfo") << unlimited;
  }
}

TEST_F(MemoryLeft, ReadsBothVersionsWhereBothAreMounted) {
  available_mib(300);
  write("/proc/self/cgroup", "4:memory:/old\n0::/new\n");
  write("/proc/self/mountinfo", std::string(kMountV2) + kMountsV1);
  write("/sys/fs/cgroup/memory/old/memory.limit_in_bytes", "1048576\n");
  write("/sys/fs/cgroup/new/memory.max", "2097152\n");
  EXPECT_EQ(memory_left(root_).value, kMiB);
  write("/sys/fs/cgroup/new/memory.max", "524288\n");
  EXPECT_EQ(memory_left(root_).value, kMiB / 2);
}

TEST_F(MemoryLeft, FindsTheMountPointWhereverItIs) {
  available_mib(300);
  write("/proc/self/cgroup", "0::/job\n");
  write("/proc/self/mountinfo", "30 24 0:26 / /odd\\040place rw - cgroup2 none rw\n");
  write("/odd place/job/memory.max", "1048576\n");
  const Limit limit = memory_left(root_);
  EXPECT_EQ(limit.value, kMiB);
  EXPECT_EQ(limit.source, "cgroup memory.max of /odd place/job");
}

TEST_F(MemoryLeft, ReadsTheMountPointItselfInsideAContainer) {
  available_mib(300);
  // The whole machine's path of the group, but only the group itself is mounted.
  write("/proc/self/cgroup", "4:memory:/docker/abc\n");
  write("/proc/self/mountinfo",
        "31 24 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n");
  EXPECT_EQ(memory_left(root_).value, kMiB);
  // A group outside what is mounted, as other namespaces show it.
  write("/proc/self/cgroup", "4:memory:/../other\n");
  EXPECT_EQ(memory_left(root_).value, kMiB);
  write("/proc/self/cgroup", "4:memory:/docker/abcdef\n");
  EXPECT_EQ(memory_left(root_).value, kMiB);
}

TEST_F(MemoryLeft, LeavesOutWhatCannotBeReadOrUnderstood) {
  available_mib(300);
  version2("/job");
  std::filesystem::create_directories(root_ + "/sys/fs/cgroup/job/memory.max");
  write("/sys/fs/cgroup/job/memory.high", "not a number\n");
  write("/sys/fs/cgroup/memory.max", "\n");
  EXPECT_EQ(memory_left(root_).value, 300 * kMiB);
}

TEST_F(MemoryLeft, SurvivesOddProcFiles) {
  for (const char* text :
       {"", "\n", ":", "::", "0:", "4:memory", "0::\n0::/x\n", " - \n", "a - b\n"}) {
    write("/proc/self/cgroup", text);
    write("/proc/self/mountinfo", text);
    write("/proc/meminfo", text);
    EXPECT_EQ(memory_left(root_).source, "free pages (sysconf)") << text;
  }
}

TEST_F(UsableCpus, AreTheQuotaRoundedUp) {
  version2("/job");
  write("/sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  const Limit limit = usable_cpus(1, root_);
  EXPECT_EQ(limit.value, 1u);
  if (usable_cpus(1, "/nowhere").value > 1) {
    EXPECT_EQ(limit.source, "cgroup cpu.max of /sys/fs/cgroup/job");
    write("/sys/fs/cgroup/job/cpu.max", "150000 100000\n");
    EXPECT_EQ(usable_cpus(1, root_).value, 2u);
  }
}

TEST_F(UsableCpus, ObeyAnAncestorsQuota) {
  version2("/slice/job");
  write("/sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/slice/cpu.max", "100000 100000\n");
  EXPECT_EQ(usable_cpus(1, root_).value, 1u);
}

TEST_F(UsableCpus, ReadVersion1AndItsMinusOneForNoQuota) {
  write("/proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/other\n");
  write("/proc/self/mountinfo", kMountsV1);
  const std::uint64_t all = usable_cpus(1, "/nowhere").value;
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(usable_cpus(1, root_).value, all);
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "60000\n");
  EXPECT_EQ(usable_cpus(1, root_).value, 1u);
}

TEST_F(UsableCpus, AreAtMostTheAffinityAndAtLeastOneHoweverManyRanksShareThem) {
  const Limit all = usable_cpus(1, root_);
  EXPECT_EQ(all.source, "CPU affinity");
  EXPECT_GE(all.value, 1u);
  EXPECT_EQ(usable_cpus(0, root_).value, all.value);
  EXPECT_EQ(usable_cpus(2, root_).value, std::max<std::uint64_t>(1, all.value / 2));
  const Limit shared = usable_cpus(100000, root_);
  EXPECT_EQ(shared.value, 1u);
  EXPECT_EQ(shared.source, "CPU affinity, shared by 100000 ranks");
}

TEST_F(UsableCpus, FollowSlurmAndRefuseByNameWhatIsNotANumber) {
  const std::uint64_t all = usable_cpus(1, root_).value;
  for (const std::string nonsense : {"many", "-1", "0", "2(x3)"}) {
    ::setenv("SLURM_CPUS_PER_TASK", nonsense.c_str(), 1);
    try {
      usable_cpus(1, root_);
      ADD_FAILURE() << nonsense;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kSettings);
      EXPECT_NE(std::string(error.what()).find("SLURM_CPUS_PER_TASK='" + nonsense + "'"),
                std::string::npos)
          << error.what();
    }
  }
  ::setenv("SLURM_CPUS_PER_TASK", "a\nb", 1);
  EXPECT_THROW(usable_cpus(1, root_), Error);
  ::setenv("SLURM_CPUS_PER_TASK", "", 1);
  EXPECT_EQ(usable_cpus(1, root_).value, all);
  ::setenv("SLURM_CPUS_PER_TASK", "1", 1);
  const Limit limit = usable_cpus(1, root_);
  EXPECT_EQ(limit.value, 1u);
  if (all > 1) {
    EXPECT_EQ(limit.source, "SLURM_CPUS_PER_TASK");
  }
  ::unsetenv("SLURM_CPUS_PER_TASK");
}

TEST_F(UsableCpus, AreDividedByNodeAndOthersLeftOut) {
  EXPECT_TRUE(usable_cpus_by_node(root_).empty());
  const auto node = [&](int number, const std::string& cpus) {
    const std::string folder = "/sys/devices/system/node/node" + std::to_string(number);
    write(folder + "/cpulist", cpus + "\n");
    write(folder + "/meminfo", "Node " + std::to_string(number) + " MemTotal: 1024 kB\n");
  };
  cpu_set_t set;
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> mine;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) mine.push_back(cpu);
  }
  node(0, "0-1048575");
  node(1, "");                 // memory alone
  node(2, "1048576-1048577");  // CPUs that are not ours
  EXPECT_EQ(usable_cpus_by_node(root_), std::vector<std::vector<int>>{mine});
  node(2, "7-,x," + std::to_string(mine.back()));
  EXPECT_EQ(usable_cpus_by_node(root_), (std::vector<std::vector<int>>{mine, {mine.back()}}));
}

TEST(CgroupLevels, GoFromTheOwnGroupUpToTheMountPoint) {
  // The real machine: each level lies inside the next.
  const auto levels = cgroup_levels("memory", "");
  for (std::size_t i = 1; i < levels.size(); ++i) {
    if (levels[i].version != levels[i - 1].version) continue;
    EXPECT_EQ(levels[i - 1].folder.rfind(levels[i].folder + "/", 0), 0u) << levels[i].folder;
  }
}

TEST(NamedNumber, TakesWholeWordsOnly) {
  EXPECT_EQ(named_number("total_inactive_file 7\ninactive_file 5\n", "inactive_file"), 5u);
  EXPECT_EQ(named_number("MemAvailableX: 7 kB\nMemAvailable:\t 5 kB\n", "MemAvailable"), 5u);
  EXPECT_EQ(named_number("inactive_files 7\n", "inactive_file"), std::nullopt);
  EXPECT_EQ(named_number("inactive_file\n", "inactive_file"), std::nullopt);
  EXPECT_EQ(named_number("", "x"), std::nullopt);
}

TEST(ThisMachine, HasMemoryAndCpusAndSaysWhatLimitsThem) {
  EXPECT_GT(memory_left().value, 0u);
  EXPECT_FALSE(memory_left().source.empty());
  EXPECT_GE(usable_cpus().value, 1u);
  EXPECT_FALSE(usable_cpus().source.empty());
}

TEST(ResidentBytes, GrowWithMemoryThatIsTouchedAndThePeakStays) {
  const std::uint64_t before = resident_bytes();
  ASSERT_GT(before, 0u);
  std::uint64_t during = 0;
  {
    std::vector<char> touched(64 * kMiB);
    std::memset(touched.data(), 1, touched.size());
    during = resident_bytes();
    EXPECT_EQ(touched[touched.size() / 2], 1);
  }
  EXPECT_GE(during, before + 60 * kMiB);
  // The kernel batches its counters by some pages per thread.
  EXPECT_GE(peak_resident_bytes() + kMiB, during);
}
}  // namespace
}  // namespace headrace::platform
