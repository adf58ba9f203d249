// SPDX-License-Identifier: Apache-2.0
#include "ranks/gradients.hpp"

#include <algorithm>
#include <cstring>

#include "base/units.hpp"
#include "headrace/error.hpp"
#include "kernels/gradient_pass.hpp"

namespace headrace::ranks {
using base::kBlockElements;

namespace {
// The streams that gradients of a step may arrive on before streams_ grows: more than a trainer
// uses, so that a step allocates nothing.
constexpr std::size_t kUsualStreams = 64;

// Every rank's pieces, which lie in its shards: each(piece, rank) for one after the other.
template <class Each>
void each_owned_piece(const partition::Partition& partition, const Each& each) {
  for (const partition::Parameter& parameter : partition.parameters) {
    const std::uint64_t first_block = parameter.first_element / kBlockElements;
    const std::uint64_t blocks =
        partition.sections[parameter.section].shard_elements / kBlockElements;
    for (std::uint64_t piece = 0; piece < parameter.pieces; ++piece) {
      each(parameter.first_piece + piece,
           static_cast<std::uint32_t>((first_block + piece) / blocks));
    }
  }
}

// Of the rank that owns most of them.
std::size_t largest_pieces(const partition::Partition& partition) {
  std::vector<std::size_t> of_rank(partition.world_size);
  each_owned_piece(partition, [&](std::uint64_t, std::uint32_t rank) { ++of_rank[rank]; });
  return *std::ranges::max_element(of_rank);
}
}  // namespace

Gradients::Gradients(const Parts& parts) : p_(parts) {
  const std::size_t parameters = p_.partition.parameters.size();
  received_.resize(parameters);
  arrivals_.resize(parameters);
  last_stream_.resize(parameters);
  pieces_.resize(p_.partition.pieces);
  streams_.reserve(kUsualStreams);
  if (p_.partition.world_size == 1) return;
  own_pieces_.resize(largest_pieces(p_.partition));
  all_pieces_.resize(own_pieces_.size() * p_.partition.world_size);
  next_piece_.resize(p_.partition.world_size);
  make_bucket();
}

Gradients::~Gradients() {
  try {
    for (const Stream stream : streams_) p_.device.synchronize(stream);
  } catch (const std::exception&) {
    // A stream that its owner has destroyed has nothing left to read.
  }
  if (device_bytes_ > 0) p_.device.deallocate(bucket_, device_bytes_);
}

std::uint64_t Gradients::bookkeeping_bytes(const partition::Partition& partition) {
  const std::uint64_t parameters = partition.parameters.size();
  std::uint64_t bytes =
      parameters * (sizeof(std::uint8_t) + sizeof(std::uint32_t) + sizeof(Stream)) +
      partition.pieces * sizeof(GradientPiece) + kUsualStreams * sizeof(Stream);
  if (partition.world_size > 1) {
    bytes += 3 * parameters + partition.group_sections.size() +
             partition.world_size * sizeof(DeviceSpan) +
             (partition.world_size + 1) * largest_pieces(partition) * sizeof(GradientPiece);
  }
  return bytes;
}

const std::byte* Gradients::of_section(std::uint32_t section) const {
  return p_.arena.range(p_.plan.sections[section].gradient.offset_bytes, 0).data();
}

void Gradients::remember_stream(Stream stream) {
  const auto same = [&](Stream other) { return other.handle == stream.handle; };
  if (std::ranges::none_of(streams_, same)) streams_.push_back(stream);
}

void Gradients::refuse_undeclared_repeat(ParameterId id) const {
  const partition::RegisteredParameter& parameter = p_.registry.parameter(id);
  if (arrivals_[id.index] == 0 || p_.registry.group(parameter.group).repeated_gradients) return;
  throw Error(Code::kWrongState,
              "a second gradient of '" + parameter.full_name +
                  "' arrived before step(): it was not declared, and is refused rather than summed "
                  "in " +
                  name_of(parameter.spec.dtype) +
                  ". If a step was meant in between, call step(); to drop what came before (a pass "
                  "that failed), discard_gradients(). If they belong together, call "
                  "expect_repeated_gradients() for group '" +
                  p_.registry.group(parameter.group).name +
                  "' before freeze(), or set gradient_accumulation_steps to more than 1.");
}

void Gradients::add(ParameterId id, const void* gradient, DType dtype, Stream stream) {
  if (p_.partition.world_size > 1) {
    const auto one_at_a_time = p_.ranks.lock();
    const std::lock_guard lock(mutex_);
    refuse_undeclared_repeat(id);
    add_to_bucket(id, gradient, dtype, stream);
    return count_arrival(id, stream);
  }
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  p_.until_taken(p_.registry.parameter(id).group);
  // Arrivals of one parameter one after another: the first writes what the others add to.
  const std::lock_guard one_parameter(stripes_[id.index % stripes_.size()]);
  {
    const std::lock_guard lock(mutex_);
    refuse_undeclared_repeat(id);
  }
  const bool first = arrivals_[id.index] == 0;
  if (!first && last_stream_[id.index].handle != stream.handle) {
    p_.device.wait(stream, p_.device.record(last_stream_[id.index]));
  }
  add_to_slab(id, gradient, dtype, parameter.first_element, parameter.elements, first, stream);
  const std::lock_guard lock(mutex_);
  count_arrival(id, stream);
}

// Only what the device has taken counts: a call that threw leaves no trace.
void Gradients::count_arrival(ParameterId id, Stream stream) {
  totals_.reset();
  ++arrivals_[id.index];
  received_[id.index] = 1;
  last_stream_[id.index] = stream;
  remember_stream(stream);
}

// Elements [first, first + elements) of the parameter's section, which are this rank's; `source` is
// their first one.
void Gradients::add_to_slab(ParameterId id, const void* source, DType source_dtype,
                            std::uint64_t first, std::uint64_t elements, bool overwrite,
                            Stream stream) {
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  const residency::SectionPlan& plan = p_.plan.sections[parameter.section];
  const std::uint64_t in_shard =
      first - p_.partition.shard_first_element(p_.partition.sections[parameter.section]);
  const std::uint64_t piece = first / kBlockElements - parameter.first_element / kBlockElements;
  Accumulation work;
  work.source = source;
  work.source_dtype = source_dtype;
  work.sum = p_.arena.range(plan.gradient.offset_bytes, 0).data() +
             in_shard * size_bytes(plan.gradient_dtype);
  work.sum_dtype = plan.gradient_dtype;
  work.elements = elements;
  work.overwrite = overwrite;
  work.pieces = &pieces_[parameter.first_piece + piece];
  work.first_piece_elements = kBlockElements - first % kBlockElements;
  work.piece_elements = kBlockElements;
  p_.device.accumulate(stream, work);
}

void Gradients::wait_for_arrivals() {
  for (const Stream stream : streams_) p_.device.synchronize(stream);
  streams_.clear();  // what follows may come on others, and these may end
}

GradientTotals Gradients::finish(const StepTerms& terms) {
  const auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  if (p_.partition.world_size > 1 && !totals_) {
    meet({.kind = RankCall::Kind::kStep, .terms = terms});
    flush_bucket();
  }
  wait_for_arrivals();
  if (!totals_) totals_ = add_up();
  return *totals_;
}

// Every rank adds up all pieces in the same order, whoever owns them.
void Gradients::gather_pieces() {
  std::ranges::fill(own_pieces_, GradientPiece{});
  std::size_t at = 0;
  each_owned_piece(p_.partition, [&](std::uint64_t piece, std::uint32_t rank) {
    if (rank == p_.partition.rank) own_pieces_[at++] = pieces_[piece];
  });
  p_.ranks.collective().exchange(p_.ranks.next("gradient norm"),
                                 std::as_bytes(std::span(own_pieces_)),
                                 std::as_writable_bytes(std::span(all_pieces_)));
  std::vector<std::size_t>& next = next_piece_;
  for (std::size_t r = 0; r < next.size(); ++r) next[r] = r * own_pieces_.size();
  each_owned_piece(p_.partition, [&](std::uint64_t piece, std::uint32_t rank) {
    pieces_[piece] = all_pieces_[next[rank]++];
  });
}

GradientTotals Gradients::add_up() {
  if (p_.partition.world_size > 1) gather_pieces();
  GradientTotals totals;
  for (std::uint32_t i = 0; i < p_.partition.parameters.size(); ++i) {
    const partition::Parameter& parameter = p_.partition.parameters[i];
    std::uint64_t non_finite = 0;
    for (std::uint64_t piece = 0; piece < parameter.pieces; ++piece) {
      non_finite += pieces_[parameter.first_piece + piece].non_finite;
    }
    if (non_finite > 0 && totals.first_non_finite.empty()) {
      totals.first_non_finite = p_.registry.parameter({i}).full_name;
    }
    totals.non_finite += static_cast<double>(non_finite);
  }
  totals.sum_squares = kernels::tree_sum(pieces_);
  return totals;
}

void Gradients::discard() {
  const auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  if (p_.partition.world_size > 1) meet({.kind = RankCall::Kind::kDiscard});
  forget();
}

std::unique_lock<std::mutex> Gradients::begin_hash() {
  if (p_.partition.world_size == 1) return {};
  auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  meet({.kind = RankCall::Kind::kHash});
  return one_at_a_time;
}

void Gradients::meet_alike(RankCall::Kind kind) {
  if (p_.partition.world_size == 1) return;
  const auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  meet({.kind = kind});
}

void Gradients::clear() {
  const auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  forget();
}

void Gradients::forget() {
  wait_for_arrivals();
  totals_.reset();
  std::ranges::fill(received_, 0);
  std::ranges::fill(arrivals_, 0);
  std::ranges::fill(pieces_, GradientPiece{});
  std::ranges::fill(in_slab_, 0);
  bucket_group_.reset();
  bucket_stream_ = {};
}
}  // namespace headrace::ranks
