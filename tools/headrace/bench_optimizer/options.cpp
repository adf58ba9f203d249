// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/options.hpp"

#include <algorithm>

#include "base/sizes.hpp"
#include "base/units.hpp"
#include "bench_optimizer/selection.hpp"
#include "command_line/command_line.hpp"
#include "command_line/quantities.hpp"
#include "headrace/error.hpp"
#include "platform/machine.hpp"
#include "program/failing.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
using command_line::Fault;

constexpr const char* kDescription =
    "Measures the optimizer's update on the CPU: the engine's pass over weights, state and "
    "gradients in\nmemory, beside passes that read and write the same memory in place. Rounds are "
    "interleaved; medians\ncome with a 95 % interval. No drive is touched.\n";
constexpr const char* kFooter =
    "\nLists have commas, sizes are powers of 1024: --rule adamw,lion --parameters 32M. Without "
    "lists a default\nset is measured; with any, all combinations, and adamw, f32, bf16-split and "
    "bf16 for those not given.\n"
    "\nExit codes: 0 done, 1 the run failed, 2 refused before it started, 3 this CPU lacks a set "
    "of --simd,\n4 a --require was missed, 128 + n ended by signal n.\n";
constexpr std::uint64_t kMi = 1 << 20;
constexpr std::uint64_t kMostElements = 1ull << 40;

// As given; empty: not.
struct Words {
  std::string rules, moments, weights, gradients, simd, threads, parameters, rounds, runtime,
      require;
  bool all = false, quick = false, checksum = false;
};

void add_what(CLI::App& app, Words& w) {
  const char* group = "What is measured";
  const auto list = [&](const char* name, std::string& to, const char* help) {
    app.add_option(name, to, help)->group(group)->type_name("LIST");
  };
  list("--rule", w.rules, "adamw, adam, lion, adagrad, sgd, sgd_momentum");
  list("--moments", w.moments, "Formats of moments: f32, bf16, 8bit");
  list("--weight", w.weights,
       "bf16-split: with a residual; bf16, fp16: with an f32 master; f32: its own");
  list("--gradient", w.gradients, "bf16, fp16, f32");
  list("--simd", w.simd, "scalar, avx2, avx512 [HEADRACE_SIMD, else the best of this CPU]");
  list("--threads", w.threads, "1 to 1024 [all usable CPUs]");
  app.add_flag("--checksum", w.checksum,
               "Also with the checksums of state on a drive, in rows of their own")
      ->group(group);
  app.add_flag("--all", w.all, "All values of the lists that are not given: a long table")
      ->group(group);
}

void add_how_much(CLI::App& app, OptimizerBenchOptions& o, Words& w) {
  const char* group = "How much";
  const auto text = [&](const char* name, const char* type, std::string& to, const char* help) {
    app.add_option(name, to, help)->group(group)->type_name(type);
  };
  text("--parameters", "SIZE", w.parameters, "Parameters of each row [64M; --quick 16M; --all 8M]");
  text("--rounds", "N", w.rounds, "Rounds, after one to warm up [15; --quick, --all 9]");
  text("--runtime", "TIME", w.runtime, "At most this long in all [60s; --quick 10s; --all 10m]");
  app.add_flag("--quick", w.quick, "A first look in 10 s")->group(group);
  group = "Results";
  app.add_option("--json", o.json, "File for the report; - is stdout")
      ->group(group)
      ->type_name("FILE");
  text("--require", "share=X", w.require, "");
  app.get_option("--require")
      ->group(group)
      ->description("Exit with 4 if a row's share of the bandwidth is lower");
}

template <class T>
std::vector<T> choices(const char* name, const std::string& list,
                       const std::vector<std::pair<std::string, T>>& known) {
  std::vector<T> values;
  if (list.empty()) return values;
  for (const std::string& word : command_line::to_list(name, list)) {
    const T value = command_line::to_choice(name, word, known);
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  return values;
}

std::vector<std::uint32_t> threads_of(const std::string& list) {
  std::vector<std::uint32_t> values;
  if (list.empty()) return values;
  for (const std::string& word : command_line::to_list("--threads", list)) {
    const auto value =
        static_cast<std::uint32_t>(command_line::to_whole("--threads", word, {1, 1024}));
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  return values;
}

// "64M": 67,108,864.
std::uint64_t to_elements(const std::string& word) {
  const std::size_t end = std::min(word.find_first_not_of("0123456789"), word.size());
  const std::string suffix = word.substr(end);
  const std::uint64_t factor = suffix.empty()                   ? 1
                               : suffix == "k" || suffix == "K" ? 1 << 10
                               : suffix == "M"                  ? kMi
                               : suffix == "G"                  ? 1 << 30
                                                                : 0;
  if (factor == 0 || end == 0)
    throw Fault{"--parameters '" + word + "' is not understood", "Give something like 64M"};
  const std::uint64_t number =
      command_line::to_whole("--parameters", word.substr(0, end), {1, kMostElements});
  if (number > kMostElements / factor || number * factor < base::kBlockElements)
    throw Fault{"--parameters " + word + " is out of range", "Give from 64k to 1024G"};
  return base::align_up(number * factor, base::kBlockElements);
}

double to_least_share(const std::string& word) {
  if (!word.starts_with("share="))
    throw Fault{"--require '" + word + "' is nothing that is measured", "Give share=0.9"};
  return command_line::to_share("--require share", word.substr(6), {0.001, 10});
}

void finish(OptimizerBenchOptions& o, const Words& w) {
  CaseAxes axes;
  axes.rules = choices("--rule", w.rules, kRules);
  axes.moments = choices("--moments", w.moments, kMomentCodecs);
  axes.weights = choices("--weight", w.weights, kWeights);
  axes.gradients = choices("--gradient", w.gradients, kGradients);
  axes.simd = choices("--simd", w.simd, kInstructionSets);
  axes.threads = threads_of(w.threads);
  axes.all = w.all;
  axes.checksums = w.checksum;
  o.elements_given = !w.parameters.empty();
  o.elements = o.elements_given ? to_elements(w.parameters) : (w.all ? 8 : w.quick ? 16 : 64) * kMi;
  o.rounds = w.all || w.quick ? 9 : 15;
  if (!w.rounds.empty())
    o.rounds = static_cast<std::uint32_t>(command_line::to_whole("--rounds", w.rounds, {1, 10000}));
  o.most_seconds = w.quick ? 10 : w.all ? 600 : 60;
  if (!w.runtime.empty())
    o.most_seconds = command_line::to_seconds("--runtime", w.runtime, {1, 86400.0 * 30});
  if (!w.require.empty()) o.least_share = to_least_share(w.require);
  o.cases = cases_of(axes, static_cast<std::uint32_t>(platform::usable_cpus().value));
}
}  // namespace

int run_with_optimizer_bench_options(int argc, const char* const* argv,
                                     const std::function<int(const OptimizerBenchOptions&)>& run) {
  OptimizerBenchOptions options;
  Words words;
  CLI::App app(kDescription, kBenchOptimizerName);
  app.footer(kFooter);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_what(app, words);
  add_how_much(app, options, words);
  const auto finish_and_run = [&] {
    try {
      finish(options, words);
    } catch (const Error& error) {  // of the environment, or an instruction set
      const bool lacking = error.code() == Code::kUnsupported;
      return Failing(kBenchOptimizerName, options.json)
          .fail(lacking ? kLacking : kRefused, lacking ? "kUnsupported" : "kUsage", error.what());
    }
    return run(options);
  };
  return run_subcommand({.program = kBenchOptimizerName,
                         .nothing_done = "nothing was measured",
                         .app = app,
                         .json = options.json,
                         .check = [] {},
                         .run = finish_and_run,
                         .lost = "what was measured so far is lost"},
                        argc, argv);
}
}  // namespace headrace::tools
