// SPDX-License-Identifier: Apache-2.0
#include "base/units.hpp"

#include <gtest/gtest.h>

namespace headrace::base {
namespace {
static_assert(ceil_div(0, 7) == 0 && ceil_div(1, 7) == 1 && ceil_div(7, 7) == 1);
static_assert(ceil_div(8, 7) == 2);
static_assert(align_up(0, 4096) == 0 && align_up(1, 4096) == 4096 && align_up(4096, 4096) == 4096);
static_assert(align_up(4097, 4096) == 8192);
static_assert(align_down(4095, 4096) == 0 && align_down(4096, 4096) == 4096);
static_assert(align_down(8191, 4096) == 4096);

TEST(Units, BytesAreWrittenInTheLargestUnitThatTheyFill) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(640 * kKiB), "640 KiB");
  EXPECT_EQ(format_bytes(kMiB + kMiB / 2), "1.50 MiB");
  EXPECT_EQ(format_bytes(kGiB + kGiB / 4), "1.25 GiB");
  EXPECT_EQ(format_bytes(3 * 1024 * kGiB), "3 TiB");
  EXPECT_EQ(format_bytes(~std::uint64_t{0}), "16384 PiB");
}

TEST(Units, WhatRoundsUpToTheNextUnitIsWrittenInIt) {
  EXPECT_EQ(format_bytes(kMiB - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(kGiB - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(1018 * kKiB + 1), "1018.00 KiB");
}

TEST(Units, BytesStandBesideWhatIsRounded) {
  EXPECT_EQ(format_bytes_exactly(40 * kMiB), "40 MiB");
  EXPECT_EQ(format_bytes_exactly(40 * kMiB + 1), "40.00 MiB (41943041 bytes)");
  EXPECT_EQ(format_bytes_exactly(1023), "1023 B");
}
}  // namespace
}  // namespace headrace::base
