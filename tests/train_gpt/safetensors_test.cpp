// SPDX-License-Identifier: Apache-2.0
// Writing model.safetensors.
#include "safetensors.hpp"

#include <sys/resource.h>

#include "program/signals.hpp"
#include "scratch_folder.hpp"

namespace train_gpt {
namespace {
using headrace::Code;

std::vector<TensorEntry> two_tensors() {
  return {{.name = "h.0.up.weight", .dtype = "BF16", .shape = {3, 2}},
          {.name = "embed", .dtype = "F32", .shape = {2}}};
}

TEST(SafetensorsWriter, WritesHeaderAndTensorsInTheirOrder) {
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
  const std::string file = ScratchFolder::read(folder / "model.safetensors");
  EXPECT_EQ(file.substr(0, 8), std::string("\xf8\x0f\0\0\0\0\0\0", 8));
  EXPECT_TRUE(file.substr(8).starts_with(
      R"({"__metadata__":{"format":"pt"},"h.0.up.weight":{"dtype":"BF16","shape":[3,2],)"
      R"("data_offsets":[0,12]},"embed":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}} )"));
  EXPECT_EQ(file.substr(4096), first + second);
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
      SafetensorsWriter writer(folder.path(), {{.name = "a", .dtype = "BF16", .shape = {2500}}},
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
