// SPDX-License-Identifier: Apache-2.0
#include "engine/all_values.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "engine/stretch.hpp"

namespace headrace::engine {
using tiles::kWholeTile;

AllValues::AllValues(const Values::Parts& parts, Values& values)
    : p_(parts), values_(values), places_(std::max<std::uint32_t>(1, parts.plan.update_slots)) {}

void AllValues::store(const char* call, const RangeSink& sink) {
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g)
    p_.states.require_whole({g}, call);
  p_.calls.finish_updates(call);
  next_read_ = 0;
  each_tile(call, [&](std::uint32_t tile) {
    p_.calls.run([&] { return hold(tile); });
    const tiles::TileLayout at = p_.tiles.layout(tile, place_of(tile).view, kWholeTile);
    each_range(tile, at, [&](const partition::Segment& segment, ValueRange range) {
      const std::uint64_t first = range.first_element;
      send(at, segment, range.content, values_.scratch(),
           [&](std::uint64_t done, std::span<const std::byte> values) {
             range.first_element = first + done;
             sink(range, values);
           });
    });
  });
}

void AllValues::load(const char* call, const RangeSource& source,
                     std::span<const std::uint64_t> steps) {
  p_.leases.refuse_any_in_slot(call);
  values_.finish_step(call);
  p_.calls.run([&] { return p_.gather_slots.invalidate(); });
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g) {
    p_.states.begin_load({g});
    ++p_.counts.weight_changes[g];
  }
  each_tile(call, [&](std::uint32_t tile) {
    p_.calls.run([&] { return take_empty(tile); });
    fill(tile, source);
    p_.calls.run([&] { return begin_write(tile); });
  });
  std::ranges::copy(steps, p_.counts.steps.begin());
  for (std::uint32_t g = 0; g < p_.registry.groups().size(); ++g) p_.states.end_load({g});
}

template <class Work>
void AllValues::each_tile(const char* call, const Work& work) {
  p_.calls.run([&] { return values_.let_go(); });
  try {
    for (std::uint32_t t = 0; t < p_.partition.tiles.size(); ++t) {
      work(t);
      p_.failure.throw_if_interrupted(call);
      p_.calls.poll_between(call);
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
    place.slot.release();
  }
  if (error) std::rethrow_exception(error);
}

// The place of a tile that nobody reads yet is that of one before `tile`, which the caller is done
// with.
async::Task<> AllValues::hold(std::uint32_t tile) {
  const std::uint64_t end =
      std::min<std::uint64_t>(p_.partition.tiles.size(), std::uint64_t{tile} + places_.size());
  for (; next_read_ < end; ++next_read_) {
    place_of(next_read_).slot.release();
    place_of(next_read_).transfer.spawn(read(next_read_));
  }
  co_await place_of(tile).transfer.join();
}

async::Task<> AllValues::read(std::uint32_t tile) {
  Place& place = place_of(tile);
  co_await take_slot(tile);
  co_await p_.tiles.read_verified(tile, place.view, kWholeTile, swap::Priority::kDemand);
}

async::Task<> AllValues::take_empty(std::uint32_t tile) {
  Place& place = place_of(tile);
  co_await place.transfer.join();
  place.slot.release();
  co_await take_slot(tile);
}

async::Task<> AllValues::take_slot(std::uint32_t tile) {
  Place& place = place_of(tile);
  if (p_.tiles.needs_slot(tile)) place.slot = co_await p_.tiles.slots().acquire();
  place.view = p_.tiles.view(tile, place.slot ? place.slot.bytes() : std::span<std::byte>{});
}

async::Task<> AllValues::begin_write(std::uint32_t tile) {
  place_of(tile).transfer.spawn(write(tile));
  co_return;
}

async::Task<> AllValues::write(std::uint32_t tile) {
  p_.tiles.refuse_after_stall("load");
  const tiles::TileView view = place_of(tile).view;
  tiles::TilePass pass;
  p_.tiles.prepare(pass, tile, view, kWholeTile, true);
  pass.verifies = false;
  co_await p_.tiles.run(pass, tile);
  co_await p_.tiles.write(tile, view, kWholeTile);
}

template <class Visit>
void AllValues::each_range(std::uint32_t tile, const tiles::TileLayout& at,
                           const Visit& visit) const {
  const partition::Tile& cut = p_.partition.tiles[tile];
  const std::uint32_t contents = at.has_state ? 2 + moments(at.arithmetic) : 1;
  for (const partition::Segment& segment : p_.partition.segments_of(cut)) {
    const std::uint64_t first = cut.first_element + segment.first_element -
                                p_.partition.parameters[segment.parameter].first_element;
    for (std::uint32_t content = 0; content < contents; ++content)
      visit(segment, ValueRange{{segment.parameter}, static_cast<Content>(content), first});
  }
}

// Between and after the parameters of a tile, values are as after Engine::load(): zero.
void AllValues::fill(std::uint32_t tile, const RangeSource& source) {
  const tiles::TileLayout at = p_.tiles.layout(tile, place_of(tile).view, kWholeTile);
  std::memset(at.weight, 0, at.elements * at.weight_bytes_per_element);
  tiles::initialise(at, at.weight, 0, at.elements);
  each_range(tile, at, [&](const partition::Segment& segment, ValueRange range) {
    const std::uint64_t first = range.first_element;
    const std::uint64_t bytes = element_bytes(range.content, at.weight_bytes_per_element);
    const std::uint64_t longest = values_.scratch().size() / bytes;
    for (std::uint64_t done = 0; done < segment.elements; done += longest) {
      const std::uint64_t count = std::min(longest, segment.elements - done);
      const std::span<std::byte> values = values_.scratch().first(count * bytes);
      range.first_element = first + done;
      source(range, values);
      (void)Stretch{at, segment.first_element + done, count}.replace(range.content, values);
    }
  });
}
}  // namespace headrace::engine
