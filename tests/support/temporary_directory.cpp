// SPDX-License-Identifier: Apache-2.0
#include "support/temporary_directory.hpp"

#include <cstdlib>
#include <stdexcept>

namespace headrace::testing {
namespace fs = std::filesystem;

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (fs::current_path() / "headrace-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory: " + name);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::size_t TemporaryDirectory::entries() const {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path_)) {
    if (entry.path().parent_path() != path_) ++count;
  }
  return count;
}
}  // namespace headrace::testing
