// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/place.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/error_text.hpp"
#include "checkpoint/facts.hpp"
#include "checkpoint/files.hpp"
#include "headrace/error.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
namespace fs = std::filesystem;
constexpr std::size_t kLongestName = 4096;

[[noreturn]] void refuse_save(const std::string& folder, FolderKind kind) {
  if (kind == FolderKind::kSaveUnderWay) {
    throw Error(Code::kWrongState, folder +
                                       " is being written by a save that is under way; nothing "
                                       "was checked. Wait until the save has renamed it.");
  }
  throw Error(Code::kCorrupt, folder +
                                  " is what a save that was interrupted has left: nothing in it is "
                                  "complete. Remove it, or save again under the same name.");
}

std::string name_of(FolderKind kind) {
  switch (kind) {
    case FolderKind::kCheckpoint:
      return "whole";
    case FolderKind::kInterruptedSave:
      return "interrupted save";
    case FolderKind::kSaveUnderWay:
      return "save under way";
    case FolderKind::kOther:
      return "not a checkpoint";
  }
  return "";
}

// By its manifest and the lengths of its files.
ListedFolder look_at(const std::string& folder, const std::string& name) {
  const FolderKind kind = kind_of(folder);
  ListedFolder listed{name, name_of(kind), {}, {}, {}};
  if (kind != FolderKind::kCheckpoint) return listed;
  try {
    const CheckpointFacts facts = facts_of(open_checkpoint(folder));
    listed.steps = steps_text(facts);
    listed.size_bytes = facts.found_bytes();
    if (facts.whole_lengths()) return listed;
    const auto odd = std::ranges::find(facts.files, false, &FileFacts::whole_length);
    listed.why = odd->name + (odd->found_bytes ? " has another length" : " is not there");
  } catch (const checkpoint::Refusal& error) {
    listed.why = error.cause();
  } catch (const Error& error) {
    listed.why = error.what();
  }
  listed.state = "damaged";
  return listed;
}

std::vector<ListedFolder> folders_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    std::error_code ignored;
    if (entry.is_directory(ignored)) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  std::vector<ListedFolder> listed;
  for (const std::string& name : names) {
    check_signal();
    listed.push_back(look_at(directory + "/" + name, name));
  }
  return listed;
}

std::optional<std::string> latest_in(const std::string& directory) {
  std::ifstream file(directory + "/" + checkpoint::kLatestName, std::ios::binary);
  if (!file) return std::nullopt;
  std::string name(kLongestName, '\0');
  file.read(name.data(), static_cast<std::streamsize>(name.size()));
  name.resize(static_cast<std::size_t>(file.gcount()));
  if (name.ends_with('\n')) name.pop_back();
  return name;
}

void refuse_without_checkpoints(const std::string& directory, const CheckpointPlace& place) {
  const auto is_other = [](const ListedFolder& one) {
    return one.state == name_of(FolderKind::kOther);
  };
  if (!std::ranges::all_of(place.listed, is_other)) return;
  throw Error(Code::kNotFound,
              directory +
                  " is no checkpoint, since it has no manifest.json, and no folder in it is one; "
                  "nothing was checked. Name a folder that save_checkpoint() has made.");
}
}  // namespace

FolderKind kind_of(const std::string& folder) {
  if (folder.ends_with(checkpoint::kTemporaryEnd)) {
    return checkpoint::is_being_saved(folder) ? FolderKind::kSaveUnderWay
                                              : FolderKind::kInterruptedSave;
  }
  std::error_code ignored;
  return fs::exists(folder + "/" + checkpoint::kManifestName, ignored) ? FolderKind::kCheckpoint
                                                                       : FolderKind::kOther;
}

CheckpointPlace place_of(const std::string& named) {
  const std::string directory = checkpoint::without_slashes(named);
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    const std::string temporary = checkpoint::temporary_of(directory);
    if (fs::is_directory(temporary, ignored)) refuse_save(temporary, kind_of(temporary));
    throw Error(Code::kNotFound, directory +
                                     " is not a directory; nothing was checked. Name a folder "
                                     "that save_checkpoint() has made.");
  }
  const FolderKind kind = kind_of(directory);
  if (kind == FolderKind::kCheckpoint) return {directory, {}, {}};
  if (kind != FolderKind::kOther) refuse_save(directory, kind);
  CheckpointPlace place{{}, latest_in(directory), folders_in(directory)};
  if (place.latest) {
    const bool there = std::ranges::any_of(place.listed, [&](const ListedFolder& one) {
      return one.name == *place.latest && (one.state == "whole" || one.state == "damaged");
    });
    if (there) place.folder = directory + "/" + *place.latest;
    return place;
  }
  refuse_without_checkpoints(directory, place);
  return place;
}
}  // namespace headrace::tools
