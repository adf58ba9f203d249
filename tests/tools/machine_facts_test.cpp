// SPDX-License-Identifier: Apache-2.0
// Processor, limits, containers and GPUs read from made-up /proc and /sys trees.
#include <gtest/gtest.h>

#include "machine/cpu_facts.hpp"
#include "machine/gpus.hpp"
#include "machine/process_limits.hpp"
#include "platform/fake_root.hpp"
#include "program/machine.hpp"

namespace headrace::tools::machine_facts_test {
namespace {
using platform::test::FakeRoot;

TEST(CpuFactsTest, CountThreadsAndNameTheirFlags) {
  const FakeRoot root;
  std::string text;
  for (int i = 0; i < 8; ++i) {
    text +=
        "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: Some CPU: at 2 GHz\n"
        "flags\t\t: fpu avx2 avx512bw\n\n";
  }
  root.write("/proc/cpuinfo", text);
  const CpuFacts facts = cpu_facts(root.path());
  EXPECT_EQ(facts.vendor, "AuthenticAMD");
  EXPECT_EQ(facts.model, "Some CPU: at 2 GHz");
  EXPECT_EQ(facts.threads, 8u);
  EXPECT_TRUE(facts.has("avx2"));
  EXPECT_FALSE(facts.has("avx"));
}

TEST(Doubts, NameALoadThatTheCpusDoNotCover) {
  EXPECT_EQ(load_doubt(2.0, 2), "");
  EXPECT_TRUE(load_doubt(21.7, 1).starts_with("load 21.7 on 1 CPU; ")) << load_doubt(21.7, 1);
  EXPECT_TRUE(load_doubt(3.04, 2).starts_with("load 3.0 on 2 CPUs; ")) << load_doubt(3.04, 2);
}

TEST(ProcessLimitsTest, ReadWhetherLockedMemoryCounts) {
  const FakeRoot root;
  root.write("/proc/self/status", "CapEff:\t0000000000004000\n");
  EXPECT_EQ(may_lock_all(root.path()), true);
  root.write("/proc/self/status", "CapEff:\t000001ffffffbfff\n");
  EXPECT_EQ(may_lock_all(root.path()), false);
}

TEST(ProcessLimitsTest, CountLockedMemoryInAUserNamespace) {
  const FakeRoot root;
  root.write("/proc/self/status", "CapEff:\t000001ffffffffff\n");
  root.write("/proc/self/uid_map", "         0          0 4294967295\n");
  EXPECT_EQ(may_lock_all(root.path()), true);
  root.write("/proc/self/uid_map", "         0       1000          1\n");
  EXPECT_EQ(may_lock_all(root.path()), false);
}

TEST(IoCaps, AreReadInControlGroupsOfVersionOne) {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "5:blkio:/job\n");
  root.write("/proc/self/mountinfo",
             "30 24 0:26 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n");
  root.write("/sys/fs/cgroup/blkio/job/blkio.throttle.read_bps_device", "259:0 1048576\n8:0 7\n");
  root.write("/sys/fs/cgroup/blkio/job/blkio.throttle.write_iops_device", "259:0 500\n");
  const auto caps = io_caps(root.path());
  ASSERT_EQ(caps.size(), 3u);
  EXPECT_EQ(caps[0].number, "259:0");
  EXPECT_EQ(caps[0].read_bytes, 1048576u);
  EXPECT_EQ(caps[0].source, "cgroup blkio.throttle.read_bps_device of /sys/fs/cgroup/blkio/job");
  EXPECT_EQ(caps[1].number, "8:0");
  EXPECT_EQ(caps[2].writes, 500u);
}

TEST(IoCaps, AreThoseOfTheGroupAndItsAncestors) {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/slice/job\n");
  root.write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.write("/sys/fs/cgroup/slice/io.max", "259:0 rbps=1048576 wbps=max riops=max wiops=500\n");
  root.write("/sys/fs/cgroup/io.max", "8:0 rbps=max wbps=2097152 riops=max wiops=max\n");
  const auto caps = io_caps(root.path());
  ASSERT_EQ(caps.size(), 2u);
  EXPECT_EQ(caps[0].number, "259:0");
  EXPECT_EQ(caps[0].source, "cgroup io.max of /sys/fs/cgroup/slice");
  EXPECT_EQ(caps[0].read_bytes, 1048576u);
  EXPECT_FALSE(caps[0].write_bytes.has_value());
  EXPECT_EQ(caps[0].writes, 500u);
  EXPECT_EQ(caps[1].number, "8:0");
  EXPECT_EQ(caps[1].write_bytes, 2097152u);
}

TEST(GpuFactsTest, NameEachGpuItsDriverAndItsLink) {
  const FakeRoot root;
  const std::string gpu = "/sys/devices/pci0000:00/0000:00:05.0/0000:17:00.0";
  root.write(gpu + "/vendor", "0x10de\n");
  root.write(gpu + "/class", "0x030200\n");
  root.write(gpu + "/current_link_speed", "32.0 GT/s PCIe\n");
  root.write(gpu + "/current_link_width", "16\n");
  root.link(gpu + "/driver", "/sys/bus/pci/drivers/nvidia");
  root.link("/sys/bus/pci/devices/0000:17:00.0", gpu);
  // Its bridge and its audio function are no GPUs.
  root.write("/sys/bus/pci/devices/0000:18:00.0/vendor", "0x10de\n");
  root.write("/sys/bus/pci/devices/0000:18:00.0/class", "0x068000\n");
  root.write("/proc/driver/nvidia/gpus/0000:17:00.0/information",
             "Model: \t\t NVIDIA H200\nIRQ:   \t\t 55\n");
  const GpuFacts facts = gpu_facts(root.path());
  ASSERT_EQ(facts.gpus.size(), 1u);
  EXPECT_EQ(facts.gpus[0].model, "NVIDIA H200");
  EXPECT_EQ(facts.gpus[0].driver, "nvidia");
  ASSERT_TRUE(facts.gpus[0].link.has_value());
  EXPECT_EQ(facts.gpus[0].link->width, 16u);
}

TEST(MachineFacts, AreEmptyWhereNothingCanBeRead) {
  const FakeRoot root;
  EXPECT_EQ(cpu_facts(root.path()).threads, 0u);
  EXPECT_FALSE(may_lock_all(root.path()).has_value());
  EXPECT_TRUE(io_caps(root.path()).empty());
  EXPECT_TRUE(gpu_facts(root.path()).gpus.empty());
}
}  // namespace
}  // namespace headrace::tools::machine_facts_test
