// SPDX-License-Identifier: Apache-2.0
#include "headrace/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/files.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"
#include "optimizer_cpu/state_streams.hpp"

namespace headrace {
namespace {
using checkpoint::File;
using checkpoint::kFiles;
using checkpoint::Manifest;
using checkpoint::refuse;
using checkpoint::refuse_damaged;
using Json = nlohmann::ordered_json;

constexpr std::array kPrefixes = {"", "master.", "exp_avg.", "exp_avg_sq."};  // by Content
constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

struct Tensor {
  ParameterId id;
  Content content = Content::kWeight;
  std::string name, dtype;
  std::uint64_t at = 0, size_bytes = 0;  // in its file
};

std::string moments_of(const Engine& engine) { return name_of(engine.settings().moments); }

std::vector<Content> contents_of(const Engine& engine, std::size_t file) {
  if (file == 0) return {Content::kWeight};
  std::vector<Content> kept = {Content::kMaster, Content::kExpAvg, Content::kExpAvgSq};
  kept.resize(1 + moments(optimizer_cpu::arithmetic_of(engine.settings().optimizer)));
  return kept;
}

std::vector<Tensor> tensors_of(const Engine& engine, std::size_t file) {
  std::vector<Tensor> tensors;
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const ParameterSpec& spec = engine.spec({i});
    if (file == 1 && spec.frozen) continue;
    for (const Content content : contents_of(engine, file)) {
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
  std::vector<checkpoint::TensorHeader> headers;
  std::uint64_t at = 0;
  for (Tensor& tensor : tensors) {
    tensor.at = at;
    at += tensor.size_bytes;
    headers.push_back({tensor.name, tensor.dtype, engine.spec(tensor.id).shape, tensor.size_bytes});
  }
  std::string header = checkpoint::safetensors_header(headers);
  for (Tensor& tensor : tensors) tensor.at += header.size();
  return header;
}

// ---- save ----

void check_names(const Engine& engine) {
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const std::string& name = engine.full_name({i});
    const std::string fault = checkpoint::name_fault(name);
    if (fault.empty()) continue;
    throw Error(Code::kInvalidArgument, "save_checkpoint: parameter " + std::to_string(i) +
                                            " is named " + checkpoint::shown_name(name) + ", " +
                                            fault +
                                            "; nothing was written. Register it by another name.");
  }
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

checkpoint::SavedFile write_file(Engine& engine, const std::string& folder, std::size_t number) {
  std::vector<Tensor> tensors = tensors_of(engine, number);
  const std::string header = place(engine, tensors);
  File file = File::create(folder + "/" + kFiles[number]);
  file.write(std::as_bytes(std::span(header)), 0);
  checkpoint::SavedFile saved{checkpoint::hash_of(header), {}};
  for (const Tensor& tensor : tensors)
    saved.tensors.push_back({tensor.name, write_tensor(engine, tensor, file)});
  file.sync();
  return saved;
}

// ---- load ----

std::string text_of(const std::vector<std::int64_t>& shape) { return Json(shape).dump(); }

// Step counts by parameter, once every parameter is what was saved.
std::vector<std::uint64_t> match(const Engine& engine, const Manifest& manifest,
                                 const std::string& directory) {
  const auto differs = [&](const std::string& cause) {
    refuse(directory, cause, Code::kInvalidArgument, "Register the parameters that were saved.");
  };
  std::map<std::string, const checkpoint::SavedParameter*> saved;
  for (const checkpoint::SavedParameter& one : manifest.parameters) saved[one.name] = &one;
  std::vector<std::uint64_t> steps;
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const ParameterSpec& spec = engine.spec({i});
    const std::string& name = engine.full_name({i});
    const auto found = saved.find(name);
    if (found == saved.end()) differs("it has no '" + name + "'");
    const checkpoint::SavedParameter& there = *found->second;
    if (there.dtype != name_of(spec.dtype))
      differs("'" + name + "' has dtype " + there.dtype + " there, but " + name_of(spec.dtype) +
              " in the engine");
    if (there.shape != spec.shape)
      differs("'" + name + "' has shape " + text_of(there.shape) + " there, but " +
              text_of(spec.shape) + " in the engine");
    if (there.frozen != spec.frozen)
      differs("'" + name + "' is " + (there.frozen ? "frozen" : "trained") + " there, but " +
              (spec.frozen ? "frozen" : "trained") + " in the engine");
    steps.push_back(there.step);
    saved.erase(found);
  }
  if (!saved.empty()) differs("the engine has no '" + saved.begin()->first + "'");
  return steps;
}

// "'a', 'b', 'c' and 5 more"
std::string some_of(const std::set<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  std::size_t shown = 0;
  for (const std::string& name : names) {
    if (shown == kShown) return text + " and " + std::to_string(names.size() - kShown) + " more";
    text += (shown++ == 0 ? "'" : ", '") + name + "'";
  }
  return text;
}

// The tensors that were saved are those that this engine keeps: else zeros, or a refusal half-way,
// would stand in for the rest.
void match_tensors(const Engine& engine, const Manifest& manifest, const std::string& directory) {
  std::set<std::string> lacks, extra;
  for (std::size_t file = 0; file < kFiles.size(); ++file) {
    for (const Tensor& tensor : tensors_of(engine, file)) lacks.insert(tensor.name);
    for (const checkpoint::SavedTensor& tensor : manifest.files[file].tensors)
      if (lacks.erase(tensor.name) == 0) extra.insert(tensor.name);
    if (!lacks.empty() || !extra.empty()) break;
  }
  std::string tensors;
  if (!lacks.empty()) tensors += ", so it lacks " + some_of(lacks);
  if (!extra.empty()) tensors += ", so the engine does not keep its " + some_of(extra);
  const std::string rule = name_of(engine.settings().optimizer), moments = moments_of(engine);
  if (manifest.rule != rule || manifest.moments != moments) {
    refuse(directory,
           "it was saved with headrace.optimizer " + manifest.rule + " and headrace.moments " +
               manifest.moments + ", but the engine has " + rule + " and " + moments + tensors,
           Code::kInvalidArgument, "Set both as they were saved.");
  }
  if (!lacks.empty()) refuse_damaged(directory, "manifest.json lacks " + some_of(lacks));
  if (!extra.empty())
    refuse_damaged(directory,
                   "manifest.json has " + some_of(extra) + ", which its optimizer does not keep");
}

// A store keeps frozen tiles once: of a committed step they cannot be written again.
void refuse_stored_frozen(const Engine& engine, const std::string& directory) {
  if (!engine.resumed() && engine.durable_step() == 0) return;
  std::map<std::pair<std::uint32_t, DType>, std::optional<ParameterId>> frozen;  // by section
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const ParameterSpec& spec = engine.spec({i});
    auto& section = frozen.try_emplace({engine.group_of({i}).index, spec.dtype}, i).first->second;
    if (!spec.frozen) section.reset();
  }
  for (const auto& [section, id] : frozen) {
    if (!id) continue;
    refuse(directory,
           "the store of this engine has a committed step with the frozen '" +
               engine.full_name(*id) + "', which is not written twice",
           Code::kWrongState, "Use another headrace.store.");
  }
}

// A file of a checkpoint whose bytes all have their checksums.
struct Verified {
  File file;
  std::vector<Tensor> tensors;
};

Verified verify(const Engine& engine, const Manifest& manifest, std::size_t number,
                const std::string& directory) {
  const checkpoint::SavedFile& saved = manifest.files[number];
  const std::string path = directory + "/" + kFiles[number];
  Verified verified{File::open(path), {}};
  std::map<std::string, Tensor> known;
  for (Tensor& tensor : tensors_of(engine, number)) known[tensor.name] = std::move(tensor);
  for (const checkpoint::SavedTensor& one : saved.tensors)
    verified.tensors.push_back(known.at(one.name));
  const std::string header = place(engine, verified.tensors);
  const std::uint64_t end = verified.tensors.empty()
                                ? header.size()
                                : verified.tensors.back().at + verified.tensors.back().size_bytes;
  if (const std::uint64_t size = verified.file.size_bytes(); size != end)
    refuse_damaged(directory, std::string(kFiles[number]) + " has " + std::to_string(size) +
                                  " bytes, not the " + std::to_string(end) + " of its tensors");
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
  if (hash_range(0, header.size()) != saved.header_hash)
    refuse_damaged(directory,
                   "the checksum of the header of " + std::string(kFiles[number]) + " differs");
  if (checkpoint::hash_of(header) != saved.header_hash)
    refuse_damaged(directory, "the header of " + std::string(kFiles[number]) +
                                  " has other tensors or places than manifest.json");
  for (std::size_t i = 0; i < saved.tensors.size(); ++i) {
    const Tensor& tensor = verified.tensors[i];
    if (hash_range(tensor.at, tensor.size_bytes) != saved.tensors[i].hash)
      refuse_damaged(directory, "the checksum of '" + tensor.name + "' differs");
  }
  return verified;
}
}  // namespace

void save_checkpoint(Engine& engine, const std::string& directory) {
  check_names(engine);
  checkpoint::NewFolder folder(directory);
  Manifest manifest{name_of(engine.settings().optimizer), moments_of(engine), {}, {}};
  for (std::size_t i = 0; i < kFiles.size(); ++i)
    manifest.files[i] = write_file(engine, folder.path(), i);
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const ParameterSpec& spec = engine.spec({i});
    manifest.parameters.push_back({engine.full_name({i}), name_of(spec.dtype), spec.shape,
                                   spec.frozen, engine.step_count({i})});
  }
  checkpoint::write_manifest(manifest, folder.path());
  folder.finish();
}

void load_checkpoint(Engine& engine, const std::string& directory) {
  const Manifest manifest = checkpoint::read_manifest(directory);
  const std::vector<std::uint64_t> steps = match(engine, manifest, directory);
  match_tensors(engine, manifest, directory);
  refuse_stored_frozen(engine, directory);
  const Verified model = verify(engine, manifest, 0, directory);
  const Verified state = verify(engine, manifest, 1, directory);
  std::vector<std::uint64_t> weight_at(engine.parameter_count());
  for (const Tensor& tensor : model.tensors) weight_at[tensor.id.index] = tensor.at;
  for (std::uint32_t g = 0; g < engine.group_count(); ++g) {
    engine.load({g}, FillShard([&](ParameterId id, std::uint64_t first, std::span<std::byte> out) {
                  model.file.read(out,
                                  weight_at[id.index] + first * size_bytes(engine.spec(id).dtype));
                }));
  }
  for (const Tensor& tensor : state.tensors) {
    engine.load(tensor.id, tensor.content, [&](std::uint64_t first, std::span<std::byte> out) {
      state.file.read(out, tensor.at + first * sizeof(float));
    });
  }
  for (std::uint32_t i = 0; i < steps.size(); ++i) engine.set_step_count({i}, steps[i]);
}
}  // namespace headrace
