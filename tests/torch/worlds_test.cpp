// SPDX-License-Identifier: Apache-2.0
// Ranks train the models of adapter_worlds.hpp, each a thread with a model of its own.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/late_transport.hpp"
#include "support/thread_ranks.hpp"
#include "torch/adapter_worlds.hpp"

namespace headrace_torch_worlds {
namespace {
using headrace_test::adapter_worlds::kSteps;
using headrace_test::adapter_worlds::Model;
using headrace_test::adapter_worlds::Outcome;
using headrace_test::adapter_worlds::Place;
using headrace_test::adapter_worlds::train;
using headrace_test::adapter_worlds::Variant;
using headrace_test::adapter_worlds::variants;

// body(place, rank) on a thread each; what it threw, by rank.
template <class Body>
std::vector<std::exception_ptr> on_ranks(
    const std::vector<std::shared_ptr<headrace::Transport>>& transports, const Body& body) {
  const std::vector<std::shared_ptr<headrace::Device>> devices(transports.size());
  auto collectives =
      headrace::collective::make_collectives(transports, devices, std::chrono::seconds(120));
  std::vector<std::exception_ptr> errors(transports.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < transports.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(Place{std::exchange(collectives[r], nullptr)});
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::string text_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& one) {
    return one.what();
  }
}

class AdapterWorlds : public testing::TestWithParam<Variant> {};

TEST_P(AdapterWorlds, EndInTheBitsOfOneRank) {
  const headrace_test::SwapFolder folder;
  const Outcome alone = train(GetParam(), {}, folder.path());
  for (const std::uint32_t world : {2u, 3u}) {
    SCOPED_TRACE(std::to_string(world) + " ranks");
    std::vector<Outcome> outcomes(world);
    const auto errors = on_ranks(
        headrace::collective::make_late_transports(world, headrace::collective::late_seed()),
        [&](const Place& place) {
          outcomes[static_cast<std::size_t>(place.rank())] =
              train(GetParam(), place, folder.path());
        });
    for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
    std::map<int, double> losses;
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.parameters, alone.parameters);
      EXPECT_EQ(outcome.state, alone.state);
      losses.insert(outcome.losses.begin(), outcome.losses.end());
    }
    EXPECT_EQ(losses, alone.losses);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, AdapterWorlds, testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.name; });

// Rank 1 fails in the second step. Whoever ends a rank says why; where it does not, that rank left.
class AdapterWorldsThatFail : public testing::TestWithParam<bool> {};

TEST_P(AdapterWorldsThatFail, EndOnEveryRankWithRankAndCause) {
  const bool says_why = GetParam();
  for (const std::uint32_t world : {2u, 3u}) {
    SCOPED_TRACE(std::to_string(world) + " ranks");
    const auto began = std::chrono::steady_clock::now();
    const auto errors = on_ranks(headrace::make_thread_transports(world), [&](const Place& place) {
      try {
        Model model({.name = "fails", .checkpointed = says_why}, place, "");
        if (place.rank() == 1) model.fails_at = 6 + 1;
        for (int step = 0; step < kSteps; ++step) model.step(step);
      } catch (const std::runtime_error& error) {
        if (says_why && place.rank() == 1) place.collective->abort(error.what());
        throw;
      }
    });
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
    EXPECT_EQ(text_of(errors[1]), "the forward of rank 1 failed");
    for (std::size_t r = 0; r < world; ++r) {
      if (r == 1) continue;
      try {
        if (errors[r]) std::rethrow_exception(errors[r]);
        ADD_FAILURE() << "rank " << r << " went on";
      } catch (const headrace::Error& error) {
        EXPECT_EQ(error.code(), headrace::Code::kPeerLost);
        const std::string text = error.what();
        const std::string cause =
            says_why ? "rank 1 gave up: the forward of rank 1 failed" : "rank 1 has left";
        EXPECT_NE(text.find(cause), std::string::npos) << text;
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Causes, AdapterWorldsThatFail, testing::Bool(),
                         [](const auto& info) { return info.param ? "RankAborts" : "RankLeaves"; });
}  // namespace
}  // namespace headrace_torch_worlds
