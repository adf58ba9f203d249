// SPDX-License-Identifier: Apache-2.0
// sleep.hpp: an engine that sleeps: its memory is given back, and what lived there is in a file on
// each drive.
//
//   awake                          asleep                          awake
//   arena, pinned, registered  --> no pages; files, tables     --> arena, pinned, registered
//   slots in device memory         and their drives remain         slots in device memory
//   resident state                 image files, with checksums     resident state
//
// The image is that of the arena's ranges that live between steps. Nothing else of the arena is
// worth keeping: slots are empty, and no gradient has arrived.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "async/task.hpp"
#include "engine/failure.hpp"
#include "engine/inputs.hpp"
#include "engine/running.hpp"
#include "swap/swap_tier.hpp"

namespace headrace::engine {
// For the trainer's thread. While it lives, nothing uses the engine's memory.
class Sleep {
 public:
  // Begins it. `directory`: where the image goes; empty: on the drives of the engine. After an
  // exception, nothing has changed.
  Sleep(const Inputs& inputs, Running& running, Failure& failure, const std::string& directory);
  // Ends it. After an exception, the engine still sleeps: the call may be repeated.
  void wake();

 private:
  // Bytes of the arena, and their place in the image.
  struct Piece {
    std::span<std::byte> memory;
    swap::Extent extent;
    std::uint64_t checksum = 0;
    std::byte* end() const noexcept { return memory.data() + memory.size(); }
  };
  void make_image(const std::string& directory);
  void give_back() noexcept;
  void require_memory() const;
  // Gives the arena pages again, and reads what they held.
  async::Task<> fill();
  void take_back();
  async::Task<> write(Piece& piece);
  static async::Task<> sync(swap::SwapTier& tier);
  async::Task<> read(const Piece& piece);

  const Inputs& in_;
  Running& r_;
  Failure& failure_;
  std::vector<Piece> pieces_;
  std::unique_ptr<swap::SwapTier> image_;  // null: nothing lives in memory
};
}  // namespace headrace::engine
