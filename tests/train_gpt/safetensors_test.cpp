// SPDX-License-Identifier: Apache-2.0
// Reading and writing model.safetensors; damaged files.
#include "safetensors.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "program/signals.hpp"
#include "scratch_folder.hpp"

namespace train_gpt {
namespace {
using headrace::Code;

std::string read_tensor(const InitialWeights& weights, const std::string& name) {
  const TensorEntry& entry = *weights.find(name);
  std::string out(entry.end - entry.begin, '\0');
  weights.read(name, 0, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(InitialWeights, AreRequiredByNameDtypeAndShape) {
  ScratchFolder folder;
  SafetensorsWriter writer(folder.path(), {{.name = "b", .dtype = "F32", .shape = {1, 2}}});
  writer.append(std::vector<std::byte>(8));
  writer.finish();
  for (const std::string& path : {folder.path(), folder / "model.safetensors"}) {
    const InitialWeights weights = open_initial_weights(path);
    require(weights, "b", "F32", {1, 2});
    expect_error(
        [&] {
          require(weights, "b", "BF16", {1, 2});
        },
        Code::kInvalidArgument, {"'b' is F32 [1, 2]", "needs BF16 [1, 2]"});
    expect_error([&] { require(weights, "c", "BF16", {3}); }, Code::kInvalidArgument,
                 {"no tensor 'c'", "BF16 [3]"});
  }
  expect_error([&] { open_initial_weights(folder / "none"); }, Code::kNotFound,
               {"ENOENT", "--init"});
}

TEST(InitialWeights, AreReadFromTheFilesOfAnIndex) {
  ScratchFolder folder;
  for (const std::string name : {"a", "b"}) {
    SafetensorsWriter writer(folder.path(), {{.name = name, .dtype = "F32", .shape = {2}}}, name);
    const std::string values = name + "234567@";
    writer.append(std::as_bytes(std::span(values)));
    writer.finish();
  }
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "a", "b": "b"}})");
  const InitialWeights weights = open_initial_weights(folder.path());
  require(weights, "b", "F32", {2});
  EXPECT_EQ(read_tensor(weights, "a"), "a234567@");
  EXPECT_EQ(read_tensor(weights, "b"), "b234567@");
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "b"}})");
  expect_error([&] { open_initial_weights(folder.path()); }, Code::kInvalidArgument,
               {"--init of ", "b has no tensor 'a'"});
}

std::vector<TensorEntry> two_tensors() {
  return {{.name = "h.0.up.weight", .dtype = "BF16", .shape = {3, 2}},
          {.name = "embed", .dtype = "F32", .shape = {2}}};
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  ScratchFolder folder;
  const std::string first = "abcdefghijkl";
  const std::string second = "ABCDEFGH";
  {
    SafetensorsWriter writer(folder.path(), two_tensors());
    writer.append(std::as_bytes(std::span(first).first(5)));
    writer.append(std::as_bytes(std::span(first).subspan(5)));
    writer.append(std::as_bytes(std::span(second)));
    writer.finish();
  }
  EXPECT_EQ(folder.entries(), 1u) << "the temporary file is gone";
  const auto reader = open_initial_weights(folder.path());
  require(reader, "h.0.up.weight", "BF16", {3, 2});
  EXPECT_EQ(read_tensor(reader, "h.0.up.weight"), first);
  EXPECT_EQ(read_tensor(reader, "embed"), second);
  const std::string file = ScratchFolder::read(folder / "model.safetensors");
  EXPECT_EQ(file.substr(0, 8), std::string("\xf8\x0f\0\0\0\0\0\0", 8));
  EXPECT_TRUE(file.substr(8).starts_with(
      R"({"__metadata__":{"format":"pt"},"h.0.up.weight":{"dtype":"BF16","shape":[3,2],)"
      R"("data_offsets":[0,12]},"embed":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}} )"));
  EXPECT_EQ(file.substr(4096), first + second);
}

TEST(SafetensorsWriter, WritesAHeaderOfManyTensorsThatIsReadBack) {
  std::vector<TensorEntry> tensors(50'000);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = "h." + std::to_string(i);
    tensors[i].dtype = "BF16";
    tensors[i].shape = {3};
  }
  std::uint64_t data_bytes = 0;
  const std::string written = header_of(tensors, data_bytes);
  EXPECT_EQ(data_bytes, 50'000u * 6);
  EXPECT_EQ(written.size() % 4096, 0u);
  using namespace headrace::checkpoint;
  const auto length = std::as_bytes(std::span(written)).first<kLengthBytes>();
  EXPECT_EQ(header_length(length), written.size() - kLengthBytes);
  const TensorsByName read =
      parse_header(std::string_view(written).substr(kLengthBytes), DataOffsets::kWanted);
  check_data(read, data_bytes);
  EXPECT_EQ(read.at("h.49999").begin, 49'999u * 6);
}

TEST(SafetensorsWriter, WritesAnEmptyList) {
  ScratchFolder folder;
  SafetensorsWriter(folder.path(), {}).finish();
  EXPECT_TRUE(open_initial_weights(folder.path()).names().empty());
}

TEST(SafetensorsWriter, LeavesTheOldFileUntilTheNewOneIsWhole) {
  ScratchFolder folder;
  folder.write("model.safetensors", "old");
  {
    SafetensorsWriter writer(folder.path(), two_tensors());
    writer.append(std::as_bytes(std::span("abc")));
    expect_error([&] { writer.finish(); }, Code::kWrongState, {"its header promises"});
  }
  EXPECT_EQ(folder.entries(), 1u);
  EXPECT_EQ(ScratchFolder::read(folder / "model.safetensors"), "old");
}

TEST(SafetensorsWriter, RemovesWhatAKilledProcessLeftAndNothingElse) {
  ScratchFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    SafetensorsWriter writer(folder.path(), two_tensors());
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_GT(child, 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_EQ(folder.entries(), 1u);
  folder.write(".model.safetensors.bak", "somebody's");
  SafetensorsWriter living(folder.path(), {}, "first");
  EXPECT_EQ(folder.entries(), 2u);  // the dead one's is gone
  SafetensorsWriter(folder.path(), {}).finish();
  living.finish();
  EXPECT_EQ(folder.entries(), 3u);
  EXPECT_TRUE(open_initial_weights(folder / "first").names().empty());
  EXPECT_TRUE(open_initial_weights(folder.path()).names().empty());
  EXPECT_EQ(ScratchFolder::read(folder / ".model.safetensors.bak"), "somebody's");
}

TEST(SafetensorsWriter, RefusesAFolderThatIsNotThere) {
  ScratchFolder folder;
  expect_error([&] { SafetensorsWriter(folder / "none", two_tensors()); }, Code::kIo,
               {"ENOENT", "--save"});
}
TEST(SafetensorsWriter, TellsOfTheLimitOnFilesAndLeavesNothing) {
  // A process of its own, since limit and signal are the process's.
  const auto child = [] {
    const ScratchFolder folder;
    headrace::tools::install_signal_handlers();
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 5000;  // less than header and data
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string said;
    try {
      SafetensorsWriter writer(folder.path(), {{.name = "a", .dtype = "U8", .shape = {5000}}},
                               "model.safetensors");
      writer.append(std::vector<std::byte>(5000));
    } catch (const headrace::Error& error) {
      said = error.what();
    }
    const bool told = said.find("after 5000 of 9096 bytes: EFBIG") != std::string::npos &&
                      said.find("ulimit -f") != std::string::npos;
    std::fprintf(stderr, "%s\n", said.c_str());
    const bool empty = std::filesystem::is_empty(folder.path());
    std::filesystem::remove_all(folder.path());
    std::_Exit(told && empty ? 42 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(42), "");
}
}  // namespace
}  // namespace train_gpt
