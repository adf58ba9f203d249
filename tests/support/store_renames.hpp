// SPDX-License-Identifier: Apache-2.0
// store_renames.hpp: kills a process before a file of a store gets its name. durable_store_test.cpp
// has the call that is in the place of the C library's.
#pragma once
#include <atomic>

namespace headrace::testing {
// So many files still get theirs; negative: all of them.
inline std::atomic<int> store_renames_to_live{-1};
}  // namespace headrace::testing
