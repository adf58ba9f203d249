// SPDX-License-Identifier: Apache-2.0
// host_memory.hpp: the memory that device_host allocates as device memory.
#pragma once
#include <cstddef>

namespace headrace::device {
// Zero-filled and 256-byte aligned. From 2 MiB on, the memory is mapped on 2 MiB boundaries,
// requests huge pages, and is not inherited by forked children (a drive may be writing into it at
// the fork). Null if there is none left.
void* allocate_host_memory(std::size_t size_bytes) noexcept;
// `size_bytes` must be the size that was allocated. `data` may be null.
void free_host_memory(void* data, std::size_t size_bytes) noexcept;
}  // namespace headrace::device
