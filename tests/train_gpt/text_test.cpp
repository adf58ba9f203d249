// SPDX-License-Identifier: Apache-2.0
// Finding and reading text.
#include "text.hpp"

#include <unistd.h>

#include <cmath>

#include "scratch_folder.hpp"

namespace train_gpt {
namespace {
using headrace::Code;

std::string window(const Text& text, std::uint64_t offset, std::size_t size) {
  std::string out(size, '\0');
  text.read(offset, std::span(reinterpret_cast<std::uint8_t*>(out.data()), size));
  return out;
}

TEST(Text, LaysAFoldersFilesEndToEndInOrderOfPaths) {
  ScratchFolder folder;
  folder.write("b.txt", "BBB");
  folder.write("a/z.py", "zz");
  folder.write("a.txt", "AAAA");
  const Text text = Text::open(folder.path());
  EXPECT_EQ(text.size_bytes(), 9u);
  EXPECT_EQ(window(text, 0, 9), "AAAAzzBBB") << "'.' sorts before '/'";
}

TEST(Text, ReadsAnyWindowAcrossFiles) {
  ScratchFolder folder;
  std::string whole;
  for (int i = 0; i < 20; ++i) {
    const std::string part(static_cast<std::size_t>(1 + i * 7 % 5), static_cast<char>('a' + i));
    folder.write("f" + std::to_string(100 + i), part);
    whole += part;
  }
  const Text text = Text::open(folder.path());
  ASSERT_EQ(text.size_bytes(), whole.size());
  for (std::size_t begin = 0; begin <= whole.size(); ++begin) {
    for (std::size_t size = 0; begin + size <= whole.size(); ++size) {
      ASSERT_EQ(window(text, begin, size), whole.substr(begin, size));
    }
  }
  expect_error([&] { window(text, whole.size(), 1); }, Code::kInvalidArgument, {});
}

TEST(Text, PassesOverBinaryHiddenEmptyAndLinkedFiles) {
  ScratchFolder folder;
  folder.write("keep.txt", "keep");
  folder.write("binary", std::string_view("a\0b", 3));
  folder.write(".hidden", "hidden");
  folder.write("empty.txt", "");
  folder.write("__pycache__/x.py", "cached");
  ASSERT_EQ(::symlink((folder / "keep.txt").c_str(), (folder / "link.txt").c_str()), 0);
  ASSERT_EQ(::symlink(folder.path().c_str(), (folder / "loop").c_str()), 0);
  const Text text = Text::open(folder.path());
  EXPECT_EQ(text.file_count(), 1u);
  EXPECT_EQ(window(text, 0, 4), "keep");
}

TEST(Text, RefusesWhatCannotBeTrainedOn) {
  ScratchFolder folder;
  expect_error([&] { Text::open(folder / "none"); }, Code::kNotFound, {"none", "ENOENT", "--text"});
  expect_error([&] { Text::open(folder.write("empty", "")); }, Code::kInvalidArgument,
               {"empty", "0 bytes", "--text"});
  std::filesystem::create_directory(folder / "bare");
  expect_error([&] { Text::open(folder / "bare"); }, Code::kInvalidArgument,
               {"no text file in it", "--text"});
  expect_error([&] { Text::open("/dev/zero"); }, Code::kInvalidArgument, {"/dev/zero", "neither"});
}

TEST(Text, NamesTheFileThatBecameShorter) {
  ScratchFolder folder;
  const std::string path = folder.write("text", "0123456789");
  const Text text = Text::open(path);
  std::filesystem::resize_file(path, 4);
  expect_error([&] { window(text, 0, 10); }, Code::kIo, {path, "became shorter"});
}

TEST(Text, FindsTheEntropyOfSingleBytes) {
  ScratchFolder folder;
  EXPECT_EQ(Text::open(folder.write("same", "aaaa")).unigram_entropy_nats(), 0);
  EXPECT_NEAR(Text::open(folder.write("four", "abcdabcd")).unigram_entropy_nats(), std::log(4.0),
              1e-12);
  EXPECT_NEAR(Text::open(folder.write("uneven", "aaab")).unigram_entropy_nats(),
              -0.75 * std::log(0.75) - 0.25 * std::log(0.25), 1e-12);
}

TEST(Text, CountsEveryByteOfATextLongerThanOneRead) {
  ScratchFolder folder;
  const std::string text =
      std::string(300'000, 'a') + std::string(300'000, 'b') + std::string(600'000, 'c');
  EXPECT_NEAR(Text::open(folder.write("long", text)).unigram_entropy_nats(), 1.5 * std::log(2.0),
              1e-12);
}

TEST(PythonLibraryFolder, IsThatOfTheFirstPythonThatHasOne) {
  ScratchFolder folder;
  folder.write("bare/bin/python3.9", "");
  folder.write("whole/bin/python3.11", "");
  folder.write("whole/lib/python3.11/os.py", "import sys");
  std::filesystem::create_symlink("python3.9", folder / "bare/bin/python3");
  std::filesystem::create_symlink("python3.11", folder / "whole/bin/python3");
  EXPECT_EQ(
      python_library_folder("/nowhere::" + (folder / "bare/bin") + ":" + (folder / "whole/bin")),
      std::filesystem::canonical(folder / "whole/lib/python3.11").string());
  EXPECT_EQ(python_library_folder("/nowhere"), "");
}
}  // namespace
}  // namespace train_gpt
