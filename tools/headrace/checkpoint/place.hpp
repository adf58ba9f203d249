// SPDX-License-Identifier: Apache-2.0
// place.hpp: what a folder is: a checkpoint, what a save has left or is writing, or a folder with
// several of them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::tools {
enum class FolderKind { kCheckpoint, kInterruptedSave, kSaveUnderWay, kOther };
FolderKind kind_of(const std::string& folder);

struct ListedFolder {
  std::string name, state;  // "whole", "damaged", "interrupted save", "save under way", ...
  std::string steps, why;   // of a checkpoint; why it is damaged
  std::optional<std::uint64_t> size_bytes;
};
struct CheckpointPlace {
  std::string folder;                 // the checkpoint; empty if the folder above names none
  std::optional<std::string> latest;  // as the file of this name has it
  std::vector<ListedFolder> listed;   // what is in it; empty if it is a checkpoint itself
};
// Throws kNotFound if there is no checkpoint, kWrongState if a save is writing it, and kCorrupt if
// it is what an interrupted save has left, or if `latest` names nothing.
CheckpointPlace place_of(const std::string& directory);
}  // namespace headrace::tools
