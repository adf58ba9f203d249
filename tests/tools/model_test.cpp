// SPDX-License-Identifier: Apache-2.0
// model_test: shapes of models, from names and from files.
#include "model/model.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "headrace/error.hpp"
#include "model/families.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::tools::model_test {
namespace {
std::string text_of_failure(const std::string& word, Code code) {
  try {
    model_of(word);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << word << " was taken";
  return "";
}

class ModelFiles : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_.string() + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  // A file of safetensors with this header and 64 bytes of data.
  void write_safetensors(const std::string& name, const std::string& header) const {
    std::string text(8, '\0');
    for (std::size_t i = 0; i < 8; ++i)
      text[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
    write(name, text + header + std::string(64, 'x'));
  }
  testing::TemporaryDirectory folder_;
};

// As the checkpoints' authors count them.
TEST(KnownModels, HaveThePublishedNumberOfParameters) {
  const std::map<std::string, std::uint64_t> published = {{"gpt2", 124'439'808},
                                                          {"gpt2-medium", 354'823'168},
                                                          {"gpt2-large", 774'030'080},
                                                          {"gpt2-xl", 1'557'611'200},
                                                          {"t5-small", 60'506'624},
                                                          {"t5-base", 222'903'552},
                                                          {"t5-large", 737'668'096},
                                                          {"t5-3b", 2'851'598'336},
                                                          {"t5-11b", 11'307'321'344},
                                                          {"llama-2-7b", 6'738'415'616},
                                                          {"llama-2-13b", 13'015'864'320},
                                                          {"llama-2-70b", 68'976'648'192},
                                                          {"llama-3-8b", 8'030'261'248},
                                                          {"llama-3-70b", 70'553'706'496},
                                                          {"llama-3.1-405b", 405'853'388'800},
                                                          {"llama-3.2-1b", 1'235'814'400},
                                                          {"llama-3.2-3b", 3'212'749'824},
                                                          {"mistral-7b", 7'241'732'096},
                                                          {"qwen2.5-0.5b", 494'032'768},
                                                          {"qwen2.5-7b", 7'615'616'512},
                                                          {"qwen2.5-72b", 72'706'203'648}};
  for (const std::string_view name : known_names()) {
    const Model model = model_of(std::string(name));
    ASSERT_TRUE(published.contains(model.name)) << name;
    EXPECT_EQ(model.elements(), published.at(model.name)) << name;
  }
  EXPECT_EQ(known_names().size(), published.size());
}

TEST(KnownModels, NameTheirLargestLayerAndGroup) {
  const Model t5 = model_of("t5-3b");
  EXPECT_EQ(t5.largest_layer().name, "shared");
  EXPECT_EQ(t5.largest_layer().elements, 32'899'072u);
  EXPECT_EQ(t5.largest_group().name, "decoder.block.0");
  // A bias belongs to the layer of its weight.
  EXPECT_EQ(model_of("gpt2").groups[1].parameters[3].name, "h.0.attn.c_attn.bias");
  EXPECT_EQ(model_of("gpt2").groups.size(), 14u);
}

TEST(KnownModels, AMisspeltNameIsToldWithTheNearestOne) {
  for (const char* word : {"gpt2-x1", "GPT2-XL", "openai-community/gpt2-xl"}) {
    EXPECT_NE(text_of_failure(word, Code::kNotFound).find("did you mean gpt2-xl?"),
              std::string::npos)
        << word;
  }
  const std::string text = text_of_failure("no model at all", Code::kNotFound);
  EXPECT_NE(text.find("llama-3-8b"), std::string::npos) << text;
}

TEST_F(ModelFiles, ConfigJsonOfEachArchitectureGivesTheShapesOfTheName) {
  const std::map<std::string, std::string> configs = {
      {"gpt2-xl", R"({"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "vocab_size": 50257,
                      "n_positions": 1024})"},
      {"llama-3-8b", R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
                         "num_hidden_layers": 32, "num_attention_heads": 32,
                         "num_key_value_heads": 8, "vocab_size": 128256,
                         "tie_word_embeddings": false})"},
      {"qwen2.5-7b", R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
                         "num_hidden_layers": 28, "num_attention_heads": 28,
                         "num_key_value_heads": 4, "vocab_size": 152064})"},
      {"t5-11b", R"({"model_type": "t5", "d_model": 1024, "d_ff": 65536, "num_layers": 24,
                     "num_heads": 128, "d_kv": 128, "vocab_size": 32128})"}};
  for (const auto& [name, config] : configs) {
    write("config.json", config);
    EXPECT_EQ(model_of(folder_.string()).elements(), model_of(name).elements()) << name;
  }
}

TEST_F(ModelFiles, HeadersOfAllSafetensorsAreOneModelInBlocks) {
  write("config.json", "not looked at");
  write_safetensors("model-00001-of-00002.safetensors",
                    R"({"__metadata__": {"format": "pt"},
                        "layers.10.w": {"dtype": "BF16", "shape": [4, 8]},
                        "embed.weight": {"dtype": "BF16", "shape": [32]}})");
  write_safetensors("model-00002-of-00002.safetensors",
                    R"({"layers.9.w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
                        "layers.9.b": {"dtype": "F32", "shape": [], "data_offsets": [8, 12]}})");
  const Model model = model_of(folder_.string());
  EXPECT_EQ(model.source, "2 safetensors headers");
  EXPECT_EQ(model.elements(), 32u + 32 + 4 + 1);
  ASSERT_EQ(model.groups.size(), 3u);
  EXPECT_EQ(model.groups[0].name, "embed");
  EXPECT_EQ(model.groups[1].name, "layers.9");
  EXPECT_EQ(model.groups[2].name, "layers.10");
  EXPECT_EQ(model.largest_layer().elements, 32u);
}

// As a checkpoint has them, which is by name and not by place.
TEST_F(ModelFiles, HeadersAreGroupedAsTheModelIsByName) {
  for (const char* name : {"gpt2", "llama-3-8b", "llama-3.2-1b", "t5-small"}) {
    const Model known = model_of(name);
    std::map<std::string, std::string> tensors;
    for (const ModelGroup& group : known.groups) {
      for (const ModelParameter& parameter : group.parameters) {
        std::string shape;
        for (const std::int64_t size : parameter.shape)
          shape += (shape.empty() ? "" : ",") + std::to_string(size);
        tensors[parameter.name] = R"({"dtype":"BF16","shape":[)" + shape + "]}";
      }
    }
    std::string header;
    for (const auto& [parameter, tensor] : tensors)
      header += (header.empty() ? "{\"" : ",\"") + parameter + "\":" + tensor;
    write_safetensors("model.safetensors", header + "}");
    const Model model = model_of(folder_.string());
    ASSERT_EQ(model.groups.size(), known.groups.size()) << name;
    for (std::size_t g = 0; g < known.groups.size(); ++g)
      EXPECT_EQ(model.groups[g].elements(), known.groups[g].elements()) << name << " " << g;
  }
}

TEST_F(ModelFiles, TheGroupsOfTrainGptsOwnFilesAreThoseItTrainsWith) {
  write_safetensors("model.safetensors",
                    R"({"head.norm.weight": {"dtype": "BF16", "shape": [4]},
                        "h.0.up.weight": {"dtype": "BF16", "shape": [4, 4]},
                        "embed.tokens.weight": {"dtype": "BF16", "shape": [9, 4]},
                        "embed.positions.weight": {"dtype": "BF16", "shape": [2, 4]},
                        "head.out.weight": {"dtype": "BF16", "shape": [9, 4]}})");
  const Model model = model_of(folder_.string());
  ASSERT_EQ(model.groups.size(), 3u);
  EXPECT_EQ(model.groups[0].name, "embed");
  EXPECT_EQ(model.groups[1].name, "h.0");
  EXPECT_EQ(model.groups[2].name, "head");
}

TEST_F(ModelFiles, TensorsOfWholeNumbersAreLeftOutAndCounted) {
  write_safetensors("model.safetensors", R"({"h.0.w": {"dtype": "F16", "shape": [4]},
                                             "h.0.mask": {"dtype": "BOOL", "shape": [9]}})");
  const Model model = model_of(folder_.string());
  EXPECT_EQ(model.elements(), 4u);
  EXPECT_EQ(model.source,
            "1 safetensors header, without 1 tensor of whole numbers, 'h.0.mask' first");
}

TEST_F(ModelFiles, TheFilesThatAnIndexNamesAreReadAndNoOthers) {
  write("model.safetensors.index.json",
        R"({"weight_map": {"a.w": "model-1.safetensors", "b.w": "model-2.safetensors"}})");
  write_safetensors("model-1.safetensors", R"({"a.w": {"dtype": "BF16", "shape": [4]}})");
  std::string text = text_of_failure(folder_.string(), Code::kInvalidArgument);
  EXPECT_NE(text.find("model-2.safetensors': missing"), std::string::npos) << text;
  write_safetensors("model-2.safetensors", R"({"c.w": {"dtype": "BF16", "shape": [8]}})");
  text = text_of_failure(folder_.string(), Code::kInvalidArgument);
  EXPECT_NE(text.find("no 'b.w'"), std::string::npos) << text;
  write_safetensors("model-2.safetensors", R"({"b.w": {"dtype": "BF16", "shape": [8]}})");
  write_safetensors("consolidated.safetensors", R"({"a.w": {"dtype": "BF16", "shape": [4]}})");
  EXPECT_EQ(model_of(folder_.string()).elements(), 12u);
  write("model.safetensors.index.json",
        R"({"weight_map": {"a.w": "consolidated.safetensors", "a.w": "model-1.safetensors"}})");
  text = text_of_failure(folder_.string(), Code::kInvalidArgument);
  EXPECT_NE(text.find("'a.w' occurs twice in weight_map"), std::string::npos) << text;
}

TEST_F(ModelFiles, APartOfAModelIsNotTakenForIt) {
  const auto refused = [&](const std::string& path, const std::string& part) {
    const std::string text = text_of_failure(path, Code::kInvalidArgument);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const char* const tensor = R"({"a.w": {"dtype": "BF16", "shape": [4]}})";
  write_safetensors("model-00001-of-00002.safetensors", tensor);
  refused(folder_.string(), "one of 2 parts, of which 1 are there");
  refused(folder_.string() + "/model-00001-of-00002.safetensors", "Name the directory");
  write_safetensors("model-00002-of-00002.safetensors",
                    R"({"b.w": {"dtype": "BF16", "shape": [4]}})");
  EXPECT_EQ(model_of(folder_.string()).elements(), 8u);
  write("adapter_config.json", "{}");
  refused(folder_.string(), "an adapter alone");
}

TEST_F(ModelFiles, AFileOfShapesIsTaken) {
  const std::string path = write("shapes.json", R"({"groups": [
      {"name": "h.0", "parameters": [{"name": "w", "shape": [4, 8]}, {"name": "b", "shape": [4]}]},
      {"parameters": []}]})");
  const Model model = model_of(path);
  ASSERT_EQ(model.groups.size(), 1u);
  EXPECT_EQ(model.groups[0].parameters[0].name, "h.0.w");
  EXPECT_EQ(model.elements(), 36u);
  EXPECT_EQ(model.shapes(DType::kBf16)[0].parameters[1].elements(), 4u);
}

TEST_F(ModelFiles, WhatIsNoModelIsRefusedByNameWithARemedy) {
  const auto refused = [&](const std::string& path, const std::string& part, Code code) {
    const std::string text = text_of_failure(path, code);
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find("nothing was computed"), std::string::npos) << text;
  };
  refused(folder_.string(), "neither *.safetensors nor config.json", Code::kNotFound);
  write("config.json", R"({"model_type": "mamba"})");
  refused(folder_.string(), "model_type 'mamba'", Code::kUnsupported);
  write("config.json", R"({"model_type": "gpt2", "n_embd": 0})");
  refused(folder_.string(), "\"n_embd\" is 0", Code::kInvalidArgument);
  write("config.json", R"({"model_type": "gpt2"})");
  refused(folder_.string(), "no \"n_embd\"", Code::kInvalidArgument);
  write("config.json", "{");
  refused(folder_.string(), "line 1, column 2: not JSON: the text ends, and the { ",
          Code::kInvalidArgument);
  refused(write("a.json", "[]"), "no list \"groups\"", Code::kInvalidArgument);
  refused(write("a.json", R"({"groups": []})"), "no parameter", Code::kInvalidArgument);
  refused(write("a.json", R"({"groups": [{"parameters": [{"name": "w", "shape": [0]}]}]})"),
          "the shape of 'w'", Code::kInvalidArgument);
  refused(write("a.json", R"({"groups": [{"parameters": [{"name": "w",
                               "shape": [4294967296, 4294967296, 4294967296]}]}]})"),
          "the shape of 'w'", Code::kInvalidArgument);
  refused(write("a.json", R"({"groups": [{"parameters": [{"shape": [1]}]}]})"),
          "without \"name\" and \"shape\"", Code::kInvalidArgument);
  const auto shapes = [&](const std::string& text) { return write("a.json", text); };
  const std::string twice = R"({"name": "w", "shape": [1]})";
  refused(shapes(R"({"groups": [{"name": "a", "parameters": [)" + twice + "," + twice + "]}]}"),
          "two parameters named 'a.w'", Code::kInvalidArgument);
  const std::string group = R"({"name": "a", "parameters": [)" + twice + "]}";
  refused(shapes(R"({"groups": [)" + group + "," + group + "]}"), "two groups named 'a'",
          Code::kInvalidArgument);
  refused(shapes(R"({"groups": [{"nam": "a", "parameters": []}]})"), "did you mean \"name\"?",
          Code::kInvalidArgument);
  refused(shapes(R"({"groups": [{"parameters": [{"name": "w", "shape": [1], "dtype": "f32"}]}]})"),
          "\"dtype\" is no key of a parameter", Code::kInvalidArgument);
  // As many parameters of 2^50 as make 64 bits wrap around to none.
  std::string many = R"({"groups": [)";
  for (int i = 0; i < 16384; ++i) {
    many += (i == 0 ? R"({"name": "g)" : R"(, {"name": "g)") + std::to_string(i) +
            R"(", "parameters": [{"name": "w", "shape": [1125899906842624]}]})";
  }
  refused(shapes(many + "]}"), "with 'g1.w' more than 2^50 parameters", Code::kInvalidArgument);
  write("x.safetensors", "short");
  refused(folder_.string(), "shorter than 8 bytes", Code::kInvalidArgument);
  write("x.safetensors", std::string(64, '\xff'));
  refused(folder_.string(), "does not fit it", Code::kInvalidArgument);
  write_safetensors("x.safetensors", R"({"w": {"dtype": "F32", "shape": [1]}})");
  write_safetensors("y.safetensors", R"({"w": {"dtype": "F32", "shape": [1]}})");
  refused(folder_.string(), "'w' is in ", Code::kInvalidArgument);
  std::filesystem::remove(folder_.string() + "/y.safetensors");
  write_safetensors("x.safetensors", R"({"w": {"dtype": "Q9", "shape": [1]}})");
  refused(folder_.string(), "'w' has the dtype 'Q9'", Code::kInvalidArgument);
  write_safetensors("x.safetensors", R"({"w": {"shape": [1]}})");
  refused(folder_.string(), "'w' has no shape or no dtype", Code::kInvalidArgument);
  write_safetensors("x.safetensors", R"({"w": {"dtype": "F32", "shape": [1]},
                                         "w": {"dtype": "F32", "shape": [2]}})");
  refused(folder_.string(), "'w' occurs twice", Code::kInvalidArgument);
  write_safetensors("x.safetensors", R"({"w": {"dtype": "F32", "shape": [0]}})");
  refused(folder_.string(), "no whole number from 1 to 2^50", Code::kInvalidArgument);
  write_safetensors("x.safetensors", R"({"w": {"dtype": "F32", "shape": [1]}]})");
  refused(folder_.string(), "line 1, column 37: not JSON: found ]", Code::kInvalidArgument);
}

TEST_F(ModelFiles, WhatIsNoJsonIsToldByItsPlaceAndNotByTheParser) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"{\"groups\": [}", "line 1, column 13: not JSON: found }"},
           {"{\n\"groups\" []}", "line 2, column 10: not JSON: found [ after the name"},
           {"\xff\xfe{", "line 1, column 1: not JSON: a byte that is no text"},
           {std::string("{\"a\":\"\0\"}", 9), "column 7: not JSON: a byte that is no text"},
           {"", "not JSON: it is empty"}}) {
    const std::string told = text_of_failure(write("m.json", text), Code::kInvalidArgument);
    EXPECT_NE(told.find(part), std::string::npos) << told;
    EXPECT_EQ(told.find("json.exception"), std::string::npos) << told;
  }
}

TEST_F(ModelFiles, ATextThatWouldMakeALargeTreeIsRefusedBeforeThereIsOne) {
  const auto refused = [&](const std::string& text, const std::string& part) {
    const std::string told = text_of_failure(write("m.json", text), Code::kInvalidArgument);
    EXPECT_NE(told.find(part), std::string::npos) << told.substr(0, 300);
    EXPECT_LT(told.size(), 2000u);
  };
  refused(std::string(65, '['), "nested deeper than 64 levels");
  refused("{\"groups\": [" + std::string(64, '[') + std::string(64, ']') + "]}",
          "nested deeper than 64 levels");
  std::string many = "{\"groups\": [0";
  for (int i = 0; i < 1'000'000; ++i) many += ",0";
  refused(many + "]}", "more than 1,000,000 values");
  const std::string name(1001, 'n');
  refused(R"({"groups": [{"name": ")" + name + R"(", "parameters": []}]})", "longer than 1000");
  refused(R"({"groups": [{"parameters": [{"name": ")" + name + R"(", "shape": [1]}]}]})",
          "longer than 1000");
  // Brackets and commas inside of texts are none.
  EXPECT_EQ(model_of(write("m.json", R"({"groups": [{"name": "\"[[[,,,\\", "parameters": [)"
                                     R"({"name": "w", "shape": [2]}]}]})"))
                .elements(),
            2u);
}

// Each with as many of the other to look through.
TEST_F(ModelFiles, ManyStacksAndManyNamesOutsideOfThemFindEachOther) {
  std::string header = R"({"embed.w": {"dtype": "BF16", "shape": [1]})";
  for (int i = 0; i < 20'000; ++i) {
    const std::string stack = "s" + std::to_string(i);
    for (const std::string& name : {stack + ".0.w", stack + ".norm", "embed." + stack})
      header += ", \"" + name + R"(": {"dtype": "BF16", "shape": [2]})";
  }
  write_safetensors("model.safetensors", header + "}");
  const Model model = model_of(folder_.string());
  // A block and the norm behind it, each of its own; all embeddings before them.
  ASSERT_EQ(model.groups.size(), 40'001u);
  EXPECT_EQ(model.groups[0].parameters.size(), 20'001u);
  EXPECT_EQ(model.groups[1].name, "s0.0");
  EXPECT_EQ(model.groups[2].parameters[0].name, "s0.norm");
}

TEST_F(ModelFiles, MoreTensorsOrGroupsThanAPlanHasRoomForAreRefused) {
  const auto text_of = [&](std::size_t groups, std::size_t tensors_each) {
    std::string text;
    for (std::size_t g = 0; g < groups; ++g) {
      text += (g == 0 ? R"({"groups": [{"parameters": [)" : R"(]},{"parameters": [)");
      for (std::size_t t = 0; t < tensors_each; ++t)
        text += (t == 0 ? R"({"name": "w)" : R"(,{"name": "w)") + std::to_string(g) + "." +
                std::to_string(t) + R"(", "shape": [1]})";
    }
    return text_of_failure(write("m.json", text + "]}]}"), Code::kInvalidArgument);
  };
  EXPECT_NE(text_of(65'537, 1).find("more than 65,536 groups"), std::string::npos);
  EXPECT_NE(text_of(1, 200'001).find("more than 200,000 tensors"), std::string::npos);
}

TEST_F(ModelFiles, AConfigThatNoModelCanHaveIsRefusedNamingTheKey) {
  const auto refused = [&](const std::string& keys, const std::string& part) {
    write("config.json",
          R"({"model_type": "llama", "intermediate_size": 64, "vocab_size": 9,)" + keys + "}");
    const std::string text = text_of_failure(folder_.string(), Code::kInvalidArgument);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const std::string sizes = R"("hidden_size": 64, "num_hidden_layers": 2,)";
  refused(sizes + R"("num_attention_heads": 65)",
          "\"num_attention_heads\" is 65; without a \"head_dim\" it");
  refused(sizes + R"("num_attention_heads": 7)",
          "\"num_attention_heads\" is 7; without a \"head_dim\" it");
  refused(sizes + R"("num_attention_heads": 8, "num_key_value_heads": 16)",
          "\"num_key_value_heads\" is 16");
  refused(sizes + R"("num_attention_heads": 8, "tie_word_embeddings": "yes")",
          "\"tie_word_embeddings\" is \"yes\"; it must be true or false");
  // Refused before there is a group for each.
  refused(R"("hidden_size": 64, "num_hidden_layers": 16777216, "num_attention_heads": 8)",
          "a whole number from 1 to 4096");
  refused(R"("hidden_size": 16777216, "num_hidden_layers": 2, "num_attention_heads": 16777216,
             "head_dim": 16777216)",
          "more than 2^50 parameters");
}
}  // namespace
}  // namespace headrace::tools::model_test
