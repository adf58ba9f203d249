// SPDX-License-Identifier: Apache-2.0
// Whole files: corpus/accepted opens with "// warnings: N", corpus/refused with one "//
// LINE:COLUMN: text" per fault that must be reported, in that order and no others. And 100,000
// mutations of the accepted ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "headrace/error.hpp"
#include "headrace/settings.hpp"
#include "reading_fault.hpp"
#include "schema_fault.hpp"
#include "settings/json_text.hpp"
#include "settings/key_table.hpp"
#include "settings_reference/reference.hpp"
#include "structure_mutator.hpp"

namespace headrace {
namespace {
using nlohmann::json;
namespace fs = std::filesystem;

struct File {
  std::string name;
  std::string path;
  std::string text;
};

std::vector<File> read_corpus(const char* folder) {
  std::vector<File> files;
  for (const auto& entry : fs::directory_iterator(fs::path(HEADRACE_SETTINGS_CORPUS) / folder)) {
    std::ifstream in(entry.path());
    std::stringstream text;
    text << in.rdbuf();
    files.push_back({entry.path().stem().string(), entry.path().string(), text.str()});
  }
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.name < b.name; });
  return files;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(SettingsCorpus, IsThere) {
  EXPECT_GE(read_corpus("accepted").size(), 25u);
  EXPECT_GE(read_corpus("refused").size(), 25u);
}

TEST(SettingsCorpus, AcceptsWithExactlyTheWarningsThatAreDue) {
  for (const File& file : read_corpus("accepted")) {
    SCOPED_TRACE(file.name);
    try {
      const ReadOptions leave_open{.leave_auto_open = true};
      const Settings settings = Settings::from_file(file.path, leave_open);
      std::string all;
      for (const std::string& warning : settings.warnings) {
        EXPECT_EQ(warning.rfind(file.path + ":", 0), 0u) << warning;
        EXPECT_EQ(warning.find('\n'), std::string::npos) << warning;
        all += warning + "\n";
      }
      EXPECT_EQ("// warnings: " + std::to_string(settings.warnings.size()), lines_of(file.text)[0])
          << all;
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(SettingsCorpus, RefusesWithEveryFaultAtItsLineAndColumn) {
  for (const File& file : read_corpus("refused")) {
    SCOPED_TRACE(file.name);
    std::vector<std::string> wanted;
    for (const std::string& line : lines_of(file.text)) {
      if (line.rfind("// ", 0) != 0) break;
      wanted.push_back(file.path + ":" + line.substr(3));
    }
    try {
      Settings::from_file(file.path);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kSettings);
      const auto got = lines_of(error.what());
      EXPECT_EQ(got.size(), wanted.size()) << error.what();
      for (std::size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
        EXPECT_EQ(got[i].substr(0, wanted[i].size()), wanted[i]);
      }
    }
  }
}

// ---- mutations

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

  std::string mutate(std::string text, const std::string& other) {
    for (std::size_t rounds = 1 + below(3); rounds > 0 && !text.empty(); --rounds)
      once(text, other);
    return text;
  }

  // Puts a key that nothing knows into some object of the text. False if there is none.
  bool add_unknown_key(std::string& text) {
    std::vector<std::size_t> braces;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '{') braces.push_back(i);
    }
    if (braces.empty()) return false;
    std::string name;
    for (std::size_t i = 1 + below(12); i > 0; --i) name += static_cast<char>('a' + below(26));
    text.insert(braces[below(braces.size())] + 1, "\"" + name + "\": 1, ");
    return true;
  }

 private:
  void once(std::string& text, const std::string& other) {
    static constexpr std::string_view kBytes =
        "{}[]\",:0123456789-+.eE/*\\ \n_atrufnls\t\xef\xff\x01";
    const std::size_t at = below(text.size());
    const std::size_t size = 1 + below(std::min<std::size_t>(24, text.size() - at));
    switch (below(7)) {
      case 0:
        text[at] = kBytes[below(kBytes.size())];
        break;
      case 1:
        text.erase(at, size);
        break;
      case 2:
        text.insert(below(text.size()), text.substr(at, size));
        break;
      case 3:
        text.insert(at, 1, kBytes[below(kBytes.size())]);
        break;
      case 4:
        text[at] = static_cast<char>(random_());
        break;
      case 5:
        text.resize(at);
        break;
      default:
        text.insert(at, other.substr(below(other.size()), 1 + below(40)));
        break;
    }
  }

  std::mt19937_64 random_;
};

void check_one(const std::string& text, std::size_t& accepted) {
  const settings::ReadingFault reading = settings::fault_of_reading(text);
  accepted += reading.accepted;
  ASSERT_EQ(reading.fault, "") << text;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kMutations = 1000;
#else
constexpr int kMutations = 20000;
#endif

TEST(SettingsMutations, NeverCrashAndNeverAcceptAnUnknownKeySilently) {
  const auto files = read_corpus("accepted");
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Mutator mutator(seed);
  std::size_t accepted = 0;
  for (int i = 0; i < kMutations; ++i) {
    const std::string& text = files[mutator.below(files.size())].text;
    const std::string& other = files[mutator.below(files.size())].text;
    ASSERT_NO_FATAL_FAILURE(check_one(mutator.mutate(text, other), accepted)) << "seed " << seed;
  }
  std::printf("%zu of %d accepted\n", accepted, kMutations);
  EXPECT_GT(accepted, static_cast<std::size_t>(kMutations) / 100);
  EXPECT_LT(accepted, static_cast<std::size_t>(kMutations) * 9 / 10);
}

// What is accepted holds what it says, and stays itself; the schema rejects none of it.
TEST(SettingsMutations, OfTheStructureAreAcceptedOnlyAsLegalSettings) {
  std::vector<json> documents;
  for (const File& file : read_corpus("accepted"))
    documents.push_back(settings::parse_document(file.text, settings::Syntax::kRelaxed).value);
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  settings::StructureMutator mutator(seed);
  std::size_t accepted = 0;
  for (int i = 0; i < 4 * kMutations; ++i) {
    const std::string text = mutator.mutate(documents[mutator.below(documents.size())]).dump();
    ASSERT_NO_FATAL_FAILURE(check_one(text, accepted)) << "seed " << seed;
  }
  std::printf("%zu of %d accepted\n", accepted, 4 * kMutations);
  EXPECT_GT(accepted, static_cast<std::size_t>(kMutations) / 10);
}

TEST(SettingsSchema, RejectsWhatASchemaCan) {
  const json schema = json::parse(settings::settings_schema());
  for (const char* text :
       {R"({"train_batch_sise": 8})", R"({"headrace": {"update_slots": 0}})",
        R"({"zero_optimization": {"stage": 4}})", R"({"headrace": {"io_queue": "uringg"}})",
        R"({"headrace": {"durable": 0}})", R"({"headrace": {"durable": "steps"}})",
        R"({"optimizer": {"params": {"betas": [0.9]}}})", R"({"bf16": {"enabled": 1}})"}) {
    EXPECT_NE(schema_fault(schema, json::parse(text)), "") << text;
    EXPECT_THROW(Settings::from_json(text), Error) << text;
  }
}

TEST(SettingsMutations, AStrictReaderRefusesAnUnknownKeyWhereverItStands) {
  const auto files = read_corpus("accepted");
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Mutator mutator(seed);
  int refused = 0;
  for (int i = 0; i < kMutations / 10; ++i) {
    std::string text = files[mutator.below(files.size())].text;
    if (!mutator.add_unknown_key(text)) continue;
    // It may have landed where nothing looks (a note, a section of DeepSpeed's) or be a word that
    // is known.
    const settings::Document document = settings::parse_document(text, settings::Syntax::kRelaxed);
    const std::string unknown =
        document.faults.empty() ? settings::unknown_key_in(document.value, "") : std::string();
    if (unknown.empty()) continue;
    ASSERT_THROW(Settings::from_json(text, "f", ReadOptions{.strict = true}), Error)
        << "seed " << seed << "\n"
        << text;
    ++refused;
  }
  EXPECT_GT(refused, kMutations / 20);
}
}  // namespace
}  // namespace headrace
