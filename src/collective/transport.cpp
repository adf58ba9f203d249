// SPDX-License-Identifier: Apache-2.0
// transport.cpp: what a transport does not have to implement.
#include "headrace/transport.hpp"

namespace headrace {
void Transport::all_gather(Lane lane, Stream stream, std::span<const Piece> whole, Done done) {
  const std::vector<Piece> own(whole.size(), whole[rank()]);
  all_to_all(lane, stream, own, whole, done);
}
}  // namespace headrace
