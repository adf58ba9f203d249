// SPDX-License-Identifier: Apache-2.0
// Memory and the limits on it, read from made-up /proc and /sys trees.
#include "machine/memory_facts.hpp"

#include <gtest/gtest.h>

#include "platform/fake_root.hpp"
#include "platform/machine.hpp"

namespace headrace::tools::memory_facts_test {
namespace {
constexpr std::uint64_t kGiB = 1ull << 30;
using platform::memory_caps;
using platform::test::FakeRoot;

TEST(MemoryFactsTest, TellHugePagesAndNodes) {
  const FakeRoot root;
  root.write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n");
  root.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.write("/sys/kernel/mm/transparent_hugepage/defrag",
             "always defer defer+madvise [madvise] never\n");
  for (const char* node : {"0", "1", "10"}) {
    const std::string folder = std::string("/sys/devices/system/node/node") + node;
    root.write(folder + "/meminfo", std::string("Node ") + node + " MemTotal:  16777216 kB\n");
    root.write(folder + "/cpulist", "0-3\n");
  }
  root.write("/sys/devices/system/node/online", "0-1,10\n");
  const MemoryFacts facts = memory_facts(root.path());
  EXPECT_EQ(facts.total_bytes, 64 * kGiB);
  EXPECT_EQ(facts.available_bytes, 32 * kGiB);
  EXPECT_EQ(facts.huge_pages, "madvise");
  EXPECT_EQ(facts.huge_pages_defrag, "madvise");
  ASSERT_EQ(facts.nodes.size(), 3u);
  EXPECT_EQ(facts.nodes[2].number, 10u);
  EXPECT_EQ(facts.nodes[1].memory_bytes, 16 * kGiB);
  EXPECT_EQ(facts.nodes[1].cpus, "0-3");
}

TEST(MemoryCaps, NameEveryLevelThatHasALimit) {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/slice/job\n");
  root.write("/proc/self/mountinfo",
             "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
  root.write("/sys/fs/cgroup/slice/job/memory.max", "max\n");
  root.write("/sys/fs/cgroup/slice/job/memory.high", "3221225472\n");
  root.write("/sys/fs/cgroup/slice/memory.max", "4294967296\n");
  root.write("/sys/fs/cgroup/slice/memory.current", "2147483648\n");
  root.write("/sys/fs/cgroup/slice/memory.stat", "inactive_file 1073741824\n");
  const auto caps = memory_caps(root.path());
  ASSERT_EQ(caps.size(), 2u);
  EXPECT_EQ(caps[0].file, "memory.high");
  EXPECT_EQ(caps[0].limit_bytes, 3 * kGiB);
  EXPECT_EQ(caps[1].folder, "/sys/fs/cgroup/slice");
  EXPECT_EQ(caps[1].used_bytes, kGiB) << "clean file cache is given back";
}

TEST(MemoryFactsTest, AreEmptyWhereNothingCanBeRead) {
  const FakeRoot root;
  const MemoryFacts memory = memory_facts(root.path());
  EXPECT_FALSE(memory.total_bytes.has_value());
  EXPECT_EQ(memory.huge_pages, "");
  EXPECT_TRUE(memory.nodes.empty());
  EXPECT_TRUE(memory_caps(root.path()).empty());
}
}  // namespace
}  // namespace headrace::tools::memory_facts_test
