// SPDX-License-Identifier: Apache-2.0
// parameter_load.cpp: one parameter's content in, tile by tile through the slot that store() uses.
//
// A tile is read and verified, changed on the calling thread, sealed and written as the next
// generation. What a source has given before it throws is written back too: weight and master of
// one element are never of two loads, so loading the content again makes all of it whole.
#include "engine/stretch.hpp"
#include "engine/values.hpp"

namespace headrace::engine {
void Values::load(ParameterId id, Content content, const Source& source) {
  const GroupId group = p_.registry.parameter(id).group;
  p_.states.require_some(group, "load");
  p_.leases.refuse_in_slot(group, "load");
  contents_.require(id, content, "load");
  content = contents_.kept_as(id, content);
  finish_step("load");
  const auto tiles = p_.partition.tiles_with(p_.partition.parameters[id.index]);
  for (std::uint32_t t = tiles.first; t < tiles.end; ++t) p_.tiles.refuse_another_write(t);
  p_.calls.run([&] { return p_.gather_slots.forget(group); });
  if (content == Content::kWeight || content == Content::kMaster)
    ++p_.counts.weight_changes[group.index];
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
  each_stretch(held_.layout(), part.segment, content, scratch(),
               [&](std::uint64_t done, const Stretch& stretch, std::span<std::byte> values) {
                 stretch.read(content, values);
                 source(part.first_element + done, values);
                 changed = stretch.replace(content, values) || changed;
                 replaced += stretch.elements;
               });
}
}  // namespace headrace::engine
