// SPDX-License-Identifier: Apache-2.0
// refusals.hpp: whether a parameter is parked, and whether an error says what it should.
#pragma once
#include <gtest/gtest.h>
#include <torch/torch.h>

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

// The error that `call` throws; its text has every one of `parts`.
template <class F>
void expect_error(F call, headrace::Code code, const std::vector<std::string>& parts) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const headrace::Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "no \"" << part << "\" in: " << error.what();
    }
  }
}
// The same of torch's own error.
template <class F>
void expect_torch_error(F call, const std::vector<std::string>& parts) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "no \"" << part << "\" in: " << error.what();
    }
  }
}
}  // namespace headrace_test
