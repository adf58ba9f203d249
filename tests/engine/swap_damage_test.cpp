// SPDX-License-Identifier: Apache-2.0
// swap_damage_test: somebody else changes the swap file under a running engine: bits flip, an
// extent is torn or old, the file is cut, removed or replaced. On every queue.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/unique_fd.hpp"
#include "engine/parts.hpp"
#include "headrace/engine.hpp"
#include "support/all_on_nvme.hpp"
#include "support/expect_code.hpp"
#include "support/io_queue_fault.hpp"
#include "support/temporary_directory.hpp"
#include "swap/io_queue.hpp"
#include "swap/record.hpp"

namespace headrace {
namespace {
constexpr std::int64_t kElements = 65536;  // one tile
constexpr std::uint64_t kPage = 4096;

using Bytes = std::vector<std::byte>;

// The swap file as another process sees it.
class FileFromOutside {
 public:
  explicit FileFromOutside(const std::string& directory) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (entry.path().extension() == ".swap") path_ = entry.path().string();
    }
    fd_.reset(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_TRUE(fd_) << path_;
  }
  const std::string& path() const { return path_; }
  Bytes read(std::uint64_t at, std::uint64_t size) const {
    Bytes bytes(size);
    EXPECT_EQ(::pread(fd_.get(), bytes.data(), size, static_cast<off_t>(at)),
              static_cast<ssize_t>(size));
    return bytes;
  }
  void write(std::uint64_t at, std::span<const std::byte> bytes) const {
    EXPECT_EQ(::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(::fdatasync(fd_.get()), 0);
  }
  void flip(std::uint64_t at) const {
    Bytes byte = read(at, 1);
    byte[0] ^= std::byte{0x10};
    write(at, byte);
  }
  void cut(std::uint64_t size) const {
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(size)), 0);
  }

  struct Place {
    std::uint64_t record = 0, record_bytes = 0;  // of the record: header and streams
    std::uint64_t weight = 0, weight_bytes = 0;
  };
  // Where a tile lies, from the headers alone.
  Place place_of(std::uint64_t tile) const {
    const auto size = static_cast<std::uint64_t>(::lseek(fd_.get(), 0, SEEK_END));
    for (std::uint64_t at = 0; at + kPage <= size; at += kPage) {
      const Bytes page = read(at, kPage);
      const auto& header = *reinterpret_cast<const swap::RecordHeader*>(page.data());
      if (std::memcmp(header.magic, "hrrecord", 8) == 0 && header.record == tile)
        return place_from(header, at);
    }
    ADD_FAILURE() << "no record of tile " << tile;
    return {};
  }

 private:
  static Place place_from(const swap::RecordHeader& header, std::uint64_t at) {
    Place place{.record = at};
    for (std::uint32_t s = 0; s < header.streams; ++s) {
      const swap::StreamEntry& stream = header.stream[s];
      if ((stream.offset_bytes & swap::kElsewhere) != 0) {
        place.weight = stream.offset_bytes & ~swap::kElsewhere;
        place.weight_bytes = stream.size_bytes;
      } else {
        place.record_bytes = std::max(place.record_bytes, stream.offset_bytes + stream.size_bytes);
      }
    }
    return place;
  }
  std::string path_;
  base::UniqueFd fd_;
};

// Two groups of one tile each, all on NVMe, one gather slot and one update slot: what is used is
// read, and tile 0 is updated first.
class SwapDamage : public ::testing::TestWithParam<IoQueueKind> {
 protected:
  void SetUp() override {
    try {
      swap::choose_io_queue(GetParam(), {.depth = 2});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  // `failing`: the number of the write that fails once, if any.
  void start(Checksums checksums = Checksums::kOn, std::uint64_t failing = 0) {
    directory_.emplace();
    Settings settings = testing::all_on_nvme(directory_->string());
    settings.io_queue = GetParam();
    settings.prefetch_groups = 0;
    settings.update_slots = 1;
    settings.checksums = checksums;
    engine::EngineParts parts;
    parts.make_queue = [kind = settings.io_queue, failing](const swap::IoQueueOptions& options) {
      const swap::FaultPlan plan{.fail_request = failing, .fail_errno = EIO, .only_writes = true};
      swap::ChosenIoQueue chosen = swap::choose_io_queue(kind, options);
      if (failing > 0) chosen.queue = make_io_queue_fault(std::move(chosen.queue), plan, nullptr);
      return chosen;
    };
    engine_.emplace(
        engine::engine_with_parts(settings, {.log = [](LogLevel, std::string_view) {}}, parts));
    for (const char* name : {"a", "b"})
      engine_->add_group(name, {{"w", DType::kBf16, {kElements}}});
    engine_->freeze();
    for (const std::uint32_t g : {0u, 1u}) {
      engine_->load({g}, [](ParameterId, std::span<std::byte> out) {
        for (std::size_t i = 0; i < out.size(); ++i)
          out[i] = i % 2 == 0 ? static_cast<std::byte>(i / 2) : std::byte{0x3c};
      });
    }
  }
  void add_gradients() {
    std::vector<float> gradient(kElements);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 97) - 48;
    for (const std::uint32_t p : {0u, 1u}) engine_->add_gradient({p}, gradient.data(), DType::kF32);
  }
  void train_step() {
    add_gradients();
    (void)engine_->step({.learning_rate = 1e-2f});
  }
  std::string hashes() { return engine_->hash_parameters() + engine_->hash_optimizer_state(); }
  // Of `steps` steps that nobody disturbs.
  std::string undisturbed(int steps) {
    start();
    for (int step = 0; step < steps; ++step) train_step();
    const std::string result = hashes();
    engine_->close();
    EXPECT_EQ(directory_->entries(), 0u);
    return result;
  }
  FileFromOutside outside() const { return FileFromOutside(directory_->string()); }
  // The step is refused with these words, as often as it is called, and has changed nothing: once
  // `mend` has put the bytes back it ends in the bits of an undisturbed run.
  void expect_refused_and_whole(const std::string& words, const std::function<void()>& mend) {
    add_gradients();
    for (int i = 0; i < 2; ++i) {
      EXPECT_CODE(Code::kCorrupt, (void)engine_->step({.learning_rate = 1e-2f}), words);
    }
    mend();
    (void)engine_->step({.learning_rate = 1e-2f});
    const std::string mended = hashes();
    engine_->close();
    EXPECT_EQ(directory_->entries(), 0u);
    EXPECT_EQ(mended, undisturbed(2));
  }

  // The pass over a tile finds it while it updates: the engine has failed, and says why to the end.
  void expect_failed(const std::string& words) {
    add_gradients();
    EXPECT_CODE(Code::kCorrupt, (void)engine_->step({}), words);
    EXPECT_CODE(Code::kFailed, (void)engine_->step({}), words);
    EXPECT_CODE(Code::kFailed, (void)engine_->gather({1}), words);
    engine_->close();
    EXPECT_EQ(directory_->entries(), 0u);
  }

  std::optional<testing::TemporaryDirectory> directory_;
  std::optional<Engine> engine_;
};
INSTANTIATE_TEST_SUITE_P(Queues, SwapDamage,
                         ::testing::Values(IoQueueKind::kUring, IoQueueKind::kAio,
                                           IoQueueKind::kThreads),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(SwapDamage, ABitFlippedInARecordsHeaderIsNamedAndNothingWasUpdated) {
  start();
  train_step();
  const FileFromOutside file = outside();
  const auto place = file.place_of(0);
  file.flip(place.record + 100);
  expect_refused_and_whole(
      "bytes of the header changed after they were written; the file was changed or the drive is "
      "failing. Start again on another drive.",
      [&] { file.flip(place.record + 100); });
}

TEST_P(SwapDamage, ABitFlippedInARecordsBodyIsNamedAndTheEngineHasFailed) {
  start();
  train_step();
  const FileFromOutside file = outside();
  const auto place = file.place_of(0);
  file.flip(place.record + place.record_bytes - 1);
  expect_failed("'a.w' (tile 0): " + file.path() + " at " + std::to_string(place.record) +
                ": stream 3, chunk 0 (generation 2): the checksum differs");
}

// The state is read without the weight: its first stream is no weight, and lies in the record.
TEST_P(SwapDamage, ABitFlippedInAMomentIsNamedByItsPlaceWhenItIsStored) {
  start();
  train_step();
  const FileFromOutside file = outside();
  const auto place = file.place_of(0);
  const auto store = [&] {
    engine_->store({0}, Content::kExpAvg, [](std::uint64_t, std::span<const std::byte>) {});
  };
  file.flip(place.record + swap::kHeaderBytes);
  EXPECT_CODE(Code::kCorrupt, store(),
              "swap in state of 'a.w' (tile 0): " + file.path() + " at " +
                  std::to_string(place.record) + ": stream 1, chunk 0");
  file.flip(place.record + swap::kHeaderBytes);
  EXPECT_NO_THROW(store());
  engine_->close();
}

// The write of a weight fails and is repeated on another extent, after the header named the first.
TEST_P(SwapDamage, AHeaderNamesTheExtentThatAWeightWentToInTheEnd) {
  std::uint64_t moved = 0;
  std::uint64_t undisturbed = 0;  // where tile 0's weight is if nothing fails
  for (std::uint64_t failing = 0; failing <= 4; ++failing) {
    SCOPED_TRACE("write " + std::to_string(failing) + " fails");
    start(Checksums::kOn, failing);
    const FileFromOutside file = outside();
    const auto place = file.place_of(0);
    if (failing == 0) undisturbed = place.weight;
    moved += place.weight != undisturbed;
    Bytes weight;
    engine_->store({0}, Content::kWeight, [&](std::uint64_t, std::span<const std::byte> bytes) {
      weight.insert(weight.end(), bytes.begin(), bytes.end());
    });
    EXPECT_EQ(file.read(place.weight, place.weight_bytes), weight);
    engine_->close();
  }
  EXPECT_GT(moved, 0u);
}

TEST_P(SwapDamage, ABitFlippedInAWeightIsNamedByTheGather) {
  start();
  train_step();
  const FileFromOutside file = outside();
  const auto place = file.place_of(0);
  file.flip(place.weight + place.weight_bytes / 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_CODE(Code::kCorrupt, (void)engine_->gather({0}), "swap in 'a.w' (tile 0)");
  }
  EXPECT_NO_THROW((void)engine_->gather({1})) << "the other group is whole";
  file.flip(place.weight + place.weight_bytes / 2);
  EXPECT_NO_THROW((void)engine_->gather({0}));
  engine_->close();
}

// What a drive leaves that lost power, or dropped the second half of a write.
TEST_P(SwapDamage, ATornRecordIsNamedAndTheEngineHasFailed) {
  start();
  const FileFromOutside file = outside();
  const auto place = file.place_of(0);
  const Bytes old = file.read(place.record, place.record_bytes);
  train_step();
  const std::size_t half = place.record_bytes / 2;
  ASSERT_NE(file.read(place.record + half, old.size() - half),
            Bytes(old.begin() + static_cast<std::ptrdiff_t>(half), old.end()));
  file.write(place.record + half, std::span(old).subspan(half));
  expect_failed("(generation 2): the checksum differs");
}

// A write that the drive dropped.
TEST_P(SwapDamage, AnOldRecordIsNamedAndNothingWasUpdated) {
  start();
  const FileFromOutside file = outside();
  const auto place = file.place_of(0);
  const Bytes old = file.read(place.record, place.record_bytes);
  train_step();
  const Bytes now = file.read(place.record, place.record_bytes);
  ASSERT_NE(now, old);
  file.write(place.record, old);
  expect_refused_and_whole("generation 1 where 2 was written last",
                           [&] { file.write(place.record, now); });
}

TEST_P(SwapDamage, AnOldWeightIsNamed) {
  start();
  const FileFromOutside file = outside();
  const auto place = file.place_of(0);
  const Bytes old = file.read(place.weight, place.weight_bytes);
  train_step();
  ASSERT_NE(file.read(place.weight, place.weight_bytes), old);
  file.write(place.weight, old);
  EXPECT_CODE(
      Code::kCorrupt, (void)engine_->gather({0}),
      "these bytes were not used. The file was changed or the drive is failing. Start again "
      "on another drive.");
  engine_->close();
}

// Every header has one, whatever the settings say.
TEST_P(SwapDamage, WithoutChecksumsAnOldRecordIsStillNamed) {
  start(Checksums::kOff);
  const FileFromOutside file = outside();
  const auto place = file.place_of(0);
  const Bytes old = file.read(place.record, place.record_bytes);
  train_step();
  file.write(place.record, old);
  add_gradients();
  EXPECT_CODE(Code::kCorrupt, (void)engine_->step({}), "was written last");
  engine_->close();
}

TEST_P(SwapDamage, AFileThatIsCutEndsTheCallNamingTheFile) {
  start();
  train_step();
  const FileFromOutside file = outside();
  file.cut(kPage);
  EXPECT_CODE(Code::kIo, (void)engine_->gather({0}), "truncated while in use");
  EXPECT_CODE(Code::kIo, (void)engine_->gather({1}), file.path());
  add_gradients();
  EXPECT_CODE(Code::kIo, (void)engine_->step({}), "truncated while in use");
  engine_->close();
  EXPECT_EQ(directory_->entries(), 0u);
}

// It grows back by what is written behind the cut; the hole before that holds zeros.
TEST_P(SwapDamage, AHoleInTheFileIsNamed) {
  start();
  train_step();
  const FileFromOutside file = outside();
  const auto place = file.place_of(0);
  ASSERT_GT(place.record, kPage);
  const auto size = std::filesystem::file_size(file.path());
  file.cut(kPage);
  file.cut(size);
  EXPECT_CODE(Code::kCorrupt, (void)engine_->gather({1}), "checksum differs");
  add_gradients();
  EXPECT_CODE(Code::kCorrupt, (void)engine_->step({}), "no record was ever written here");
  engine_->close();
}

TEST_P(SwapDamage, AFileThatIsRemovedServesToTheEnd) {
  start();
  train_step();
  std::filesystem::remove(outside().path());
  train_step();
  const std::string removed = hashes();
  engine_->close();
  EXPECT_EQ(directory_->entries(), 0u);
  EXPECT_EQ(removed, undisturbed(2));
}

TEST_P(SwapDamage, AFileThatIsReplacedServesToTheEndAndItsSuccessorIsNeverUsed) {
  start();
  train_step();
  const std::string path = outside().path();
  const std::string other = directory_->string() + "/other";
  std::filesystem::copy_file(path, other);
  std::filesystem::rename(other, path);
  const Bytes before = outside().read(0, std::filesystem::file_size(path));
  train_step();
  EXPECT_EQ(outside().read(0, before.size()), before) << "the other file was written to";
  const std::string replaced = hashes();
  engine_->close();
  EXPECT_EQ(directory_->entries(), 0u);
  EXPECT_EQ(replaced, undisturbed(2));
}

TEST_P(SwapDamage, ADirectoryThatIsRemovedUnderTheRunServesToTheEnd) {
  start();
  train_step();
  std::filesystem::remove_all(std::filesystem::path(outside().path()).parent_path());
  train_step();
  const std::string removed = hashes();
  engine_->close();
  EXPECT_EQ(removed, undisturbed(2));
}
}  // namespace
}  // namespace headrace
