// SPDX-License-Identifier: Apache-2.0
// packing.hpp: packs and unpacks values in host memory, on the calling thread.
#pragma once
#include "kernels/packed_values.hpp"

namespace headrace::kernels {
void pack_on_host(const PackWork& work) noexcept;
void unpack_on_host(const PackWork& work) noexcept;
}  // namespace headrace::kernels
