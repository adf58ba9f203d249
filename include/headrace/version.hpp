// SPDX-License-Identifier: Apache-2.0
// headrace/version.hpp: the library's version, in headers and in the linked library.
#pragma once

#define HEADRACE_VERSION_MAJOR 0
#define HEADRACE_VERSION_MINOR 1
#define HEADRACE_VERSION_PATCH 0

namespace headrace {
// "0.1.0" as compiled into the library; compare with the macros to find a header/library mismatch.
const char* version() noexcept;
}  // namespace headrace
