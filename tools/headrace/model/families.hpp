// SPDX-License-Identifier: Apache-2.0
// families.hpp: the architectures that model.hpp knows, by their dimensions.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/model.hpp"

namespace headrace::tools {
// Radford et al. 2019; the output layer shares the token embedding.
struct GptShape {
  std::int64_t width = 0, layers = 0, vocabulary = 50257, context = 1024;
};
// Touvron et al. 2023 and its kin (Mistral, Qwen2): RMS norms, gated feed-forward, grouped heads.
struct LlamaShape {
  std::int64_t width = 0, feed_forward = 0, layers = 0, heads = 0, key_heads = 0, vocabulary = 0;
  std::int64_t head_width = 0;  // 0: width / heads
  bool tied = false;            // the output layer shares the embedding
  bool biased = false;          // queries, keys and values have biases
};
// Raffel et al. 2020, version 1.0: the output layer shares the embedding.
struct T5Shape {
  std::int64_t width = 0, feed_forward = 0, layers = 0, decoder_layers = 0, heads = 0,
               head_width = 64, vocabulary = 32128, buckets = 32;
};
std::vector<ModelGroup> groups_of(const GptShape& shape);
std::vector<ModelGroup> groups_of(const LlamaShape& shape);
std::vector<ModelGroup> groups_of(const T5Shape& shape);

std::vector<std::string_view> known_names();
// Those of a known name, or of "gpt-4096x50": like GPT-2, of that width and so many layers. No
// groups for any other name.
std::vector<ModelGroup> groups_of_known(std::string_view name);
// What a name of the form "gpt-WIDTHxLAYERS" may hold: "a width from 1 to ...".
std::string sized_names();
bool is_sized_name(std::string_view name);  // of that form, whatever its numbers
}  // namespace headrace::tools
