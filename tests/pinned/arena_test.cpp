// SPDX-License-Identifier: Apache-2.0
#include "pinned/arena.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "headrace/error.hpp"

namespace headrace::pinned {
namespace {
TEST(Arena, IsZeroedAlignedAndRoundedToHugePages) {
  const Arena arena(3 * base::kMiB + 1, 2);
  EXPECT_EQ(arena.size_bytes(), 4 * base::kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.bytes().data()) % base::kHugePage, 0u);
  EXPECT_TRUE(std::ranges::all_of(arena.bytes(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Arena, MayBeEmpty) {
  const Arena arena(0, 1);
  EXPECT_EQ(arena.size_bytes(), 0u);
}

// Under sanitizers the address space is theirs, so the limit cannot be set there.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Arena, SaysHowMuchWasRefused) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{base::kGiB, base::kGiB};
    setrlimit(RLIMIT_AS, &limit);
    try {
      const Arena arena(4 * base::kGiB, 1);
    } catch (const Error& error) {
      const std::string text = error.what();
      const bool helps = text.find("offload_optimizer.device") != std::string::npos &&
                         text.find("headrace.host_budget_bytes") != std::string::npos;
      const bool says = text.find("4 GiB") != std::string::npos && helps;
      _exit(error.code() == Code::kOutOfBudget && says ? 0 : 1);
    }
    _exit(2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif
}  // namespace
}  // namespace headrace::pinned
