// SPDX-License-Identifier: Apache-2.0
#include "support/temporary_directory.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace headrace::testing {
namespace fs = std::filesystem;

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (fs::current_path() / "headrace-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw std::runtime_error("no temporary directory " + name + ": " + std::strerror(errno));
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::vector<std::string> TemporaryDirectory::drives(std::size_t count) const {
  if (count == 1) return {string()};
  std::vector<std::string> drives;
  for (std::size_t i = 0; i < count; ++i) {
    fs::create_directory(path_ / ("drive-" + std::to_string(i)));
    drives.push_back((path_ / ("drive-" + std::to_string(i))).string());
  }
  return drives;
}

std::size_t TemporaryDirectory::entries() const {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path_)) {
    const fs::path parent = entry.path().parent_path();
    if (parent != path_ && !parent.filename().string().starts_with("drive-")) ++count;
  }
  return count;
}
}  // namespace headrace::testing
