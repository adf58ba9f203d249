// SPDX-License-Identifier: Apache-2.0
// ranks.hpp: several ranks in one test.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "headrace/collective.hpp"
#include "headrace/error.hpp"

namespace headrace::collective {
// One rank's device and collective.
struct Rank {
  std::shared_ptr<Device> device;
  std::shared_ptr<Collective> collective;
};

// `size_bytes` of memory as one equal piece for each rank.
inline std::vector<DeviceSpan> equal_pieces(void* memory, std::size_t size_bytes,
                                            std::uint32_t world) {
  std::vector<DeviceSpan> pieces;
  const std::size_t each = size_bytes / world;
  for (std::uint32_t r = 0; r < world; ++r)
    pieces.push_back(
        {memory == nullptr ? nullptr : static_cast<std::byte*>(memory) + r * each, each});
  return pieces;
}

// Runs `body(rank number, rank)` on a thread per rank and joins them.
inline void on_every_rank(std::vector<Rank>& ranks,
                          const std::function<void(std::uint32_t, Rank&)>& body) {
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] { body(r, ranks[r]); });
  for (std::thread& thread : threads) thread.join();
}

// Every rank comes here.
inline void meet(Collective& collective, CollectiveTag tag) { collective.exchange(tag, {}, {}); }

// What kPeerLost says, or how the call ended otherwise.
inline std::string peer_lost_text(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() == Code::kPeerLost) return error.what();
    return std::string("ended in ") + code_name(error.code());
  }
  return "returned";
}
}  // namespace headrace::collective
