// SPDX-License-Identifier: Apache-2.0
// instruction_set_test.cpp: the kernel that HEADRACE_SIMD picks, and the values that it refuses.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "headrace/error.hpp"
#include "kernels/instruction_set.hpp"

namespace headrace::kernels {
namespace {
constexpr Simd kAllSets[] = {Simd::kScalar, Simd::kAvx2, Simd::kAvx512};

class InstructionSetChoice : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* before = std::getenv("HEADRACE_SIMD")) before_ = before;
    unsetenv("HEADRACE_SIMD");
  }
  void TearDown() override {
    before_.empty() ? unsetenv("HEADRACE_SIMD") : setenv("HEADRACE_SIMD", before_.c_str(), 1);
  }
  std::string before_;
};

TEST_F(InstructionSetChoice, IsTheWidestThisCpuHas) {
  const Simd chosen = choose_instruction_set();
  EXPECT_TRUE(runs_here(chosen));
  for (const Simd set : kAllSets) {
    if (runs_here(set)) {
      EXPECT_LE(int(set), int(chosen));
    }
  }
}

TEST_F(InstructionSetChoice, IsWhatTheEnvironmentSaysOrRefused) {
  for (const Simd set : kAllSets) {
    setenv("HEADRACE_SIMD", name_of(set), 1);
    if (runs_here(set)) {
      EXPECT_EQ(choose_instruction_set(), set);
      continue;
    }
    try {
      (void)choose_instruction_set();
      ADD_FAILURE() << "accepted " << name_of(set);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUnsupported);
      EXPECT_NE(std::string(error.what()).find(name_of(set)), std::string::npos);
    }
  }
}

// Of hashes and gradients, which are computed where nothing can be refused.
TEST_F(InstructionSetChoice, IsBoundedByTheEnvironmentWhereItCannotBeRefused) {
  const Simd best = choose_instruction_set();
  EXPECT_EQ(usable_instruction_set(), best);
  for (const Simd set : kAllSets) {
    setenv("HEADRACE_SIMD", name_of(set), 1);
    EXPECT_EQ(usable_instruction_set(), runs_here(set) ? set : best) << name_of(set);
  }
  setenv("HEADRACE_SIMD", "avx-512", 1);
  EXPECT_EQ(usable_instruction_set(), best);
}

TEST_F(InstructionSetChoice, NamesTheNearestWordForAMisspeltOne) {
  setenv("HEADRACE_SIMD", "avx-512", 1);
  try {
    (void)choose_instruction_set();
    FAIL() << "accepted avx-512";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kSettings);
    const std::string text = error.what();
    EXPECT_NE(text.find("'avx-512'"), std::string::npos) << text;
    EXPECT_NE(text.find("set it to avx512"), std::string::npos) << text;
  }
}

TEST_F(InstructionSetChoice, KeepsItsMessageToOneShortLine) {
  setenv("HEADRACE_SIMD", ("avx\n\x1b[2J" + std::string(5000, 'x')).c_str(), 1);
  try {
    (void)choose_instruction_set();
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_LT(text.size(), 400u);
    EXPECT_EQ(text.find_first_of("\n\x1b"), std::string::npos) << text;
  }
}
}  // namespace
}  // namespace headrace::kernels
