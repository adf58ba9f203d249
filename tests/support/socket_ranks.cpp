// SPDX-License-Identifier: Apache-2.0
#include "support/socket_ranks.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "headrace/error.hpp"

namespace headrace::testing {
namespace {
[[noreturn]] void lose(std::uint32_t peer, CollectiveTag tag) {
  throw Error(Code::kPeerLost,
              "rank " + std::to_string(peer) + " is gone: '" + std::string(tag.what) + "'");
}
}  // namespace

void SocketCollective::send(std::uint32_t peer, CollectiveTag tag,
                            std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent =
        TEMP_FAILURE_RETRY(::send(peers_[peer].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
    if (sent <= 0) lose(peer, tag);
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

void SocketCollective::receive(std::uint32_t peer, CollectiveTag tag,
                               std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got =
        TEMP_FAILURE_RETRY(::recv(peers_[peer].get(), bytes.data(), bytes.size(), 0));
    if (got <= 0) lose(peer, tag);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

// The lower rank gives first, and every rank meets its peers in rank order: nobody waits in a
// circle, however little a socket holds.
void SocketCollective::swap_with(std::uint32_t peer, CollectiveTag tag,
                                 std::span<const std::byte> give, std::span<std::byte> take) const {
  const std::uint64_t mine[2] = {tag.sequence, give.size()};
  const std::uint64_t expected[2] = {tag.sequence, take.size()};
  std::uint64_t theirs[2] = {};
  const auto give_all = [&] {
    send(peer, tag, std::as_bytes(std::span(mine)));
    send(peer, tag, give);
  };
  if (rank_ < peer) give_all();
  receive(peer, tag, std::as_writable_bytes(std::span(theirs)));
  if (std::memcmp(expected, theirs, sizeof theirs) != 0) {
    throw Error(Code::kPeerLost, "rank " + std::to_string(peer) + " makes another call than '" +
                                     std::string(tag.what) + "'");
  }
  receive(peer, tag, take);
  if (rank_ > peer) give_all();
}

void SocketCollective::exchange(CollectiveTag tag, std::span<const std::byte> mine,
                                std::span<std::byte> all) {
  ++begun_;
  for (std::uint32_t r = 0; r < world_size(); ++r) {
    const std::span<std::byte> piece = all.subspan(r * mine.size(), mine.size());
    if (r == rank_) {
      std::ranges::copy(mine, piece.begin());
    } else {
      swap_with(r, tag, mine, piece);
    }
  }
  ++ended_;
}

void SocketCollective::all_gather(CollectiveTag tag, Stream, std::span<const DeviceSpan> whole) {
  ++begun_;
  const auto bytes_of = [&](std::uint32_t r) {
    return std::span(static_cast<std::byte*>(whole[r].data), whole[r].size_bytes);
  };
  for (std::uint32_t r = 0; r < world_size(); ++r) {
    if (r != rank_) swap_with(r, tag, bytes_of(rank_), bytes_of(r));
  }
  ++ended_;
}

void SocketCollective::all_to_all(CollectiveTag tag, Stream, std::span<const DeviceSpan> give,
                                  void* take) {
  ++begun_;
  auto* at = static_cast<std::byte*>(take);
  for (std::uint32_t r = 0; r < world_size(); ++r) {
    if (r == rank_) continue;
    const std::size_t own = give[rank_].size_bytes;
    swap_with(r, tag, {static_cast<const std::byte*>(give[r].data), give[r].size_bytes}, {at, own});
    at += own;
  }
  ++ended_;
}

void SocketCollective::abort(std::string_view) noexcept {
  for (const base::UniqueFd& peer : peers_) {
    if (peer) ::shutdown(peer.get(), SHUT_RDWR);
  }
}

std::vector<std::shared_ptr<SocketCollective>> make_socket_ranks(std::uint32_t world) {
  std::vector<std::vector<base::UniqueFd>> sockets(world);
  for (auto& of_rank : sockets) of_rank.resize(world);
  for (std::uint32_t a = 0; a < world; ++a) {
    for (std::uint32_t b = a + 1; b < world; ++b) {
      int pair[2] = {};
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        throw Error(Code::kIo, "socketpair", errno);
      sockets[a][b].reset(pair[0]);
      sockets[b][a].reset(pair[1]);
    }
  }
  std::vector<std::shared_ptr<SocketCollective>> ranks;
  for (std::uint32_t r = 0; r < world; ++r)
    ranks.push_back(std::make_shared<SocketCollective>(r, std::move(sockets[r])));
  return ranks;
}
}  // namespace headrace::testing
