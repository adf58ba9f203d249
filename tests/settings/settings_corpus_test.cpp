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
#include "schema_fault.hpp"
#include "settings/json_text.hpp"
#include "settings/key_table.hpp"
#include "settings/reference.hpp"

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

// The first key in `object` that the table does not hold, or "".
std::string unknown_key_in(const json& object, const std::string& section) {
  for (const auto& [name, value] : object.items()) {
    if (name.starts_with('_') || name == "$schema") continue;
    const settings::Key* key = settings::find_key(section, name);
    if (key == nullptr) return section + "." + name;
    if (key->kind != settings::Kind::kSection || !value.is_object()) continue;
    std::string inside = unknown_key_in(value, std::string(key->path));
    if (!inside.empty()) return inside;
  }
  return "";
}

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

// Accepted: the text must hold no unknown key. Refused: an error of ours with a text.
void check_one(const std::string& text, std::size_t& accepted) {
  try {
    const Settings settings = Settings::from_json(text);
    ++accepted;
    const settings::Document document = settings::parse_document(text, settings::Syntax::kRelaxed);
    ASSERT_TRUE(document.faults.empty()) << text;
    ASSERT_EQ(unknown_key_in(document.value, ""), "") << text;
    const Settings again = Settings::from_json(settings.to_json());
    ASSERT_EQ(again.to_json(), settings.to_json()) << text;
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), Code::kSettings) << text;
    const std::string refusal = error.what();
    ASSERT_EQ(refusal.rfind("settings:", 0), 0u) << refusal;
    ASSERT_FALSE(refusal.ends_with(": not JSON")) << "nothing said what is wrong:\n" << text;
  }
}

// One step of change to a whole document: a key of the table set to some value where it belongs or
// elsewhere, or taken out.
class StructureMutator {
 public:
  explicit StructureMutator(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }

  json mutate(json document) {
    for (std::size_t rounds = 1 + below(3); rounds > 0; --rounds) once(document);
    return document;
  }

 private:
  json value_for(const settings::Key& key) {
    const auto choices = settings::choices_of(key);
    switch (below(12)) {
      case 0:
        return nullptr;
      case 1:
        return "auto";
      case 2:
        return below(2) == 0;
      case 3:
        return -1;
      case 4:
        return 1e300;
      case 5:
        return json::array({0.5, 0.9});
      case 6:
        return json::object();
      case 7:
        return key.multiple * (1 + below(64));
      case 8:
        return below(100) * 0.01;
      case 9:
        return "text";
      default:
        if (!choices.empty()) return choices[below(choices.size())];
        if (!key.in_any_case.empty()) return json::parse(key.in_any_case);
        return below(8);
    }
  }
  void once(json& document) {
    const auto keys = settings::keys();
    const settings::Key& key = keys[below(keys.size())];
    std::string path = "/" + std::string(key.path);
    std::replace(path.begin(), path.end(), '.', '/');
    if (below(8) == 0) path = "/" + std::string(key.name());  // perhaps out of place
    try {
      const json::json_pointer at(path);
      if (below(6) != 0) {
        document[at] = value_for(key);
      } else if (document.contains(at)) {
        document[at.parent_pointer()].erase(at.back());
      }
    } catch (const json::exception&) {  // what holds it is no object
    }
  }

  std::mt19937_64 random_;
};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kMutations = 4000;
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
  const json schema = json::parse(settings::settings_schema());
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  StructureMutator mutator(seed);
  std::size_t accepted = 0;
  for (int i = 0; i < 4 * kMutations; ++i) {
    const json document = mutator.mutate(documents[mutator.below(documents.size())]);
    const std::string text = document.dump();
    ASSERT_NO_FATAL_FAILURE(check_one(text, accepted)) << "seed " << seed;
    try {
      Settings::from_json(text, "settings", ReadOptions{.leave_auto_open = true});
    } catch (const Error&) {
      continue;
    }
    ASSERT_EQ(schema_fault(schema, document), "") << "seed " << seed << "\n" << text;
  }
  std::printf("%zu of %d accepted\n", accepted, 4 * kMutations);
  EXPECT_GT(accepted, static_cast<std::size_t>(kMutations) / 10);
}

TEST(SettingsSchema, RejectsWhatASchemaCan) {
  const json schema = json::parse(settings::settings_schema());
  for (const char* text :
       {R"({"train_batch_sise": 8})", R"({"headrace": {"update_slots": 0}})",
        R"({"zero_optimization": {"stage": 4}})", R"({"headrace": {"io_queue": "uringg"}})",
        R"({"optimizer": {"params": {"betas": [0.9]}}})", R"({"bf16": {"enabled": 1}})"}) {
    EXPECT_NE(schema_fault(schema, json::parse(text)), "") << text;
    EXPECT_THROW(Settings::from_json(text), Error) << text;
  }
}

TEST(SettingsMutations, AnUnknownKeyIsRefusedWhereverItStands) {
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
        document.faults.empty() ? unknown_key_in(document.value, "") : std::string();
    if (unknown.empty()) continue;
    ASSERT_THROW(Settings::from_json(text), Error) << "seed " << seed << "\n" << text;
    ++refused;
  }
  EXPECT_GT(refused, kMutations / 20);
}
}  // namespace
}  // namespace headrace
