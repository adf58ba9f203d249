// SPDX-License-Identifier: Apache-2.0
// collective.cpp: what a Collective need not implement itself.
#include "headrace/collective.hpp"

#include <cmath>
#include <vector>

namespace headrace {
// Every rank writes its bytes as whole numbers at its place of a vector that is zero elsewhere, six
// bytes to a double, and sums it: 48 bits are exact in a double, and stay so with zeros added.
//
//   rank 0 gives "HELLOWORLD", rank 1 "HEADRACE!!": two doubles each
//   rank 0 sums   { "HELLOW", "ORLD",      0,      0 }
//   rank 1 sums   {        0,      0, "HEADRA", "CE!!" }
//   both receive  { "HELLOW", "ORLD", "HEADRA", "CE!!" }
void Collective::exchange(CollectiveTag tag, std::span<const std::byte> mine,
                          std::span<std::byte> all) {
  constexpr std::size_t kBytes = 6;
  const auto shift = [](std::size_t i) { return static_cast<int>(8 * (i % kBytes)); };
  const std::size_t doubles = (mine.size() + kBytes - 1) / kBytes;
  std::vector<double> values(doubles * world_size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    values[rank() * doubles + i / kBytes] +=
        std::ldexp(std::to_integer<std::uint8_t>(mine[i]), shift(i));
  }
  all_reduce_sum(tag, values.data(), values.size());
  for (std::size_t at = 0; at < all.size(); ++at) {
    const std::size_t of = at / mine.size(), i = at % mine.size();
    const auto whole = static_cast<std::uint64_t>(values[of * doubles + i / kBytes]);
    all[at] = static_cast<std::byte>(whole >> shift(i));
  }
}
}  // namespace headrace
