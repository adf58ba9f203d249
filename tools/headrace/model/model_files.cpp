// SPDX-License-Identifier: Apache-2.0
#include "model/model_files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "model/families.hpp"

namespace headrace::tools {
namespace {
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::uint64_t kLargestText = 256u << 20;
constexpr std::uint64_t kMostElements = std::uint64_t{1}
                                        << 50;  // of a model: its bytes fit 63 bits

[[noreturn]] void refuse(const std::string& path, const std::string& what,
                         const std::string& remedy) {
  throw Error(Code::kInvalidArgument,
              "'" + path + "': " + what + "; nothing was computed. " + remedy);
}
[[noreturn]] void refuse_io(const std::string& path, int error) {
  throw Error(error == ENOENT ? Code::kNotFound : Code::kIo,
              "'" + path + "' cannot be read: " + base::errno_text(error) +
                  "; nothing was computed. Give another path, or make it readable.",
              error);
}

std::string bytes_of(const std::string& path, std::uint64_t offset, std::uint64_t size) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse_io(path, errno);
  std::string text(size, '\0');
  file.seekg(static_cast<std::streamoff>(offset));
  if (!file.read(text.data(), static_cast<std::streamsize>(size)))
    refuse_io(path, errno == 0 ? EIO : errno);
  return text;
}

std::uint64_t size_of(const std::string& path) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) refuse_io(path, error.value());
  return size;
}

Json parsed(const std::string& path, const std::string& text, const std::string& remedy) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    refuse(path, std::string("not JSON: ") + error.what(), remedy);
  }
}

std::vector<std::int64_t> shape_of(const Json& value, const std::string& path,
                                   const std::string& name, const std::string& remedy) {
  if (!value.is_array()) refuse(path, "the shape of '" + name + "' is no list", remedy);
  std::vector<std::int64_t> shape;
  std::uint64_t elements = 1;
  for (const Json& size : value) {
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() == 0 ||
        __builtin_mul_overflow(elements, size.get<std::uint64_t>(), &elements) ||
        elements > kMostElements) {
      refuse(path, "the shape of '" + name + "' has a size that is no whole number from 1 to 2^50",
             remedy);
    }
    shape.push_back(size.get<std::int64_t>());
  }
  return shape;
}

void check_size(const Model& model) {
  if (model.elements() == 0) refuse(model.name, "no parameter", "Give a model that has some.");
  if (model.elements() > kMostElements)
    refuse(model.name, "more than 2^50 parameters", "Look for a size that is not meant.");
}

// ---- safetensors ----

const char* const kSafetensorsRemedy = "Fetch it again, or remove it from the directory.";

Json header_of(const std::string& path) {
  const std::uint64_t file_bytes = size_of(path);
  if (file_bytes < 8) refuse(path, "no safetensors file: shorter than 8 bytes", kSafetensorsRemedy);
  const std::string begin = bytes_of(path, 0, 8);
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 8; i-- > 0;)
    header_bytes = header_bytes << 8 | static_cast<unsigned char>(begin[i]);
  if (header_bytes > file_bytes - 8 || header_bytes > kLargestText) {
    refuse(path,
           "no safetensors file: a header of " + std::to_string(header_bytes) +
               " bytes does not fit it",
           kSafetensorsRemedy);
  }
  return parsed(path, bytes_of(path, 8, header_bytes), kSafetensorsRemedy);
}

// Up to the first number in it, which counts blocks: "model.layers.3"; "" where there is none.
std::string block_of(const std::string& parameter) {
  for (std::size_t at = 0; at < parameter.size();) {
    const std::size_t end = std::min(parameter.find('.', at), parameter.size());
    const std::string_view part = std::string_view(parameter).substr(at, end - at);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos)
      return parameter.substr(0, end);
    at = end + 1;
  }
  return "";
}

// Numbers in names by value: "layers.9" before "layers.10".
bool in_order(const std::string& a, const std::string& b) {
  return ::strverscmp(a.c_str(), b.c_str()) < 0;
}

Model model_of_safetensors(const std::string& path, const std::vector<std::string>& files) {
  std::map<std::string, ModelGroup, bool (*)(const std::string&, const std::string&)> groups(
      in_order);
  std::map<std::string, std::string> file_of;
  for (const std::string& file : files) {
    const Json header = header_of(file);
    if (!header.is_object()) refuse(file, "its header is no object", kSafetensorsRemedy);
    for (const auto& [name, tensor] : header.items()) {
      if (name == "__metadata__") continue;
      if (!tensor.is_object() || !tensor.contains("shape"))
        refuse(file, "'" + name + "' has no shape", kSafetensorsRemedy);
      const auto [before, is_new] = file_of.emplace(name, file);
      if (!is_new) {
        refuse(path, "'" + name + "' is in " + before->second + " and in " + file,
               "Leave the files of one copy of the model in the directory.");
      }
      ModelGroup& group = groups[block_of(name)];
      group.parameters.push_back({name, shape_of(tensor["shape"], file, name, kSafetensorsRemedy)});
    }
  }
  Model model{path,
              std::to_string(files.size()) + " safetensors header" + (files.size() == 1 ? "" : "s"),
              {}};
  for (auto& [name, group] : groups) {
    group.name = name;
    model.groups.push_back(std::move(group));
  }
  check_size(model);
  return model;
}

// ---- config.json ----

class Config {
 public:
  Config(std::string path, Json json) : path_(std::move(path)), json_(std::move(json)) {}
  std::int64_t number(const char* key) const {
    if (!json_.contains(key))
      refuse(path_, std::string("no \"") + key + "\"",
             "Add it, as the model's authors publish it.");
    return checked(key);
  }
  std::int64_t number(const char* key, std::int64_t otherwise) const {
    return json_.contains(key) && !json_[key].is_null() ? checked(key) : otherwise;
  }
  bool flag(const char* key, bool otherwise) const {
    return json_.contains(key) && json_[key].is_boolean() ? json_[key].get<bool>() : otherwise;
  }
  std::string word(const char* key) const {
    return json_.contains(key) && json_[key].is_string() ? json_[key].get<std::string>() : "";
  }

 private:
  std::int64_t checked(const char* key) const {
    constexpr std::int64_t kMost = 1 << 24;
    const Json& value = json_[key];
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
        value.get<std::int64_t>() > kMost) {
      refuse(path_,
             std::string("\"") + key + "\" is " + value.dump() +
                 ", a whole number from 1 to 2^24 is wanted",
             "Correct it.");
    }
    return value.get<std::int64_t>();
  }
  std::string path_;
  Json json_;
};

std::vector<ModelGroup> groups_of_config(const std::string& path, const Config& config) {
  const std::string type = config.word("model_type");
  if (type == "gpt2") {
    return groups_of(GptShape{config.number("n_embd"), config.number("n_layer"),
                              config.number("vocab_size"), config.number("n_positions")});
  }
  if (type == "llama" || type == "mistral" || type == "qwen2") {
    const std::int64_t heads = config.number("num_attention_heads");
    return groups_of(LlamaShape{config.number("hidden_size"), config.number("intermediate_size"),
                                config.number("num_hidden_layers"), heads,
                                config.number("num_key_value_heads", heads),
                                config.number("vocab_size"),
                                config.number("head_dim", config.number("hidden_size") / heads),
                                config.flag("tie_word_embeddings", false),
                                type == "qwen2" || config.flag("attention_bias", false)});
  }
  if (type == "t5" && config.word("feed_forward_proj") != "gated-gelu") {
    const std::int64_t layers = config.number("num_layers");
    return groups_of(T5Shape{config.number("d_model"), config.number("d_ff"), layers,
                             config.number("num_decoder_layers", layers),
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
  if (!files.empty()) return model_of_safetensors(path, files);
  const std::string config_path = path + "/config.json";
  if (!fs::exists(config_path, error)) {
    throw Error(Code::kNotFound, "'" + path +
                                     "' holds neither *.safetensors nor config.json: nothing was "
                                     "computed. Name a model's directory.");
  }
  const char* const remedy = "Fetch it again.";
  if (size_of(config_path) > kLargestText) refuse(config_path, "larger than 256 MiB", remedy);
  Json json = parsed(config_path, bytes_of(config_path, 0, size_of(config_path)), remedy);
  if (!json.is_object()) refuse(config_path, "no object", remedy);
  const Config config(config_path, std::move(json));
  Model model{path, "config.json (" + config.word("model_type") + ")",
              groups_of_config(config_path, config)};
  check_size(model);
  return model;
}

Model model_of_file(const std::string& path) {
  const char* const remedy =
      "Wanted is {\"groups\": [{\"name\": \"h.0\", \"parameters\": [{\"name\": \"w\", \"shape\": "
      "[4, 8]}]}]}.";
  if (size_of(path) > kLargestText) refuse(path, "larger than 256 MiB", remedy);
  const Json json = parsed(path, bytes_of(path, 0, size_of(path)), remedy);
  if (!json.is_object() || !json.contains("groups") || !json["groups"].is_array())
    refuse(path, "no list \"groups\"", remedy);
  Model model{path, "a file of shapes", {}};
  for (const Json& group : json["groups"]) {
    if (!group.is_object() || !group.contains("parameters") || !group["parameters"].is_array())
      refuse(path, "a group without a list \"parameters\"", remedy);
    ModelGroup& added = model.groups.emplace_back();
    if (group.contains("name") && group["name"].is_string())
      added.name = group["name"].get<std::string>();
    for (const Json& parameter : group["parameters"]) {
      if (!parameter.is_object() || !parameter.contains("shape") || !parameter.contains("name") ||
          !parameter["name"].is_string())
        refuse(path, "a parameter without \"name\" and \"shape\"", remedy);
      const std::string name = parameter["name"].get<std::string>();
      added.parameters.push_back({added.name.empty() ? name : added.name + "." + name,
                                  shape_of(parameter["shape"], path, name, remedy)});
    }
  }
  std::erase_if(model.groups, [](const ModelGroup& group) { return group.parameters.empty(); });
  check_size(model);
  return model;
}
}  // namespace headrace::tools
