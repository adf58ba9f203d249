// SPDX-License-Identifier: Apache-2.0
// What the kernel says of this process.
#include "process.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "failures.hpp"
#include "headrace/error.hpp"

namespace train_gpt {
namespace {
TEST(Process, SeesMemoryInUse) {
  constexpr std::size_t kSize = 64 << 20;
  const std::uint64_t before = resident_bytes();
  ASSERT_GT(before, 0u);
  void* memory = std::malloc(kSize);
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 1, kSize);
  EXPECT_GT(resident_bytes(), before + kSize / 2);
  EXPECT_GE(peak_resident_bytes() + (1 << 20), resident_bytes());
  std::free(memory);
}

void end_in_a_thread(const std::exception_ptr& error) {
  install_terminate_handler();
  std::thread([&] { std::rethrow_exception(error); }).join();
}

TEST(Process, NamesWhatALibrarysThreadThrewAndNoLackOfMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      end_in_a_thread(std::make_exception_ptr(
          std::runtime_error("d INTERNAL ASSERT FAILED at x.h:1\nframe #0"))),
      ::testing::ExitedWithCode(kFailed),
      "error: d INTERNAL ASSERT FAILED at x.h:1; the process ends at once.* removes them. It "
      "was thrown where nothing can catch it, .* to Headrace.\n$");
}

TEST(Process, AdvisesOnMemoryWhereAThreadGotNone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(end_in_a_thread(std::make_exception_ptr(std::bad_alloc())),
              ::testing::ExitedWithCode(kFailed), "no more memory.*ulimit -v");
  const std::system_error no_thread(EAGAIN, std::generic_category());
  EXPECT_EXIT(end_in_a_thread(std::make_exception_ptr(no_thread)),
              ::testing::ExitedWithCode(kFailed), "ulimit -u");
}

TEST(Process, AdvisesOnOpenFilesAndSaysWhichRankEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  speak_as("[rank 1] ");
  EXPECT_EXIT(end_in_a_thread(std::make_exception_ptr(std::runtime_error(
                  "[enforce fail at listener.cc:63] false. accept: Too many open "
                  "files\nframe #0"))),
              ::testing::ExitedWithCode(kFailed),
              "train_gpt: \\[rank 1\\] error: .*accept: Too many open files; .*limit on open files "
              "\\(ulimit -n\\).\n$");
  speak_as("");
}

TEST(Process, RefusesAnAddressSpaceThatLibrariesWouldDieOf) {
  EXPECT_NO_THROW(check_address_space());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need it themselves
  const auto child = [] {
    const rlimit limit{1 << 20, 1 << 20};  // less than is in use already
    ::setrlimit(RLIMIT_AS, &limit);
    try {
      check_address_space();
    } catch (const headrace::Error& error) {
      std::_Exit(error.code() == headrace::Code::kOutOfBudget ? 42 : 1);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(42), "");
#endif
}
}  // namespace
}  // namespace train_gpt
