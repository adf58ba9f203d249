// SPDX-License-Identifier: Apache-2.0
// cuda_update_test: a GPU's updates give the reference's bits, and touch no byte beside the span.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/units.hpp"
#include "device/cuda_under_test.hpp"
#include "device/device_bytes.hpp"
#include "device/span_updates.hpp"
#include "optimizer_cpu/update_cases.hpp"

namespace headrace::optimizer_cpu {
namespace {
constexpr std::size_t kImageBytes = 2 << 20;

// The arrays of a span in one stretch of memory, at the same places in the host's and the GPU's.
class CudaUpdate : public testing::Test {
 protected:
  CudaUpdate()
      : device_(device::make_cuda_under_test(kSeed)),
        memory_(*device_, kImageBytes),
        stream_(device_->create_stream()) {
    RecordProperty("seed", std::to_string(kSeed));
  }
  ~CudaUpdate() override { device_->destroy_stream(stream_); }

  // Whether every byte of the image is the reference's afterwards.
  bool equals_reference(UpdateBuffers& input, const UpdateStep& step) {
    std::vector<std::byte> image(kImageBytes, std::byte{0x5a}), back(kImageBytes);
    std::size_t used = 0;
    const UpdateSpan here = lay_out(input, image.data(), used);
    const auto at = [&](const void* data) -> std::byte* {
      if (data == nullptr) return nullptr;
      return static_cast<std::byte*>(memory_.data()) +
             (static_cast<const std::byte*>(data) - image.data());
    };
    UpdateSpan there = here;
    there.weight = at(here.weight);
    there.master = at(here.master);
    there.gradient = at(here.gradient);
    for (std::uint32_t k = 0; k < kMaxMoments; ++k) {
      there.moment[k] = at(here.moment[k]);
      there.moment_scale[k] = reinterpret_cast<std::uint8_t*>(at(here.moment_scale[k]));
    }
    device_->copy(stream_, memory_.data(), image.data(), used);
    device::updates_of(*device_)->update(stream_, there, step);
    device_->copy(stream_, back.data(), memory_.data(), used);
    device_->synchronize(stream_);
    // Not the reference itself: that is the GPU's own text.
    update_function(choose_instruction_set())(here, step);
    return std::equal(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(used),
                      back.begin());
  }

 private:
  static UpdateSpan lay_out(UpdateBuffers& input, std::byte* image, std::size_t& used) {
    const UpdateSpan from = input.span();
    UpdateSpan to = from;
    const auto place = [&](const void* data, std::uint64_t elements, std::uint64_t each) -> void* {
      if (data == nullptr || each == 0) return nullptr;
      std::byte* const target = image + used + (1 + input.of.offset) * each;
      if (elements > 0) std::memcpy(target, data, elements * each);
      used = base::align_up(used + (2 + input.of.offset + elements) * each, 256);
      return target;
    };
    to.weight = place(from.weight, from.elements, weight_bytes(from.kind));
    to.master = place(from.master, from.elements, master_bytes(from.kind));
    to.gradient = place(from.gradient, from.elements, size_bytes(from.gradient_dtype));
    for (std::uint32_t k = 0; k < kMaxMoments; ++k) {
      to.moment[k] = place(from.moment[k], from.elements, moment_bytes(from.codec));
      to.moment_scale[k] = static_cast<std::uint8_t*>(
          place(from.moment_scale[k], base::ceil_div(from.elements, kScaleElements), 1));
    }
    EXPECT_LE(used, kImageBytes);
    return to;
  }

  std::shared_ptr<Device> device_;
  device::DeviceBytes memory_;
  Stream stream_;
};

TEST_F(CudaUpdate, GivesTheReferencesBitsForEveryKind) {
  std::mt19937_64 random(kSeed);
  for_every_case([&](UpdateCase of) {
    for (const std::uint64_t elements : {1u, 255u, 256u, 257u, 1000u}) {
      of.elements = elements;
      of.offset = random() % 20;
      of.first_element = random() % 1000 * kScaleElements;
      UpdateBuffers buffers(of);
      fill(buffers, random, elements % 4);
      ASSERT_TRUE(equals_reference(buffers, ordinary_step(of.rule))) << text_of(of);
    }
  });
}

TEST_F(CudaUpdate, GivesTheReferencesBitsAcrossRandomBlocks) {
  std::mt19937_64 random(kSeed + 1);
  for (const MomentCodec codec : kAllCodecs) {
    UpdateCase of{.codec = codec,
                  .elements = 66000,
                  .first_element = (std::uint64_t{1} << 33) + 65536 - 1024};
    UpdateBuffers buffers(of);
    fill(buffers, random, 1);
    ASSERT_TRUE(equals_reference(buffers, ordinary_step())) << text_of(of);
  }
}

TEST_F(CudaUpdate, GivesTheReferencesBitsForHardConstants) {
  std::mt19937_64 random(kSeed + 2);
  for_every_case([&](UpdateCase of) {
    of.elements = 300;
    const auto steps = hard_steps(of.rule);
    for (const UpdateStep& step : steps) {
      UpdateBuffers buffers(of);
      fill(buffers, random, 3);
      ASSERT_TRUE(equals_reference(buffers, step))
          << "step " << &step - steps.data() << " " << text_of(of);
    }
  });
}

// From the least denormal to the largest number: where scales and codes end.
TEST_F(CudaUpdate, GivesTheReferencesBitsAtEveryMagnitude) {
  std::mt19937_64 random(kSeed + 9);
  for_every_case([&](UpdateCase of) {
    if (of.kind != MasterKind::kSplitResidual || of.gradient_dtype != DType::kF32) return;
    of.elements = kScaleElements;
    for (int exponent = -150; exponent < 128; exponent += exponent < -120 ? 1 : 13) {
      UpdateBuffers buffers(of);
      fill_at_magnitude(buffers, random, exponent);
      ASSERT_TRUE(equals_reference(buffers, ordinary_step(of.rule)))
          << "exponent " << exponent << " " << text_of(of);
    }
  });
}

// HEADRACE_TEST_TILES sets how many.
TEST_F(CudaUpdate, GivesTheReferencesBitsForRandomTiles) {
  const char* const given = std::getenv("HEADRACE_TEST_TILES");
  const std::uint64_t tiles = given != nullptr ? std::strtoull(given, nullptr, 10) : 1000;
  std::mt19937_64 random(kSeed + 6);
  std::vector<UpdateCase> cases;
  for_every_case([&](const UpdateCase& of) { cases.push_back(of); });
  for (std::uint64_t tile = 0; tile < tiles; ++tile) {
    UpdateCase of = cases[random() % cases.size()];
    of.elements = random() % 1500;
    of.offset = random() % 16;
    of.first_element = random() % 4096 * kScaleElements;
    UpdateBuffers buffers(of);
    fill(buffers, random, random() % 4);
    const auto t = static_cast<std::uint64_t>(1) << random() % 20;
    ASSERT_TRUE(equals_reference(buffers, ordinary_step(of.rule, t)))
        << text_of(of) << " tile " << tile << " seed " << kSeed + 6;
  }
}
}  // namespace
}  // namespace headrace::optimizer_cpu
