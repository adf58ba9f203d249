// SPDX-License-Identifier: Apache-2.0
#include "model/model.hpp"

#include <fmt/core.h>

#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "model/families.hpp"
#include "model/model_files.hpp"

namespace headrace::tools {
namespace {
std::string layer_name(const std::string& parameter) {
  const std::size_t point = parameter.rfind('.');
  return point == std::string::npos ? "" : parameter.substr(0, point);
}

constexpr std::uint64_t kManyElements = std::numeric_limits<std::uint64_t>::max();

template <class Parts>
std::uint64_t sum_of(const Parts& parts) {
  std::uint64_t count = 0;
  for (const auto& part : parts) {
    if (__builtin_add_overflow(count, part.elements(), &count)) return kManyElements;
  }
  return count;
}

[[noreturn]] void refuse_unknown(const std::string& word) {
  const std::vector<std::string_view> names = known_names();
  // Hubs write names in capitals, behind their owner's: "openai-community/GPT2-XL".
  std::string lower = word.substr(word.rfind('/') + 1);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string_view near = base::nearest_word(lower, names);
  throw Error(Code::kNotFound,
              "'" + word + "' is no model that is known, no directory and no file: nothing was " +
                  "computed; " +
                  (near.empty() ? "give one of " + known_models() +
                                      ", a directory with safetensors or config.json, or a JSON "
                                      "file of shapes"
                                : "did you mean " + std::string(near) + "?"));
}
}  // namespace

std::uint64_t ModelParameter::elements() const noexcept {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(size), &count))
      return kManyElements;
  }
  return count;
}

std::uint64_t ModelGroup::elements() const noexcept { return sum_of(parameters); }

std::uint64_t Model::elements() const noexcept { return sum_of(groups); }

Model::Layer Model::largest_layer() const {
  std::map<std::string, std::uint64_t> layers;
  for (const ModelGroup& group : groups) {
    for (const ModelParameter& parameter : group.parameters)
      layers[layer_name(parameter.name)] += parameter.elements();
  }
  Layer largest;
  for (const auto& [name, elements] : layers) {
    if (elements > largest.elements) largest = {name, elements};
  }
  return largest;
}

const ModelGroup& Model::largest_group() const {
  return largest_of(groups, [](const ModelGroup& group) { return group.elements(); });
}

std::vector<partition::GroupShape> Model::shapes(DType dtype) const {
  std::vector<partition::GroupShape> shapes;
  for (const ModelGroup& group : groups) {
    partition::GroupShape& shape = shapes.emplace_back();
    for (const ModelParameter& parameter : group.parameters)
      shape.parameters.push_back({parameter.name, dtype, parameter.shape, {}});
  }
  return shapes;
}

double tiles_of(std::uint64_t elements, std::uint64_t tile_elements, std::uint32_t ranks) {
  return std::ceil(static_cast<double>(elements) / ranks / static_cast<double>(tile_elements));
}

std::string tiles_refusal(double tiles, std::uint64_t tile_elements) {
  constexpr double kMost = 400'000;
  if (tiles <= kMost) return "";
  return fmt::format(
      "a rank has {:.0f} tiles, and no more than {:.0f} are planned: more nodes, or a larger "
      "headrace.tile_elements ({} now), make them fewer",
      tiles, kMost, tile_elements);
}

std::string known_models() {
  std::string text;
  for (const std::string_view name : known_names())
    text += (text.empty() ? "" : ", ") + std::string(name);
  return text + ", gpt-WIDTHxLAYERS (gpt-4096x50)";
}

Model model_of(const std::string& word) {
  std::error_code ignored;
  const auto status = std::filesystem::status(word, ignored);
  if (std::filesystem::is_directory(status)) return model_of_directory(word);
  if (std::filesystem::exists(status)) return model_of_file(word);
  const bool sized = is_sized_name(word);
  Model model{word, sized ? "like GPT-2" : "published shapes", groups_of_known(word)};
  if (model.groups.empty() && sized) {
    throw Error(Code::kInvalidArgument, "'" + word + "' is no model: gpt-WIDTHxLAYERS takes " +
                                            sized_names() + "; nothing was done. Change it.");
  }
  if (model.groups.empty()) refuse_unknown(word);
  return model;
}
}  // namespace headrace::tools
