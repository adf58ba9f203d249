// SPDX-License-Identifier: Apache-2.0
// parameter_load.cpp: one parameter's content in, tile by tile through the slot that store() uses.
//
// A tile is read and verified, changed on the calling thread, sealed and written as the next
// generation. What a source has given before it throws is written back too: weight and master of
// one element are never of two loads, so loading the content again makes all of it whole.
#include <algorithm>
#include <cstring>

#include "engine/values.hpp"
#include "kernels/random_bits.hpp"
#include "optimizer_cpu/masters.hpp"

namespace headrace::engine {
namespace {
// Elements [first, first + elements) of a tile.
struct Stretch {
  const tiles::TileLayout& at;
  std::uint64_t first, elements;
  std::byte* weight() const { return at.weight + first * at.weight_bytes_per_element; }
  std::byte* master() const {
    return at.master == nullptr ? nullptr : at.master + first * master_bytes(at.kind);
  }
  optimizer_cpu::StoredMoment moment(Content content) const {
    return at.stored_moment(content == Content::kExpAvg ? 0 : 1, first);
  }
};

void read_present(Content content, const Stretch& s, std::span<std::byte> out) {
  auto* const values = reinterpret_cast<float*>(out.data());
  switch (content) {
    case Content::kWeight:
      std::memcpy(out.data(), s.weight(), out.size());
      return;
    case Content::kMaster:
      optimizer_cpu::read_master(s.at.kind, s.weight(), s.master(), s.elements, values);
      return;
    case Content::kExpAvg:
    case Content::kExpAvgSq:
      decode_moment(s.moment(content), s.elements, values);
      return;
  }
}

// Whether a bit changed; of moments that are not f32, whether one may have.
bool replace(Content content, const Stretch& s, std::span<const std::byte> in) {
  const auto* const values = reinterpret_cast<const float*>(in.data());
  if (content == Content::kWeight && !s.at.has_state) {
    const bool changed = std::memcmp(s.weight(), in.data(), in.size()) != 0;
    std::memcpy(s.weight(), in.data(), in.size());
    return changed;
  }
  if (content == Content::kWeight)
    return optimizer_cpu::replace_weights(s.at.kind, in.data(), s.weight(), s.master(), s.elements);
  if (content == Content::kMaster)
    return optimizer_cpu::replace_masters(s.at.kind, values, s.weight(), s.master(), s.elements);
  const optimizer_cpu::StoredMoment moment = s.moment(content);
  if (s.at.codec == MomentCodec::kF32) {
    if (std::memcmp(moment.data, in.data(), in.size()) == 0) return false;
    std::memcpy(moment.data, in.data(), in.size());
  } else {
    encode_moment(moment, kernels::kLoadKey, values, s.elements);
  }
  return true;
}
}  // namespace

void Values::load(ParameterId id, Content content, const Source& source) {
  const GroupId group = p_.registry.parameter(id).group;
  p_.states.require_some(group, "load");
  p_.leases.refuse_in_slot(group, "load");
  contents_.require(id, content, "load");
  content = contents_.kept_as(id, content);
  finish_step("load");
  p_.calls.run([&] { return p_.gather_slots.forget(group); });
  if (content == Content::kWeight || content == Content::kMaster)
    ++p_.counts.weight_changes[group.index];
  const auto tiles = p_.partition.tiles_with(p_.partition.parameters[id.index]);
  std::uint64_t replaced = 0;
  try {
    for (std::uint32_t t = tiles.first; t < tiles.end; ++t) {
      load_tile(id, t, content, source, replaced);
      p_.failure.throw_if_interrupted("load");
    }
  } catch (...) {
    const std::uint8_t half = p_.states.half(id);
    p_.states.set_half(id, replaced > 0 ? half | bit_of(content) : half);
    throw;
  }
  // A master brings its weight along.
  const std::uint8_t whole =
      content == Content::kMaster ? bit_of(content) | bit_of(Content::kWeight) : bit_of(content);
  p_.states.set_half(id, static_cast<std::uint8_t>(p_.states.half(id) & ~whole));
}

void Values::load_tile(ParameterId id, std::uint32_t tile, Content content, const Source& source,
                       std::uint64_t& replaced) {
  const Part part = part_of(id, tile);
  if (part.segment.elements == 0) return;
  p_.calls.run([&] { return held_.hold(tile, tiles::kWholeTile); });
  bool changed = false;
  std::exception_ptr error;
  try {
    replace_stretches(part, content, source, replaced, changed);
  } catch (...) {
    error = std::current_exception();
  }
  if (changed) {
    try {
      p_.calls.run([&] { return held_.write(); });
    } catch (const std::exception& failed) {
      p_.failure.fail(failed.what());  // what was changed in memory is at odds with the drive
      throw;
    }
  }
  if (error) std::rethrow_exception(error);
}

void Values::replace_stretches(const Part& part, Content content, const Source& source,
                               std::uint64_t& replaced, bool& changed) {
  const tiles::TileLayout at = held_.layout();
  const std::uint64_t element_bytes =
      content == Content::kWeight ? at.weight_bytes_per_element : sizeof(float);
  const std::uint64_t longest = scratch().size() / element_bytes;
  for (std::uint64_t done = 0; done < part.segment.elements;) {
    const std::uint64_t count = std::min(longest, part.segment.elements - done);
    const Stretch stretch{at, part.segment.first_element + done, count};
    const std::span<std::byte> values = scratch().first(count * element_bytes);
    read_present(content, stretch, values);
    source(part.first_element + done, values);
    changed = replace(content, stretch, values) || changed;
    done += count;
    replaced += count;
  }
}
}  // namespace headrace::engine
