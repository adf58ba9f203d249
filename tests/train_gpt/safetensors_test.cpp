// SPDX-License-Identifier: Apache-2.0
// Reading and writing model.safetensors; damaged files.
#include "safetensors.hpp"

#include <sys/resource.h>

#include <random>

#include "program/signals.hpp"
#include "scratch_folder.hpp"

namespace train_gpt {
namespace {
using headrace::Code;

// A file as the format's reference writer makes it: U8 [2] and F32 [1, 2], no padding.
constexpr std::string_view kHeader = R"({"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                                     R"("a":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}})";

std::string with_length(std::string_view header, std::string_view data) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes.append(header).append(data);
}

std::string good_file() {
  return with_length(kHeader, std::string_view("\0\0\x80\x3f\0\0\0\x40\x07\xff", 10));
}

std::string read_tensor(const SafetensorsReader& reader, const std::string& name) {
  const TensorEntry& entry = reader.tensors().at(name);
  std::string out(entry.end - entry.begin, '\0');
  reader.read(name, 0, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(SafetensorsReader, ReadsAKnownFile) {
  ScratchFolder folder;
  const auto reader = SafetensorsReader::open(folder.write("m", good_file()));
  ASSERT_EQ(reader.tensors().size(), 2u);
  EXPECT_EQ(reader.tensors().at("b").shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(read_tensor(reader, "a"), "\x07\xff");
  EXPECT_EQ(read_tensor(reader, "b"), std::string("\0\0\x80\x3f\0\0\0\x40", 8));
  reader.require("b", "F32", {1, 2});
  expect_error(
      [&] {
        reader.require("b", "BF16", {1, 2});
      },
      Code::kInvalidArgument, {"'b' is F32 [1, 2]", "needs BF16 [1, 2]"});
  expect_error([&] { reader.require("c", "BF16", {3}); }, Code::kInvalidArgument,
               {"no tensor 'c'", "BF16 [3]"});
}

TEST(SafetensorsReader, ReadsPartOfATensor) {
  ScratchFolder folder;
  const auto reader = SafetensorsReader::open(folder.write("m", good_file()));
  std::string second(4, '\1');
  reader.read("b", 4, std::as_writable_bytes(std::span(second)));
  EXPECT_EQ(second, std::string("\0\0\0\x40", 4));
  expect_error([&] { reader.read("b", 8, std::as_writable_bytes(std::span(second))); },
               Code::kInvalidArgument, {"'b' is not in", "with 12 bytes"});
  const auto infinite = SafetensorsReader::open(
      folder.write("n", with_length(kHeader, std::string_view("\0\0\0\0\0\0\x80\x7f..", 10))));
  expect_error([&] { infinite.read("b", 4, std::as_writable_bytes(std::span(second))); },
               Code::kInvalidArgument, {"element 1 is infinite"});
}

TEST(SafetensorsReader, RefusesValuesThatAreNotFiniteByName) {
  const auto refused = [](const std::string& dtype, std::string_view bytes,
                          std::string_view which) {
    ScratchFolder folder;
    const std::string header =
        R"({"w":{"dtype":")" + dtype + R"(","shape":[)" +
        std::to_string(bytes.size() / headrace::tools::dtype_size_bytes(dtype)) +
        R"(],"data_offsets":[0,)" + std::to_string(bytes.size()) + "]}}";
    const auto reader = SafetensorsReader::open(folder.write("m", with_length(header, bytes)));
    expect_error([&] { read_tensor(reader, "w"); }, Code::kInvalidArgument,
                 {"'w' has values that are not finite", which, "--init"});
  };
  refused("BF16", std::string_view("\x80\x3f\xc0\x7f", 4), "element 1 is not a number");
  refused("F16", std::string_view("\0\x7c\0\x3c", 4), "element 0 is infinite");
  refused("F32", std::string_view("\0\0\x80\x3f\1\0\x80\xff", 8), "element 1 is not a number");
}

TEST(SafetensorsReader, RefusesEveryTruncation) {
  ScratchFolder folder;
  const std::string whole = good_file();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string path = folder.write("m", whole.substr(0, size));
    expect_error([&] { SafetensorsReader::open(path); }, Code::kInvalidArgument,
                 {"not a sound safetensors file"});
  }
  expect_error([&] { SafetensorsReader::open(folder / "none"); }, Code::kNotFound,
               {"ENOENT", "--init"});
  expect_error([&] { SafetensorsReader::open(folder.path()); }, Code::kInvalidArgument,
               {"no regular file"});
}

TEST(SafetensorsReader, RefusesAHeaderLengthThatCannotBe) {
  ScratchFolder folder;
  for (const char byte : {'\x7f', '\xff'}) {
    std::string bytes = good_file();
    bytes[7] = byte;
    expect_error([&] { SafetensorsReader::open(folder.write("m", bytes)); }, Code::kInvalidArgument,
                 {"header"});
  }
}

// Whatever the bytes, the outcome is a file whose tensors can all be read, or an error by name.
TEST(SafetensorsReader, SurvivesDamagedFiles) {
  ScratchFolder folder;
  const std::uint64_t seed = 20240607;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = good_file();
    for (std::uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 4);
          break;
        case 2:
          bytes.insert(at, 1 + random() % 3, "0123456789[]{}\",:"[random() % 17]);
          break;
        default:
          bytes[at] = "0123456789[]{}\",:"[random() % 17];
      }
      if (bytes.empty()) bytes = "x";
    }
    try {
      const auto reader = SafetensorsReader::open(folder.write("m", bytes));
      for (const auto& [name, entry] : reader.tensors()) read_tensor(reader, name);
    } catch (const headrace::Error& error) {
      ASSERT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
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
  const auto reader = SafetensorsReader::open(folder / "model.safetensors");
  reader.require("h.0.up.weight", "BF16", {3, 2});
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
  namespace tools = headrace::tools;
  const auto length = std::as_bytes(std::span(written)).first<tools::kLengthBytes>();
  EXPECT_EQ(tools::header_length(length), written.size() - tools::kLengthBytes);
  const tools::TensorsByName read = tools::parse_header(
      std::string_view(written).substr(tools::kLengthBytes), tools::DataOffsets::kWanted);
  tools::check_data(read, data_bytes);
  EXPECT_EQ(read.at("h.49999").begin, 49'999u * 6);
}

TEST(SafetensorsWriter, WritesAnEmptyList) {
  ScratchFolder folder;
  SafetensorsWriter(folder.path(), {}).finish();
  EXPECT_TRUE(SafetensorsReader::open(folder / "model.safetensors").tensors().empty());
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
