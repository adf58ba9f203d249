// SPDX-License-Identifier: Apache-2.0
#include "kernels/packing.hpp"

#include "kernels/kernels.hpp"

namespace headrace::kernels {
void pack_on_host(const PackWork& work) noexcept {
  static const PackFunction pack = kernels_of(usable_instruction_set()).pack;
  pack(work);
}
void unpack_on_host(const PackWork& work) noexcept {
  static const PackFunction unpack = kernels_of(usable_instruction_set()).unpack;
  unpack(work);
}
}  // namespace headrace::kernels
