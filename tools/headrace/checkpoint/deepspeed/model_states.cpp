// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/deepspeed/model_states.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error_text.hpp"
#include "checkpoint/deepspeed/values.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "pickle/fault.hpp"

namespace headrace::tools {
namespace {
namespace fs = std::filesystem;
using pickle::Kind;
using pickle::PickledTensor;
using pickle::TensorFile;
using pickle::Value;
constexpr const char* kEnd = "_model_states.pt";

std::vector<std::string> names_in(const std::string& folder, const std::string& begin) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && name.ends_with(kEnd)) names.push_back(name);
  }
  // zero_pp_rank_10 is behind zero_pp_rank_9.
  std::ranges::sort(names, [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  return names;
}

// A member of a dict, or nullptr if it is missing or None.
const Value* member(const Value& dict, std::string_view key) {
  const Value* const found = dict.find(key);
  return found == nullptr || found->is(Kind::kNone) ? nullptr : found;
}
const Value* member(const TensorFile& file, const Value& dict, std::string_view key, Kind kind) {
  const Value* const found = member(dict, key);
  if (found != nullptr && !found->is(kind))
    file.refuse(std::string(key) + " is " + text_of(*found));
  return found;
}

// The keys, each with its value, of a dict.
std::vector<std::pair<std::string, const Value*>> members(const TensorFile& file,
                                                          const Value& dict) {
  std::vector<std::pair<std::string, const Value*>> all;
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    if (!dict.items[i]->is(Kind::kText)) file.refuse("a name is " + text_of(*dict.items[i]));
    all.emplace_back(dict.items[i]->text, dict.items[i + 1]);
  }
  return all;
}

// The same by name, of a dict that may be missing.
std::map<std::string, const Value*> by_name(const TensorFile& file, const Value* dict) {
  std::map<std::string, const Value*> all;
  if (dict == nullptr) return all;
  for (const auto& [name, value] : members(file, *dict)) all[name] = value;
  return all;
}
const Value& named(const TensorFile& file, const std::map<std::string, const Value*>& values,
                   const std::string& name, const char* what) {
  const auto found = values.find(name);
  if (found == values.end())
    file.refuse(std::string("it lacks ") + what + " of the frozen '" + name + "'");
  return *found->second;
}

// It becomes the name of a folder, and of a tensor of a safetensors file.
void check_name(const TensorFile& file, const std::string& name) {
  const bool is_path = name.empty() || name == "." || name == ".." || name.size() > 255 ||
                       name.find('/') != std::string::npos || name.find('\0') != std::string::npos;
  if (is_path)
    file.refuse("the parameter " + checkpoint::shown_name(name.substr(0, 300)) +
                " cannot be the name of a folder");
  if (const std::string fault = checkpoint::name_fault(name); !fault.empty())
    file.refuse("a parameter is named " + checkpoint::shown_name(name) + ", " + fault);
}

std::optional<OptimizerRule> rule_of(const Value& ds_config) {
  const Value* const optimizer = ds_config.find("optimizer");
  const Value* const type = optimizer == nullptr ? nullptr : optimizer->find("type");
  if (type == nullptr || !type->is(Kind::kText)) return std::nullopt;
  std::string name(type->text);
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (name == "adamw") return OptimizerRule::kAdamW;
  if (name != "adam") return std::nullopt;
  // DeepSpeed's "Adam" decays weights as AdamW does, unless this is false.
  const Value* const parameters = optimizer->find("params");
  const Value* const mode = parameters == nullptr ? nullptr : parameters->find("adam_w_mode");
  const bool is_adam = mode != nullptr && mode->is(Kind::kBool) && mode->number == 0;
  return is_adam ? OptimizerRule::kAdam : OptimizerRule::kAdamW;
}
}  // namespace

ModelStates::ModelStates(const std::string& folder) {
  open(folder);
  for (const auto& file : files_) read(*file);
  add_shares(folder);
}

void ModelStates::open(const std::string& folder) {
  std::vector<std::string> names = names_in(folder, "mp_rank_");
  if (names.empty()) names = names_in(folder, "zero_pp_rank_0_mp_rank_");
  if (names.empty()) {
    throw Error(Code::kNotFound,
                folder +
                    " has no mp_rank_*_model_states.pt or zero_pp_rank_0_*_model_states.pt, which "
                    "name the parameters and their dtypes; nothing was converted. Run "
                    "ds_to_universal again, which copies them.");
  }
  for (const std::string& name : names)
    files_.push_back(std::make_unique<TensorFile>(folder + "/" + name));
  split_ = files_.size() > 1;
}

void ModelStates::read(TensorFile& file) {
  const Value& root = file.root();
  if (!root.is(Kind::kDict)) file.refuse("it holds " + text_of(root) + ", no dict");
  read_trained(file, root);
  read_others(file, root);
  read_frozen(file, root);
  if (const Value* const module = member(file, root, "module", Kind::kDict))
    read_module(file, *module);
}

StatedParameter* ModelStates::find(const std::string& name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &parameters_[found->second];
}

StatedParameter& ModelStates::add(const std::string& name, const TensorFile& file,
                                  const Value& shape) {
  check_name(file, name);
  StatedParameter parameter;
  parameter.name = name;
  if (!shape.is(Kind::kTuple)) file.refuse("the shape of '" + name + "' is " + text_of(shape));
  for (const Value* const size : shape.items) {
    if (!size->is(Kind::kInt)) file.refuse("a size of '" + name + "' is " + text_of(*size));
    parameter.shape.push_back(size->number);
  }
  by_name_[name] = parameters_.size();
  return parameters_.emplace_back(std::move(parameter));
}

void ModelStates::read_trained(TensorFile& file, const Value& root) {
  const Value* const groups = member(file, root, "param_shapes", Kind::kList);
  if (groups == nullptr) file.refuse("it lacks param_shapes, so it was not saved with ZeRO");
  for (std::size_t g = 0; g < groups->items.size(); ++g) {
    if (!groups->items[g]->is(Kind::kDict))
      file.refuse("a group of param_shapes is " + text_of(*groups->items[g]));
    for (const auto& [name, shape] : members(file, *groups->items[g]))
      if (find(name) == nullptr) add(name, file, *shape).sub_group = g;
  }
}

void ModelStates::read_others(TensorFile& file, const Value& root) {
  if (const Value* const buffers = member(file, root, "buffer_names", Kind::kList)) {
    for (const Value* const name : buffers->items)
      if (name->is(Kind::kText)) others_[std::string(name->text)] = "a buffer";
  }
  if (const Value* const shared = member(file, root, "shared_params", Kind::kDict)) {
    for (const auto& [name, other] : members(file, *shared))
      if (other->is(Kind::kText)) others_[name] = "the same as " + base::one_line(other->text, 200);
  }
}

void ModelStates::read_frozen(TensorFile& file, const Value& root) {
  const Value* const shapes = member(file, root, "frozen_param_shapes", Kind::kDict);
  if (shapes == nullptr) return;
  const auto parts = by_name(file, member(file, root, "frozen_param_fragments", Kind::kDict));
  for (const auto& [name, shape] : members(file, *shapes)) {
    if (find(name) != nullptr || others_.contains(name)) continue;
    StatedParameter& parameter = add(name, file, *shape);
    parameter.frozen = true;
    const Value& part = named(file, parts, name, "the values");
    parameter.parts = {{&file, &file.tensor(part, "'" + name + "'")}};
    parameter.dtype = parameter.parts[0].tensor->dtype;
  }
}

// Of ZeRO-3, a placeholder with the dtype alone. What it has beside the trained ones, the buffers
// and second names is frozen: ZeRO-1 lists those nowhere else.
void ModelStates::read_module(TensorFile& file, const Value& module) {
  for (const auto& [name, value] : members(file, module)) {
    if (others_.contains(name)) continue;
    StatedParameter* const known = find(name);
    if (value->is(Kind::kTensor) && known != nullptr) {
      known->dtype = value->tensor->dtype;
    } else if (value->is(Kind::kTensor) && widens(value->tensor->dtype)) {
      add_frozen(file, name, file.tensor(*value, "'" + name + "'"));
    } else if (known == nullptr) {
      others_[name] = text_of(*value);  // such as what a module keeps as its extra state
    }
  }
}

void ModelStates::add_frozen(TensorFile& file, const std::string& name,
                             const PickledTensor& tensor) {
  check_name(file, name);
  StatedParameter parameter{name, {}, std::string(tensor.dtype), 0, true, {{&file, &tensor}}};
  for (const std::uint64_t size : tensor.shape)
    parameter.shape.push_back(static_cast<std::int64_t>(size));
  by_name_[name] = parameters_.size();
  parameters_.push_back(std::move(parameter));
}

// ZeRO-3 divides frozen parameters too; each rank's file has its share, the last ones padded.
void ModelStates::add_shares(const std::string& folder) {
  const bool any = std::ranges::any_of(parameters_, &StatedParameter::frozen);
  if (!any || fs::path(files_[0]->path()).filename().string().starts_with("mp_rank_")) return;
  for (const std::string& name : names_in(folder, "zero_pp_rank_")) {
    if (name.starts_with("zero_pp_rank_0_")) continue;
    TensorFile& file = *shares_.emplace_back(std::make_unique<TensorFile>(folder + "/" + name));
    const auto parts =
        by_name(file, member(file, file.root(), "frozen_param_fragments", Kind::kDict));
    for (StatedParameter& parameter : parameters_) {
      if (!parameter.frozen) continue;
      const Value& part = named(file, parts, parameter.name, "its share");
      parameter.parts.push_back({&file, &file.tensor(part, "'" + parameter.name + "'")});
    }
  }
}

std::optional<OptimizerRule> ModelStates::rule() const {
  for (const auto& file : files_) {
    const Value* const config = member(file->root(), "ds_config");
    if (config == nullptr) continue;
    if (const auto rule = rule_of(*config)) return rule;
  }
  return std::nullopt;
}

std::vector<std::string> ModelStates::unknown() const {
  std::set<std::string> names;
  for (const auto* const some : {&files_, &shares_})
    for (const auto& file : *some) names.insert(file->unknown().begin(), file->unknown().end());
  return {names.begin(), names.end()};
}
}  // namespace headrace::tools
