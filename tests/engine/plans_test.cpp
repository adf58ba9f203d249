// SPDX-License-Identifier: Apache-2.0
// plans_test: whatever the plan makes of a budget, a prefetch distance and an update mode, and
// however a step departs from the one before, the bits are the same. And what each of the calls
// after a deferred step waits for.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "headrace/engine.hpp"
#include "support/all_on_nvme.hpp"
#include "support/scripted_trainer.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::plans_test {
namespace {
using testing::Departure;
using testing::ScriptedTrainer;

// Groups of one tile and of three.
const std::vector<std::int64_t> kGroups = {3000, 150'000, 3000, 70'000, 3000, 30'000};
constexpr std::uint32_t kTied = 0;

struct Row {
  int budget = 0;  // 0: nothing fits, 5: all fits
  std::uint32_t prefetch_groups = 2;
  UpdateMode mode = UpdateMode::kDefer;
  bool recompute = false;
  Departure departure = Departure::kNone;
  std::string text() const {
    return "budget " + std::to_string(budget) + " of 0..5, prefetch " +
           std::to_string(prefetch_groups) +
           (mode == UpdateMode::kDefer ? ", deferred" : ", barrier") +
           (recompute ? ", recomputed, " : ", ") + name_of(departure);
  }
};

// What the smallest plan takes, and what all in memory does, at this prefetch distance.
std::pair<std::uint64_t, std::uint64_t> budgets_from_to(Settings settings) {
  static std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> known;
  if (const auto found = known.find(settings.prefetch_groups); found != known.end())
    return found->second;
  const auto planned = [&] {
    Engine engine(settings);
    ScriptedTrainer trainer(engine, kGroups, kTied);
    return engine.plan();
  };
  settings.host_budget_bytes = 1;
  std::uint64_t smallest = 0;
  try {
    planned();
  } catch (const Error& error) {
    const std::string text = error.what();
    smallest = std::stoull(text.substr(text.find("would do is ") + 12));
  }
  settings.host_budget_bytes = std::uint64_t{1} << 40;
  return known[settings.prefetch_groups] = {smallest, planned().host_bytes};
}

std::string train(const Row& row) {
  const testing::TemporaryDirectory directory;
  Settings settings = testing::all_on_nvme(directory.string());
  settings.update_slots = 2;
  settings.update_threads = 2;
  settings.prefetch_groups = row.prefetch_groups;
  settings.update_mode = row.mode;
  const auto [least, most] = budgets_from_to(settings);
  settings.host_budget_bytes = least + (most - least) * static_cast<std::uint64_t>(row.budget) / 5;
  Engine engine(settings);
  ScriptedTrainer trainer(engine, kGroups, kTied);
  EXPECT_LE(engine.plan().host_bytes, settings.host_budget_bytes);
  if (row.budget == 0 || row.budget == 5) {
    EXPECT_EQ(engine.plan().resident_share_of_state, row.budget / 5);
  }
  // Departs in the first step too, and comes back to what it did before.
  for (const bool departs : {true, false, false, true, true, false}) {
    trainer.step(script_of(departs ? row.departure : Departure::kNone,
                           static_cast<std::uint32_t>(kGroups.size()), row.recompute));
  }
  return trainer.hashes();
}

// Every seventh combination; HEADRACE_MATRIX=full: all; pairwise: every 41st. Neighbours in any
// column are not left out together.
std::vector<Row> rows() {
  const char* matrix = std::getenv("HEADRACE_MATRIX");
  const std::string wanted = matrix == nullptr ? "" : matrix;
  const int of = wanted == "full" ? 1 : wanted == "pairwise" ? 41 : 7;
  std::vector<Row> all;
  for (int budget = 0; budget < 6; ++budget) {
    for (std::uint32_t prefetch = 0; prefetch < 5; ++prefetch) {
      for (int bits = 0; bits < 4; ++bits) {
        for (int d = 0; d < testing::kDepartures; ++d) {
          if ((5 * budget + 11 * static_cast<int>(prefetch) + 3 * bits + 5 * d) % of != 0) continue;
          all.push_back({budget, prefetch, bits & 1 ? UpdateMode::kBarrier : UpdateMode::kDefer,
                         (bits & 2) != 0, static_cast<Departure>(d)});
        }
      }
    }
  }
  return all;
}

TEST(Plans, OfAnyBudgetDistanceAndModeGiveTheSameBitsHoweverStepsDepart) {
  std::map<Departure, std::string> expected;
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.text());
    const std::string hashes = train(row);
    ASSERT_EQ(hashes, expected.emplace(row.departure, hashes).first->second);
  }
  EXPECT_EQ(expected.size(), static_cast<std::size_t>(testing::kDepartures));
}
}  // namespace
}  // namespace headrace::plans_test
