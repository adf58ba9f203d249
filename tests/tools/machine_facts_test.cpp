// SPDX-License-Identifier: Apache-2.0
// Processor, limits, containers and GPUs read from made-up /proc and /sys trees.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>

#include "machine/cpu_facts.hpp"
#include "machine/gpus.hpp"
#include "machine/nvme_health.hpp"
#include "machine/process_limits.hpp"
#include "platform/fake_root.hpp"

namespace headrace::tools::machine_facts_test {
namespace {
using platform::test::FakeRoot;

TEST(CpuFactsTest, CountSocketsCoresAndThreads) {
  const FakeRoot root;
  std::string text;
  for (const char* ids : {"0 0", "0 1", "1 0", "1 1", "0 0", "0 1", "1 0", "1 1"}) {
    text += "processor\t: 0\nmodel name\t: Some CPU: at 2 GHz\nphysical id\t: " +
            std::string(1, ids[0]) + "\ncore id\t\t: " + std::string(1, ids[2]) +
            "\nflags\t\t: fpu avx2 avx512bw\n\n";
  }
  root.write("/proc/cpuinfo", text);
  root.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
  const CpuFacts facts = cpu_facts(root.path());
  EXPECT_EQ(facts.model, "Some CPU: at 2 GHz");
  EXPECT_EQ(facts.sockets, 2u);
  EXPECT_EQ(facts.cores, 4u);
  EXPECT_EQ(facts.threads, 8u);
  EXPECT_TRUE(facts.has("avx2"));
  EXPECT_FALSE(facts.has("avx"));
  EXPECT_EQ(facts.governor, "performance");
}

TEST(ProcessLimitsTest, ReadWhatTheKernelAllowsTheProcess) {
  const FakeRoot root;
  root.write("/proc/self/status", "CapEff:\t0000000000004000\nSeccomp:\t2\nSeccomp_filters:\t3\n");
  root.write("/proc/sys/kernel/io_uring_disabled", "1\n");
  root.write("/proc/sys/fs/aio-max-nr", "65536\n");
  root.write("/proc/sys/fs/aio-nr", "1024\n");
  const ProcessLimits limits = process_limits(root.path());
  EXPECT_EQ(limits.seccomp, 2u);
  EXPECT_EQ(limits.may_lock_all, true);
  EXPECT_EQ(limits.io_uring_disabled, 1u);
  EXPECT_EQ(limits.aio_max, 65536u);
  EXPECT_EQ(limits.aio_taken, 1024u);
  root.write("/proc/self/status", "CapEff:\t000001ffffffbfff\n");
  EXPECT_EQ(process_limits(root.path()).may_lock_all, false);
}

TEST(ContainerKind, IsToldByItsFilesOrItsControlGroup) {
  const auto kind_with = [](const std::string& file, const std::string& text) {
    const FakeRoot root;
    root.write(file, text);
    return container_kind(root.path());
  };
  EXPECT_EQ(kind_with("/.dockerenv", ""), "docker");
  EXPECT_EQ(kind_with("/run/.containerenv", ""), "podman");
  EXPECT_EQ(kind_with("/run/systemd/container", "systemd-nspawn\n"), "systemd-nspawn");
  EXPECT_EQ(kind_with("/proc/self/cgroup", "0::/kubepods.slice/pod1\n"), "kubernetes");
  EXPECT_EQ(kind_with("/proc/self/cgroup", "0::/user.slice\n"), "");
}

TEST(IoCaps, AreThoseOfTheGroupAndItsAncestors) {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/slice/job\n4:blkio:/old\n");
  root.write("/proc/self/mountinfo",
             "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
             "31 24 0:27 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n");
  root.write("/sys/fs/cgroup/slice/io.max", "259:0 rbps=1048576 wbps=max riops=max wiops=500\n");
  root.write("/sys/fs/cgroup/blkio/old/blkio.throttle.write_bps_device", "8:0 2097152\n");
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
  root.write("/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23\n");
  root.write("/proc/driver/nvidia/gpus/0000:17:00.0/information",
             "Model: \t\t NVIDIA H200\nIRQ:   \t\t 55\n");
  const GpuFacts facts = gpu_facts(root.path());
  ASSERT_EQ(facts.gpus.size(), 1u);
  EXPECT_EQ(facts.gpus[0].model, "NVIDIA H200");
  EXPECT_EQ(facts.gpus[0].driver, "nvidia");
  ASSERT_TRUE(facts.gpus[0].link.has_value());
  EXPECT_EQ(facts.gpus[0].link->width, 16u);
  EXPECT_EQ(facts.nvidia_driver, "580.95.05");
}

TEST(NvmeHealthTest, IsReadFromTheDrivesOwnPage) {
  std::array<std::byte, kNvmeHealthBytes> page{};
  const auto set = [&](std::size_t offset, std::initializer_list<int> bytes) {
    for (const int byte : bytes) page[offset++] = static_cast<std::byte>(byte);
  };
  set(0, {0b1001, 0x3b, 0x01, 97, 10, 104});  // spare low, read-only; 315 K
  set(48, {0x00, 0x00, 0x01});                // 65536 units of 1000 sectors
  set(160, {3});
  const NvmeHealth health = decode_nvme_health(page);
  EXPECT_TRUE(health.spare_low);
  EXPECT_TRUE(health.read_only);
  EXPECT_FALSE(health.unreliable);
  EXPECT_EQ(health.temperature_c, 42);
  EXPECT_EQ(health.spare_percent, 97u);
  EXPECT_EQ(health.used_percent, 104u);
  EXPECT_EQ(health.written_bytes, 65536.0 * 512 * 1000);
  EXPECT_EQ(health.media_errors, 3);
  NvmeHealth none;
  EXPECT_EQ(read_nvme_health("nvme-that-is-not-here", none), ENOENT);
}

TEST(MachineFacts, AreEmptyWhereNothingCanBeRead) {
  const FakeRoot root;
  EXPECT_EQ(cpu_facts(root.path()).threads, 0u);
  const ProcessLimits limits = process_limits(root.path());
  EXPECT_FALSE(limits.seccomp.has_value());
  EXPECT_FALSE(limits.may_lock_all.has_value());
  EXPECT_FALSE(limits.aio_max.has_value());
  EXPECT_EQ(container_kind(root.path()), "");
  EXPECT_TRUE(io_caps(root.path()).empty());
  EXPECT_TRUE(gpu_facts(root.path()).gpus.empty());
}
}  // namespace
}  // namespace headrace::tools::machine_facts_test
