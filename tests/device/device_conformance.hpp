// SPDX-License-Identifier: Apache-2.0
// device_conformance.hpp: what every Device must do. A backend instantiates it with a way to make
// one.
//
// The suite never touches device memory from the CPU: what it wants to see it copies to the host
// and waits for.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device_bytes.hpp"
#include "headrace/device.hpp"
#include "headrace/error.hpp"

namespace headrace::device {
struct DeviceMaker {
  std::string name;
  std::function<std::shared_ptr<Device>()> make;
};

inline Code code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

class DeviceConformance : public testing::TestWithParam<DeviceMaker> {
 protected:
  void SetUp() override { device_ = GetParam().make(); }

  std::vector<std::uint32_t> read(Stream stream, const void* data, std::size_t words) {
    std::vector<std::uint32_t> host(words);
    device_->copy(stream, host.data(), data, words * 4);
    device_->synchronize(stream);
    return host;
  }

  std::shared_ptr<Device> device_;
};

TEST_P(DeviceConformance, GivesAlignedZeroedMemory) {
  for (const std::size_t size_bytes : {1ul, 256ul, 4096ul, 2ul << 20, (2ul << 20) + 4, 5ul << 20}) {
    DeviceBytes bytes(*device_, size_bytes);
    ASSERT_NE(bytes.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % 256, 0u);
    const std::size_t words = size_bytes / 4;
    EXPECT_EQ(read({}, bytes.data(), words), std::vector<std::uint32_t>(words, 0)) << size_bytes;
  }
}

TEST_P(DeviceConformance, SaysNoToMoreMemoryThanThereIs) {
  EXPECT_EQ(device_->allocate(SIZE_MAX - 4096), nullptr);
  EXPECT_EQ(device_->allocate(std::size_t{1} << 60), nullptr);
  device_->deallocate(nullptr, 0);
}

TEST_P(DeviceConformance, CopiesInTheOrderQueued) {
  const Stream stream = device_->create_stream();
  constexpr std::size_t kWords = 1000;
  DeviceBytes a(*device_, kWords * 4), b(*device_, kWords * 4);
  std::vector<std::vector<std::uint32_t>> rounds(20), back(20);
  for (std::uint32_t round = 0; round < rounds.size(); ++round) {
    rounds[round].assign(kWords, round + 1);
    back[round].resize(kWords);
    device_->copy(stream, a.data(), rounds[round].data(), kWords * 4);
    device_->copy(stream, b.data(), a.data(), kWords * 4);
    device_->copy(stream, back[round].data(), b.data(), kWords * 4);
  }
  device_->synchronize(stream);
  EXPECT_EQ(back, rounds);
  device_->destroy_stream(stream);
}

TEST_P(DeviceConformance, FillsWithZeroInTheOrderQueued) {
  const Stream stream = device_->create_stream();
  const std::vector<std::uint32_t> ones(10, 1);
  std::vector<std::uint32_t> back(10);
  DeviceBytes bytes(*device_, 40);
  device_->copy(stream, bytes.data(), ones.data(), 40);
  device_->fill_zero(stream, static_cast<char*>(bytes.data()) + 8, 12);
  device_->fill_zero(stream, bytes.data(), 0);
  device_->copy(stream, back.data(), bytes.data(), 40);
  device_->synchronize(stream);
  EXPECT_EQ(back, (std::vector<std::uint32_t>{1, 1, 0, 0, 0, 1, 1, 1, 1, 1}));
  device_->destroy_stream(stream);
}

TEST_P(DeviceConformance, HasADefaultStream) {
  DeviceBytes bytes(*device_, 4);
  const std::uint32_t value = 77;
  device_->copy(Stream{0}, bytes.data(), &value, 4);
  EXPECT_EQ(read(Stream{0}, bytes.data(), 1), std::vector<std::uint32_t>{77});
}

TEST_P(DeviceConformance, GivesEveryStreamAHandleOfItsOwn) {
  const Stream a = device_->create_stream();
  const Stream b = device_->create_stream();
  EXPECT_NE(a.handle, b.handle);
  EXPECT_NE(a.handle, 0u);
  EXPECT_NE(b.handle, 0u);
  device_->destroy_stream(a);
  device_->destroy_stream(b);
}

TEST_P(DeviceConformance, OrdersStreamsByEvents) {
  const Stream a = device_->create_stream();
  const Stream b = device_->create_stream();
  constexpr std::size_t kWords = 100;
  DeviceBytes shared(*device_, kWords * 4);
  std::vector<std::vector<std::uint32_t>> rounds(30), back(30);
  for (std::uint32_t round = 0; round < rounds.size(); ++round) {
    rounds[round].assign(kWords, round + 1);
    back[round].resize(kWords);
    device_->copy(a, shared.data(), rounds[round].data(), kWords * 4);
    device_->wait(b, device_->record(a));
    device_->copy(b, back[round].data(), shared.data(), kWords * 4);
    device_->wait(a, device_->record(b));  // or a would write the next round under b
  }
  device_->synchronize(b);
  EXPECT_EQ(back, rounds);
  device_->destroy_stream(a);
  device_->destroy_stream(b);
}

TEST_P(DeviceConformance, LetsManyStreamsWaitForOneEventAndOneStreamForMany) {
  constexpr int kStreams = 4;
  std::vector<Stream> streams(kStreams);
  for (Stream& stream : streams) stream = device_->create_stream();
  DeviceBytes shared(*device_, 4), copies(*device_, kStreams * 4);
  const std::uint32_t value = 5;
  device_->copy({}, shared.data(), &value, 4);
  const Event ready = device_->record({});
  for (int i = 0; i < kStreams; ++i) {
    device_->wait(streams[i], ready);
    device_->copy(streams[i], static_cast<char*>(copies.data()) + 4 * i, shared.data(), 4);
  }
  for (const Stream stream : streams) device_->wait({}, device_->record(stream));
  EXPECT_EQ(read({}, copies.data(), kStreams), std::vector<std::uint32_t>(kStreams, 5));
  for (const Stream stream : streams) device_->destroy_stream(stream);
}

TEST_P(DeviceConformance, RefusesToWaitForAnEventNeverRecorded) {
  EXPECT_EQ(code_of([&] { device_->wait({}, Event{0}); }), Code::kWrongState);
  EXPECT_EQ(code_of([&] { device_->wait({}, Event{1}); }), Code::kWrongState);
  const Event event = device_->record({});
  EXPECT_EQ(code_of([&] { device_->wait({}, event); }), Code::kOk);
  EXPECT_EQ(code_of([&] { device_->wait({}, Event{event.id + 1}); }), Code::kWrongState);
  device_->synchronize({});
}

TEST_P(DeviceConformance, RefusesWorkForAStreamThatIsGone) {
  const Stream stream = device_->create_stream();
  device_->destroy_stream(stream);
  std::uint32_t value = 0;
  EXPECT_EQ(code_of([&] { device_->copy(stream, &value, &value, 4); }), Code::kWrongState);
  EXPECT_EQ(code_of([&] { (void)device_->record(stream); }), Code::kWrongState);
  EXPECT_EQ(code_of([&] { device_->synchronize(stream); }), Code::kWrongState);
}

TEST_P(DeviceConformance, NotifiesInStreamOrder) {
  struct Log {
    std::vector<int> entries;  // the device's thread until synchronize()
  } log;
  struct Entry {
    Log* log;
    int number;
  };
  std::vector<Entry> entries;
  for (int i = 0; i < 50; ++i) entries.push_back({&log, i});
  std::vector<int> expected;
  for (Entry& entry : entries) {
    expected.push_back(entry.number);
    device_->notify(
        {},
        [](void* context) noexcept {
          const auto* self = static_cast<Entry*>(context);
          self->log->entries.push_back(self->number);
        },
        &entry);
  }
  device_->synchronize({});
  EXPECT_EQ(log.entries, expected);
}

TEST_P(DeviceConformance, NotifiesAfterTheWorkBeforeIt) {
  const Stream stream = device_->create_stream();
  DeviceBytes bytes(*device_, 4);
  struct Seen {
    std::uint32_t host = 0;
    std::uint32_t at_notify = 0;
  } seen;
  const std::uint32_t value = 42;
  device_->copy(stream, bytes.data(), &value, 4);
  device_->copy(stream, &seen.host, bytes.data(), 4);
  device_->notify(
      stream,
      [](void* context) noexcept {
        auto* s = static_cast<Seen*>(context);
        s->at_notify = s->host;
      },
      &seen);
  device_->synchronize(stream);
  EXPECT_EQ(seen.at_notify, 42u);
  device_->destroy_stream(stream);
}

TEST_P(DeviceConformance, AccumulatesGradientsInStreamOrder) {
  const Stream stream = device_->create_stream();
  constexpr std::uint64_t kElements = 1000;
  std::vector<float> gradient(kElements);
  for (std::uint64_t i = 0; i < kElements; ++i) gradient[i] = static_cast<float>(i % 17) - 8.0f;
  DeviceBytes source(*device_, kElements * 4);
  std::vector<float> sum(kElements, 1e9f);
  GradientPiece first[3], second[3];
  Accumulation work{.source = source.data(),
                    .source_dtype = DType::kF32,
                    .sum = sum.data(),
                    .sum_dtype = DType::kF32,
                    .elements = kElements,
                    .overwrite = true,
                    .pieces = first,
                    .first_piece_elements = 100,
                    .piece_elements = 500};
  device_->copy(stream, source.data(), gradient.data(), kElements * 4);
  device_->accumulate(stream, work);
  work.overwrite = false;
  work.pieces = second;
  device_->accumulate(stream, work);
  device_->synchronize(stream);
  double squares[3] = {};
  for (std::uint64_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(sum[i], 2 * gradient[i]) << i;
    squares[i < 100   ? 0
            : i < 600 ? 1
                      : 2] +=
        static_cast<double>(gradient[i]) * gradient[i];  // small integers: exact
  }
  for (int piece = 0; piece < 3; ++piece) {
    EXPECT_EQ(first[piece].sum_squares, squares[piece]);
    EXPECT_EQ(second[piece].sum_squares, 4 * squares[piece]);
    EXPECT_EQ(first[piece].non_finite, 0u);
  }
  device_->destroy_stream(stream);
}

TEST_P(DeviceConformance, FinishesWhatIsQueuedBeforeItGoes) {
  std::uint32_t host = 0;
  const std::uint32_t value = 9;
  {
    DeviceBytes bytes(*device_, 4);
    const Stream stream = device_->create_stream();
    device_->copy(stream, bytes.data(), &value, 4);
    device_->copy(stream, &host, bytes.data(), 4);
    device_->destroy_stream(stream);
    EXPECT_EQ(host, 9u);
  }
  int notified = 0;
  device_->notify(
      {}, [](void* context) noexcept { ++*static_cast<int*>(context); }, &notified);
  device_.reset();
  EXPECT_EQ(notified, 1);
}
}  // namespace headrace::device
