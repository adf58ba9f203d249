// SPDX-License-Identifier: Apache-2.0
// stretch.hpp: elements of a tile as values: of a weight in its dtype, of all else in f32.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "headrace/engine.hpp"
#include "partition/partition.hpp"
#include "tiles/tile_pass.hpp"

namespace headrace::engine {
constexpr std::uint64_t element_bytes(Content content, std::uint64_t of_weight) {
  return content == Content::kWeight ? of_weight : sizeof(float);
}

// Elements [first, first + elements) of a tile in memory. `first` is a multiple of kScaleElements.
struct Stretch {
  const tiles::TileLayout& at;
  std::uint64_t first = 0, elements = 0;

  // Where the values lie as they are handed out. Null: they are stored in another form.
  const std::byte* stored(Content content) const noexcept;
  // The same for a call that writes every content of the elements, in order. Null for masters that
  // determine a weight beside them: replace() writes both.
  std::byte* to_fill(Content content) const noexcept;
  void read(Content content, std::span<std::byte> out) const noexcept;
  // Returns whether a bit changed; for moments that are not f32, whether one may have.
  bool replace(Content content, std::span<const std::byte> in) const noexcept;

 private:
  std::byte* weight() const noexcept;
  std::byte* master() const noexcept;
  optimizer_cpu::StoredMoment moment(Content content) const noexcept;
};

// Calls visit(first element in the segment, stretch, memory in `scratch` for its values) for a
// segment of a tile, part by part.
template <class Visit>
void each_stretch(const tiles::TileLayout& at, const partition::Segment& segment, Content content,
                  std::span<std::byte> scratch, const Visit& visit) {
  const std::uint64_t bytes = element_bytes(content, at.weight_bytes_per_element);
  const std::uint64_t longest = scratch.size() / bytes;
  for (std::uint64_t done = 0; done < segment.elements; done += longest) {
    const std::uint64_t count = std::min(longest, segment.elements - done);
    visit(done, Stretch{at, segment.first_element + done, count}, scratch.first(count * bytes));
  }
}

// Hands a segment of a tile to sink(first element of the segment, values): in one piece where it is
// stored as it is handed out, else stretch by stretch through `scratch`.
template <class Sink>
void send(const tiles::TileLayout& at, const partition::Segment& segment, Content content,
          std::span<std::byte> scratch, const Sink& sink) {
  const Stretch whole{at, segment.first_element, segment.elements};
  if (const std::byte* const stored = whole.stored(content)) {
    const std::uint64_t bytes = element_bytes(content, at.weight_bytes_per_element);
    sink(std::uint64_t{0}, std::span(stored, segment.elements * bytes));
    return;
  }
  each_stretch(at, segment, content, scratch,
               [&](std::uint64_t done, const Stretch& stretch, std::span<std::byte> values) {
                 stretch.read(content, values);
                 sink(done, std::span<const std::byte>(values));
               });
}

// The inverse, for a call that writes every content of the segment, in order: source(values) writes
// them where they are stored, or through `scratch`, stretch by stretch.
template <class Source>
void take(const tiles::TileLayout& at, const partition::Segment& segment, Content content,
          std::span<std::byte> scratch, const Source& source) {
  const Stretch whole{at, segment.first_element, segment.elements};
  if (std::byte* const place = whole.to_fill(content)) {
    source(
        std::span(place, segment.elements * element_bytes(content, at.weight_bytes_per_element)));
    return;
  }
  each_stretch(at, segment, content, scratch,
               [&](std::uint64_t, const Stretch& stretch, std::span<std::byte> values) {
                 source(values);
                 (void)stretch.replace(content, values);
               });
}
}  // namespace headrace::engine
