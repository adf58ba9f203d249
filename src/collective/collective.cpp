// SPDX-License-Identifier: Apache-2.0
// collective.cpp: what a collective does not have to implement.
#include "headrace/collective.hpp"

#include <string>

#include "headrace/error.hpp"

namespace headrace {
void Collective::all_to_all_v(CollectiveTag tag, Stream, std::span<const DeviceSpan>,
                              std::span<const DeviceSpan>, std::uint64_t) {
  throw Error(Code::kUnsupported, "all_to_all_v '" + std::string(tag.what) +
                                      "': this collective does not implement it; nothing was sent");
}
}  // namespace headrace
