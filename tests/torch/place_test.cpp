// SPDX-License-Identifier: Apache-2.0
// Parameters bound on a device of torch's that has streams and memory of its own: a simulated one
// (simulated_gpu.hpp), whose operators are the CPU's, so that the bits must be too.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "headrace/torch/cuda.hpp"
#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/simulated_gpu.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::Code;
using headrace::Error;
using headrace::Settings;
using headrace::device::DeviceHost;
using headrace::torch::Access;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::OnOtherStream;
using headrace_test::plug_in;
using headrace_test::simulated_gpu;
using headrace_test::SwapFolder;

constexpr std::int64_t kHidden = 40;
constexpr int kLayers = 4, kSteps = 4;

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

std::shared_ptr<DeviceHost> late_device(std::uint64_t seed, std::uint32_t microseconds_max = 30) {
  return headrace::device::make_device_host({.flavour = headrace::device::HostFlavour::kLate,
                                             .seed = seed,
                                             .late_microseconds_max = microseconds_max});
}

struct Options {
  bool nvme = true;
  bool checkpointing = false;
  bool other_stream = false;  // every second block runs on a stream of its own
  bool on_device = true;      // the blocks are made there, not on the CPU
  std::uint32_t micro_batches = 1;
};

class Net {
 public:
  Net(const Options& options, const std::string& folder, const std::shared_ptr<DeviceHost>& device)
      : options_(options),
        place_(device ? simulated_gpu() : at::Device(at::kCPU)),
        offload_(settings_of(options, folder), {.device = device}, place_) {
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
      const auto at = static_cast<double>(number + 7 * static_cast<int>(m));
      const auto ramp = torch::arange(6 * kHidden, torch::kFloat).reshape({6, kHidden});
      torch::Tensor x = torch::sin(ramp * 0.7 + at).to(place_);
      const torch::Tensor target =
          torch::cos(torch::arange(48, torch::kFloat) + at).reshape({6, 8}).to(place_);
      for (std::size_t i = 0; i < blocks_.size(); ++i) x = run(i, x);
      const torch::Tensor loss = (head_(x) - target).square().mean();
      loss.backward();
      sum += loss.item<float>();
    }
    offload_.step({.learning_rate = 1e-2f, .max_norm = 0.5f});
    return sum;
  }
  std::string hashes() {
    return offload_.engine().hash_parameters() + offload_.engine().hash_optimizer_state();
  }
  Offload& offload() { return offload_; }
  const std::vector<Group<LayerImpl>>& blocks() const { return blocks_; }
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
    if (!options_.other_stream || place_.is_cpu() || i % 2 == 0) return call(x);
    const c10::impl::VirtualGuardImpl streams(place_.type());
    streams.synchronizeStream(streams.getStream(place_));  // the input is there
    const OnOtherStream other;
    return call(x);
  }

  const Options options_;
  const at::Device place_;
  Offload offload_;
  torch::nn::Linear head_{nullptr};
  std::vector<Group<LayerImpl>> blocks_;
};

struct Outcome {
  std::string hashes;
  float loss = 0;
};
Outcome train(const Options& options, const std::shared_ptr<DeviceHost>& device) {
  const SwapFolder folder;
  if (device) plug_in(device);
  Net net(options, folder.path(), device);
  float first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    last = net.step(step % 2);
    if (step == 0) first = last;
  }
  EXPECT_LT(last, first);
  return {net.hashes(), last};
}

// Torch splits some operators otherwise there than on the CPU: the bits are those of a device that
// is never late, the values about the CPU's.
TEST(Place, TrainingOnADeviceWithStreamsGivesTheSameBitsHoweverLateItIs) {
  for (const Options& options :
       {Options{}, Options{.nvme = false, .on_device = false}, Options{.checkpointing = true},
        Options{.nvme = false, .other_stream = true}, Options{.nvme = false, .micro_batches = 3}}) {
    const Outcome expected =
        train({.nvme = false, .micro_batches = options.micro_batches}, late_device(1, 0));
    EXPECT_NEAR(expected.loss, train(options, nullptr).loss, 1e-3);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + (options.nvme ? ", NVMe" : ", host") +
                   (options.checkpointing ? ", checkpointing" : "") +
                   (options.other_stream ? ", two streams" : ""));
      // Now and then later than the CPU is with what comes next.
      const auto device = late_device(seed, seed == 3 ? 2000 : 30);
      EXPECT_EQ(train(options, device).hashes, expected.hashes);
    }
  }
}

TEST(Place, BuffersGoWhereTheParametersAreUsed) {
  const SwapFolder folder;
  plug_in(late_device(1));
  Net net({.on_device = false}, folder.path(), late_device(1));
  ASSERT_EQ(net.offload().buffers().size(), static_cast<std::size_t>(kLayers));
  for (const auto& [name, buffer] : net.offload().buffers())
    EXPECT_EQ(buffer.device(), simulated_gpu()) << name;
}

TEST(Place, ScopesReadAndChangeValuesThere) {
  const SwapFolder folder;
  const auto device = late_device(2);
  plug_in(device);
  Net net({}, folder.path(), device);
  (void)net.step(0);
  const auto module = net.blocks()[1].module();
  float before = 0;
  {
    const auto whole = net.offload().gathered(net.blocks()[1]);
    EXPECT_EQ(module->up->weight.device(), simulated_gpu());
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
  const auto device = late_device(3);
  plug_in(device);
  Net net({}, folder.path(), device);
  {
    const auto whole = net.offload().gathered(net.blocks()[0]);
    const torch::Tensor weight = net.blocks()[0].module()->up->weight;
    static_cast<float*>(weight.mutable_data_ptr())[5] += 1;
  }
  EXPECT_THROW((void)net.step(0), Error);
}

TEST(Place, RestoredParametersAreOrdinaryTensorsThere) {
  const SwapFolder folder;
  const auto device = late_device(4);
  plug_in(device);
  Net net({}, folder.path(), device);
  (void)net.step(0);
  const auto module = net.blocks()[2].module();
  net.offload().restore();
  EXPECT_EQ(module->up->weight.device(), simulated_gpu());
  const torch::Tensor y = module->forward(torch::ones({2, kHidden}).to(simulated_gpu()));
  EXPECT_TRUE(y.cpu().isfinite().all().item<bool>());
}

// Torch's cuda:0 is simulated here, the driver's is not: without one there is no such device.
TEST(Place, IsNamedAsTheDocumentsSay) {
  plug_in(late_device(1));
  const Settings settings;
  try {
    // [place]
    const at::Device gpu(at::kCUDA, 0);
    const auto device = headrace::torch::make_cuda_device(gpu);
    headrace::torch::Offload offload(settings, {.device = device}, gpu);
    // [/place]
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported) << error.what();
    EXPECT_NE(std::string(error.what()).find("no GPU can be used"), std::string::npos);
  }
}

// A device whose memory the CPU cannot read.
class Unreadable final : public headrace::Device {
 public:
  const char* name() const noexcept override { return "unreadable"; }
  bool shares_host_memory() const noexcept override { return false; }
  bool host_reads_memory() const noexcept override { return false; }
  void* allocate(std::size_t) noexcept override { return nullptr; }
  void deallocate(void*, std::size_t) noexcept override {}
  headrace::Stream create_stream() override { return {}; }
  void destroy_stream(headrace::Stream) noexcept override {}
  void copy(headrace::Stream, void*, const void*, std::size_t) override {}
  void fill_zero(headrace::Stream, void*, std::size_t) override {}
  void accumulate(headrace::Stream, const headrace::Accumulation&) override {}
  void notify(headrace::Stream, void (*)(void*) noexcept, void*) override {}
  headrace::Event record(headrace::Stream) override { return {}; }
  void wait(headrace::Stream, headrace::Event) override {}
  void synchronize(headrace::Stream) override {}
};

TEST(Place, IsRefusedWhereTheEnginesDeviceIsAnother) {
  const auto code_of = [](const auto& make) {
    try {
      make();
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kOk;
  };
  EXPECT_EQ(
      code_of([] { Offload offload(Settings{}, {.device = std::make_shared<Unreadable>()}); }),
      Code::kInvalidArgument);
  plug_in(late_device(1));
  EXPECT_EQ(code_of([] { Offload offload(Settings{}, {}, simulated_gpu()); }),
            Code::kInvalidArgument);
  EXPECT_EQ(code_of([] {
              Offload offload(Settings{}, {.device = late_device(1)}, at::Device(at::kCUDA, 3));
            }),
            Code::kUnsupported);
  EXPECT_EQ(code_of([] {
              Offload offload(Settings{}, {.device = late_device(1)}, at::Device(at::kXLA, 0));
            }),
            Code::kUnsupported);
}
}  // namespace
