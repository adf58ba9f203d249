// SPDX-License-Identifier: Apache-2.0
// never_freed.hpp: keeps objects that the kernel may still use after the engine gave them up.
#pragma once
#include <memory>

namespace headrace::swap {
// Holds `object` until the process ends. It stays reachable, so leak checkers do not report it.
void never_free(std::shared_ptr<void> object);
}  // namespace headrace::swap
