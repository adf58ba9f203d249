// SPDX-License-Identifier: Apache-2.0
// save.cpp: save_checkpoint(): what each rank writes, and in which order a folder becomes whole.
//
//   rank 0                               every other rank
//   makes <folder>.tmp, and each file    -
//   in it, at its full size
//   meet: the folder is there
//   -                                    finds what rank 0 has written: it is the same folder
//   meet: all see it
//   writes its shards, and syncs         the same
//   meet: all bytes are there
//   sums chunks that end in another      the same, and leaves its checksums in the folder
//   rank's shard
//   meet: all checksums are there
//   writes the manifest, renames         -
//   meet: the checkpoint is there
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "checkpoint/chunk_sums.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/layout.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "checkpoint/save.hpp"
#include "checkpoint/written_files.hpp"
#include "engine/engine_core.hpp"
#include "headrace/checkpoint.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"

namespace headrace {
namespace {
using namespace checkpoint;
constexpr const char* kSaveCall = "save_checkpoint";

void check_names(const std::string& call, const partition::Registry& registry) {
  for (std::size_t i = 0; i < registry.parameters().size(); ++i) {
    const std::string& name = registry.parameters()[i].full_name;
    const std::string fault = name_fault(name);
    if (fault.empty()) continue;
    throw Error(Code::kInvalidArgument, call + ": parameter " + std::to_string(i) + " is named " +
                                            shown_name(name) + ", " + fault +
                                            "; nothing was written. Register it by another name.");
  }
}

Manifest saved_manifest(Engine& engine, const SaveOptions& options) {
  const Settings& settings = engine.settings();
  Manifest manifest{name_of(settings.optimizer), name_of(settings.moments), {}, {}, {}, {}};
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const ParameterSpec& spec = engine.spec({i});
    manifest.parameters.push_back({engine.full_name({i}), name_of(spec.dtype), spec.shape,
                                   spec.frozen, engine.step_count({i})});
  }
  assign_files(manifest, settings.optimizer, options.file_bytes);
  if (!options.trainer_state.empty()) {
    manifest.trainer_state = {options.trainer_state.size(),
                              checksum_of(std::span(options.trainer_state))};
  }
  return manifest;
}

std::string name_of_token(std::uint64_t token) { return "token." + std::to_string(token); }

std::uint64_t hash_of(const Layout& layout) {
  std::uint64_t hash = 0;
  for (const PlacedFile& file : layout.files)
    hash = kernels::xxh3_64(std::as_bytes(std::span(file.header)), hash);
  return hash;
}
}  // namespace

namespace checkpoint {
std::string name_of_sums(std::uint32_t rank) { return "checksums." + std::to_string(rank); }

void check_save(const char* call, Engine& engine, const SaveOptions& options) {
  check_names(call, engine::core_of(engine).registry());
  if (options.file_bytes == 0) {
    throw Error(
        Code::kInvalidArgument,
        std::string(call) + ": SaveOptions::file_bytes is 0; nothing was written. Leave it out.");
  }
}

Save::Save(const char* call, Engine& engine, const std::string& directory,
           const SaveOptions& options, std::span<std::byte> buffers)
    : call_(call),
      running_(engine::core_of(engine).ready(call)),
      trainer_state_(options.trainer_state.begin(), options.trainer_state.end()),
      latest_(options.latest),
      directory_(directory),
      files_(saved_manifest(engine, options), directory, {call, kSaving.follows}, buffers),
      meeting_(running_.ranks, call) {}

Save::~Save() = default;

void Save::begin() {
  SaveWords words{0, hash_of(files_.layout())};
  folder_path_ = temporary_of(directory_);
  if (rank() == 0) {
    folder_.emplace(directory_, Caller{call_, kSaving.follows});
    files_.create(folder_path_);
    words.token = token_ = base::random_number();
    if (running_.partition.world_size > 1) File::create(path_of(name_of_token(token_)));
  }
  const SaveWords of_rank_0 = meeting_.meet(words)[0];
  if (words.layout != of_rank_0.layout) {
    throw Error(Code::kInvalidArgument,
                std::string(call_) + ": rank " + std::to_string(rank()) +
                    " has another SaveOptions::file_bytes than rank 0; no checkpoint was made. "
                    "Give all ranks the same.");
  }
  if (rank() != 0) find_folder(of_rank_0.token);
  meeting_.meet({});
}

void Save::find_folder(std::uint64_t token) {
  if (!is_there(path_of(name_of_token(token)))) {
    throw Error(Code::kUnsupported,
                std::string(call_) + ": " + folder_path_ +
                    ", which rank 0 has made, is not there on rank " + std::to_string(rank()) +
                    ", or is another folder; no checkpoint was made. Name a folder in a file "
                    "system that all ranks share.");
  }
  files_.open(folder_path_);
}

void Save::write(const std::function<void(const engine::RangeSink&)>& values) {
  values([&](const engine::ValueRange& range, std::span<const std::byte> bytes) {
    files_.write(files_.layout().tensor_of(range.id.index, range.content), range.first_byte, bytes);
  });
  if (rank() == 0) write_other_values();
  files_.sync();
}

void Save::write_other_values() {
  files_.write_steps_and_indexes();
  if (!trainer_state_.empty()) write_file(path_of(kTrainerStateName), trainer_state_);
}

// Of a chunk that begins in this rank's shard and ends in another's.
void Save::sum_shared_chunks() {
  std::vector<std::byte> chunk;
  std::vector<ChunkSums>& sums = files_.sums();
  for (std::uint32_t t = 0; t < sums.size(); ++t) {
    const auto [first, end] = sums[t].begun();
    for (std::uint64_t c = first; c < end; ++c) {
      std::string& checksum = sums[t].checksums()[c];
      if (!checksum.empty()) continue;
      const PlacedTensor& tensor = files_.layout().tensors[t];
      chunk.resize(chunk_bytes_of(tensor.size_bytes, c));
      // Opened anew: what another host has written is seen from then on.
      File::open_to_write(files_.path(tensor.file)).read(chunk, tensor.at + c * kChunkBytes);
      checksum = checksum_of(std::span<const std::byte>(chunk));
    }
  }
  if (rank() != 0) leave_sums();
}

// Under its name only once it is whole: ranks that do not meet look for it.
void Save::leave_note(const std::string& name, const std::string& text) const {
  const std::string path = path_of(name), half = path + ".half";
  write_file(half, std::as_bytes(std::span(text)));
  rename_file(half, path);
}

void Save::leave_sums() {
  nlohmann::json all = nlohmann::json::array();
  std::vector<ChunkSums>& sums = files_.sums();
  for (std::uint32_t t = 0; t < sums.size(); ++t) {
    const auto [first, end] = sums[t].begun();
    std::string digits;
    for (std::uint64_t c = first; c < end; ++c) digits += sums[t].checksums()[c];
    if (!digits.empty()) all.push_back({t, first, digits});
  }
  leave_note(name_of_sums(rank()), all.dump());
}

void Save::take_sums(std::uint32_t rank) {
  const std::string path = path_of(name_of_sums(rank));
  const auto all = nlohmann::json::parse(text_in(File::open(path)));
  for (const auto& one : all) {
    std::vector<std::string>& checksums = files_.sums()[one[0].get<std::size_t>()].checksums();
    const auto digits = one[2].get<std::string>();
    std::uint64_t chunk = one[1].get<std::uint64_t>();
    for (std::size_t at = 0; at < digits.size(); at += kChecksumDigits)
      checksums[chunk++] = digits.substr(at, kChecksumDigits);
  }
  remove_file(path);
}

void Save::finish() {
  if (rank() != 0) return;
  for (std::uint32_t r = 1; r < running_.partition.world_size; ++r) take_sums(r);
  remove_file(path_of(name_of_token(token_)));
  files_.write_manifest();
  folder_->finish();
  if (latest_) name_latest(directory_);
}
}  // namespace checkpoint

void save_checkpoint(Engine& engine, const std::string& directory, const SaveOptions& options) {
  engine::Running& running = engine::core_of(engine).ready(kSaveCall);
  const auto together = running.gradients->begin_together(ranks::RankCall::Kind::kSaveCheckpoint);
  std::optional<Save> save;
  // What one rank refuses here, the others learn where they meet first.
  ranks::Meeting<SaveWords>(running.ranks, kSaveCall).run([&] {
    check_save(kSaveCall, engine, options);
    save.emplace(kSaveCall, engine, directory, options);
  });
  save->meeting().run([&] {
    save->begin();
    save->write([&](const engine::RangeSink& sink) { running.all_values->store(kSaveCall, sink); });
    save->meeting().meet({});
    save->sum_shared_chunks();
    save->meeting().meet({});
    save->finish();
    save->meeting().meet({});
  });
}
}  // namespace headrace
