// SPDX-License-Identifier: Apache-2.0
#include "base/sync_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/unique_fd.hpp"

namespace headrace::base {
int sync_folder(const std::string& path) noexcept {
  const UniqueFd folder(
      ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return errno;
  return ::fsync(folder.get()) == 0 || errno == EINVAL ? 0 : errno;
}

std::string folder_above(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}
}  // namespace headrace::base
