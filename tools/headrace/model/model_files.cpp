// SPDX-License-Identifier: Apache-2.0
#include "model/model_files.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <span>

#include "base/error_text.hpp"
#include "checkpoint/safetensors_parse.hpp"
#include "checkpoint/weight_map.hpp"
#include "headrace/error.hpp"
#include "model/blocks.hpp"
#include "model/families.hpp"
#include "model/model_text.hpp"
#include "settings/locate.hpp"

namespace headrace::tools {
namespace {
using Json = nlohmann::json;
namespace fs = std::filesystem;
using namespace checkpoint;

// Of a model: its bytes fit 63 bits, and its names memory. 60 layers of 384 experts, each of three
// matrices and their scales, are 138,240 tensors.
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 50, kMostTensors = 200'000,
                        kMostGroups = 65'536;
constexpr std::size_t kLongestName = 1000;

// Before there is memory for each.
void check_count(const std::string& path, std::uint64_t tensors) {
  if (tensors <= kMostTensors) return;
  refuse_model(path, "more than 200,000 tensors", "Give a model with fewer, larger ones.");
}

void check_name(const std::string& path, const std::string& name, const char* remedy) {
  if (name.size() <= kLongestName) return;
  refuse_model(path, "the name '" + name.substr(0, 40) + "...' is longer than 1000 bytes", remedy);
}

void check_shape(const std::vector<std::int64_t>& shape, const std::string& path,
                 const std::string& name, const std::string& remedy) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size < 1 || __builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements) ||
        elements > kMostElements) {
      refuse_model(path,
                   "the shape of '" + name + "' has a size that is no whole number from 1 to 2^50",
                   remedy);
    }
  }
}

std::vector<std::int64_t> shape_of(const Json& value, const std::string& path,
                                   const std::string& name, const std::string& remedy) {
  if (!value.is_array()) refuse_model(path, "the shape of '" + name + "' is no list", remedy);
  std::vector<std::int64_t> shape;
  for (const Json& size : value) {
    const bool fits = size.is_number_unsigned() && size.get<std::uint64_t>() <= kMostElements;
    shape.push_back(fits ? size.get<std::int64_t>() : 0);
  }
  check_shape(shape, path, name, remedy);
  return shape;
}

void check_size(const Model& model) {
  std::uint64_t elements = 0;
  for (const ModelGroup& group : model.groups) {
    for (const ModelParameter& parameter : group.parameters) {
      const std::uint64_t more = parameter.elements();
      if (more > kMostElements || (elements += more) > kMostElements) {
        refuse_model(model.name, "with '" + parameter.name + "' more than 2^50 parameters",
                     "Look for a size that is not meant.");
      }
    }
  }
  if (model.groups.size() > kMostGroups) {
    refuse_model(model.name, "more than 65,536 groups",
                 "A group is what is gathered at a time: give fewer, larger ones.");
  }
  if (elements == 0) refuse_model(model.name, "no parameter", "Give a model that has some.");
}

// ---- safetensors ----

const char* const kSafetensorsRemedy = "Fetch it again, or remove it from the directory.";

TensorsByName tensors_of(const std::string& path) {
  const std::uint64_t file_bytes = size_of(path);
  if (file_bytes < kLengthBytes)
    refuse_model(path, "no safetensors file: shorter than 8 bytes", kSafetensorsRemedy);
  const std::string begin = bytes_of(path, 0, kLengthBytes);
  const std::uint64_t header_bytes =
      header_length(std::as_bytes(std::span(begin)).first<kLengthBytes>());
  if (header_bytes > file_bytes - kLengthBytes || header_bytes > kLargestModelText) {
    refuse_model(path,
                 "no safetensors file: a header of " + std::to_string(header_bytes) +
                     " bytes does not fit it",
                 kSafetensorsRemedy);
  }
  const std::string header = bytes_of(path, kLengthBytes, header_bytes);
  refuse_excess(path, header, kSafetensorsRemedy);
  try {
    return parse_header(header, DataOffsets::kLeftOut);
  } catch (const SafetensorsFault& fault) {
    refuse_model(path, fault.is_no_json ? json_fault(header) : fault.what(), kSafetensorsRemedy);
  }
}

// Values that are trained; of the others, U8 and the like, none gets a gradient.
bool is_trained(const std::string& dtype, const std::string& file, const std::string& name) {
  for (const char* real : {"F64", "F32", "F16", "BF16"}) {
    if (dtype == real) return true;
  }
  if (dtype.starts_with("F8") || dtype.starts_with("F6") || dtype.starts_with("F4")) return true;
  for (const char* whole : {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}) {
    if (dtype == whole) return false;
  }
  refuse_model(file, "'" + name + "' has the dtype '" + dtype + "', which safetensors has not",
               kSafetensorsRemedy);
}

// All tensors of all files, each name once.
class Tensors {
 public:
  explicit Tensors(std::string path) : path_(std::move(path)) {}

  void add(const std::string& file) {
    files_.push_back(file);
    for (const auto& [name, tensor] : tensors_of(file)) add_tensor(file, tensor);
  }
  bool contains(const std::string& name) const { return file_of_.contains(name); }
  std::vector<ModelParameter> take() { return std::move(parameters_); }
  // "" where nothing was left out.
  std::string left_out_text() const {
    if (left_out_ == 0) return "";
    return ", without " + std::to_string(left_out_) + " tensor" + (left_out_ == 1 ? "" : "s") +
           " of whole numbers, '" + first_left_out_ + "' first";
  }

 private:
  void add_tensor(const std::string& file, const TensorEntry& tensor) {
    const std::string& name = tensor.name;
    check_name(file, name, kSafetensorsRemedy);
    const auto [before, is_new] = file_of_.emplace(name, files_.size() - 1);
    if (!is_new) {
      refuse_model(path_, "'" + name + "' is in " + files_[before->second] + " and in " + file,
                   "Leave the files of one copy of the model in the directory.");
    }
    check_count(path_, file_of_.size());
    if (is_trained(tensor.dtype, file, name)) {
      check_shape(tensor.shape, file, name, kSafetensorsRemedy);
      parameters_.push_back({name, tensor.shape});
    } else if (left_out_++ == 0) {
      first_left_out_ = name;
    }
  }
  std::string path_, first_left_out_;
  std::vector<std::string> files_;
  std::map<std::string, std::size_t> file_of_;  // index in files_
  std::vector<ModelParameter> parameters_;
  std::uint64_t left_out_ = 0;
};

// "model.safetensors.index.json": which file has which tensor.
struct Index {
  std::string path;  // "": there is none
  std::set<std::string> files;
  std::map<std::string, std::set<std::string>::const_iterator> file_of;
};

FilesByTensor weight_map_of(const std::string& path, const std::string& remedy) {
  const std::string text = json_text_of(path, remedy);
  try {
    return parse_weight_map(text);
  } catch (const SafetensorsFault& fault) {
    refuse_model(path, fault.is_no_json ? json_fault(text) : fault.what(), remedy);
  }
}

Index index_of(const std::string& directory) {
  Index index;
  std::error_code error;
  const std::string path = directory + "/model.safetensors.index.json";
  if (!fs::exists(path, error)) return index;
  const char* const remedy = "Fetch it again, or remove it.";
  const FilesByTensor file_of = weight_map_of(path, remedy);
  if (file_of.empty()) refuse_model(path, "its weight_map is empty", remedy);
  check_count(path, file_of.size());
  index.path = path;
  for (const auto& [name, file] : file_of) {
    check_name(path, name, remedy);
    index.file_of[name] = index.files.insert(directory + "/" + file).first;
  }
  return index;
}

// The files that the index names must all be there; without an index, those in the directory count.
// "model-00001-of-00002.safetensors" without the second: a download that was interrupted.
void refuse_some_of(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const std::string name = fs::path(file).stem().string();
    const std::size_t of = name.rfind("-of-");
    const std::size_t number = of == name.npos || of == 0 ? name.npos : name.rfind('-', of - 1);
    if (number == name.npos) continue;
    const std::string prefix =
        (fs::path(file).parent_path() / name.substr(0, number)).string() + "-";
    const auto parts = static_cast<std::size_t>(std::strtoull(name.c_str() + of + 4, nullptr, 10));
    const auto there = static_cast<std::size_t>(std::ranges::count_if(
        files, [&](const std::string& other) { return other.starts_with(prefix); }));
    if (there < parts) {
      refuse_model(file,
                   "one of " + std::to_string(parts) + " parts, of which " + std::to_string(there) +
                       " are there",
                   "Fetch the others.");
    }
  }
}

std::vector<std::string> files_of(const Index& index, std::vector<std::string> found) {
  if (index.path.empty()) {
    refuse_some_of(found);
    return found;
  }
  std::error_code error;
  for (const std::string& file : index.files) {
    if (!fs::exists(file, error))
      refuse_model(file, "missing, and " + index.path + " names it", "Fetch it.");
  }
  return {index.files.begin(), index.files.end()};
}

Model model_of_safetensors(const std::string& path, const std::vector<std::string>& files,
                           const Index& index) {
  Tensors tensors(path);
  for (const std::string& file : files) tensors.add(file);
  for (const auto& [name, file] : index.file_of) {
    if (!tensors.contains(name))
      refuse_model(*file, "no '" + name + "', which " + index.path + " says is there",
                   kSafetensorsRemedy);
  }
  Model model{path,
              std::to_string(files.size()) + " safetensors header" +
                  (files.size() == 1 ? "" : "s") + tensors.left_out_text(),
              groups_by_name(tensors.take())};
  check_size(model);
  return model;
}

// ---- config.json ----

class Config {
 public:
  Config(std::string path, Json json) : path_(std::move(path)), json_(std::move(json)) {}
  std::int64_t number(const char* key) const {
    if (!json_.contains(key))
      refuse_model(path_, std::string("no \"") + key + "\"",
                   "Add it, as the model's authors publish it.");
    return checked(key, kMostSize);
  }
  std::int64_t number(const char* key, std::int64_t otherwise) const {
    return has(key) ? checked(key, kMostSize) : otherwise;
  }
  // Each becomes a group: so many would take memory before anyone could say that they are too many.
  std::int64_t layers(const char* key) const {
    number(key);
    return checked(key, kMostLayers);
  }
  std::int64_t layers(const char* key, std::int64_t otherwise) const {
    return has(key) ? checked(key, kMostLayers) : otherwise;
  }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_[key].is_boolean()) refuse_value(key, "it must be true or false");
    return json_[key].get<bool>();
  }
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  [[noreturn]] void refuse_value(const char* key, const std::string& wanted) const {
    refuse_model(path_,
                 std::string("\"") + key + "\" is " + settings::one_line(json_[key].dump(), 60) +
                     "; " + wanted,
                 "Correct it.");
  }
  std::string word(const char* key) const {
    return json_.contains(key) && json_[key].is_string() ? json_[key].get<std::string>() : "";
  }

 private:
  static constexpr std::int64_t kMostSize = 1 << 24, kMostLayers = 1 << 12;
  std::int64_t checked(const char* key, std::int64_t most) const {
    const Json& value = json_[key];
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
        value.get<std::int64_t>() > most)
      refuse_value(key, "it must be a whole number from 1 to " + std::to_string(most));
    return value.get<std::int64_t>();
  }
  std::string path_;
  Json json_;
};

LlamaShape llama_shape(const Config& config, bool biased) {
  LlamaShape s;
  s.width = config.number("hidden_size");
  s.heads = config.number("num_attention_heads");
  if (!config.has("head_dim") && s.width % s.heads != 0) {
    config.refuse_value("num_attention_heads",
                        "without a \"head_dim\" it must be a divisor of \"hidden_size\" (" +
                            std::to_string(s.width) + ")");
  }
  s.head_width = config.number("head_dim", s.width / s.heads);
  s.key_heads = config.number("num_key_value_heads", s.heads);
  if (s.heads % s.key_heads != 0) {
    config.refuse_value("num_key_value_heads", "it must be a divisor of \"num_attention_heads\" (" +
                                                   std::to_string(s.heads) + ")");
  }
  s.feed_forward = config.number("intermediate_size");
  s.layers = config.layers("num_hidden_layers");
  s.vocabulary = config.number("vocab_size");
  s.tied = config.flag("tie_word_embeddings", false);
  s.biased = biased || config.flag("attention_bias", false);
  return s;
}

std::vector<ModelGroup> groups_of_config(const std::string& path, const Config& config) {
  const std::string type = config.word("model_type");
  if (type == "gpt2") {
    return groups_of(GptShape{config.number("n_embd"), config.layers("n_layer"),
                              config.number("vocab_size"), config.number("n_positions")});
  }
  if (type == "llama" || type == "mistral" || type == "qwen2")
    return groups_of(llama_shape(config, type == "qwen2"));
  if (type == "t5" && config.word("feed_forward_proj") != "gated-gelu") {
    const std::int64_t layers = config.layers("num_layers");
    return groups_of(T5Shape{config.number("d_model"), config.number("d_ff"), layers,
                             config.layers("num_decoder_layers", layers),
                             config.number("num_heads"), config.number("d_kv"),
                             config.number("vocab_size"),
                             config.number("relative_attention_num_buckets", 32)});
  }
  throw Error(
      Code::kUnsupported,
      "'" + path + "': model_type '" + type +
          "' is none of gpt2, llama, mistral, qwen2, t5 (version 1.0): nothing was computed. "
          "Put the model's safetensors beside it, whose headers hold every shape.");
}
}  // namespace

Model model_of_directory(const std::string& path) {
  std::vector<std::string> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  if (error) refuse_io(path, error.value());
  std::ranges::sort(files);
  const Index index = index_of(path);
  files = files_of(index, std::move(files));
  if (fs::exists(path + "/adapter_config.json", error) &&
      !fs::exists(path + "/config.json", error)) {
    refuse_model(path, "an adapter alone (adapter_config.json), without the model that it adapts",
                 "Name that model, and what is not trained with --frozen.");
  }
  if (!files.empty()) return model_of_safetensors(path, files, index);
  const std::string config_path = path + "/config.json";
  if (!fs::exists(config_path, error)) {
    throw Error(Code::kNotFound, "'" + path +
                                     "' holds neither *.safetensors nor config.json: nothing was "
                                     "computed. Name a model's directory.");
  }
  const char* const remedy = "Fetch it again.";
  Json json = json_of(config_path, remedy);
  if (!json.is_object()) refuse_model(config_path, "no object", remedy);
  const Config config(config_path, std::move(json));
  Model model{path, "config.json (" + config.word("model_type") + ")",
              groups_of_config(config_path, config)};
  check_size(model);
  return model;
}

namespace {
const char* const kShapesRemedy =
    "Wanted is {\"groups\": [{\"name\": \"h.0\", \"parameters\": [{\"name\": \"w\", \"shape\": "
    "[4, 8]}]}]}.";

void check_keys(const std::string& path, const char* of, const Json& object,
                std::initializer_list<std::string_view> allowed) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(allowed, key) != allowed.end()) continue;
    const std::string_view near = base::nearest_word(key, {allowed.begin(), allowed.size()});
    refuse_model(path,
                 "\"" + key + "\" is no key of a " + of +
                     (near.empty() ? "" : "; did you mean \"" + std::string(near) + "\"?"),
                 kShapesRemedy);
  }
}

ModelGroup group_of_shapes(const std::string& path, const Json& group) {
  if (!group.is_object() || !group.contains("parameters") || !group["parameters"].is_array())
    refuse_model(path, "a group without a list \"parameters\"", kShapesRemedy);
  check_keys(path, "group", group, {"name", "parameters"});
  ModelGroup added;
  if (group.contains("name")) {
    if (!group["name"].is_string())
      refuse_model(path, "a group whose name is no text", kShapesRemedy);
    added.name = group["name"].get<std::string>();
    check_name(path, added.name, kShapesRemedy);
  }
  check_count(path, group["parameters"].size());
  for (const Json& parameter : group["parameters"]) {
    if (!parameter.is_object() || !parameter.contains("shape") || !parameter.contains("name") ||
        !parameter["name"].is_string())
      refuse_model(path, "a parameter without \"name\" and \"shape\"", kShapesRemedy);
    check_keys(path, "parameter", parameter, {"name", "shape"});
    const std::string name = parameter["name"].get<std::string>();
    check_name(path, name, kShapesRemedy);
    added.parameters.push_back({added.name.empty() ? name : added.name + "." + name,
                                shape_of(parameter["shape"], path, name, kShapesRemedy)});
  }
  return added;
}

void check_names(const Model& model) {
  std::set<std::string_view> groups, parameters;
  const auto refuse_twice = [&](const char* what, const std::string& name) {
    refuse_model(model.name, std::string("two ") + what + " named '" + name + "'",
                 "Give each a name of its own.");
  };
  for (const ModelGroup& group : model.groups) {
    if (!group.name.empty() && !groups.insert(group.name).second)
      refuse_twice("groups", group.name);
    for (const ModelParameter& parameter : group.parameters) {
      if (!parameters.insert(parameter.name).second) refuse_twice("parameters", parameter.name);
    }
  }
}
}  // namespace

Model model_of_file(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (name.ends_with(".safetensors") || name == "config.json" ||
      name == "model.safetensors.index.json")
    refuse_model(path, "one file of a model's directory", "Name the directory.");
  const Json json = json_of(path, kShapesRemedy);
  if (!json.is_object() || !json.contains("groups") || !json["groups"].is_array())
    refuse_model(path, "no list \"groups\"", kShapesRemedy);
  check_keys(path, "model", json, {"groups"});
  Model model{path, "a file of shapes", {}};
  for (const Json& group : json["groups"]) model.groups.push_back(group_of_shapes(path, group));
  std::erase_if(model.groups, [](const ModelGroup& group) { return group.parameters.empty(); });
  check_names(model);
  check_size(model);
  return model;
}
}  // namespace headrace::tools
