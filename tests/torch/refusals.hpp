// SPDX-License-Identifier: Apache-2.0
// refusals.hpp: whether a parameter is parked, and whether an error says what it should.
#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <exception>
#include <string>
#include <vector>

#include "headrace/error.hpp"

namespace headrace_test {
inline bool parked(const torch::Tensor& parameter) {
  if (!parameter.defined()) return false;
  try {
    parameter.data_ptr();
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}
inline bool all_parked(const torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) {
    if (!parked(parameter)) return false;
  }
  return true;
}

// The text of what `call` throws, an E. It has every one of `parts`.
template <class E = std::exception, class F>
std::string expect_thrown(F call, const std::vector<std::string>& parts) {
  try {
    call();
  } catch (const E& error) {
    const std::string text = error.what();
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
    return text;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}
template <class F>
void expect_error(F call, headrace::Code code, const std::vector<std::string>& parts) {
  const auto with_code = [&] {
    try {
      call();
    } catch (const headrace::Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      throw;
    }
  };
  expect_thrown<headrace::Error>(with_code, parts);
}
// The same of torch's own error.
template <class F>
void expect_torch_error(F call, const std::vector<std::string>& parts) {
  expect_thrown<c10::Error>(call, parts);
}
}  // namespace headrace_test
