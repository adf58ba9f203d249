// SPDX-License-Identifier: Apache-2.0
// Memory of this process, as the kernel counts it.
#include "platform/machine.hpp"
#include "platform/proc_files.hpp"

namespace headrace::platform {
namespace {
std::uint64_t status_bytes(const char* name) {
  const auto status = read_text("/proc/self/status");
  return status ? named_number(*status, name).value_or(0) * 1024 : 0;
}
}  // namespace

std::uint64_t resident_bytes() { return status_bytes("VmRSS"); }
std::uint64_t peak_resident_bytes() { return status_bytes("VmHWM"); }
}  // namespace headrace::platform
