// SPDX-License-Identifier: Apache-2.0
// expect_code.hpp: that a statement throws headrace::Error with this code, and what its text names.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "headrace/error.hpp"

namespace headrace::testing {
template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {Code::kOk, ""};
}
}  // namespace headrace::testing

#define EXPECT_CODE(wanted, statement, part)                                            \
  do {                                                                                  \
    const headrace::Error error = headrace::testing::error_of([&] { statement; });      \
    EXPECT_EQ(error.code(), wanted) << error.what();                                    \
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what(); \
  } while (false)
