// SPDX-License-Identifier: Apache-2.0
// place_test.cpp: refusals of places, without a GPU; place_cases.cpp has what happens there.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "headrace/torch/cuda.hpp"
#include "headrace/torch/offload.hpp"
#include "torch/place_under_test.hpp"

namespace {
using headrace::Code;
using headrace::Error;
using headrace::Settings;
using headrace::torch::Offload;
using headrace_test::Late;
using headrace_test::make_place_device;
using headrace_test::place_under_test;

// Torch's cuda:0 is simulated here, the driver's is not: without one there is no such device.
TEST(Place, IsNamedAsTheDocumentsSay) {
  const auto simulated = make_place_device(1, Late::kNowAndThen);
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
  const auto device = make_place_device(1, Late::kNowAndThen);
  EXPECT_EQ(code_of([] { Offload offload(Settings{}, {}, place_under_test()); }),
            Code::kInvalidArgument);
  for (const at::Device other : {at::Device(at::kCUDA, 3), at::Device(at::kXLA, 0)}) {
    EXPECT_EQ(code_of([&] { Offload offload(Settings{}, {.device = device}, other); }),
              Code::kUnsupported);
  }
}
}  // namespace
