// SPDX-License-Identifier: Apache-2.0
// fake_root.hpp: a made-up /proc and /sys in a temporary folder, gone at the end.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace headrace::platform::test {
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "headrace_root_XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~FakeRoot() {
    if (!path_.empty()) std::filesystem::remove_all(path_);
  }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  const std::string& path() const noexcept { return path_; }

  void write(const std::string& file, const std::string& text) const {
    ASSERT_FALSE(path_.empty());
    std::filesystem::create_directories(std::filesystem::path(path_ + file).parent_path());
    std::ofstream(path_ + file) << text;
  }
  // `link` points to `target`, both as absolute paths of the made-up machine.
  void link(const std::string& link, const std::string& target) const {
    ASSERT_FALSE(path_.empty());
    const std::filesystem::path folder = std::filesystem::path(path_ + link).parent_path();
    std::filesystem::create_directories(folder);
    std::filesystem::create_directories(path_ + target);
    std::filesystem::create_symlink(std::filesystem::relative(path_ + target, folder),
                                    path_ + link);
  }

 private:
  std::string path_;
};
}  // namespace headrace::platform::test
