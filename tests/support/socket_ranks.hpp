// SPDX-License-Identifier: Apache-2.0
// socket_ranks.hpp: the plainest collective: ranks that are threads or forked processes of the
// test, each with a socket to every other, in host memory. A call has ended when it returns. A rank
// that dies or aborts closes its sockets, which ends the others' calls at once.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/unique_fd.hpp"
#include "headrace/collective.hpp"

namespace headrace::testing {
class SocketCollective final : public Collective {
 public:
  SocketCollective(std::uint32_t rank, std::vector<base::UniqueFd> peers)
      : rank_(rank), peers_(std::move(peers)) {}
  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override {
    return static_cast<std::uint32_t>(peers_.size());
  }
  bool takes_any_thread() const noexcept override { return true; }
  void all_gather(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> whole) override;
  void all_to_all(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                  void* take) override;
  void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                std::span<std::byte> all) override;
  void abort(std::string_view why) noexcept override;

  // Calls that this rank has begun, and that have ended: it passes one only when all have come.
  std::uint64_t begun() const noexcept { return begun_; }
  std::uint64_t ended() const noexcept { return ended_; }

 private:
  void swap_with(std::uint32_t peer, CollectiveTag tag, std::span<const std::byte> give,
                 std::span<std::byte> take) const;
  void send(std::uint32_t peer, CollectiveTag tag, std::span<const std::byte> bytes) const;
  void receive(std::uint32_t peer, CollectiveTag tag, std::span<std::byte> bytes) const;

  const std::uint32_t rank_;
  const std::vector<base::UniqueFd> peers_;  // none at its own place
  std::uint64_t begun_ = 0, ended_ = 0;
};

// One for each rank. A forked child keeps its own alone, or the others never see an end.
std::vector<std::shared_ptr<SocketCollective>> make_socket_ranks(std::uint32_t world);
}  // namespace headrace::testing
