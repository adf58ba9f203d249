// SPDX-License-Identifier: Apache-2.0
// safetensors_parse_test: headers of safetensors files, whoever wrote them.
#include "checkpoint/safetensors_parse.hpp"

#include <gtest/gtest.h>

#include <ctime>

namespace headrace::checkpoint::safetensors_parse_test {
namespace {
// "": there is none.
std::string fault_of(std::string_view header, std::uint64_t data_bytes,
                     DataOffsets offsets = DataOffsets::kWanted) {
  try {
    const TensorsByName tensors = parse_header(header, offsets);
    if (offsets == DataOffsets::kWanted) check_data(tensors, data_bytes);
  } catch (const SafetensorsFault& fault) {
    return fault.what();
  }
  return "";
}

TEST(SafetensorsParse, NamesWhatIsWrong) {
  const auto refused = [](std::string_view header, std::uint64_t data_bytes, std::string_view why) {
    EXPECT_NE(fault_of(header, data_bytes).find(why), std::string::npos)
        << fault_of(header, data_bytes);
  };
  refused("[]", 0, "does not begin with '{'");
  refused("{", 0, "no JSON object");
  refused(R"({"a":1})", 0, "lacks one of");
  refused(R"({"a":{"dtype":"Q8","shape":[1],"data_offsets":[0,1]}})", 1,
          "dtype 'Q8' of 'a' is unknown");
  refused(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "whole number");
  refused(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "whole number");
  refused(R"({"a":{"dtype":"U8","shape":[9223372036854775808]}})", 1, "is too large");
  refused(R"({"a":{"dtype":1,"shape":[1],"data_offsets":[0,1]}})", 1,
          "the dtype of 'a' is no string");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":7}})", 1, "are not two");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,"1"]}})", 1, "an offset of 'a'");
  refused(R"({"a":{"dtype":"U8","shape":7,"data_offsets":[0,1]}})", 1, "is no list");
  std::string ones = "1";
  for (int i = 1; i < 1002; ++i) ones += ",1";
  refused(R"({"a":{"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1]}})", 1,
          "the shape of 'a' has 1002 sizes, more than 64");
  refused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1,
          "has 1 bytes, its shape needs 2");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}})", 1,
          "lies at bytes 0 to 2 of 1");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "lies at bytes 1 to 0");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "are not two");
  refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
          "overflows");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
          "begins at byte 1, expected 0");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2,
          "end at byte 1, the file at 2");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
          R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          1, "'a' occurs twice");
  refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
          R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          1, "expected 1");
}

TEST(SafetensorsParse, ShapesAreTakenWithoutOffsetsWhereThoseAreLeftOut) {
  const std::string_view header = R"({"__metadata__":{"dtype":7},"b":{"shape":[],"dtype":"F32"},)"
                                  R"("a":{"dtype":"F4","shape":[2,3],"data_offsets":["x"]}})";
  const TensorsByName tensors = parse_header(header, DataOffsets::kLeftOut);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors.at("a").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(tensors.at("a").dtype, "F4");
  EXPECT_TRUE(tensors.at("b").shape.empty());
  EXPECT_EQ(fault_of(header, 0), "'b' lacks one of dtype, shape, data_offsets");
  EXPECT_EQ(fault_of(R"({"a":{"dtype":1,"shape":[1]}})", 0, DataOffsets::kLeftOut),
            "'a' has no shape or no dtype");
}

TEST(SafetensorsParse, WhatItDoesNotKnowInATensorIsPassedOver) {
  EXPECT_EQ(fault_of(R"({"a":{"x":{"dtype":1,"shape":[[]]},"dtype":"U8","y":[[1],{"shape":2}],)"
                     R"("shape":[1],"data_offsets":[0,1]}})",
                     1),
            "");
}

TEST(SafetensorsParse, DeepNestingIsSurvived) {
  std::string header = "{\"a\":";
  header.append(200'000, '[');
  EXPECT_EQ(fault_of(header, 0), "its header is no JSON object");
  EXPECT_EQ(fault_of(header + std::string(200'000, ']') + "}", 0),
            "'a' lacks one of dtype, shape, data_offsets");
}

// Some 0.2 s each. A parser that looked through all tensors at the end of each took 287 s for half
// as many.
TEST(SafetensorsParse, CostsTimeInProportionToItsBytes) {
  const auto seconds_of = [](const std::string& header, std::uint64_t data_bytes) {
    const std::clock_t begin = std::clock();
    EXPECT_EQ(fault_of(header, data_bytes), "");
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  std::string many = "{", nested = R"({"__metadata__":{"":0)";
  constexpr int kTensors = 200'000;
  for (int i = 0; i < kTensors; ++i) {
    const std::string number = std::to_string(i);
    many += (i == 0 ? "\"" : ",\"") + number + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" +
            number + "," + std::to_string(i + 1) + "]}";
    nested += ",\"" + number + "\":{}";
  }
  EXPECT_LT(seconds_of(many + "}", kTensors), 20);
  EXPECT_LT(seconds_of(nested + "}}", 0), 20);
}
}  // namespace
}  // namespace headrace::checkpoint::safetensors_parse_test
