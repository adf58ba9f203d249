// SPDX-License-Identifier: Apache-2.0
// hostile_checkpoints_test: files of torch.save() and universal directories with random damage.
// What comes out is what was saved, or an error; never a crash, and no other values in silence.
//
// HEADRACE_MUTATIONS: how many files, a hundredth of that of directories.
// HEADRACE_MUTATION_SEED: where the seeds begin.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "checkpoint/convert.hpp"
#include "command_line/words.hpp"
#include "pickle/crc32.hpp"
#include "pickle/fault.hpp"
#include "pickle/tensor_file.hpp"
#include "support/temporary_directory.hpp"
#include "tools/universal_example.hpp"

namespace headrace::tools::hostile_checkpoints_test {
namespace {
namespace fs = std::filesystem;
using Random = std::mt19937_64;
using Entries = std::vector<std::pair<std::string, std::string>>;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}
std::string bytes_in(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

UniversalExample example() {
  UniversalExample example;
  example.parameters = {{"a.weight", "BF16", {2, 3}, {1, 2, 3, 4, 5, 6}},
                        {"b", "F32", {4}, {1, 2, 3, 4}}};
  example.frozen = {{"f", "F16", {3}, {0.5f, 2, 3}}};
  example.buffers = {"scale"};
  return example;
}

// One to four changes, of a kind that a bad disk, a cut copy or an attacker makes.
std::string mutated(std::string bytes, Random& random) {
  const auto below = [&](std::uint64_t end) { return end == 0 ? 0 : random() % end; };
  for (std::uint64_t left = 1 + below(4); left > 0 && !bytes.empty(); --left) {
    const std::size_t at = below(bytes.size()), count = 1 + below(16);
    switch (below(7)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, count);
        break;
      case 4:
        bytes.insert(at, bytes.substr(below(bytes.size()), count));
        break;
      case 5:
        bytes.replace(at, std::min(count, bytes.size() - at),
                      std::string(std::min(count, bytes.size() - at), below(2) ? '\xff' : '\0'));
        break;
      case 6:
        bytes.replace(at, std::min<std::size_t>(1, bytes.size() - at),
                      std::string(1, ".NRQbctu\x85\x81(h]}0s"[below(16)]));
        break;
    }
  }
  return bytes;
}

void add(std::string& to, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) to += static_cast<char>(value >> (8 * i));
}
// A zip file whose checksums fit, whatever its entries hold.
std::string zip_of(const Entries& entries) {
  std::string file, directory;
  for (const auto& [name, text] : entries) {
    std::string common = std::string(8, '\0');
    add(common, pickle::crc32(std::as_bytes(std::span(text))), 4);
    add(common, text.size(), 4);
    add(common, text.size(), 4);
    add(common, name.size(), 2);
    add(common, 0, 2);
    directory += "PK\x01\x02";
    add(directory, 20, 2);
    add(directory, 20, 2);
    directory += common + std::string(10, '\0');
    add(directory, file.size(), 4);
    directory += name;
    file += "PK\x03\x04";
    add(file, 20, 2);
    file += common + name + text;
  }
  std::string end = "PK\x05\x06" + std::string(4, '\0');
  add(end, entries.size(), 2);
  add(end, entries.size(), 2);
  add(end, directory.size(), 4);
  add(end, file.size(), 4);
  return file + directory + end + std::string(2, '\0');
}
Entries entries_of(const std::string& path) {
  const pickle::ZipReader zip(path);
  Entries entries;
  for (const auto& [name, entry] : zip.entries()) {
    std::string text(entry.size_bytes, '\0');
    zip.read(entry, 0, std::as_writable_bytes(std::span(text)));
    entries.emplace_back(name, text);
  }
  return entries;
}

// A file in memory, which programs open by path.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("mutated", MFD_CLOEXEC)) {}
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }
  void put(const std::string& bytes) const {
    ASSERT_EQ(::ftruncate(fd_.get(), 0), 0);
    ASSERT_EQ(::pwrite(fd_.get(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }

 private:
  base::UniqueFd fd_;
};

// All that a program can get out of a file: the shape of its values, and the tensors' bytes.
class Contents {
 public:
  explicit Contents(pickle::TensorFile& file) : file_(file) { add(file.root(), 4); }
  const std::string& text() const { return text_; }

 private:
  void add(const pickle::Value& value, int depth) {
    text_ += text_of(value) + "\n";
    if (value.is(pickle::Kind::kTensor)) add_tensor(value);
    if (depth == 0 || value.is(pickle::Kind::kCall)) return;
    for (std::size_t i = 0; i < value.items.size() && i < 100; ++i) add(*value.items[i], depth - 1);
  }
  void add_tensor(const pickle::Value& value) {
    const pickle::PickledTensor& tensor = file_.tensor(value, "a tensor");
    std::string bytes(std::min<std::uint64_t>(tensor.size_bytes(), 1 << 16), '\0');
    file_.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    text_ += bytes;
  }
  pickle::TensorFile& file_;
  std::string text_;
};
// "": refused.
std::string contents_of(const std::string& path) {
  try {
    pickle::TensorFile file(path);
    return Contents(file).text();
  } catch (const pickle::Fault& fault) {
    EXPECT_TRUE(std::string_view(fault.what()).starts_with(path)) << fault.what();
    return {};
  }
}

struct Sample {
  std::string bytes, contents;
  Entries entries;
};
std::vector<Sample> samples_in(const std::string& folder) {
  std::vector<Sample> samples;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string path = entry.path().string();
    samples.push_back({bytes_in(path), contents_of(path), entries_of(path)});
    EXPECT_FALSE(samples.back().contents.empty());
  }
  return samples;
}

TEST(HostileCheckpoints, MutatedFilesAreRefusedOrHoldWhatWasSaved) {
  const testing::TemporaryDirectory directory;
  example().write(directory.string());
  const std::vector<Sample> samples = samples_in(directory.string());
  const std::uint64_t wanted = from_environment("HEADRACE_MUTATIONS", 5000),
                      first = from_environment("HEADRACE_MUTATION_SEED", 1);
  const MemoryFile file;
  std::uint64_t refused = 0, read = 0;
  for (std::uint64_t seed = first; seed < first + wanted; ++seed) {
    SCOPED_TRACE("HEADRACE_MUTATION_SEED=" + std::to_string(seed));
    Random random(seed);
    const Sample& sample = samples[random() % samples.size()];
    ASSERT_NO_FATAL_FAILURE(file.put(mutated(sample.bytes, random)));
    const std::string contents = contents_of(file.path());
    ASSERT_TRUE(contents.empty() || contents == sample.contents);
    ++(contents.empty() ? refused : read);
    // Past the checksums, as an attacker gets: any contents will do that come out.
    Entries entries = sample.entries;
    std::string& text = entries[random() % entries.size()].second;
    text = mutated(text, random);
    ASSERT_NO_FATAL_FAILURE(file.put(zip_of(entries)));
    (void)contents_of(file.path());
  }
  EXPECT_GT(refused, 0u);
  std::cout << wanted << " files from seed " << first << ": " << refused << " refused, " << read
            << " as saved\n";
}

TEST(HostileCheckpoints, MutatedDirectoriesAreRefusedOrBecomeWhatWasSaved) {
  const testing::TemporaryDirectory directory;
  const std::string universal = directory.string() + "/u", ours = directory.string() + "/x";
  example().write(universal);
  (void)convert_checkpoint({.from = universal, .to = ours});
  const std::string model = bytes_in(ours + "/model.safetensors"),
                    optimizer = bytes_in(ours + "/optimizer.safetensors");
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(universal))
    if (entry.is_regular_file()) files[entry.path().string()] = bytes_in(entry.path());
  const std::uint64_t wanted = from_environment("HEADRACE_MUTATIONS", 5000) / 100,
                      first = from_environment("HEADRACE_MUTATION_SEED", 1);
  std::uint64_t refused = 0;
  for (std::uint64_t seed = first; seed < first + wanted; ++seed) {
    SCOPED_TRACE("HEADRACE_MUTATION_SEED=" + std::to_string(seed));
    Random random(seed);
    auto file = files.begin();
    std::advance(file, random() % files.size());
    std::ofstream(file->first, std::ios::binary) << mutated(file->second, random);
    fs::remove_all(ours);
    try {
      (void)convert_checkpoint({.from = universal, .to = ours});
      ASSERT_EQ(bytes_in(ours + "/model.safetensors"), model);
      ASSERT_EQ(bytes_in(ours + "/optimizer.safetensors"), optimizer);
    } catch (const Error& error) {
      ++refused;
      ASSERT_FALSE(fs::exists(ours) || fs::exists(ours + ".tmp"));
      ASSERT_NE(std::string(error.what()).find("nothing was converted"), std::string::npos)
          << error.what();
    }
    std::ofstream(file->first, std::ios::binary) << file->second;
  }
  EXPECT_GT(refused, 0u);
  std::cout << wanted << " directories from seed " << first << ", " << refused << " refused\n";
}
}  // namespace
}  // namespace headrace::tools::hostile_checkpoints_test
