// SPDX-License-Identifier: Apache-2.0
// parameter_load.cpp: one parameter's content in, tile by tile through the slot that store() uses;
// step counts.
//
// A tile is read and verified, changed on the calling thread, sealed and written as the next
// generation. What a source has given before it throws is written back too: weight and master of
// one element are never of two loads, so loading the content again makes all of it whole.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/random_bits.hpp"
#include "engine/engine_core.hpp"
#include "optimizer_cpu/masters.hpp"

namespace headrace {
using engine::TilePass;
using optimizer_cpu::MasterKind;

namespace {
constexpr engine::TileParts kAll{.weight = true, .record = true};
constexpr const char* kContents[] = {"weight", "master", "exp_avg", "exp_avg_sq"};

constexpr std::uint8_t bit_of(Content content) {
  return static_cast<std::uint8_t>(1u << static_cast<unsigned>(content));
}

// Elements [first, first + elements) of the tile that `at` describes.
struct Stretch {
  const TilePass& at;
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
    encode_moment(moment, base::kLoadKey, values, s.elements);
  }
  return true;
}
}  // namespace

void EngineCore::refuse_frozen(ParameterId id, const char* call, const char* lacks) const {
  const engine::RegisteredParameter& parameter = registry_.parameter(id);
  if (!parameter.spec.frozen) return;
  throw Error(Code::kInvalidArgument,
              std::string(call) + " of '" + parameter.full_name + "' in group '" +
                  registry_.group(parameter.group).name +
                  "': it was frozen when the engine planned, so it " + lacks +
                  "; nothing was changed. To train it, let neither ParameterSpec::frozen nor "
                  "expect_no_gradients() say so at freeze().");
}

// A rule has fewer moments than there are contents, and a frozen parameter none.
void EngineCore::refuse_missing_moment(ParameterId id, Content content, const char* call) const {
  if (kept_as(id, content) != Content::kWeight)
    refuse_frozen(id, call, "has neither master nor moments");
  const std::uint32_t kept = moments(optimizer_cpu::arithmetic_of(settings_.optimizer));
  const bool missing =
      (content == Content::kExpAvg && kept < 1) || (content == Content::kExpAvgSq && kept < 2);
  if (!missing) return;
  throw Error(Code::kInvalidArgument,
              std::string(call) + " of '" + registry_.parameter(id).full_name + "', content " +
                  kContents[static_cast<int>(content)] + ": the rule " +
                  name_of(settings_.optimizer) + " keeps " + std::to_string(kept) +
                  (kept == 1 ? " moment" : " moments") +
                  ", so there is none; nothing was moved. Leave this content out.");
}

// The master of an f32 parameter is its weight.
Content EngineCore::kept_as(ParameterId id, Content content) const {
  const DType dtype = registry_.parameter(id).spec.dtype;
  const bool itself =
      optimizer_cpu::master_kind(dtype, settings_.master) == MasterKind::kWeightItself;
  return itself && content == Content::kMaster ? Content::kWeight : content;
}

void EngineCore::load(ParameterId id, Content content, const Source& source) {
  Frozen& f = ready("load");
  const GroupId group = registry_.parameter(id).group;
  require_some_values(f, group, "load");
  if (f.buffers->is_leased(group)) refuse_lease(group, "load");
  refuse_missing_moment(id, content, "load");
  content = kept_as(id, content);
  finish_updates("load");
  on_conductor([&] { return f.buffers->forget(group); });
  if (content == Content::kWeight || content == Content::kMaster) ++f.weight_changes[group.index];
  const auto tiles = f.partition.tiles_with(f.partition.parameters[id.index]);
  std::uint64_t replaced = 0;
  try {
    for (std::uint32_t t = tiles.first; t < tiles.end; ++t) {
      load_tile(id, t, content, source, replaced);
      if (interrupted_.load()) ready("load");
    }
  } catch (...) {
    const std::uint8_t half = f.half_loaded[id.index];
    set_half_loaded(f, id, replaced > 0 ? half | bit_of(content) : half);
    throw;
  }
  // A master brings its weight along.
  const std::uint8_t whole =
      content == Content::kMaster ? bit_of(content) | bit_of(Content::kWeight) : bit_of(content);
  set_half_loaded(f, id, static_cast<std::uint8_t>(f.half_loaded[id.index] & ~whole));
}

void EngineCore::load_tile(ParameterId id, std::uint32_t tile, Content content,
                           const Source& source, std::uint64_t& replaced) {
  Frozen& f = *frozen_;
  if (f.partition.segment_of(f.partition.tiles[tile], id.index).elements == 0) return;
  on_conductor([&] { return hold_tile(tile, kAll); });
  bool changed = false;
  std::exception_ptr error;
  try {
    replace_stretches(id, tile, content, source, replaced, changed);
  } catch (...) {
    error = std::current_exception();
  }
  if (changed) {
    try {
      on_conductor([&] { return write_held(); });
    } catch (const std::exception& failed) {
      fail(failed.what());  // what was changed in memory is at odds with the drive
      throw;
    }
  }
  if (error) std::rethrow_exception(error);
}

void EngineCore::replace_stretches(ParameterId id, std::uint32_t tile, Content content,
                                   const Source& source, std::uint64_t& replaced, bool& changed) {
  Frozen& f = *frozen_;
  const partition::Tile& cut = f.partition.tiles[tile];
  const partition::Segment segment = f.partition.segment_of(cut, id.index);
  TilePass at;  // only for where the streams are
  f.tiles->prepare(at, tile, f.held.view, kAll, false);
  const std::span<std::byte> scratch =
      f.arena->range(f.plan.scratch.offset_bytes, f.plan.scratch.size_bytes);
  const std::uint64_t element_bytes =
      content == Content::kWeight ? at.weight_bytes_per_element : sizeof(float);
  const std::uint64_t longest = scratch.size() / element_bytes;
  const std::uint64_t first =
      cut.first_element + segment.first_element - f.partition.parameters[id.index].first_element;
  for (std::uint64_t done = 0; done < segment.elements;) {
    const std::uint64_t count = std::min(longest, segment.elements - done);
    const Stretch stretch{at, segment.first_element + done, count};
    const std::span<std::byte> values = scratch.first(count * element_bytes);
    read_present(content, stretch, values);
    source(first + done, values);
    changed = replace(content, stretch, values) || changed;
    done += count;
    replaced += count;
  }
}

async::Task<> EngineCore::write_held() {
  Frozen& f = *frozen_;
  const engine::TileView view = f.held.view;
  TilePass pass;
  f.tiles->prepare(pass, f.held.tile, view, kAll, true);
  // Verified when it was read, and changed since.
  for (engine::PassStream& stream : pass.streams) stream.verify = false;
  co_await f.tiles->run(pass, f.held.tile, view);
  co_await f.tiles->write(f.held.tile, view, kAll);
}

void EngineCore::set_half_loaded(Frozen& f, ParameterId id, std::uint8_t contents) noexcept {
  f.half_loaded[id.index] = contents;
  const GroupId group = registry_.parameter(id).group;
  if (f.group_values[group.index] == GroupValues::kWritten) return;  // meanwhile: it stays so
  const bool half = std::ranges::any_of(registry_.group(group).parameters, [&](ParameterId other) {
    return f.half_loaded[other.index] != 0;
  });
  f.group_values[group.index] = half ? GroupValues::kHalf : GroupValues::kWhole;
}

void EngineCore::require_some_values(const Frozen& f, GroupId group, const char* call) const {
  const GroupValues values = f.group_values[group.index];
  if (values != GroupValues::kWhole && values != GroupValues::kHalf) refuse_values(f, group, call);
}

void EngineCore::refuse_values(const Frozen& f, GroupId group, const char* call) const {
  const std::string name = "group '" + registry_.group(group).name + "'";
  const GroupValues values = f.group_values[group.index];
  if (values == GroupValues::kNone) {
    throw Error(Code::kWrongState,
                std::string(call) + ": " + name + " was never loaded; call load() for it first");
  }
  if (values == GroupValues::kBroken) {
    throw Error(Code::kWrongState, std::string(call) + ": the last load() of " + name +
                                       " ended on the way: it has neither its old values nor new "
                                       "ones; load all of it again");
  }
  if (values == GroupValues::kWritten) {
    const std::lock_guard lock(cause_mutex_);
    throw Error(Code::kWrongState, std::string(call) + ": " + written_.at(group.index));
  }
  const auto id = std::ranges::find_if(registry_.group(group).parameters, [&](ParameterId one) {
    return f.half_loaded[one.index] != 0;
  });
  const char* const content = kContents[std::countr_zero(f.half_loaded[id->index])];
  throw Error(Code::kWrongState, std::string(call) + ": a load() of '" +
                                     registry_.parameter(*id).full_name + "', content " + content +
                                     ", ended on the way: it holds new values and old ones; "
                                     "load that content again, or all of " +
                                     name);
}

void EngineCore::mark_written(GroupId group, const std::string& cause) {
  Frozen& f = ready("mark_written");
  registry_.group(group);
  const GroupValues values = f.group_values[group.index];
  if (values == GroupValues::kNone || values == GroupValues::kBroken) return;
  const std::lock_guard lock(cause_mutex_);
  written_[group.index] = !cause.empty()
                              ? cause
                              : "the weights of group '" + registry_.group(group).name +
                                    "' were written while they were gathered; load all of it again";
  f.group_values[group.index] = GroupValues::kWritten;
}

std::uint64_t EngineCore::weight_changes(GroupId group) {
  const Frozen& f = ready("weight_changes");
  registry_.group(group);
  return f.weight_changes[group.index];
}

std::uint64_t EngineCore::step_count(ParameterId id) {
  const Frozen& f = ready("step_count");
  registry_.parameter(id);
  return f.step_counts[id.index];
}

void EngineCore::set_step_count(ParameterId id, std::uint64_t steps) {
  Frozen& f = ready("set_step_count");
  const engine::RegisteredParameter& parameter = registry_.parameter(id);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 48;
  if (steps > kMost) {
    throw Error(Code::kInvalidArgument, "set_step_count of '" + parameter.full_name + "' to " +
                                            std::to_string(steps) +
                                            ": 2^48 is the most; the count is as it was");
  }
  require_some_values(f, parameter.group, "set_step_count");
  refuse_change_before_repeat(f, "set_step_count");
  f.step_counts[id.index] = steps;
}
}  // namespace headrace
