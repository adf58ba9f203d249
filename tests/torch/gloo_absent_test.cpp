// SPDX-License-Identifier: Apache-2.0
// gloo_absent_test.cpp: linked so that torch seems to have no Gloo.
#include <gtest/gtest.h>

#include "headrace/error.hpp"
#include "headrace/launch.hpp"
#include "headrace/torch/gloo.hpp"
#include "support/expect_code.hpp"

namespace headrace::torch {
namespace {
TEST(GlooAbsent, IsSaidByAProgramThatStarts) {
  Launch launch;
  launch.kind = Launch::Kind::kTorch;
  EXPECT_CODE(Code::kUnsupported, (void)make_gloo_transport(launch),
              "this torch was built without Gloo; no transport was made; use a torch");
}
}  // namespace
}  // namespace headrace::torch
