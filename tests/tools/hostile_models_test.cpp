// SPDX-License-Identifier: Apache-2.0
// hostile_models_test: `headrace estimate` and `plan` on files that nobody means well with: done or
// refused, in a bounded time and a bounded memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/temporary_directory.hpp"
#include "tools/hostile_models.hpp"

namespace headrace::tools::hostile_models_test {
namespace {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kFiles = 60;
constexpr long kMostMemory = 1 << 30;  // KiB: theirs is not to be told from the program's
#else
constexpr int kFiles = 300;
constexpr long kMostMemory = 200 * 1000 * 1000 / 1024;
#endif
constexpr rlim_t kMostSeconds = 30;  // of CPU: not how long it takes, but that it ends

struct Ended {
  int status = 0;
  double cpu_seconds = 0;
  long peak_kib = 0;
};

Ended run(const std::vector<std::string>& words, const std::string& output) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{kMostSeconds, kMostSeconds};
    ::setrlimit(RLIMIT_CPU, &limit);
    const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::execv(HEADRACE_PROGRAM, argv.data());
    ::_exit(127);
  }
  Ended ended;
  rusage used{};
  ::wait4(child, &ended.status, 0, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  ended.cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime);
  ended.peak_kib = used.ru_maxrss;
  return ended;
}

std::string head_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(500, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

TEST(HostileModels, AreDoneOrRefusedWithinBounds) {
  const char* const given = std::getenv("HEADRACE_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("HEADRACE_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  const testing::TemporaryDirectory folder;
  const std::string output = folder.string() + "/output";
  HostileModels models(folder.string(), seed);
  double longest = 0;
  long largest = 0;
  int done = 0;
  for (int i = 0; i < kFiles; ++i) {
    const std::string model = models.next();
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"headrace", "estimate", model},
          {"headrace", "plan", model, "--machine", "workstation"}}) {
      const Ended ended = run(words, output);
      const std::string what = words[1] + " of file " + std::to_string(i);
      ASSERT_TRUE(WIFEXITED(ended.status)) << what << ": signal " << WTERMSIG(ended.status);
      const int code = WEXITSTATUS(ended.status);
      EXPECT_TRUE(code == 0 || code == 2) << what << ": " << code << "\n" << head_of(output);
      EXPECT_LE(ended.peak_kib, kMostMemory) << what;
      EXPECT_LE(std::filesystem::file_size(output), 1u << 20) << what;
      if (std::getenv("HEADRACE_TEST_VERBOSE") != nullptr)
        std::printf("%s: %d, %.3f s, %ld KiB, %s\n", what.c_str(), code, ended.cpu_seconds,
                    ended.peak_kib, head_of(output).substr(0, 150).c_str());
      longest = std::max(longest, ended.cpu_seconds);
      largest = std::max(largest, ended.peak_kib);
      done += code == 0 ? 1 : 0;
    }
    std::filesystem::remove_all(model);
  }
  std::printf("%d files: %d runs of %d done, at most %.2f s of CPU and %.0f MB\n", kFiles, done,
              2 * kFiles, longest, static_cast<double>(largest) * 1.024e-3);
  EXPECT_GT(done, 0);
}
}  // namespace
}  // namespace headrace::tools::hostile_models_test
