// SPDX-License-Identifier: Apache-2.0
// deepspeed_test: `headrace checkpoint convert` to and from universal directories, those that it
// makes and those that are made here as DeepSpeed makes them. tests/checkpoint/deepspeed_test.py
// asks DeepSpeed itself.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/training.hpp"
#include "pickle/pickle_writer.hpp"
#include "pickle/tensor_file_writer.hpp"
#include "support/temporary_directory.hpp"
#include "tools/called.hpp"
#include "tools/file_size_limit.hpp"
#include "tools/universal_example.hpp"

namespace headrace::tools::deepspeed_test {
namespace {
namespace fs = std::filesystem;
using testing_checkpoints::Place;
using testing_checkpoints::Training;

Called convert(const std::string& from, const std::string& to,
               const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"checkpoint", "convert", from, to};
  all.insert(all.end(), more.begin(), more.end());
  return call(checkpoint, all);
}
std::string bytes_in(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class ConvertTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return directory_.string() + "/" + name; }
  // Refused with a text that has `part`; nothing is left of `to`.
  static void expect_refused(const std::string& from, const std::string& to,
                             const std::string& part, const std::vector<std::string>& more = {},
                             std::optional<int> exit_code = {}) {
    const Called called = convert(from, to, more);
    EXPECT_NE(called.exit_code, 0) << called.out;
    if (exit_code) {
      EXPECT_EQ(called.exit_code, *exit_code) << called.err;
    }
    EXPECT_NE(called.err.find(part), std::string::npos) << part << "\n" << called.err;
    EXPECT_FALSE(fs::exists(to));
    EXPECT_FALSE(fs::exists(to + ".tmp"));
  }
  static void expect_done(const Called& called) {
    ASSERT_EQ(called.exit_code, 0) << called.out << called.err;
  }
  static nlohmann::json manifest_of(const std::string& folder) {
    std::ifstream in(folder + "/manifest.json");
    std::string line;
    std::getline(in, line);
    return nlohmann::json::parse(line);
  }
  static void expect_steps(const std::string& folder, std::size_t parameters, int step) {
    const auto manifest = manifest_of(folder);
    ASSERT_EQ(manifest["parameters"].size(), parameters);
    for (const auto& one : manifest["parameters"]) EXPECT_EQ(one["step"], step);
  }
  // The values of a tensor of a checkpoint, by inspect.
  static std::string values_of(const std::string& folder, const std::string& name) {
    const auto report = nlohmann::json::parse(
        call(checkpoint, {"checkpoint", "inspect", folder, "--tensors", "--json", "-"}).out);
    for (const auto& tensor : report["checkpoint"]["tensors"]) {
      if (tensor["name"] != name) continue;
      return bytes_in(folder + "/" + tensor["file"].get<std::string>())
          .substr(tensor["offset_bytes"], tensor["size_bytes"]);
    }
    ADD_FAILURE() << folder << " has no " << name;
    return {};
  }
  static std::string floats(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
  static std::string halves(const std::vector<std::uint16_t>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * 2};
  }

  testing::TemporaryDirectory directory_;
};

// ---- there and back again ----

TEST_F(ConvertTest, ThereAndBackAgainIsTheSameBytes) {
  int number = 0;
  for (const OptimizerRule rule : {OptimizerRule::kAdamW, OptimizerRule::kAdam}) {
    for (const DType dtype : {DType::kBf16, DType::kF16}) {
      const std::string name = std::to_string(number++);
      Training run({.master = MasterLayout::kF32, .width = 400, .rule = rule, .dtype = dtype});
      run.train(1);
      save_checkpoint(run.engine(), at("ours" + name));
      fs::create_directory(at("u" + name));
      for (const char* const type : {"number", "tensor"}) {
        const std::string there = at("u" + name) + "/" + type, back = at(type + name);
        const Called called = convert(at("ours" + name), there, {"--step-type", type});
        expect_done(called);
        EXPECT_NE(called.out.find("headrace to deepspeed: "), std::string::npos) << called.out;
        EXPECT_EQ(bytes_in(at("u" + name) + "/latest_universal"), type);
        expect_done(convert(at("u" + name), back, {"--to", "headrace"}));
        for (const char* const file : {"model.safetensors", "optimizer.safetensors"})
          EXPECT_EQ(bytes_in(at("ours" + name) + "/" + file), bytes_in(back + "/" + file)) << file;
      }
      EXPECT_EQ(manifest_of(at("number" + name)), manifest_of(at("ours" + name)));
      EXPECT_EQ(call(checkpoint, {"checkpoint", "verify", at("number" + name)}).exit_code, 0);
    }
  }
}

TEST_F(ConvertTest, AnEngineGoesOnFromWhatCameBack) {
  for (const MasterLayout master : {MasterLayout::kSplit, MasterLayout::kF32}) {
    const std::string name = master == MasterLayout::kSplit ? "split" : "f32";
    Training run({.master = master});
    run.train(1);
    save_checkpoint(run.engine(), at(name));
    expect_done(convert(at(name), at(name + "u")));
    expect_done(convert(at(name + "u"), at(name + "back")));
    Training other({.master = master});
    load_checkpoint(other.engine(), at(name + "back"));
    EXPECT_EQ(other.engine().hash_optimizer_state(), run.engine().hash_optimizer_state());
    EXPECT_EQ(other.hashes(), run.hashes()) << name;
  }
}

TEST_F(ConvertTest, UnequalStepsAreNamedOrTheGreatestIsTaken) {
  Training run({.master = MasterLayout::kF32});
  run.train(2);
  save_checkpoint(run.engine(), at("a"));
  expect_refused(at("a"), at("u"),
                 "was updated 2 times, \"layer.0.sometimes\" 1 times, and DeepSpeed has one count "
                 "for all; nothing was converted. Give --step max");
  expect_done(convert(at("a"), at("u"), {"--step", "max"}));
  expect_done(convert(at("u"), at("b")));
  expect_steps(at("b"), 9, 2);
  EXPECT_EQ(values_of(at("b"), "exp_avg.layer.0.sometimes"),
            values_of(at("a"), "exp_avg.layer.0.sometimes"));
}

TEST_F(ConvertTest, MomentsOfFewerBitsBecomeF32) {
  Training run({.master = MasterLayout::kF32, .moments = MomentCodec::kBlock8});
  run.train(1);
  save_checkpoint(run.engine(), at("a"));
  expect_done(convert(at("a"), at("u")));
  expect_done(convert(at("u"), at("b")));
  EXPECT_EQ(manifest_of(at("b"))["optimizer"]["moments"], "f32");
  EXPECT_EQ(bytes_in(at("b") + "/optimizer.safetensors"),
            bytes_in(at("a") + "/optimizer.safetensors"));
}

TEST_F(ConvertTest, WritesAReport) {
  Training run({.master = MasterLayout::kF32});
  run.train(1);
  const std::string state = "state";
  save_checkpoint(run.engine(), at("a"), {.trainer_state = std::as_bytes(std::span(state))});
  const auto report = nlohmann::json::parse(convert(at("a"), at("u"), {"--json", "-"}).out);
  EXPECT_EQ(report["from"]["format"], "headrace");
  EXPECT_EQ(report["to"]["format"], "deepspeed");
  EXPECT_EQ(report["to"]["folder"], at("u"));
  EXPECT_EQ(report["trained"], 9);
  EXPECT_EQ(report["step"], 1);
  EXPECT_EQ(report["left_out"][0], "trainer_state.bin: the trainer's own");
  EXPECT_EQ(report["exit_code"], 0);
}

TEST_F(ConvertTest, LeavesNothingBehindWhereACheckpointIsDamaged) {
  Training run({.master = MasterLayout::kF32});
  run.train(1);
  save_checkpoint(run.engine(), at("a"));
  const std::string path = at("a") + "/optimizer.safetensors";
  const std::string bytes = bytes_in(path);
  std::ofstream(path, std::ios::binary)
      << bytes.substr(0, bytes.size() - 200'000) << std::string(200'000, 'x');
  expect_refused(at("a"), at("u"), at("a") + ": the checksum of 'exp_avg", {}, 1);
  EXPECT_FALSE(fs::exists(directory_.string() + "/latest_universal"));
}

TEST_F(ConvertTest, ADiskThatFillsLeavesNothingInEitherDirection) {
  Training run({.master = MasterLayout::kF32});
  run.train(1);
  save_checkpoint(run.engine(), at("a"));
  std::optional<FileSizeLimit> limit(300'000);
  expect_refused(at("a"), at("u"), "/fp32.pt", {}, 2);
  EXPECT_FALSE(fs::exists(directory_.string() + "/latest_universal"));
  limit.reset();
  expect_done(convert(at("a"), at("u")));
  limit.emplace(1'000'000);
  expect_refused(at("u"), at("b"), "b.tmp/optimizer.safetensors needs a file of", {}, 2);
  limit.reset();
  expect_done(convert(at("u"), at("b")));
}

TEST_F(ConvertTest, RefusesWhatDeepSpeedHasNot) {
  Training lion({.master = MasterLayout::kF32, .rule = OptimizerRule::kLion});
  lion.train(1);
  save_checkpoint(lion.engine(), at("lion"));
  expect_refused(at("lion"), at("u"), "was trained with lion, and DeepSpeed's universal format", {},
                 2);
  expect_refused(at("lion"), at("u"), "--dtype is for checkpoints that become Headrace's",
                 {"--dtype", "f32"}, 2);
  expect_refused(at("lion"), at("u"), "--step with a number is for", {"--step", "3"}, 2);
  expect_refused(at("lion"), at("u"), "--to headrace: " + at("lion") + " has this format already",
                 {"--to", "headrace"}, 2);
}

// ---- directories as DeepSpeed makes them ----

TEST_F(ConvertTest, TakesMastersMomentsAndStepsBitForBit) {
  const float tie = std::ldexp(257.0f, -8);  // between two values of bf16, of which 1.0 is even
  UniversalExample example;
  example.parameters = {{"a.weight", "BF16", {2, 2}, {tie, -1.5f, 1e-30f, 3}},
                        {"b", "F32", {1}, {0.1f}}};
  for (const bool flat : {false, true}) {
    const std::string name = flat ? "flat" : "shaped";
    example.flat = flat;
    example.write(at(name));
    expect_done(convert(at(name), at(name + ".ours")));
    EXPECT_EQ(values_of(at(name + ".ours"), "master.a.weight"), floats({tie, -1.5f, 1e-30f, 3}));
    EXPECT_EQ(values_of(at(name + ".ours"), "a.weight"), halves({0x3f80, 0xbfc0, 0x0da2, 0x4040}));
    EXPECT_EQ(values_of(at(name + ".ours"), "exp_avg.b"), floats({0.1f * 2}));
    EXPECT_EQ(values_of(at(name + ".ours"), "exp_avg_sq.b"), floats({0.1f * 3}));
    const auto manifest = manifest_of(at(name + ".ours"));
    EXPECT_EQ(manifest["optimizer"]["rule"], "adamw");
    EXPECT_EQ(manifest["parameters"][0]["shape"], (std::vector<int>{2, 2}));
    EXPECT_EQ(manifest["parameters"][1]["step"], 7);
  }
}

TEST_F(ConvertTest, OptionsTakeTheWordOfTheDirectory) {
  UniversalExample example;
  example.parameters = {{"a", "BF16", {2}, {1, 2}}, {"b", "BF16", {2}, {3, 4}}};
  example.write(at("u"));
  expect_done(convert(at("u"), at("x"),
                      {"--dtype", "f32", "--optimizer", "adam", "--step", "41", "--frozen", "b"}));
  const auto manifest = manifest_of(at("x"));
  EXPECT_EQ(manifest["optimizer"]["rule"], "adam");
  EXPECT_EQ(manifest["parameters"][0]["dtype"], "F32");
  EXPECT_EQ(manifest["parameters"][0]["step"], 41);
  EXPECT_EQ(manifest["parameters"][1]["frozen"], true);
  EXPECT_EQ(values_of(at("x"), "b"), floats({3, 4}));
  expect_refused(at("u"), at("y"), "--frozen c: " + at("u") + " has no such parameter",
                 {"--frozen", "c"}, 2);
  expect_refused(at("u"), at("y"), "--step-type is for checkpoints that become DeepSpeed's",
                 {"--step-type", "tensor"}, 2);
  expect_refused(at("u"), at("y"), "--to deepspeed: " + at("u") + " has this format already",
                 {"--to", "deepspeed"}, 2);
  expect_refused(at("u"), at("y"), "--dtype 'f64' is not known", {"--dtype", "f64"}, 2);
  expect_refused(at("u"), at("y"), "--step", {"--step", "least"}, 2);
}

TEST_F(ConvertTest, LeavesOutBuffersAndSecondNamesAndKeepsFrozenWeights) {
  UniversalExample example;
  example.parameters = {{"a", "BF16", {2}, {1, 2}}};
  example.frozen = {{"f", "F16", {3}, {0.5f, 2, 3}}};
  example.buffers = {"scale"};
  example.shared = {{"head", "a"}};
  example.write(at("u"));
  fs::create_directory(at("u") + "/zero/scale");
  fs::create_directory(at("u") + "/zero/f");
  const Called called = convert(at("u"), at("x"));
  expect_done(called);
  EXPECT_NE(called.out.find("left out: scale: a buffer\n"), std::string::npos) << called.out;
  EXPECT_NE(called.out.find("left out: head: the same as a\n"), std::string::npos) << called.out;
  EXPECT_EQ(values_of(at("x"), "f"), halves({0x3800, 0x4000, 0x4200}));
  EXPECT_EQ(manifest_of(at("x"))["parameters"].size(), 2u);
}

TEST_F(ConvertTest, KeepsFrozenWeightsThatOnlyTheModuleHas) {
  UniversalExample example;
  example.parameters = {{"a", "BF16", {2}, {1, 2}}};
  example.unlisted = {{"f", "BF16", {2, 2}, {1, 2, 3, 4}}};
  example.extra_state = "a._extra_state";
  example.write(at("u"));
  const Called called = convert(at("u"), at("x"));
  expect_done(called);
  EXPECT_EQ(manifest_of(at("x"))["parameters"][1]["frozen"], true);
  EXPECT_EQ(values_of(at("x"), "f"), halves({0x3f80, 0x4000, 0x4040, 0x4080}));
  EXPECT_NE(called.out.find("left out: a._extra_state: a list of 0\n"), std::string::npos)
      << called.out;
}

// A frozen weight that ZeRO-3 has divided among three ranks, with padding in the last share.
TEST_F(ConvertTest, JoinsTheSharesOfFrozenWeights) {
  UniversalExample example;
  example.parameters = {{"a", "BF16", {2}, {1, 2}}};
  example.model_files = {"zero_pp_rank_0_mp_rank_00_model_states.pt",
                         "zero_pp_rank_1_mp_rank_00_model_states.pt",
                         "zero_pp_rank_2_mp_rank_00_model_states.pt"};
  example.frozen = {{"f", "F32", {2, 2}, {1, 2, 3, 4, 0, 0}}};
  example.write(at("u"));
  expect_done(convert(at("u"), at("x")));
  EXPECT_EQ(values_of(at("x"), "f"), floats({1, 2, 3, 4}));
  example.frozen[0].values.insert(example.frozen[0].values.end(), 3, 9);
  example.write_model_states(at("u"));
  expect_refused(at("u"), at("y"), "the frozen 'f' has 9 of its 4 elements", {}, 1);
  example.frozen[0].values.resize(6);
  example.write_model_states(at("u"));
  fs::remove(at("u") + "/zero_pp_rank_2_mp_rank_00_model_states.pt");
  fs::remove(at("u") + "/zero_pp_rank_1_mp_rank_00_model_states.pt");
  expect_refused(at("u"), at("y"), "the frozen 'f' has 2 of its 4 elements", {}, 1);
}

TEST_F(ConvertTest, TakesTheRuleFromWhatSaysIt) {
  const auto rule_by = [&](const std::string& type, std::optional<bool> mode,
                           std::optional<bool> decoupled) {
    UniversalExample example;
    example.parameters = {{"a", "BF16", {2}, {1, 2}}};
    example.optimizer = type;
    example.adam_w_mode = mode;
    example.decoupled = decoupled;
    fs::remove_all(at("u"));
    fs::remove_all(at("x"));
    example.write(at("u"));
    const Called called = convert(at("u"), at("x"));
    return called.exit_code == 0 ? manifest_of(at("x"))["optimizer"]["rule"].get<std::string>()
                                 : called.err;
  };
  EXPECT_EQ(rule_by("AdamW", {}, {}), "adamw");
  EXPECT_EQ(rule_by("Adam", {}, {}), "adamw");
  EXPECT_EQ(rule_by("Adam", false, {}), "adam");
  EXPECT_EQ(rule_by("", {}, true), "adamw");
  EXPECT_EQ(rule_by("", {}, false), "adam");
  EXPECT_NE(rule_by("", {}, {}).find("does not say by which rule it was trained"),
            std::string::npos);
}

TEST_F(ConvertTest, TakesStepsFromWhereEachStageKeepsThem) {
  UniversalExample example;
  example.parameters = {{"a", "BF16", {2}, {1, 2}}, {"b", "BF16", {2}, {1, 2}}};
  for (const StepPlace place :
       {StepPlace::kNumberFiles, StepPlace::kTensorFiles, StepPlace::kOptimizerState}) {
    example.steps = place;
    fs::remove_all(at("u"));
    fs::remove_all(at("x"));
    example.write(at("u"));
    expect_done(convert(at("u"), at("x")));
    expect_steps(at("x"), 2, 7);
  }
  example.steps = StepPlace::kNowhere;
  example.write(at("n"));
  expect_refused(at("n"), at("y"), "has no step count of 'a'; nothing was converted. Give --step",
                 {}, 2);
  fs::remove_all(at("n"));
  example.steps = StepPlace::kFractions;
  example.write(at("n"));
  expect_refused(at("n"), at("y"), "/zero/a/step.pt: its step is no whole number from 0 on", {}, 1);
}

// ---- what is not whole ----

class DamagedUniversalTest : public ConvertTest {
 protected:
  DamagedUniversalTest() {
    example_.parameters = {{"a", "BF16", {2}, {1, 2}}, {"b", "BF16", {2}, {3, 4}}};
    example_.write(at("u"));
  }
  std::string path(const std::string& file) const { return at("u") + "/" + file; }
  void expect(const std::string& part, int exit_code = 1) const {
    expect_refused(at("u"), at("y"), part, {}, exit_code);
  }
  void flip(const std::string& file, std::uint64_t place) const {
    std::fstream bytes(path(file), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(place));
    const char flipped = static_cast<char>(bytes.get() ^ 1);
    bytes.seekp(static_cast<std::streamoff>(place));
    bytes.put(flipped);
  }
  UniversalExample example_;
};

TEST_F(DamagedUniversalTest, NamesMissingFiles) {
  fs::remove(path("zero/b/exp_avg_sq.pt"));
  expect(
      "/zero/b/exp_avg_sq.pt is not there; nothing was converted. If the parameter was not "
      "trained, give --frozen b.",
      2);
  fs::remove(path("zero/b/fp32.pt"));
  expect("/zero/b/fp32.pt is not there; nothing was converted. Copy the directory again", 2);
  fs::remove(path("zero/optimizer_state.pt"));
  expect("/zero/optimizer_state.pt is not there", 2);
  fs::remove(path("mp_rank_00_model_states.pt"));
  expect("has no mp_rank_*_model_states.pt or zero_pp_rank_0_*_model_states.pt", 2);
  fs::remove_all(path("zero"));
  expect("is neither a checkpoint of Headrace, which has manifest.json, nor a universal one", 2);
  std::ofstream(path("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")) << "x";
  expect("is a DeepSpeed checkpoint for its own number of ranks, not a universal one", 2);
  expect_refused(at("none"), at("y"), "is not a directory", {}, 2);
}

TEST_F(DamagedUniversalTest, LeavesNothingBehindWhereAValueIsDamaged) {
  std::string file = bytes_in(path("zero/b/exp_avg.pt"));
  const std::size_t values = file.find(floats({6, 8}));
  ASSERT_NE(values, std::string::npos);
  flip("zero/b/exp_avg.pt", values);
  expect("/zero/b/exp_avg.pt: the checksum of its entry 'exp_avg/data/0' differs");
  flip("zero/b/exp_avg.pt", values);
  fs::resize_file(path("zero/b/exp_avg.pt"), values);
  expect("/zero/b/exp_avg.pt: it is no zip file, or cut off");
}

TEST_F(DamagedUniversalTest, NamesParametersThatDoNotBelong) {
  fs::create_directory(path("zero/other"));
  expect("/zero/other belongs to no parameter");
  fs::remove(path("zero/other"));
  example_.parameters[1].shape = {4};
  example_.write_model_states(at("u"));
  expect("/zero/b/fp32.pt: its tensor has the shape [2], its parameter [4]");
  example_.parameters[1].shape = {2};
  example_.parameters[1].name = "../b";
  example_.write_model_states(at("u"));
  expect("the parameter \"../b\" cannot be the name of a folder");
  example_.parameters[1].name = "__metadata__";
  example_.write_model_states(at("u"));
  expect("a parameter is named \"__metadata__\", which safetensors keeps for itself");
}

// Sizes whose product is that of the tensor, but for 2^64.
TEST_F(DamagedUniversalTest, RefusesShapesThatNoTensorHas) {
  UniversalExample example;
  example.flat = true;
  example.parameters = {{"a", "BF16", {1 << 20, 1 << 20, 1 << 20, 16}, {}}};
  example.write(at("f"));
  expect_refused(at("f"), at("y"), "/zero/a/fp32.pt: its parameter has more than 2^48 elements", {},
                 1);
  fs::remove_all(at("f"));
  example.parameters[0].shape = {0, 3};
  example.write(at("f"));
  expect_refused(at("f"), at("y"), "/zero/a/fp32.pt: its parameter has a dimension of 0", {}, 1);
}

TEST_F(DamagedUniversalTest, RefusesAMomentOfAnotherSizeAndOtherDTypes) {
  const auto put = [&](const std::string& file, const std::string& dtype, std::size_t elements) {
    fs::remove(path(file));
    write_tensor(path(file), dtype, {static_cast<std::int64_t>(elements)}, true,
                 std::vector<float>(elements, 1));
  };
  put("zero/b/exp_avg.pt", "F32", 3);
  expect("/zero/b/exp_avg.pt: its tensor has 3 elements, its parameter 2");
  put("zero/b/exp_avg.pt", "BF16", 2);  // as with bf16_optimizer_states
  expect_done(convert(at("u"), at("bf16")));
  EXPECT_EQ(values_of(at("bf16"), "exp_avg.b"), floats({1, 1}));
  example_.parameters[1].dtype = "";
  example_.write_model_states(at("u"));
  expect("does not say which dtype 'b' has; nothing was converted. Give --dtype", 2);
}

// In the place of every value that is needed, and of one that is not.
TEST_F(DamagedUniversalTest, ExecutesNothing) {
  const std::string mark = at("made");
  const auto hostile = [&](const std::string& file) {
    std::string pickle = "\x80\x02";
    pickle += "cos\nsystem\nX";
    const std::string command = "touch " + mark;
    for (std::size_t i = 0; i < 4; ++i) pickle += static_cast<char>(command.size() >> (8 * i));
    pickle += command + "\x85R.";
    const std::string kept = bytes_in(path(file));
    fs::remove(path(file));
    pickle::TensorFileWriter(path(file), pickle, {}, checkpoint::kSaving).finish();
    return kept;
  };
  for (const auto& [file, part] : std::vector<std::pair<std::string, std::string>>{
           {"zero/a/fp32.pt", "its tensor is no tensor, but os.system(...), which is not made"},
           {"zero/a/exp_avg.pt", "its tensor is no tensor, but os.system(...)"},
           {"zero/a/step.pt", "its step is os.system(...), which is not made"},
           {"mp_rank_00_model_states.pt", "it holds os.system(...), which is not made, no dict"}}) {
    const std::string kept = hostile(file);
    expect("/" + file + ": " + part);
    std::ofstream(path(file), std::ios::binary) << kept;
  }
  (void)hostile("zero/optimizer_state.pt");  // the rule and the steps are elsewhere
  const Called called = convert(at("u"), at("z"));
  expect_done(called);
  EXPECT_NE(called.out.find("not needed, not run: os.system\n"), std::string::npos) << called.out;
  EXPECT_FALSE(fs::exists(mark));
}

TEST_F(DamagedUniversalTest, RefusesAmbiguousAndExistingFolders) {
  expect_done(convert(at("u"), at("x")));
  const Called again = convert(at("u"), at("x"));
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.err.find("headrace checkpoint convert: " + at("x") +
                           " exists; nothing was written. Name a new folder."),
            std::string::npos)
      << again.err;
  fs::copy(at("x"), at("u"), fs::copy_options::recursive);
  expect(
      "has a checkpoint of Headrace and one of DeepSpeed; nothing was done. Name the folder of "
      "one of them.",
      2);
}
}  // namespace
}  // namespace headrace::tools::deepspeed_test
