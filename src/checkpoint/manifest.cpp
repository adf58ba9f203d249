// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.hpp"

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/files.hpp"
#include "kernels/hash.hpp"

namespace headrace::checkpoint {
namespace {
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "headrace-checkpoint";
constexpr std::uint64_t kVersion = 1;
constexpr const char* kName = "manifest.json";
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

SavedFile file_of(const Field& field, const std::string& name) {
  if (field["name"].text() != name) field["name"].wrong("is not '" + name + "'");
  SavedFile file{field["header_xxh3_128"].text(), {}};
  std::set<std::string> names;
  for (const Field& one : field["tensors"].elements()) {
    file.tensors.push_back({one["name"].text(), one["xxh3_128"].text()});
    const std::string& tensor = file.tensors.back().name;
    if (!names.insert(tensor).second) one["name"].wrong("is '" + tensor + "' a second time");
  }
  return file;
}

std::vector<SavedParameter> parameters_of(const Field& field) {
  std::vector<SavedParameter> parameters;
  std::set<std::string> names;
  for (const Field& one : field.elements()) {
    SavedParameter parameter{
        one["name"].text(), one["dtype"].text(), {}, one["frozen"].flag(), one["step"].count()};
    for (const Field& size : one["shape"].elements()) parameter.shape.push_back(size.size());
    if (!names.insert(parameter.name).second)
      one["name"].wrong("is '" + parameter.name + "' a second time");
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
  Manifest manifest{top["optimizer"]["rule"].text(), top["optimizer"]["moments"].text(), {}, {}};
  const std::vector<Field> files = top["files"].elements();
  if (files.size() != kFiles.size())
    top["files"].wrong("has " + std::to_string(files.size()) + " entries, not " +
                       std::to_string(kFiles.size()));
  for (std::size_t i = 0; i < kFiles.size(); ++i) manifest.files[i] = file_of(files[i], kFiles[i]);
  manifest.parameters = parameters_of(top["parameters"]);
  return manifest;
}

Json json_of(const SavedFile& file, const char* name) {
  Json tensors = Json::array();
  for (const SavedTensor& tensor : file.tensors)
    tensors.push_back({{"name", tensor.name}, {"xxh3_128", tensor.hash}});
  return {{"name", name}, {"header_xxh3_128", file.header_hash}, {"tensors", tensors}};
}
}  // namespace

std::string hash_of(std::string_view text) {
  kernels::Hash128 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

void refuse(const std::string& directory, const std::string& cause, Code code,
            const std::string& help) {
  throw Error(code,
              "load_checkpoint of " + directory + ": " + cause + "; nothing was changed. " + help);
}

void refuse_damaged(const std::string& directory, const std::string& cause) {
  refuse(directory, cause, Code::kCorrupt, "Load another checkpoint.");
}

void write_manifest(const Manifest& manifest, const std::string& folder) {
  Json json = {{"format", kFormat}, {"version", kVersion}};
  json["optimizer"] = {{"rule", manifest.rule}, {"moments", manifest.moments}};
  json["files"] = Json::array();
  for (std::size_t i = 0; i < kFiles.size(); ++i)
    json["files"].push_back(json_of(manifest.files[i], kFiles[i]));
  json["parameters"] = Json::array();
  for (const SavedParameter& one : manifest.parameters) {
    json["parameters"].push_back({{"name", one.name},
                                  {"dtype", one.dtype},
                                  {"shape", one.shape},
                                  {"frozen", one.frozen},
                                  {"step", one.step}});
  }
  const std::string line = json.dump();
  const std::string text = line + "\n" + hash_of(line) + "\n";
  File file = File::create(folder + "/" + kName);
  file.write(std::as_bytes(std::span(text)), 0);
  file.sync();
}

Manifest read_manifest(const std::string& directory) {
  const File file = File::open(directory + "/" + kName);
  const std::uint64_t size = file.size_bytes();
  if (size > kMostBytes) refuse_damaged(directory, "manifest.json has more than 1 GiB");
  std::string text(size, '\0');
  file.read(std::as_writable_bytes(std::span(text)), 0);
  const std::size_t line = text.find('\n');
  if (line == std::string::npos || text.substr(line + 1) != hash_of(text.substr(0, line)) + "\n")
    refuse_damaged(directory, "the checksum of manifest.json differs");
  const Json json = Json::parse(text.substr(0, line), nullptr, false);
  if (json.is_discarded()) refuse_damaged(directory, "manifest.json is not JSON");
  return manifest_of(Field(json, "", directory), directory);
}
}  // namespace headrace::checkpoint
