// SPDX-License-Identifier: Apache-2.0
// load_weights_test: weights of other programs' files, converted and placed; what does not fit is
// named, and nothing is changed.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "checkpoint/safetensors_header.hpp"
#include "checkpoint/training.hpp"

namespace headrace {
namespace {
namespace fs = std::filesystem;
using testing_checkpoints::error_of;
using testing_checkpoints::on_ranks;
using testing_checkpoints::Place;
using testing_checkpoints::Training;

struct Tensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

void write_model(const std::string& path, const std::vector<Tensor>& tensors) {
  std::vector<checkpoint::TensorHeader> headers;
  for (const Tensor& one : tensors)
    headers.push_back({one.name, one.dtype, one.shape, one.bytes.size()});
  std::ofstream file(path, std::ios::binary);
  file << checkpoint::safetensors_header(headers);
  for (const Tensor& one : tensors) file << one.bytes;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// One group "g" with "a" of 4 elements in `dtype`, and the frozen "b" of [1, 2] in f32.
class Small {
 public:
  explicit Small(DType dtype, MasterLayout master = MasterLayout::kF32,
                 std::function<bool()> poll = nullptr) {
    Settings settings;
    settings.master = master;
    engine_ = std::make_unique<Engine>(settings, EngineOptions{.poll = std::move(poll)});
    engine_->add_group("g", {{.name = "a", .dtype = dtype, .shape = {4}},
                             {.name = "b", .dtype = DType::kF32, .shape = {1, 2}, .frozen = true}});
    engine_->freeze();
  }
  Engine& operator*() { return *engine_; }
  std::string stored(std::uint32_t parameter, Content content = Content::kWeight) {
    std::string bytes;
    engine_->store({parameter}, content, [&](std::uint64_t, std::span<const std::byte> values) {
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size());
    });
    return bytes;
  }

 private:
  std::unique_ptr<Engine> engine_;
};

const Tensor kB{"g.b", "F32", {1, 2}, bytes_of(std::vector<float>{7, 8})};
// The last lies in the middle between two values of bf16, and rounds to the even one, below.
const std::vector<float> kValues = {1.0f, -2.5f, 0.0f, 1.00390625f};
const std::vector<std::uint16_t> kInBf16 = {0x3f80, 0xc020, 0, 0x3f80};
const std::vector<std::uint16_t> kInF16 = {0x3c00, 0xc100, 0, 0x3c04};
const std::vector<float> kFromBf16 = {1.0f, -2.5f, 0.0f, 1.0f};

TEST(LoadWeights, ConvertsEveryDtypeIntoEveryOther) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/m";
  const struct {
    std::string dtype, bytes;
    std::vector<float> values;
  } files[] = {{"F32", bytes_of(kValues), kValues},
               {"BF16", bytes_of(kInBf16), kFromBf16},
               {"F16", bytes_of(kInF16), kValues}};
  for (const auto& file : files) {
    write_model(path, {kB, {"g.a", file.dtype, {4}, file.bytes}});
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      SCOPED_TRACE(file.dtype + " to " + name_of(dtype));
      Small small(dtype);
      load_weights(*small, path);
      const std::string one(bytes_of(std::vector<std::uint16_t>{0x3c00}));
      EXPECT_EQ(small.stored(0), dtype == DType::kF32    ? bytes_of(file.values)
                                 : dtype == DType::kBf16 ? bytes_of(kInBf16)
                                 : file.dtype == "BF16"  ? bytes_of(kInF16).substr(0, 6) + one
                                                         : bytes_of(kInF16));
      EXPECT_EQ(small.stored(0, Content::kMaster), bytes_of(file.values));
      EXPECT_EQ(small.stored(0, Content::kExpAvg), std::string(16, '\0'));
      EXPECT_EQ(small.stored(1), kB.bytes);
    }
  }
}

TEST(LoadWeights, CopiesBytesOfAnyMeaning) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/m";
  Engine engine(Settings{});
  engine.add_group("g", {{.name = "a", .dtype = DType::kU8, .shape = {4}, .frozen = true}});
  engine.freeze();
  const auto stored = [&] {
    std::string bytes;
    engine.store({0}, Content::kWeight, [&](std::uint64_t, std::span<const std::byte> values) {
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size());
    });
    return bytes;
  };
  const std::string bytes("\xff\x7f\0\x80", 4);
  for (const char* const dtype : {"U8", "I8", "F8_E4M3"}) {
    write_model(path, {{"g.a", dtype, {4}, bytes}});
    load_weights(engine, path);
    EXPECT_EQ(stored(), bytes) << dtype;
  }
  write_model(path, {{"g.a", "F16", {4}, bytes_of(kInF16)}});
  const std::string error = error_of([&] { load_weights(engine, path); });
  EXPECT_NE(error.find("'g.a' is F16, but parameter 'g.a' is U8"), std::string::npos) << error;
  EXPECT_EQ(stored(), bytes);
  const std::string saved = folder.string() + "/saved";
  save_checkpoint(engine, saved);
  Engine again(Settings{});
  again.add_group("g", {{.name = "a", .dtype = DType::kU8, .shape = {4}, .frozen = true}});
  again.freeze();
  load_checkpoint(again, saved);
  EXPECT_EQ(again.hash_parameters(), engine.hash_parameters());
}

TEST(LoadWeights, ASplitMasterRoundsTiesOfTheWeightAsAStepDoes) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/m";
  write_model(path, {kB, {"g.a", "F32", {4}, bytes_of(kValues)}});
  Small small(DType::kBf16, MasterLayout::kSplit);
  load_weights(*small, path);
  EXPECT_EQ(small.stored(0), bytes_of(std::vector<std::uint16_t>{0x3f80, 0xc020, 0, 0x3f81}));
  EXPECT_EQ(small.stored(0, Content::kMaster), bytes_of(kValues));
}

TEST(LoadWeights, MapsNamesAndLeavesOutTensorsOnRequest) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/m";
  write_model(path, {{"x.b", "F32", {1, 2}, kB.bytes},
                     {"x.a", "F32", {4}, bytes_of(kValues)},
                     {"inv_freq", "F64", {1}, std::string(8, '\1')}});
  Small small(DType::kF32);
  const auto mapped = [](const std::string& name) { return "x" + name.substr(1); };
  EXPECT_NE(error_of([&] { load_weights(*small, path, {mapped}); }).find("takes its 'inv_freq'"),
            std::string::npos);
  load_weights(*small, path, {mapped, true});
  EXPECT_EQ(small.stored(0), bytes_of(kValues));
}

TEST(LoadWeights, NamesWhatDoesNotFitAndChangesNothing) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/m";
  Small small(DType::kF16);
  const auto refused = [&](const Tensor& a, std::string_view words) {
    write_model(path, {kB, a});
    const std::string error = error_of([&] { load_weights(*small, path); });
    EXPECT_NE(error.find(words), std::string::npos) << error;
    EXPECT_NE(error.find("nothing was changed"), std::string::npos) << error;
  };
  write_model(path, {kB, {"g.a", "F16", {4}, bytes_of(kInF16)}});
  load_weights(*small, path);
  refused({"g.c", "F32", {4}, bytes_of(kValues)}, "no tensor 'g.a', which parameter 'g.a' needs");
  refused({"g.a", "F32", {2, 2}, bytes_of(kValues)}, "'g.a' is F32 [2, 2], but parameter 'g.a'");
  refused({"g.a", "I8", {4}, "1234"}, "dtype I8, not F32, BF16 or F16");
  EXPECT_EQ(small.stored(0), bytes_of(kInF16));
  EXPECT_EQ(error_of([&] { load_weights(*small, folder.string() + "/none"); }).find("kNotFound"),
            0u);
  std::ofstream(path) << "no safetensors";
  EXPECT_NE(error_of([&] { load_weights(*small, path); }).find("not a sound safetensors file"),
            std::string::npos);
}

TEST(LoadWeights, LeavesNoValuesWhereOneIsNotFiniteOrDoesNotFit) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/m";
  const struct {
    float value;
    std::string words;
  } cases[] = {{std::numeric_limits<float>::quiet_NaN(), "element 3 is not a number"},
               {1e6f, "'g.a' is F32, and does not fit into F16: element 3 is infinite there"}};
  for (const auto& one : cases) {
    Small small(DType::kF16);
    write_model(path, {kB, {"g.a", "F32", {4}, bytes_of(std::vector<float>{1, 2, 3, one.value})}});
    const std::string error = error_of([&] { load_weights(*small, path); });
    EXPECT_NE(error.find(one.words), std::string::npos) << error;
    EXPECT_NE(error_of([&] { small.stored(0); }).find("kWrongState"), std::string::npos);
    write_model(path, {kB, {"g.a", "F32", {4}, bytes_of(kValues)}});
    load_weights(*small, path);  // can be repeated
    EXPECT_EQ(small.stored(0, Content::kMaster), bytes_of(kValues));
  }
}

// A text for one line of a terminal, whatever the file says.
TEST(LoadWeights, ShowsNoControlCharactersOfNames) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/m";
  write_model(
      path,
      {kB, {"g.a", "F32", {4}, bytes_of(kValues)}, {"c\n\x1b[2J", "F32", {4}, bytes_of(kValues)}});
  Small small(DType::kF32);
  const std::string error = error_of([&] { load_weights(*small, path); });
  EXPECT_NE(error.find("'c\\u000a\\u001b[2J'"), std::string::npos) << error;
}

TEST(LoadWeights, ReadsTheFilesThatAnIndexNames) {
  const testing::TemporaryDirectory folder;
  const std::string index = folder.string() + "/model.safetensors.index.json";
  write_model(folder.string() + "/1", {kB});
  write_model(folder.string() + "/2", {{"g.a", "F32", {4}, bytes_of(kValues)}});
  Small small(DType::kF32);
  const auto with = [&](const std::string& text) {
    std::ofstream(index) << text;
    return error_of([&] { load_weights(*small, folder.string()); });
  };
  EXPECT_EQ(with(R"({"weight_map": {"g.a": "2", "g.b": "1"}})"), "no error");
  EXPECT_EQ(small.stored(0), bytes_of(kValues));
  EXPECT_NE(with(R"({"weight_map": {"g.a": "1", "g.b": "1"}})").find("1 has no tensor 'g.a'"),
            std::string::npos);
  EXPECT_NE(with(R"({"weight_map": {"g.a": "../2", "g.b": "1"}})").find("names no file"),
            std::string::npos);
  EXPECT_NE(with(R"({"weight_map": {"g.a": 2, "g.b": "1"}})").find("names no file"),
            std::string::npos);
  EXPECT_NE(with(R"({"weight_map": {"g.a": "3", "g.b": "1"}})").find("ENOENT"), std::string::npos);
  EXPECT_NE(with(R"({"weights": {}})").find("no object weight_map"), std::string::npos);
  EXPECT_NE(with("{").find("no object weight_map"), std::string::npos);
  EXPECT_NE(with(R"({"weight_map": ["g.a"]})").find("no object weight_map"), std::string::npos);
  EXPECT_NE(with(R"({"weight_map": {"g.a": "1", "g.b": "1", "g.a": "2"}})")
                .find("index.json: 'g.a' occurs twice in weight_map; nothing was changed"),
            std::string::npos);
  EXPECT_NE(with(R"({"weight_map": {}, "weight_map": {"g.a": "2", "g.b": "1"}})")
                .find("weight_map occurs twice"),
            std::string::npos);
  // Other objects may have such names, and come before or after.
  EXPECT_EQ(with(R"({"a": {"weight_map": {"g.a": 1, "g.a": 1}}, "weight_map":
                     {"g.a": "2", "g.b": "1"}, "b": {"g.a": 1}, "c": [{"g.a": 1, "g.a": 1}]})"),
            "no error");
  fs::remove(index);
  EXPECT_NE(error_of([&] { load_weights(*small, folder.string()); }).find("model.safetensors"),
            std::string::npos);
}

// A load that was ended on the way would leave neither the old values nor the new ones.
TEST(LoadWeights, IsNotEndedByPolling) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/m";
  write_model(path, {kB, {"g.a", "F32", {4}, bytes_of(kValues)}});
  bool ends = false;
  Small small(DType::kF32, MasterLayout::kF32, [&ends] { return ends; });
  load_weights(*small, path);
  ends = true;
  EXPECT_EQ(error_of([&] { load_weights(*small, path); }), "no error");
  ends = false;
  EXPECT_EQ(small.stored(0), bytes_of(kValues));
}

TEST(LoadWeights, PassesOnWhatTensorNameThrowsAndLetsItCallTheEngine) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/m";
  write_model(path, {kB, {"g.a", "F32", {4}, bytes_of(kValues)}});
  Small small(DType::kF32);
  EXPECT_THROW(load_weights(*small, path, {[](const std::string&) -> std::string { throw 5; }}),
               int);
  const auto sleeps = [&](const std::string& name) {
    if (name == "g.a") (*small).sleep(folder.string());
    return name;
  };
  EXPECT_NE(error_of([&] { load_weights(*small, path, {sleeps}); }).find("the engine sleeps"),
            std::string::npos);
  (*small).wake();
  load_weights(*small, path);
  EXPECT_EQ(small.stored(0), bytes_of(kValues));
}

TEST(LoadWeights, LeavesOutTensorsOfKindsThatItCannotUse) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.string() + "/m";
  write_model(path, {kB,
                     {"g.a", "F32", {4}, bytes_of(kValues)},
                     {"complex", "C64", {1}, std::string(8, 'c')},
                     {"scale", "F8_E8M0", {2}, "ss"}});
  Small small(DType::kF32);
  load_weights(*small, path, {nullptr, true});
  EXPECT_EQ(small.stored(0), bytes_of(kValues));
}

TEST(LoadWeights, RefusesAnIndexThatIsNoFile) {
  const testing::TemporaryDirectory folder;
  ASSERT_EQ(::mkfifo((folder.string() + "/model.safetensors.index.json").c_str(), 0600), 0);
  Small small(DType::kF32);
  const std::string error = error_of([&] { load_weights(*small, folder.string()); });
  EXPECT_NE(error.find("load_weights: "), std::string::npos) << error;
  EXPECT_NE(error.find("no regular file"), std::string::npos) << error;
}

TEST(LoadWeights, RefusesRanksThatLoadDifferentFiles) {
  const Place place{.width = 260};
  const testing::TemporaryDirectory directory;
  for (const int steps : {1, 2}) {
    Training run(place);
    run.train(steps);
    save_checkpoint(run.engine(), directory.string() + "/" + std::to_string(steps));
  }
  on_ranks(2, place, [&](Training& run, std::uint32_t rank) {
    const std::string mine = directory.string() + "/" + std::to_string(rank + 1);
    const std::string before = run.hashes();
    for (const bool weights : {true, false}) {
      const std::string error = error_of([&] {
        weights ? load_weights(run.engine(), mine) : (void)load_checkpoint(run.engine(), mine);
      });
      EXPECT_NE(error.find("rank 1 loads something else than rank 0"), std::string::npos) << error;
    }
    EXPECT_EQ(run.hashes(), before);
  });
}

// Files of 64 MiB and more go around the page cache, whole pages at least: this tensor neither
// begins nor ends with one.
TEST(LargeFiles, AreSavedAndLoadedWithEveryByte) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/large";
  const auto make = [] {
    auto engine = std::make_unique<Engine>(Settings{});
    engine->add_group("g", {{"a", DType::kF32, {3}}, {"b", DType::kF32, {17'000'001}}});
    engine->freeze();
    return engine;
  };
  const auto saved = make(), loaded = make();
  std::uint32_t bits = 1;
  saved->load(GroupId{0}, [&](ParameterId, std::span<std::byte> values) {
    for (std::size_t at = 0; at < values.size(); at += sizeof bits) {
      bits = bits * 1664525u + 1013904223u;
      const std::uint32_t finite = bits & 0xbfffffffu;
      std::memcpy(values.data() + at, &finite, sizeof finite);
    }
  });
  save_checkpoint(*saved, folder);
  ASSERT_GT(fs::file_size(folder + "/model.safetensors"), std::uint64_t{64} << 20);
  load_checkpoint(*loaded, folder);
  EXPECT_EQ(loaded->hash_parameters(), saved->hash_parameters());
  EXPECT_EQ(loaded->hash_optimizer_state(), saved->hash_optimizer_state());
}

// Tensors that span tiles, on drives and in memory, in one rank or several.
TEST(LoadWeights, GivesEveryWorldSizeTheWeightsAlone) {
  Place place{.on_nvme = true, .width = 600};
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/saved";
  Training trained(place);
  trained.train(2);
  save_checkpoint(trained.engine(), folder, {.file_bytes = 1'000'000});
  ASSERT_TRUE(fs::exists(folder + "/model.safetensors.index.json"));
  const std::string weights = trained.engine().hash_parameters();
  std::string state;
  for (const std::uint32_t world : {1u, 2u, 3u}) {
    place.on_nvme = world == 1;
    on_ranks(world, place, [&](Training& run, std::uint32_t rank) {
      load_weights(run.engine(), folder);
      EXPECT_EQ(run.engine().hash_parameters(), weights);
      EXPECT_EQ(run.engine().step_count({0}), 0u);
      const std::string mine = run.engine().hash_optimizer_state();
      if (world == 1) state = mine;
      EXPECT_EQ(mine, state);
      // One rank alone cannot find the files.
      const std::string error = error_of(
          [&] { load_weights(run.engine(), rank == 1 ? directory.string() + "/none" : folder); });
      EXPECT_EQ(error == "no error", world == 1) << error;
      if (world == 1) return;
      EXPECT_NE(error.find("none"), std::string::npos) << error;
      if (rank != 1) {
        EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
      }
    });
  }
}
}  // namespace
}  // namespace headrace
