// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/join.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "checkpoint/chunk_sums.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/place.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "checkpoint/verified_files.hpp"
#include "checkpoint/written_files.hpp"
#include "command_line/words.hpp"
#include "headrace/error.hpp"
#include "program/progress.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
namespace fs = std::filesystem;
constexpr checkpoint::Caller kJoining{"headrace checkpoint join", "nothing was joined"};

void check_other_folder(const JoinOptions& options) {
  std::error_code ignored;
  if (!fs::equivalent(options.from, options.to, ignored)) return;
  throw command_line::Fault{options.to + " is the folder that is to be read", "Name a new folder"};
}

// Those of other formats, which have no manifest. A trainer may save its weights beside `latest`.
void check_format(const std::string& folder) {
  std::error_code ignored;
  const auto has = [&](const char* name) { return fs::exists(folder + "/" + name, ignored); };
  if (has(checkpoint::kManifestName) || has(checkpoint::kLatestName)) return;
  if (has("zero")) {
    throw Error(Code::kUnsupported, folder +
                                        " is a universal checkpoint of DeepSpeed; nothing was "
                                        "joined. Convert it first: headrace checkpoint convert");
  }
  if (!has("model.safetensors") && !has("model.safetensors.index.json")) return;
  throw Error(Code::kUnsupported,
              folder +
                  " is a model without manifest.json, so without checksums to compare; nothing was "
                  "joined. load_weights() reads it as it is; name a folder that save_checkpoint() "
                  "has made.");
}

std::string folder_to_read(const std::string& from) {
  check_format(from);
  const CheckpointPlace place = place_of(from);
  if (!place.folder.empty()) return place.folder;
  throw Error(Code::kInvalidArgument,
              from +
                  " has no file `latest` that chooses a checkpoint; nothing "
                  "was joined. Name one of those in it.");
}

class Join {
 public:
  Join(const std::string& folder, const JoinOptions& options)
      : options_(options), source_(folder, checkpoint::read_manifest(folder)) {
    done_.folder = folder;
  }
  Joined run() {
    check_size();
    name_others();
    write();
    return std::move(done_);
  }

 private:
  const checkpoint::Manifest& manifest() const { return source_.manifest(); }
  void check_size() const;
  void name_others();
  void write();
  void copy(std::uint32_t to, checkpoint::WrittenFiles& files);
  void verify_steps();
  std::string name_of(const checkpoint::PlacedTensor& tensor) const {
    return checkpoint::shown_name(
        checkpoint::tensor_name(tensor.kept, manifest().parameters[tensor.parameter].name));
  }

  const JoinOptions& options_;
  checkpoint::VerifiedFiles source_;
  std::vector<std::byte> chunk_;
  std::uint64_t copied_bytes_ = 0;
  ProgressLine line_;
  Joined done_;
};

// A tensor is not divided, so a file of fewer bytes could not hold it.
void Join::check_size() const {
  const auto& tensors = source_.layout().tensors;
  const auto greatest =
      std::ranges::max_element(tensors, {}, &checkpoint::PlacedTensor::size_bytes);
  if (greatest == tensors.end() || greatest->size_bytes <= options_.file_bytes) return;
  throw command_line::Fault{
      fmt::format("--file-bytes {} is too small: {} alone has {} bytes", options_.file_bytes,
                  name_of(*greatest), greatest->size_bytes),
      "Give at least that, or leave it out"};
}

void Join::name_others() {
  std::set<std::string> known = {checkpoint::kManifestName};
  for (const auto& file : source_.layout().files) known.insert(file.name);
  for (const bool weights : {true, false}) known.insert(checkpoint::index_name(weights));
  if (manifest().trainer_state) known.insert(checkpoint::kTrainerStateName);
  for (const auto& entry : fs::directory_iterator(done_.folder)) {
    const std::string name = entry.path().filename().string();
    if (!known.contains(name)) done_.left_out.push_back(base::one_line(name, 200));
  }
  std::ranges::sort(done_.left_out);
}

void Join::write() {
  checkpoint::Manifest joined = manifest();
  checkpoint::assign_files(joined, *checkpoint::rule_named(joined.rule), options_.file_bytes);
  checkpoint::NewFolder folder(options_.to, kJoining);
  checkpoint::WrittenFiles files(joined, options_.to, kJoining);
  files.create(folder.path());
  for (std::uint32_t t = 0; t < files.layout().tensors.size(); ++t) copy(t, files);
  verify_steps();
  files.write_steps_and_indexes();
  if (const auto state = source_.trainer_state(); manifest().trainer_state)
    checkpoint::write_file(folder.path() + "/" + checkpoint::kTrainerStateName, state, kJoining);
  files.sync();
  files.write_manifest();
  done_.tensors = files.layout().tensors.size();
  done_.files_before = source_.layout().files.size();
  done_.files = files.layout().files.size();
  for (const auto& file : files.layout().files) done_.written_bytes += file.size_bytes;
  folder.finish();
}

void Join::copy(std::uint32_t to, checkpoint::WrittenFiles& files) {
  const checkpoint::PlacedTensor& tensor = files.layout().tensors[to];
  if (!tensor.kept) return;  // a step count, which the manifest has too
  const std::uint32_t from = source_.layout().tensor_of(tensor.parameter, *tensor.kept);
  for (std::uint64_t c = 0; c < checkpoint::chunks_of(tensor.size_bytes); ++c) {
    check_signal();
    line_.show(fmt::format("{} joined: {}", base::format_bytes(copied_bytes_),
                           base::one_line(name_of(tensor), 200)));
    chunk_.resize(checkpoint::chunk_bytes_of(tensor.size_bytes, c));
    source_.read(from, c * checkpoint::kChunkBytes, chunk_);
    files.write(to, c * checkpoint::kChunkBytes, chunk_);
    copied_bytes_ += chunk_.size();
  }
}

void Join::verify_steps() {
  const auto& tensors = source_.layout().tensors;
  for (std::uint32_t t = 0; t < tensors.size(); ++t)
    if (!tensors[t].kept) source_.verify(t);
}
}  // namespace

Joined join_checkpoint(const JoinOptions& named) {
  JoinOptions options = named;
  options.from = checkpoint::without_slashes(named.from);
  options.to = checkpoint::without_slashes(named.to);
  check_other_folder(options);
  const std::string folder = folder_to_read(options.from);
  try {
    return Join(folder, options).run();
  } catch (const checkpoint::Refusal& error) {
    throw Error(error.code(),
                folder + ": " + error.cause() + "; nothing was joined. Take another checkpoint.");
  }
}
}  // namespace headrace::tools
