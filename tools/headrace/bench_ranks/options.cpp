// SPDX-License-Identifier: Apache-2.0
#include "bench_ranks/options.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "command_line/command_line.hpp"
#include "command_line/quantities.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kSizes = "1k,16k,256k,1M,4M,16M,64M";
constexpr std::uint64_t kLargest = 256 * base::kMiB;  // MPI counts in int
constexpr const char* kFooter =
    "\nSizes are powers of 1024: --sizes 64k,1M. GB/s is what arrives at a rank.\n"
    "  mpirun -n 2 headrace bench ranks\n"
    "  torchrun --nproc-per-node 2 --no-python headrace bench ranks\n"
    "  headrace bench ranks --threads 2\n"
    "\nExit codes: 0 done, 1 the run failed or bytes differed, 2 refused before it started, 128 + "
    "n ended by\nsignal n.\n";
}  // namespace

void add_rank_options(CLI::App& app, RankBenchOptions& o, RankBenchWords& w) {
  app.footer(kFooter);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto text = [&](const char* name, const char* type, std::string& to, const char* help) {
    app.add_option(name, to, help)->type_name(type);
  };
  text("--sizes", "LIST", w.sizes,
       "Bytes that a rank gives to each other, 1 to 256M [1k,16k,256k,1M,4M,16M,64M]");
  command_line::add_number(app, "--rounds", o.contest.rounds, {1, 10000},
                           "Rounds, after one to warm up [7]");
  text("--seconds", "TIME", w.seconds, "Length of each measurement [0.05]");
  command_line::add_choice<LaunchChoice>(
      app, "--ranks", o.ranks,
      {{"auto", LaunchChoice::kAuto},
       {"none", LaunchChoice::kNone},
       {"mpi", LaunchChoice::kMpi},
       {"torch", LaunchChoice::kTorch}},
      "Whose variables say which rank this is: auto, none, mpi, torch [auto]")
      ->type_name("WHOSE");
  command_line::add_number(app, "--threads", o.threads, {2, 64},
                           "Ranks that are threads of this process, in place of a launcher's");
  text("--json", "FILE", o.json, "File for the report; - is stdout");
}

void finish_rank_options(RankBenchOptions& o, const RankBenchWords& w) {
  o.sizes_given = !w.sizes.empty();
  std::vector<std::uint64_t>& sizes = o.contest.sizes;
  for (const std::string& word :
       command_line::to_list("--sizes", o.sizes_given ? w.sizes : std::string(kSizes)))
    sizes.push_back(command_line::to_bytes("--sizes", word, {1, kLargest}));
  std::ranges::sort(sizes);
  const auto repeated = std::ranges::unique(sizes);
  sizes.erase(repeated.begin(), repeated.end());
  if (!w.seconds.empty())
    o.contest.sample_seconds = command_line::to_seconds("--seconds", w.seconds, {0.001, 60});
  o.contest.ranks_of_process = std::max<std::uint32_t>(o.threads, 1);
}

Launch launch_of(const RankBenchOptions& o) {
  const Launch launch = find_launch(o.ranks);
  const bool launched = launch.kind != Launch::Kind::kNone;
  if (launched && o.threads > 0) {
    throw command_line::Fault{
        "--threads makes ranks of one process, and " + launch.launcher + " started several",
        "Leave --threads out, or give --ranks none"};
  }
  if (launched && launch.world_size == 1) {
    throw command_line::Fault{launch.launcher + " started one rank, which has no other to measure",
                              "Start two: mpirun -n 2, torchrun --nproc-per-node 2"};
  }
  if (launched || o.threads > 0) return launch;
  throw command_line::Fault{
      "this is one process, and ranks are at least two",
      "Run mpirun -n 2 headrace bench ranks, or torchrun --nproc-per-node 2 --no-python headrace "
      "bench ranks; or give --threads 2 for threads of one process"};
}
}  // namespace headrace::tools
