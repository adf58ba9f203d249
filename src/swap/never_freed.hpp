// SPDX-License-Identifier: Apache-2.0
// never_freed.hpp: where things go that the kernel may still use after it was given up on.
#pragma once
#include <memory>

namespace headrace::swap {
// Holds `object` until the process ends. It stays reachable, so that leak checkers see intent.
void never_free(std::shared_ptr<void> object);
}  // namespace headrace::swap
