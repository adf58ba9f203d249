// SPDX-License-Identifier: Apache-2.0
// local_ranks_test: what ranks of one machine share: its CPUs, its memory, its drives.
#include "ranks/local_ranks.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>

#include "headrace/engine.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"

namespace headrace::ranks {
namespace {
// Runs `body` on a thread per rank.
void on_ranks(std::uint32_t world,
              const std::function<void(std::uint32_t, const std::shared_ptr<Collective>&)>& body) {
  const auto collectives = collective::make_collective_threads(
      std::vector<std::shared_ptr<Device>>(world), std::chrono::minutes(1));
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r, collectives[r]);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LocalRanks, ShareCpusAndMemoryOfTheMachine) {
  on_ranks(3, [](std::uint32_t rank, const std::shared_ptr<Collective>& collective) {
    const LocalRanks found = find_local_ranks(*collective);
    EXPECT_EQ(found.local_rank, rank);
    EXPECT_EQ(found.of_machine, 3u);
    EXPECT_EQ(found.sharing_cpus, 3u);
    const std::string& source = found.memory_left.source;
    EXPECT_NE(source.find(", shared by 3 ranks"), std::string::npos) << source;
    EXPECT_LE(found.memory_left.value, platform::memory_left().value / 2);
    EXPECT_GT(found.memory_left.value, 0u);
  });
}

// Linux binds threads one by one, as a launcher binds processes.
TEST(LocalRanks, ThatAreBoundToCpusOfTheirOwnShareNone) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  if (cpus.size() < 2) GTEST_SKIP() << "one CPU";
  on_ranks(3, [&](std::uint32_t rank, const std::shared_ptr<Collective>& collective) {
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpus[rank == 2 ? 1 : rank], &own);
    ASSERT_EQ(sched_setaffinity(0, sizeof own, &own), 0);
    const LocalRanks found = find_local_ranks(*collective);
    EXPECT_EQ(found.sharing_cpus, rank == 0 ? 1u : 2u);
    EXPECT_EQ(found.of_machine, 3u);
  });
}

TEST(LocalRanks, AreAloneWithoutOthers) {
  on_ranks(1, [](std::uint32_t, const std::shared_ptr<Collective>& collective) {
    const LocalRanks found = find_local_ranks(*collective);
    EXPECT_EQ(found.of_machine, 1u);
    EXPECT_EQ(found.sharing_cpus, 1u);
    EXPECT_EQ(found.memory_left.source.find("shared"), std::string::npos);
  });
}

TEST(LocalRanks, HavePathsOfTheirOwn) {
  EXPECT_EQ(path_of_rank("/mnt/nvme{local_rank}/of-{rank}-{rank}", 10, 2), "/mnt/nvme2/of-10-10");
  EXPECT_EQ(path_of_rank("/mnt/{other}/{}", 1, 1), "/mnt/{other}/{}");
}

// Settings are one text for all ranks, and each swaps to its own drive.
TEST(LocalRanks, SwapWhereTheirPathsSay) {
  const testing::TemporaryDirectory folder;
  for (const char* name : {"0", "1"}) std::filesystem::create_directory(folder.path() / name);
  on_ranks(2, [&](std::uint32_t rank, const std::shared_ptr<Collective>& collective) {
    Settings settings;
    settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kNvme;
    settings.nvme_paths = {folder.string() + "/{rank}"};
    settings.allow_memory_backed = true;
    EngineOptions options;
    options.collective = collective;
    std::vector<std::string> lines;
    options.log = [&](LogLevel, std::string_view line) { lines.emplace_back(line); };
    Engine engine(settings, options);
    engine.add_group("g", {{"w", DType::kF32, {200'000}, {}}});
    engine.freeze();
    EXPECT_TRUE(std::ranges::any_of(lines, [](const std::string& line) {
      return line.find("update threads (") != std::string::npos &&
             line.find("shared by 2 ranks") != std::string::npos;
    }));
    ASSERT_EQ(engine.plan().drives.size(), 1u);
    EXPECT_EQ(engine.plan().drives[0].path, folder.string() + "/" + std::to_string(rank));
    EXPECT_FALSE(std::filesystem::is_empty(folder.path() / std::to_string(rank)));
    engine.close();
  });
}
}  // namespace
}  // namespace headrace::ranks
