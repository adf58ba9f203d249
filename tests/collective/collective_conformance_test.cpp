// SPDX-License-Identifier: Apache-2.0
// collective_conformance_test.cpp: the suite, on the collectives that come with the library.
#include "collective/collective_conformance.hpp"
#include "collective/threads_world.hpp"
#include "support/computing_host.hpp"

namespace headrace::collective {
namespace {
using device::HostFlavour;

// What a trainer must implement, and no more.
class WithoutExchange final : public Collective {
 public:
  explicit WithoutExchange(std::shared_ptr<Collective> to) : to_(std::move(to)) {}
  std::uint32_t rank() const noexcept override { return to_->rank(); }
  std::uint32_t world_size() const noexcept override { return to_->world_size(); }
  void all_gather(CollectiveTag tag, Stream stream, DeviceSpan whole) override {
    to_->all_gather(tag, stream, whole);
  }
  void reduce_scatter(CollectiveTag tag, Stream stream, void* buffer, DType dtype,
                      std::uint64_t elements) override {
    to_->reduce_scatter(tag, stream, buffer, dtype, elements);
  }
  void all_reduce_sum(CollectiveTag tag, double* values, std::uint64_t count) override {
    to_->all_reduce_sum(tag, values, count);
  }
  void barrier(CollectiveTag tag) override { to_->barrier(tag); }
  void abort(std::string_view why) noexcept override { to_->abort(why); }

 private:
  std::shared_ptr<Collective> to_;
};

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
      all.push_back({"Sums" + std::to_string(world_size) + suffix, world_size,
                     [=](std::chrono::milliseconds deadline) {
                       auto ranks = threads_world(world_size, flavour, deadline);
                       for (Rank& rank : ranks)
                         rank.collective = std::make_shared<WithoutExchange>(rank.collective);
                       return ranks;
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
