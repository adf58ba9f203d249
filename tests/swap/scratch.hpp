// SPDX-License-Identifier: Apache-2.0
// What the swap tests share: a directory on the build's drive, aligned memory, patterns, child
// processes.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace::swap::test {
inline constexpr std::uint64_t kPage = 4096;
inline constexpr std::uint64_t kMiB = 1 << 20;

class ScratchDirectory {
 public:
  ScratchDirectory() {
    path_ = HEADRACE_TEST_DIRECTORY "/scratch-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp of " + path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Page-aligned memory.
class Pages {
 public:
  explicit Pages(std::size_t size_bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(4096, size_bytes))), size_(size_bytes) {
    std::memset(data_, 0, size_);
  }
  ~Pages() { std::free(data_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() { return {data_, size_}; }

 private:
  std::byte* data_;
  std::size_t size_;
};

inline void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

// A file of `size_bytes` with a pattern, opened for reading and writing, gone with the scratch
// directory.
class TestFile {
 public:
  TestFile(const ScratchDirectory& scratch, std::size_t size_bytes, std::uint64_t seed = 1)
      : path_(scratch / "file"), contents_(size_bytes) {
    fill_pattern(contents_, seed);
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (::pwrite(fd_, contents_.data(), size_bytes, 0) != static_cast<ssize_t>(size_bytes)) {
      throw std::runtime_error("write " + path_);
    }
    const int direct = ::open(path_.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    if (direct >= 0) {
      ::close(fd_);
      fd_ = direct;
    }
  }
  ~TestFile() { ::close(fd_); }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  const std::vector<std::byte>& contents() const { return contents_; }  // as first written
  std::vector<std::byte> now_on_disk() const {
    std::vector<std::byte> bytes(contents_.size());
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), 0);
    ::close(fd);
    if (got != static_cast<ssize_t>(bytes.size())) throw std::runtime_error("read " + path_);
    return bytes;
  }

 private:
  std::string path_;
  std::vector<std::byte> contents_;
  int fd_ = -1;
};

// Runs `body` in a forked child and returns its result as exit status; 200 if it threw, 128 + n if
// a signal ended it.
inline int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 200;
    try {
      status = body();
    } catch (const std::exception& error) {
      const std::string text = std::string("child: ") + error.what() + "\n";
      [[maybe_unused]] const ssize_t written = ::write(2, text.data(), text.size());
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Names of this process's threads.
inline std::vector<std::string> thread_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    if (std::getline(file, name)) names.push_back(name);
  }
  return names;
}
inline std::size_t threads_called(const std::string& prefix) {
  std::size_t count = 0;
  for (const std::string& name : thread_names()) count += name.starts_with(prefix) ? 1 : 0;
  return count;
}

// Everything below `path`, relative.
inline std::vector<std::string> tree(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    names.push_back(std::filesystem::relative(entry.path(), path).string());
  }
  return names;
}
}  // namespace headrace::swap::test
