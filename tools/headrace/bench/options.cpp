// SPDX-License-Identifier: Apache-2.0
#include "bench/options.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "bench/default_workloads.hpp"
#include "command_line/command_line.hpp"
#include "command_line/quantities.hpp"
#include "program/io_queue_names.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
using command_line::Fault;
using command_line::to_list;

constexpr const char* kDescription =
    "Measures what a drive can do for offloading: sequential and random reads and writes, and the "
    "update\nphase's pattern of reading a block and writing it back (rw), over block sizes and "
    "depths. Rounds are\ninterleaved; medians come with a 95 % interval. In a directory it reads "
    "only what\nthis run wrote, and compares all of it.\nPATH is a directory on the drive (a "
    "scratch file is made in it and removed), one per drive; or a block\ndevice or a file, which "
    "are only read.\n";
constexpr const char* kFooter =
    "\nSizes are powers of 1024 (4M, 1GiB), lists have commas: --bs 1M,4M --iodepth 4,16. Without "
    "--rw, --bs,\n--iodepth, --queue and --batch a default set is measured.\n`headrace bench "
    "optimizer` measures the update on the CPU, `headrace bench copy` copies between host and "
    "GPU,\n`headrace bench ranks` what passes between ranks.\n"
    "\nExit codes: 0 done, 1 the run failed or data differed, 2 refused before it started, 3 a "
    "named "
    "queue or fio\nis not available, 128 + n ended by signal n.\n";

// As given; empty: not.
struct Words {
  std::string patterns, blocks, depths, queues, batches, size, runtime, most_written, rounds, until,
      verify, compare;
  std::uint32_t jobs = 1;
  bool quick = false, unregistered = false;
};

void add_what(CLI::App& app, BenchOptions& o, Words& w) {
  const char* group = "What is measured";
  app.add_option("PATH", o.paths, "Directories, one per drive [the current one]")->type_name("");
  const auto list = [&](const char* name, std::string& to, const char* help) {
    app.add_option(name, to, help)->group(group)->type_name("LIST");
  };
  list("--rw", w.patterns, "read, write, randread, randwrite, rw [read,write,rw]");
  list("--bs", w.blocks, "Bytes of one request, 4k to 64M [1M]");
  list("--iodepth", w.depths, "Requests in flight per drive and job, 1 to 1024 [16]");
  list("--queue", w.queues,
       "auto, uring, aio, threads; as fio's --ioengine [HEADRACE_IO_QUEUE, else auto]");
  const auto refuse_engine = [](const std::string& word) {
    throw Fault{"--ioengine is an option of fio; here it is --queue",
                "Give --queue " + (word == "libaio"     ? "aio"
                                   : word == "io_uring" ? "uring"
                                                        : std::string("uring, aio or threads"))};
  };
  app.add_option_function<std::string>("--ioengine", refuse_engine, "")->group("");  // not listed
  list("--batch", w.batches, "Requests per system call [2]");
  app.add_flag("--unregistered", w.unregistered, "uring: also without registered buffers")
      ->group(group);
  command_line::add_number(app, "--jobs", w.jobs, {1, 64},
                           "Threads per drive, each with a part of the file")
      ->group(group)
      ->default_str("1");
  app.add_option("--compare", w.compare, "Also run fio with the same work, in the same rounds")
      ->group(group)
      ->type_name("fio");
}

void add_how_much(CLI::App& app, Words& w) {
  const char* group = "How much";
  const auto text = [&](const char* name, const char* type, std::string& to, const char* help) {
    app.add_option(name, to, help)->group(group)->type_name(type);
  };
  text("--size", "SIZE", w.size, "Size of the file per drive [1G; --quick 512M]");
  text("--runtime", "TIME", w.runtime, "At most this long in all [60s; --quick 10s]");
  text("--max-write", "SIZE", w.most_written, "Write at most this much per drive [8G; --quick 4G]");
  text("--rounds", "N", w.rounds,
       "Rounds, after one to warm up; 0: as many as the time allows [6; --until 40]");
  text("--until", "SHARE", w.until, "End early once each interval is within this, e.g. 3%");
  app.add_flag("--quick", w.quick, "A first look in 10 s")->group(group);
  text("--verify", "HOW", w.verify,
       "stamps: a few pages per block, every byte at the end; whole: every byte of every read "
       "[stamps]");
}

void add_results(CLI::App& app, BenchOptions& o) {
  const char* group = "Results";
  app.add_option("--json", o.json, "File for the report; - is stdout")
      ->group(group)
      ->type_name("FILE");
  command_line::add_replaced(app, "--report", page_of_json());
  app.add_flag("--as-fio", o.as_fio, "Print fio's commands for the same work; measure nothing")
      ->group(group);
}

// Options that are no more; each says what does the same.
void add_replaced_options(CLI::App& app) {
  using command_line::add_replaced;
  using command_line::add_replaced_flag;
  add_replaced_flag(app, "--engine",
                    {"--engine: the engine's own path is measured by a program of its own",
                     "Run update_bench --nvme DIRECTORY: an update beside the same records raw"});
  add_replaced_flag(app, "--sustained",
                    {"--sustained: where a drive's cache ends is seen in rounds over a long time",
                     "Give --rw write --size 16G --rounds 0 --runtime 5m --max-write 64G --json "
                     "FILE; the job's samples are the rounds in their order"});
  add_replaced(app, "--require",
               {"--require: a report is judged by whoever reads it",
                "Give --json - and pipe it to jq -e '.ceiling_bytes_per_second.read >= 6e9'"});
  add_replaced(app, "--with-update-load",
               {"--with-update-load: the update is measured by a subcommand of its own",
                "Run `headrace bench optimizer` beside this program"});
  add_replaced(app, "--cpus",
               {"--cpus: which CPUs a program runs on is said where it is started",
                "Run taskset -c LIST headrace bench ..."});
  add_replaced(app, "--numa-node",
               {"--numa-node: which CPUs a program runs on is said where it is started",
                "Run numactl --cpunodebind=NODE headrace bench ..."});
}

template <class T, class To>
std::vector<T> list_of(const char* name, const std::string& words, std::vector<T> otherwise,
                       const To& to) {
  if (words.empty()) return otherwise;
  std::vector<T> values;
  for (const std::string& word : to_list(name, words)) {
    const T value = to(word);
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  return values;
}

Pattern to_pattern(const std::string& word) {
  if (const auto pattern = pattern_of(word)) return *pattern;
  throw Fault{"--rw '" + word + "' is not known", "Give read, write, randread, randwrite or rw"};
}

Axes axes_of(const Words& w) {
  const auto number = [](const char* name, std::uint64_t most) {
    return [name, most](const std::string& word) {
      return static_cast<std::uint32_t>(command_line::to_whole(name, word, {1, most}));
    };
  };
  Axes axes;
  axes.patterns = list_of<Pattern>("--rw", w.patterns, {}, to_pattern);
  axes.blocks = list_of<std::uint64_t>("--bs", w.blocks, {}, [](const std::string& word) {
    return command_line::to_bytes("--bs", word, {4096, 64 * base::kMiB, 4096});
  });
  axes.depths = list_of<std::uint32_t>("--iodepth", w.depths, {}, number("--iodepth", 1024));
  axes.queues = list_of<IoQueueKind>("--queue", w.queues, {}, [](const std::string& word) {
    return queue_in_option("--queue", word);
  });
  axes.batches = list_of<std::uint32_t>("--batch", w.batches, {}, number("--batch", 256));
  axes.queue = queue_of_environment();
  axes.jobs = w.jobs;
  axes.also_unregistered = w.unregistered;
  return axes;
}

void take_amounts(BenchOptions& o, const Words& w) {
  const auto otherwise = [&](auto usual, auto quick) { return w.quick ? quick : usual; };
  const auto bytes = [](const char* name, const std::string& word, std::uint64_t least) {
    return command_line::to_bytes(name, word, {least, std::uint64_t{1} << 50});
  };
  o.file_bytes_given = !w.size.empty();
  o.file_bytes = w.size.empty()
                     ? otherwise(base::kGiB, base::kGiB / 2)
                     : base::align_up(bytes("--size", w.size, 64 * base::kMiB), base::kHugePage);
  o.most_written_bytes = w.most_written.empty()
                             ? otherwise(8 * base::kGiB, 4 * base::kGiB)
                             : bytes("--max-write", w.most_written, 64 * base::kMiB);
  o.most_seconds = w.runtime.empty()
                       ? otherwise(60.0, 10.0)
                       : command_line::to_seconds("--runtime", w.runtime, {1, 86400.0 * 30});
  if (!w.rounds.empty())
    o.rounds =
        static_cast<std::uint32_t>(command_line::to_whole("--rounds", w.rounds, {0, 100000}));
  if (o.rounds == 0) o.rounds = 1'000'000;
  if (w.rounds.empty() && !w.until.empty()) o.rounds = 40;
  if (!w.until.empty()) o.until = command_line::to_share("--until", w.until, {0.001, 1});
}

void finish(BenchOptions& o, const Words& w) {
  if (o.paths.empty()) o.paths = {"."};
  take_amounts(o, w);
  if (!w.verify.empty())
    o.verify = command_line::to_choice<Verify>(
        "--verify", w.verify, {{"stamps", Verify::kStamps}, {"whole", Verify::kWhole}});
  if (!w.compare.empty())
    o.compare_fio = command_line::to_choice<bool>("--compare", w.compare, {{"fio", true}});
  o.workloads = workloads_of(axes_of(w), w.quick);
}
}  // namespace

int refuse_compare(int argc, const char* const* argv) {
  const Fault fault{
      "reports are compared by a program of their own",
      "Run `python3 scripts/report compare A.json B.json` in Headrace's folder; it takes "
      "--fail-below too"};
  return Failing("headrace bench compare", command_line::value_of("--json", argc, argv))
      .fail(kRefused, "kUsage", command_line::text_of(fault, "nothing was compared"));
}

int run_with_bench_options(int argc, const char* const* argv,
                           const std::function<int(const BenchOptions&)>& run) {
  BenchOptions options;
  Words words;
  CLI::App app(kDescription, kBenchName);
  app.footer(kFooter);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_what(app, options, words);
  app.get_option("PATH")->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_how_much(app, words);
  add_results(app, options);
  add_replaced_options(app);
  return run_subcommand({.program = kBenchName,
                         .nothing_done = "nothing was measured",
                         .app = app,
                         .json = options.json,
                         .check = [&] { finish(options, words); },
                         .run = [&] { return run(options); },
                         .lost = "what was measured so far is lost, its files are gone",
                         .less = {"fewer --jobs, a smaller --bs or --iodepth", "fewer --jobs"}},
                        argc, argv);
}
}  // namespace headrace::tools
