// SPDX-License-Identifier: Apache-2.0
// save.hpp: the parts of a save, for save_checkpoint() and save_checkpoint_in_background().
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files.hpp"
#include "checkpoint/written_files.hpp"
#include "engine/running.hpp"
#include "headrace/checkpoint.hpp"
#include "ranks/meeting.hpp"

namespace headrace::checkpoint {
// What the ranks say when they meet.
struct SaveWords {
  std::uint64_t token = 0;   // of rank 0: what it has left in the folder
  std::uint64_t layout = 0;  // a hash: the same on every rank
};

// Throws for a name or an option that no save takes.
void check_save(const char* call, Engine& engine, const SaveOptions& options);
std::string name_of_sums(std::uint32_t rank);

// Of one rank. begin() is for the trainer's thread; the others are for any one thread after that.
class Save {
 public:
  // `buffers`: as WriteBehind's memory.
  Save(const char* call, Engine& engine, const std::string& directory, const SaveOptions& options,
       std::span<std::byte> buffers = {});
  ~Save();

  // Collective: the folder is there on all ranks, with all files at their full sizes.
  void begin();
  // Writes all that `values` hands out, and syncs it.
  void write(const std::function<void(const engine::RangeSink&)>& values);
  // Once all ranks have written: sums chunks that end in another rank's shard, and leaves this
  // rank's checksums in the folder.
  void sum_shared_chunks();
  // Once all checksums are there: rank 0 makes the folder a checkpoint.
  void finish();

  // A file in the folder that tells other ranks something.
  void leave_note(const std::string& name, const std::string& text) const;

  ranks::Meeting<SaveWords>& meeting() noexcept { return meeting_; }
  std::uint32_t rank() const { return running_.partition.rank; }
  std::uint32_t ranks() const { return running_.partition.world_size; }
  std::string path_of(const std::string& file) const { return folder_path_ + "/" + file; }
  const std::string& folder() const noexcept { return folder_path_; }
  const std::string& directory() const noexcept { return directory_; }

 private:
  void find_folder(std::uint64_t token);
  void write_other_values();
  void leave_sums();
  void take_sums(std::uint32_t rank);

  const char* const call_;  // a literal
  engine::Running& running_;
  const std::vector<std::byte> trainer_state_;
  const bool latest_;
  const std::string directory_;
  std::optional<NewFolder> folder_;  // of rank 0; removed once the files are closed
  WrittenFiles files_;
  ranks::Meeting<SaveWords> meeting_;
  std::string folder_path_;
  std::uint64_t token_ = 0;
};
}  // namespace headrace::checkpoint
