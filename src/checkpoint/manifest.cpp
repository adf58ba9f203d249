// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.hpp"

#include <nlohmann/json.hpp>
#include <set>

#include "base/error_text.hpp"
#include "checkpoint/chunk_sums.hpp"
#include "checkpoint/files.hpp"

namespace headrace::checkpoint {
namespace {
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "headrace-checkpoint";
constexpr std::uint64_t kVersion = 2;
constexpr const char* kName = kManifestName;
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 48, kMostSteps = kMostElements;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

// A value with its place. Every access names that place where the value is not what it has to be,
// since the hash only shows that the text is what some program wrote.
class Field {
 public:
  Field(const Json& value, std::string place, const std::string& directory)
      : value_(value), place_(std::move(place)), directory_(directory) {}

  Field operator[](const char* key) const {
    if (!value_.is_object()) wrong("is not an object");
    const std::string place = place_.empty() ? key : place_ + "." + key;
    const auto found = value_.find(key);
    if (found == value_.end())
      refuse_damaged(directory_, std::string(kName) + ": " + place + " is missing");
    return {*found, place, directory_};
  }
  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  std::vector<Field> elements() const {
    if (!value_.is_array()) wrong("is not an array");
    std::vector<Field> all;
    for (std::size_t i = 0; i < value_.size(); ++i)
      all.emplace_back(value_[i], place_ + "[" + std::to_string(i) + "]", directory_);
    return all;
  }
  std::string text() const {
    if (!value_.is_string()) wrong("is not a string");
    return value_.get<std::string>();
  }
  bool flag() const {
    if (!value_.is_boolean()) wrong("is neither true nor false");
    return value_.get<bool>();
  }
  std::uint64_t count() const {
    if (!value_.is_number_unsigned()) wrong("is no whole number from 0 on");
    return value_.get<std::uint64_t>();
  }
  std::int64_t size() const {
    const std::uint64_t value = count();
    if (value == 0 || value > std::uint64_t{1} << 48) wrong("is no size from 1 to 2^48");
    return static_cast<std::int64_t>(value);
  }
  [[noreturn]] void wrong(const std::string& what) const {
    refuse_damaged(directory_,
                   std::string(kName) + ": " + (place_.empty() ? "it" : place_) + " " + what);
  }

 private:
  const Json& value_;
  std::string place_;
  const std::string& directory_;
};

std::vector<std::string> checksums_of(const Field& field) {
  const std::string digits = field.text();
  if (digits.size() % kChecksumDigits != 0) field.wrong("is cut");
  std::vector<std::string> checksums;
  for (std::size_t at = 0; at < digits.size(); at += kChecksumDigits)
    checksums.push_back(digits.substr(at, kChecksumDigits));
  return checksums;
}

// A name of a file in the checkpoint's own folder.
std::string file_name_of(const Field& field, std::string_view begins) {
  const std::string name = field.text();
  if (!name.starts_with(begins) || !name.ends_with(".safetensors") ||
      name.find('/') != std::string::npos)
    field.wrong("is not '" + std::string(begins) + "...safetensors'");
  return name;
}

std::vector<SavedFile> files_of(const Field& field, std::string_view begins) {
  std::vector<SavedFile> files;
  std::set<std::string> file_names, names;
  for (const Field& file : field.elements()) {
    files.push_back({file_name_of(file["name"], begins), file["header_xxh3_128"].text(), {}});
    if (!file_names.insert(files.back().name).second)
      file["name"].wrong("is " + base::quoted_name(files.back().name) + " a second time");
    for (const Field& one : file["tensors"].elements()) {
      const std::string name = one["name"].text();
      if (!names.insert(name).second)
        one["name"].wrong("is " + base::quoted_name(name) + " a second time");
      files.back().tensors.push_back({name, checksums_of(one["xxh3_128"])});
    }
  }
  return files;
}

std::vector<SavedParameter> parameters_of(const Field& field) {
  std::vector<SavedParameter> parameters;
  std::set<std::string> names;
  for (const Field& one : field.elements()) {
    SavedParameter parameter{
        one["name"].text(), one["dtype"].text(), {}, one["frozen"].flag(), one["step"].count()};
    if (parameter.step > kMostSteps) one["step"].wrong("is above 2^48");
    std::uint64_t elements = 1;
    for (const Field& size : one["shape"].elements()) {
      parameter.shape.push_back(size.size());
      const auto times = static_cast<std::uint64_t>(parameter.shape.back());
      if (elements > kMostElements / times) one["shape"].wrong("has more than 2^48 elements");
      elements *= times;
    }
    if (!names.insert(parameter.name).second)
      one["name"].wrong("is " + base::quoted_name(parameter.name) + " a second time");
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

Manifest manifest_of(const Field& top, const std::string& directory) {
  if (top["format"].text() != kFormat) top["format"].wrong("is not '" + std::string(kFormat) + "'");
  if (const std::uint64_t version = top["version"].count(); version != kVersion) {
    refuse(directory,
           "its format is version " + std::to_string(version) + ", this library reads " +
               std::to_string(kVersion),
           Code::kUnsupported, "Use the library that saved it.");
  }
  if (const Field chunk = top["chunk_bytes"]; chunk.count() != kChunkBytes)
    chunk.wrong("is not " + std::to_string(kChunkBytes));
  Manifest manifest{top["optimizer"]["rule"].text(),   top["optimizer"]["moments"].text(),
                    files_of(top["weights"], "model"), files_of(top["states"], "optimizer"),
                    parameters_of(top["parameters"]),  std::nullopt};
  if (top.has("trainer_state")) {
    const Field state = top["trainer_state"];
    manifest.trainer_state = {state["bytes"].count(), state["xxh3_128"].text()};
  }
  return manifest;
}

Json json_of(const std::vector<SavedFile>& files) {
  Json all = Json::array();
  for (const SavedFile& file : files) {
    Json tensors = Json::array();
    for (const SavedTensor& tensor : file.tensors) {
      std::string digits;
      for (const std::string& checksum : tensor.checksums) digits += checksum;
      tensors.push_back({{"name", tensor.name}, {"xxh3_128", digits}});
    }
    all.push_back({{"name", file.name},
                   {"header_xxh3_128", file.header_checksum},
                   {"tensors", std::move(tensors)}});
  }
  return all;
}
}  // namespace

std::string checksum_of(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text)));
}

void refuse(const std::string& directory, const std::string& cause, Code code,
            const std::string& help) {
  throw Refusal(code,
                "load_checkpoint of " + directory + ": " + cause + "; nothing was changed. " + help,
                cause);
}

void refuse_damaged(const std::string& directory, const std::string& cause) {
  throw Refusal(Code::kCorrupt,
                "load_checkpoint of " + directory + ": " + cause +
                    "; its values are not used. Load another checkpoint.",
                cause);
}

std::string text_of(const Manifest& manifest) {
  Json json = {{"format", kFormat}, {"version", kVersion}, {"chunk_bytes", kChunkBytes}};
  json["optimizer"] = {{"rule", manifest.rule}, {"moments", manifest.moments}};
  json["weights"] = json_of(manifest.weights);
  json["states"] = json_of(manifest.states);
  json["parameters"] = Json::array();
  for (const SavedParameter& one : manifest.parameters) {
    json["parameters"].push_back({{"name", one.name},
                                  {"dtype", one.dtype},
                                  {"shape", one.shape},
                                  {"frozen", one.frozen},
                                  {"step", one.step}});
  }
  if (manifest.trainer_state) {
    json["trainer_state"] = {{"name", kTrainerStateName},
                             {"bytes", manifest.trainer_state->size_bytes},
                             {"xxh3_128", manifest.trainer_state->checksum}};
  }
  const std::string line = json.dump();
  return line + "\n" + checksum_of(line) + "\n";
}

Manifest read_manifest(const std::string& directory) {
  const File file = File::open(directory + "/" + kName);
  if (file.size_bytes() > kMostBytes)
    refuse_damaged(directory, "manifest.json has more than 1 GiB");
  const std::string text = text_in(file);
  const std::size_t line = text.find('\n');
  if (line == std::string::npos ||
      text.substr(line + 1) != checksum_of(text.substr(0, line)) + "\n")
    refuse_damaged(directory, "the checksum of manifest.json differs");
  const Json json = Json::parse(text.substr(0, line), nullptr, false);
  if (json.is_discarded()) refuse_damaged(directory, "manifest.json is not JSON");
  return manifest_of(Field(json, "", directory), directory);
}
}  // namespace headrace::checkpoint
