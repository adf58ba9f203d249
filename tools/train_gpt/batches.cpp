// SPDX-License-Identifier: Apache-2.0
// batches.cpp: window positions and the reading of them.
#include "batches.hpp"

#include <algorithm>
#include <string>

#include "failures.hpp"
#include "kernels/random_bits.hpp"

namespace train_gpt {
std::uint64_t random_below(std::uint64_t seed, std::uint64_t counter,
                           std::uint64_t bound) noexcept {
  using headrace::kernels::mix64;
  const std::uint64_t bits = mix64(mix64(seed, 0), counter);
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits) * bound) >> 64);
}

Split split_text(const Text& text, std::uint32_t sequence) {
  const std::uint64_t window = std::uint64_t{sequence} + 1;
  const std::uint64_t size = text.size_bytes();
  if (size < 2 * window) {
    fail(headrace::Code::kInvalidArgument,
         "the text '" + text.origin() + "' has " + std::to_string(size) + " bytes, but --seq " +
             std::to_string(sequence) + " needs " + std::to_string(2 * window) +
             " (a sequence and its last target, for training and held out); no batch can be made. "
             "Name a longer text "
             "with --text, or a shorter sequence" +
             (size >= 4 ? ": --seq " + std::to_string(size / 2 - 1) + " or less." : "."));
  }
  const std::uint64_t held_out = std::max(size / 20, window);
  return {size - held_out, held_out};
}

Batches::Batches(const Text& text, std::uint32_t rows, std::uint32_t sequence, std::uint64_t seed)
    : text_(text),
      split_(split_text(text, sequence)),
      rows_(rows),
      sequence_(sequence),
      seed_(seed),
      windows_(std::size_t{rows} * (std::size_t{sequence} + 1)) {}

std::span<std::uint8_t> Batches::row(std::uint32_t index) {
  const std::size_t window = std::size_t{sequence_} + 1;
  return std::span(windows_).subspan(index * window, window);
}

Batch Batches::training(std::uint64_t index) {
  const std::uint64_t positions = split_.training_bytes - sequence_;
  for (std::uint32_t r = 0; r < rows_; ++r) {
    text_.read(random_below(seed_, index * rows_ + r, positions), row(r));
  }
  return {windows_, rows_, sequence_};
}

Batch Batches::held_out(std::uint64_t index, std::uint64_t count) {
  const std::uint64_t last = split_.held_out_bytes - sequence_ - 1;
  const std::uint64_t windows = count * rows_;
  for (std::uint32_t r = 0; r < rows_; ++r) {
    const std::uint64_t number = index * rows_ + r;
    const std::uint64_t position =
        windows > 1 ? static_cast<std::uint64_t>(static_cast<unsigned __int128>(last) * number /
                                                 (windows - 1))
                    : 0;
    text_.read(split_.training_bytes + position, row(r));
  }
  return {windows_, rows_, sequence_};
}
}  // namespace train_gpt
