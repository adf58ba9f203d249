// SPDX-License-Identifier: Apache-2.0
// device_cuda_test.cpp: the CUDA device is a device, and gradients land in the bits that the CPU's
// pass gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "device/cuda_under_test.hpp"
#include "device/device_conformance.hpp"
#include "device/packing.hpp"
#include "kernels/gradient_pass.hpp"
#include "kernels/packing.hpp"

namespace headrace::device {
namespace {
std::vector<DeviceMaker> makers() {
  std::vector<DeviceMaker> makers;
  for (const std::uint64_t seed : {1, 2, 3}) {
    for (const std::uint32_t queues : hardware_queues_under_test()) {
      makers.push_back({"Cuda" + std::to_string(seed) + "Queues" + std::to_string(queues),
                        [=] { return make_cuda_under_test(seed, {}, queues); }});
    }
  }
  return makers;
}
INSTANTIATE_TEST_SUITE_P(DeviceCuda, DeviceConformance, testing::ValuesIn(makers()),
                         [](const auto& info) { return info.param.name; });

constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

// Any bits at all, denormals, infinities and NaNs among them, most of them of usual size.
std::vector<std::byte> random_values(DType dtype, std::uint64_t elements, std::mt19937_64& random,
                                     bool finite) {
  std::vector<std::byte> bytes(elements * size_bytes(dtype));
  for (std::uint64_t i = 0; i < elements; ++i) {
    auto bits = static_cast<std::uint32_t>(random());
    const std::uint32_t exponent = dtype == DType::kF16 ? 0x7c00u : 0x7f80u;
    if (finite || random() % 4 != 0) {  // an exponent of the middle
      const std::uint32_t half = (bits & ~exponent & 0xffffu) | (exponent / 2 & exponent);
      bits = dtype == DType::kF32 ? (half << 16) | (bits >> 16) : half;
    }
    std::memcpy(bytes.data() + i * size_bytes(dtype), &bits, size_bytes(dtype));
  }
  return bytes;
}

struct Case {
  std::uint64_t elements, first_piece, piece;
};

// Whole pages: of those that are pinned in part only some drivers know what to do.
struct Pages {
  explicit Pages(std::size_t size_bytes)
      : bytes(static_cast<std::byte*>(std::aligned_alloc(4096, base::align_up(size_bytes, 4096))),
              base::align_up(size_bytes, 4096)) {}
  ~Pages() { std::free(bytes.data()); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::span<std::byte> bytes;
};

class Landing : public testing::TestWithParam<std::uint32_t> {
 protected:
  // The same gradients through the device and on the host; everything must be equal.
  void compare(DType source, DType sum, const Case& c, int arrivals, bool finite, bool pinned,
               Stream stream) {
    SCOPED_TRACE(std::string(name_of(source)) + " into " + name_of(sum) + ", " +
                 std::to_string(c.elements) + " elements, pieces of " +
                 std::to_string(c.first_piece) + " and " + std::to_string(c.piece) +
                 (pinned ? ", pinned" : "") + ", seed " + std::to_string(seed_));
    const std::uint64_t pieces = c.piece == 0 || c.elements <= c.first_piece
                                     ? 1
                                     : 1 + (c.elements - c.first_piece + c.piece - 1) / c.piece;
    const std::uint64_t sum_bytes = c.elements * size_bytes(sum);
    std::vector<std::byte> expected(sum_bytes, std::byte{0x5a});
    const Pages memory(sum_bytes);
    const std::span<std::byte> got = memory.bytes.first(sum_bytes);
    std::ranges::copy(expected, got.begin());
    std::vector<GradientPiece> expected_pieces(pieces), got_pieces(pieces);
    if (pinned) device_->pin(memory.bytes.data(), memory.bytes.size());
    std::vector<std::vector<std::byte>> gradients;
    for (int arrival = 0; arrival < arrivals; ++arrival)
      gradients.push_back(random_values(source, c.elements, random_, finite));
    for (int arrival = 0; arrival < arrivals; ++arrival) {
      const auto& gradient = gradients[static_cast<std::size_t>(arrival)];
      DeviceBytes on_device(*device_, gradient.size());
      device_->copy(stream, on_device.data(), gradient.data(), gradient.size());
      Accumulation work{.source = gradient.data(),
                        .source_dtype = source,
                        .sum = expected.data(),
                        .sum_dtype = sum,
                        .elements = c.elements,
                        .overwrite = arrival == 0,
                        .pieces = expected_pieces.data(),
                        .first_piece_elements = c.first_piece,
                        .piece_elements = c.piece};
      kernels::accumulate_on_host(work);
      work.source = on_device.data();
      work.sum = got.data();
      work.pieces = got_pieces.data();
      device_->accumulate(stream, work);
      // Read when the stream is here: what comes later may write over it.
      device_->fill_zero(stream, on_device.data(), gradient.size());
    }
    device_->synchronize(stream);
    if (pinned) device_->unpin(memory.bytes.data(), memory.bytes.size());
    ASSERT_EQ(std::memcmp(got.data(), expected.data(), sum_bytes), 0);
    for (std::uint64_t p = 0; p < pieces; ++p) {
      ASSERT_EQ(std::bit_cast<std::uint64_t>(got_pieces[p].sum_squares),
                std::bit_cast<std::uint64_t>(expected_pieces[p].sum_squares))
          << "piece " << p;
      ASSERT_EQ(got_pieces[p].non_finite, expected_pieces[p].non_finite) << "piece " << p;
    }
  }

  const std::uint64_t seed_ = 20;
  std::mt19937_64 random_{seed_};
  std::shared_ptr<Device> device_ = make_cuda_under_test(seed_, {}, GetParam());
};
INSTANTIATE_TEST_SUITE_P(Queues, Landing, testing::ValuesIn(hardware_queues_under_test()));

TEST_P(Landing, GivesTheBitsOfTheHostsPassForAllDtypes) {
  const Case cases[] = {{1, 0, 0},          {15, 4, 7},        {16, 16, 16},         {17, 1, 100},
                        {4097, 2048, 2048}, {5000, 904, 4096}, {70001, 65536, 65536}};
  for (const DType source : kDTypes) {
    for (const DType sum : kDTypes) {
      for (const Case& c : cases) {
        for (const bool finite : {true, false})
          compare(source, sum, c, 1 + static_cast<int>(c.elements % 3), finite, true, {});
      }
    }
  }
}

TEST_P(Landing, GivesTheSameWhereTheSumIsNotPinned) {
  for (const DType sum : kDTypes)
    compare(DType::kBf16, sum, {70001, 50, 65536}, 2, true, false, {});
}

// More than all slots hold, cut where pieces end.
TEST_P(Landing, TakesGradientsOfAnySizeInStretches) {
  const Stream stream = make_foreign_stream();
  compare(DType::kF32, DType::kBf16, {7'000'001, 1, 65536}, 1, true, true, stream);
#if !defined(__SANITIZE_THREAD__)  // under which each takes a minute
  compare(DType::kBf16, DType::kBf16, {14'000'123, 11'111, 65536}, 1, true, true, stream);
  compare(DType::kBf16, DType::kF32, {14'000'123, 65536, 65536}, 2, true, true, stream);
#endif
}

TEST_P(Landing, RefusesPiecesLargerThanASlot) {
  const std::uint64_t elements = 5'000'000;
  DeviceBytes gradient(*device_, elements * 2);
  std::vector<std::uint16_t> sum(elements);
  GradientPiece piece;
  const Accumulation work{.source = gradient.data(),
                          .sum = sum.data(),
                          .elements = elements,
                          .pieces = &piece,
                          .piece_elements = elements};
  EXPECT_EQ(code_of([&] { device_->accumulate({}, work); }), Code::kUnsupported);
  Accumulation without = work;
  without.pieces = nullptr;
  EXPECT_EQ(code_of([&] { device_->accumulate({}, without); }), Code::kOk);
  device_->synchronize({});
}

// Behind one another though from several streams, each ordered by an event alone.
TEST_P(Landing, AddsInTheOrderOfTheCallsAcrossStreams) {
  constexpr std::uint64_t kElements = 200'000;
  const std::vector<Stream> streams = {device_->create_stream(), make_foreign_stream(), {}};
  const Pages memory(kElements * 4);
  auto* const sum = reinterpret_cast<float*>(memory.bytes.data());
  std::vector<float> expected(kElements);
  std::vector<GradientPiece> pieces(4), expected_pieces(4);
  device_->pin(memory.bytes.data(), memory.bytes.size());
  std::vector<std::unique_ptr<DeviceBytes>> held;
  std::vector<std::vector<std::byte>> gradients;
  for (std::size_t i = 0; i < 12; ++i) {
    gradients.push_back(random_values(DType::kF32, kElements, random_, true));
    held.push_back(std::make_unique<DeviceBytes>(*device_, kElements * 4));
  }
  for (std::size_t i = 0; i < 12; ++i) {
    const Stream stream = streams[i % 3];
    if (i != 0) device_->wait(stream, device_->record(streams[(i - 1) % 3]));
    device_->copy(stream, held[i]->data(), gradients[i].data(), kElements * 4);
    Accumulation work{.source = gradients[i].data(),
                      .source_dtype = DType::kF32,
                      .sum = expected.data(),
                      .sum_dtype = DType::kF32,
                      .elements = kElements,
                      .overwrite = i % 5 == 0,
                      .pieces = expected_pieces.data(),
                      .first_piece_elements = 65536,
                      .piece_elements = 65536};
    kernels::accumulate_on_host(work);
    work.source = held[i]->data();
    work.sum = sum;
    work.pieces = pieces.data();
    device_->accumulate(stream, work);
  }
  for (const Stream stream : streams) device_->synchronize(stream);
  device_->unpin(memory.bytes.data(), memory.bytes.size());
  EXPECT_EQ(std::memcmp(sum, expected.data(), kElements * 4), 0);
  for (int p = 0; p < 4; ++p) EXPECT_EQ(pieces[p].sum_squares, expected_pieces[p].sum_squares);
}

TEST_P(Landing, NotifiesBehindWhatIsStillToLand) {
  constexpr std::uint64_t kElements = 1'000'000;
  DeviceBytes gradient(*device_, kElements * 2);
  struct Seen {
    std::vector<float> sum = std::vector<float>(kElements, 1);
    float last = 7;
  } seen;
  const Accumulation work{.source = gradient.data(),
                          .sum = seen.sum.data(),
                          .sum_dtype = DType::kF32,
                          .elements = kElements};
  device_->accumulate({}, work);
  device_->notify(
      {},
      [](void* context) noexcept {
        auto* s = static_cast<Seen*>(context);
        s->last = s->sum.back();
      },
      &seen);
  device_->synchronize({});
  EXPECT_EQ(seen.last, 0);
}

TEST_P(Landing, SumsInDeviceMemoryHaveTheSameBits) {
  constexpr std::uint64_t kElements = 10'001;
  for (const DType source : kDTypes) {
    for (const DType sum : kDTypes) {
      DeviceBytes a(*device_, kElements * 4), total(*device_, kElements * 4);
      std::vector<std::byte> expected(kElements * size_bytes(sum)), got = expected;
      for (int arrival = 0; arrival < 3; ++arrival) {
        const auto gradient = random_values(source, kElements, random_, false);
        device_->copy({}, a.data(), gradient.data(), gradient.size());
        Accumulation work{.source = gradient.data(),
                          .source_dtype = source,
                          .sum = expected.data(),
                          .sum_dtype = sum,
                          .elements = kElements,
                          .overwrite = arrival == 0};
        kernels::accumulate_on_host(work);
        work.source = a.data();
        work.sum = total.data();
        device_->accumulate({}, work);
        device_->synchronize({});
      }
      device_->copy({}, got.data(), total.data(), got.size());
      device_->synchronize({});
      EXPECT_EQ(got, expected) << name_of(source) << " into " << name_of(sum);
    }
  }
}

TEST_P(Landing, CopiesWhatLandedToWhoeverAsksBehindIt) {
  constexpr std::uint64_t kElements = 300'000;
  DeviceBytes gradient(*device_, kElements * 4), again(*device_, kElements * 4);
  const auto values = random_values(DType::kF32, kElements, random_, true);
  const Pages memory(values.size());
  const std::span<std::byte> sum = memory.bytes;
  std::vector<std::byte> back(values.size());
  device_->pin(sum.data(), sum.size());
  device_->copy({}, gradient.data(), values.data(), values.size());
  device_->accumulate({}, {.source = gradient.data(),
                           .source_dtype = DType::kF32,
                           .sum = sum.data(),
                           .sum_dtype = DType::kF32,
                           .elements = kElements});
  device_->copy({}, again.data(), sum.data(), values.size());
  device_->copy({}, back.data(), again.data(), back.size());
  device_->synchronize({});
  device_->unpin(sum.data(), sum.size());
  EXPECT_EQ(back, values);
}

// What a rank on a GPU packs, one on the CPU unpacks, and the other way round.
TEST(CudaPacking, GivesTheCpusBits) {
  constexpr std::uint64_t kElements = 70'001, kSeed = 31;
  const std::shared_ptr<Device> device = make_cuda_under_test(kSeed, {}, 2);
  const Packer packer(*device);
  std::mt19937_64 random(kSeed);
  for (const Packing packing : {Packing::kInt8, Packing::kInt4}) {
    for (const DType dtype : kDTypes) {
      const std::uint64_t bytes = kElements * size_bytes(dtype);
      const std::uint64_t codes = kernels::code_bytes(packing, kElements);
      const std::uint64_t scales = (kElements + 255) / 256;
      std::vector<std::byte> values = random_values(dtype, kElements, random, false);
      std::vector<std::byte> expected(codes + scales), packed(codes + scales), back(bytes),
          expected_back(bytes);
      const auto work_at = [&](void* at, void* to) {
        PackWork work{.packing = packing, .dtype = dtype, .values = at, .elements = kElements};
        work.codes = static_cast<std::uint8_t*>(to);
        work.scales = work.codes + codes;
        work.random_key = 5;
        work.first_element = 512;
        return work;
      };
      kernels::pack_on_host(work_at(values.data(), expected.data()));
      kernels::unpack_on_host(work_at(expected_back.data(), expected.data()));
      DeviceBytes there(*device, bytes), codes_there(*device, codes + scales);
      device->copy({}, there.data(), values.data(), bytes);
      packer.pack({}, work_at(there.data(), codes_there.data()));
      device->fill_zero({}, there.data(), bytes);
      packer.unpack({}, work_at(there.data(), codes_there.data()));
      device->copy({}, packed.data(), codes_there.data(), packed.size());
      device->copy({}, back.data(), there.data(), bytes);
      device->synchronize({});
      EXPECT_EQ(packed, expected) << name_of(dtype);
      EXPECT_EQ(back, expected_back) << name_of(dtype);
    }
  }
}

TEST(CudaFactsOfTheGpu, NameIt) {
  const auto device = make_cuda_under_test(1);
  const CudaFacts facts = cuda_facts(CudaLook::kWithFreeMemory);
  ASSERT_FALSE(facts.gpus.empty());
  EXPECT_EQ(facts.missing, "");
  EXPECT_TRUE(facts.built);
  const CudaGpu& gpu = facts.gpus[0];
  EXPECT_NE(std::string(device->name()).find(gpu.name), std::string::npos);
  EXPECT_TRUE(gpu.served);
  EXPECT_GT(gpu.free_bytes, 0u);
  EXPECT_LE(gpu.free_bytes, gpu.memory_bytes);
  EXPECT_GE(facts.driver_version, facts.runtime_version);
  EXPECT_EQ(code_of([] { (void)make_cuda_device({.ordinal = 1000, .allocator = {}}); }),
            Code::kUnsupported);
}
}  // namespace
}  // namespace headrace::device
