// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/facts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "program/report_parts.hpp"

namespace headrace::tools {
namespace {
namespace fs = std::filesystem;

std::optional<std::uint64_t> length_of(const std::string& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return std::nullopt;
  return size;
}

const char* plural(std::uint64_t count) { return count == 1 ? "" : "s"; }

void count(Counted& counted, std::uint64_t elements) {
  ++counted.parameters;
  counted.elements += elements;
}

std::string counted_text(const Counted& counted) {
  return fmt::format("{} parameter{} with {} element{}", grouped(counted.parameters),
                     plural(counted.parameters), grouped(counted.elements),
                     plural(counted.elements));
}

std::string file_line(const FileFacts& file) {
  std::string text = fmt::format("  {:<36} {:>10}", base::one_line(file.name, 200),
                                 base::format_bytes(file.size_bytes));
  if (file.tensors > 0)
    text += fmt::format("  {} tensor{}", grouped(file.tensors), plural(file.tensors));
  if (!file.found_bytes) return text + "  DAMAGED: it is not there\n";
  if (!file.whole_length())
    text += fmt::format("  DAMAGED: it has {} bytes, not {}", *file.found_bytes, file.size_bytes);
  return text + "\n";
}

Json counted_json(const Counted& counted) {
  return {{"parameters", counted.parameters}, {"elements", counted.elements}};
}
}  // namespace

OpenCheckpoint open_checkpoint(const std::string& folder) {
  checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  checkpoint::Layout layout = checkpoint::layout_of(manifest, folder);
  return {folder, std::move(manifest), std::move(layout)};
}

std::uint64_t CheckpointFacts::found_bytes() const {
  std::uint64_t bytes = 0;
  for (const FileFacts& file : files) bytes += file.found_bytes.value_or(0);
  return bytes;
}

bool CheckpointFacts::whole_lengths() const {
  return std::ranges::all_of(files, &FileFacts::whole_length);
}

CheckpointFacts facts_of(const OpenCheckpoint& open) {
  CheckpointFacts facts;
  for (const checkpoint::SavedParameter& parameter : open.manifest.parameters) {
    const std::uint64_t elements = checkpoint::elements_of(parameter);
    count(facts.all, elements);
    count(parameter.frozen ? facts.frozen : facts.trained, elements);
    count(facts.dtypes[parameter.dtype], elements);
    if (parameter.frozen) continue;
    facts.least_step = std::min(facts.least_step.value_or(parameter.step), parameter.step);
    facts.most_step = std::max(facts.most_step.value_or(parameter.step), parameter.step);
  }
  for (const checkpoint::PlacedTensor& tensor : open.layout.tensors)
    (tensor.kept == Content::kWeight ? facts.weight_bytes : facts.state_bytes) += tensor.size_bytes;
  for (const checkpoint::PlacedFile& file : open.layout.files) {
    facts.files.push_back(
        {file.name, file.size_bytes, length_of(open.folder + "/" + file.name), file.tensors});
  }
  if (open.manifest.trainer_state) {
    const std::string name = checkpoint::kTrainerStateName;
    facts.files.push_back(
        {name, open.manifest.trainer_state->size_bytes, length_of(open.folder + "/" + name), 0});
  }
  return facts;
}

std::string steps_text(const CheckpointFacts& facts) {
  if (!facts.most_step) return "no step";
  if (facts.least_step == facts.most_step) return fmt::format("step {}", grouped(*facts.most_step));
  return fmt::format("steps {} to {}", grouped(*facts.least_step), grouped(*facts.most_step));
}

std::string facts_text(const OpenCheckpoint& open, const CheckpointFacts& facts) {
  std::string text =
      fmt::format("  optimizer {}, moments {}, {}\n", base::one_line(open.manifest.rule),
                  base::one_line(open.manifest.moments), steps_text(facts));
  text += fmt::format("  {}: {} trained, {} frozen\n", counted_text(facts.all),
                      grouped(facts.trained.parameters), grouped(facts.frozen.parameters));
  for (const auto& [dtype, counted] : facts.dtypes)
    text += fmt::format("    {}: {}\n", base::one_line(dtype), counted_text(counted));
  const auto& state = open.manifest.trainer_state;
  text += fmt::format("  weights {}, optimizer state {}, {}\n",
                      base::format_bytes(facts.weight_bytes), base::format_bytes(facts.state_bytes),
                      state ? "trainer state " + base::format_bytes(state->size_bytes)
                            : std::string("no trainer state"));
  for (const FileFacts& file : facts.files) text += file_line(file);
  return text;
}

Json facts_json(const OpenCheckpoint& open, const CheckpointFacts& facts) {
  const auto number = [](const auto& value) { return value ? Json(*value) : Json(); };
  Json json = {{"optimizer", open.manifest.rule},        {"moments", open.manifest.moments},
               {"step_min", number(facts.least_step)},   {"step_max", number(facts.most_step)},
               {"parameters", facts.all.parameters},     {"elements", facts.all.elements},
               {"trained", counted_json(facts.trained)}, {"frozen", counted_json(facts.frozen)},
               {"weight_bytes", facts.weight_bytes},     {"state_bytes", facts.state_bytes}};
  json["trainer_state_bytes"] =
      open.manifest.trainer_state ? Json(open.manifest.trainer_state->size_bytes) : Json();
  json["dtypes"] = Json::object();
  for (const auto& [dtype, counted] : facts.dtypes) json["dtypes"][dtype] = counted_json(counted);
  json["files"] = Json::array();
  for (const FileFacts& file : facts.files) {
    json["files"].push_back({{"name", file.name},
                             {"size_bytes", file.size_bytes},
                             {"found_bytes", number(file.found_bytes)},
                             {"tensors", file.tensors}});
  }
  return json;
}

std::string tensors_text(const OpenCheckpoint& open) {
  std::string text;
  for (const checkpoint::PlacedTensor& tensor : open.layout.tensors) {
    const auto header =
        checkpoint::header_of(open.manifest.parameters[tensor.parameter], tensor.kept);
    text += fmt::format("  {:<4} {} {} in {}\n", base::one_line(header.dtype),
                        checkpoint::shown_name(header.name), Json(header.shape).dump(),
                        base::one_line(open.layout.files[tensor.file].name, 200));
  }
  return text;
}

Json tensors_json(const OpenCheckpoint& open) {
  Json all = Json::array();
  for (const checkpoint::PlacedTensor& tensor : open.layout.tensors) {
    const auto header =
        checkpoint::header_of(open.manifest.parameters[tensor.parameter], tensor.kept);
    all.push_back({{"name", header.name},
                   {"dtype", header.dtype},
                   {"shape", header.shape},
                   {"file", open.layout.files[tensor.file].name},
                   {"offset_bytes", tensor.at},
                   {"size_bytes", tensor.size_bytes}});
  }
  return all;
}
}  // namespace headrace::tools
