// SPDX-License-Identifier: Apache-2.0
// On a device that shares host memory nothing is copied: a bound parameter is the engine's own
// bytes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::Block;
using headrace_test::BlockImpl;

constexpr std::int64_t kWidth = 64;

// Where each parameter of the group lies for torch, in the engine's order.
std::vector<const void*> seen_by_torch(const Group<BlockImpl>& group) {
  std::vector<const void*> addresses;
  for (const auto& parameter : group.module()->parameters())
    addresses.push_back(parameter.const_data_ptr());
  return addresses;
}
// ... and where the engine has it.
std::vector<const void*> kept_by_engine(Offload& offload, const Group<BlockImpl>& group) {
  const headrace::Gathered lease = offload.engine().gather(group.id());
  std::vector<const void*> addresses;
  for (const headrace::ParameterId id : offload.engine().parameters(group.id()))
    addresses.push_back(lease.bytes(id).data);
  return addresses;
}

class InPlace : public testing::TestWithParam<bool> {
 protected:
  // A step of two blocks; what torch and the engine saw in forward and in backward of each.
  void step(Offload& offload, std::vector<Group<BlockImpl>>& groups) {
    torch::Tensor x = torch::randn({2, 6, kWidth}).to(torch::kBFloat16);
    for (auto& group : groups) {
      x = offload.run(group, [&] {
        const torch::Tensor inner = group.module()->forward(x);
        look(offload, group);
        // Runs before the block's own backward, which reads the parameters.
        inner.register_hook([this, &offload, &group](const torch::Tensor&) {
          look(offload, group);
          ++backwards_;
        });
        return inner * 1;  // its hook binds the group before the one above runs
      });
    }
    x.to(torch::kFloat).square().mean().backward();
    offload.step({.learning_rate = 1e-3f});
  }
  void look(Offload& offload, const Group<BlockImpl>& group) {
    const std::vector<const void*> torchs = seen_by_torch(group);
    EXPECT_EQ(torchs, kept_by_engine(offload, group)) << group.name();
    seen_.insert(torchs.begin(), torchs.end());
    ++looks_;
  }
  std::set<const void*> seen_;
  int looks_ = 0, backwards_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Places, InPlace, testing::Bool(),
                         [](const auto& info) { return info.param ? "Nvme" : "Memory"; });

TEST_P(InPlace, BoundParametersAreTheEnginesOwnBytesInForwardAndBackward) {
  torch::manual_seed(3);
  const headrace_test::SwapFolder folder;
  const bool nvme = GetParam();
  Offload offload(nvme ? headrace_test::all_on_nvme(folder.path()) : headrace::Settings{});
  std::vector<Group<BlockImpl>> groups;
  for (const char* name : {"h.0", "h.1"}) {
    groups.push_back(
        offload.add_group(name, [] { return headrace_test::make_block(kWidth, true); }));
  }
  offload.freeze();
  const headrace::Stats before = offload.engine().stats();
  for (int i = 0; i < 3; ++i) step(offload, groups);
  const headrace::Stats after = offload.engine().stats();
  EXPECT_EQ(looks_, 12);
  EXPECT_EQ(backwards_, 6);
  EXPECT_EQ(after.copied_to_device_bytes, before.copied_to_device_bytes);
  if (nvme) return;
  // Resident: the same places in every step, and no gather but by a count.
  EXPECT_EQ(seen_.size(), groups.size() * groups[0].module()->parameters().size());
  EXPECT_EQ(after.gathers_in_place - before.gathers_in_place, after.gathers - before.gathers);
}
}  // namespace
