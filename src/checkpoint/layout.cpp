// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layout.hpp"

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error_text.hpp"
#include "checkpoint/chunk_sums.hpp"
#include "checkpoint/safetensors_parse.hpp"
#include "optimizer_cpu/state_streams.hpp"

namespace headrace::checkpoint {
namespace {
constexpr std::array kPrefixes = {"", "master.", "exp_avg.", "exp_avg_sq."};  // by Content
constexpr std::size_t kFileDigits = 5;

struct Expected {
  std::uint32_t parameter = 0;
  Kept kept;
};
using ExpectedByName = std::map<std::string, Expected>;

// "model-00002-of-00003.safetensors"; of one file: "model.safetensors".
std::string file_name(const std::string& begins, std::size_t number, std::size_t of) {
  if (of == 1) return begins + ".safetensors";
  const auto digits = [](std::size_t value) {
    std::string text = std::to_string(value);
    return std::string(kFileDigits - std::min(kFileDigits, text.size()), '0') + text;
  };
  return begins + "-" + digits(number) + "-of-" + digits(of) + ".safetensors";
}

std::vector<SavedFile> files_for(const std::vector<TensorHeader>& tensors,
                                 const std::string& begins, std::uint64_t file_bytes) {
  std::vector<SavedFile> files(1);
  std::uint64_t used = 0;
  for (const TensorHeader& tensor : tensors) {
    if (used > 0 && used + tensor.size_bytes > file_bytes) {
      files.emplace_back();
      used = 0;
    }
    used += tensor.size_bytes;
    files.back().tensors.push_back(SavedTensor{tensor.name, {}});
  }
  for (std::size_t i = 0; i < files.size(); ++i)
    files[i].name = file_name(begins, i + 1, files.size());
  return files;
}

// Places the tensors of a file, and takes them out of `expected`.
void place(const Manifest& manifest, const SavedFile& saved, ExpectedByName& expected,
           Layout& layout, const std::string& directory) {
  PlacedFile file{saved.name, {}, static_cast<std::uint32_t>(layout.tensors.size()), 0, 0};
  std::vector<TensorHeader> headers;
  for (const SavedTensor& tensor : saved.tensors) {
    const auto found = expected.find(tensor.name);
    if (found == expected.end()) {
      refuse_damaged(directory, "manifest.json has the tensor " + base::quoted_name(tensor.name) +
                                    " in " + saved.name + ", which its parameters do not have");
    }
    const auto [parameter, kept] = found->second;
    headers.push_back(header_of(manifest.parameters[parameter], kept));
    const std::uint64_t size = headers.back().size_bytes;
    if (tensor.checksums.size() != chunks_of(size)) {
      refuse_damaged(directory, "manifest.json has " + std::to_string(tensor.checksums.size()) +
                                    " checksums of " + base::quoted_name(tensor.name) + ", not " +
                                    std::to_string(chunks_of(size)));
    }
    if (kept) {
      layout.by_content[parameter][static_cast<std::size_t>(*kept)] =
          static_cast<std::uint32_t>(layout.tensors.size());
    }
    layout.tensors.push_back(
        {parameter, kept, static_cast<std::uint32_t>(layout.files.size()), file.size_bytes, size});
    file.size_bytes += size;
    expected.erase(found);
  }
  file.tensors = static_cast<std::uint32_t>(headers.size());
  file.header = safetensors_header(headers);
  file.size_bytes += file.header.size();
  for (std::uint32_t i = 0; i < file.tensors; ++i)
    layout.tensors[file.first_tensor + i].at += file.header.size();
  layout.files.push_back(std::move(file));
}

void place_all(const Manifest& manifest, const std::vector<SavedFile>& files,
               ExpectedByName expected, Layout& layout, const std::string& directory) {
  for (const SavedFile& file : files) place(manifest, file, expected, layout, directory);
  if (!expected.empty())
    refuse_damaged(directory, "manifest.json lacks " + base::quoted_name(expected.begin()->first));
}
}  // namespace

std::optional<OptimizerRule> rule_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(OptimizerRule::kSgdMomentum); ++i) {
    if (name == name_of(static_cast<OptimizerRule>(i))) return static_cast<OptimizerRule>(i);
  }
  return std::nullopt;
}

std::vector<Kept> states_of(OptimizerRule rule) {
  std::vector<Kept> kept = {Content::kMaster, Content::kExpAvg, Content::kExpAvgSq};
  kept.resize(1 + moments(optimizer_cpu::arithmetic_of(rule)));
  kept.push_back(std::nullopt);
  return kept;
}

std::string tensor_name(const Kept& kept, const std::string& parameter) {
  return (kept ? kPrefixes[static_cast<std::size_t>(*kept)] : "step.") + parameter;
}

std::uint64_t elements_of(const SavedParameter& parameter) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : parameter.shape) elements *= static_cast<std::uint64_t>(size);
  return elements;
}

TensorHeader header_of(const SavedParameter& parameter, const Kept& kept) {
  const std::string name = tensor_name(kept, parameter.name);
  if (!kept) return {name, "I64", {}, sizeof(std::int64_t)};
  const std::uint64_t elements = elements_of(parameter);
  if (*kept != Content::kWeight) return {name, "F32", parameter.shape, elements * sizeof(float)};
  return {name, parameter.dtype, parameter.shape, elements * dtype_size_bytes(parameter.dtype)};
}

void assign_files(Manifest& manifest, OptimizerRule rule, std::uint64_t file_bytes) {
  std::vector<TensorHeader> weights, states;
  for (const SavedParameter& parameter : manifest.parameters) {
    weights.push_back(header_of(parameter, Content::kWeight));
    if (parameter.frozen) continue;
    for (const Kept& kept : states_of(rule)) states.push_back(header_of(parameter, kept));
  }
  manifest.weights = files_for(weights, "model", file_bytes);
  manifest.states = files_for(states, "optimizer", file_bytes);
  for (auto* const files : {&manifest.weights, &manifest.states}) {
    const std::vector<TensorHeader>& tensors = files == &manifest.weights ? weights : states;
    std::size_t next = 0;
    for (SavedFile& file : *files)
      for (SavedTensor& tensor : file.tensors)
        tensor.checksums.resize(chunks_of(tensors[next++].size_bytes));
  }
}

Layout layout_of(const Manifest& manifest, const std::string& directory) {
  const std::optional<OptimizerRule> rule = rule_named(manifest.rule);
  if (!rule) {
    refuse(directory,
           "its optimizer.rule " + base::quoted_name(manifest.rule) + " is unknown to this library",
           Code::kUnsupported, "Use the library that saved it.");
  }
  ExpectedByName weights, states;
  for (std::uint32_t i = 0; i < manifest.parameters.size(); ++i) {
    const SavedParameter& parameter = manifest.parameters[i];
    weights[parameter.name] = {i, Content::kWeight};
    if (parameter.frozen) continue;
    for (const Kept& kept : states_of(*rule)) states[tensor_name(kept, parameter.name)] = {i, kept};
  }
  Layout layout;
  layout.by_content.resize(manifest.parameters.size());
  place_all(manifest, manifest.weights, std::move(weights), layout, directory);
  place_all(manifest, manifest.states, std::move(states), layout, directory);
  return layout;
}

std::string index_of(const Manifest& manifest, const Layout& layout, bool weights) {
  const std::vector<SavedFile>& files = weights ? manifest.weights : manifest.states;
  if (files.size() < 2) return {};
  const std::size_t first = weights ? 0 : manifest.weights.size();
  using Json = nlohmann::ordered_json;
  Json weight_map = Json::object();
  auto& members = weight_map.get_ref<Json::object_t&>();  // its operator[] would compare all names
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const PlacedFile& placed = layout.files[first + i];
    total += placed.size_bytes - placed.header.size();
    for (const SavedTensor& tensor : files[i].tensors)
      members.emplace_back(tensor.name, files[i].name);
  }
  Json index = {{"metadata", {{"total_size", total}}}};
  index["weight_map"] = std::move(weight_map);
  return index.dump(2) + "\n";
}

const char* index_name(bool weights) {
  return weights ? "model.safetensors.index.json" : "optimizer.safetensors.index.json";
}

SavedFile& saved_file(Manifest& manifest, std::uint32_t file) {
  const std::size_t weights = manifest.weights.size();
  return file < weights ? manifest.weights[file] : manifest.states[file - weights];
}

SavedTensor& saved_tensor(Manifest& manifest, const Layout& layout, std::uint32_t tensor) {
  const std::uint32_t file = layout.tensors[tensor].file;
  return saved_file(manifest, file).tensors[tensor - layout.files[file].first_tensor];
}
}  // namespace headrace::checkpoint
