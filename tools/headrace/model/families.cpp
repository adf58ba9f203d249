// SPDX-License-Identifier: Apache-2.0
#include "model/families.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <variant>

namespace headrace::tools {
namespace {
using Size = std::int64_t;

// Adds parameters under a prefix.
class Filling {
 public:
  explicit Filling(ModelGroup& group) : group_(group) {}
  void matrix(const std::string& name, Size rows, Size columns) const {
    group_.parameters.push_back({full(name) + ".weight", {rows, columns}});
  }
  void biased(const std::string& name, Size rows, Size columns) const {
    matrix(name, rows, columns);
    group_.parameters.push_back({full(name) + ".bias", {rows}});
  }
  void gain(const std::string& name, Size width) const {
    group_.parameters.push_back({full(name) + ".weight", {width}});
  }
  void norm(const std::string& name, Size width) const {
    gain(name, width);
    group_.parameters.push_back({full(name) + ".bias", {width}});
  }

 private:
  std::string full(const std::string& name) const {
    return group_.name.empty() ? name : group_.name + "." + name;
  }
  ModelGroup& group_;
};
Filling add_group(std::vector<ModelGroup>& groups, const std::string& name) {
  groups.push_back({name, {}});
  return Filling(groups.back());
}

struct Known {
  std::string_view name;
  std::variant<GptShape, LlamaShape, T5Shape> shape;
};
// Of the publications' tables and the checkpoints' own config.json.
const std::vector<Known>& known() {
  static const std::vector<Known> all = {
      {"gpt2", GptShape{768, 12}},
      {"gpt2-medium", GptShape{1024, 24}},
      {"gpt2-large", GptShape{1280, 36}},
      {"gpt2-xl", GptShape{1600, 48}},
      {"t5-small", T5Shape{512, 2048, 6, 6, 8}},
      {"t5-base", T5Shape{768, 3072, 12, 12, 12}},
      {"t5-large", T5Shape{1024, 4096, 24, 24, 16}},
      {"t5-3b", T5Shape{1024, 16384, 24, 24, 32, 128}},
      {"t5-11b", T5Shape{1024, 65536, 24, 24, 128, 128}},
      {"llama-2-7b", LlamaShape{4096, 11008, 32, 32, 32, 32000}},
      {"llama-2-13b", LlamaShape{5120, 13824, 40, 40, 40, 32000}},
      {"llama-2-70b", LlamaShape{8192, 28672, 80, 64, 8, 32000}},
      {"llama-3-8b", LlamaShape{4096, 14336, 32, 32, 8, 128256}},
      {"llama-3-70b", LlamaShape{8192, 28672, 80, 64, 8, 128256}},
      {"llama-3.1-405b", LlamaShape{16384, 53248, 126, 128, 8, 128256}},
      {"llama-3.2-1b", LlamaShape{2048, 8192, 16, 32, 8, 128256, 64, true}},
      {"llama-3.2-3b", LlamaShape{3072, 8192, 28, 24, 8, 128256, 128, true}},
      {"mistral-7b", LlamaShape{4096, 14336, 32, 32, 8, 32000}},
      {"qwen2.5-0.5b", LlamaShape{896, 4864, 24, 14, 2, 151936, 64, true, true}},
      {"qwen2.5-7b", LlamaShape{3584, 18944, 28, 28, 4, 152064, 128, false, true}},
      {"qwen2.5-72b", LlamaShape{8192, 29568, 80, 64, 8, 152064, 128, false, true}},
  };
  return all;
}

// The number at the start of `text`, which it is cut off from.
std::optional<Size> take_number(std::string_view& text, Size most) {
  Size number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 1 || number > most) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

constexpr std::string_view kPrefix = "gpt-";
constexpr Size kMostWidth = 1 << 20, kMostLayers = 10'000;

// Of "gpt-4096x50".
std::optional<GptShape> sized_gpt(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const std::optional<Size> width = take_number(name, kMostWidth);
  if (!width || !name.starts_with("x")) return std::nullopt;
  name.remove_prefix(1);
  const std::optional<Size> layers = take_number(name, kMostLayers);
  if (!layers || !name.empty()) return std::nullopt;
  return GptShape{*width, *layers};
}
}  // namespace

std::vector<ModelGroup> groups_of(const GptShape& s) {
  std::vector<ModelGroup> groups;
  const Filling embedding = add_group(groups, "");
  embedding.matrix("wte", s.vocabulary, s.width);
  embedding.matrix("wpe", s.context, s.width);
  for (Size i = 0; i < s.layers; ++i) {
    const Filling block = add_group(groups, "h." + std::to_string(i));
    block.norm("ln_1", s.width);
    block.biased("attn.c_attn", 3 * s.width, s.width);
    block.biased("attn.c_proj", s.width, s.width);
    block.norm("ln_2", s.width);
    block.biased("mlp.c_fc", 4 * s.width, s.width);
    block.biased("mlp.c_proj", s.width, 4 * s.width);
  }
  add_group(groups, "").norm("ln_f", s.width);
  return groups;
}

std::vector<ModelGroup> groups_of(const LlamaShape& s) {
  std::vector<ModelGroup> groups;
  const Size head = s.head_width > 0 ? s.head_width : s.width / std::max<Size>(1, s.heads);
  add_group(groups, "model").matrix("embed_tokens", s.vocabulary, s.width);
  for (Size i = 0; i < s.layers; ++i) {
    const Filling block = add_group(groups, "model.layers." + std::to_string(i));
    const auto project = [&](const char* name, Size heads) {
      if (s.biased) {
        block.biased(name, heads * head, s.width);
      } else {
        block.matrix(name, heads * head, s.width);
      }
    };
    project("self_attn.q_proj", s.heads);
    project("self_attn.k_proj", s.key_heads);
    project("self_attn.v_proj", s.key_heads);
    block.matrix("self_attn.o_proj", s.width, s.heads * head);
    block.matrix("mlp.gate_proj", s.feed_forward, s.width);
    block.matrix("mlp.up_proj", s.feed_forward, s.width);
    block.matrix("mlp.down_proj", s.width, s.feed_forward);
    block.gain("input_layernorm", s.width);
    block.gain("post_attention_layernorm", s.width);
  }
  const Filling end = add_group(groups, "");
  end.gain("model.norm", s.width);
  if (!s.tied) end.matrix("lm_head", s.vocabulary, s.width);
  return groups;
}

std::vector<ModelGroup> groups_of(const T5Shape& s) {
  std::vector<ModelGroup> groups;
  add_group(groups, "").matrix("shared", s.vocabulary, s.width);
  const auto stack = [&](const std::string& name, Size layers, bool decodes) {
    for (Size i = 0; i < layers; ++i) {
      const Filling block = add_group(groups, name + ".block." + std::to_string(i));
      const auto attention = [&](const std::string& of) {
        for (const char* part : {"q", "k", "v"})
          block.matrix(of + "." + part, s.heads * s.head_width, s.width);
        block.matrix(of + ".o", s.width, s.heads * s.head_width);
        block.gain(of + ".layer_norm", s.width);
      };
      attention("SelfAttention");
      if (i == 0) block.matrix("SelfAttention.relative_attention_bias", s.buckets, s.heads);
      if (decodes) attention("EncDecAttention");
      block.matrix("DenseReluDense.wi", s.feed_forward, s.width);
      block.matrix("DenseReluDense.wo", s.width, s.feed_forward);
      block.gain("DenseReluDense.layer_norm", s.width);
    }
    add_group(groups, name).gain("final_layer_norm", s.width);
  };
  stack("encoder", s.layers, false);
  stack("decoder", s.decoder_layers, true);
  return groups;
}

std::vector<std::string_view> known_names() {
  std::vector<std::string_view> names;
  for (const Known& one : known()) names.push_back(one.name);
  return names;
}

std::string sized_names() {
  return "a width from 1 to " + std::to_string(kMostWidth) + " and 1 to " +
         std::to_string(kMostLayers) + " layers";
}

bool is_sized_name(std::string_view name) {
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         name.find_first_not_of("0123456789x", kPrefix.size()) == std::string_view::npos &&
         name.find('x') != std::string_view::npos;
}

std::vector<ModelGroup> groups_of_known(std::string_view name) {
  const auto found = std::ranges::find(known(), name, &Known::name);
  if (found == known().end()) {
    const std::optional<GptShape> sized = sized_gpt(name);
    return sized ? groups_of(*sized) : std::vector<ModelGroup>();
  }
  return std::visit([](const auto& shape) { return groups_of(shape); }, found->shape);
}
}  // namespace headrace::tools
