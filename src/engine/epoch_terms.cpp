// SPDX-License-Identifier: Apache-2.0
#include "engine/epoch_terms.hpp"

#include <algorithm>
#include <array>
#include <span>

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

std::string EpochTerms::difference_from(const swap::CommitRecord& record) const {
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
  if (std::string text = difference_in_parameters(record); !text.empty()) return text;
  if (counts_ != record.head().counts) return "the store divides the parameters differently";
  return difference_in_hyperparameters(record);
}

std::string EpochTerms::difference_in_parameters(const swap::CommitRecord& record) const {
  for (std::uint32_t i = 0; i < counts_.parameters; ++i) {
    if (record.parameter_prints()[i] == print_of({i})) continue;
    return "parameter " + std::to_string(i) + ", '" + registry_.parameter({i}).full_name +
           "', is another one in the store, or has another group, type, shape, hyperparameter set "
           "or ParameterSpec::frozen there";
  }
  return {};
}

// Takes over the changes of set_hyperparameters() during the run, and compares what was registered.
std::string EpochTerms::difference_in_hyperparameters(const swap::CommitRecord& record) const {
  for (std::uint32_t s = 0; s < counts_.hyperparameter_sets; ++s) {
    if (record.hyperparameters()[s].registered == swap::packed(registry_.hyperparameters({s})))
      continue;
    return "hyperparameter set " + std::to_string(s) +
           " has other values than in the store (to change them during a run, call "
           "set_hyperparameters() after freeze)";
  }
  return {};
}
}  // namespace headrace::engine
