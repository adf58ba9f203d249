// SPDX-License-Identifier: Apache-2.0
// refusal.hpp: what an errno of the file system means for a run, and the one change that helps.
#pragma once
#include <cstdint>
#include <string>

#include "headrace/error.hpp"

namespace headrace::swap {
// kNoSpace where room is missing (ENOSPC, EDQUOT, EFBIG), kIoStalled for ETIMEDOUT, else kIo.
Code code_of(int sys_errno) noexcept;

// "raise the limit on open files (ulimit -n)" and the like; never empty.
const char* what_helps(int sys_errno) noexcept;

// Throws kNoSpace, EFBIG, if this process may not write files of `size_bytes` (RLIMIT_FSIZE): to
// write past that limit raises SIGXFSZ, which would end the host program.
void check_file_size_limit(const std::string& path, std::uint64_t size_bytes);
}  // namespace headrace::swap
