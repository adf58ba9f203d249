// SPDX-License-Identifier: Apache-2.0
#include "bench_copy/mover.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <latch>

#include "base/units.hpp"
#include "program/progress.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
// Work that is queued cannot be called back: a signal is looked for now and then while queueing.
constexpr std::uint64_t kBetweenLooks = 64;

std::uint64_t pieces_of(const Transfer& transfer) {
  return base::ceil_div(transfer.bytes / 2, TransferMover::kPieceElements);
}
}  // namespace

TransferMover::TransferMover(Device& device, std::uint64_t buffer_bytes, std::uint64_t region_bytes,
                             std::uint64_t seed)
    : device_(device), region_bytes_(region_bytes), seed_(seed), buffers_(device, buffer_bytes) {
  to_device_ = device.create_stream();
  to_host_ = device.create_stream();
}

TransferMover::~TransferMover() {
  // Waits for what an error has left under way.
  device_.destroy_stream(to_device_);
  device_.destroy_stream(to_host_);
}

std::uint64_t TransferMover::most(const Transfer& transfer) {
  return transfer.kind == Transfers::kAdded ? base::kBlockElements : ~std::uint64_t{0};
}

TransferMover::Region TransferMover::region_of(const Transfer& transfer,
                                               std::uint64_t count) const {
  const std::uint64_t buffer = buffers_.host(Way::kToHost, HostMemory::kPinned).size();
  // A sum in f32 is twice as long as its gradient.
  const std::uint64_t most = transfer.kind == Transfers::kAdded ? buffer / 2 : buffer;
  const std::uint64_t bytes = std::clamp(region_bytes_, transfer.bytes, most);
  const std::uint64_t places = bytes / transfer.bytes;
  return {.places = places, .used = std::min(places, count)};
}

void TransferMover::copy_now(void* target, const void* source, std::uint64_t bytes) {
  device_.copy(to_device_, target, source, bytes);
  device_.synchronize(to_device_);
}

void TransferMover::prepare(const Transfer& transfer, std::uint64_t count) {
  const std::uint64_t bytes = region_of(transfer, count).used * transfer.bytes;
  const auto sent = buffers_.host(Way::kToDevice, transfer.memory).first(bytes);
  const auto pinned = buffers_.host(Way::kToDevice, HostMemory::kPinned).first(bytes);
  const bool gradients = transfer.kind != Transfers::kCopies;
  if (transfer.way != Way::kToDevice) {
    to_host_pattern_ = {.seed = seed_ + (++prepared_ << 40), .gradients = gradients};
    fill(pinned, to_host_pattern_);
    copy_now(buffers_.device(Way::kToHost), pinned.data(), bytes);
  }
  if (transfer.way != Way::kToHost) {
    to_device_pattern_ = {.seed = seed_ + (++prepared_ << 40)};
    fill(sent, to_device_pattern_);
  }
  if (!gradients) return;
  pieces_.assign(region_of(transfer, count).places * pieces_of(transfer), {.non_finite = 1});
  if (transfer.kind == Transfers::kAdded)
    std::memset(buffers_.host(Way::kToHost, HostMemory::kPinned).data(), 0, 2 * bytes);
}

void TransferMover::copy_all(const Transfer& transfer, Way way, std::uint64_t count) {
  std::byte* const host = buffers_.host(way, transfer.memory).data();
  std::byte* const device = buffers_.device(way);
  const std::uint64_t places = region_of(transfer, count).places;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i % kBetweenLooks == 0) check_signal();
    const std::uint64_t at = i % places * transfer.bytes;
    if (way == Way::kToDevice) {
      device_.copy(to_device_, device + at, host + at, transfer.bytes);
    } else {
      device_.copy(to_host_, host + at, device + at, transfer.bytes);
    }
  }
  device_.synchronize(stream(way));
}

void TransferMover::land_all(const Transfer& transfer, std::uint64_t count) {
  const bool added = transfer.kind == Transfers::kAdded;
  std::byte* const sums = buffers_.host(Way::kToHost, HostMemory::kPinned).data();
  const std::uint64_t places = region_of(transfer, count).places;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i % kBetweenLooks == 0) check_signal();
    const std::uint64_t place = i % places, at = place * transfer.bytes;
    const Accumulation work{.source = buffers_.device(Way::kToHost) + at,
                            .sum = sums + (added ? 2 * at : at),
                            .sum_dtype = added ? DType::kF32 : DType::kBf16,
                            .elements = transfer.bytes / 2,
                            .overwrite = !added,
                            .pieces = pieces_.data() + place * pieces_of(transfer),
                            .first_piece_elements = kPieceElements,
                            .piece_elements = kPieceElements};
    device_.accumulate(to_host_, work);
  }
  device_.synchronize(to_host_);
}

double TransferMover::run(const Transfer& transfer, std::uint64_t count) {
  if (transfer.way != Way::kBoth) {
    const Stopwatch watch;
    transfer.kind == Transfers::kCopies ? copy_all(transfer, transfer.way, count)
                                        : land_all(transfer, count);
    return watch.seconds();
  }
  std::latch start(2);
  std::future<void> other = std::async(std::launch::async, [&] {
    start.arrive_and_wait();
    copy_all(transfer, Way::kToHost, count);
  });
  start.arrive_and_wait();
  const Stopwatch watch;
  copy_all(transfer, Way::kToDevice, count);
  other.get();
  return watch.seconds();
}

std::string TransferMover::difference(const Transfer& transfer, std::uint64_t count) {
  const std::uint64_t bytes = region_of(transfer, count).used * transfer.bytes;
  verified_bytes_ += bytes * (transfer.way == Way::kBoth ? 2 : 1);
  const auto differing = [&](HostMemory memory, const SentPattern& pattern, const char* where) {
    const auto at = first_difference(buffers_.host(Way::kToHost, memory).first(bytes), pattern);
    return at ? fmt::format("{}: byte {} {}", text_of(transfer), *at, where) : std::string();
  };
  std::string text;
  if (transfer.kind == Transfers::kAdded) {
    text = sums_difference(transfer, count);
  } else if (transfer.way != Way::kToDevice) {
    text = differing(transfer.memory, to_host_pattern_, "in host memory");
  }
  for (std::uint64_t place = 0; transfer.kind == Transfers::kWritten && text.empty() &&
                                place < region_of(transfer, count).used;
       ++place)
    text = pieces_difference(transfer, place, 1);
  if (transfer.way == Way::kToHost || !text.empty()) return text;
  // The bytes that came to the host have been compared: their buffer now takes the device's.
  const auto back = buffers_.host(Way::kToHost, HostMemory::kPinned);
  copy_now(back.data(), buffers_.device(Way::kToDevice), bytes);
  return differing(HostMemory::kPinned, to_device_pattern_, "on the device");
}

std::string TransferMover::sums_difference(const Transfer& transfer, std::uint64_t count) {
  const auto* const sums =
      reinterpret_cast<const float*>(buffers_.host(Way::kToHost, HostMemory::kPinned).data());
  const Region region = region_of(transfer, count);
  const std::uint64_t elements = transfer.bytes / 2;
  for (std::uint64_t place = 0; place < region.used; ++place) {
    const auto times =
        static_cast<std::uint32_t>(count / region.places + (place < count % region.places ? 1 : 0));
    const std::uint64_t first = place * elements;
    if (const auto at = first_wrong_sum({sums + first, elements}, to_host_pattern_, first, times))
      return fmt::format("{}: sum {} in host memory", text_of(transfer), first + *at);
    if (std::string text = pieces_difference(transfer, place, times); !text.empty()) return text;
  }
  return "";
}

std::string TransferMover::pieces_difference(const Transfer& transfer, std::uint64_t place,
                                             std::uint32_t times) const {
  const std::uint64_t elements = transfer.bytes / 2;
  for (std::uint64_t i = 0; i < pieces_of(transfer); ++i) {
    const std::uint64_t first = i * kPieceElements;
    const double expected = sum_squares(to_host_pattern_, place * elements + first,
                                        std::min(kPieceElements, elements - first), times);
    const GradientPiece& piece = pieces_[place * pieces_of(transfer) + i];
    // The fixed order of a piece rounds otherwise than this one.
    if (piece.non_finite != 0 || !(std::abs(piece.sum_squares / expected - 1) < 1e-5))
      return fmt::format("{}: the sum of squares of piece {}", text_of(transfer), i);
  }
  return "";
}
}  // namespace headrace::tools
