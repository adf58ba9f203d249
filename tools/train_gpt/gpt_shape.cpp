// SPDX-License-Identifier: Apache-2.0
// gpt_shape.cpp: names and sizes.
#include "gpt_shape.hpp"

#include "failures.hpp"

namespace train_gpt {
namespace {
void add_linear(std::vector<NamedShape>& to, const std::string& name, std::int64_t out,
                std::int64_t in) {
  to.push_back({name + ".weight", {out, in}});
  to.push_back({name + ".bias", {out}});
}

void add_norm(std::vector<NamedShape>& to, const std::string& name, std::int64_t size) {
  to.push_back({name + ".weight", {size}});
  to.push_back({name + ".bias", {size}});
}
}  // namespace

void check_shape(const GptShape& shape) {
  if (shape.hidden % shape.heads == 0) return;
  std::uint32_t fewer = shape.heads;
  while (shape.hidden % fewer != 0) --fewer;
  const std::uint32_t wider = (shape.hidden / shape.heads + 1) * shape.heads;
  fail(headrace::Code::kInvalidArgument,
       "--hidden " + std::to_string(shape.hidden) + " is not divisible by --heads " +
           std::to_string(shape.heads) +
           ", so no head has a whole size; no model can be built. Give --heads " +
           std::to_string(fewer) + " or --hidden " + std::to_string(wider) + ".");
}

std::vector<NamedShape> gpt_parameters(const GptShape& shape) {
  const std::int64_t hidden = shape.hidden;
  std::vector<NamedShape> all;
  all.push_back({"embed.tokens.weight", {kVocabulary, hidden}});
  all.push_back({"embed.positions.weight", {shape.sequence, hidden}});
  for (std::uint32_t i = 0; i < shape.layers; ++i) {
    const std::string block = "h." + std::to_string(i);
    add_norm(all, block + ".norm_1", hidden);
    add_linear(all, block + ".qkv", 3 * hidden, hidden);
    add_linear(all, block + ".projection", hidden, hidden);
    add_norm(all, block + ".norm_2", hidden);
    add_linear(all, block + ".up", 4 * hidden, hidden);
    add_linear(all, block + ".down", hidden, 4 * hidden);
  }
  add_norm(all, "head.norm", hidden);
  all.push_back({"head.out.weight", {kVocabulary, hidden}});
  return all;
}

std::uint64_t count_elements(const std::vector<NamedShape>& parameters) noexcept {
  std::uint64_t total = 0;
  for (const NamedShape& parameter : parameters) total += parameter.elements();
  return total;
}
}  // namespace train_gpt
