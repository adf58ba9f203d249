// SPDX-License-Identifier: Apache-2.0
// host_memory_test.cpp: where device_host's memory lies, and that it is given back.
#include "device/host_memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace headrace::device {
namespace {
constexpr std::size_t kHuge = std::size_t{2} << 20;

// The "VmFlags:" line of the mapping that holds `data`.
std::string flags_of(const void* data) {
  std::ifstream smaps("/proc/self/smaps");
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream head(line);
    if (head >> std::hex >> begin >> dash >> end && dash == '-')
      inside = begin <= address && address < end;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line + " ";
  }
  return "";
}

TEST(HostMemory, StartsLargeOnesOnA2MiBBoundary) {
  for (const std::size_t size_bytes : {kHuge, kHuge + 1, 3 * kHuge + 4096}) {
    void* data = allocate_host_memory(size_bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % kHuge, 0u);
    std::memset(data, 1, size_bytes);
    free_host_memory(data, size_bytes);
  }
}

TEST(HostMemory, KeepsLargeOnesOutOfForkedChildren) {
  void* data = allocate_host_memory(kHuge);
  ASSERT_NE(data, nullptr);
  const std::string flags = flags_of(data);
  if (flags.empty()) {
    free_host_memory(data, kHuge);
    GTEST_SKIP() << "/proc/self/smaps tells no flags here";
  }
  EXPECT_NE(flags.find(" dc "), std::string::npos) << flags;
  free_host_memory(data, kHuge);
}

TEST(HostMemory, IsUnmappedWhenFreed) {
  const std::size_t size_bytes = kHuge + 12345;
  void* data = allocate_host_memory(size_bytes);
  ASSERT_NE(data, nullptr);
  const std::size_t mapped = (size_bytes + 4095) / 4096 * 4096;
  EXPECT_EQ(::msync(data, mapped, MS_ASYNC), 0);
  free_host_memory(data, size_bytes);
  EXPECT_EQ(::msync(data, 4096, MS_ASYNC), -1);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(::msync(static_cast<char*>(data) + mapped - 4096, 4096, MS_ASYNC), -1);
}
}  // namespace
}  // namespace headrace::device
