// SPDX-License-Identifier: Apache-2.0
// safetensors_file_test: files of other programs, sound and damaged.
#include "checkpoint/safetensors_file.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "headrace/error.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::checkpoint::safetensors_file_test {
namespace {
class Folder {
 public:
  std::string operator/(const std::string& name) const { return path() + "/" + name; }
  std::string path() const { return folder_.string(); }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::filesystem::remove(*this / name);  // a new file: ext4 flushes one that is truncated
    std::ofstream(*this / name, std::ios::binary) << bytes;
    return *this / name;
  }

 private:
  testing::TemporaryDirectory folder_;
};

SafetensorsFile open(const std::string& path) {
  return SafetensorsFile::open(path, "Name another file.");
}

void expect_error(const std::function<void()>& call, Code code,
                  std::initializer_list<std::string_view> words) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string_view word : words)
      EXPECT_NE(std::string_view(error.what()).find(word), std::string_view::npos)
          << error.what() << "\nlacks " << word;
  }
}

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

std::string read_tensor(const SafetensorsFile& reader, const std::string& name) {
  const TensorEntry& entry = reader.tensors().at(name);
  std::string out(entry.end - entry.begin, '\0');
  reader.read(name, 0, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(SafetensorsFile, ReadsAKnownFile) {
  Folder folder;
  const auto reader = open(folder.write("m", good_file()));
  ASSERT_EQ(reader.tensors().size(), 2u);
  EXPECT_EQ(reader.tensors().at("b").shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(read_tensor(reader, "a"), "\x07\xff");
  EXPECT_EQ(read_tensor(reader, "b"), std::string("\0\0\x80\x3f\0\0\0\x40", 8));
}

TEST(SafetensorsFile, ReadsPartOfATensor) {
  Folder folder;
  const auto reader = open(folder.write("m", good_file()));
  std::string second(4, '\1');
  reader.read("b", 4, std::as_writable_bytes(std::span(second)));
  EXPECT_EQ(second, std::string("\0\0\0\x40", 4));
  expect_error([&] { reader.read("b", 8, std::as_writable_bytes(std::span(second))); },
               Code::kInvalidArgument, {"'b' is not in", "with 12 bytes"});
  const auto infinite =
      open(folder.write("n", with_length(kHeader, std::string_view("\0\0\0\0\0\0\x80\x7f..", 10))));
  expect_error([&] { infinite.read("b", 4, std::as_writable_bytes(std::span(second))); },
               Code::kInvalidArgument, {"element 1 is infinite"});
}

TEST(SafetensorsFile, RefusesValuesThatAreNotFiniteByName) {
  const auto refused = [](const std::string& dtype, std::string_view bytes,
                          std::string_view which) {
    Folder folder;
    const std::string header = R"({"w":{"dtype":")" + dtype + R"(","shape":[)" +
                               std::to_string(bytes.size() / dtype_size_bytes(dtype)) +
                               R"(],"data_offsets":[0,)" + std::to_string(bytes.size()) + "]}}";
    const auto reader = open(folder.write("m", with_length(header, bytes)));
    expect_error([&] { read_tensor(reader, "w"); }, Code::kInvalidArgument,
                 {"'w' has values that are not finite", which, "another file"});
  };
  refused("BF16", std::string_view("\x80\x3f\xc0\x7f", 4), "element 1 is not a number");
  refused("F16", std::string_view("\0\x7c\0\x3c", 4), "element 0 is infinite");
  refused("F32", std::string_view("\0\0\x80\x3f\1\0\x80\xff", 8), "element 1 is not a number");
}

TEST(SafetensorsFile, RefusesEveryTruncation) {
  Folder folder;
  const std::string whole = good_file();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string path = folder.write("m", whole.substr(0, size));
    expect_error([&] { open(path); }, Code::kInvalidArgument, {"not a sound safetensors file"});
  }
  expect_error([&] { open(folder / "none"); }, Code::kNotFound, {"ENOENT", "another file"});
  expect_error([&] { open(folder.path()); }, Code::kInvalidArgument, {"no regular file"});
}

TEST(SafetensorsFile, RefusesAHeaderLengthThatCannotBe) {
  Folder folder;
  for (const char byte : {'\x7f', '\xff'}) {
    std::string bytes = good_file();
    bytes[7] = byte;
    expect_error([&] { open(folder.write("m", bytes)); }, Code::kInvalidArgument, {"header"});
  }
}

// Whatever the bytes, the outcome is a file whose tensors can all be read, or an error by name.
TEST(SafetensorsFile, SurvivesDamagedFiles) {
  Folder folder;
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
      const auto reader = open(folder.write("m", bytes));
      for (const auto& [name, entry] : reader.tensors()) read_tensor(reader, name);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}
}  // namespace
}  // namespace headrace::checkpoint::safetensors_file_test
