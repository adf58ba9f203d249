// SPDX-License-Identifier: Apache-2.0
#include "engine/sleep.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/units.hpp"
#include "engine/startup.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"
#include "platform/machine.hpp"
#include "residency/plan.hpp"
#include "settings/environment.hpp"

namespace headrace::engine {
namespace {
constexpr std::uint64_t kPieceBytes = 4 * base::kMiB;
constexpr std::size_t kPiecesAtOnce = 8;
const std::string kWhat = "what lives in memory";

constexpr std::uint64_t kWindowBytes = 32 * base::kMiB;

struct Window {
  pinned::Arena& arena;
  std::uint64_t unit_bytes = 0;
  std::uint64_t begin = 0, end = 0;
  std::atomic<int> error{0};

  static void populate(void* context, std::uint64_t unit) noexcept {
    Window& window = *static_cast<Window*>(context);
    const std::uint64_t at = window.begin + unit * window.unit_bytes;
    const int error = window.arena.populate(at, std::min(window.unit_bytes, window.end - at));
    if (error != 0) window.error = error;
  }
};

template <class Pieces, class Each>
async::Task<> take_pieces(Pieces& pieces, Each& each, std::size_t& next,
                          const async::TaskGroup& group) {
  while (next < pieces.size() && !group.cancelled()) co_await each(pieces[next++]);
}

// Awaits each(piece) for all of them, a few at a time.
template <class Pieces, class Each>
async::Task<> for_pieces(Pieces& pieces, Each each) {
  async::TaskGroup workers;
  std::size_t next = 0;
  for (std::size_t i = 0; i < kPiecesAtOnce; ++i)
    workers.spawn(take_pieces(pieces, each, next, workers));
  co_await workers.join();
}

std::vector<std::string> folders_of(const Settings& settings, const std::string& directory) {
  if (!directory.empty()) return {directory};
  if (!settings.nvme_paths.empty()) return settings.nvme_paths;
  throw Error(
      Code::kInvalidArgument,
      "sleep: no drive is set, so there is no place for what lives in memory; the engine is "
      "awake. Name a directory, or set zero_optimization.offload_optimizer.nvme_path.");
}
}  // namespace

Sleep::Sleep(const Inputs& inputs, Running& running, Failure& failure, const std::string& directory)
    : in_(inputs), r_(running), failure_(failure) {
  make_image(directory);
  r_.calls->run([&]() -> async::Task<> {
    co_await r_.values->let_go();
    co_await r_.gather_slots->invalidate();
    co_await for_pieces(pieces_, [this](Piece& piece) { return write(piece); });
    if (image_) co_await sync(*image_);
    if (r_.epochs && r_.swap) co_await sync(*r_.swap);
  });
  give_back();
}

// The pieces are dealt to the folders in turn.
void Sleep::make_image(const std::string& directory) {
  for (const residency::Range& range : residency::living_ranges(r_.plan)) {
    for (std::uint64_t at = 0; at < range.size_bytes; at += kPieceBytes) {
      const std::uint64_t bytes = std::min(kPieceBytes, range.size_bytes - at);
      pieces_.push_back({r_.arena->range(range.offset_bytes + at, bytes), {}, 0});
    }
  }
  if (pieces_.empty()) return;
  std::ranges::sort(pieces_, {}, [](const Piece& piece) { return piece.memory.data(); });
  const std::vector<std::string> folders = folders_of(in_.settings, directory);
  swap::SwapTierOptions options;
  options.settings = in_.settings;
  options.rank = in_.collective->rank();
  options.log = in_.log;
  options.make_queue = queue_maker(in_);
  options.make_drive = drive_maker(in_);
  options.on_stall = [&failure = failure_](const std::string& cause) { failure.fail(cause); };
  for (const std::string& folder : folders)
    options.paths.push_back(swap::probe_path(folder, in_.settings));
  options.drive_bytes.resize(folders.size());
  for (std::size_t p = 0; p < pieces_.size(); ++p)
    options.drive_bytes[p % folders.size()] += pieces_[p].memory.size();
  image_ = std::make_unique<swap::SwapTier>(*r_.conductor, std::move(options));
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const auto drive = static_cast<std::uint32_t>(p % folders.size());
    pieces_[p].extent = image_->allocate(drive, pieces_[p].memory.size());
  }
}

async::Task<> Sleep::write(Piece& piece) {
  piece.checksum = kernels::xxh3_64(piece.memory, 0);
  co_await image_->write(piece.extent, piece.memory, swap::Priority::kDemand,
                         {"sleep: write of", &kWhat});
}

// Of what was written through the page cache, the kernel may tell only now that it is lost: the
// memory is still there, and so are a store's drives, which would forget it when they end.
async::Task<> Sleep::sync(swap::SwapTier& tier) {
  try {
    co_await tier.sync();
  } catch (const Error& error) {
    throw Error(error.code(), std::string("sleep: ") + error.what(), error.sys_errno());
  }
}

async::Task<> Sleep::read(const Piece& piece) {
  co_await image_->read(piece.extent, piece.memory, swap::Priority::kDemand,
                        {"wake: read of", &kWhat});
  if (kernels::xxh3_64(piece.memory, 0) == piece.checksum) co_return;
  throw Error(Code::kCorrupt, "wake: " + image_->place(piece.extent) +
                                  ": the checksum differs from what was written; the engine still "
                                  "sleeps. The file was changed or the drive is failing. Close the "
                                  "engine, and continue from a checkpoint or a store.");
}

void Sleep::give_back() noexcept {
  if (r_.swap) r_.swap->end_drives();
  r_.exchanged.forget();
  r_.gather_slots->release_memory();
  if (r_.device_updates) r_.device_updates->release_memory();
  if (ranks::GradientBucket* const bucket = r_.gradients->bucket()) bucket->release_memory();
  r_.arena->discard();
}

// The system would end the process later, without a word. The address space is the engine's still.
void Sleep::require_memory() const {
  const platform::Limit left = in_.parts.machine_left_bytes
                                   ? platform::Limit{in_.parts.machine_left_bytes(), "a test", ""}
                                   : platform::memory_left();
  const bool is_known = !left.source.empty() && left.source != platform::kAddressSpace;
  if (!is_known || left.value >= r_.arena->size_bytes()) return;
  throw Error(Code::kOutOfBudget, "wake: the engine needs " +
                                      base::format_bytes(r_.arena->size_bytes()) +
                                      " of host memory, and " + left.source + " leaves " +
                                      base::format_bytes(left.value) +
                                      "; it still sleeps. Free memory, and call wake() again.");
}

// While the drives read into one window, workers give the next one its pages: half of them, since
// the drives' threads would wait for a core while all are in the kernel.
async::Task<> Sleep::fill() {
  const std::uint64_t threads = std::max(1u, r_.workers->threads() / 2);
  const std::uint64_t unit = base::align_up(base::ceil_div(kWindowBytes, threads), base::kHugePage);
  async::TaskGroup reads;
  std::size_t next = 0;
  int error = 0;
  for (std::uint64_t at = 0; at < r_.arena->size_bytes() && error == 0; at += kWindowBytes) {
    Window window{*r_.arena, unit, at, std::min(at + kWindowBytes, r_.arena->size_bytes())};
    co_await r_.workers->for_units(base::ceil_div(window.end - at, unit), &Window::populate,
                                   &window);
    error = window.error;
    const std::byte* const end = r_.arena->bytes().data() + window.end;
    while (error == 0 && next < pieces_.size() && pieces_[next].end() <= end)
      reads.spawn(read(pieces_[next++]));
  }
  co_await reads.join();
  if (error != 0) r_.arena->refuse_populating(error);
}

void Sleep::take_back() {
  pin_arena(in_, *r_.arena);
  r_.gather_slots->take_memory();
  if (r_.device_updates) r_.device_updates->take_memory();
  if (ranks::GradientBucket* const bucket = r_.gradients->bucket()) bucket->take_memory();
  r_.use_exchanged_memory();
  if (r_.swap) r_.swap->start_drives();
}

void Sleep::wake() {
  require_memory();
  try {
    r_.calls->run([this] { return fill(); });
    take_back();
  } catch (...) {
    give_back();
    throw;
  }
}
}  // namespace headrace::engine
