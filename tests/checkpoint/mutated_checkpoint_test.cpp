// SPDX-License-Identifier: Apache-2.0
// mutated_checkpoint_test: manifests and headers of safetensors files with random damage, also with
// a checksum that fits it. A checkpoint is refused, or every byte in it is the one that was saved;
// never a crash.
//
// HEADRACE_MUTATIONS: how many.
// HEADRACE_MUTATION_SEED: where the seeds begin.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "base/whole_transfers.hpp"
#include "checkpoint/training.hpp"
#include "checkpoint/verified_files.hpp"

namespace headrace::checkpoint {
namespace {
namespace fs = std::filesystem;
using Random = std::mt19937_64;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}
std::string bytes_in(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
// In place: a file that is truncated to nothing first would be written to the drive each time.
void put(const std::string& path, const std::string& bytes) {
  const base::UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(base::write_at(file.get(), 0, std::as_bytes(std::span(bytes))).error, 0);
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes.size())), 0);
}

// One to three changes: of bits, of digits and marks of JSON, of length, or a part moved elsewhere.
std::string mutated(std::string bytes, Random& random) {
  const auto below = [&](std::uint64_t end) { return end == 0 ? 0 : random() % end; };
  for (std::uint64_t left = 1 + below(3); left > 0 && !bytes.empty(); --left) {
    const std::size_t at = below(bytes.size()), count = 1 + below(24);
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = "0123456789{}[]\",:-.eE \0\xff"[below(24)];
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
        bytes.insert(at, std::string(1 + below(20), "0149["[below(5)]));
        break;
    }
  }
  return bytes;
}

class MutatedCheckpointTest : public ::testing::Test {
 protected:
  MutatedCheckpointTest() : folder_(directory_.string() + "/a") {
    testing_checkpoints::Training run({.width = 30});
    run.train(1);
    save_checkpoint(run.engine(), folder_);
    whole_ = values();
  }
  std::string path(const std::string& file) const { return folder_ + "/" + file; }
  // All that a load takes out of the folder; "" if it is refused.
  std::string values() const {
    try {
      VerifiedFiles files(folder_, read_manifest(folder_));
      std::string all = files.manifest().rule + " " + files.manifest().moments + "\n";
      for (std::uint32_t t = 0; t < files.layout().tensors.size(); ++t) {
        const PlacedTensor& tensor = files.layout().tensors[t];
        const SavedParameter& parameter = files.manifest().parameters[tensor.parameter];
        std::string bytes(tensor.size_bytes, '\0');
        files.read(t, 0, std::as_writable_bytes(std::span(bytes)));
        all += tensor_name(tensor.kept, parameter.name) + parameter.dtype + bytes;
        for (const std::int64_t size : parameter.shape) all += " " + std::to_string(size);
      }
      return all;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(folder_), std::string::npos) << error.what();
      return {};
    }
  }
  template <class Mutate>
  void run(const std::string& file, const Mutate& mutate) {
    const std::uint64_t wanted = from_environment("HEADRACE_MUTATIONS", 4000) / 4,
                        first = from_environment("HEADRACE_MUTATION_SEED", 1);
    const std::string kept = bytes_in(path(file));
    std::uint64_t refused = 0;
    for (std::uint64_t seed = first; seed < first + wanted; ++seed) {
      SCOPED_TRACE("HEADRACE_MUTATION_SEED=" + std::to_string(seed));
      Random random(seed);
      ASSERT_NO_FATAL_FAILURE(refused += mutate(kept, random) ? 1 : 0);
    }
    put(path(file), kept);
    EXPECT_GT(refused, wanted / 2);
    std::cout << wanted << " of " << file << " from seed " << first << ", " << refused
              << " refused\n";
  }
  // Whether it was refused; else it has to be as it was.
  bool refused_or_whole() const {
    const std::string found = values();
    EXPECT_TRUE(found.empty() || found == whole_);
    return found.empty();
  }

  testing::TemporaryDirectory directory_;
  const std::string folder_;
  std::string whole_;
};

TEST_F(MutatedCheckpointTest, ManifestsAreRefused) {
  run(kManifestName, [&](const std::string& kept, Random& random) {
    put(path(kManifestName), mutated(kept, random));
    return refused_or_whole();
  });
}

// As someone writes it who knows the format: what is wrong is found further on, or nothing is.
TEST_F(MutatedCheckpointTest, ManifestsWithAFittingChecksumHarmNothing) {
  run(kManifestName, [&](const std::string& kept, Random& random) {
    const std::string line = mutated(kept.substr(0, kept.find('\n')), random);
    put(path(kManifestName), line + "\n" + checksum_of(line) + "\n");
    return values().empty();
  });
}

TEST_F(MutatedCheckpointTest, HeadersAreRefused) {
  for (const char* const file : {"model.safetensors", "optimizer.safetensors"}) {
    run(file, [&](const std::string& kept, Random& random) {
      constexpr std::size_t kHeaderBytes = 4096;
      const bool whole_file = random() % 4 == 0;
      put(path(file),
          whole_file ? mutated(kept, random)
                     : mutated(kept.substr(0, kHeaderBytes), random) + kept.substr(kHeaderBytes));
      return refused_or_whole();
    });
  }
}
}  // namespace
}  // namespace headrace::checkpoint
