// SPDX-License-Identifier: Apache-2.0
// load.cpp: load_checkpoint(): what is compared before a value changes, and how bytes are verified.
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error_text.hpp"
#include "checkpoint/chunk_sums.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/layout.hpp"
#include "checkpoint/load_together.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/some_of.hpp"
#include "checkpoint/verified_files.hpp"
#include "headrace/checkpoint.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"

namespace headrace {
namespace {
using namespace checkpoint;
constexpr const char* kLoadCall = "load_checkpoint";

std::string text_of(const std::vector<std::int64_t>& shape) { return nlohmann::json(shape).dump(); }

// The manifest's index of each of the engine's parameters, once all are those that were saved.
std::vector<std::uint32_t> match(const Engine& engine, const Manifest& manifest,
                                 const std::string& directory) {
  const auto differs = [&](const std::string& cause) {
    refuse(directory, cause, Code::kInvalidArgument, "Register the parameters that were saved.");
  };
  std::map<std::string, std::uint32_t> saved;
  for (std::uint32_t i = 0; i < manifest.parameters.size(); ++i)
    saved[manifest.parameters[i].name] = i;
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const ParameterSpec& spec = engine.spec({i});
    const std::string& name = engine.full_name({i});
    const auto found = saved.find(name);
    if (found == saved.end()) differs("it has no " + base::quoted_name(name));
    const SavedParameter& there = manifest.parameters[found->second];
    if (there.dtype != name_of(spec.dtype))
      differs(base::quoted_name(name) + " has dtype " + base::one_line(there.dtype) +
              " there, but " + name_of(spec.dtype) + " in the engine");
    if (there.shape != spec.shape)
      differs(base::quoted_name(name) + " has shape " + text_of(there.shape) + " there, but " +
              text_of(spec.shape) + " in the engine");
    if (there.frozen != spec.frozen)
      differs(base::quoted_name(name) + " is " + (there.frozen ? "frozen" : "trained") +
              " there, but " + (spec.frozen ? "frozen" : "trained") + " in the engine");
    indices.push_back(found->second);
    saved.erase(found);
  }
  if (!saved.empty()) differs("the engine has no " + base::quoted_name(saved.begin()->first));
  return indices;
}

std::set<std::string> state_names(const Manifest& manifest, OptimizerRule rule) {
  std::set<std::string> names;
  for (const SavedParameter& parameter : manifest.parameters) {
    if (parameter.frozen) continue;
    for (const Kept& kept : states_of(rule)) names.insert(tensor_name(kept, parameter.name));
  }
  return names;
}

// The engine keeps what was saved: else zeros, or a refusal half-way, would stand in for the rest.
void match_rule(const Engine& engine, const Manifest& manifest, const std::string& directory) {
  const Settings& settings = engine.settings();
  const std::string rule = name_of(settings.optimizer), moments = name_of(settings.moments);
  if (manifest.rule == rule && manifest.moments == moments) return;
  std::string tensors;
  if (const auto saved_rule = rule_named(manifest.rule)) {
    std::set<std::string> lacks = state_names(manifest, settings.optimizer), extra;
    for (const std::string& name : state_names(manifest, *saved_rule))
      if (lacks.erase(name) == 0) extra.insert(name);
    if (!lacks.empty()) tensors += ", so it lacks " + some_of(lacks);
    if (!extra.empty()) tensors += ", so the engine does not keep its " + some_of(extra);
  }
  refuse(directory,
         "it was saved with headrace.optimizer " + manifest.rule + " and headrace.moments " +
             manifest.moments + ", but the engine has " + rule + " and " + moments + tensors,
         Code::kInvalidArgument, "Set both as they were saved.");
}

class Load {
 public:
  Load(Engine& engine, std::string directory) : engine_(engine), directory_(std::move(directory)) {}

  LoadedCheckpoint run() {
    load_together(engine_, ranks::RankCall::Kind::kLoadCheckpoint, kLoadCall, directory_,
                  [this](const engine::Running& running) { return prepare(running); });
    return std::move(loaded_);
  }

 private:
  NewValues prepare(const engine::Running& running);
  void verify(const engine::Running& running);

  Engine& engine_;
  std::string directory_;
  std::vector<std::uint32_t> indices_;  // by parameter: in the manifest
  std::optional<VerifiedFiles> files_;
  LoadedCheckpoint loaded_;
};

NewValues Load::prepare(const engine::Running& running) {
  directory_ = folder_of(directory_);
  Manifest manifest = read_manifest(directory_);
  indices_ = match(engine_, manifest, directory_);
  match_rule(engine_, manifest, directory_);
  files_.emplace(directory_, std::move(manifest));
  loaded_.trainer_state = files_->trainer_state();
  verify(running);
  std::vector<std::uint64_t> steps(indices_.size());
  for (std::size_t i = 0; i < indices_.size(); ++i)
    steps[i] = files_->manifest().parameters[indices_[i]].step;
  const std::string text = checkpoint::text_of(files_->manifest());
  return {kernels::xxh3_64(std::as_bytes(std::span(text)), 0),
          [this](const engine::ValueRange& range, std::span<std::byte> values) {
            files_->read(files_->layout().tensor_of(indices_[range.id.index], range.content),
                         range.first_byte, values);
          },
          std::move(steps)};
}

void Load::verify(const engine::Running& running) {
  const Layout& layout = files_->layout();
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t)
    if (!layout.tensors[t].kept) files_->verify(t);  // a step count: the manifest has the same
  // Values that are in use are replaced only by ones that are known to be whole.
  if (!running.states.any()) return;
  const std::uint32_t ranks = running.partition.world_size;
  for (std::uint32_t t = running.partition.rank; t < layout.tensors.size(); t += ranks)
    if (layout.tensors[t].kept) files_->verify(t);
}
}  // namespace

LoadedCheckpoint load_checkpoint(Engine& engine, const std::string& directory) {
  return Load(engine, directory).run();
}
}  // namespace headrace
