// SPDX-License-Identifier: Apache-2.0
// headrace/version.hpp: the library's version, in headers and in the linked library.
#pragma once

#define HEADRACE_VERSION_MAJOR 0
#define HEADRACE_VERSION_MINOR 1
#define HEADRACE_VERSION_PATCH 0

namespace headrace {
// The version as compiled into the library, such as "0.1.0". Compare it with the macros to detect a
// mismatch between headers and library.
const char* version() noexcept;
}  // namespace headrace
