// SPDX-License-Identifier: Apache-2.0
// zip_test: zip files as torch.save() writes them, and ones that are cut, damaged or hostile.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "pickle/crc32.hpp"
#include "pickle/fault.hpp"
#include "pickle/zip_reader.hpp"
#include "pickle/zip_writer.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::tools::pickle::zip_test {
namespace {
std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class ZipTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_.string() + "/a.zip"; }
  void write_parts(const std::vector<std::pair<std::string, std::string>>& parts) const {
    std::vector<ZipPart> sizes;
    for (const auto& [name, text] : parts) sizes.push_back({name, text.size()});
    ZipWriter out(path(), sizes, checkpoint::kSaving);
    for (std::size_t i = 0; i < parts.size(); ++i) out.write(i, bytes_of(parts[i].second));
    out.finish();
  }
  std::string file() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }
  std::string error_of(const std::string& name) const {
    try {
      const ZipReader zip(path());
      zip.verify(name);
    } catch (const Fault& fault) {
      return fault.what();
    }
    return "none";
  }
  void expect_error(const std::string& part) const {
    EXPECT_NE(error_of("a/x").find(part), std::string::npos) << error_of("a/x");
    EXPECT_TRUE(error_of("a/x").starts_with(path())) << error_of("a/x");
  }
  testing::TemporaryDirectory directory_;
};

TEST(Crc32, IsTheOneOfZipFiles) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926u);
  EXPECT_EQ(crc32({}), 0u);
  const std::string text = "The quick brown fox jumps over the lazy dog";
  EXPECT_EQ(crc32(bytes_of(text)), 0x414fa339u);
  for (std::size_t first = 0; first <= text.size(); ++first)
    EXPECT_EQ(crc32(bytes_of(text.substr(first)), crc32(bytes_of(text.substr(0, first)))),
              0x414fa339u);
}

TEST_F(ZipTest, ReadsWhatItWritesFromMultiplesOf64) {
  write_parts({{"a/data.pkl", "pickle"}, {"a/x", std::string(3'000'001, 'x')}, {"a/none", ""}});
  const ZipReader zip(path());
  ASSERT_EQ(zip.entries().size(), 3u);
  for (const auto& [name, entry] : zip.entries()) {
    EXPECT_EQ(entry.at % 64, 0u) << name;
    zip.verify(name);
  }
  std::string part(4, ' ');
  zip.read(zip.entry("a/data.pkl"), 2, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "ckle");
  EXPECT_THROW(zip.read(zip.entry("a/data.pkl"), 3, std::as_writable_bytes(std::span(part))),
               Fault);
  EXPECT_THROW((void)zip.entry("a/other"), Fault);
}

TEST_F(ZipTest, CountsEntriesBeyond16Bits) {
  std::vector<std::pair<std::string, std::string>> parts;
  for (int i = 0; i < 66'000; ++i) parts.emplace_back("a/" + std::to_string(i), "");
  parts.emplace_back("a/x", "last");
  write_parts(parts);
  const ZipReader zip(path());
  EXPECT_EQ(zip.entries().size(), 66'001u);
  zip.verify("a/x");
}

// An entry as zip64 has it: 64-bit sizes and place in an extra field of the directory.
TEST_F(ZipTest, ReadsSizesOf64Bits) {
  write_parts({{"a/x", "value"}});
  std::string bytes = file();
  const std::size_t directory = bytes.find("PK\x01\x02"), end = bytes.find("PK\x05\x06");
  const auto number = [](std::uint64_t value, std::size_t size) {
    std::string text;
    for (std::size_t i = 0; i < size; ++i) text += static_cast<char>(value >> (8 * i));
    return text;
  };
  const std::string extra = number(0x7777, 2) + number(3, 2) + "abc" + number(1, 2) +
                            number(24, 2) + number(5, 8) + number(5, 8) + number(0, 8);
  std::string entry = bytes.substr(directory, end - directory);
  entry.replace(20, 8, std::string(8, '\xff'));
  entry.replace(30, 2, number(extra.size(), 2));
  entry.replace(42, 4, std::string(4, '\xff'));
  entry += extra;
  const std::size_t end64 = directory + entry.size();
  std::string longer = "PK\x06\x06" + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) +
                       number(1, 8) + number(1, 8) + number(entry.size(), 8) + number(directory, 8);
  longer += "PK\x06\x07" + number(0, 4) + number(end64, 8) + number(1, 4);
  const std::string last = "PK\x05\x06" + number(0, 4) + std::string(12, '\xff') + number(0, 2);
  put(bytes.substr(0, directory) + entry + longer + last);
  EXPECT_EQ(error_of("a/x"), "none");
  put(bytes.substr(0, directory) + entry + last);
  expect_error("its zip64 end is missing");
  longer.replace(0, 4, "PKPK");
  put(bytes.substr(0, directory) + entry + longer + last);
  expect_error("its zip64 end is damaged");
}

TEST_F(ZipTest, RefusesEveryTruncation) {
  write_parts({{"a/data.pkl", "pickle"}, {"a/x", "0123456789"}});
  const std::string whole = file();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put(whole.substr(0, size));
    ASSERT_NE(error_of("a/x"), "none") << size;
  }
  put(whole + "x");  // a comment that its end does not have
  expect_error("it is no zip file, or cut off");
}

TEST_F(ZipTest, NamesWhatIsDamaged) {
  write_parts({{"a/x", "0123456789"}, {"a/y", "more"}});
  const std::string whole = file();
  const std::size_t directory = whole.find("PK\x01\x02");
  const auto with = [&](std::size_t at, const std::string& bytes) {
    std::string changed = whole;
    changed.replace(at, bytes.size(), bytes);
    put(changed);
  };
  with(64, "x");
  expect_error("the checksum of its entry 'a/x' differs");
  with(0, "x");
  expect_error("its entry 'a/x' is not where it should be");
  with(30, "b");
  expect_error("its entry 'a/x' is not where it should be");
  with(directory, "x");
  expect_error("its directory is damaged");
  with(directory + 10, "\x08");
  expect_error("its entry 'a/x' is compressed or encrypted");
  with(directory + 8, "\x01");
  expect_error("its entry 'a/x' is compressed or encrypted");
  with(directory + 20, "\x09");
  expect_error("its entry 'a/x' has two sizes");
  with(directory + 20, std::string("\x14\x00\x00\x00\x14\x00\x00\x00", 8));
  expect_error("two of its entries overlap");
  with(directory + 20, std::string("\xff\xff\x00\x00\xff\xff\x00\x00", 8));
  expect_error("its entry 'a/x' is not where it should be");
  with(directory + 46 + 3 + 46, "a/x");
  expect_error("its entry 'a/x' is not where it should be");
  with(directory + 28, "\xff\xff");
  expect_error("its directory is cut off");
  with(whole.size() - 12, "\x01");
  expect_error("its directory");
}

TEST_F(ZipTest, RefusesANameThatIsThereTwice) {
  write_parts({{"a/x", "one"}, {"a/x", "two"}});
  expect_error("it has the entry 'a/x' twice");
}
}  // namespace
}  // namespace headrace::tools::pickle::zip_test
