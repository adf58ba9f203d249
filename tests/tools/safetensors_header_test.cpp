// SPDX-License-Identifier: Apache-2.0
// safetensors_header_test: headers of safetensors files, whoever wrote them.
#include "safetensors/header.hpp"

#include <gtest/gtest.h>

#include <ctime>
#include <random>

namespace headrace::tools::safetensors_header_test {
namespace {
// "": there is none.
std::string fault_of(std::string_view header) {
  try {
    parse_header(header);
  } catch (const SafetensorsFault& fault) {
    return fault.what();
  }
  return "";
}

TEST(SafetensorsHeader, NamesWhatIsWrong) {
  const auto refused = [](std::string_view header, std::string_view why) {
    EXPECT_NE(fault_of(header).find(why), std::string::npos) << fault_of(header);
  };
  refused("[]", "does not begin with '{'");
  refused("{", "no JSON object");
  refused(R"({"a":1})", "'a' has no shape or no dtype");
  refused(R"({"a":{"dtype":1,"shape":[1]}})", "'a' has no shape or no dtype");
  refused(R"({"a":{"dtype":"U8","shape":[-1]}})", "whole number");
  refused(R"({"a":{"dtype":"U8","shape":[1.5]}})", "whole number");
  refused(R"({"a":{"dtype":"U8","shape":[9223372036854775808]}})", "is too large");
  refused(R"({"a":{"dtype":"U8","shape":7}})", "is no list");
  std::string ones = "1";
  for (int i = 1; i < 65; ++i) ones += ",1";
  refused(R"({"a":{"dtype":"U8","shape":[)" + ones + "]}}",
          "the shape of 'a' has more than 64 sizes");
  refused(R"({"a":{"dtype":"U8","shape":[1]},"a":{"dtype":"U8","shape":[1]}})", "'a' occurs twice");
}

TEST(SafetensorsHeader, HasShapesAndTypesAndNothingElseIsAskedOfIt) {
  const TensorsByName tensors =
      parse_header(R"({"__metadata__":{"dtype":7},"b":{"shape":[],"dtype":"F32"},)"
                   R"("a":{"dtype":"F4","shape":[2,3],"data_offsets":["x"]}})");
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors.at("a").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(tensors.at("a").dtype, "F4");
  EXPECT_TRUE(tensors.at("b").shape.empty());
}

TEST(SafetensorsHeader, WhatItDoesNotKnowInATensorIsPassedOver) {
  const TensorsByName tensors = parse_header(
      R"({"a":{"x":{"dtype":1,"shape":[[]]},"dtype":"U8","y":[[1],{"shape":2}],"shape":[1]}})");
  EXPECT_EQ(tensors.at("a").shape, std::vector<std::int64_t>{1});
}

TEST(SafetensorsHeader, DeepNestingIsSurvived) {
  std::string header = "{\"a\":";
  header.append(200'000, '[');
  EXPECT_EQ(fault_of(header), "its header is no JSON object");
  EXPECT_EQ(fault_of(header + std::string(200'000, ']') + "}"), "'a' has no shape or no dtype");
}

// Whatever the bytes, the outcome is tensors or a fault.
TEST(SafetensorsHeader, SurvivesDamage) {
  std::mt19937_64 random(20240607);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = R"({"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                        R"("a":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}})";
    for (std::uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      const std::size_t at = random() % bytes.size();
      const char other = "0123456789[]{}\",:"[random() % 17];
      if (random() % 3 == 0) {
        bytes.insert(at, 1 + random() % 3, other);
      } else {
        bytes[at] = random() % 2 == 0 ? other : static_cast<char>(random());
      }
    }
    if (!fault_of(bytes).empty()) ++refused;
  }
  EXPECT_GT(refused, 1000);
}

// Some 0.2 s each. A parser that looked through all tensors at the end of each took 287 s for half
// as many.
TEST(SafetensorsHeader, CostsTimeInProportionToItsBytes) {
  const auto seconds_of = [](const std::string& header) {
    const std::clock_t begin = std::clock();
    EXPECT_EQ(fault_of(header), "");
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  std::string many = "{", nested = R"({"__metadata__":{"":0)";
  for (int i = 0; i < 200'000; ++i) {
    const std::string number = std::to_string(i);
    many += (i == 0 ? "\"" : ",\"") + number + R"(":{"dtype":"U8","shape":[1]})";
    nested += ",\"" + number + "\":{}";
  }
  EXPECT_LT(seconds_of(many + "}"), 20);
  EXPECT_LT(seconds_of(nested + "}}"), 20);
}

TEST(SafetensorsHeader, OfManyTensorsIsWrittenAsItIsRead) {
  std::vector<TensorEntry> tensors(50'000);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    tensors[i] = {.name = "h." + std::to_string(i), .dtype = "BF16", .shape = {3}};
  std::uint64_t data_bytes = 0;
  const std::string written = header_of(tensors, data_bytes);
  EXPECT_EQ(data_bytes, 50'000u * 6);
  EXPECT_EQ(written.size() % 4096, 0u);
  const auto length = std::as_bytes(std::span(written)).first<kLengthBytes>();
  EXPECT_EQ(header_length(length), written.size() - kLengthBytes);
  EXPECT_NE(
      written.find(R"("h.49999":{"dtype":"BF16","shape":[3],"data_offsets":[299994,300000]})"),
      std::string::npos);
  EXPECT_EQ(parse_header(std::string_view(written).substr(kLengthBytes)).size(), tensors.size());
}
}  // namespace
}  // namespace headrace::tools::safetensors_header_test
