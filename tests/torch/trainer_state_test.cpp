// SPDX-License-Identifier: Apache-2.0
// A durable run with dropout and batch norm, resumed by another Offload, ends in the bits of the
// run that nobody interrupted: torch's generators and the buffers go on where they were.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "headrace/torch/offload.hpp"
#include "torch/refusals.hpp"
#include "torch/swap_folder.hpp"

namespace headrace_trainer_state_test {
namespace {
using headrace::Resumed;
using headrace::Settings;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::SwapFolder;

constexpr std::int64_t kWidth = 32;
constexpr int kSteps = 6;

struct NormedImpl : torch::nn::Module {
  explicit NormedImpl(std::int64_t width = kWidth)
      : linear(register_module("linear", torch::nn::Linear(kWidth, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))),
        head(register_module("head", torch::nn::Linear(width, kWidth))),
        mask(register_buffer("mask", torch::ones({512, 512}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return head(torch::dropout(norm(linear(x)), 0.5, is_training()));
  }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear head;
  torch::Tensor mask;
};
TORCH_MODULE(Normed);

bool is_no_mask(const std::string& name, const at::Tensor&) {
  return name.find("mask") == std::string::npos;
}

struct Trainer {
  explicit Trainer(Settings settings, std::uint64_t seed = 7, std::int64_t width = kWidth)
      : offload(std::move(settings), {.log = [](headrace::LogLevel, std::string_view) {}}) {
    torch::manual_seed(seed);
    group.emplace(offload.add_group("net", [width] { return Normed(width); }));
    frozen = torch::full({kWidth}, 0.5);
    torch::nn::Module rest;
    rest.register_parameter("scale", frozen, /*requires_grad=*/false);
    offload.add_rest(rest);
    offload.freeze();
  }
  std::optional<Resumed> resume() { return offload.resume(is_no_mask); }
  void train_to(int last) {
    for (; step < last; ++step) {
      const torch::Tensor x = torch::randn({8, kWidth});
      (offload(*group, x) * frozen).square().sum().backward();
      if (keeps) offload.keep_trainer_state(std::as_bytes(std::span(&step, 1)), is_no_mask);
      offload.step({.learning_rate = 1e-3f});
    }
  }
  // Of all that a run has.
  std::string end() {
    std::string all = offload.engine().hash_parameters() + offload.engine().hash_optimizer_state();
    for (const auto& [name, buffer] : offload.buffers())
      all += name + " " + std::to_string(buffer.to(torch::kDouble).sum().item<double>()) + "\n";
    return all + std::to_string(torch::randn({1}).item<float>());
  }
  Offload offload;
  std::optional<Group<NormedImpl>> group;
  torch::Tensor frozen;
  int step = 0;
  bool keeps = true;
};

Settings durable(const SwapFolder& folder) {
  Settings settings = headrace_test::all_on_nvme(folder.path());
  settings.allow_memory_backed = false;  // refused beside durable
  settings.durable_every = 1;
  settings.store = "torch";
  return settings;
}

std::string undisturbed() {
  Trainer trainer((Settings()));
  trainer.train_to(kSteps);
  return trainer.end();
}

TEST(TrainerState, GeneratorsAndBuffersGoOnWithTheStore) {
  const std::string expected = undisturbed();
  const SwapFolder folder;
  {
    Trainer first(durable(folder));
    EXPECT_FALSE(first.resume().has_value());
    first.train_to(3);
  }
  Trainer second(durable(folder), /*seed=*/99);
  const auto resumed = second.resume();
  ASSERT_TRUE(resumed.has_value());
  EXPECT_EQ(resumed->step, 3u);
  int kept = -1;
  ASSERT_EQ(resumed->trainer_state.size(), sizeof kept);
  std::memcpy(&kept, resumed->trainer_state.data(), sizeof kept);
  second.step = kept + 1;
  second.train_to(kSteps);
  EXPECT_EQ(second.end(), expected);
}

TEST(TrainerState, WithoutItTheRunEndsElsewhere) {
  const std::string expected = undisturbed();
  const SwapFolder folder;
  {
    Trainer first(durable(folder));
    first.train_to(3);
  }
  Trainer second(durable(folder));
  second.step = 3;
  second.train_to(kSteps);
  EXPECT_NE(second.end(), expected);
}

TEST(TrainerState, OfAnotherKindIsRefusedAndChangesNothing) {
  const SwapFolder folder;
  {
    Trainer first(durable(folder));
    first.keeps = false;
    first.offload.engine().set_trainer_state(std::as_bytes(std::span("bytes", 5)));
    first.train_to(1);
  }
  Trainer second(durable(folder));
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  headrace_test::expect_error([&] { second.resume(); }, headrace::Code::kWrongState,
                              {"5 bytes", "keep_trainer_state()", "Engine::resumed()"});
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(before));
}

TEST(TrainerState, ThatWasNeverKeptIsNamedAsSuch) {
  const SwapFolder folder;
  {
    Trainer first(durable(folder));
    first.keeps = false;
    first.train_to(1);
  }
  Trainer second(durable(folder));
  headrace_test::expect_error(
      [&] { second.resume(); }, headrace::Code::kWrongState,
      {"no trainer's state was kept", "Offload::keep_trainer_state()", "Engine::resumed()"});
}

TEST(TrainerState, BuffersThatTheStoreLacksAreNamed) {
  const SwapFolder folder;
  {
    Trainer first(durable(folder));
    first.train_to(1);
  }
  Trainer second(durable(folder));
  headrace_test::expect_error([&] { second.offload.resume(); }, headrace::Code::kWrongState,
                              {"buffer 'net.mask'", "`which`", "as the run before did"});
}

TEST(TrainerState, BuffersOfAnotherShapeAreNamed) {
  const headrace::torch::detail::Place place;
  const headrace::torch::detail::NamedTensors kept{{"net.mean", torch::zeros({4})}};
  headrace::torch::detail::NamedTensors other{{"net.mean", torch::ones({5})}};
  const headrace::torch::detail::TrainerState state(place, kept, {});
  headrace_test::expect_error([&] { state.set(place, other); }, headrace::Code::kWrongState,
                              {"buffer 'net.mean'", "another type or shape"});
  EXPECT_EQ(other[0].second.sum().item<float>(), 5);
}

TEST(TrainerState, ThatIsTooLargeIsRefused) {
  const SwapFolder folder;
  Trainer trainer(durable(folder));
  headrace_test::expect_error([&] { trainer.offload.keep_trainer_state(); },
                              headrace::Code::kInvalidArgument,
                              {"at most 65536 fit", "headrace.trainer_state_bytes"});
}

// Its elements share memory: each place is written once.
TEST(TrainerState, AnExpandedBufferIsKeptAndSetAgain) {
  const headrace::torch::detail::Place place;
  const torch::Tensor row = torch::arange(4, torch::kFloat32);
  const headrace::torch::detail::NamedTensors buffers{
      {"plain", torch::full({2}, std::nan(""))},
      {"net.bias", row.expand({3, 4})},
      {"net.scale", torch::full({1}, 0.5).expand({8})}};
  const auto packed = headrace::torch::detail::TrainerState(place, buffers, {}).pack();
  const torch::Tensor before = buffers[1].second.clone();
  row.zero_();
  headrace::torch::detail::TrainerState(packed).set(place, buffers);
  EXPECT_TRUE(buffers[1].second.equal(before));
  EXPECT_EQ(buffers[1].second.stride(0), 0) << "as the module made it";
}

TEST(TrainerState, ValuesThatAnExpandedBufferCannotHaveAreRefusedByName) {
  const headrace::torch::detail::Place place;
  const headrace::torch::detail::NamedTensors kept{{"plain", torch::zeros({2})},
                                                   {"net.bias", torch::rand({3, 4})}};
  const headrace::torch::detail::NamedTensors buffers{
      {"plain", torch::ones({2})}, {"net.bias", torch::ones({4}).expand({3, 4})}};
  const headrace::torch::detail::TrainerState state(place, kept, {});
  headrace_test::expect_error([&] { state.set(place, buffers); }, headrace::Code::kWrongState,
                              {"buffer 'net.bias'", "expanded", "Build the modules"});
  EXPECT_EQ(buffers[0].second.sum().item<float>(), 2) << "nothing was changed";
}

// A view keeps its own elements, and not the storage behind it.
TEST(TrainerState, KeepsOfAViewItsElements) {
  const headrace::torch::detail::Place place;
  const torch::Tensor whole = torch::arange(100'000);
  headrace::torch::detail::NamedTensors buffers{{"view", whole.slice(0, 0, 10, 2)}};
  const auto packed = headrace::torch::detail::TrainerState(place, buffers, {}).pack();
  EXPECT_LT(packed.size(), 16'384u);
  const torch::Tensor before = buffers[0].second.clone();
  whole.zero_();
  headrace::torch::detail::TrainerState(packed).set(place, buffers);
  EXPECT_TRUE(buffers[0].second.equal(before));
}
}  // namespace
}  // namespace headrace_trainer_state_test
