// SPDX-License-Identifier: Apache-2.0
#include "swap/drive_measure.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "async/task.hpp"
#include "base/check.hpp"
#include "base/error_text.hpp"
#include "base/units.hpp"
#include "headrace/error.hpp"
#include "swap/transfer_done.hpp"

namespace headrace::swap {
namespace {
using async::Nanoseconds;

constexpr std::size_t kPieces = 4;                      // transfers in flight per drive
constexpr std::chrono::milliseconds kShortestPass{50};  // of a drive that is through at once

// Bytes that no drive can make smaller.
void fill_with_noise(std::span<std::byte> memory) {
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  for (std::size_t at = 0; at + sizeof state <= memory.size(); at += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(memory.data() + at, &state, sizeof state);
  }
}

// One drive, while all of them are measured. Conductor only.
struct Measured {
  DriveOnPath on_path;
  std::span<std::byte> memory;
  std::uint64_t file_bytes = 0;
  std::uint64_t piece_bytes = 0;
  std::uint64_t written_end = 0;  // of the file, after the first pass
  DriveSpeed speed;
  // Of the pass under way:
  std::uint64_t next = 0, moved = 0;
  Nanoseconds last{0};  // when the last one ended

  bool works() const { return on_path.drive != nullptr && speed.failure.empty(); }
};

enum class Pass { kFirstWrite, kWrite, kRead };
constexpr std::array kPasses{Pass::kFirstWrite, Pass::kWrite, Pass::kRead};
static_assert(kPasses.size() == kMeasuredPasses);

class Measurement {
 public:
  Measurement(async::Conductor& conductor, std::vector<Measured>& drives)
      : conductor_(conductor), drives_(drives) {}

  async::Task<> run(Pass one) {
    co_await pass(one);
    for (Measured& drive : drives_) note(drive, one);
  }

 private:
  static void note(Measured& drive, Pass pass) {
    switch (pass) {
      case Pass::kFirstWrite:
        drive.written_end = drive.next;
        return;
      case Pass::kWrite:
        drive.speed.write_bytes_per_second = rate(drive);
        return;
      case Pass::kRead:
        drive.speed.read_bytes_per_second = rate(drive);
        return;
    }
  }
  static double rate(const Measured& drive) {
    const double seconds = std::chrono::duration<double>(drive.last).count();
    return drive.works() && seconds > 0 ? static_cast<double>(drive.moved) / seconds : 0;
  }

  async::Task<> pass(Pass pass) {
    began_ = conductor_.now();
    async::TaskGroup pieces;
    for (Measured& drive : drives_) {
      drive.next = drive.moved = 0;
      drive.last = Nanoseconds(0);
    }
    for (Measured& drive : drives_) {
      for (std::size_t p = 0; p < kPieces && drive.works(); ++p)
        pieces.spawn(move_piece(drive, drive.memory.data() + p * drive.piece_bytes, pass));
    }
    co_await pieces.join();
  }

  // One drive goes on until all of them have seen their file once: none is measured alone.
  bool over(const Measured& mine, Pass pass) const {
    const Nanoseconds age = conductor_.now() - began_;
    if (!mine.works() || age >= kMeasuredPass) return true;
    if (pass == Pass::kFirstWrite) return mine.next + mine.piece_bytes > mine.file_bytes;
    return age >= kShortestPass && std::ranges::all_of(drives_, [](const Measured& drive) {
             return !drive.works() || drive.moved >= drive.written_end;
           });
  }

  async::Task<> move_piece(Measured& drive, std::byte* data, Pass pass) {
    const IoKind kind = pass == Pass::kRead ? IoKind::kRead : IoKind::kWrite;
    while (!over(drive, pass)) {
      if (pass != Pass::kFirstWrite && drive.next + drive.piece_bytes > drive.written_end)
        drive.next = 0;
      const Extent extent{0, drive.next, drive.piece_bytes};
      drive.next += drive.piece_bytes;
      TransferDone transfer(*drive.on_path.drive, kind, data, extent, Priority::kDemand,
                            "measuring the drive");
      const Transfer& done = co_await transfer;
      drive.moved += done.done_bytes;
      drive.last = conductor_.now() - began_;
      if (done.error != 0 || done.done_bytes != extent.size_bytes) note_failure(drive, done);
    }
  }

  static void note_failure(Measured& drive, const Transfer& done) {
    if (!drive.speed.failure.empty()) return;
    drive.speed.sys_errno = done.error;
    drive.speed.failure = std::string(done.kind == IoKind::kRead ? "read " : "write ") +
                          std::to_string(done.size_bytes) + " bytes of " +
                          drive.on_path.file->path() + " at " + std::to_string(done.offset_bytes) +
                          ": got " + std::to_string(done.done_bytes);
    if (done.error != 0) drive.speed.failure += ", " + base::errno_text(done.error);
  }

  async::Conductor& conductor_;
  std::vector<Measured>& drives_;
  Nanoseconds began_{0};
};

// The size of the pieces that a drive moves: together no more than its queue holds, its part of the
// memory, and its file.
std::uint64_t piece_bytes(const Settings& settings, std::uint64_t memory_bytes,
                          std::uint64_t file_bytes) {
  const std::uint64_t queue = settings.queue_depth * settings.io_block_bytes;
  const std::uint64_t most = std::min({memory_bytes, queue, file_bytes});
  return std::max(base::align_down(most / kPieces, base::kIoAlignment), base::kIoAlignment);
}
}  // namespace

std::vector<DriveSpeed> measure_drives(async::Conductor& conductor,
                                       const DriveOnPathOptions& options,
                                       const std::vector<PathProbe>& paths,
                                       const std::vector<std::uint64_t>& file_bytes,
                                       std::span<std::byte> memory,
                                       const std::function<void()>& before_pass) {
  const std::string run_id = make_run_id();
  std::vector<Measured> drives(paths.size());
  std::uint64_t used = 0;
  for (std::size_t d = 0; d < paths.size(); ++d) {
    Measured& drive = drives[d];
    drive.file_bytes = file_bytes[d];
    drive.piece_bytes = piece_bytes(options.settings, memory.size() / paths.size(), file_bytes[d]);
    HEADRACE_CHECK(used + kPieces * drive.piece_bytes <= memory.size(),
                   "four pages for each drive");
    drive.memory = memory.subspan(used, kPieces * drive.piece_bytes);
    used += drive.memory.size();
    fill_with_noise(drive.memory);
    drive.on_path = make_drive_on_path(conductor, options, paths[d], run_id,
                                       static_cast<std::uint32_t>(d), drive.file_bytes, "measure");
  }
  Measurement measurement(conductor, drives);
  for (const Pass pass : kPasses) {
    before_pass();
    async::call(conductor, nullptr, [&]() -> async::Task<> { co_await measurement.run(pass); });
  }
  std::vector<DriveSpeed> speeds;
  for (Measured& drive : drives) {
    if (drive.on_path.drive && drive.on_path.drive->stalled()) {
      throw Error(Code::kIoStalled,
                  "measuring nvme_path " + drive.on_path.path.path + ": " + drive.speed.failure +
                      ": the transfer never completed; nothing was swapped; look at the drive "
                      "(dmesg), or leave it out of headrace.nvme_paths",
                  ETIMEDOUT);
    }
    speeds.push_back(std::move(drive.speed));
  }
  drives.clear();
  std::memset(memory.data(), 0, used);
  return speeds;
}
}  // namespace headrace::swap
