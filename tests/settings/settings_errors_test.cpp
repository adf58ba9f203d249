// SPDX-License-Identifier: Apache-2.0
// What is refused that a corpus file cannot hold: bytes, overrides, files. The rest:
// settings_corpus_test.cpp.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "headrace/error.hpp"
#include "headrace/settings.hpp"
#include "settings/json_text.hpp"

namespace headrace {
namespace {
std::string refusal(std::string_view text, const std::vector<std::string>& overrides = {},
                    bool strict = false) {
  try {
    Settings::from_json(text, "f", ReadOptions{.overrides = overrides, .strict = strict});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kSettings);
    return error.what();
  }
  return "accepted";
}
std::string strict_refusal(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return refusal(text, overrides, true);
}
#define EXPECT_STARTS_WITH(text, start) \
  EXPECT_EQ(std::string(text).substr(0, std::string(start).size()), start)

constexpr const char* kIfHjson =
    ". If all of the file is HJSON, this makes JSON of it: hjson -j FILE > NEW";

struct BadText {
  const char* text;
  const char* refusal;
};
const BadText kBadTexts[] = {
    {"{\n  \"a\": 1,\n  oops\n}",
     "f:3:3: not JSON: found oops where a name is expected; a name needs double quotes: \"oops\""},
    {"{\"aio\": {} \"bf16\": {}}",
     "f:1:12: not JSON: found \"bf16\" where a comma or } is expected; add a comma behind line 1, "
     "column 10"},
    {"{\n\"a\": 1\n\"b\": 2}",
     "f:3:1: not JSON: found \"b\" where a comma or } is expected; add a comma behind line 2, "
     "column 6"},
    {"{\"aio\": tru}", "f:1:9: not JSON: found tru, which is no JSON value; did you mean true?"},
    {"{\"aio\": {}",
     "f:1:11: not JSON: the text ends, and the { of line 1, column 1 is not closed; add }"},
    {"{\"a\":\n [1, {}",
     "f:2:8: not JSON: the text ends, and the [ of line 2, column 2 is not closed; add ]"},
    {"{\"aio\": 01}", "f:1:9: not JSON: found 01, which is no JSON value; write 1"},
    {"{\"a\": .5}", "f:1:7: not JSON: found .5, which is no JSON value; write 0.5"},
    {"{\"a\": +1}", "f:1:7: not JSON: found +1, which is no JSON value; write 1"},
    {"{\"a\": 1.}", "f:1:7: not JSON: found 1., which is no JSON value; write 1.0"},
    {"{\"a\": 8GiB}",
     "f:1:7: not JSON: found 8GiB, which is no JSON value; a text needs double quotes: \"8GiB\""},
    {"{\"a\": -}", "f:1:7: not JSON: found -, which is no JSON value; write the value"},
    {"{\"a\": /mnt/nvme0}",
     "f:1:7: not JSON: found /mnt/nvme0, which is no JSON value; a text needs double quotes: "
     "\"/mnt/nvme0\""},
    {"{\"a\": \"\n\"}", "f:1:7: not JSON: found \" without a closing quote on its line; add it"},
    {"{\"aio\": {}}{}",
     "f:1:12: not JSON: found { behind the end of the value; remove it, or move it inside"},
    {"{}}", "f:1:3: not JSON: one } too many; remove it"},
    {"{\"aio\": {true}}",
     "f:1:10: not JSON: found true where a name is expected; a name needs double quotes: \"true\""},
    {"{\"a\": \"x\" tru}",
     "f:1:11: not JSON: found tru where a comma or } is expected; add a comma behind line 1, "
     "column 9"},
    {"{\"a\": 1 2}",
     "f:1:9: not JSON: found 2 where a comma or } is expected; add a comma behind line 1, column "
     "7"},
    {"{'a': 1}", "f:1:2: not JSON: found '; names and texts need double quotes: \"a\""},
    {"{\"a\": 'x'}", "f:1:7: not JSON: found '; names and texts need double quotes: \"x\""},
    {"{\"a\": None}", "f:1:7: not JSON: found None, which is no JSON value; write null"},
    {"{\"a\": True}", "f:1:7: not JSON: found True, which is no JSON value; did you mean true?"},
    {"{\"a\": on}", "f:1:7: not JSON: found on, which is no JSON value; write true"},
    {"{\"a\": NaN}", "f:1:7: not JSON: found NaN, which is no JSON value; write a finite number"},
    {"{\"a\": 1e999}",
     "f:1:7: not JSON: found 1e999, which is out of range; write a number below 1.8e308"},
    {"{\"a\" = 1}",
     "f:1:6: not JSON: found = after the name \"a\"; write a colon between name and value"},
    {"{\"a\" 1}",
     "f:1:6: not JSON: found 1 after the name \"a\"; write a colon between name and value"},
    {"{\"a\"}", "f:1:5: not JSON: the name \"a\" has no value; write \"a\": VALUE"},
    {"{\"a\": }", "f:1:7: not JSON: found } where a value is expected; write the value before it"},
    {"{\"a\": ,}", "f:1:8: not JSON: found } where a value is expected; write the value before it"},
    {"{,}", "f:1:2: not JSON: found a comma where a name is expected; remove it"},
    {"{\"a\": [1,,2]}",
     "f:1:10: not JSON: found , where a value is expected; remove the comma, or write the value "
     "before it"},
    {"{\"a\": 1; \"b\": 2}",
     "f:1:8: not JSON: found ;, which separates nothing in JSON; write a comma"},
    {"{\"a\": [1}",
     "f:1:9: not JSON: found }, but the [ of line 1, column 7 is still open; close it with ] "
     "first"},
    {"{\"a\": [\"b\": 1]}",
     "f:1:11: not JSON: found : in a list, which has no names; write {...} for an object"},
    {"{\n# note\n}", "f:2:1: not JSON: found #, which starts no comment here; write //"},
    {"{\"a\": 1 # note\n}", "f:1:9: not JSON: found #, which starts no comment here; write //"},
    {"{\"a\": \u201cx\u201d}",
     "f:1:7: not JSON: found a typographic quote; write plain double quotes: \"...\""},
    {"{\"a\": \"C:\\dir\"}",
     "f:1:10: not JSON: found a backslash that starts no escape; write \\\\ for a backslash"},
    {"{\"a\": \"\\ud800\"}",
     "f:1:7: not JSON: found \"\\ud800\", in which \\u names half of a character; write the "
     "character itself"},
    {"{\"a\": \"\\u12\"}",
     "f:1:8: not JSON: found \\u without four hexadecimal digits behind it; write all four"},
    {"nvme",
     "f:1:1: not JSON: found nvme, which is no JSON value; a text needs double quotes: \"nvme\""},
    {"{{}}", "f:1:2: not JSON: found { where a name is expected; write \"NAME\": before it"},
    {"{\"a\": \"b\tc\"}", "f:1:9: not JSON: found a tab inside a text; write \\t"},
    {"{'a//b': 1}", "f:1:2: not JSON: found '; names and texts need double quotes: \"a//b\""},
    {"/* \u00e9 */ {\"a\": 1",
     "f:1:16: not JSON: the text ends, and the { of line 1, column 9 is not closed; add }"},
    {"{oops: 1} /* no end",
     "f:1:2: not JSON: found oops where a name is expected; a name needs double quotes: \"oops\""},
};

TEST(SettingsErrors, SayWhereBadJsonIsBadWhatWasFoundAndWhatMendsIt) {
  for (const BadText& bad : kBadTexts) {
    const std::string text = refusal(bad.text);
    EXPECT_EQ(text.substr(0, text.find(kIfHjson)), bad.refusal) << bad.text;
  }
}

TEST(SettingsErrors, SayHowHjsonBecomesJsonWhereOnlyHjsonHasWhatStandsThere) {
  for (const char* hjson : {"{\n# note\n}", "{stage: 3}", "{\"a\": 1\n\"b\": 2}", "stage: 3",
                            "{\"a\": nvme}", "{\"a\": '''b'''}"})
    EXPECT_NE(refusal(hjson).find(kIfHjson), std::string::npos) << hjson;
  for (const char* other : {"{\"a\": True}", "{\"a\": NaN}", "{\"a\": 1 \"b\": 2}", "{\"a\": 1"})
    EXPECT_EQ(refusal(other).find(kIfHjson), std::string::npos) << other;
  EXPECT_EQ(refusal("{}", {"headrace={a: 1}"}).find(kIfHjson), std::string::npos);
}

TEST(SettingsErrors, RefuseAnEmptyText) {
  for (const char* text : {"", " \n", "// nothing\n", "\xef\xbb\xbf"}) {
    EXPECT_EQ(refusal(text), "f:1:1: the text is empty; write at least {}") << text;
  }
}

TEST(SettingsErrors, RefuseWhatIsNotUtf8) {
  EXPECT_EQ(refusal("{\n\"\xff\": 1}"), "f:2:2: not UTF-8 (byte 0xff); save the text as UTF-8");
  EXPECT_STARTS_WITH(refusal("// \xc3\n{}"), "f:1:4: not UTF-8 (byte 0xc3)");
  EXPECT_STARTS_WITH(refusal("\xff\xfe{\0}\0"), "f:1:1: the text is UTF-16");
  for (const char* bad : {"\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xf0\x80\x80\x80", "\xe2\x82", "\xf5\x80\x80\x80", "\x80"}) {
    EXPECT_STARTS_WITH(refusal("{\"" + std::string(bad) + "\": 1}"), "f:1:3: not UTF-8");
  }
}

TEST(SettingsErrors, RefuseWhatFollowsANulByteToo) {
  using std::string_view_literals::operator""sv;
  EXPECT_STARTS_WITH(refusal("{}\0{\"unknown\": 1}"sv), "f:1:3: a control character (byte 0x00)");
}

TEST(SettingsErrors, RefuseDeepNestingWithoutFollowingIt) {
  EXPECT_STARTS_WITH(refusal(std::string(1000000, '[')), "f:1:65: nested deeper than 64 levels");
  EXPECT_STARTS_WITH(refusal("{\"_\": " + std::string(60, '[') + std::string(60, ']') + "}"),
                     "accepted");
}

TEST(SettingsErrors, StayOneLineAndShortWhateverAKeyHolds) {
  const std::string text = strict_refusal("{\"a\\nb" + std::string(100000, 'x') + "\": 1}");
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_LT(text.size(), 300u);
  EXPECT_STARTS_WITH(text, "f:1:2: a\\u000abxxxx");
  const std::string value = refusal("{\"bf16\": \"" + std::string(100000, 'y') + "\"}");
  EXPECT_LT(value.size(), 300u);
}

TEST(SettingsErrors, StopListingAfterAHundred) {
  std::string text = "{";
  for (int i = 0; i < 5000; ++i) text += "\"quetzal" + std::to_string(i) + "\": 1,";
  const std::string all = strict_refusal(text + "}");
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 100);
  EXPECT_NE(all.find("\nand perhaps more: these are the first 100"), std::string::npos);
  EXPECT_EQ(
      refusal(text + "}"),
      "f:1:1492: quetzal100: unknown key, and so are 100 before it; this is no settings file. "
      "Name another");
}

TEST(SettingsErrors, ListFaultsInTheOrderOfTheTextAndOverridesLast) {
  const std::string all =
      strict_refusal("{\"zzz1\": 1,\n \"aaa1\": 1}", {"headrace.update_slots=0"});
  EXPECT_STARTS_WITH(all, "f:1:2: zzz1: ");
  EXPECT_NE(all.find("\nf:2:2: aaa1: "), std::string::npos) << all;
  EXPECT_NE(all.find("\n--set headrace.update_slots: found 0"), std::string::npos) << all;
}

TEST(SettingsErrors, ListWhatElseIsWrongBesidesAKeyGivenTwice) {
  const std::string all = refusal(
      "{\"gradient_clipping\": 1, \"gradient_clipping\": \"x\",\n\"gradient_acumulation_steps\": "
      "2,\n"
      "\"headrace\": {\"tile_elements\": 100}, \"gradient_clipping\": \"y\"}",
      {"headrace.update_slots=0"});
  EXPECT_STARTS_WITH(all, "f:1:26: gradient_clipping: given twice, first at line 1");
  for (const char* fault :
       {"\nf:2:1: gradient_acumulation_steps: unknown key",
        "\nf:3:14: headrace.tile_elements: found",
        "\nf:3:37: gradient_clipping: given twice, first at line 1",
        "\nf:3:37: gradient_clipping: found \"y\"", "\n--set headrace.update_slots: found 0"}) {
    EXPECT_NE(all.find(fault), std::string::npos) << fault << " is not in\n" << all;
  }
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 5) << all;
}

TEST(SettingsErrors, ProposeTheKeyThatAnUnfinishedWordBegins) {
  EXPECT_EQ(refusal("{}", {"headrace.host_budget=1GiB"}),
            "--set headrace.host_budget: unknown key; did you mean \"host_budget_bytes\"?");
  EXPECT_EQ(refusal("{}", {"headrace.elements=1"}),
            "--set headrace.elements: unknown key; did you mean \"tile_elements\"?");
  EXPECT_NE(refusal("{}", {"headrace.quetzal=1"}).find("nothing known"), std::string::npos);
}

TEST(SettingsErrors, SayInWhichDtypeGradientsAreReallySummed) {
  const auto warning = [](const char* text) {
    const Settings settings = Settings::from_json(text, "f");
    return settings.warnings.size() == 1 ? settings.warnings[0] : std::string("not one warning");
  };
  const std::string once = warning(R"({"data_types": {"grad_accum_dtype": "bf16"}})");
  EXPECT_NE(once.find("gradients keep their parameter's dtype"), std::string::npos) << once;
  const std::string summed =
      warning(R"({"data_types": {"grad_accum_dtype": "bf16"}, "gradient_accumulation_steps": 2})");
  EXPECT_NE(summed.find("gradients are accumulated in f32, at 4 bytes"), std::string::npos)
      << summed;
}

TEST(SettingsErrors, RefuseAModeOfAdamThatTheRuleIsNotOf) {
  const std::string decoupled = R"("optimizer": {"params": {"adam_w_mode": true}})";
  EXPECT_NE(refusal(R"({"headrace": {"optimizer": "adam"}, )" + decoupled + "}")
                .find("true asks for the rule adamw, headrace.optimizer for adam; remove one"),
            std::string::npos);
  EXPECT_EQ(refusal(R"({"headrace": {"optimizer": "adamw"}, )" + decoupled + "}"), "accepted");
}

// It would become 0, and with it elements that never had a gradient NaN.
TEST(SettingsErrors, RefuseANumberThatF32WouldMakeZero) {
  const auto eps = [](const std::string& value) {
    return refusal(R"({"optimizer": {"type": "AdamW", "params": {"eps": )" + value + "}}}");
  };
  EXPECT_NE(eps("1e-46").find("a number from 1.4e-45 to 3.4e+38, or 0"), std::string::npos)
      << eps("1e-46");
  EXPECT_EQ(eps("1e-45"), "accepted");
  EXPECT_EQ(eps("0"), "accepted");
}

TEST(SettingsErrors, TakeAnOverrideThatIsNotUtf8AndHasNoEffect) {
  EXPECT_EQ(refusal("{}", {"communication_data_type=\xff"}), "accepted");
}

// Each element would keep the whole name.
TEST(SettingsErrors, KeepNoLongNameForEachElement) {
  const std::string name(200, 'n');
  std::string list = "1";
  for (int i = 0; i < 1000; ++i) list += ",1";
  const auto stored = [&](const std::string& path) {
    std::size_t bytes = 0;
    for (const auto& [pointer, offset] :
         settings::parse_document(path, settings::Syntax::kStrict).offsets)
      bytes += pointer.size();
    return bytes;
  };
  EXPECT_LT(stored("{\"" + name + "\":{\"" + name + "\":[" + list + "]}}"), 2000u);
  const std::string longer(2000, 'n');
  for (const char* value : {"[1]", "{\"a\": 1}"}) {
    EXPECT_NE(refusal("{\"" + longer + "\": " + value + "}").find("found below a name that is too"),
              std::string::npos);
  }
}

TEST(SettingsErrors, FindManyZerosInLittleTime) {
  EXPECT_NE(refusal(std::string(1 << 21, '0')), "accepted");
}

TEST(SettingsErrors, NameTheOverride) {
  EXPECT_STARTS_WITH(refusal("{}", {"nonsense"}), "--set nonsense: not of the form KEY=VALUE");
  EXPECT_STARTS_WITH(refusal("{}", {"=1"}), "--set =1: not of the form KEY=VALUE");
  EXPECT_STARTS_WITH(refusal("{}", {"headrace..x=1"}), "--set headrace..x=1: not of the form");
  EXPECT_STARTS_WITH(refusal("{}", {"headrace.update_slot=1"}),
                     "--set headrace.update_slot: unknown key; did you mean "
                     "\"update_slots\"?");
  EXPECT_STARTS_WITH(
      refusal("{}", {"headrce.update_slots=1"}),
      "--set headrce.update_slots: headrce: unknown key; did you mean \"headrace\"?");
  EXPECT_STARTS_WITH(refusal("{}", {"headrace.update_slots=many"}),
                     "--set headrace.update_slots: found \"many\"; allowed: ");
  EXPECT_STARTS_WITH(refusal(R"({"gradient_clipping": 1})", {"gradient_clipping.x=1"}),
                     "--set gradient_clipping.x: gradient_clipping is not a section");
  EXPECT_STARTS_WITH(
      refusal("{}", {"headrace={\"update_slots\": 1"}),
      "--set headrace: column 19 of the value: not JSON: the text ends, and the { of "
      "line 1, column 1 is not closed; add }");
  EXPECT_STARTS_WITH(refusal("{}", {"aio={\"use_gds\": true, \"use_gds\": true}"}),
                     "--set aio: column 19 of the value: use_gds: given twice");
  EXPECT_STARTS_WITH(refusal("{}", {"headrace={\"update_slots\": 0}"}),
                     "--set headrace: headrace.update_slots: found 0");
}

TEST(SettingsErrors, DistinguishFilesThatAreMissingUnreadableAndTooLarge) {
  const auto code_of = [](const std::string& path) {
    try {
      Settings::from_file(path);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("'" + path + "'"), std::string::npos)
          << error.what();
      return std::pair(error.code(), error.sys_errno());
    }
    return std::pair(Code::kOk, 0);
  };
  EXPECT_EQ(code_of("/nonexistent/ds.json"), std::pair(Code::kNotFound, ENOENT));
  EXPECT_EQ(code_of("/dev/null/ds.json"), std::pair(Code::kNotFound, ENOTDIR));
  EXPECT_EQ(code_of("/"), std::pair(Code::kIo, EISDIR));
  EXPECT_EQ(code_of("/dev/zero"), std::pair(Code::kSettings, 0));
}

// Whose opening, and whose signals, would wait for somebody to write.
TEST(SettingsErrors, RefuseAPipeThatNobodyWritesTo) {
  const std::string path = ::testing::TempDir() + "headrace-pipe-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(Settings::from_file(path), Error);
  ::unlink(path.c_str());
}

TEST(SettingsErrors, NameAcceleratesFileAndNeverTheEmptyName) {
  EXPECT_STARTS_WITH(refusal(R"({"mixed_precision": "bf16"})"),
                     "f:1:2: mixed_precision: is of Accelerate's launcher");
  EXPECT_EQ(refusal(R"({"": 1})").find("belongs in"), std::string::npos);
}

TEST(SettingsErrors, TakeNumbersThatNoIntegerHolds) {
  EXPECT_STARTS_WITH(refusal(R"({"zero_optimization": {"stage": 1e300}})"),
                     "f:1:24: zero_optimization.stage: found 1e+300; allowed: ");
}

TEST(SettingsErrors, NameWhatWouldFailOnlyInTraining) {
  EXPECT_STARTS_WITH(refusal(R"({"fp16": {"enabled": true, "loss_scale": 1e-40}})"),
                     "f:1:28: fp16.loss_scale: the inverse of so small a scale");
  EXPECT_STARTS_WITH(
      refusal(R"({"optimizer": {"type": "SGD", "params": {"momentum": 0.9, "nesterov": true,
                  "dampening": 0.1}}})"),
      "f:1:59: optimizer.params.nesterov: needs optimizer.params.momentum");
  EXPECT_STARTS_WITH(refusal(R"({"scheduler": {"type": "OneCycle", "params": {"cycle_max_mom": 1.5,
                  "cycle_min_lr": 0, "cycle_max_lr": 1}}})"),
                     "f:1:47: scheduler.params.cycle_max_mom: found 1.5; allowed: ");
  EXPECT_STARTS_WITH(refusal(R"({"scheduler": {"type": "WarmupLR",
"params": {"last_batch_iteration": 3}}})"),
                     "f:2:12: scheduler.params.last_batch_iteration: ");
  EXPECT_EQ(refusal(R"({"scheduler": {"type": "WarmupLR",
"params": {"last_batch_iteration": -1}}})"),
            "accepted");
}

// What `headrace` refuses, without its place, with all that a store needs beside `keys`.
std::string store_refusal(const std::string& keys) {
  const std::string text = refusal(R"({"headrace": {"nvme_paths": ["/mnt/a"], )" + keys + "}}");
  const std::size_t key = text.find("headrace.");
  return key == text.npos ? text : text.substr(key);
}

TEST(SettingsErrors, RefuseDurableThatIsNeitherAWordNorANumberOfSteps) {
  const std::string allowed =
      "; allowed: \"none\" or \"step\", or a whole number from 1 to 2147483647";
  for (const char* bad : {"-1", "1.5", "2147483648", "true", "null", "[]", "\"2\""}) {
    EXPECT_STARTS_WITH(store_refusal(R"("store": "s", "durable": )" + std::string(bad)),
                       "headrace.durable: found ");
    EXPECT_NE(store_refusal(R"("store": "s", "durable": )" + std::string(bad)).find(allowed),
              std::string::npos);
  }
  EXPECT_EQ(store_refusal(R"("store": "s", "durable": 0)"),
            "headrace.durable: found 0" + allowed + "; did you mean \"none\"?");
  EXPECT_EQ(store_refusal(R"("store": "s", "durable": "steps")"),
            "headrace.durable: found \"steps\"" + allowed + "; did you mean \"step\"?");
}

TEST(SettingsErrors, RefuseANameThatNoDirectoryShouldHave) {
  const std::string longest(64, 'x');
  for (const std::string& name : {std::string("s"), std::string("_7B.run-2"), longest})
    EXPECT_EQ(store_refusal(R"("durable": 1, "store": ")" + name + "\""), "accepted");
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string(".hidden"),
        std::string("-n"), std::string("a/b"), std::string("a b"), std::string("\u00fc"),
        std::string("a\\u0000"), longest + "x"}) {
    const std::string text = store_refusal(R"("durable": 1, "store": ")" + name + "\"");
    EXPECT_STARTS_WITH(text, "headrace.store: found \"");
    EXPECT_NE(text.find("\", but directories get this name; allowed: 1 to 64 letters (A-Z, a-z), "
                        "digits, '.', '_' and '-', the first no '.' or '-'"),
              std::string::npos)
        << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(SettingsErrors, RefuseAStoreThatNothingWrites) {
  const std::string unwritten =
      "headrace.store: nothing writes this store while headrace.durable is \"none\"; set that to "
      "\"step\", or remove this";
  EXPECT_EQ(store_refusal(R"("store": "s")"), unwritten);
  EXPECT_EQ(store_refusal(R"("store": "s", "durable": "none")"), unwritten);
  EXPECT_EQ(
      store_refusal(R"("resume": "require")"),
      "headrace.resume: every run starts anew while headrace.durable is \"none\"; set that to "
      "\"step\", or remove this");
  EXPECT_EQ(store_refusal(R"("resume": "auto", "trainer_state_bytes": 0)"), "accepted");
}

TEST(SettingsErrors, RefuseADurableRunWithoutANameOrThatCouldNotVerifyOrKeepItsState) {
  EXPECT_EQ(store_refusal(R"("durable": "step")"),
            "headrace.durable: a later run finds the state by the name of its store, and "
            "headrace.store gives none; add it");
  EXPECT_EQ(store_refusal(R"("durable": 3, "store": "s", "checksums": "off")"),
            "headrace.checksums: without checksums a resumed run would take a write that the drive "
            "dropped for the state of a committed step (headrace.durable); remove this");
  EXPECT_EQ(store_refusal(R"("durable": 3, "store": "s", "allow_memory_backed": true)"),
            "headrace.allow_memory_backed: memory loses committed steps (headrace.durable) when "
            "the machine stops; remove this, and name a directory on a drive");
}

// A device says it for both.
TEST(SettingsErrors, RefuseADurableRunWithoutADirectoryOnce) {
  const char* const in_memory =
      R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}},
          "headrace": {"durable": "step", "store": "s"}})";
  EXPECT_EQ(refusal(in_memory),
            "f:2:24: headrace.durable: a store is on a drive even if all state fits in memory, and "
            "neither headrace.nvme_paths nor nvme_path names a directory; add "
            "headrace.nvme_paths");
  EXPECT_EQ(refusal(in_memory, {"zero_optimization.offload_optimizer.device=nvme"}),
            "--set zero_optimization.offload_optimizer.device: \"nvme\" needs a directory, and "
            "neither nvme_path nor headrace.nvme_paths names one; add \"nvme_path\" beside it");
}

TEST(SettingsErrors, LeaveToATrainerWhetherARunIsDurable) {
  const ReadOptions leave_open{.leave_auto_open = true};
  const auto open = [&](const char* keys) {
    const std::string text = R"({"headrace": {"nvme_paths": ["/mnt/a"], )" + std::string(keys);
    return Settings::from_json(text + "}}", "f", leave_open).open;
  };
  EXPECT_EQ(open(R"("durable": "auto", "store": "s", "resume": "require")"),
            std::vector<std::string>{"headrace.durable"});
  EXPECT_EQ(open(R"("durable": "step", "store": "auto")"),
            std::vector<std::string>{"headrace.store"});
}

std::vector<std::string> warnings_of(const std::string& text) {
  return Settings::from_json(text, "f").warnings;
}

TEST(SettingsWarnings, NameASectionThatIsOffForWantOfEnabled) {
  for (const char* section :
       {R"("quantize_training": {"quantize_bits": {"start_bits": 12, "target_bits": 4}})",
        R"("curriculum_learning": {"curriculum_type": "seqlen", "min_difficulty": 8})",
        R"("amp": {"opt_level": "O1"})", R"("tensorboard": {"output_path": "logs"})"}) {
    const std::vector<std::string> warnings = warnings_of("{" + std::string(section) + "}");
    ASSERT_EQ(warnings.size(), 1u) << section;
    EXPECT_NE(warnings[0].find("it is off without \"enabled\": true"), std::string::npos)
        << warnings[0];
  }
  EXPECT_TRUE(
      warnings_of(R"({"amp": {"enabled": false, "opt_level": "O1"}, "wandb": {}})").empty());
}

TEST(SettingsWarnings, NameAKeyThatDeepSpeedIgnoresAndThatIsLikeNoOther) {
  for (const char* text : {R"({"comment": "of 2024"})", R"({"//": "note"})", R"({"log": true})",
                           R"({"cuda_visible_devices": "0,1"})", R"({"name": "my run"})",
                           R"({"optimizer": {"type": "AdamW", "remark": 1}})",
                           R"({"aio": {"flavour": "x"}})", R"({"id": 7})"}) {
    const std::vector<std::string> warnings = warnings_of(text);
    ASSERT_EQ(warnings.size(), 1u) << text;
    EXPECT_NE(warnings[0].find(": unknown key: nothing follows it here"), std::string::npos)
        << warnings[0];
    EXPECT_THROW(Settings::from_json(text, "f", ReadOptions{.strict = true}), Error) << text;
  }
}

TEST(SettingsErrors, RefuseADtypeOfParametersThatTheFileDoesNotEnable) {
  EXPECT_EQ(
      refusal(R"({"data_types": {"param_dtype": "bf16"}})"),
      "f:1:17: data_types.param_dtype: \"bf16\", but bf16.enabled and fp16.enabled ask for F32; "
      "remove it, or set those");
  for (const char* same :
       {R"({"data_types": {"param_dtype": "torch.float32"}})",
        R"({"data_types": {"param_dtype": null}, "fp16": {"enabled": true}})",
        R"({"data_types": {"param_dtype": "half"}, "fp16": {"enabled": true}})"}) {
    EXPECT_EQ(refusal(same), "accepted");
    EXPECT_EQ(Settings::from_json(same).warnings.size(), 0u) << same;
  }
}

TEST(SettingsErrors, TakeNoConstantOfAnotherOptimizerForATypo) {
  EXPECT_EQ(refusal(R"({"optimizer": {"params": {"lr": 1, "max_coeff": 0.3, "coeff_beta": 0.9,
      "cuda_aware": false, "freeze_step": 1000, "factor_max": 4}, "type": "OneBitLamb"}})"),
            "f:2:67: optimizer.type: \"OneBitLamb\" is not served; allowed: \"Adam\", \"AdamW\", "
            "\"Adagrad\", \"Lion\" or \"SGD\"");
  const std::string scheduler =
      refusal(R"({"scheduler": {"type": "CosineLR", "params": {"T_max": 10, "eta_min": 0}}})");
  EXPECT_STARTS_WITH(scheduler, "f:1:16: scheduler.type: found \"CosineLR\"; allowed:");
  EXPECT_EQ(scheduler.find('\n'), std::string::npos) << scheduler;
}

TEST(SettingsErrors, ListTheFirstHundredByLineAndNotByName) {
  std::string text = "{\n";
  for (int i = 150; i > 0; --i) text += "\"gradient_clippin" + std::to_string(100 + i) + "\": 1,\n";
  // A fault that only all keys together show, on the first line.
  const std::string all =
      refusal("{\"scheduler\": {\"type\": \"OneCycle\"},\n" + text.substr(2) + "\"x\": 1}");
  EXPECT_STARTS_WITH(all, "f:1:16: scheduler.type: OneCycle needs");
  std::size_t line = 2;
  for (int i = 150; i > 52; --i, ++line) {
    const std::string fault = "\nf:" + std::to_string(line) + ":1: gradient_clippin" +
                              std::to_string(100 + i) + ": unknown key";
    EXPECT_NE(all.find(fault), std::string::npos) << fault;
  }
  EXPECT_EQ(all.find("gradient_clippin152"), std::string::npos);
  EXPECT_NE(all.find("these are the first 100"), std::string::npos);
}

TEST(SettingsErrors, RefuseABatchThatNoNumberOfRanksCanMake) {
  EXPECT_EQ(refusal(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4})"),
            "f:1:2: train_batch_size: 10 is no multiple of train_micro_batch_size_per_gpu 4, so no "
            "number of ranks can make it; change one of them, or leave one out and it follows from "
            "the others");
  EXPECT_STARTS_WITH(
      refusal(R"({"gradient_accumulation_steps": 3, "train_batch_size": 8})"),
      "f:1:36: train_batch_size: 8 is no multiple of gradient_accumulation_steps 3,");
  EXPECT_STARTS_WITH(
      refusal(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4,
                  "gradient_accumulation_steps": 4})"),
      "f:1:2: train_batch_size: 24 is no multiple of train_micro_batch_size_per_gpu 4 x "
      "gradient_accumulation_steps 4,");
  for (const char* some : {R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2})",
                           R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto"})"})
    EXPECT_EQ(refusal(some), "accepted");
}

TEST(SettingsErrors, RefuseAnUnknownKeyThatIsNearAnotherOrOfAnotherLevelOrWhereDeepSpeedDoes) {
  EXPECT_EQ(refusal(R"({"gradient_cliping": "1"})"),
            "f:1:2: gradient_cliping: unknown key; did you mean \"gradient_clipping\"?");
  EXPECT_EQ(refusal(R"({"bf6": {"enabled": true}})"),
            "f:1:2: bf6: unknown key; did you mean \"bf16\"?");
  EXPECT_EQ(refusal(R"({"stage": 3})"),
            "f:1:2: stage: unknown key; \"stage\" belongs in zero_optimization");
  EXPECT_EQ(refusal(R"({"lr": 1e-4})"),
            "f:1:2: lr: unknown key; \"lr\" belongs in optimizer.params");
  EXPECT_NE(refusal(R"({"zero_optimization": {"zebra": 1}})").find("nothing known"),
            std::string::npos);
  EXPECT_NE(
      refusal(R"({"optimizer": {"type": "AdamW", "params": {"zebra": 1}}})").find("nothing known"),
      std::string::npos);
  EXPECT_NE(refusal("{}", {"zebra=1"}).find("nothing known"), std::string::npos) << "was typed";
}

TEST(SettingsWarnings, NameWhatIsGivenAndHasNoEffect) {
  const auto only = [](const std::string& text, const std::string& part) {
    const std::vector<std::string> warnings = warnings_of(text);
    ASSERT_EQ(warnings.size(), 1u) << text;
    EXPECT_NE(warnings[0].find(part), std::string::npos) << warnings[0];
  };
  only(R"({"fp16": {"loss_scale": 128}})", "fp16.loss_scale: no effect: fp16.enabled is not given");
  EXPECT_TRUE(warnings_of(R"({"fp16": {"enabled": false, "loss_scale": 128}})").empty());
  only(R"({"headrace": {"drive_shares": [1, 2]}})", "drive_shares: not used");
  only(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5}}})",
       "the warm-up of 1000 steps is longer");
  only(R"({"optimizer": {"type": "SGD"}, "scheduler": {"type": "OneCycle", "params": {
           "cycle_min_lr": 0, "cycle_max_lr": 1, "cycle_min_mom": 0.5}}})",
       "cycle_min_mom: no effect: the rule sgd has no betas");
}

TEST(SettingsErrors, RefuseAnEmptyFile) { EXPECT_THROW(Settings::from_file("/dev/null"), Error); }
}  // namespace
}  // namespace headrace
