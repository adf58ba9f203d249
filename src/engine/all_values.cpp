// SPDX-License-Identifier: Apache-2.0
#include "engine/all_values.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "engine/epochs.hpp"
#include "engine/stretch.hpp"

namespace headrace::engine {
namespace {
void send_range(const tiles::TileLayout& at, const partition::Segment& segment, ValueRange range,
                std::span<std::byte> scratch, const RangeSink& sink) {
  send(at, segment, range.content, scratch, [&](std::uint64_t, std::span<const std::byte> values) {
    sink(range, values);
    range.first_byte += values.size();
  });
}
}  // namespace

AllValues::AllValues(const Values::Parts& parts, Values& values) : p_(parts), values_(values) {
  const std::uint32_t places = std::max<std::uint32_t>(1, parts.plan.update_slots);
  for (std::uint32_t i = 0; i < places; ++i) places_.emplace_back(parts.tiles);
}

void AllValues::store(const char* call, const RangeSink& sink) {
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g)
    p_.states.require_whole({g}, call);
  p_.calls.finish_updates(call);
  next_read_ = 0;
  each_tile(call, /*may_end=*/true, [&](std::uint32_t tile) {
    p_.calls.run([&] { return hold(tile); });
    const tiles::TileLayout at = place_of(tile).held.layout();
    each_range(tile, at, [&](const partition::Segment& segment, ValueRange range) {
      send_range(at, segment, range, values_.scratch(), sink);
    });
  });
}

void AllValues::store_pinned(const Epochs& epochs, std::span<std::byte> memory,
                             const RangeSink& sink) const {
  const swap::CommitRecord& record = epochs.pinned_record();
  const std::span<std::byte> place = memory.first(p_.plan.saved_tile_bytes);
  const std::span<std::byte> scratch = memory.subspan(place.size(), residency::kScratchBytes);
  for (std::uint32_t t = 0; t < p_.partition.tiles.size(); ++t) {
    const tiles::TileView view =
        p_.calls.run_apart([&] { return p_.tiles.read_committed(t, record, place); });
    const tiles::TileLayout at = p_.tiles.verify_committed(t, record, view);
    each_range(t, at, [&](const partition::Segment& segment, ValueRange range) {
      send_range(at, segment, range, scratch, sink);
    });
  }
}

void AllValues::load(const char* call, const RangeSource& source,
                     std::span<const std::uint64_t> steps) {
  p_.leases.refuse_any_in_slot(call);
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g) values_.require_lent({g}, call);
  values_.finish_step(call);
  p_.calls.run([&] { return p_.gather_slots.invalidate(); });
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g) {
    p_.states.begin_load({g});
    ++p_.counts.weight_changes[g];
  }
  each_tile(call, /*may_end=*/false, [&](std::uint32_t tile) {
    p_.calls.run([&] { return take_empty(tile, call); });
    fill(tile, source);
    p_.calls.run([&] { return begin_write(tile); });
  });
  std::ranges::copy(steps, p_.counts.steps.begin());
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g) p_.states.end_load({g});
}

template <class Work>
void AllValues::each_tile(const char* call, bool may_end, const Work& work) {
  p_.calls.run([&] { return values_.let_go(); });
  try {
    for (std::uint32_t t = 0; t < p_.partition.tiles.size(); ++t) {
      work(t);
      p_.failure.throw_if_interrupted(call);
      if (may_end) p_.calls.poll_between(call);
    }
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    try {
      p_.calls.run([&] { return let_go(); });
    } catch (const std::exception&) {
      // The first error is the cause.
    }
    std::rethrow_exception(error);
  }
  p_.calls.run([&] { return let_go(); });
}

async::Task<> AllValues::let_go() {
  std::exception_ptr error;
  for (Place& place : places_) {
    try {
      co_await place.transfer.join();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    co_await place.held.let_go();
  }
  if (error) std::rethrow_exception(error);
}

// The place of a tile that nobody reads yet is that of one before `tile`, which the caller is done
// with.
async::Task<> AllValues::hold(std::uint32_t tile) {
  const std::uint64_t end =
      std::min<std::uint64_t>(p_.partition.tiles.size(), std::uint64_t{tile} + places_.size());
  for (; next_read_ < end; ++next_read_) {
    Place& place = place_of(next_read_);
    place.transfer.spawn(place.held.hold(next_read_, tiles::kWholeTile));
  }
  co_await place_of(tile).transfer.join();
}

async::Task<> AllValues::take_empty(std::uint32_t tile, const char* call) {
  co_await place_of(tile).transfer.join();
  co_await place_of(tile).held.take_empty(tile, call);
}

async::Task<> AllValues::begin_write(std::uint32_t tile) {
  place_of(tile).transfer.spawn(place_of(tile).held.write());
  co_return;
}

template <class Visit>
void AllValues::each_range(std::uint32_t tile, const tiles::TileLayout& at,
                           const Visit& visit) const {
  const partition::Tile& cut = p_.partition.tiles[tile];
  const std::uint32_t contents = at.has_state ? 2 + moments(at.arithmetic) : 1;
  for (const partition::Segment& segment : p_.partition.segments_of(cut)) {
    const std::uint64_t first = cut.first_element + segment.first_element -
                                p_.partition.parameters[segment.parameter].first_element;
    for (std::uint32_t c = 0; c < contents; ++c) {
      const auto content = static_cast<Content>(c);
      visit(segment, ValueRange{{segment.parameter},
                                content,
                                first * element_bytes(content, at.weight_bytes_per_element)});
    }
  }
}

// Between and after the parameters of a tile, values are as after Engine::load(): zero.
void AllValues::fill(std::uint32_t tile, const RangeSource& source) {
  const tiles::TileLayout at = place_of(tile).held.layout();
  std::uint64_t given = 0;
  for (const partition::Segment& segment : p_.partition.segments_of(p_.partition.tiles[tile]))
    given += segment.elements;
  if (given < at.elements) {
    if (at.weight != nullptr) std::memset(at.weight, 0, at.elements * at.weight_bytes_per_element);
    tiles::initialise(at, at.weight, 0, at.elements);
  }
  each_range(tile, at, [&](const partition::Segment& segment, ValueRange range) {
    take(at, segment, range.content, values_.scratch(), [&](std::span<std::byte> values) {
      source(range, values);
      range.first_byte += values.size();
    });
  });
}
}  // namespace headrace::engine
