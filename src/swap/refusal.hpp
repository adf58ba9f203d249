// SPDX-License-Identifier: Apache-2.0
// refusal.hpp: the meaning of a file system's errno for a run, and the one change that helps.
#pragma once
#include <cstdint>
#include <string>

#include "headrace/error.hpp"

namespace headrace::swap {
// kNoSpace for a lack of room (ENOSPC, EDQUOT, EFBIG), kIoStalled for ETIMEDOUT, otherwise kIo.
Code code_of(int sys_errno) noexcept;

// "raise the limit on open files (ulimit -n)" and the like; never empty. `place`: what its user can
// name in place of the one that failed.
std::string what_helps(int sys_errno, const std::string& place = "nvme_path");

// Throws kNoSpace, EFBIG, if this process may not write files of `size_bytes` (RLIMIT_FSIZE). A
// write past that limit raises SIGXFSZ, which would end the host program.
void check_file_size_limit(const std::string& path, std::uint64_t size_bytes,
                           const char* consequence = "nothing can be swapped there");
}  // namespace headrace::swap
