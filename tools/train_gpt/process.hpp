// SPDX-License-Identifier: Apache-2.0
// process.hpp: memory and transfers of this process as the kernel counts them, and limits that
// would end it.
#pragma once
#include <cstdint>
#include <string>

#include "platform/machine.hpp"

namespace train_gpt {
using headrace::platform::peak_resident_bytes;  // since start, or since reset_peak()
using headrace::platform::resident_bytes;
void reset_peak() noexcept;  // where the kernel lets us; else the peak since start stands

struct KernelTransfers {
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
};
KernelTransfers kernel_transfers();  // /proc/self/io; zeros where it cannot be read

// Freed tensors go back to the system at once instead of staying in the heap, so that the peak is
// what is in use.
void return_freed_memory() noexcept;
// Throws kOutOfBudget where a limit on address space (ulimit -v) leaves less than libraries need to
// start their threads: they would end the process without a word that can be caught.
void check_address_space();
// Throws kNoSpace where the limit on the size of files (ulimit -f) is below `bytes`.
//   path  what they are for
void check_file_size(const std::string& path, std::uint64_t bytes);
// An exception that leaves a thread of a library ends the process: in one line and with exit code 1
// instead of a core. Swap files then stay until the next run on their path removes them. The line
// begins with the text of speak_as(), such as "[rank 1] ".
void install_terminate_handler() noexcept;
void speak_as(const std::string& prefix);  // before there are other threads
}  // namespace train_gpt
