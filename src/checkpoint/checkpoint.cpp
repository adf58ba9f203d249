// SPDX-License-Identifier: Apache-2.0
#include "headrace/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/files.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"

namespace headrace {
namespace {
using checkpoint::File;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "headrace-checkpoint";
constexpr int kVersion = 1;
constexpr const char* kManifest = "manifest.json";
constexpr std::array kFiles = {"model.safetensors", "optimizer.safetensors"};
constexpr std::array kContents = {Content::kWeight, Content::kMaster, Content::kExpAvg,
                                  Content::kExpAvgSq};
constexpr std::array kPrefixes = {"", "master.", "exp_avg.", "exp_avg_sq."};
constexpr std::uint64_t kAlignment = 4096, kMostManifestBytes = std::uint64_t{1} << 30;
constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

struct Tensor {
  ParameterId id;
  Content content = Content::kWeight;
  std::string name, dtype;
  std::uint64_t at = 0, size_bytes = 0;  // in its file
};

// The rule's; store() rejects one that is not kept before it moves anything.
bool keeps(Engine& engine, ParameterId id, Content content) {
  try {
    engine.store(id, content, [](std::uint64_t, std::span<const std::byte>) {});
    return true;
  } catch (const Error& error) {
    if (error.code() == Code::kInvalidArgument) return false;
    throw;
  }
}

std::vector<Content> kept_contents(Engine& engine) {
  std::vector<Content> kept = {Content::kMaster};
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    if (engine.spec({i}).frozen) continue;
    for (const Content moment : {Content::kExpAvg, Content::kExpAvgSq})
      if (keeps(engine, {i}, moment)) kept.push_back(moment);
    break;
  }
  return kept;
}

std::vector<Tensor> tensors_of(Engine& engine, std::size_t file) {
  const std::vector<Content> contents =
      file == 0 ? std::vector{Content::kWeight} : kept_contents(engine);
  std::vector<Tensor> tensors;
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const ParameterSpec& spec = engine.spec({i});
    if (file == 1 && spec.frozen) continue;
    for (const Content content : contents) {
      const bool weight = content == Content::kWeight;
      tensors.push_back({{i},
                         content,
                         kPrefixes[static_cast<std::size_t>(content)] + engine.full_name({i}),
                         weight ? name_of(spec.dtype) : "F32",
                         0,
                         spec.elements() * (weight ? size_bytes(spec.dtype) : sizeof(float))});
    }
  }
  return tensors;
}

// Gives each tensor its place, and returns length and header of the safetensors file.
std::string place(const Engine& engine, std::vector<Tensor>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  auto& members = header.get_ref<Json::object_t&>();
  std::uint64_t at = 0;
  for (Tensor& tensor : tensors) {
    tensor.at = at;
    at += tensor.size_bytes;
    members.emplace_back(tensor.name, Json{{"dtype", tensor.dtype},
                                           {"shape", engine.spec(tensor.id).shape},
                                           {"data_offsets", {tensor.at, at}}});
  }
  std::string text = header.dump();
  text.append((kAlignment - (text.size() + 8) % kAlignment) % kAlignment, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  for (Tensor& tensor : tensors) tensor.at += text.size() + 8;
  return length + text;
}

// Streams one tensor to its place; returns its hash.
std::string write_tensor(Engine& engine, const Tensor& tensor, File& file) {
  const std::uint64_t element_bytes = tensor.size_bytes / engine.spec(tensor.id).elements();
  kernels::Hash128 hash;
  std::uint64_t written = 0;
  engine.store(tensor.id, tensor.content, [&](std::uint64_t first, std::span<const std::byte> in) {
    file.write(in, tensor.at + first * element_bytes);
    hash.update(in);
    written += in.size();
  });
  if (written == tensor.size_bytes) return hash.hex();
  throw Error(Code::kUnsupported,
              "save_checkpoint: this rank holds only " + std::to_string(written) + " of " +
                  std::to_string(tensor.size_bytes) + " bytes of '" + tensor.name +
                  "': values of several ranks are not saved; no checkpoint was made. Train in one "
                  "rank, or write what Engine::store() gives on every rank.");
}

std::string hash_of(std::string_view text) {
  kernels::Hash128 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

Json write_file(Engine& engine, const std::string& folder, std::size_t number) {
  std::vector<Tensor> tensors = tensors_of(engine, number);
  const std::string header = place(engine, tensors);
  File file = File::create(folder + "/" + kFiles[number]);
  file.write(std::as_bytes(std::span(header)), 0);
  Json hashes = Json::array();
  for (const Tensor& tensor : tensors)
    hashes.push_back({{"name", tensor.name}, {"xxh3_128", write_tensor(engine, tensor, file)}});
  file.sync();
  return {{"name", kFiles[number]}, {"header_xxh3_128", hash_of(header)}, {"tensors", hashes}};
}

Json parameters_json(const Engine& engine) {
  Json list = Json::array();
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const ParameterSpec& spec = engine.spec({i});
    list.push_back({{"name", engine.full_name({i})},
                    {"dtype", name_of(spec.dtype)},
                    {"shape", spec.shape},
                    {"frozen", spec.frozen},
                    {"step", engine.step_count({i})}});
  }
  return list;
}

[[noreturn]] void refuse(const std::string& directory, const std::string& cause,
                         Code code = Code::kInvalidArgument) {
  throw Error(code, "load_checkpoint of " + directory + ": " + cause + "; nothing was changed. " +
                        (code == Code::kCorrupt ? "Load another checkpoint."
                                                : "Register the parameters that were saved."));
}

Json read_manifest(const std::string& directory) {
  const File file = File::open(directory + "/" + kManifest);
  const std::uint64_t size = file.size_bytes();
  if (size > kMostManifestBytes) refuse(directory, "its manifest is too large", Code::kCorrupt);
  std::string text(size, '\0');
  file.read(std::as_writable_bytes(std::span(text)), 0);
  const std::size_t line = text.find('\n');
  if (line == std::string::npos || text.substr(line + 1) != hash_of(text.substr(0, line)) + "\n")
    refuse(directory, "the checksum of its manifest differs", Code::kCorrupt);
  Json manifest = Json::parse(text.substr(0, line), nullptr, false);
  if (!manifest.is_object() || manifest.value("format", "") != kFormat)
    refuse(directory, "its manifest is not one of a checkpoint", Code::kCorrupt);
  if (manifest.at("version") == kVersion) return manifest;
  throw Error(Code::kUnsupported, "load_checkpoint of " + directory + ": its format is version " +
                                      manifest.at("version").dump() + ", this library reads " +
                                      std::to_string(kVersion) +
                                      "; nothing was changed. Use the library that saved it.");
}

// Step counts by parameter, once every parameter is what was saved.
std::vector<std::uint64_t> match(const Engine& engine, const Json& manifest,
                                 const std::string& directory) {
  std::map<std::string, const Json*> saved;
  for (const Json& one : manifest.at("parameters")) saved[one.at("name")] = &one;
  std::vector<std::uint64_t> steps;
  const Json own = parameters_json(engine);
  for (const Json& mine : own) {
    const std::string& name = mine.at("name").get_ref<const std::string&>();
    const auto found = saved.find(name);
    if (found == saved.end()) refuse(directory, "it has no '" + name + "'");
    for (const char* const key : {"dtype", "shape", "frozen"}) {
      if (found->second->at(key) == mine.at(key)) continue;
      refuse(directory, "'" + name + "' has " + key + " " + found->second->at(key).dump() +
                            " there, but " + mine.at(key).dump() + " in the engine");
    }
    steps.push_back(found->second->at("step"));
    saved.erase(found);
  }
  if (!saved.empty()) refuse(directory, "the engine has no '" + saved.begin()->first + "'");
  return steps;
}

// A file of a checkpoint whose bytes all have their checksums.
struct Verified {
  File file;
  std::map<std::pair<std::uint32_t, Content>, Tensor> tensors;
};

Verified verify(const Engine& engine, const Json& entry, const std::string& directory) {
  const std::string path = directory + "/" + entry.at("name").get<std::string>();
  Verified verified{File::open(path), {}};
  std::vector<std::byte> buffer(kBufferBytes);
  const auto hash_range = [&](std::uint64_t at, std::uint64_t size) {
    kernels::Hash128 hash;
    for (std::uint64_t done = 0; done < size;) {
      const auto part = std::span(buffer).first(std::min<std::uint64_t>(kBufferBytes, size - done));
      verified.file.read(part, at + done);
      hash.update(part);
      done += part.size();
    }
    return hash.hex();
  };
  std::vector<Tensor> tensors;
  for (const Json& one : entry.at("tensors")) {
    const std::string name = one.at("name");
    const std::size_t file = entry.at("name") == kFiles[0] ? 0 : 1;
    Tensor tensor;
    tensor.name = name;
    for (std::size_t c = file; c < (file == 0 ? 1 : kContents.size()); ++c) {
      const std::string prefix = kPrefixes[c];
      if (file == 1 && !name.starts_with(prefix)) continue;
      tensor.id = engine.parameter(name.substr(prefix.size()));
      tensor.content = kContents[c];
      const ParameterSpec& spec = engine.spec(tensor.id);
      tensor.dtype = file == 0 ? name_of(spec.dtype) : "F32";
      tensor.size_bytes = spec.elements() * (file == 0 ? size_bytes(spec.dtype) : sizeof(float));
      break;
    }
    tensors.push_back(std::move(tensor));
  }
  const std::string header = place(engine, tensors);
  if (hash_range(0, header.size()) != entry.at("header_xxh3_128"))
    refuse(directory, "the checksum of the header of " + path + " differs", Code::kCorrupt);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (hash_range(tensors[i].at, tensors[i].size_bytes) != entry["tensors"][i].at("xxh3_128"))
      refuse(directory, "the checksum of '" + tensors[i].name + "' differs", Code::kCorrupt);
    verified.tensors[{tensors[i].id.index, tensors[i].content}] = tensors[i];
  }
  return verified;
}
}  // namespace

void save_checkpoint(Engine& engine, const std::string& directory) {
  checkpoint::NewFolder folder(directory);
  Json manifest = {{"format", kFormat}, {"version", kVersion}};
  manifest["files"] = {write_file(engine, folder.path(), 0), write_file(engine, folder.path(), 1)};
  manifest["parameters"] = parameters_json(engine);
  const std::string line = manifest.dump();
  const std::string text = line + "\n" + hash_of(line) + "\n";
  File file = File::create(folder.path() + "/" + kManifest);
  file.write(std::as_bytes(std::span(text)), 0);
  file.sync();
  folder.finish();
}

void load_checkpoint(Engine& engine, const std::string& directory) {
  const Json manifest = read_manifest(directory);
  const std::vector<std::uint64_t> steps = match(engine, manifest, directory);
  const Verified model = verify(engine, manifest.at("files").at(0), directory);
  const Verified state = verify(engine, manifest.at("files").at(1), directory);
  for (std::uint32_t g = 0; g < engine.group_count(); ++g) {
    engine.load({g}, FillShard([&](ParameterId id, std::uint64_t first, std::span<std::byte> out) {
                  const Tensor& tensor = model.tensors.at({id.index, Content::kWeight});
                  model.file.read(out, tensor.at + first * size_bytes(engine.spec(id).dtype));
                }));
  }
  for (const auto& [key, tensor] : state.tensors) {
    engine.load(tensor.id, tensor.content, [&](std::uint64_t first, std::span<std::byte> out) {
      state.file.read(out, tensor.at + first * sizeof(float));
    });
  }
  for (std::uint32_t i = 0; i < steps.size(); ++i) engine.set_step_count({i}, steps[i]);
}
}  // namespace headrace
