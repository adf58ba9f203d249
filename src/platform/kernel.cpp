// SPDX-License-Identifier: Apache-2.0
// Which kernel this is.
#include <sys/utsname.h>

#include "platform/machine.hpp"

namespace headrace::platform {
std::string kernel_release() {
  utsname name{};
  return ::uname(&name) == 0 ? name.release : "";
}
}  // namespace headrace::platform
