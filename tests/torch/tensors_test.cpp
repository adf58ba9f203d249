// SPDX-License-Identifier: Apache-2.0
#include "headrace/torch/tensors.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace theirs {
struct Output {
  at::Tensor logits;
  std::pair<at::Tensor, int> cache;
};
template <class See>
void visit_tensors(const Output& output, See&& see) {
  see(output.logits);
  see(output.cache);
}
}  // namespace theirs

namespace {
template <class T>
std::size_t count(const T& value) {
  std::size_t found = 0;
  headrace::torch::for_each_tensor(
      value, [&](const at::Tensor& tensor) { found += tensor.defined() ? 1 : 0; });
  return found;
}

TEST(ForEachTensor, FindsThemInNestedStandardTypes) {
  const at::Tensor t = at::ones({1});
  EXPECT_EQ(count(t), 1u);
  EXPECT_EQ(count(std::optional<at::Tensor>{}), 0u);
  EXPECT_EQ(count(std::optional<at::Tensor>{t}), 1u);
  EXPECT_EQ(count(std::make_pair(t, std::vector<at::Tensor>{t, t})), 3u);
  EXPECT_EQ(count(std::make_tuple(t, 3, std::string("text"), 2.5, true, nullptr)), 1u);
  EXPECT_EQ(count(std::array<at::Tensor, 2>{t, t}), 2u);
  EXPECT_EQ(count(std::map<std::string, std::tuple<at::Tensor, at::Tensor>>{{"a", {t, t}},
                                                                            {"b", {t, t}}}),
            4u);
}

TEST(ForEachTensor, FindsThemInATypeWithAnOverload) {
  const at::Tensor t = at::ones({1});
  EXPECT_EQ(count(theirs::Output{t, {t, 1}}), 2u);
  EXPECT_EQ(count(std::vector<theirs::Output>{{t, {t, 1}}, {t, {at::Tensor(), 2}}}), 3u);
}
}  // namespace
