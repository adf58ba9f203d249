// SPDX-License-Identifier: Apache-2.0
// collective_conformance_test.cpp: the suite, on the collectives that come with the library.
#include "collective/collective_conformance.hpp"
#include "collective/collective_self.hpp"
#include "collective/threads_world.hpp"
#include "support/computing_host.hpp"

namespace headrace::collective {
namespace {
using device::HostFlavour;

// Where the transport does not reach the device's memory, and what it can takes many rounds.
class OutOfReach final : public Transport {
 public:
  explicit OutOfReach(std::shared_ptr<Transport> to) : to_(std::move(to)) {}
  std::string_view name() const noexcept override { return to_->name(); }
  std::uint32_t rank() const noexcept override { return to_->rank(); }
  std::uint32_t world_size() const noexcept override { return to_->world_size(); }
  bool reaches(const Device&) const noexcept override { return false; }
  void all_to_all(Lane lane, Stream stream, std::span<const Piece> give,
                  std::span<const Piece> take, Done done) override {
    to_->all_to_all(lane, stream, give, take, done);
  }
  void post(std::span<const std::byte> bytes) noexcept override { to_->post(bytes); }
  void read_posts(std::span<Post> of_all) noexcept override { to_->read_posts(of_all); }
  void abort() noexcept override { to_->abort(); }

 private:
  std::shared_ptr<Transport> to_;
};

std::vector<Rank> staged_world(std::uint32_t world_size, HostFlavour flavour,
                               std::chrono::milliseconds deadline) {
  const auto transports = make_thread_transports(world_size);
  std::vector<Rank> ranks;
  for (std::uint32_t r = 0; r < world_size; ++r) {
    const auto device = host_device(flavour, r + 1);
    ranks.push_back(
        {device, make_collective({.transport = std::make_shared<OutOfReach>(transports[r]),
                                  .device = device,
                                  .deadline = deadline,
                                  .warn = [](const std::string&) {},
                                  .staging_bytes = 8192 * world_size})});
  }
  return ranks;
}

std::vector<WorldMaker> worlds() {
  std::vector<WorldMaker> all;
  for (const HostFlavour flavour : {HostFlavour::kPrompt, HostFlavour::kLate}) {
    const std::string suffix = flavour == HostFlavour::kPrompt ? "Prompt" : "Late";
    all.push_back({"Self" + suffix, 1, [flavour](std::chrono::milliseconds) {
                     return std::vector<Rank>{{host_device(flavour, 1), make_collective_self()}};
                   }});
    for (const std::uint32_t world_size : {1u, 2u, 3u}) {
      all.push_back({"Threads" + std::to_string(world_size) + suffix, world_size,
                     [=](std::chrono::milliseconds deadline) {
                       return threads_world(world_size, flavour, deadline);
                     }});
      all.push_back({"Staged" + std::to_string(world_size) + suffix, world_size,
                     [=](std::chrono::milliseconds deadline) {
                       return staged_world(world_size, flavour, deadline);
                     }});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Collectives, CollectiveConformance, testing::ValuesIn(worlds()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Collectives, CollectiveOfSeveral, testing::ValuesIn(of_several(worlds())),
                         [](const auto& info) { return info.param.name; });
}  // namespace
}  // namespace headrace::collective
