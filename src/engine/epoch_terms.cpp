// SPDX-License-Identifier: Apache-2.0
#include "engine/epoch_terms.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "kernels/hash.hpp"
#include "settings/key_table.hpp"
#include "tiles/tile_places.hpp"

namespace headrace::engine {
namespace {
constexpr std::string_view kSharedSettings[] = {
    "headrace.optimizer",     "headrace.master",        "headrace.moments",
    "headrace.rounding_seed", "headrace.tile_elements", "headrace.trainer_state_bytes"};

std::string line_of(std::string_view key, const std::string& value) {
  return std::string(key) + " " + value + "\n";
}

// The value of `key` among the lines; empty if it is not there.
std::string_view value_in(std::string_view lines, std::string_view key) {
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ')
      return line.substr(key.size() + 1);
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
  }
  return {};
}

// "is A in the store and B in this run".
std::string in_both(const std::string& verb, const std::string& theirs, const std::string& mine) {
  return verb + " " + theirs + " in the store and " + mine + " in this run";
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::string text_of_float(std::uint32_t bits) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, std::bit_cast<float>(bits)).ptr};
}

// Of two that differ, in the order of swap::packed().
std::string difference_between(const swap::CommitHyperparameters::Values& theirs,
                               const swap::CommitHyperparameters::Values& mine) {
  constexpr const char* kFloats[] = {
      "learning_rate_scale", "beta1",    "beta2",     "eps",
      "weight_decay",        "momentum", "dampening", "learning_rate_decay"};
  constexpr const char* kFlags[] = {"nesterov", "bias_correction", "maximize"};
  static_assert(std::size(kFloats) == std::size(swap::CommitHyperparameters::Values{}.floats));
  for (std::size_t i = 0; i < std::size(kFloats); ++i) {
    if (theirs.floats[i] == mine.floats[i]) continue;
    return in_both(std::string(" has ") + kFloats[i], text_of_float(theirs.floats[i]),
                   text_of_float(mine.floats[i]));
  }
  for (std::size_t i = 0; i < std::size(kFlags); ++i) {
    const bool in_store = (theirs.flags >> i & 1) != 0, here = (mine.flags >> i & 1) != 0;
    if (in_store == here) continue;
    return in_both(std::string(" has ") + kFlags[i], in_store ? "true" : "false",
                   here ? "true" : "false");
  }
  return " has other flags in the store";
}

std::string text_of(const Settings& settings, const partition::Partition& partition,
                    std::uint32_t hyperparameter_sets) {
  std::string text = line_of("ranks", std::to_string(partition.world_size));
  for (const std::string_view path : kSharedSettings) {
    const auto key = std::ranges::find(settings::keys(), path, &settings::Key::path);
    text += line_of(path, settings::value_text(*key, settings));
  }
  text += line_of("parameters", std::to_string(partition.parameters.size()));
  text += line_of("groups", std::to_string(partition.group_sections.size()));
  return text + line_of("hyperparameter sets", std::to_string(hyperparameter_sets));
}
}  // namespace

swap::StoreRegistration registration_of(const partition::Registry& registry,
                                        const partition::Partition& partition) {
  swap::StoreRegistration out{partition.tile_elements, {}, {}};
  for (const partition::RegisteredGroup& group : registry.groups())
    out.groups.push_back(group.name);
  for (std::size_t i = 0; i < partition.parameters.size(); ++i) {
    const partition::RegisteredParameter& parameter = registry.parameters()[i];
    const partition::Parameter& place = partition.parameters[i];
    out.parameters.push_back({parameter.full_name, parameter.spec.dtype, parameter.spec.frozen,
                              parameter.spec.shape, place.group, place.section,
                              place.first_element});
  }
  return out;
}

EpochTerms::EpochTerms(const Settings& settings, const partition::Registry& registry,
                       const partition::Partition& partition)
    : registry_(registry),
      text_(text_of(settings, partition, registry.hyperparameter_sets())),
      counts_(counts_of(settings, partition, registry.hyperparameter_sets())) {}

swap::CommitCounts EpochTerms::counts_of(const Settings& settings,
                                         const partition::Partition& partition,
                                         std::uint32_t hyperparameter_sets) {
  const std::string text = text_of(settings, partition, hyperparameter_sets);
  swap::CommitCounts counts;
  counts.tiles = static_cast<std::uint32_t>(partition.tiles.size());
  counts.parameters = static_cast<std::uint32_t>(partition.parameters.size());
  counts.hyperparameter_sets = hyperparameter_sets;
  counts.terms_bytes = static_cast<std::uint32_t>(base::align_up(text.size(), 8));
  counts.weight_checksums = tiles::TilePlaces::weight_checksums_in(partition);
  counts.trainer_state_bytes = settings.trainer_state_bytes;
  return counts;
}

void EpochTerms::describe(const swap::CommitRecord& record) const {
  std::ranges::copy(text_, record.terms().begin());
  for (std::uint32_t i = 0; i < counts_.parameters; ++i)
    record.parameter_prints()[i] = print_of({i});
  for (std::uint32_t s = 0; s < counts_.hyperparameter_sets; ++s)
    record.hyperparameters()[s].registered = swap::packed(registry_.hyperparameters({s}));
}

std::uint64_t EpochTerms::print_of(ParameterId id) const {
  const partition::RegisteredParameter& parameter = registry_.parameter(id);
  std::string text = registry_.group(parameter.group).name + "\n" + parameter.full_name + "\n" +
                     name_of(parameter.spec.dtype) + (parameter.spec.frozen ? " frozen" : "");
  for (const std::int64_t size : parameter.spec.shape) text += "\n" + std::to_string(size);
  text += "\nset " + std::to_string(parameter.spec.hyperparameters.index);
  return kernels::xxh3_64(std::as_bytes(std::span(text)), 0);
}

std::string EpochTerms::difference_from(const swap::CommitRecord& record,
                                        const ReadRegistration& read) const {
  const std::string_view theirs(record.terms().data(), record.terms().size());
  std::string_view mine = text_;
  while (!mine.empty()) {
    const std::string_view line = mine.substr(0, mine.find('\n'));
    const std::string_view key = line.substr(0, line.rfind(' '));
    const std::string_view value = line.substr(key.size() + 1), other = value_in(theirs, key);
    if (value != other) {
      return "the store has " + std::string(key) + " " +
             (other.empty() ? "unknown" : std::string(other)) + ", this run has " +
             std::string(value);
    }
    mine.remove_prefix(line.size() + 1);
  }
  if (std::string text = difference_in_parameters(record, read); !text.empty()) return text;
  if (counts_ != record.head().counts) return "the store divides the parameters differently";
  return difference_in_hyperparameters(record);
}

std::string EpochTerms::difference_in_parameters(const swap::CommitRecord& record,
                                                 const ReadRegistration& read) const {
  for (std::uint32_t i = 0; i < counts_.parameters; ++i) {
    if (record.parameter_prints()[i] == print_of({i})) continue;
    const std::optional<swap::StoreRegistration> stored = read();
    if (stored && i < stored->parameters.size()) return difference_in({i}, *stored);
    return "parameter " + std::to_string(i) + ", '" + registry_.parameter({i}).full_name +
           "', is another one in the store, or has another group, type, shape, hyperparameter set "
           "or ParameterSpec::frozen there";
  }
  return {};
}

// Of one whose print differs.
std::string EpochTerms::difference_in(ParameterId id, const swap::StoreRegistration& stored) const {
  const swap::StoredParameter& theirs = stored.parameters[id.index];
  const partition::RegisteredParameter& mine = registry_.parameter(id);
  const std::string number = "parameter " + std::to_string(id.index);
  if (theirs.full_name != mine.full_name)
    return number + in_both(" is", "'" + theirs.full_name + "'", "'" + mine.full_name + "'");
  const std::string parameter = number + ", '" + mine.full_name + "',";
  const std::string their_group =
      theirs.group < stored.groups.size() ? stored.groups[theirs.group] : "?";
  const std::string& my_group = registry_.group(mine.group).name;
  if (their_group != my_group)
    return parameter + in_both(" is of group", "'" + their_group + "'", "'" + my_group + "'");
  if (theirs.shape != mine.spec.shape)
    return parameter + in_both(" has shape", text_of(theirs.shape), text_of(mine.spec.shape));
  if (theirs.dtype != mine.spec.dtype)
    return parameter + in_both(" has type", name_of(theirs.dtype), name_of(mine.spec.dtype));
  if (theirs.frozen != mine.spec.frozen) {
    return parameter + in_both(" is", theirs.frozen ? "frozen" : "trained",
                               mine.spec.frozen ? "frozen" : "trained");
  }
  return parameter + " has another hyperparameter set in the store than set " +
         std::to_string(mine.spec.hyperparameters.index) + ", which it has in this run";
}

// Takes over the changes of set_hyperparameters() during the run, and compares what was registered.
std::string EpochTerms::difference_in_hyperparameters(const swap::CommitRecord& record) const {
  for (std::uint32_t s = 0; s < counts_.hyperparameter_sets; ++s) {
    const auto& theirs = record.hyperparameters()[s].registered;
    const auto mine = swap::packed(registry_.hyperparameters({s}));
    if (theirs == mine) continue;
    return "hyperparameter set " + std::to_string(s) + difference_between(theirs, mine) +
           " (to change it during a run, call set_hyperparameters() after freeze)";
  }
  return {};
}
}  // namespace headrace::engine
