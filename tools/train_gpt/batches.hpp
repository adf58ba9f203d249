// SPDX-License-Identifier: Apache-2.0
// batches.hpp: draws the windows of text that make up each batch: a function of the seed and a
// counter, nothing else.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "text.hpp"

namespace train_gpt {
// Uniform in [0, bound): equal arguments, equal result, on every machine. `bound` is at least 1.
std::uint64_t random_below(std::uint64_t seed, std::uint64_t counter, std::uint64_t bound) noexcept;

// The text's last 5 % (at least one window) are held out for evaluation.
struct Split {
  std::uint64_t training_bytes = 0;
  std::uint64_t held_out_bytes = 0;
};
// Throws kInvalidArgument when the text is too short for one window in either part.
Split split_text(const Text& text, std::uint32_t sequence);

// rows x (sequence + 1) bytes: inputs are the first `sequence` of a row, targets the last.
struct Batch {
  std::span<const std::uint8_t> windows;
  std::uint32_t rows = 0;
  std::uint32_t sequence = 0;
};

// Ownership: refers to the text; a batch is valid until the next is asked for.
class Batches {
 public:
  Batches(const Text& text, std::uint32_t rows, std::uint32_t sequence, std::uint64_t seed);
  // Micro-batch number `index` of the training.
  Batch training(std::uint64_t index);
  // Number `index` of `count`, spread evenly over the held-out part.
  Batch held_out(std::uint64_t index, std::uint64_t count);

 private:
  std::span<std::uint8_t> row(std::uint32_t index);
  const Text& text_;
  Split split_;
  std::uint32_t rows_;
  std::uint32_t sequence_;
  std::uint64_t seed_;
  std::vector<std::uint8_t> windows_;
};
}  // namespace train_gpt
