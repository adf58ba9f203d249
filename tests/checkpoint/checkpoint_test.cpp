// SPDX-License-Identifier: Apache-2.0
// checkpoint_test: a run goes on from a folder to the bits of the run that was not interrupted;
// what is damaged, missing or in the way is named, and leaves nothing behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "checkpoint/training.hpp"
#include "kernels/hash.hpp"
#include "support/all_on_nvme.hpp"
#include "support/computing_host.hpp"
#include "support/mlp.hpp"
#include "support/scripted_trainer.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
namespace fs = std::filesystem;

using testing_checkpoints::error_of;
using testing_checkpoints::on_ranks;
using testing_checkpoints::Place;
using testing_checkpoints::Training;

TEST(Checkpoint, GoesOnToTheBitsOfTheRunThatWasNotInterrupted) {
  for (const MasterLayout master : {MasterLayout::kSplit, MasterLayout::kF32}) {
    for (const bool on_nvme : {false, true}) {
      const testing::TemporaryDirectory directory;
      const std::string folder = directory.string() + "/a";
      Training whole({.on_nvme = on_nvme, .master = master});
      whole.train(2);
      save_checkpoint(whole.engine(), folder);
      const std::string saved = whole.hashes();
      whole.train(2);
      Training resumed({.on_nvme = !on_nvme, .master = master});
      load_checkpoint(resumed.engine(), folder);
      EXPECT_EQ(resumed.hashes(), saved);
      resumed.train(2);
      EXPECT_EQ(resumed.hashes(), whole.hashes());
      EXPECT_FALSE(fs::exists(folder + ".tmp"));
    }
  }
}

// Weights that span two tiles of 65,536 elements and end within a block of 256.
TEST(Checkpoint, GoesOnWithEveryRuleDtypeAndPrecisionOfMoments) {
  using enum OptimizerRule;
  const Place places[] = {
      {.width = 260, .rule = kAdam},
      {.width = 260, .rule = kAdagrad},
      {.width = 260, .rule = kLion},
      {.width = 260, .rule = kSgd},
      {.width = 260, .rule = kSgdMomentum},
      {.width = 260, .moments = MomentCodec::kBf16},
      {.width = 260, .moments = MomentCodec::kBlock8},
      {.width = 260, .rule = kLion, .moments = MomentCodec::kBlock8},
      {.width = 260, .rule = kAdagrad, .moments = MomentCodec::kBlock8},
      {.width = 260, .dtype = DType::kF16},
      {.width = 260, .mode = UpdateMode::kDefer},
  };
  for (std::size_t i = 0; i < std::size(places); ++i) {
    SCOPED_TRACE("place " + std::to_string(i));
    const testing::TemporaryDirectory directory;
    const std::string folder = directory.string() + "/a";
    Training whole(places[i]);
    whole.train(2);
    save_checkpoint(whole.engine(), folder);
    const std::string saved = whole.hashes();
    whole.train(2);
    Place other = places[i];
    other.on_nvme = true;
    Training resumed(other);
    load_checkpoint(resumed.engine(), folder);
    EXPECT_EQ(resumed.hashes(), saved);
    resumed.train(2);
    EXPECT_EQ(resumed.hashes(), whole.hashes());
  }
}

TEST(Checkpoint, AnotherRuleOrPrecisionIsRefusedNamingTheTensorsBeforeAnythingChanges) {
  struct Case {
    Place saved, loaded;
    std::vector<std::string> named;
  };
  using enum OptimizerRule;
  const Case cases[] = {
      {{.width = 40},
       {.width = 40, .rule = kLion},
       {"headrace.optimizer adamw", "has lion", "does not keep its 'exp_avg_sq.layer.0.bias'"}},
      {{.width = 40, .rule = kLion},
       {.width = 40},
       {"headrace.optimizer lion", "it lacks 'exp_avg_sq.layer.0.bias'", "and 6 more"}},
      {{.width = 40, .rule = kSgd}, {.width = 40, .rule = kLion}, {"lacks 'exp_avg.layer.0.bias'"}},
      {{.width = 40}, {.width = 40, .rule = kAdam}, {"headrace.optimizer adamw", "has adam and"}},
      {{.width = 40, .moments = MomentCodec::kBlock8},
       {.width = 40},
       {"headrace.moments 8bit", "adamw and f32"}},
      {{.width = 40},
       {.width = 40, .moments = MomentCodec::kBf16},
       {"headrace.moments f32", "adamw and bf16"}},
  };
  for (const Case& c : cases) {
    const testing::TemporaryDirectory directory;
    const std::string folder = directory.string() + "/a";
    Training saved(c.saved);
    save_checkpoint(saved.engine(), folder);
    Training loaded(c.loaded);
    loaded.train(1);
    const std::string before = loaded.hashes();
    const std::string error = error_of([&] { load_checkpoint(loaded.engine(), folder); });
    EXPECT_TRUE(error.starts_with("kInvalidArgument")) << error;
    for (const std::string& name : c.named) EXPECT_NE(error.find(name), std::string::npos) << error;
    EXPECT_EQ(loaded.hashes(), before);
    loaded.train(1);
  }
}

// Frozen in the middle: it has a weight in the one file, and nothing in the other.
TEST(Checkpoint, AFrozenGroupIsSavedWithoutStateAndMustBeFrozenWhereItIsLoaded) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  const std::vector<std::int64_t> groups = {3000, 150'000, 70'000};
  const testing::Script script = script_of(testing::Departure::kFrozenGroup, 3, false);
  Settings settings;
  settings.update_threads = 1;
  Engine whole(settings);
  testing::ScriptedTrainer trainer(whole, groups, {}, 1);
  trainer.step(script);
  save_checkpoint(whole, folder);
  trainer.step(script);
  Engine resumed(settings);
  testing::ScriptedTrainer again(resumed, groups, {}, 1);
  load_checkpoint(resumed, folder);
  again.step(script);
  EXPECT_EQ(again.hashes(), trainer.hashes());
  Engine trained(settings);
  testing::ScriptedTrainer none(trained, groups);
  const std::string before = none.hashes();
  const std::string error = error_of([&] { load_checkpoint(trained, folder); });
  EXPECT_TRUE(error.starts_with("kInvalidArgument")) << error;
  EXPECT_NE(error.find("is frozen there, but trained in the engine"), std::string::npos) << error;
  EXPECT_EQ(none.hashes(), before);
}

class OnADurableEngine : public ::testing::Test {
 protected:
  Settings durable() const {
    Settings s = testing::all_on_nvme(directory_.string());
    s.update_threads = 1;
    s.durable_every = 1;
    s.store = "run";
    return s;
  }
  static EngineOptions quiet() {
    return {.log = [](LogLevel, std::string_view) {}};
  }
  const testing::TemporaryDirectory directory_;
  const std::string folder_ = directory_.string() + "/a";
  const std::vector<std::int64_t> groups_ = {3000, 150'000, 70'000};
};

TEST_F(OnADurableEngine, ACheckpointIsCommittedAndTheNextEngineGoesOnFromIt) {
  const testing::Script script = script_of(testing::Departure::kNone, 3, false);
  Settings settings;
  settings.update_threads = 1;
  Engine source(settings);
  testing::ScriptedTrainer trainer(source, groups_);
  for (int i = 0; i < 2; ++i) trainer.step(script);
  save_checkpoint(source, folder_);
  const std::string saved = trainer.hashes();
  trainer.step(script);
  for (const int steps_before : {0, 1}) {
    SCOPED_TRACE("steps before the load: " + std::to_string(steps_before));
    Settings here = durable();
    here.store = "run" + std::to_string(steps_before);
    {
      Engine engine(here, quiet());
      testing::ScriptedTrainer first(engine, groups_);
      for (int i = 0; i < steps_before; ++i) first.step(script);
      load_checkpoint(engine, folder_);
      EXPECT_EQ(first.hashes(), saved);
      // As ScriptedTrainer keeps it: what it has seen of each group, and its number of steps.
      std::vector<std::uint64_t> state(groups_.size() + 1);
      state.back() = static_cast<std::uint64_t>(steps_before);
      engine.set_trainer_state(std::as_bytes(std::span(state)));
      engine.commit();
    }
    Engine engine(here, quiet());
    testing::ScriptedTrainer next(engine, groups_);
    ASSERT_TRUE(engine.resumed());
    EXPECT_EQ(engine.resumed()->step, static_cast<std::uint64_t>(steps_before));
    EXPECT_EQ(next.hashes(), saved);
    EXPECT_EQ(engine.step_count({0}), 2u);
    next.step(script);
    EXPECT_EQ(next.hashes(), trainer.hashes());
  }
}

TEST_F(OnADurableEngine, AFrozenGroupOfACommittedStepIsNamedBeforeAnythingChanges) {
  const testing::Script script = script_of(testing::Departure::kFrozenGroup, 3, false);
  Engine engine(durable(), quiet());
  testing::ScriptedTrainer trainer(engine, groups_, {}, 1);
  save_checkpoint(engine, folder_);
  load_checkpoint(engine, folder_);  // nothing is committed yet
  trainer.step(script);
  engine.commit();
  const std::string before = trainer.hashes();
  const std::string error = error_of([&] { load_checkpoint(engine, folder_); });
  EXPECT_TRUE(error.starts_with("kWrongState")) << error;
  EXPECT_NE(error.find("Use another headrace.store"), std::string::npos) << error;
  EXPECT_EQ(trainer.hashes(), before);
  trainer.step(script);
}

// As with LoRA: one group, one dtype, a frozen parameter beside a trained one.
TEST_F(OnADurableEngine, AFrozenParameterOfACommittedStepIsNamedBeforeAnythingChanges) {
  Engine engine(durable(), quiet());
  const GroupId group =
      engine.add_group("g", {{"base", DType::kBf16, {700}, {}}, {"lora", DType::kBf16, {300}, {}}});
  engine.set_frozen({0}, true);
  engine.freeze();
  const auto fill = [](ParameterId, std::span<std::byte> out) {
    std::ranges::fill(out, std::byte{0x3c});
  };
  engine.load(group, fill);
  save_checkpoint(engine, folder_);
  load_checkpoint(engine, folder_);  // nothing is committed yet
  engine.commit();                   // step 0
  const std::string before = engine.hash_parameters();
  const auto source = [](std::uint64_t, std::span<std::byte> out) {
    std::ranges::fill(out, std::byte{});
  };
  for (const std::string& error : {error_of([&] { load_checkpoint(engine, folder_); }),
                                   error_of([&] { engine.load(group, fill); }), error_of([&] {
                                     engine.load(ParameterId{0}, Content::kWeight, source);
                                   })}) {
    EXPECT_TRUE(error.starts_with("kWrongState")) << error;
    EXPECT_NE(error.find("Use another headrace.store"), std::string::npos) << error;
    EXPECT_EQ(engine.hash_parameters(), before);
  }
  engine.load(ParameterId{1}, Content::kWeight, source);
  EXPECT_NE(engine.hash_parameters(), before);
  engine.commit();
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string flipped(std::string bytes, std::size_t at) {
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  return bytes;
}

std::string hash_of(const std::string& text) {
  kernels::Hash128 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

void write_manifest(const std::string& folder, const std::string& line) {
  std::ofstream(folder + "/manifest.json", std::ios::binary) << line << '\n'
                                                             << hash_of(line) << '\n';
}

struct OddField {
  const char *from, *to, *named;
  const char* code = "kCorrupt";
};
const OddField kOddFields[] = {
    {R"("format":"headrace)", R"("format":"other)", "manifest.json: format is not"},
    {R"("version":2)", R"("version":1)", "its format is version 1", "kUnsupported"},
    {R"("version":2)", R"("version":"2")", "manifest.json: version is no whole number"},
    {R"("version":2,)", "", "manifest.json: version is missing"},
    {R"("chunk_bytes":1048576)", R"("chunk_bytes":4096)", "chunk_bytes is not 1048576"},
    {R"("optimizer":{)", R"("optimizer":7,"x":{)", "manifest.json: optimizer is not an object"},
    {R"("rule":"adamw")", R"("rule":null)", "manifest.json: optimizer.rule is not a string"},
    {R"("rule":"adamw")", R"("rule":"other")", "headrace.optimizer other", "kInvalidArgument"},
    {R"("weights":[)", R"("weights":7,"x":[)", "manifest.json: weights is not an array"},
    {R"("weights":[)", R"("weights":[{},)", "weights[0].name is missing"},
    {R"("name":"model.)", R"("name":"../model.)", "weights[0].name is not 'model...safetensors'"},
    {R"("name":"model.)", R"("name":"model/../../x.)",
     "weights[0].name is not 'model...safetensors'"},
    {R"("header_xxh3_128")", R"("header")", "weights[0].header_xxh3_128 is missing"},
    {R"("tensors":[)", R"("tensors":[3,)", "weights[0].tensors[0] is not an object"},
    {R"("name":"layer.0.weight")", R"("name":"layer.0.bias")",
     "weights[0].tensors[1].name is 'layer.0.bias' a second time"},
    {R"("name":"layer.0.weight")", R"("name":"\u0000\"\\\u00e9")", "has the tensor"},
    {R"({"name":"exp_avg_sq.layer.2.bias",)", R"({"name":"exp_avg_sq.layer.3.bias",)",
     "has the tensor 'exp_avg_sq.layer.3.bias'"},
    {R"("name":"layer.0.weight","xxh3_128":")", R"("name":"layer.0.weight","xxh3_128":"0)",
     "weights[0].tensors[0].xxh3_128 is cut"},
    {R"("name":"layer.0.weight","xxh3_128":")",
     R"("name":"layer.0.weight","xxh3_128":"0123456789abcdef0123456789abcdef)",
     "has 2 checksums of 'layer.0.weight', not 1"},
    {R"("step":1)", R"("step":-1)", "parameters[0].step is no whole number"},
    {R"("step":1)", R"("step":1.5)", "parameters[0].step is no whole number"},
    {R"("step":1)", R"("step":99999999999999999999)", "parameters[0].step is no whole number"},
    {R"("step":1)", R"("step":281474976710657)", "parameters[0].step is above 2^48"},
    {R"("shape":[40,40])", R"("shape":"x")", "parameters[0].shape is not an array"},
    {R"("shape":[40,40])", R"("shape":[40,{}])", "parameters[0].shape[1] is no whole number"},
    {R"("shape":[40,40])", R"("shape":[40,0])", "parameters[0].shape[1] is no size"},
    {R"("shape":[40,40])", R"("shape":[1099511627776,1024])",
     "parameters[0].shape has more than 2^48 elements"},
    {R"("frozen":false)", R"("frozen":0)", "parameters[0].frozen is neither true nor false"},
    {R"("dtype":"BF16")", R"("dtype":"I64")", "has dtype I64 there", "kInvalidArgument"},
};

TEST(Checkpoint, AnOddFieldOfAManifestWithARightChecksumIsNamedBeforeAnythingChanges) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training run({.width = 40});
  run.train(1);
  save_checkpoint(run.engine(), folder);
  run.train(1);
  const std::string before = run.hashes();
  const std::string text = bytes_of(folder + "/manifest.json");
  const std::string line = text.substr(0, text.find('\n'));
  const auto expect = [&](const std::string& code, const std::string& named) {
    const std::string error = error_of([&] { load_checkpoint(run.engine(), folder); });
    EXPECT_TRUE(error.starts_with(code)) << error;
    EXPECT_NE(error.find(named), std::string::npos) << named << " is not in: " << error;
    EXPECT_EQ(run.hashes(), before);
  };
  for (const OddField& odd : kOddFields) {
    SCOPED_TRACE(odd.to);
    write_manifest(folder, replaced(line, odd.from, odd.to));
    expect(odd.code, odd.named);
  }
  for (const std::string& whole :
       {std::string(), std::string("{"), line.substr(0, line.size() / 2), std::string("\xff")}) {
    write_manifest(folder, whole);
    expect("kCorrupt", "manifest.json is not JSON");
  }
  for (const char* const whole : {"[]", "null", "7"}) {
    write_manifest(folder, whole);
    expect("kCorrupt", "manifest.json: it is not an object");
  }
  for (const std::size_t bytes : {std::size_t{0}, line.size() / 2, text.size() - 1}) {
    std::ofstream(folder + "/manifest.json", std::ios::binary) << text.substr(0, bytes);
    expect("kCorrupt", "the checksum of manifest.json differs");
  }
  write_manifest(folder, line);
  EXPECT_EQ(error_of([&] { load_checkpoint(run.engine(), folder); }), "no error");
}

TEST(Checkpoint, AHeaderThatDisagreesWithTheManifestAndAnotherLengthAreNamed) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a", model = folder + "/model.safetensors";
  Training run({.width = 40});
  save_checkpoint(run.engine(), folder);
  const std::string before = run.hashes(), bytes = bytes_of(model);
  const auto expect = [&](const std::string& named) {
    const std::string error = error_of([&] { load_checkpoint(run.engine(), folder); });
    EXPECT_TRUE(error.starts_with("kCorrupt")) << error;
    EXPECT_NE(error.find(named), std::string::npos) << error;
    EXPECT_EQ(run.hashes(), before);
  };
  const std::string changed = replaced(bytes, "[40,40]", "[20,80]");
  std::ofstream(model, std::ios::binary) << changed;
  expect("the checksum of the header of model.safetensors differs");
  const std::string manifest = bytes_of(folder + "/manifest.json");
  write_manifest(folder,
                 replaced(manifest.substr(0, manifest.find('\n')), hash_of(bytes.substr(0, 4096)),
                          hash_of(changed.substr(0, 4096))));
  expect("the header of model.safetensors has other tensors or places than manifest.json");
  std::ofstream(folder + "/manifest.json", std::ios::binary) << manifest;
  for (const std::string& other : {bytes + "x", bytes.substr(0, bytes.size() - 1)}) {
    std::ofstream(model, std::ios::binary) << other;
    expect("model.safetensors has " + std::to_string(other.size()) + " bytes, not the " +
           std::to_string(bytes.size()));
  }
  fs::remove(model);
  const std::string missing = error_of([&] { load_checkpoint(run.engine(), folder); });
  EXPECT_TRUE(missing.starts_with("kNotFound")) << missing;
}

// One f32 parameter of this name in a group without one.
std::unique_ptr<Engine> engine_of(const std::string& name) {
  auto engine = std::make_unique<Engine>(Settings{});
  const GroupId group = engine->add_group("", {{name, DType::kF32, {2, 3}}});
  engine->freeze();
  engine->load(group, [](ParameterId, std::span<std::byte> out) {
    for (std::size_t i = 0; i < out.size() / sizeof(float); ++i) {
      const float value = static_cast<float>(i) + 0.5f;
      std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
    }
  });
  return engine;
}

TEST(Checkpoint, FindsParametersByTheirFullNamesInAnyOrderAndGroups) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  const ParameterSpec a{"a", DType::kF32, {5}}, b{"b", DType::kBf16, {2, 4}};
  const auto fill = [](ParameterId id, std::span<std::byte> out) {
    std::fill(out.begin(), out.end(), std::byte(16 * id.index + 3));
  };
  Engine saved{Settings{}}, loaded{Settings{}};
  const GroupId joined = saved.add_group("g", {a, b});
  saved.freeze();
  saved.load(joined, fill);
  save_checkpoint(saved, folder);
  loaded.add_group("", {{"g.b", DType::kBf16, {2, 4}}});
  loaded.add_group("g", {a});
  loaded.freeze();
  load_checkpoint(loaded, folder);  // the first values that it has
  EXPECT_EQ(loaded.hash_parameters(), saved.hash_parameters());
  EXPECT_EQ(loaded.hash_optimizer_state(), saved.hash_optimizer_state());
}

TEST(Checkpoint, KeepsOddNamesAndRefusesThoseThatItsFilesCannotHold) {
  const testing::TemporaryDirectory directory;
  int number = 0;
  for (const std::string& name : {std::string("a\"b\\c\n\t/../é"), std::string("a\0b", 3),
                                  std::string("master.exp_avg.x"), std::string(3000, 'n')}) {
    const std::string folder = directory.string() + "/" + std::to_string(++number);
    const auto engine = engine_of(name), other = engine_of(name);
    save_checkpoint(*engine, folder);
    EXPECT_EQ(error_of([&] { load_checkpoint(*other, folder); }), "no error");
    EXPECT_EQ(other->hash_parameters(), engine->hash_parameters());
  }
  const std::string folder = directory.string() + "/none";
  const auto expect = [&](const std::string& name, const std::string& named) {
    const auto engine = engine_of(name);
    const std::string error = error_of([&] { save_checkpoint(*engine, folder); });
    EXPECT_TRUE(error.starts_with("kInvalidArgument")) << error;
    EXPECT_NE(error.find(named), std::string::npos) << error;
    EXPECT_FALSE(fs::exists(folder) || fs::exists(folder + ".tmp"));
  };
  expect("a\xff", "\"a\\ufffd\", which is no UTF-8");
  expect("__metadata__", "which safetensors keeps for itself");
}

TEST(Checkpoint, ADamagedFileIsNamedBeforeAnythingChanges) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training run;
  save_checkpoint(run.engine(), folder);
  run.train(1);
  const std::string before = run.hashes();
  for (const char* const name : {"manifest.json", "model.safetensors", "optimizer.safetensors"}) {
    for (const int from_end : {1, 50'000}) {
      std::fstream file(folder + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(0, std::ios::end);
      const auto at = std::max<std::streamoff>(0, file.tellg() - std::streamoff{from_end});
      file.seekg(at);
      const char old = static_cast<char>(file.get());
      file.seekp(at).put(static_cast<char>(old ^ 1)).flush();
      const std::string error = error_of([&] { load_checkpoint(run.engine(), folder); });
      EXPECT_TRUE(error.starts_with("kCorrupt")) << name << ": " << error;
      EXPECT_EQ(run.hashes(), before);
      file.seekp(at).put(old).flush();
    }
  }
  EXPECT_EQ(error_of([&] { load_checkpoint(run.engine(), folder); }), "no error");
}

TEST(Checkpoint, OtherShapesAndAMissingManifestAreNamed) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training run, other({.width = 200});
  save_checkpoint(run.engine(), folder);
  const std::string shape = error_of([&] { load_checkpoint(other.engine(), folder); });
  EXPECT_TRUE(shape.starts_with("kInvalidArgument")) << shape;
  EXPECT_NE(shape.find("has shape"), std::string::npos) << shape;
  fs::remove(folder + "/manifest.json");
  const std::string missing = error_of([&] { load_checkpoint(run.engine(), folder); });
  EXPECT_TRUE(missing.starts_with("kNotFound")) << missing;
}

TEST(Checkpoint, TakesNoFolderThatExistsAndRemovesWhatADeadSaveLeft) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training run;
  fs::create_directory(folder + ".tmp");
  std::ofstream(folder + ".tmp/.unfinished");
  std::ofstream(folder + ".tmp/model.safetensors") << "half";
  save_checkpoint(run.engine(), folder);
  EXPECT_FALSE(fs::exists(folder + "/.unfinished"));
  EXPECT_FALSE(fs::exists(folder + ".tmp"));
  const std::string again = error_of([&] { save_checkpoint(run.engine(), folder); });
  EXPECT_TRUE(again.starts_with("kInvalidArgument")) << again;
  const std::string nowhere =
      error_of([&] { save_checkpoint(run.engine(), directory.string() + "/none/a"); });
  EXPECT_TRUE(nowhere.starts_with("kIo")) << nowhere;
  EXPECT_TRUE(nowhere.ends_with("create the directory (mkdir -p), or name another folder"))
      << nowhere;
}
TEST(Checkpoint, IsSavedBelowAFolderThatIsALink) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/real", link = directory.string() + "/link";
  fs::create_directory(folder);
  fs::create_directory_symlink(folder, link);
  Training run({.width = 40});
  save_checkpoint(run.engine(), link + "/a", {.latest = true});
  Training loaded({.width = 40});
  load_checkpoint(loaded.engine(), link);
  EXPECT_EQ(loaded.hashes(), run.hashes());
}

// A limit on file sizes stands for a full disk: both end a write on the way.
TEST(Checkpoint, ASaveThatFailsOnTheWayLeavesNothingAndTheEngineTrainsOn) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training run;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 500'000;
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of([&] { save_checkpoint(run.engine(), folder); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_TRUE(error.starts_with("kNoSpace")) << error;
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_FALSE(fs::exists(folder + ".tmp"));
  run.train(1);
  save_checkpoint(run.engine(), folder);
  EXPECT_TRUE(fs::exists(folder + "/manifest.json"));
}
// By name.
std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = bytes_of(entry.path().string());
  return files;
}

TEST(Checkpoint, RemovesNothingThatNoSaveHasWritten) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/keep";
  Training run;
  for (const std::string& name : {std::string(), std::string("/"), folder + ".tmp"}) {
    const std::string error = error_of([&] { save_checkpoint(run.engine(), name); });
    EXPECT_EQ(error.find("kInvalidArgument"), 0u) << error;
    EXPECT_NE(error.find("nothing was written"), std::string::npos) << error;
  }
  fs::create_directory(folder + ".tmp");
  std::ofstream(folder + ".tmp/thesis.txt") << "mine";
  const std::string error = error_of([&] { save_checkpoint(run.engine(), folder); });
  EXPECT_NE(error.find("has 'thesis.txt', which no save has written"), std::string::npos) << error;
  EXPECT_TRUE(fs::exists(folder + ".tmp/thesis.txt"));
  fs::remove(folder + ".tmp/thesis.txt");
  std::ofstream(folder + ".tmp/config.json") << "of a program that names its folders so";
  const std::string other = error_of([&] { save_checkpoint(run.engine(), folder); });
  EXPECT_NE(other.find("has 'config.json', which no save has written"), std::string::npos) << other;
  EXPECT_TRUE(fs::exists(folder + ".tmp/config.json"));
  std::ofstream(folder + ".tmp/.unfinished");  // left by a killed save
  save_checkpoint(run.engine(), folder);
  EXPECT_FALSE(fs::exists(folder + ".tmp"));
  fs::create_directory(folder + "2.tmp");  // killed before it had written anything
  save_checkpoint(run.engine(), folder + "2");
}

TEST(Checkpoint, RefusesFilesThatAreNone) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training run;
  const std::byte state[] = {std::byte{1}};
  save_checkpoint(run.engine(), folder, {.trainer_state = state});
  for (const char* const name :
       {"trainer_state.bin", "optimizer.safetensors", "model.safetensors", "manifest.json"}) {
    fs::remove(folder + "/" + name);
    ASSERT_EQ(::mkfifo((folder + "/" + name).c_str(), 0600), 0);
    const std::string error = error_of([&] { load_checkpoint(run.engine(), folder); });
    EXPECT_NE(error.find(name), std::string::npos) << error;
    EXPECT_NE(error.find("no regular file"), std::string::npos) << error;
  }
}

// Tensors of several chunks, and shards that end within chunks.
TEST(Checkpoint, EveryWorldSizeLoadsWhatEverySizeSavedAndSavesTheSameFiles) {
  const Place place{.width = 900};
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/1";
  const std::byte state[] = {std::byte{1}, std::byte{2}};
  const SaveOptions options{.file_bytes = 2'000'000, .trainer_state = state};
  Training alone(place);
  alone.train(2);
  save_checkpoint(alone.engine(), folder, options);
  const std::string saved = alone.hashes();
  const auto files = files_of(folder);
  EXPECT_TRUE(files.contains("model-00002-of-00003.safetensors"));
  EXPECT_TRUE(files.contains("model.safetensors.index.json"));
  EXPECT_TRUE(files.contains("optimizer.safetensors.index.json"));
  for (const std::uint32_t world : {2u, 3u, 4u}) {
    SCOPED_TRACE(world);
    const std::string mine = directory.string() + "/" + std::to_string(world);
    on_ranks(world, place, [&](Training& run, std::uint32_t rank) {
      const LoadedCheckpoint loaded = load_checkpoint(run.engine(), folder);
      EXPECT_TRUE(std::ranges::equal(loaded.trainer_state, state));
      EXPECT_EQ(run.hashes(), saved) << "rank " << rank;
      SaveOptions own = options;
      const std::byte other[] = {std::byte{3}};
      if (rank != 0) own.trainer_state = other;
      save_checkpoint(run.engine(), mine, own);
      EXPECT_TRUE(fs::exists(mine));
      EXPECT_EQ(run.hashes(), saved) << "rank " << rank;
      load_checkpoint(run.engine(), mine);
      EXPECT_EQ(run.hashes(), saved) << "rank " << rank;
    });
    EXPECT_EQ(files_of(mine), files);
    EXPECT_FALSE(fs::exists(mine + ".tmp"));
  }
}

TEST(Checkpoint, ARankThatFailsEndsTheCallOnAllAndLeavesNothing) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a";
  Training alone({.width = 600});
  save_checkpoint(alone.engine(), folder);
  const std::string model = folder + "/optimizer.safetensors", bytes = bytes_of(model);
  on_ranks(2, {.width = 600}, [&](Training& run, std::uint32_t rank) {
    const std::string of_rank = directory.string() + "/" + std::to_string(rank);
    const std::string before = run.hashes();
    const std::string apart = error_of([&] { save_checkpoint(run.engine(), of_rank); });
    EXPECT_TRUE(apart.starts_with("kUnsupported")) << apart;
    EXPECT_NE(apart.find("not there on rank 1"), std::string::npos) << apart;
    const std::string taken = error_of([&] { save_checkpoint(run.engine(), folder); });
    EXPECT_TRUE(taken.starts_with("kInvalidArgument")) << taken;
    const std::string unlike = error_of([&] {
      save_checkpoint(run.engine(), directory.string() + "/b",
                      {.file_bytes = rank == 0 ? 100'000u : 1'000'000u});
    });
    EXPECT_NE(unlike.find("another SaveOptions::file_bytes than rank 0"), std::string::npos);
    const std::string refused = error_of([&] {
      save_checkpoint(run.engine(), directory.string() + "/b",
                      {.file_bytes = rank == 0 ? 100'000u : 0u});
    });
    EXPECT_NE(refused.find("SaveOptions::file_bytes is 0"), std::string::npos) << refused;
    EXPECT_EQ(run.hashes(), before);
    // Its last byte is of a tensor of one rank alone.
    if (rank == 0) std::ofstream(model, std::ios::binary) << flipped(bytes, bytes.size() - 9);
    run.hashes();  // the ranks meet
    const std::string damaged = error_of([&] { load_checkpoint(run.engine(), folder); });
    EXPECT_TRUE(damaged.starts_with("kCorrupt")) << damaged;
    EXPECT_NE(damaged.find("the checksum of "), std::string::npos) << damaged;
    EXPECT_EQ(run.hashes(), before);
  });
  for (const char* const name : {"/0", "/1", "/b", "/0.tmp", "/1.tmp", "/b.tmp"})
    EXPECT_FALSE(fs::exists(directory.string() + name)) << name;
}

// Into an engine without values: they are verified while they are loaded.
TEST(Checkpoint, ADamagedTensorLeavesAnEmptyEngineWithoutValues) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a", file = folder + "/optimizer.safetensors";
  Training run({.width = 600});
  run.train(1);
  save_checkpoint(run.engine(), folder);
  const std::string bytes = bytes_of(file);
  Engine empty{run.engine().settings()};
  for (std::uint32_t g = 0; g < run.engine().group_count(); ++g) {
    std::vector<ParameterSpec> specs;
    for (const ParameterId id : run.engine().parameters({g})) {
      specs.push_back(run.engine().spec(id));
      specs.back().hyperparameters = {};
    }
    empty.add_group(run.engine().group_name({g}), specs);
  }
  empty.freeze();
  std::ofstream(file, std::ios::binary) << flipped(bytes, bytes.size() / 2);
  const std::string error = error_of([&] { load_checkpoint(empty, folder); });
  EXPECT_TRUE(error.starts_with("kCorrupt")) << error;
  EXPECT_TRUE(error_of([&] { (void)empty.gather({0}); }).starts_with("kWrongState"));
  std::ofstream(file, std::ios::binary) << bytes;
  load_checkpoint(empty, folder);
  EXPECT_EQ(empty.hash_parameters() + empty.hash_optimizer_state(), run.hashes());
}

// The second chunk of a weight's moment is of the second rank alone. What the first rank has taken
// is of no use.
TEST(Checkpoint, ALoadThatFailsOnOneRankLeavesNoneWithValues) {
  const testing::TemporaryDirectory directory;
  const std::string folder = directory.string() + "/a", file = folder + "/optimizer.safetensors";
  Training alone({.width = 600});
  save_checkpoint(alone.engine(), folder);
  const std::string bytes = bytes_of(file);
  std::ofstream(file, std::ios::binary) << flipped(bytes, bytes.size() - 8192);
  on_ranks(2, {.width = 600}, [&](Training& run, std::uint32_t) {
    Engine& engine = run.engine();
    for (std::uint32_t g = 0; g < engine.group_count(); ++g) {  // no group has values
      const auto none = [](ParameterId, std::span<std::byte>) { throw Error(Code::kIo, "none"); };
      EXPECT_EQ(error_of([&] { engine.load(GroupId{g}, none); }), "kIo none");
    }
    const std::string damaged = error_of([&] { load_checkpoint(engine, folder); });
    EXPECT_NE(damaged.find("the checksum of "), std::string::npos) << damaged;
    for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
      const std::string stored = error_of([&] {
        engine.store({i}, Content::kWeight, [](std::uint64_t, std::span<const std::byte>) {});
      });
      EXPECT_TRUE(stored.starts_with("kWrongState")) << stored;
    }
  });
}

TEST(Checkpoint, TheLatestOneIsFoundByTheFolderAbove) {
  const testing::TemporaryDirectory directory;
  Training run({.width = 40});
  save_checkpoint(run.engine(), directory.string() + "/step-0", {.latest = true});
  run.train(1);
  save_checkpoint(run.engine(), directory.string() + "/step-1/", {.latest = true});
  const std::string saved = run.hashes();
  run.train(1);
  save_checkpoint(run.engine(), directory.string() + "/aside");
  load_checkpoint(run.engine(), directory.string());
  EXPECT_EQ(run.hashes(), saved);
  for (const char* const odd : {"", "..", "../x", "/etc"}) {
    std::ofstream(directory.string() + "/latest") << odd << "\n";
    const std::string error = error_of([&] { load_checkpoint(run.engine(), directory.string()); });
    EXPECT_TRUE(error.starts_with("kCorrupt")) << error;
  }
}

// [example]
// Trains until `steps` steps are done, and saves the last one.
void train_and_save(Engine& engine, const std::string& from, const std::string& to, int steps,
                    const std::function<void(Engine&)>& train_step) {
  if (!from.empty()) load_checkpoint(engine, from);
  for (int step = 0; step < steps; ++step) train_step(engine);
  save_checkpoint(engine, to);  // the folder `to` is there whole, or this throws
}
// [/example]

void step_on_ones(Engine& engine) {
  const float gradient[6] = {1, 1, 1, 1, 1, 1};
  {
    const Gathered gathered = engine.gather({0});
    engine.add_gradient({0}, gradient, DType::kF32);
  }
  engine.step({.learning_rate = 0.5f});
}

TEST(CheckpointExample, GoesOnFromOneFolderAndSavesTheNext) {
  const testing::TemporaryDirectory directory;
  const std::string first = directory.string() + "/1", second = directory.string() + "/2";
  const auto one = engine_of("w"), two = engine_of("w"), whole = engine_of("w");
  train_and_save(*one, "", first, 2, step_on_ones);
  train_and_save(*two, first, second, 1, step_on_ones);
  for (int i = 0; i < 3; ++i) step_on_ones(*whole);
  EXPECT_EQ(two->hash_parameters(), whole->hash_parameters());
  EXPECT_EQ(two->hash_optimizer_state(), whole->hash_optimizer_state());
}

// safetensors_test.py reads them in a folder that it names.
TEST(CheckpointExample, LeavesFoldersForOtherPrograms) {
  const testing::TemporaryDirectory directory;
  const char* const named = std::getenv("HEADRACE_CHECKPOINT_FOLDER");
  const std::string folder = named != nullptr ? named : directory.string();
  save_checkpoint(*engine_of("w"), folder + "/values");
  Training run({.width = 40});
  run.train(1);
  save_checkpoint(run.engine(), folder + "/trained");
  for (const char* const one : {"/values", "/trained"})
    for (const char* const file : {"/manifest.json", "/model.safetensors"})
      EXPECT_TRUE(fs::exists(folder + one + file)) << one << file;
}
}  // namespace
}  // namespace headrace
