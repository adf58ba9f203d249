// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/state.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "bench_optimizer/values.hpp"
#include "headrace/error.hpp"
#include "kernels/number_formats.hpp"

namespace headrace::tools {
namespace {
using base::kChunkElements;
using base::kScaleElements;

// Streams whose addresses differ by a large power of two alone contend for the same places in the
// first-level cache: an update and the ceiling over them take up to 1.6 times as long.
constexpr std::uint64_t kApart = 4096 + 256;

constexpr std::uint64_t kSampleElements = 4096;  // of the first chunk: what checks look at

optimizer_cpu::UpdateStep step_of(const Case& of) {
  Hyperparameters values;
  if (of.rule == OptimizerRule::kSgdMomentum) values.momentum = 0.9f;
  if (of.rule == OptimizerRule::kLion) values.beta2 = 0.99f;
  // Small, so that weights stay what they are in a million passes.
  auto step = optimizer_cpu::make_update_step(of.rule, values, 1e-6, 1000, 1.0);
  step.random_key = optimizer_cpu::random_key(1, 0, 1000);
  return step;
}
}  // namespace

std::vector<Stream> streams_of(const std::vector<Case>& cases) {
  std::vector<Stream> all;
  for (const Case& of : cases) {
    for (const Stream& stream : streams_of(of)) {
      if (std::ranges::find(all, stream) == all.end()) all.push_back(stream);
    }
  }
  return all;
}

std::uint64_t StateMemory::bytes_of(const std::vector<Stream>& streams, std::uint64_t elements) {
  std::uint64_t sum = 0;
  for (const Stream& stream : streams)
    sum += base::align_up(stream.bytes(elements), base::kHugePage) + kApart;
  return sum;
}

StateMemory::StateMemory(std::vector<Stream> streams, std::uint64_t elements, Gang& gang,
                         std::uint32_t threads)
    : streams_(std::move(streams)),
      elements_(elements),
      arena_(bytes_of(streams_, elements), threads) {
  std::byte* at = arena_.bytes().data();
  for (const Stream& stream : streams_) {
    begin_.push_back(at);
    at += base::align_up(stream.bytes(elements), base::kHugePage) + kApart;
  }
  for (const Stream& stream : streams_) {
    const std::span<std::byte> first = chunk(stream, 0);
    write_values(stream, std::min(elements, base::kChunkElements), first.data());
    gang.run(threads, chunks() - 1, [&](std::uint64_t i) {
      const std::span<std::byte> other = chunk(stream, i + 1);
      std::memcpy(other.data(), first.data(), other.size());
    });
  }
}

std::uint64_t StateMemory::chunks() const noexcept {
  return base::ceil_div(elements_, base::kChunkElements);
}

std::byte* StateMemory::data(const Stream& stream) const {
  const auto found = std::ranges::find(streams_, stream);
  HEADRACE_CHECK(found != streams_.end(), "every case's streams were asked for");
  return begin_[static_cast<std::size_t>(found - streams_.begin())];
}

std::span<std::byte> StateMemory::chunk(const Stream& stream, std::uint64_t chunk) const {
  const std::uint64_t first = chunk * base::kChunkElements;
  const std::uint64_t end = std::min(first + base::kChunkElements, elements_);
  return {data(stream) + stream.bytes(first), stream.bytes(end - first)};
}

UpdatePass::UpdatePass(const Case& of, const StateMemory& memory)
    : case_(of),
      memory_(memory),
      segment_{.parameter = 0, .first_element = 0, .elements = memory.elements()},
      parameter_{},
      step_(step_of(of)) {
  tiles::TileLayout& tile = pass_.tile;
  tile.elements = memory.elements();
  tile.kind = of.weight;
  tile.weight_bytes_per_element = weight_bytes(of.weight);
  tile.arithmetic = of.arithmetic();
  tile.codec = of.moments;
  tile.has_state = true;
  update_.segments = {&segment_, 1};
  update_.received = &received_;
  update_.steps = &step_;
  update_.parameters = &parameter_;
  update_.gradient_dtype = of.gradient;
  update_.update = kernels::kernels_of(of.simd).update;
  pass_.update = &update_;
  place_streams();
}

// Gives each stream its memory, and its checksums where the case has them.
void UpdatePass::place_streams() {
  tiles::TileLayout& tile = pass_.tile;
  const std::vector<Stream> streams = streams_of(case_);
  if (case_.checksums) checksums_.resize(streams.size() * pass_.chunks());
  std::uint32_t moments = 0;
  for (const Stream& stream : streams) {
    std::byte* const data = memory_.data(stream);
    if (stream.role == Role::kWeight) tile.weight = data;
    if (stream.role == Role::kMaster) tile.master = data;
    if (stream.role == Role::kMoment) tile.moment[moments++] = data;
    if (stream.role == Role::kScale) tile.moment_scale[moments - 1] = data;
    if (stream.role == Role::kGradient) update_.gradient = data;
    if (!case_.checksums || stream.role == Role::kGradient) continue;
    // One seed for both: what a pass seals the next one verifies.
    pass_.streams[pass_.stream_count] = {
        .data = data,
        .bytes_per_scale = stream.bytes_per_scale,
        .checksums = checksums_.data() + pass_.stream_count * pass_.chunks(),
        .verify = true,
        .seal = true,
        .verify_seed = 7,
        .seal_seed = 7};
    ++pass_.stream_count;
  }
}

void UpdatePass::prepare(Gang& gang) {
  if (!case_.checksums) return;
  pass_.verifies = false;
  pass_.update = nullptr;
  run(gang);
  pass_.verifies = true;
  pass_.update = &update_;
}

double UpdatePass::run(Gang& gang) {
  const double seconds = gang.run(case_.threads, pass_.chunks(), [this](std::uint64_t chunk) {
    tiles::TilePass::run_chunk(&pass_, chunk);
  });
  check_checksums();
  return seconds;
}

double UpdatePass::run_checked(Gang& gang) {
  const std::vector<std::byte> before = written_sample();
  const double seconds = run(gang);
  if (written_sample() == before)
    throw Error(Code::kCorrupt,
                "an update of " + text_of(case_) +
                    " wrote nothing; its time would say nothing; this is a fault of Headrace: "
                    "please report it");
  check_finite();
  return seconds;
}

void UpdatePass::check_checksums() const {
  if (pass_.fault.load() == 0) return;
  throw Error(Code::kCorrupt, "memory changed between two updates of " + text_of(case_) +
                                  ": a checksum did not match; the measurement was ended; test "
                                  "this machine's memory");
}

std::vector<std::byte> UpdatePass::written_sample() const {
  std::vector<std::byte> sample;
  const std::uint64_t elements = std::min(base::kChunkElements, memory_.elements());
  for (const Stream& stream : streams_of(case_)) {
    if (stream.role == Role::kGradient) continue;
    const std::byte* const data = memory_.data(stream);
    sample.insert(sample.end(), data, data + stream.bytes(elements));
  }
  return sample;
}

void UpdatePass::check_finite() const {
  std::array<float, kSampleElements> values{};
  const std::uint64_t count = std::min(kSampleElements, memory_.elements());
  const auto check = [&](const char* what) {
    if (std::all_of(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count),
                    [](float value) { return std::isfinite(value); }))
      return;
    throw Error(Code::kNotFinite,
                fmt::format("an update of {} made {} that are not finite of finite ones; its time "
                            "may not be the usual; this is a fault of Headrace: please report it",
                            text_of(case_), what));
  };
  read_weights(case_.weight, pass_.tile.weight, count, values.data());
  check("weights");
  for (std::uint32_t k = 0; k < moments(case_.arithmetic()); ++k) {
    decode_moment(pass_.tile.stored_moment(k, 0), count, values.data());
    check("moments");
  }
}
}  // namespace headrace::tools
