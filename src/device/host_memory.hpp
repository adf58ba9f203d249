// SPDX-License-Identifier: Apache-2.0
// host_memory.hpp: what device_host gives out as device memory.
#pragma once
#include <cstddef>

namespace headrace::device {
// Zero-filled and 256-byte aligned; from 2 MiB on, mapped on 2 MiB boundaries with huge pages asked
// for, and not inherited by forked children (a drive may be writing into it at the fork). Null when
// there is none left.
void* allocate_host_memory(std::size_t size_bytes) noexcept;
// `size_bytes` as it was allocated. `data` may be null.
void free_host_memory(void* data, std::size_t size_bytes) noexcept;
}  // namespace headrace::device
