// SPDX-License-Identifier: Apache-2.0
// Parameters bound on a device of torch's that has streams and memory of its own, wherever that is
// (place_under_test.hpp).
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "headrace/cpu_optimizer.hpp"
#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/place_under_test.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::Error;
using headrace::Settings;
using headrace::torch::Access;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::fall_behind;
using headrace_test::Late;
using headrace_test::make_place_device;
using headrace_test::place_under_test;
using headrace_test::same_bits;
using headrace_test::SwapFolder;

constexpr std::int64_t kHidden = 40;
constexpr int kLayers = 4, kSteps = 4;
constexpr float kLearningRate = 1e-2f;

struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})))),
        up(register_module("up", torch::nn::Linear(kHidden, 3 * kHidden))),
        down(register_module("down", torch::nn::Linear(3 * kHidden, kHidden))),
        scale(register_buffer("scale", torch::full({kHidden}, 0.5))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x + scale * down(torch::dropout(torch::gelu(up(norm(x))), dropout, is_training()));
  }
  double dropout = 0;
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  torch::Tensor scale;
};
TORCH_MODULE(Layer);

struct Options {
  bool nvme = true;
  bool checkpointing = false;
  bool other_stream = false;  // every second block runs on a stream of its own
  bool on_device = true;      // the blocks are made there, not on the CPU
  bool on_demand = false;
  float max_norm = 0.5f;
  std::uint32_t micro_batches = 1;
  Late late = Late::kNowAndThen;
};

// A further stream of torch's, the thread's current one for a scope; behind what was queued before,
// and what is queued afterwards is behind it.
class OnOtherStream {
 public:
  explicit OnOtherStream(at::Device place)
      : guard_(place.type()),
        own_(guard_.getNewStream(place)),
        before_(guard_.exchangeStream(own_)) {
    order(own_, before_);
  }
  ~OnOtherStream() {
    guard_.exchangeStream(before_);
    order(before_, own_);
  }
  OnOtherStream(const OnOtherStream&) = delete;
  OnOtherStream& operator=(const OnOtherStream&) = delete;
  c10::Stream own() const { return own_; }
  c10::Stream before() const { return before_; }

 private:
  static void order(c10::Stream behind, c10::Stream first) {
    c10::Event passed(first.device_type());
    passed.record(first);
    behind.wait(passed);
  }
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream own_, before_;
};

// A step's batch, the same wherever it is computed on.
struct Batch {
  Batch(int number, at::Device place) {
    const auto ramp = torch::arange(6 * kHidden, torch::kFloat).reshape({6, kHidden});
    input = torch::sin(ramp * 0.7 + number).to(place);
    target = torch::cos(torch::arange(48, torch::kFloat) + number).reshape({6, 8}).to(place);
  }
  torch::Tensor input, target;
};

class Net {
 public:
  Net(const Options& options, const std::string& folder,
      const std::shared_ptr<headrace::Device>& device)
      : options_(options),
        place_(device ? place_under_test() : at::Device(at::kCPU)),
        offload_(settings_of(options, folder), {.device = device}, place_) {
    if (options.on_demand) offload_.serve_on_demand();
    torch::manual_seed(5);
    head_ = torch::nn::Linear(kHidden, 8);
    for (int i = 0; i < kLayers; ++i) {
      blocks_.push_back(offload_.add_group("block." + std::to_string(i), [this] {
        Layer layer;
        if (options_.on_device) layer->to(place_);
        return layer;
      }));
      if (options.micro_batches > 1) offload_.expect_repeated_gradients(blocks_.back());
    }
    offload_.add_rest(head_, "head");
    offload_.freeze();
  }

  float step(int number) {
    float sum = 0;
    for (std::uint32_t m = 0; m < options_.micro_batches; ++m) {
      const Batch batch(number + 7 * static_cast<int>(m), place_);
      torch::Tensor x = batch.input;
      for (std::size_t i = 0; i < blocks_.size(); ++i) x = run(i, x);
      const torch::Tensor loss = (head_(x) - batch.target).square().mean();
      if (!place_.is_cpu()) fall_behind(options_.late);
      loss.backward();
      sum += loss.item<float>();
    }
    offload_.step({.learning_rate = kLearningRate, .max_norm = options_.max_norm});
    return sum;
  }
  std::string hashes() {
    return offload_.engine().hash_parameters() + offload_.engine().hash_optimizer_state();
  }
  Offload& offload() { return offload_; }
  const std::vector<Group<LayerImpl>>& blocks() const { return blocks_; }
  const torch::nn::Linear& head() const { return head_; }
  at::Device place() const { return place_; }

 private:
  static Settings settings_of(const Options& options, const std::string& folder) {
    Settings settings = headrace_test::all_on_nvme(folder);
    settings.gradient_accumulation_steps = options.micro_batches;
    if (options.nvme) return settings;
    settings.offload_optimizer = settings.offload_parameters = headrace::OffloadDevice::kCpu;
    settings.nvme_paths = {};
    settings.prefetch_groups = 0;  // what is gathered is copied just before its use
    return settings;
  }
  torch::Tensor run(std::size_t i, const torch::Tensor& x) {
    const auto call = [&](const torch::Tensor& in) {
      return options_.checkpointing ? offload_.checkpoint(blocks_[i], in)
                                    : offload_(blocks_[i], in);
    };
    if (place_.is_cpu()) return call(x);
    if (!options_.other_stream || i % 2 == 0) {
      fall_behind(options_.late);
      return call(x);
    }
    const OnOtherStream streams(place_);
    fall_behind(options_.late);
    x.record_stream(streams.own());
    const torch::Tensor y = call(x);
    y.record_stream(streams.before());
    return y;
  }

  const Options options_;
  const at::Device place_;
  Offload offload_;
  torch::nn::Linear head_{nullptr};
  std::vector<Group<LayerImpl>> blocks_;
};

// The same training on tensors of torch's that stay there, by the same arithmetic.
class Unmoved {
 public:
  explicit Unmoved(Net& net) : place_(net.place()) {
    for (const Group<LayerImpl>& group : net.blocks()) {
      const auto whole = net.offload().gathered(group);
      blocks_.emplace_back();
      take(*blocks_.back(), *group.module());
    }
    take(*head_, *net.head());
  }

  float step(int number) {
    const Batch batch(number, place_);
    torch::Tensor x = batch.input;
    for (Layer& block : blocks_) x = block(x);
    const torch::Tensor loss = (head_(x) - batch.target).square().mean();
    loss.backward();
    update();
    return loss.item<float>();
  }
  void expect_equal(Net& net) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const auto whole = net.offload().gathered(net.blocks()[i]);
      expect_equal(*blocks_[i], *net.blocks()[i].module());
    }
    expect_equal(*head_, *net.head());
  }

 private:
  struct State {
    torch::Tensor parameter;
    std::vector<float> weight, first, second;
  };
  template <class T>
  static std::span<std::byte> bytes(std::vector<T>& of) {
    return std::as_writable_bytes(std::span(of));
  }
  static std::vector<float> values(const torch::Tensor& tensor) {
    const torch::Tensor own = tensor.detach().cpu().contiguous();
    return {own.data_ptr<float>(), own.data_ptr<float>() + own.numel()};
  }

  void take(torch::nn::Module& mine, const torch::nn::Module& from) {
    const torch::NoGradGuard no_gradients;
    mine.to(place_);
    const auto sources = from.parameters();
    auto targets = mine.parameters();
    for (std::size_t i = 0; i < targets.size(); ++i) {
      targets[i].copy_(sources[i]);
      State state{targets[i], values(targets[i]), {}, {}};
      state.first.resize(state.weight.size());
      state.second.resize(state.weight.size());
      states_.push_back(std::move(state));
    }
  }
  void update() {
    const torch::NoGradGuard no_gradients;
    std::vector<std::vector<float>> gradients;
    std::vector<headrace::ParameterUpdate> updates;
    ++steps_;
    for (State& state : states_) gradients.push_back(values(state.parameter.grad()));
    for (std::size_t i = 0; i < states_.size(); ++i) {
      State& state = states_[i];
      updates.push_back({.state = {.elements = state.weight.size(),
                                   .dtype = headrace::DType::kF32,
                                   .weight = bytes(state.weight),
                                   .moment = {bytes(state.first), bytes(state.second)}},
                         .gradient_dtype = headrace::DType::kF32,
                         .gradient = bytes(gradients[i]),
                         .t = steps_});
    }
    optimizer_.step(updates, {.learning_rate = kLearningRate});
    for (State& state : states_) {
      state.parameter.copy_(
          torch::from_blob(state.weight.data(), state.parameter.sizes(), torch::kFloat));
      state.parameter.mutable_grad().reset();
    }
  }
  static void expect_equal(const torch::nn::Module& mine, const torch::nn::Module& other) {
    const auto a = mine.named_parameters(), b = other.named_parameters();
    for (const auto& item : a)
      EXPECT_TRUE(same_bits(item.value().cpu(), b[item.key()].cpu())) << item.key();
  }

  const at::Device place_;
  std::vector<Layer> blocks_;
  torch::nn::Linear head_{kHidden, 8};
  std::vector<State> states_;
  headrace::CpuOptimizer optimizer_{{.threads = 1}};
  std::uint64_t steps_ = 0;
};

struct Outcome {
  std::string hashes;
  float loss = 0;
};
Outcome train(const Options& options, const std::shared_ptr<headrace::Device>& device) {
  const SwapFolder folder;
  Net net(options, folder.path(), device);
  float first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    last = net.step(step % 2);
    if (step == 0) first = last;
  }
  EXPECT_LT(last, first);
  return {net.hashes(), last};
}

const Options kEveryKind[] = {{},
                              {.nvme = false, .on_device = false},
                              {.checkpointing = true},
                              {.nvme = false, .other_stream = true},
                              {.nvme = false, .micro_batches = 3}};
std::string name_of(const Options& options) {
  return std::string(options.nvme ? "NVMe" : "host") +
         (options.checkpointing ? ", checkpointing" : "") +
         (options.other_stream ? ", two streams" : "") +
         (options.late == Late::kFar ? ", far behind" : "");
}

// Torch splits some operators otherwise there than on the CPU: the bits are those of a device that
// is never late, the values about the CPU's.
TEST(Place, TrainingOnADeviceWithStreamsGivesTheSameBitsHoweverLateItIs) {
  for (Options options : kEveryKind) {
    const Outcome expected =
        train({.nvme = false, .micro_batches = options.micro_batches, .late = Late::kNever},
              make_place_device(1, Late::kNever));
    EXPECT_NEAR(expected.loss, train(options, nullptr).loss, 1e-3);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      // Now and then later than the CPU is with what comes next.
      options.late = seed == 3 ? Late::kFar : Late::kNowAndThen;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + name_of(options));
      EXPECT_EQ(train(options, make_place_device(seed, options.late)).hashes, expected.hashes);
    }
  }
}

TEST(Place, TrainingGivesTheBitsOfTensorsThatStayThere) {
  for (Options options : kEveryKind) {
    if (options.micro_batches > 1) continue;
    options.max_norm = 0;
    options.late = Late::kFar;
    SCOPED_TRACE(name_of(options));
    const SwapFolder folder;
    Net net(options, folder.path(), make_place_device(5, options.late));
    Unmoved unmoved(net);
    for (int step = 0; step < kSteps; ++step) EXPECT_EQ(net.step(step), unmoved.step(step)) << step;
    unmoved.expect_equal(net);
  }
}

TEST(Place, BuffersGoWhereTheParametersAreUsed) {
  const SwapFolder folder;
  Net net({.on_device = false}, folder.path(), make_place_device(1, Late::kNowAndThen));
  ASSERT_EQ(net.offload().buffers().size(), static_cast<std::size_t>(kLayers));
  for (const auto& [name, buffer] : net.offload().buffers())
    EXPECT_EQ(buffer.device(), place_under_test()) << name;
}

TEST(Place, ScopesReadAndChangeValuesThere) {
  const SwapFolder folder;
  Net net({}, folder.path(), make_place_device(2, Late::kNowAndThen));
  (void)net.step(0);
  const auto module = net.blocks()[1].module();
  float before = 0;
  {
    const auto whole = net.offload().gathered(net.blocks()[1]);
    EXPECT_EQ(module->up->weight.device(), place_under_test());
    before = module->up->weight.cpu()[3][4].item<float>();
  }
  {
    auto whole = net.offload().gathered(net.blocks()[1], Access::kModify);
    const torch::NoGradGuard no_gradients;
    module->up->weight.add_(1.0);
  }
  {
    const auto whole = net.offload().gathered(net.blocks()[1]);
    EXPECT_EQ(module->up->weight.cpu()[3][4].item<float>(), before + 1.0f);
  }
  EXPECT_THROW((void)module->up->weight.cpu(), c10::Error);
  (void)net.step(1);
}

TEST(Place, AWriteInAReadersScopeIsFoundThereToo) {
  const SwapFolder folder;
  Net net({}, folder.path(), make_place_device(3, Late::kNowAndThen));
  {
    const auto whole = net.offload().gathered(net.blocks()[0]);
    // Past the counter of versions, as a kernel of the program's own would.
    net.blocks()[0].module()->up->weight.data().add_(1);
  }
  EXPECT_THROW((void)net.step(0), Error);
}

TEST(Place, WhatIsTouchedElsewhereIsServedThere) {
  const SwapFolder folder;
  Net net({.on_demand = true}, folder.path(), make_place_device(5, Late::kNowAndThen));
  (void)net.step(0);
  const auto module = net.blocks()[1].module();
  {
    const auto whole = net.offload().gathered(net.blocks()[1], Access::kModify);
    const torch::NoGradGuard no_gradients;
    module->up->weight.add_(1);
  }
  torch::Tensor expected;
  {
    const auto whole = net.offload().gathered(net.blocks()[1]);
    expected = module->up->weight.detach().clone();
  }
  const torch::NoGradGuard no_gradients;
  const torch::Tensor served = module->up->weight * 1;
  EXPECT_EQ(served.device(), place_under_test());
  EXPECT_TRUE(same_bits(served.cpu(), expected.cpu()));
  ASSERT_EQ(net.offload().served_on_demand().size(), 1u);
  const torch::Tensor x = torch::ones({2, kHidden}).to(place_under_test());
  const torch::Tensor ours = net.offload()(net.blocks()[1], x);
  EXPECT_TRUE(same_bits(module->forward(x).cpu(), ours.cpu()));
}

TEST(Place, RestoredParametersAreOrdinaryTensorsThere) {
  const SwapFolder folder;
  Net net({}, folder.path(), make_place_device(4, Late::kNowAndThen));
  (void)net.step(0);
  const auto module = net.blocks()[2].module();
  net.offload().restore();
  EXPECT_EQ(module->up->weight.device(), place_under_test());
  const torch::Tensor y = module->forward(torch::ones({2, kHidden}).to(place_under_test()));
  EXPECT_TRUE(y.cpu().isfinite().all().item<bool>());
}
}  // namespace
