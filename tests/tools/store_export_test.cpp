// SPDX-License-Identifier: Apache-2.0
// store_export_test: `headrace store export`: the file holds what Engine::store() gives, whatever
// the store's codecs, drives and ranks; what is damaged, missing or in the way is named, and leaves
// no file.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "headrace/engine.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"
#include "optimizer_cpu/update.hpp"
#include "store/open_store.hpp"
#include "store/store.hpp"
#include "support/all_on_nvme.hpp"
#include "support/scripted_trainer.hpp"
#include "support/socket_ranks.hpp"
#include "support/temporary_directory.hpp"
#include "swap/dead_runs.hpp"
#include "swap/record.hpp"
#include "swap/store_registration.hpp"
#include "tools/called.hpp"

namespace headrace::tools::store_export_test {
namespace {
// What comes before a call of flock().
std::function<void(int)> before_lock;
}  // namespace
}  // namespace headrace::tools::store_export_test

// In the place of the C library's.
extern "C" int flock(int fd, int operation) noexcept {
  const auto before = headrace::tools::store_export_test::before_lock;  // which may end itself
  if (before) before(fd);
  return static_cast<int>(::syscall(SYS_flock, fd, operation));
}

namespace headrace::tools::store_export_test {
namespace {
namespace fs = std::filesystem;

struct Tensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
  friend bool operator==(const Tensor&, const Tensor&) = default;
};
using Tensors = std::map<std::string, Tensor>;

Tensors read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t header_bytes = 0;
  if (all.size() < 8) return {};
  std::memcpy(&header_bytes, all.data(), 8);
  Tensors tensors;
  std::uint64_t end = 8 + header_bytes;
  const auto header = nlohmann::json::parse(all.substr(8, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto offsets = entry["data_offsets"].get<std::array<std::uint64_t, 2>>();
    tensors[name] = {entry["dtype"], entry["shape"],
                     all.substr(8 + header_bytes + offsets[0], offsets[1] - offsets[0])};
    end = std::max(end, 8 + header_bytes + offsets[1]);
  }
  EXPECT_EQ(end, all.size());
  return tensors;
}

// Adds what Engine::store() gives on this rank.
void add_stored(Engine& engine, Tensors& tensors) {
  const auto kept = moments(optimizer_cpu::arithmetic_of(engine.settings().optimizer));
  constexpr std::array kPrefixes = {"", "master.", "exp_avg.", "exp_avg_sq."};
  for (std::uint32_t p = 0; p < engine.parameter_count(); ++p) {
    const ParameterSpec& spec = engine.spec({p});
    for (std::size_t content = 0; content < (spec.frozen ? 1 : 2 + kept); ++content) {
      const std::size_t element_bytes = content == 0 ? size_bytes(spec.dtype) : sizeof(float);
      Tensor& tensor = tensors[kPrefixes[content] + engine.full_name({p})];
      tensor.dtype = content == 0 ? name_of(spec.dtype) : "F32";
      tensor.shape = spec.shape;
      tensor.bytes.resize(spec.elements() * element_bytes);
      engine.store({p}, static_cast<Content>(content),
                   [&](std::uint64_t first, std::span<const std::byte> bytes) {
                     std::memcpy(tensor.bytes.data() + first * element_bytes, bytes.data(),
                                 bytes.size());
                   });
    }
  }
}

struct Case {
  const char* name;
  MasterLayout master = MasterLayout::kSplit;
  MomentCodec moments = MomentCodec::kF32;
  OptimizerRule rule = OptimizerRule::kAdamW;
  bool frozen = false;
  std::size_t drives = 1;
  std::uint32_t ranks = 1;
  bool in_memory = false;  // weights and state, which a commit writes
  DType dtype = DType::kBf16;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr std::int64_t kRows = 700, kColumns = 301;  // two tiles, the second not whole

// Two groups with a weight, a bias, and an odd one; `frozen`: one of them, and a group of them.
void train(Engine& engine, const Case& c, int steps) {
  std::vector<ParameterId> trained;
  for (const char* const group : {"one", "two"}) {
    const bool frozen = c.frozen && std::strcmp(group, "two") == 0;
    const GroupId id = engine.add_group(group, {{"weight", c.dtype, {kRows, kColumns}, {}, frozen},
                                                {"bias", DType::kF32, {77}, {}, frozen},
                                                {"odd", c.dtype, {3, 5, 1}, {}, c.frozen}});
    for (const ParameterId parameter : engine.parameters(id))
      if (!engine.spec(parameter).frozen) trained.push_back(parameter);
  }
  engine.freeze();
  for (std::uint32_t g = 0; g < engine.group_count(); ++g) {
    engine.load({g}, [&](ParameterId id, std::span<std::byte> out) {
      for (std::size_t i = 0; i < out.size(); ++i)  // no NaN: the exponent's bits are few
        out[i] = static_cast<std::byte>((i % 2 == 1 ? 0x3c : 0) + (i * 37 + id.index) % 3);
    });
  }
  for (int step = 1; step <= steps; ++step) {
    for (const ParameterId id : trained) {
      std::vector<float> gradient(engine.spec(id).elements());
      for (std::size_t e = 0; e < gradient.size(); ++e)
        gradient[e] = static_cast<float>((e * 7919 + id.index * 31 + step) % 2003) / 1001.f - 1.f;
      engine.add_gradient(id, gradient.data(), DType::kF32);
    }
    engine.set_trainer_state({});
    engine.step({.learning_rate = 1e-2f});
  }
}

class StoreExport : public ::testing::TestWithParam<Case> {
 protected:
  Settings settings(const Case& c) const {
    Settings s = testing::all_on_nvme(drives_.string());
    if (c.in_memory) s.offload_optimizer = s.offload_parameters = OffloadDevice::kCpu;
    s.nvme_paths = drives_.drives(c.drives);
    s.update_threads = 1;
    s.durable_every = 1;
    s.store = "run-1";
    s.master = c.master;
    s.moments = c.moments;
    s.optimizer = c.rule;
    return s;
  }
  // Trains on all ranks; returns what their engines have at the end, joined.
  Tensors trained(const Case& c, int steps = 3) const {
    Tensors tensors;
    std::mutex mutex;
    const auto run = [&](std::shared_ptr<Collective> collective) {
      Engine engine(settings(c), {.collective = std::move(collective)});
      train(engine, c, steps);
      {
        const std::lock_guard lock(mutex);
        add_stored(engine, tensors);
      }
      engine.close();
    };
    if (c.ranks == 1) {
      run(nullptr);
      return tensors;
    }
    auto ranks = testing::make_socket_ranks(c.ranks);
    std::vector<std::thread> threads;
    for (auto& rank : ranks) threads.emplace_back(run, std::move(rank));
    ranks.clear();
    for (std::thread& thread : threads) thread.join();
    return tensors;
  }
  std::vector<std::string> words(const Case& c, bool with_state = true) const {
    std::vector<std::string> all = {"store", "export", "run-1"};
    for (const std::string& path : drives_.drives(c.drives)) all.push_back(path);
    all.insert(all.end(), {"--to", out()});
    if (with_state) all.push_back("--state");
    return all;
  }
  std::string out() const { return (out_.path() / "model.safetensors").string(); }
  std::string file(int rank = 0, int drive = 0, const Case& c = {"plain"}) const {
    return drives_.drives(c.drives)[static_cast<std::size_t>(drive)] + "/" +
           swap::user_directory_name() + "/store-run-1/rank" + std::to_string(rank) + "." +
           std::to_string(drive) + ".store";
  }
  std::ptrdiff_t files_out() const {
    return std::distance(fs::directory_iterator(out_.path()), fs::directory_iterator());
  }
  swap::StoreHead head(const std::string& path) const {
    swap::StoreHead head;
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&head), sizeof head);
    return head;
  }
  static void flip(const std::string& path, std::uint64_t at) {
    std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(at));
    const char flipped = static_cast<char>(bytes.get() ^ 4);
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes.put(flipped);
  }
  // Exports with this exit code and this in the message, and leaves nothing.
  void expect_refused(const Case& c, int exit_code, const std::string& part) const {
    const Called called = call(store, words(c));
    EXPECT_EQ(called.exit_code, exit_code) << called.err;
    EXPECT_NE(called.err.find(part), std::string::npos) << called.err;
    EXPECT_EQ(files_out(), 0);
  }

  testing::TemporaryDirectory drives_, out_;
};

const Case kPlain{"plain"};

TEST_P(StoreExport, HasTheBitsOfTheEngine) {
  const Tensors expected = trained(GetParam());
  const Called called = call(store, words(GetParam()));
  ASSERT_EQ(called.exit_code, 0) << called.out << called.err;
  EXPECT_NE(called.out.find("step 3"), std::string::npos) << called.out;
  const Tensors found = read_safetensors(out());
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(found.at(name) == tensor) << name;
  }
  // Else zeros would pass.
  EXPECT_NE(expected.at("one.weight").bytes,
            std::string(expected.at("one.weight").bytes.size(), 0));

  fs::remove(out());
  const Called weights = call(store, words(GetParam(), false));
  ASSERT_EQ(weights.exit_code, 0) << weights.err;
  for (const auto& [name, tensor] : read_safetensors(out())) {
    EXPECT_TRUE(name.starts_with("one.") || name.starts_with("two.")) << name;
    EXPECT_TRUE(expected.at(name) == tensor) << name;
  }
  EXPECT_EQ(files_out(), 1);
  auto verify = words(GetParam(), false);
  verify[1] = "verify";
  verify.resize(verify.size() - 2);
  const Called verified = call(store, verify);
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  EXPECT_EQ(verified.out.find("not verified"), std::string::npos) << verified.out;
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreExport,
    ::testing::Values(
        Case{"split"}, Case{"f32_master", MasterLayout::kF32},
        Case{"block8", MasterLayout::kSplit, MomentCodec::kBlock8},
        Case{"bf16_moments", MasterLayout::kF32, MomentCodec::kBf16},
        Case{"lion", MasterLayout::kSplit, MomentCodec::kBlock8, OptimizerRule::kLion},
        Case{"adagrad", MasterLayout::kSplit, MomentCodec::kBlock8, OptimizerRule::kAdagrad},
        Case{"sgd", MasterLayout::kSplit, MomentCodec::kF32, OptimizerRule::kSgd},
        Case{.name = "frozen", .frozen = true}, Case{.name = "two_drives", .drives = 2},
        Case{.name = "two_ranks", .frozen = true, .drives = 2, .ranks = 2},
        Case{.name = "in_memory", .frozen = true, .in_memory = true},
        Case{.name = "f16", .moments = MomentCodec::kBlock8, .dtype = DType::kF16},
        Case{.name = "f32", .dtype = DType::kF32}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- refusals ----

TEST_F(StoreExport, NeverTakesThePlaceOfAFile) {
  trained(kPlain);
  std::ofstream(out()) << "mine";
  const Called called = call(store, words(kPlain));
  EXPECT_EQ(called.exit_code, 2);
  EXPECT_NE(called.err.find(out() + " exists"), std::string::npos) << called.err;
  std::string kept;
  std::ifstream(out()) >> kept;
  EXPECT_EQ(kept, "mine");
  EXPECT_EQ(files_out(), 1);
}

TEST_F(StoreExport, WritesAnewWhatAKilledOneLeft) {
  const Tensors expected = trained(kPlain);
  std::ofstream(out() + ".headrace-tmp") << std::string(1 << 24, 'x');
  const Called called = call(store, words(kPlain));
  ASSERT_EQ(called.exit_code, 0) << called.err;
  EXPECT_EQ(read_safetensors(out()), expected);
  EXPECT_EQ(files_out(), 1);
}

// It gets its name between this one's open and lock.
TEST_F(StoreExport, LeavesWhatAnotherHasJustFinished) {
  trained(kPlain);
  const std::string temporary = out() + ".headrace-tmp";
  for (const bool still_there : {false, true}) {  // under the temporary name, too: a kill came then
    SCOPED_TRACE(still_there);
    std::ofstream(temporary) << "whole";
    before_lock = [&](int fd) {
      if (fs::read_symlink("/proc/self/fd/" + std::to_string(fd)) != temporary) return;
      before_lock = nullptr;
      if (still_there) fs::create_hard_link(temporary, out());
      if (!still_there) fs::rename(temporary, out());
    };
    const Called called = call(store, words(kPlain));
    EXPECT_FALSE(before_lock);
    EXPECT_EQ(called.exit_code, 2) << called.err;
    EXPECT_NE(called.err.find(out() + " exists"), std::string::npos) << called.err;
    std::string kept;
    std::ifstream(out()) >> kept;
    EXPECT_EQ(kept, "whole");
    EXPECT_EQ(files_out(), 1);
    fs::remove(out());
  }
}

TEST_F(StoreExport, RefusesToWriteToWhatIsNoFile) {
  trained(kPlain);
  const std::string temporary = out() + ".headrace-tmp";
  const auto refused = [&] {
    const Called called = call(store, words(kPlain));
    EXPECT_EQ(called.exit_code, 2) << called.err;
    EXPECT_NE(called.err.find(temporary + " is no regular file"), std::string::npos) << called.err;
    EXPECT_TRUE(fs::exists(fs::symlink_status(temporary))) << "it stays";
    fs::remove(temporary);
  };
  fs::create_symlink("/dev/null", temporary);
  refused();
  fs::create_directory(temporary);
  refused();
  ASSERT_EQ(::mkfifo(temporary.c_str(), 0600), 0);
  refused();
}

TEST_F(StoreExport, IsRefusedWhileAnEngineUsesTheStore) {
  Engine engine(settings(kPlain), {});
  train(engine, kPlain, 1);
  expect_refused(kPlain, 2, "is in use");
}

TEST_F(StoreExport, NamesTheMissingRankOrDrive) {
  const Case c{.name = "both", .drives = 2, .ranks = 2};
  trained(c);
  const fs::path kept = drives_.path() / "kept";
  const auto without = [&](int rank, int drive, const std::string& part) {
    const std::string path = file(rank, drive, c);
    fs::rename(path, kept);
    expect_refused(c, 2, part);
    fs::rename(kept, path);
  };
  without(0, 0, "lacks its file of drive 0");
  without(1, 1, "drive");
  fs::rename(file(1, 0, c), drives_.path() / "other");
  without(1, 1, "is of 2 ranks, and files of 1 are on the paths: rank 1 has none");
  fs::rename(drives_.path() / "other", file(1, 0, c));
  fs::rename(file(0, 0, c), drives_.path() / "other");
  without(0, 1, "has files of rank 1 on these paths, and none of rank 0");
}

TEST_F(StoreExport, RefusesAStoreWithoutAStep) {
  {
    Engine engine(settings(kPlain), {});
    train(engine, kPlain, 0);
    engine.close();
  }
  expect_refused(kPlain, 2, "no committed step");
}

TEST_F(StoreExport, NamesTheRankWhoseFilesDoNotBelongThere) {
  const Case c{.name = "two", .ranks = 2};
  trained(c, 1);
  const fs::path kept = drives_.path() / "kept", older = drives_.path() / "older";
  fs::copy_file(file(1), kept);
  fs::remove(file(0));
  fs::remove(file(1));
  trained(c, 1);
  fs::copy_file(file(1), older);
  trained(c, 3);  // goes on
  fs::copy_file(kept, file(1), fs::copy_options::overwrite_existing);
  expect_refused(c, 1, "rank 1 has files of another store of that name");
  fs::copy_file(older, file(1), fs::copy_options::overwrite_existing);
  expect_refused(c, 1, "of it, and rank 1 only epoch 1: files of an older copy");
}

// ---- damage ----

TEST_F(StoreExport, EndsAtADamagedTileAndNamesItsTensor) {
  trained(kPlain);
  std::uint64_t at = 0;
  {
    OpenStore open(find_store("run-1", 0, {{.path = drives_.drives(1)[0]}}));
    const StoredTile tile = open.tile(1);
    for (const StoredStream& stream : tile.streams)
      if (stream.name == "exp_avg_sq") at = stream.offset_bytes + 5;
  }
  flip(file(), at);
  expect_refused(kPlain, 1, "rank 0: tile 1 on " + file());
  expect_refused(kPlain, 1, "stream exp_avg_sq, chunk 0");
  expect_refused(kPlain, 1, "(of 'one.weight')");
  const Called verified = call(store, {"store", "verify", "run-1", drives_.drives(1)[0]});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_NE(verified.out.find("differs from what was written (of 'one.weight')"), std::string::npos)
      << verified.out;
  // The weights are whole.
  const Called weights = call(store, words(kPlain, false));
  EXPECT_EQ(weights.exit_code, 0) << weights.err;
}

// A record that agrees with its own header, and not with the epoch.
TEST_F(StoreExport, ComparesWeightsWithTheCommitRecord) {
  trained(kPlain);
  swap::RecordHeader header;
  swap::Extent record;
  StoredStream weight;
  {
    OpenStore open(find_store("run-1", 0, {{.path = drives_.drives(1)[0]}}));
    record = open.place_of_record(1);
    for (const StoredStream& stream : open.tile(1).streams)
      if (stream.name == "weight") weight = stream;
  }
  ASSERT_GT(weight.size_bytes, 0u);
  flip(file(), weight.offset_bytes + 5);
  std::fstream bytes(file(), std::ios::in | std::ios::out | std::ios::binary);
  std::string chunk(weight.size_bytes, '\0');  // a tile of 65,536 elements has one
  bytes.seekg(static_cast<std::streamoff>(weight.offset_bytes));
  bytes.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
  bytes.seekg(static_cast<std::streamoff>(record.offset_bytes));
  bytes.read(reinterpret_cast<char*>(&header), sizeof header);
  const swap::StreamEntry& entry = header.stream[header.streams - 1];
  ASSERT_STREQ(entry.name, "weight");
  ASSERT_EQ(entry.checksums, 1u);
  header.checksum[entry.first_checksum] =
      kernels::xxh3_64(std::as_bytes(std::span(chunk)), weight.seed);
  swap::finish_header(header);
  bytes.seekp(static_cast<std::streamoff>(record.offset_bytes));
  bytes.write(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.close();
  const Called verified = call(store, {"store", "verify", "run-1", drives_.drives(1)[0]});
  EXPECT_EQ(verified.exit_code, 1) << verified.out;
  EXPECT_NE(verified.out.find("tile 1 on " + file()), std::string::npos) << verified.out;
  EXPECT_NE(verified.out.find("stream weight, chunk 0"), std::string::npos) << verified.out;
  expect_refused(kPlain, 1, "stream weight, chunk 0");
}

TEST_F(StoreExport, ComparesTheWeightsOfFrozenTiles) {
  const Case c{.name = "frozen", .frozen = true};
  trained(c);
  std::uint64_t at = 0, number = 0;
  {
    OpenStore open(find_store("run-1", 0, {{.path = drives_.drives(1)[0]}}));
    for (std::uint32_t t = 0; t < open.tiles(); ++t) {
      if (open.place_of_record(t).offset_bytes != 0) continue;
      at = open.tile(t).streams[0].offset_bytes;
      number = t;
    }
  }
  ASSERT_NE(at, 0u);
  flip(file(), at);
  expect_refused(c, 1, "tile " + std::to_string(number) + " on " + file());
  const Called verified = call(store, {"store", "verify", "run-1", drives_.drives(1)[0]});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_NE(verified.out.find("stream weight, chunk 0"), std::string::npos) << verified.out;
}

TEST_F(StoreExport, TakesTheRegistrationOfAnotherDriveWhereOneIsDamaged) {
  const Case c{.name = "two", .frozen = true, .drives = 2};
  const Tensors expected = trained(c);
  const std::uint64_t at = swap::registration_offset(head(file(0, 0, c)).commit_bytes) + 100;
  flip(file(0, 0, c), at);
  const Called called = call(store, words(c));
  ASSERT_EQ(called.exit_code, 0) << called.err;
  EXPECT_EQ(read_safetensors(out()), expected);
  fs::remove(out());
  std::vector<std::string> verify = {"store", "verify", "run-1"};
  for (const std::string& path : drives_.drives(2)) verify.push_back(path);
  const Called verified = call(store, verify);
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_NE(verified.out.find("registration in " + file(0, 0, c)), std::string::npos)
      << verified.out;
  flip(file(0, 1, c), at);
  expect_refused(c, 1, "has no names of its parameters: registration in " + file(0, 0, c));
  EXPECT_NE(call(store, verify).out.find("tiles of frozen groups are not verified"),
            std::string::npos);
}

// ---- a rank ahead ----

// What a kill between the commits of two ranks leaves: the step before is what both have.
TEST_F(StoreExport, TakesTheStepThatAllRanksHave) {
  const Case c{.name = "two", .ranks = 2};
  const Tensors expected = trained(c, 3);
  // Rank 1 alone lost its newest record.
  const swap::StoreHead head = this->head(file(1));
  for (std::uint64_t place = 0; place < swap::kRingPlaces; ++place) {
    swap::CommitHead record;
    const auto at = static_cast<std::streamoff>(swap::kStoreHeadBytes + place * head.commit_bytes);
    std::fstream bytes(file(1), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(at);
    bytes.read(reinterpret_cast<char*>(&record), sizeof record);
    if (record.epoch != 3) continue;
    bytes.seekp(at);
    bytes << std::string(512, 'x');
  }
  const Called called = call(store, words(c));
  ASSERT_EQ(called.exit_code, 0) << called.err;
  EXPECT_NE(called.out.find("step 2"), std::string::npos) << called.out;
  const Tensors found = read_safetensors(out());
  EXPECT_EQ(found.size(), expected.size());
  EXPECT_FALSE(found.at("one.weight") == expected.at("one.weight"));
}

TEST_F(StoreExport, RefusesWordsThatItCannotUse) {
  const std::string path = drives_.string();
  for (const auto& [line, part] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"export", "a", path}, "export needs one --to"},
           {{"export", "a", path, "--to", "x", "--to", "y"}, "export needs one --to"},
           {{"export", "a"}, "store's name"},
           {{"copy", "a", path, "--to", path, "--state"}, "--state is for export alone"},
           {{"export", "a", path, "--to", out()}, "has no files on these paths"}}) {
    std::vector<std::string> all = {"store"};
    all.insert(all.end(), line.begin(), line.end());
    const Called called = call(store, all);
    EXPECT_EQ(called.exit_code, 2) << part;
    EXPECT_NE(called.err.find(part), std::string::npos) << called.err;
  }
}

// ---- the registration's bytes ----

TEST(StoreRegistration, IsReadAsItWasWrittenAndNamesEveryDamage) {
  const swap::RunBytes id{1, 2, 3};
  const swap::StoreRegistration written{
      65536,
      {"", "a group\nof two lines"},
      {{"w", DType::kBf16, false, {3, 4}, 0, 0, 0}, {"a.b", DType::kF32, true, {}, 1, 1, 256}}};
  const std::vector<std::byte> bytes = swap::packed(written, id);
  EXPECT_EQ(bytes.size() % 4096, 0u);
  std::string fault;
  EXPECT_EQ(swap::unpacked(bytes, id, fault), written);
  EXPECT_EQ(fault, "");
  EXPECT_EQ(swap::unpacked(bytes, {}, fault), swap::StoreRegistration{});
  EXPECT_EQ(fault, "it is of another store");
  std::uint64_t used = 0;
  std::memcpy(&used, bytes.data() + 8, 8);
  for (std::size_t at = 0; at < used; ++at) {
    std::vector<std::byte> changed = bytes;
    changed[at] ^= std::byte{16};
    (void)swap::unpacked(changed, id, fault);
    EXPECT_NE(fault, "") << at;
  }
  (void)swap::unpacked({}, id, fault);
  EXPECT_NE(fault, "");
}
}  // namespace
}  // namespace headrace::tools::store_export_test
