// SPDX-License-Identifier: Apache-2.0
// user_directory.hpp: <nvme_path>/headrace-<uid>, the directory that holds a user's runs and
// stores. They are made, and dead runs removed, under the lock on it.
#pragma once
#include <string>

#include "base/unique_fd.hpp"

namespace headrace::swap {
// Opens (makes) the directory in `parent` and takes its lock. `path`: for messages.
base::UniqueFd open_user_directory(int parent, const std::string& name, const std::string& path);
// Removes it if it is empty and nobody holds its lock.
void remove_user_directory(int user_directory, const std::string& user_path);
// "could not make PATH: No space left on device; the run cannot start there; ..."
[[noreturn]] void fail_at(const std::string& what, const std::string& path, int sys_errno);
}  // namespace headrace::swap
