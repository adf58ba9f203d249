// SPDX-License-Identifier: Apache-2.0
// save_in_background.cpp: save_checkpoint_in_background(): the parts of a save (save.hpp) on a
// thread of the engine, while the trainer makes collective calls of its own. So here the ranks do
// not meet. Each leaves a note in the folder after a part, and looks for those of the others:
//
//   every rank       writes its shards, syncs, and leaves "written.N"
//   with all of them sums chunks that end in another rank's shard; leaves "checksums.N"
//   rank 0           with all of those: writes the manifest, renames the folder
//   other ranks      wait until the folder has its name
//
// A rank that fails leaves "failed.N" with its error. Rank 0 removes the folder instead.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "base/units.hpp"
#include "checkpoint/save.hpp"
#include "engine/engine_core.hpp"
#include "headrace/checkpoint.hpp"
#include "headrace/error.hpp"

namespace headrace {
struct BackgroundSave::State {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::exception_ptr error;
  std::atomic<bool> awaited{false};

  void end(const std::exception_ptr& with) {
    {
      const std::lock_guard lock(mutex);
      done = true;
      error = with;
    }
    ended.notify_all();
  }
};

bool BackgroundSave::done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

void BackgroundSave::wait() const {
  state_->awaited.store(true);
  std::unique_lock lock(state_->mutex);
  state_->ended.wait(lock, [this] { return state_->done; });
  if (state_->error) std::rethrow_exception(state_->error);
}

namespace {
using namespace checkpoint;
using Clock = std::chrono::steady_clock;
constexpr const char* kBackgroundCall = "save_checkpoint_in_background";
// How often a waiting thread looks.
constexpr std::chrono::milliseconds kLook{5};
// What is written at once before the rate is looked at.
constexpr std::size_t kPortionBytes = base::kMiB;
constexpr const char* kRank0Failed =
    "rank 0 failed, and its error says why; no checkpoint was made";
static_assert(residency::kSaveBufferBytes == WriteBehind::kPieces * WriteBehind::kPieceBytes);

std::string name_of_written(std::uint32_t rank) { return "written." + std::to_string(rank); }
std::string name_of_failed(std::uint32_t rank) { return "failed." + std::to_string(rank); }

// The plan's memory for a save: a tile with scratch, then the buffers of files.
struct Memory {
  std::span<std::byte> tile, buffers;
};
Memory memory_of(const engine::Running& running) {
  const residency::Range& range = running.plan.background_save;
  const auto all = running.arena->range(range.offset_bytes, range.size_bytes);
  const std::size_t tile = all.size() - residency::kSaveBufferBytes;
  return {all.first(tile), all.subspan(tile)};
}

[[noreturn]] void fail(Code code, const std::string& text) {
  throw Error(code, std::string(kBackgroundCall) + ": " + text);
}

// The store's errors do not name the call.
std::exception_ptr with_call(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    const std::string text = known.what();
    if (text.starts_with("save_checkpoint")) return error;  // they say what follows
    return std::make_exception_ptr(
        Error(known.code(), std::string(kBackgroundCall) + ": " + text + " No checkpoint was made.",
              known.sys_errno()));
  } catch (...) {
    return error;
  }
}

// When the next bytes may be written. What a slow drive did not take in time is not made up for:
// the steps would feel it.
class Rate {
 public:
  explicit Rate(std::uint64_t bytes_per_second)
      : bytes_per_second_(static_cast<double>(bytes_per_second)) {}

  bool allows() noexcept {
    const auto now = Clock::now();
    if (now < next_) return false;
    next_ = now;
    return true;
  }
  void sleep() const { std::this_thread::sleep_until(std::min(next_, Clock::now() + kLook)); }
  void count(std::uint64_t bytes) noexcept {
    const std::chrono::duration<double> takes(static_cast<double>(bytes) / bytes_per_second_);
    next_ += std::chrono::duration_cast<Clock::duration>(takes);
  }

 private:
  double bytes_per_second_;
  Clock::time_point next_ = Clock::now();
};

// All that happens on the thread.
class BackgroundWork {
 public:
  BackgroundWork(EngineCore& core, engine::Running& running, std::unique_ptr<Save> save,
                 std::shared_ptr<BackgroundSave::State> state)
      : core_(core),
        running_(running),
        save_(std::move(save)),
        state_(std::move(state)),
        rate_(core.settings().background_save_bytes_per_second) {}

  void run() noexcept {
    try {
      make_checkpoint();
    } catch (...) {
      error_ = with_call(std::current_exception());
      running_.epochs->unpin();
      tell_others();
    }
    save_.reset();  // without a checkpoint, rank 0 removes the folder
  }
  void tell() const { state_->end(error_); }

 private:
  void make_checkpoint();
  void write_values();
  void wait_for_rate(std::uint64_t bytes);
  bool hurries() const noexcept;
  void throw_if_ended() const;
  void throw_failure_of_others() const;
  template <class There>
  void wait_until(const There& there) const;
  void wait_for_notes(std::string (*name)(std::uint32_t), std::uint32_t first_rank) const;
  void wait_for_name() const;
  void tell_others() const noexcept;
  void remove_half_note() const noexcept;

  EngineCore& core_;
  engine::Running& running_;
  std::unique_ptr<Save> save_;
  std::shared_ptr<BackgroundSave::State> state_;
  std::exception_ptr error_;
  Rate rate_;
};

void BackgroundWork::make_checkpoint() {
  write_values();
  const std::uint32_t ranks = save_->ranks() > 1 ? save_->ranks() : 0;
  if (ranks > 0) save_->leave_note(name_of_written(save_->rank()), "");
  wait_for_notes(name_of_written, 0);
  save_->sum_shared_chunks();
  if (save_->rank() != 0) return wait_for_name();
  wait_for_notes(name_of_sums, 1);
  throw_if_ended();
  for (std::uint32_t r = 0; r < ranks; ++r) remove_file(save_->path_of(name_of_written(r)));
  save_->finish();
}

// In portions: a tile at once would be a burst.
void BackgroundWork::write_values() {
  save_->write([&](const engine::RangeSink& sink) {
    const auto limited = [&](engine::ValueRange range, std::span<const std::byte> values) {
      while (!values.empty()) {
        const auto portion = values.first(std::min(values.size(), kPortionBytes));
        wait_for_rate(portion.size());
        sink(range, portion);
        range.first_byte += portion.size();
        values = values.subspan(portion.size());
      }
    };
    running_.all_values->store_pinned(*running_.epochs, memory_of(running_).tile, limited);
    running_.epochs->unpin();
  });
}

void BackgroundWork::wait_for_rate(std::uint64_t bytes) {
  throw_if_ended();
  while (!rate_.allows() && !hurries()) {
    rate_.sleep();
    throw_if_ended();
  }
  rate_.count(bytes);
}

bool BackgroundWork::hurries() const noexcept {
  return state_->awaited.load() || running_.epochs->awaited() || running_.background.awaited();
}

void BackgroundWork::throw_if_ended() const {
  constexpr const char* kFollows = "; no checkpoint was made. Continue from the checkpoint before.";
  if (core_.ended())
    fail(Code::kFailed, std::string("the engine has failed or was interrupted") + kFollows);
  if (core_.ranks_ended())
    fail(Code::kPeerLost, std::string("the collective of the ranks has ended") + kFollows);
}

void BackgroundWork::throw_failure_of_others() const {
  for (std::uint32_t r = 0; r < save_->ranks(); ++r) {
    const std::string path = save_->path_of(name_of_failed(r));
    if (r == save_->rank() || !is_there(path)) continue;
    const std::string cause = text_in(File::open(path));
    fail(Code::kFailed, "rank " + std::to_string(r) + ": " +
                            (cause.empty() ? "its log has the cause" : cause) +
                            "; no checkpoint was made");
  }
}

template <class There>
void BackgroundWork::wait_until(const There& there) const {
  while (!there()) {
    throw_if_ended();
    throw_failure_of_others();
    std::this_thread::sleep_for(kLook);
  }
}

void BackgroundWork::wait_for_notes(std::string (*name)(std::uint32_t),
                                    std::uint32_t first_rank) const {
  for (std::uint32_t r = first_rank; save_->ranks() > 1 && r < save_->ranks(); ++r) {
    wait_until([&] {
      if (is_there(save_->path_of(name(r)))) return true;
      if (!is_there(save_->folder())) fail(Code::kFailed, kRank0Failed);
      return false;
    });
  }
}

// Rank 0 gives the folder its name, or removes it.
void BackgroundWork::wait_for_name() const {
  wait_until([&] { return !is_there(save_->folder()); });
  if (!is_there(save_->directory())) fail(Code::kFailed, kRank0Failed);
}

// Rank 0's failure shows without a note: the folder goes.
void BackgroundWork::tell_others() const noexcept {
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& cause) {
    core_.log()(LogLevel::kError, cause.what());
    if (save_->rank() == 0) return;
    // On a full disk, there is room for a name at least. If the folder cannot be written at all,
    // the others wait until their engine ends.
    for (const char* const text : {cause.what(), ""}) {
      try {
        return save_->leave_note(name_of_failed(save_->rank()), text);
      } catch (const std::exception&) {
        remove_half_note();
      }
    }
  }
}

void BackgroundWork::remove_half_note() const noexcept {
  std::error_code ignored;
  std::filesystem::remove(save_->path_of(name_of_failed(save_->rank())) + ".half", ignored);
}

void require_background_saves(const Settings& settings) {
  if (settings.background_save_bytes_per_second > 0) return;
  if (settings.durable_every > 0) {
    fail(Code::kUnsupported,
         "headrace.background_save_bytes_per_second is 0, so the plan has no memory for it; "
         "nothing was written. Call save_checkpoint(), or set it.");
  }
  fail(Code::kUnsupported,
       "nothing is committed to a store (headrace.durable), so each step overwrites what is to be "
       "saved; nothing was written. Call save_checkpoint(), or set headrace.durable, "
       "headrace.store and headrace.background_save_bytes_per_second.");
}

void require_no_other(const engine::Running& running) {
  if (!running.background.running()) return;
  fail(Code::kWrongState,
       "another background save still runs; nothing was written. Call BackgroundSave::wait() "
       "first.");
}

// Before the commit, so that a refusal changes nothing. One rank's save before this one may still
// run while another's has ended.
void agree_to_save(Engine& engine, engine::Running& running, const SaveOptions& options) {
  const auto together = running.gradients->begin_together(ranks::RankCall::Kind::kSaveInBackground);
  ranks::Meeting<SaveWords> meeting(running.ranks, kBackgroundCall);
  meeting.run([&] {
    check_save(kBackgroundCall, engine, options);
    require_no_other(running);
    meeting.meet({});
  });
}

std::unique_ptr<Save> begun_save(Engine& engine, engine::Running& running,
                                 const std::string& directory, const SaveOptions& options) {
  const auto together = running.gradients->begin_together(ranks::RankCall::Kind::kSaveInBackground);
  std::unique_ptr<Save> save;
  // Absolute: the program may change its directory meanwhile. What one rank refuses here, the
  // others learn where they meet first.
  ranks::Meeting<SaveWords>(running.ranks, kBackgroundCall).run([&] {
    const std::string path =
        directory.empty() ? directory : std::filesystem::absolute(directory).string();
    save =
        std::make_unique<Save>(kBackgroundCall, engine, path, options, memory_of(running).buffers);
  });
  save->meeting().run([&] { save->begin(); });
  return save;
}
}  // namespace

BackgroundSave save_checkpoint_in_background(Engine& engine, const std::string& directory,
                                             const SaveOptions& options) {
  EngineCore& core = engine::core_of(engine);
  engine::Running& running = core.ready(kBackgroundCall);
  require_background_saves(core.settings());
  agree_to_save(engine, running, options);
  running.epochs->pin(kBackgroundCall);
  auto state = std::make_shared<BackgroundSave::State>();
  try {
    const auto work = std::make_shared<BackgroundWork>(
        core, running, begun_save(engine, running, directory, options), state);
    running.background.start([work] { work->run(); }, [work] { work->tell(); });
  } catch (...) {
    running.epochs->unpin();
    throw;
  }
  return BackgroundSave(std::move(state));
}
}  // namespace headrace
